//! The `range` assignor: topic by topic, contiguous, the first members one more.

use std::cmp::Ordering;

use super::{AssignInput, AssignMember, Place};

pub(super) fn assign(input: &AssignInput<'_>) -> Vec<Vec<Place>> {
    let mut shares = vec![Vec::new(); input.members.len()];
    let mut order: Vec<usize> = (0..input.members.len()).collect();
    order.sort_by(|a, b| precedence(&input.members[*a], &input.members[*b]));
    let subscribes = subscriptions_by_topic(input);
    for (topic, facts) in input.topics.iter().enumerate() {
        let subscribers: Vec<usize> = order
            .iter()
            .copied()
            .filter(|member| subscribes[topic].contains(&input.members[*member].subscription))
            .collect();
        let count = subscribers.len() as u32;
        if count == 0 {
            continue;
        }
        let (each, longer) = (facts.partitions / count, facts.partitions % count);
        let mut next = 0;
        for (rank, member) in (0_u32..).zip(subscribers) {
            let end = next + each + u32::from(rank < longer);
            shares[member].extend((next..end).map(|partition| Place { topic, partition }));
            next = end;
        }
    }
    shares
}

/// Static members come first and in the order of their instance ids: a restart, which changes the
/// member id, does not move their ranges.
fn precedence(a: &AssignMember<'_>, b: &AssignMember<'_>) -> Ordering {
    match (a.instance_id, b.instance_id) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.id.cmp(b.id),
    }
}

/// For each topic, which subscriptions hold it; those that no member has are left out.
pub(super) fn subscriptions_by_topic(input: &AssignInput<'_>) -> Vec<Vec<usize>> {
    let mut used = vec![false; input.subscriptions.len()];
    for member in &input.members {
        used[member.subscription] = true;
    }
    let mut by_topic = vec![Vec::new(); input.topics.len()];
    for (subscription, topics) in input.subscriptions.iter().enumerate() {
        if used[subscription] {
            for topic in topics {
                by_topic[*topic].push(subscription);
            }
        }
    }
    by_topic
}
