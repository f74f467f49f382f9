//! Which shard of this node hosts a partition: node-local, a pure function.

use corduroy_record::GroupId;

/// The shard that hosts `group` on a node with `shards` shards. Partitions of one topic go round
/// the shards; the controller is always on shard 0.
pub fn shard_of(group: GroupId, shards: u16) -> u16 {
    if group == GroupId::CONTROLLER || shards <= 1 {
        return 0;
    }
    let bytes = group.topic.bytes();
    let mut start: u64 = 0;
    for byte in bytes {
        start = start.wrapping_mul(31).wrapping_add(u64::from(byte));
    }
    let partition = u64::from(group.partition.get().unsigned_abs());
    let shard = start.wrapping_add(partition) % u64::from(shards);
    u16::try_from(shard).expect("law: a remainder of a u16 fits a u16")
}

#[cfg(test)]
mod tests {
    use super::*;
    use corduroy_record::{PartitionIndex, TopicId};

    #[test]
    fn partitions_of_a_topic_go_round_the_shards() {
        for shards in 1..=5u16 {
            let mut counts = vec![0; usize::from(shards)];
            for p in 0..(i32::from(shards) * 4) {
                let group = GroupId {
                    topic: TopicId::from_bytes([9; 16]),
                    partition: PartitionIndex::new(p),
                };
                counts[usize::from(shard_of(group, shards))] += 1;
            }
            assert!(
                counts.iter().all(|c| *c == 4),
                "{shards} shards: {counts:?}"
            );
        }
        assert_eq!(shard_of(GroupId::CONTROLLER, 5), 0);
    }
}
