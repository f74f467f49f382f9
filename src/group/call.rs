//! What the wire's side asks of a coordinator. Each call carries the end that takes its answer; one
//! that is dropped means that no coordinator is here.

use std::time::Duration;

use bytes::Bytes;
use corduroy_group::GroupError;
use corduroy_group::classic::{
    JoinAnswer, JoinRequest, Leaving, MemberIdentity, SyncAnswer, SyncRequest,
};
use corduroy_group::consumer::{HeartbeatAnswer, HeartbeatRequest};
use corduroy_group::records::{Assignment, OffsetValue};
use corduroy_protocol::ErrorCode;
use corduroy_record::{LeaderEpoch, Offset, TopicId, TopicPartition};
use tokio::sync::oneshot;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<T>;

/// One call.
pub enum GroupCall {
    /// JoinGroup.
    Join {
        /// The group.
        group: String,
        /// The request.
        request: JoinRequest,
        /// The answer's way back.
        reply: Reply<JoinAnswer>,
    },
    /// SyncGroup.
    Sync {
        /// The group.
        group: String,
        /// The request.
        request: SyncRequest,
        /// The answer's way back.
        reply: Reply<SyncAnswer>,
    },
    /// Heartbeat.
    Heartbeat {
        /// The group.
        group: String,
        /// Who lives.
        identity: MemberIdentity,
        /// The answer's way back.
        reply: Reply<Result<(), GroupError>>,
    },
    /// LeaveGroup.
    Leave {
        /// The group.
        group: String,
        /// Who leaves.
        members: Vec<Leaving>,
        /// The answer's way back: a result per member, or one for all.
        reply: Reply<Result<Vec<Result<(), GroupError>>, GroupError>>,
    },
    /// OffsetCommit.
    Commit {
        /// The group.
        group: String,
        /// The request.
        request: CommitRequest,
        /// The answer's way back: a result per offset, in order.
        reply: Reply<Vec<ErrorCode>>,
    },
    /// OffsetFetch of one group.
    FetchOffsets {
        /// The group.
        group: String,
        /// The request.
        request: FetchOffsetsRequest,
        /// The answer's way back.
        reply: Reply<Result<Vec<CommittedOffset>, ErrorCode>>,
    },
    /// OffsetDelete.
    DeleteOffsets {
        /// The group.
        group: String,
        /// What to forget.
        partitions: Vec<TopicPartition>,
        /// The answer's way back: a result per partition, in order, or one for all.
        reply: Reply<Result<Vec<ErrorCode>, ErrorCode>>,
    },
    /// ListGroups: the groups of this coordinator.
    List {
        /// Which.
        filter: ListFilter,
        /// The answer's way back; an error where this coordinator is still loading.
        reply: Reply<Result<Vec<ListedGroup>, ErrorCode>>,
    },
    /// DescribeGroups of one group.
    Describe {
        /// The group.
        group: String,
        /// The answer's way back.
        reply: Reply<Result<DescribedGroup, GroupError>>,
    },
    /// DeleteGroups of one group.
    Delete {
        /// The group.
        group: String,
        /// The answer's way back.
        reply: Reply<Result<(), ErrorCode>>,
    },
    /// ConsumerGroupHeartbeat.
    ConsumerHeartbeat {
        /// The group.
        group: String,
        /// The request.
        request: HeartbeatRequest,
        /// The answer's way back.
        reply: Reply<Result<HeartbeatAnswer, GroupError>>,
    },
    /// ConsumerGroupDescribe of one group.
    ConsumerDescribe {
        /// The group.
        group: String,
        /// The answer's way back.
        reply: Reply<Result<ConsumerDescription, GroupError>>,
    },
}

impl GroupCall {
    /// How long its caller waits for the answer; `None`: as long as the group's members take.
    /// `write_wait`: how long for what has to be written first (`offsets.commit.timeout.ms`). The
    /// write goes on without the caller.
    pub fn answer_wait(&self, write_wait: Duration) -> Option<Duration> {
        match self {
            GroupCall::Join { .. } | GroupCall::Sync { .. } => None,
            _ => Some(write_wait),
        }
    }
}

/// OffsetCommit of one group.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// Who commits; the generation is a member epoch in groups of the consumer protocol.
    pub identity: MemberIdentity,
    /// The version of OffsetCommit.
    pub api_version: i16,
    /// How long the offsets should live, by the client's own wish (versions 2 to 4), milliseconds.
    pub retention_ms: Option<i64>,
    /// The offsets.
    pub offsets: Vec<OffsetCommit>,
}

