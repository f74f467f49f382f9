//! Kafka's RangeAssignor: of each topic, a run of neighbouring partitions for each member; the
//! first ones get one more where it does not come out even.

use super::{Assignments, PartitionCounts, Subscriber, nothing, wanted};
use crate::topic_partition::TopicPartition;

pub(super) fn assign(members: &[Subscriber], counts: &PartitionCounts) -> Assignments {
    let mut assigned = nothing(members);
    for (topic, count) in wanted(members, counts) {
        let takers: Vec<&Subscriber> = members
            .iter()
            .filter(|member| member.subscription.topics.contains(topic))
            .collect();
        let share = count / takers.len() as i32;
        let larger = count % takers.len() as i32;
        let mut next = 0;
        for (index, taker) in (0..).zip(takers) {
            let end = next + share + i32::from(index < larger);
            let run = (next..end).map(|partition| TopicPartition::new(topic.clone(), partition));
            if let Some(partitions) = assigned.get_mut(&taker.member_id) {
                partitions.extend(run);
            }
            next = end;
        }
    }
    assigned
}
