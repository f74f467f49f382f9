//! Keys and values of `__consumer_offsets`, byte for byte Kafka's.
//!
//! A key begins with a big-endian i16 that names its kind, a value with one that is its version; a
//! record without a value is a tombstone. Source of the layouts: the schema files of Apache Kafka's
//! group coordinator (`OffsetCommitKey.json` and its neighbours).

mod decode;
mod encode;
mod error;
pub(crate) mod wire;

use std::collections::BTreeMap;

use bytes::Bytes;
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};

pub use error::RecordError;

/// The longest text of a key, and of a value in the layout with i16 lengths, in bytes of UTF-8.
pub const TEXT_BYTES_MAX: usize = i16::MAX as usize;

/// The kinds of keys that this program keeps.
mod kind {
    /// `LegacyOffsetCommitKey`, read only.
    pub(super) const OFFSET_OLD: i16 = 0;
    /// `OffsetCommitKey`.
    pub(super) const OFFSET: i16 = 1;
    /// `GroupMetadataKey`.
    pub(super) const CLASSIC: i16 = 2;
    /// `ConsumerGroupMetadataKey`.
    pub(super) const CONSUMER: i16 = 3;
    /// `ConsumerGroupMemberMetadataKey`.
    pub(super) const CONSUMER_MEMBER: i16 = 5;
    /// `ConsumerGroupTargetAssignmentMetadataKey`.
    pub(super) const TARGET_ASSIGNMENT: i16 = 6;
    /// `ConsumerGroupTargetAssignmentMemberKey`.
    pub(super) const TARGET_MEMBER: i16 = 7;
    /// `ConsumerGroupCurrentMemberAssignmentKey`.
    pub(super) const CURRENT_MEMBER: i16 = 8;
    /// `ConsumerGroupRegularExpressionKey`.
    pub(super) const REGEX: i16 = 16;

    /// All of them.
    pub(super) const KNOWN: [i16; 9] = [
        OFFSET_OLD,
        OFFSET,
        CLASSIC,
        CONSUMER,
        CONSUMER_MEMBER,
        TARGET_ASSIGNMENT,
        TARGET_MEMBER,
        CURRENT_MEMBER,
        REGEX,
    ];
}

/// One record: what it is about, and what holds from now on (`None`: nothing any more).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's fields are its key and value")]
pub enum GroupRecord {
    /// A committed offset (key 0 and 1).
    Offset {
        group: String,
        partition: TopicPartition,
        value: Option<OffsetValue>,
    },
    /// A group of the classic protocol (key 2).
    Classic {
        group: String,
        value: Option<ClassicValue>,
    },
    /// A group of the consumer protocol: its epoch (key 3).
    Consumer {
        group: String,
        value: Option<ConsumerValue>,
    },
    /// A member of such a group (key 5).
    ConsumerMember {
        group: String,
        member: String,
        value: Option<ConsumerMemberValue>,
    },
    /// The epoch of the target assignment (key 6).
    TargetAssignment {
        group: String,
        value: Option<TargetAssignmentValue>,
    },
    /// A member's part of the target assignment (key 7).
    TargetMember {
        group: String,
        member: String,
        value: Option<Assignment>,
    },
    /// What a member has now (key 8).
    CurrentMember {
        group: String,
        member: String,
        value: Option<CurrentMemberValue>,
    },
    /// The topics that a regular expression stood for when it was looked at (key 16).
    Regex {
        group: String,
        regex: String,
        value: Option<RegexValue>,
    },
}

impl GroupRecord {
    /// The group that it is about.
    pub fn group(&self) -> &str {
        match self {
            GroupRecord::Offset { group, .. }
            | GroupRecord::Classic { group, .. }
            | GroupRecord::Consumer { group, .. }
            | GroupRecord::ConsumerMember { group, .. }
            | GroupRecord::TargetAssignment { group, .. }
            | GroupRecord::TargetMember { group, .. }
            | GroupRecord::CurrentMember { group, .. }
            | GroupRecord::Regex { group, .. } => group,
        }
    }

    /// Whether it says that nothing holds any more.
    pub fn is_tombstone(&self) -> bool {
        match self {
            GroupRecord::Offset { value, .. } => value.is_none(),
            GroupRecord::Classic { value, .. } => value.is_none(),
            GroupRecord::Consumer { value, .. } => value.is_none(),
            GroupRecord::ConsumerMember { value, .. } => value.is_none(),
            GroupRecord::TargetAssignment { value, .. } => value.is_none(),
            GroupRecord::TargetMember { value, .. } => value.is_none(),
            GroupRecord::CurrentMember { value, .. } => value.is_none(),
            GroupRecord::Regex { value, .. } => value.is_none(),
        }
    }
}