/// One offset to commit.
#[derive(Clone, Debug)]
pub struct OffsetCommit {
    /// The partition.
    pub partition: TopicPartition,
    /// The id by which the client names the topic (version 10): the name must still be that of this
    /// topic when the commit is decided.
    pub topic_id: Option<TopicId>,
    /// The next offset to read.
    pub offset: Offset,
    /// Leader epoch of the last record read.
    pub leader_epoch: LeaderEpoch,
    /// The client's text.
    pub metadata: String,
    /// Why it cannot be committed, found out before (an unknown topic).
    pub refused: Option<ErrorCode>,
}

/// OffsetFetch of one group.
#[derive(Clone, Debug)]
pub struct FetchOffsetsRequest {
    /// Member id and epoch (version 9), where the client gives them.
    pub member: Option<(Option<String>, i32)>,
    /// Which partitions; `None`: all that have an offset.
    pub partitions: Option<Vec<AskedOffset>>,
}

/// A partition that is asked for.
#[derive(Clone, Debug)]
pub struct AskedOffset {
    /// The partition.
    pub partition: TopicPartition,
    /// The id by which the client names the topic (version 10): the name must still be that of this
    /// topic when the answer is read.
    pub topic_id: Option<TopicId>,
}

/// A partition with its committed offset, if it has one.
#[derive(Clone, Debug)]
pub struct CommittedOffset {
    /// The partition.
    pub partition: TopicPartition,
    /// The id of the topic whose offset this is; none where no topic has this name.
    pub topic_id: Option<TopicId>,
    /// What was committed. UNKNOWN_TOPIC_ID where the id that was asked for is of no topic, or of
    /// one with another name.
    pub value: Result<Option<OffsetValue>, ErrorCode>,
}

/// Which groups to list; an empty filter lets all pass.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// By state, as Kafka names it, without regard to case.
    pub states: Vec<String>,
    /// By type ("classic", "consumer"), without regard to case.
    pub types: Vec<String>,
}

/// A group in a list.
#[derive(Clone, Debug)]
pub struct ListedGroup {
    /// Its id.
    pub group: String,
    /// Protocol type; empty for a group that never had members.
    pub protocol_type: String,
    /// Its state.
    pub state: &'static str,
    /// "classic" or "consumer".
    pub kind: &'static str,
}

/// A classic group in full.
#[derive(Clone, Debug)]
pub struct DescribedGroup {
    /// Its state.
    pub state: &'static str,
    /// Protocol type.
    pub protocol_type: String,
    /// The chosen protocol; empty unless the group is Stable.
    pub protocol: String,
    /// The members.
    pub members: Vec<DescribedMember>,
}

/// A member of a classic group.
#[derive(Clone, Debug)]
pub struct DescribedMember {
    /// Its id.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address.
    pub client_host: String,
    /// Metadata for the chosen protocol; empty unless the group is Stable.
    pub metadata: Bytes,
    /// Its assignment.
    pub assignment: Bytes,
}

/// A group of the consumer protocol in full.
#[derive(Clone, Debug)]
pub struct ConsumerDescription {
    /// Its state.
    pub state: &'static str,
    /// The group epoch.
    pub epoch: i32,
    /// The epoch of the target assignment.
    pub assignment_epoch: i32,
    /// The assignor.
    pub assignor: &'static str,
    /// The members.
    pub members: Vec<ConsumerMemberDescription>,
}

/// A member of such a group.
#[derive(Clone, Debug)]
pub struct ConsumerMemberDescription {
    /// Its id.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// Its rack.
    pub rack_id: Option<String>,
    /// The epoch that it has reached.
    pub member_epoch: i32,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address.
    pub client_host: String,
    /// Topics subscribed by name.
    pub topics: Vec<String>,
    /// Topics subscribed by regular expression.
    pub regex: Option<String>,
    /// What it has.
    pub assignment: Assignment,
    /// What it should have.
    pub target: Assignment,
    /// It speaks the classic protocol.
    pub is_classic: bool,
}

/// A consumer group for metrics.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its id.
    pub group: String,
    /// How many members it has.
    pub members: usize,
    /// Committed offsets.
    pub offsets: Vec<(TopicPartition, Offset)>,
}
