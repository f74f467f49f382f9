//! The envelopes: every message that crosses a peer connection, without the batches' bytes.
//!
//! Archived by rkyv (little endian, validated before it is read). Batch bodies and other payloads
//! lie beside the archive in the same frame, in the order of the entries.

use corduroy_record::{GroupId, LogIndex, PartitionIndex, ReplicaId, Term, TopicId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::types::{LogId, RaftVote, log_id};

/// A Raft group on the wire: the topic id's sixteen bytes in network order, and the partition.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireGroup {
    pub(crate) topic: [u8; 16],
    pub(crate) partition: i32,
}

impl From<GroupId> for WireGroup {
    fn from(group: GroupId) -> Self {
        WireGroup {
            topic: group.topic.bytes(),
            partition: group.partition.get(),
        }
    }
}

impl From<WireGroup> for GroupId {
    fn from(group: WireGroup) -> Self {
        GroupId {
            topic: TopicId::from_bytes(group.topic),
            partition: PartitionIndex::new(group.partition),
        }
    }
}

/// From which replica to which, in which group. An unknown target is refused (law 7).
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) group: WireGroup,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Route {
    pub(crate) fn new(group: GroupId, from: ReplicaId, to: ReplicaId) -> Route {
        Route {
            group: group.into(),
            from: from.get(),
            to: to.get(),
        }
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group.into()
    }

    /// The way back.
    pub(crate) fn reversed(&self) -> Route {
        Route {
            group: self.group,
            from: self.to,
            to: self.from,
        }
    }
}

/// Term and index of an entry.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WireLogId {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

impl From<&LogId> for WireLogId {
    fn from(id: &LogId) -> Self {
        WireLogId {
            term: id.leader_id.term,
            index: id.index,
        }
    }
}

impl From<WireLogId> for LogId {
    fn from(id: WireLogId) -> Self {
        log_id(Term::new(id.term), LogIndex::new(id.index))
    }
}

/// A vote: the term, whom it is for, and whether a quorum granted it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireVote {
    pub(crate) term: u64,
    pub(crate) voted_for: u64,
    pub(crate) committed: bool,
}

impl From<&RaftVote> for WireVote {
    fn from(vote: &RaftVote) -> Self {
        WireVote {
            term: vote.leader_id.term,
            voted_for: vote.leader_id.voted_for,
            committed: vote.committed,
        }
    }
}

impl From<WireVote> for RaftVote {
    fn from(vote: WireVote) -> Self {
        if vote.committed {
            RaftVote::new_committed(vote.term, vote.voted_for)
        } else {
            RaftVote::new(vote.term, vote.voted_for)
        }
    }
}

/// What an entry beside the archive is.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireKind {
    /// A record batch; its first sixteen bytes are `head`, the rest lies in the payload.
    Batch {
        head: [u8; 16],
    },
    Internal,
    Blank,
    Membership,
}

/// One entry of an append. `payload_bytes` of the frame's payload belong to it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireEntry {
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) base_offset: i64,
    pub(crate) kind: WireKind,
    pub(crate) payload_bytes: u32,
}

/// AppendEntries. Requests of one stream carry rising `seq`; the reply names it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Append {
    pub(crate) route: Route,
    pub(crate) stream: u64,
    pub(crate) seq: u64,
    pub(crate) vote: WireVote,
    pub(crate) prev: Option<WireLogId>,
    pub(crate) commit: Option<WireLogId>,
    pub(crate) entries: Vec<WireEntry>,
}

/// Why a replica did not take a request.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No such replica here; it is never created by a message (law 7).
    UnknownReplica,
    /// The replica has stopped (its disk failed, or it is being restarted).
    Stopped,
    /// Bytes that no peer of ours sends.
    Malformed,
    /// The replica lost log that it once acknowledged: the leader has to allow the revert first
    /// (law 8).
    Reverted,
}

/// The outcome of an append or of a beat.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppendOutcome {
    /// Everything up to the request's last entry is durable.
    Flushed,
    Conflict,
    HigherVote(WireVote),
    Refused(Refusal),
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppendReply {
    pub(crate) stream: u64,
    pub(crate) seq: u64,
    pub(crate) outcome: AppendOutcome,
}

/// One group's heartbeat: an append without entries. Many share a frame.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) route: Route,
    pub(crate) call: u64,
    pub(crate) vote: WireVote,
    pub(crate) prev: Option<WireLogId>,
    pub(crate) commit: Option<WireLogId>,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BeatReply {
    pub(crate) call: u64,
    pub(crate) outcome: AppendOutcome,
}