/// Partitions by topic, ascending and without repetition.
pub type Assignment = BTreeMap<TopicId, Vec<PartitionIndex>>;

/// `OffsetCommitValue`, written as version 4 where the topic's id is known (as Kafka does since
/// 4.1), else as version 3; with an expiry of its own as version 1, which has neither id nor epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetValue {
    /// The next offset that the group wants to read.
    pub offset: Offset,
    /// Leader epoch of the last record read, or [`LeaderEpoch::NONE`].
    pub leader_epoch: LeaderEpoch,
    /// The client's own text.
    pub metadata: String,
    /// When it was committed, milliseconds since the Unix epoch.
    pub commit_timestamp_ms: i64,
    /// When it expires by the client's own wish (versions 2 to 4 of OffsetCommit), else `None`.
    pub expire_timestamp_ms: Option<i64>,
    /// The topic that it is a position of (tagged field 0; KAFKA-19141); `None` where the record
    /// does not say.
    pub topic_id: Option<TopicId>,
}

/// `GroupMetadataValue`, written as version 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicValue {
    /// "consumer", "connect" and so on; empty for a group that never had members.
    pub protocol_type: String,
    /// The generation.
    pub generation: i32,
    /// The protocol (assignor) that the members chose, if there are members.
    pub protocol: Option<String>,
    /// Member id of the leader, if there are members.
    pub leader: Option<String>,
    /// When the group came into this state, milliseconds since the Unix epoch; -1 = unknown.
    pub state_timestamp_ms: i64,
    /// The members, in the order in which they joined.
    pub members: Vec<ClassicMemberValue>,
}

/// One member in a [`ClassicValue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicMemberValue {
    /// Its id.
    pub member_id: String,
    /// `group.instance.id` of a static member (KIP-345).
    pub instance_id: Option<String>,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: String,
    /// How long a rebalance waits for it, milliseconds.
    pub rebalance_timeout_ms: i32,
    /// How long it may be silent, milliseconds.
    pub session_timeout_ms: i32,
    /// Its metadata for the chosen protocol, opaque.
    pub subscription: Bytes,
    /// Its assignment, opaque; empty before the first one.
    pub assignment: Bytes,
}

/// `ConsumerGroupMetadataValue`, version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerValue {
    /// The group epoch.
    pub epoch: i32,
    /// Hash of what the assignment depends on beside the members (topics and their partitions);
    /// tagged field 0, 0 where it is absent.
    pub metadata_hash: i64,
}

/// `ConsumerGroupMemberMetadataValue`, version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMemberValue {
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// The client's rack.
    pub rack_id: Option<String>,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: String,
    /// Topics subscribed by name, ascending.
    pub subscribed_topics: Vec<String>,
    /// Topics subscribed by regular expression (RE2).
    pub subscribed_regex: Option<String>,
    /// How long revocations may take, milliseconds; -1 = not told.
    pub rebalance_timeout_ms: i32,
    /// The assignor that the member asks for.
    pub server_assignor: Option<String>,
    /// Session timeout in milliseconds and protocols (name, metadata) of a member that speaks the
    /// classic protocol; tagged field 0.
    pub classic: Option<ClassicProtocols>,
}

/// What a classic member of a consumer group told when it joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicProtocols {
    /// How long it may be silent, milliseconds.
    pub session_timeout_ms: i32,
    /// Name and metadata of each protocol that it supports, in its order of preference.
    pub supported: Vec<(String, Bytes)>,
}

/// `ConsumerGroupTargetAssignmentMetadataValue`, version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAssignmentValue {
    /// The group epoch for which the target was computed.
    pub assignment_epoch: i32,
}

/// `ConsumerGroupCurrentMemberAssignmentValue`, version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentMemberValue {
    /// The epoch that the member has reached.
    pub member_epoch: i32,
    /// The one before.
    pub previous_member_epoch: i32,
    /// Where it is on its way to its target.
    pub state: MemberState,
    /// What it may consume.
    pub assigned: Assignment,
    /// What it must give up before it may go on.
    pub pending_revocation: Assignment,
}

/// Where a member is on its way to its target assignment (KIP-848).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has its target.
    Stable = 0,
    /// It must give partitions up first.
    UnrevokedPartitions = 1,
    /// It waits for partitions that others have not given up yet.
    UnreleasedPartitions = 2,
    /// A state of a newer version.
    Unknown = 127,
}

/// `ConsumerGroupRegularExpressionValue`, version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegexValue {
    /// The topics, ascending.
    pub topics: Vec<String>,
    /// Version of the metadata image that was looked at.
    pub version: i64,
    /// When, milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
}
