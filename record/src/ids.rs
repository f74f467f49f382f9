//! The numbers of a replicated log, each with a type of its own: a number is not a type.

use std::fmt;

use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the bare number.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The bare number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Where a consumer reads: counts records, starts at 0 in each topic partition.
    Offset(i64)
}
number! {
    /// Where Raft counts: one per log entry, whether or not it holds records.
    LogIndex(u64)
}
number! {
    /// A Raft term. One term has at most one leader (Raft paper, section 5.2).
    Term(u64)
}
number! {
    /// A term as clients see it in Kafka's `leader_epoch` fields; -1 is "unknown".
    LeaderEpoch(i32)
}
number! {
    /// The identity of an idempotent producer (KIP-98); -1 is "none".
    ProducerId(i64)
}
number! {
    /// Fences older incarnations of a producer id (KIP-98, KIP-360); -1 is "none".
    ProducerEpoch(i16)
}
number! {
    /// A node of the cluster, Kafka's broker id. Never reused.
    NodeId(i32)
}
number! {
    /// A partition's number within its topic, from 0.
    PartitionIndex(i32)
}
number! {
    /// One placement of a replica on a node; Raft's voter identity. Never reused, so that a
    /// replica that comes back empty cannot be mistaken for the one that voted before.
    ReplicaId(u64)
}

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Offset = Offset(0);

    /// The offset `records` further on.
    ///
    /// Saturates: an offset near `i64::MAX` can only come from hostile bytes.
    pub const fn advance(self, records: u32) -> Offset {
        Offset(self.0.saturating_add(records as i64))
    }
}

impl LogIndex {
    /// The index after this one.
    pub const fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }
}

impl LeaderEpoch {
    /// "Unknown" on the wire.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);

    /// The epoch that clients see for `term`; [`LeaderEpoch::NONE`] beyond 31 bits.
    pub fn from_term(term: Term) -> LeaderEpoch {
        i32::try_from(term.get()).map_or(LeaderEpoch::NONE, LeaderEpoch)
    }
}

impl ProducerId {
    /// The value of a batch without idempotence.
    pub const NONE: ProducerId = ProducerId(-1);
}

/// The identity of one incarnation of a topic (KIP-516). A recreated topic has another.
///
/// Clients see 16 opaque bytes. Those that a cluster hands out ([`TopicId::made_in`]) are UUIDs of
/// version 8 (RFC 9562) that tell when the topic was made: 48 bits, big-endian, hold the version of
/// the cluster's metadata that shows the topic first; 74 bits are random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId(Uuid);

/// The version of UUIDs whose bits mean what their maker says (RFC 9562).
const CUSTOM_VERSION: usize = 8;

/// The largest version of metadata that a [`TopicId`] can tell.
const VERSION_MAX: u64 = (1 << 48) - 1;

impl TopicId {
    /// Wraps a UUID.
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// A new id of a topic that version `version` of the cluster's metadata shows first. `random`
    /// bits tell apart what is made at once.
    pub const fn made_in(version: u64, random: u128) -> Self {
        // 2^48 changes do not happen; after so many all are told as the last.
        let version = if version < VERSION_MAX {
            version
        } else {
            VERSION_MAX
        };
        let bits = (version as u128) << 80 | random & ((1 << 80) - 1);
        Self(uuid::Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid())
    }

    /// The version of the cluster's metadata that showed this topic first: one that is at least as
    /// new and does not show it knows that it is gone. `None`: the id was not made by
    /// [`TopicId::made_in`], and tells nothing.
    pub fn made_in_version(self) -> Option<u64> {
        let version = (self.0.as_u128() >> 80) as u64;
        (self.0.get_version_num() == CUSTOM_VERSION).then_some(version)
    }

    /// The sixteen bytes in network order, as on the wire.
    pub const fn bytes(self) -> [u8; 16] {
        *self.0.as_bytes()
    }

    /// Reads the sixteen bytes in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The UUID itself.
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One Raft group: one incarnation of one partition. Unique for ever, because topic ids are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The topic's incarnation.
    pub topic: TopicId,
    /// The partition within it.
    pub partition: PartitionIndex,
}

impl GroupId {
    /// The controller's group: the nil topic.
    pub const CONTROLLER: GroupId = GroupId {
        topic: TopicId(Uuid::nil()),
        partition: PartitionIndex(0),
    };
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::CONTROLLER {
            return f.write_str("controller");
        }
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A partition as users name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: String,
    /// The partition within it.
    pub partition: PartitionIndex,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_id_tells_in_which_version_it_was_made() {
        for version in [0, 1, 0x1234_5678_9abc, VERSION_MAX] {
            for random in [0, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
                let id = TopicId::made_in(version, random);
                assert_eq!(id.made_in_version(), Some(version), "{id}");
            }
        }
        assert_ne!(TopicId::made_in(1, 1), TopicId::made_in(1, 2));
        let id = TopicId::made_in(0x1234_5678_9abc, u128::MAX);
        assert_eq!(id.to_string(), "12345678-9abc-8fff-bfff-ffffffffffff");
        let random = uuid::Builder::from_random_bytes([0xab; 16]).into_uuid();
        assert_eq!(TopicId::new(random).made_in_version(), None);
    }
}
