//! Kafka's RoundRobinAssignor: all partitions of all topics in order, each to the next member that
//! wants its topic.

use super::{Assignments, PartitionCounts, Subscriber, nothing, wanted};
use crate::topic_partition::TopicPartition;

pub(super) fn assign(members: &[Subscriber], counts: &PartitionCounts) -> Assignments {
    let mut assigned = nothing(members);
    let mut turn = 0;
    for (topic, count) in wanted(members, counts) {
        for partition in 0..count {
            // Somebody wants the topic: the search ends.
            while !members[turn % members.len()]
                .subscription
                .topics
                .contains(topic)
            {
                turn += 1;
            }
            let taker = &members[turn % members.len()].member_id;
            if let Some(partitions) = assigned.get_mut(taker) {
                partitions.insert(TopicPartition::new(topic.clone(), partition));
            }
            turn += 1;
        }
    }
    assigned
}
