//! Why a node finds no place in a cluster, and why a request to the controller fails.

use std::net::SocketAddr;
use std::path::PathBuf;

use corduroy_protocol::ErrorCode;
use corduroy_raft::RaftError;
use corduroy_record::NodeId;
use corduroy_storage::StorageError;
use thiserror::Error;
use uuid::Uuid;

use super::requests::Refusal;

/// The last words of a node that its cluster has parted with.
pub fn parted_text(reason: &str) -> String {
    format!(
        "this node stops: {reason}\n  help    its data directory cannot join again; start a new node \
         with an empty --data-dir and a fresh --node-id, or without --node-id"
    )
}

/// Why a node does not start: identity, formation, joining. Each message says what was found and
/// what to do.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// The data directory is another node's.
    #[error(
        "cannot start node {asked}: the data directory belongs to node {found}\n  \
         found   {path} = {found}        asked  --node-id {asked}\n  \
         help    start with --node-id {found}, or give this node its own --data-dir",
        path = path.display()
    )]
    ForeignDataDir {
        /// The identity file.
        path: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Whose it should be.
        asked: NodeId,
    },
    /// The node was a member once.
    #[error("{}", parted_text(.0))]
    Parted(String),
    /// The identity file cannot be read or written.
    #[error("cannot use the identity file {path}: {source}\n  help    check the disk and the permissions of --data-dir", path = path.display())]
    IdentityIo {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The identity file is damaged.
    #[error(
        "cannot read the identity file {path}: {reason}\n  \
         help    restore it, or give this node an empty --data-dir and a fresh id",
        path = path.display()
    )]
    IdentityDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The controller's log is gone from a data directory that had it.
    #[error(
        "the controller's log of node {node} is missing from {path}\n  \
         help    files were deleted from the data directory; give this node an empty --data-dir \
         and a fresh id (a replica that forgot its votes must not vote again)",
        path = path.display()
    )]
    ControllerLogLost {
        /// This node.
        node: NodeId,
        /// The data directory.
        path: PathBuf,
    },
    /// The controller's log is damaged, and no other node has a copy of it.
    #[error(
        "cannot open the controller's log of the only node: {source}\n  \
         help    copy {path} before anything else; put a sound copy of it in place, or start with an \
         empty --data-dir and create the topics again",
        path = path.display()
    )]
    OnlyCopyDamaged {
        /// The data directory.
        path: PathBuf,
        /// What is damaged, where, and how to look at it.
        source: StorageError,
    },
    /// Two seeds were started with different lists.
    #[error(
        "the cluster cannot form: the seeds disagree\n  \
         found   {ours} here, at {own}\n          {theirs} at {seed}\n  \
         help    start every seed with the same --seeds, in the same order",
        ours = list(ours), theirs = list(theirs)
    )]
    SeedsDisagree {
        /// This node's address.
        own: SocketAddr,
        /// This node's list.
        ours: Vec<SocketAddr>,
        /// The other's address.
        seed: SocketAddr,
        /// The other's list.
        theirs: Vec<SocketAddr>,
    },
    /// A seed believes to live at another address than the list says.
    #[error(
        "the cluster cannot form: the node at {seed} does not find itself in its --seeds\n  \
         found   it calls itself {rpc}\n  \
         help    start it with --rpc-listen {seed}, or with --set rpc.advertised={seed} if it \
         listens behind another address"
    )]
    SeedElsewhere {
        /// The address in the list.
        seed: SocketAddr,
        /// What the node calls itself.
        rpc: SocketAddr,
    },
    /// Two seeds claim one id.
    #[error(
        "the cluster cannot form: the nodes at {first} and {second} both want id {node}\n  \
         help    give each node a --node-id of its own, or none of them"
    )]
    ClaimedTwice {
        /// The id.
        node: i32,
        /// One seed.
        first: SocketAddr,
        /// The other.
        second: SocketAddr,
    },
    /// Two seeds have one data directory, or copies of one.
    #[error(
        "the cluster cannot form: the nodes at {first} and {second} have the same data directory \
         ({uuid})\n  \
         help    give each node a --data-dir of its own; a copied directory is no second node"
    )]
    SameDataDir {
        /// The data directory's uuid.
        uuid: Uuid,
        /// One seed.
        first: SocketAddr,
        /// The other.
        second: SocketAddr,
    },
    /// The cluster does not take this node.
    #[error("{0}")]
    JoinRefused(String),
    /// The store failed.
    #[error("cannot open the controller's log: {0}")]
    Storage(#[from] StorageError),
    /// The replica failed.
    #[error("cannot open the controller's replica: {0}")]
    Raft(#[from] RaftError),
}

fn list(seeds: &[SocketAddr]) -> String {
    if seeds.is_empty() {
        return "no seeds".to_owned();
    }
    seeds
        .iter()
        .map(SocketAddr::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// Why a request to the controller has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// No answer in time. The request may yet be carried out.
    #[error("the controller did not answer in time; the request may yet be carried out")]
    Timeout,
    /// This node stops.
    #[error("the node is stopping")]
    Stopping,
    /// This node's replica of the controller stopped; the node itself goes on.
    #[error(
        "this node's replica of the controller has stopped ({0}); ask another node, and look at this \
         one's log and disk"
    )]
    ReplicaStopped(String),
    /// The controller answered, and refuses.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The answer does not fit the question: a peer of another version.
    #[error("the controller gave an answer that this node does not understand")]
    Unexpected,
}

impl RequestError {
    /// Kafka's error for a client that waits.
    pub fn code(&self) -> ErrorCode {
        match self {
            RequestError::Timeout => ErrorCode::RequestTimedOut,
            RequestError::Stopping => ErrorCode::BrokerNotAvailable,
            RequestError::ReplicaStopped(_) => ErrorCode::KafkaStorageError,
            RequestError::Refused(refusal) => ErrorCode::from_code(refusal.code),
            RequestError::Unexpected => ErrorCode::UnknownServerError,
        }
    }
}

/// Why one topic or resource of a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TopicError {
    /// Kafka's error.
    pub code: ErrorCode,
    /// One sentence for people.
    pub message: String,
}

impl From<Refusal> for TopicError {
    fn from(refusal: Refusal) -> Self {
        TopicError {
            code: ErrorCode::from_code(refusal.code),
            message: refusal.message,
        }
    }
}

impl From<RequestError> for TopicError {
    fn from(error: RequestError) -> Self {
        TopicError {
            code: error.code(),
            message: error.to_string(),
        }
    }
}
