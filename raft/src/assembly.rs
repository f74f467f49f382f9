//! Snapshots that arrive in parts: put together, within a bound for the whole shard.

use std::collections::HashMap;

use bytes::Bytes;
use corduroy_record::{GroupId, NodeId};

use crate::wire::WireLogId;

/// Membership and tables of one snapshot, at most.
pub(crate) const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;

/// Bytes of all snapshots that have arrived in part on one shard. The one that has come furthest
/// may exceed it, so that a snapshot larger than this still arrives, alone: a shard never holds
/// more than this and [`SNAPSHOT_BYTES_MAX`] together.
pub(crate) const ASSEMBLING_BYTES_MAX: u64 = 256 << 20;

/// Which snapshot a part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The node that sends it.
    pub(crate) node: NodeId,
    /// Its replica.
    pub(crate) replica: u64,
    /// The last entry that the snapshot stands for.
    pub(crate) last: WireLogId,
}

/// A part of a snapshot.
pub(crate) struct Part {
    pub(crate) origin: Origin,
    /// Bytes of the snapshot before this part.
    pub(crate) position: u64,
    /// Bytes of the whole snapshot.
    pub(crate) total_bytes: u64,
    pub(crate) bytes: Bytes,
}

/// What became of a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// So many bytes are here; more are to come.
    More(u64),
    /// The snapshot is whole.
    Whole(Bytes),
    /// It does not follow what is here: the sender begins anew.
    OutOfOrder,
    /// No room while others arrive: the sender begins anew, after its pause.
    Full,
}

struct Assembly {
    origin: Origin,
    received: u64,
    parts: Vec<Bytes>,
}

/// The snapshots that are arriving on one shard, one for each group.
///
/// Law: all of them but the longest hold at most `bytes_max` together.
pub(crate) struct Assemblies {
    by_group: HashMap<GroupId, Assembly>,
    bytes: u64,
    bytes_max: u64,
}

impl Default for Assemblies {
    fn default() -> Self {
        Assemblies::with_bytes_max(ASSEMBLING_BYTES_MAX)
    }
}

impl Assemblies {
    fn with_bytes_max(bytes_max: u64) -> Assemblies {
        Assemblies {
            by_group: HashMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Takes the next part of a group's snapshot; the first one replaces what was there.
    pub(crate) fn take(&mut self, group: GroupId, part: Part) -> Taken {
        if part.position == 0 {
            self.remove(group);
            let fresh = Assembly {
                origin: part.origin,
                received: 0,
                parts: Vec::new(),
            };
            self.by_group.insert(group, fresh);
        }
        let follows = self.by_group.get(&group).is_some_and(|assembly| {
            assembly.origin == part.origin && assembly.received == part.position
        });
        if !follows {
            return Taken::OutOfOrder;
        }
        let part_bytes = part.bytes.len() as u64;
        let is_furthest = self
            .by_group
            .iter()
            .all(|(other, assembly)| *other == group || assembly.received <= part.position);
        if self.bytes + part_bytes > self.bytes_max && !is_furthest {
            // What is here of it makes room: its sender begins anew anyway.
            self.remove(group);
            return Taken::Full;
        }
        let Some(assembly) = self.by_group.get_mut(&group) else {
            return Taken::OutOfOrder;
        };
        assembly.received += part_bytes;
        assembly.parts.push(part.bytes);
        self.bytes += part_bytes;
        if assembly.received < part.total_bytes {
            return Taken::More(assembly.received);
        }
        let parts = self.remove(group).map(|assembly| assembly.parts.concat());
        Taken::Whole(Bytes::from(parts.unwrap_or_default()))
    }

    fn remove(&mut self, group: GroupId) -> Option<Assembly> {
        let removed = self.by_group.remove(&group)?;
        self.bytes -= removed.received;
        Some(removed)
    }

    /// The group's replica is closed.
    pub(crate) fn forget_group(&mut self, group: GroupId) {
        self.remove(group);
    }

    /// What a node had begun to send will not go on.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.by_group.retain(|_, assembly| {
            let stays = assembly.origin.node != node;
            if !stays {
                self.bytes -= assembly.received;
            }
            stays
        });
    }

    /// Nothing arrives any more.
    pub(crate) fn clear(&mut self) {
        self.by_group.clear();
        self.bytes = 0;
    }

    /// Bytes that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corduroy_record::{PartitionIndex, TopicId};

    fn group(number: i32) -> GroupId {
        GroupId {
            topic: TopicId::from_bytes([1; 16]),
            partition: PartitionIndex::new(number),
        }
    }

    fn part(node: i32, position: u64, bytes: usize, total_bytes: u64) -> Part {
        Part {
            origin: Origin {
                node: NodeId::new(node),
                replica: 7,
                last: WireLogId { term: 1, index: 9 },
            },
            position,
            total_bytes,
            bytes: Bytes::from(vec![position as u8; bytes]),
        }
    }

    #[test]
    fn parts_in_order_make_a_whole() {
        let mut assemblies = Assemblies::default();
        assert_eq!(assemblies.take(group(0), part(1, 0, 2, 3)), Taken::More(2));
        assert_eq!(assemblies.bytes(), 2);
        let late = assemblies.take(group(0), part(1, 1, 1, 3));
        assert_eq!(late, Taken::OutOfOrder);
        let other = assemblies.take(group(0), part(2, 2, 1, 3));
        assert_eq!(other, Taken::OutOfOrder, "of another node's snapshot");
        let whole = assemblies.take(group(0), part(1, 2, 1, 3));
        assert_eq!(whole, Taken::Whole(Bytes::from_static(&[0, 0, 2])));
        assert_eq!(assemblies.bytes(), 0);
        assert_eq!(
            assemblies.take(group(0), part(1, 2, 1, 3)),
            Taken::OutOfOrder
        );
    }

    #[test]
    fn all_snapshots_of_a_shard_together_are_bounded_and_one_always_arrives() {
        let mut assemblies = Assemblies::with_bytes_max(10);
        let (large, total) = (group(0), 100);
        assert_eq!(assemblies.take(large, part(1, 0, 4, total)), Taken::More(4));
        // Many begin at the same time; what they hold together stays bounded.
        for number in 1..50 {
            let taken = assemblies.take(group(number), part(1, 0, 3, total));
            let wanted = if number <= 2 {
                Taken::More(3)
            } else {
                Taken::Full
            };
            assert_eq!(taken, wanted, "snapshot {number}");
            assert!(assemblies.bytes() <= 10);
        }
        // The one that has come furthest goes on, whatever the others hold.
        for position in (4..100).step_by(4) {
            let taken = assemblies.take(large, part(1, position, 4, total));
            match taken {
                Taken::More(received) => assert_eq!(received, position + 4),
                Taken::Whole(bytes) => assert_eq!((position, bytes.len()), (96, 100)),
                other => panic!("{other:?} at {position}"),
            }
        }
        assert_eq!(assemblies.bytes(), 6);
        // Refused ones left nothing behind and find room now.
        assert_eq!(
            assemblies.take(group(3), part(1, 0, 3, total)),
            Taken::More(3)
        );
        assemblies.forget_group(group(3));
        assemblies.forget_node(NodeId::new(1));
        assert_eq!(assemblies.bytes(), 0);
    }
}
