//! Even shares, with as few moves as possible; for cooperative members in two steps (KIP-429): a
//! partition that moves is first taken from its owner, and given to the next one in the rebalance
//! that follows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Assignments, PartitionCounts, Subscriber, nothing, wanted};
use crate::topic_partition::TopicPartition;

/// For members that have given up everything: what they own is what they had.
pub(super) fn assign(members: &[Subscriber], counts: &PartitionCounts) -> Assignments {
    let mut assigned = nothing(members);
    for (member, partitions) in members.iter().zip(shares(members, counts).held) {
        assigned.insert(member.member_id.clone(), partitions);
    }
    assigned
}

/// For members that go on with what they own.
pub(super) fn assign_in_steps(members: &[Subscriber], counts: &PartitionCounts) -> Assignments {
    let owners = owners(members, counts);
    let mut assigned = nothing(members);
    let held = shares(members, counts).held;
    for (index, partitions) in held.into_iter().enumerate() {
        let kept = partitions.into_iter().filter(|at| {
            // Its owner reads it still: it waits for the next rebalance.
            owners.get(at).is_none_or(|owner| *owner == index)
        });
        assigned.insert(members[index].member_id.clone(), kept.collect());
    }
    assigned
}

/// What each should have in the end.
fn shares(members: &[Subscriber], counts: &PartitionCounts) -> Shares {
    let owners = owners(members, counts);
    let mut shares = Shares::new(members);
    let mut free = Vec::new();
    for (topic, count) in wanted(members, counts) {
        for partition in 0..count {
            let at = TopicPartition::new(topic.clone(), partition);
            match owners.get(&at) {
                Some(owner) => shares.give(*owner, at),
                None => free.push(at),
            }
        }
    }
    // Those that few want first: the others can make up for them.
    free.sort_by_key(|at| shares.takers(&at.topic).len());
    for at in free {
        if let Some(taker) = shares.poorest(&at.topic) {
            shares.give(taker, at);
        }
    }
    shares.even_out();
    shares
}

/// Who owns what, by the members' own words: the claim of the newest generation counts; two claims
/// of the same generation contradict each other, and neither does.
fn owners(members: &[Subscriber], counts: &PartitionCounts) -> HashMap<TopicPartition, usize> {
    let mut claims: HashMap<&TopicPartition, (i32, Option<usize>)> = HashMap::new();
    for (index, member) in members.iter().enumerate() {
        let subscription = &member.subscription;
        for at in &subscription.owned {
            let exists = counts
                .get(&at.topic)
                .is_some_and(|count| (0..*count).contains(&at.partition));
            if !exists || !subscription.topics.contains(&at.topic) {
                continue;
            }
            let claim = claims.entry(at).or_insert((i32::MIN, None));
            match subscription.generation.cmp(&claim.0) {
                std::cmp::Ordering::Greater => *claim = (subscription.generation, Some(index)),
                std::cmp::Ordering::Equal => claim.1 = None,
                std::cmp::Ordering::Less => {}
            }
        }
    }
    claims
        .into_iter()
        .filter_map(|(at, (_, owner))| Some((at.clone(), owner?)))
        .collect()
}

/// What each member would have.
struct Shares {
    /// Partitions by member.
    held: Vec<BTreeSet<TopicPartition>>,
    /// Of each topic, those who want it, by (number of partitions held, member).
    takers: BTreeMap<Arc<str>, BTreeSet<(usize, usize)>>,
    /// What each member wants.
    topics: Vec<BTreeSet<Arc<str>>>,
}

impl Shares {
    fn new(members: &[Subscriber]) -> Shares {
        let mut takers: BTreeMap<Arc<str>, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            for topic in &member.subscription.topics {
                takers.entry(topic.clone()).or_default().insert((0, index));
            }
        }
        Shares {
            held: vec![BTreeSet::new(); members.len()],
            takers,
            topics: members
                .iter()
                .map(|member| member.subscription.topics.clone())
                .collect(),
        }
    }

    fn takers(&self, topic: &str) -> &BTreeSet<(usize, usize)> {
        static NOBODY: BTreeSet<(usize, usize)> = BTreeSet::new();
        self.takers.get(topic).unwrap_or(&NOBODY)
    }

    fn poorest(&self, topic: &str) -> Option<usize> {
        self.takers(topic).first().map(|(_, member)| *member)
    }

    fn give(&mut self, member: usize, at: TopicPartition) {
        let before = self.held[member].len();
        self.held[member].insert(at);
        self.reorder(member, before);
    }

    fn take(&mut self, member: usize, at: &TopicPartition) {
        let before = self.held[member].len();
        self.held[member].remove(at);
        self.reorder(member, before);
    }

    fn reorder(&mut self, member: usize, before: usize) {
        let now = self.held[member].len();
        for topic in &self.topics[member] {
            if let Some(takers) = self.takers.get_mut(topic) {
                takers.remove(&(before, member));
                takers.insert((now, member));
            }
        }
    }

    /// Moves single partitions from the rich to the poor until no such move makes the shares more
    /// even. Ends, since each move makes the sum of the squares smaller.
    fn even_out(&mut self) {
        let mut settled = BTreeSet::new();
        loop {
            let richest = (0..self.held.len())
                .filter(|member| !settled.contains(member))
                .max_by_key(|member| self.held[*member].len());
            let Some(rich) = richest else { return };
            match self.move_from(rich) {
                // Somebody has more now, and may give.
                Some(taker) => {
                    settled.remove(&taker);
                }
                None => {
                    settled.insert(rich);
                }
            }
        }
    }

    /// The member to whom one partition went.
    fn move_from(&mut self, rich: usize) -> Option<usize> {
        let held = self.held[rich].len();
        let mut topics: Vec<&Arc<str>> = self.held[rich].iter().map(|at| &at.topic).collect();
        topics.dedup();
        let (poor_holds, poor, topic) = topics
            .into_iter()
            .filter_map(|topic| {
                let (holds, poor) = *self.takers(topic).first()?;
                Some((holds, poor, topic.clone()))
            })
            .min()?;
        if poor_holds + 1 >= held {
            return None;
        }
        // The last one: the first ones stay where most readers of a topic look for them.
        let at = self.held[rich]
            .iter()
            .rfind(|at| at.topic == topic)
            .cloned()?;
        self.take(rich, &at);
        self.give(poor, at);
        Some(poor)
    }
}
