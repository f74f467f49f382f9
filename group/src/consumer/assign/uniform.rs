//! The `uniform` assignor: balanced over all topics together, and sticky.
//!
//! Where all members subscribe to the same topics, loads differ by at most one and nothing moves
//! that balance does not ask for. Where they do not, no single move of a partition between two
//! members that both subscribe to its topic would make the loads more even.

use std::collections::BTreeMap;

use corduroy_record::TopicId;

use super::range::subscriptions_by_topic;
use super::{AssignInput, Place};

pub(super) fn assign(input: &AssignInput<'_>) -> Vec<Vec<Place>> {
    if input.members.is_empty() {
        return Vec::new();
    }
    let subscribes = subscriptions_by_topic(input);
    let (shares, free) = keep(input, &subscribes);
    let first = input.members[0].subscription;
    if input
        .members
        .iter()
        .all(|member| member.subscription == first)
    {
        share_evenly(shares, free)
    } else {
        share_by_subscription(input, &subscribes, shares, free)
    }
}

/// What members had and may keep, and what nobody has: both in the order of topics.
fn keep(input: &AssignInput<'_>, subscribes: &[Vec<usize>]) -> (Vec<Vec<Place>>, Vec<Place>) {
    let positions: BTreeMap<TopicId, usize> = input
        .topics
        .iter()
        .enumerate()
        .map(|(position, topic)| (topic.id, position))
        .collect();
    let mut taken: Vec<Vec<bool>> = input
        .topics
        .iter()
        .map(|topic| vec![false; topic.partitions as usize])
        .collect();
    let mut shares = Vec::with_capacity(input.members.len());
    for member in &input.members {
        let mut share = Vec::new();
        for (id, partitions) in member.previous {
            let Some(&topic) = positions.get(id) else {
                continue;
            };
            if !subscribes[topic].contains(&member.subscription) {
                continue;
            }
            for partition in partitions {
                let Ok(partition) = u32::try_from(partition.get()) else {
                    continue;
                };
                // A partition that is gone, or that another member had before this one, is not kept.
                if let Some(taken) = taken[topic].get_mut(partition as usize)
                    && !std::mem::replace(taken, true)
                {
                    share.push(Place { topic, partition });
                }
            }
        }
        shares.push(share);
    }
    let mut free = Vec::new();
    for (topic, taken) in taken.iter().enumerate() {
        if subscribes[topic].is_empty() {
            continue;
        }
        for (partition, taken) in (0_u32..).zip(taken) {
            if !taken {
                free.push(Place { topic, partition });
            }
        }
    }
    (shares, free)
}

/// Every member may have every partition: `total / members` each, and one more for some. Those that
/// have one more already keep it, so that as little as possible moves.
fn share_evenly(mut shares: Vec<Vec<Place>>, mut free: Vec<Place>) -> Vec<Vec<Place>> {
    let total = free.len() + shares.iter().map(Vec::len).sum::<usize>();
    let (least, mut longer) = (total / shares.len(), total % shares.len());
    for share in &mut shares {
        let mut quota = least;
        if share.len() > least && longer > 0 {
            longer -= 1;
            quota += 1;
        }
        if share.len() > quota {
            by_rank_in_topic(share);
            free.extend(share.drain(quota..));
        }
    }
    free.sort_unstable();
    let mut quotas = Vec::with_capacity(shares.len());
    for share in &shares {
        let extra = usize::from(share.len() <= least && longer > 0);
        longer -= extra;
        quotas.push(share.len().max(least + extra));
    }
    // In turns, so that the partitions of one topic spread over the members.
    let mut free = free.into_iter();
    let mut open: Vec<usize> = (0..shares.len()).collect();
    while !open.is_empty() {
        open.retain(|member| shares[*member].len() < quotas[*member]);
        for member in &open {
            match free.next() {
                Some(place) => shares[*member].push(place),
                None => return shares,
            }
        }
    }
    shares
}

/// Orders a share so that its beginning holds as many topics as evenly as possible: what a member
/// gives up comes from the topics of which it has most.
fn by_rank_in_topic(share: &mut Vec<Place>) {
    share.sort_unstable();
    let mut ranked = Vec::with_capacity(share.len());
    let (mut topic, mut rank) = (usize::MAX, 0_u32);
    for place in share.drain(..) {
        if place.topic != topic {
            (topic, rank) = (place.topic, 0);
        }
        ranked.push((rank, place));
        rank += 1;
    }
    ranked.sort_unstable();
    share.extend(ranked.into_iter().map(|(_, place)| place));
}

/// Each topic has its own subscribers: the least loaded one takes what is free, topics with few
/// subscribers first; then single moves from the most loaded to the least loaded subscriber of a
/// topic, until none of them helps. Each move makes the sum of squared loads smaller, so it ends.
fn share_by_subscription(
    input: &AssignInput<'_>,
    subscribes: &[Vec<usize>],
    mut shares: Vec<Vec<Place>>,
    free: Vec<Place>,
) -> Vec<Vec<Place>> {
    let mut by_subscription = vec![Vec::new(); input.subscriptions.len()];
    for (member, facts) in input.members.iter().enumerate() {
        by_subscription[facts.subscription].push(member);
    }
    let subscribers: Vec<Vec<usize>> = subscribes
        .iter()
        .map(|subscriptions| {
            let mut members: Vec<usize> = subscriptions
                .iter()
                .flat_map(|subscription| by_subscription[*subscription].iter().copied())
                .collect();
            members.sort_unstable();
            members
        })
        .collect();
    let mut free = free;
    free.sort_by_key(|place| (subscribers[place.topic].len(), *place));
    let mut loads: Vec<usize> = shares.iter().map(Vec::len).collect();
    for place in free {
        let least = subscribers[place.topic]
            .iter()
            .copied()
            .min_by_key(|member| loads[*member]);
        if let Some(member) = least {
            shares[member].push(place);
            loads[member] += 1;
        }
    }
    // held[topic][member]: the partitions of the topic that the member has.
    let mut held: Vec<BTreeMap<usize, Vec<Place>>> = vec![BTreeMap::new(); input.topics.len()];
    for (member, share) in shares.iter_mut().enumerate() {
        for place in share.drain(..) {
            held[place.topic].entry(member).or_default().push(place);
        }
    }
    loop {
        let mut moved = false;
        for (topic, held) in held.iter_mut().enumerate() {
            moved |= even_out(&subscribers[topic], held, &mut loads);
        }
        if !moved {
            break;
        }
    }
    for held in held {
        for (member, places) in held {
            shares[member].extend(places);
        }
    }
    shares
}

/// Moves partitions of one topic until no move helps; whether any moved.
fn even_out(
    subscribers: &[usize],
    held: &mut BTreeMap<usize, Vec<Place>>,
    loads: &mut [usize],
) -> bool {
    let mut moved = false;
    loop {
        let most = held
            .iter()
            .filter(|(_, places)| !places.is_empty())
            .map(|(member, _)| *member)
            .max_by_key(|member| loads[*member]);
        let least = subscribers
            .iter()
            .copied()
            .min_by_key(|member| loads[*member]);
        let (Some(most), Some(least)) = (most, least) else {
            return moved;
        };
        if loads[most] <= loads[least] + 1 {
            return moved;
        }
        let Some(place) = held.get_mut(&most).and_then(Vec::pop) else {
            return moved;
        };
        held.entry(least).or_default().push(place);
        loads[most] -= 1;
        loads[least] += 1;
        moved = true;
    }
}
