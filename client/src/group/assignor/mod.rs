//! How the leader of a classic group spreads partitions over its members. Pure.

mod range;
mod round_robin;
mod sticky;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::embedded::Subscription;
use crate::config::Strategy;
use crate::topic_partition::TopicPartition;

/// A member as the leader sees it.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) member_id: String,
    pub(super) instance_id: Option<String>,
    pub(super) subscription: Subscription,
}

/// Partitions by member id. Each member is there.
pub(super) type Assignments = BTreeMap<String, BTreeSet<TopicPartition>>;

/// How many partitions each topic has. Topics that do not exist are not there.
pub(super) type PartitionCounts = BTreeMap<Arc<str>, i32>;

/// Spreads the partitions of all topics that somebody wants over those who want them.
pub(super) fn assign(
    strategy: Strategy,
    mut members: Vec<Subscriber>,
    counts: &PartitionCounts,
) -> Assignments {
    // Static members keep their place in this order when they come back under another member id;
    // they come before dynamic ones (as in Kafka's `MemberInfo`).
    members.sort_by(|left, right| place(left).cmp(&place(right)));
    match strategy {
        Strategy::Range => range::assign(&members, counts),
        Strategy::RoundRobin => round_robin::assign(&members, counts),
        Strategy::Sticky => sticky::assign(&members, counts),
        Strategy::CooperativeSticky => sticky::assign_in_steps(&members, counts),
    }
}

fn place(member: &Subscriber) -> (bool, &str, &str) {
    let instance = member.instance_id.as_deref();
    (
        instance.is_none(),
        instance.unwrap_or_default(),
        &member.member_id,
    )
}

/// Every member with nothing.
fn nothing(members: &[Subscriber]) -> Assignments {
    members
        .iter()
        .map(|member| (member.member_id.clone(), BTreeSet::new()))
        .collect()
}

/// The topics that somebody wants and that exist, each with its partition count.
fn wanted<'a>(members: &[Subscriber], counts: &'a PartitionCounts) -> Vec<(&'a Arc<str>, i32)> {
    let topics: BTreeSet<&Arc<str>> = members
        .iter()
        .flat_map(|member| &member.subscription.topics)
        .collect();
    counts
        .iter()
        .filter(|(topic, _)| topics.contains(topic))
        .map(|(topic, count)| (topic, *count))
        .collect()
}
