//! What callers branch on.

use corduroy_record::{GroupId, NodeId};

/// A replica's operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RaftError {
    /// The timing or limits contradict each other.
    #[error("the Raft configuration is invalid: {0}")]
    Config(String),
    /// The log, the tables or the vote could not be loaded.
    #[error("the replica cannot start: {0}")]
    Start(String),
    /// The group is already open on this shard.
    #[error("the replica of {0} is already open")]
    AlreadyOpen(GroupId),
    /// The replica, or its shard, has stopped.
    #[error("the replica has stopped")]
    Stopped,
    /// Another replica leads.
    #[error("this replica does not lead the partition")]
    NotLeader {
        /// The leader's node, if known.
        leader: Option<NodeId>,
    },
    /// The group was initialised before, or the members are not acceptable.
    #[error("the group cannot be initialised: {0}")]
    Initialize(String),
    /// There is no other replica that could lead.
    #[error("no other replica can take over the leadership")]
    NoTarget,
    /// The replica that was named cannot take over the leadership.
    #[error("{0}")]
    Unfit(Unfit),
    /// It did not happen in time; it may still happen.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The change of members was refused.
    #[error("the members cannot be changed: {0}")]
    Members(String),
    /// The disk failed.
    #[error("{0}")]
    Storage(String),
    /// Nothing is saved that reaches up to there.
    #[error("no saved tables reach that far; the log keeps what it has")]
    NothingToPurge,
}

/// Why a replica cannot lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The failure detector holds its node down.
    #[error("its node is down")]
    Down,
    /// Its node did not answer in time.
    #[error("its node does not answer")]
    Silent,
    /// It is not open there, or has stopped.
    #[error("its replica is not open or has stopped")]
    Stopped,
    /// It lost log and neither votes nor leads until it has refetched it (law 8).
    #[error("its replica lost part of its log and is refetching it")]
    Flagged,
}

/// An application request was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection could be made, or it broke.
    #[error("the node cannot be reached")]
    Unreachable,
    /// No answer in time; the request may have been carried out.
    #[error("the node did not answer in time")]
    Timeout,
    /// The peer is not one of ours, or of another cluster.
    #[error("the peer speaks another protocol or belongs to another cluster")]
    Protocol,
    /// The request does not fit a frame.
    #[error("the request is too large")]
    TooLarge,
}