/// RequestVote, or its pre-vote.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteAsk {
    pub(crate) route: Route,
    pub(crate) call: u64,
    pub(crate) pre_vote: bool,
    pub(crate) vote: WireVote,
    pub(crate) last: Option<WireLogId>,
    /// The candidate was told to campaign. Honoured only under law 12.
    pub(crate) leadership_transfer: bool,
    /// Most of the group lost log; every voter has answered, and the candidate's log is the longest
    /// (law 8).
    pub(crate) all_answered: bool,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteAnswer {
    pub(crate) call: u64,
    /// `None`: the replica is unknown or has stopped.
    pub(crate) answer: Option<VoteGrant>,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteGrant {
    pub(crate) vote: WireVote,
    pub(crate) granted: bool,
    pub(crate) last: Option<WireLogId>,
}

/// A leader orders one of its voters to campaign; all voters hear it.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransferAsk {
    pub(crate) route: Route,
    pub(crate) call: u64,
    pub(crate) leader: WireVote,
    pub(crate) target: u64,
    pub(crate) last: Option<WireLogId>,
}

/// Part of a snapshot: the membership and the tables, `chunk` bytes of them in this frame's
/// payload.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotChunk {
    pub(crate) route: Route,
    pub(crate) call: u64,
    pub(crate) vote: WireVote,
    pub(crate) last: WireLogId,
    pub(crate) next_offset: i64,
    pub(crate) membership_bytes: u32,
    pub(crate) tables_bytes: u64,
    /// Where this chunk begins in membership followed by tables.
    pub(crate) position: u64,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotAnswer {
    pub(crate) call: u64,
    /// The vote of the receiver; `None`: refused.
    pub(crate) vote: Option<WireVote>,
    /// Bytes received so far; the whole snapshot is installed when it reaches the total.
    pub(crate) received: u64,
}

/// "The leader's node is down: what is your last entry?" Many groups share a frame.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SurveyAsk {
    pub(crate) route: Route,
    pub(crate) call: u64,
    /// The replica whose node the asker holds down, or that is the asker and leads no more.
    pub(crate) leader: u64,
    /// The term in which it led.
    pub(crate) term: u64,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SurveyAnswer {
    pub(crate) call: u64,
    /// `None`: the replica is unknown or has stopped.
    pub(crate) state: Option<SurveyState>,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SurveyState {
    pub(crate) vote: WireVote,
    pub(crate) last: Option<WireLogId>,
    /// The answerer's own detector agrees that the leader is down.
    pub(crate) leader_down: bool,
    /// The answerer may neither vote nor lead (law 8).
    pub(crate) no_vote: bool,
}

/// A leader asks a follower to sleep with it (law 13).
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SleepAsk {
    pub(crate) route: Route,
    pub(crate) call: u64,
    pub(crate) term: u64,
    pub(crate) last: WireLogId,
}

#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SleepAnswer {
    pub(crate) call: u64,
    pub(crate) asleep: bool,
}

/// A sleeping group's leader says that its instance still runs.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsleepBeat {
    pub(crate) route: Route,
    pub(crate) term: u64,
}

/// Ticks on, until a new term has committed or a leader is heard.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WakeNote {
    pub(crate) route: Route,
    /// The sender led in that term and leads no more: its instance or its disk is gone.
    pub(crate) resigned: Option<u64>,
}

/// The leader has allowed this replica's log to be shorter than remembered (law 8). The replica
/// may vote again once it durably holds `end`.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RevertAllowed {
    pub(crate) route: Route,
    pub(crate) term: u64,
    pub(crate) end: WireLogId,
}

/// Everything that travels.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Append(Append),
    AppendReply(AppendReply),
    Beats(Vec<Beat>),
    BeatReplies(Vec<BeatReply>),
    Vote(VoteAsk),
    VoteAnswer(VoteAnswer),
    Transfer(TransferAsk),
    TransferAnswer {
        call: u64,
        accepted: bool,
    },
    Snapshot(SnapshotChunk),
    SnapshotAnswer(SnapshotAnswer),
    Survey(Vec<SurveyAsk>),
    SurveyAnswers(Vec<SurveyAnswer>),
    Sleep(Vec<SleepAsk>),
    SleepAnswers(Vec<SleepAnswer>),
    Asleep(Vec<AsleepBeat>),
    Wake(Vec<WakeNote>),
    RevertAllowed(RevertAllowed),
    /// An application request; its bytes are the payload.
    Call {
        call: u64,
    },
    /// Its answer; the bytes are the payload.
    CallAnswer {
        call: u64,
    },
    /// An application message without an answer.
    Cast,
    /// Detector.
    Ping {
        count: u64,
    },
    Pong {
        count: u64,
    },
}
