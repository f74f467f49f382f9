//! Messages between shards: typed, bounded, one per (request, target shard).

use std::collections::HashMap;
use std::sync::Arc;

use corduroy_env::DetachedStream;
use corduroy_raft::{ForwardedFrame, Hello, PeerState};
use corduroy_record::{Batch, GroupId, LeaderEpoch, NodeId, Offset};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::controller::MetadataImage;
use crate::group::GroupCall;
use crate::metadata::LeaderUpdate;
use crate::partition::{
    Acks, EpochEnd, FetchSpec, Fetched, FoundOffset, Isolation, OffsetTarget, PartitionError,
    Produced,
};

use super::memory::AnswerPermit;
use super::status::{ClusterView, ShardStatus};

/// Messages that wait for one shard; beyond it senders wait, and with them their sockets.
pub const MAILBOX_MESSAGES_MAX: usize = 4096;

/// One partition of a produce request.
pub struct ProduceItem {
    /// The partition.
    pub group: GroupId,
    /// Its batch, validated.
    pub batch: Batch,
}

/// What a shard does with one produce request.
pub struct ProduceJob {
    /// The partitions that this shard owns.
    pub items: Vec<ProduceItem>,
    /// When to answer.
    pub acks: Acks,
    /// When to give up waiting.
    pub deadline: Instant,
}

/// What a shard does with one fetch request.
pub struct FetchJob {
    /// The partitions that this shard owns, in request order.
    pub items: Vec<(GroupId, FetchSpec)>,
    /// Wait until this much is there.
    pub bytes_min: usize,
    /// Stop after this much; the first batch may exceed it.
    pub bytes_max: usize,
    /// When to answer with what is there.
    pub deadline: Instant,
}

/// The answer of one shard to a fetch.
pub struct FetchAnswer {
    /// A result per item, in order.
    pub items: Vec<Result<Fetched, PartitionError>>,
    /// What the answer holds of the shard's memory, until it has been written.
    pub memory: Option<AnswerPermit>,
}
/// The answer of one shard: a result per item, in order.
pub type ProduceAnswer = Vec<Result<Produced, PartitionError>>;

/// One partition of a ListOffsets request.
#[derive(Clone, Copy, Debug)]
pub struct OffsetQuestion {
    /// The partition.
    pub group: GroupId,
    /// What is looked for.
    pub target: OffsetTarget,
    /// The client's idea of the leader's epoch.
    pub epoch: LeaderEpoch,
    /// What the consumer may see.
    pub isolation: Isolation,
}

/// One partition of an OffsetForLeaderEpoch request.
#[derive(Clone, Copy, Debug)]
pub struct EpochQuestion {
    /// The partition.
    pub group: GroupId,
    /// The epoch whose end is wanted.
    pub asked: LeaderEpoch,
    /// The client's idea of the leader's epoch.
    pub current: LeaderEpoch,
}

/// Everything that reaches a shard from outside its thread.
pub enum ShardMessage {
    /// A newer image of the cluster.
    Image(Arc<MetadataImage>),
    /// Images from this version on are not of an earlier life of this node: the cluster has named it
    /// a member since its start. What they do not place here is nobody's.
    ImageIsCurrent {
        /// The image's version.
        from: u64,
    },
    /// Leadership news.
    Leaders(Arc<Vec<LeaderUpdate>>),
    /// A shard's own news for shard 0, which tells the other nodes.
    Led {
        /// Partitions led, new or changed.
        gained: Vec<LeaderUpdate>,
        /// Partitions led no more.
        lost: Vec<GroupId>,
    },
    /// The failure detector's word on a node.
    Peer {
        /// The node.
        node: NodeId,
        /// How it is now.
        state: PeerState,
    },
    /// Whether this node hears of a majority.
    Isolated(bool),
    /// Who leads the controller.
    ControllerLeader(Option<NodeId>),
    /// A client's connection.
    Client(DetachedStream),
    /// A peer's connection.
    PeerStream(DetachedStream, Hello),
    /// A frame of a peer for a group of this shard.
    Frame(ForwardedFrame),
    /// Append.
    Produce(ProduceJob, oneshot::Sender<ProduceAnswer>),
    /// Read; a message or a closed channel on the second end asks for the answer now.
    Fetch(
        FetchJob,
        oneshot::Receiver<()>,
        oneshot::Sender<FetchAnswer>,
    ),
    /// Look offsets up.
    Offsets(
        Vec<OffsetQuestion>,
        oneshot::Sender<Vec<Result<FoundOffset, PartitionError>>>,
    ),
    /// Look ends of epochs up.
    Epochs(
        Vec<EpochQuestion>,
        oneshot::Sender<Vec<Result<EpochEnd, PartitionError>>>,
    ),
    /// Shard 0: high watermarks, from whoever leads these partitions on whichever node.
    Marks(Vec<GroupId>, oneshot::Sender<HashMap<GroupId, Offset>>),
    /// Ask the group coordinator of a partition of `__consumer_offsets`.
    Group(GroupId, Box<GroupCall>),
    /// Move a partition's leadership.
    Transfer(
        GroupId,
        Option<NodeId>,
        oneshot::Sender<Result<(), PartitionError>>,
    ),
    /// Move all leaderships away and take no new clients.
    Drain(oneshot::Sender<()>),
    /// Tell whether the disk takes what clients send.
    HasRoom(oneshot::Sender<bool>),
    /// The high watermarks of those partitions that this shard leads, in order.
    LedMarks(Vec<GroupId>, oneshot::Sender<Vec<Option<Offset>>>),
    /// Shard 0: ask which other nodes have room on their disks.
    OthersWithRoom(oneshot::Sender<Vec<NodeId>>),
    /// Tell how things are.
    Status(oneshot::Sender<ShardStatus>),
    /// Tell what the cluster looks like from here.
    Cluster(oneshot::Sender<ClusterView>),
    /// End: gracefully (flush, clean marks) or at once.
    Stop {
        /// Whether to flush and mark the stop as clean.
        graceful: bool,
    },
}

/// The sending end of a shard's mailbox. Send, Clone.
#[derive(Clone)]
pub struct ShardHandle(mpsc::Sender<ShardMessage>);

/// The shard is gone: the node is stopping.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the node is stopping")]
pub struct ShardGone;

impl ShardHandle {
    /// A mailbox: its sending and its receiving end.
    pub fn new() -> (ShardHandle, mpsc::Receiver<ShardMessage>) {
        let (sender, receiver) = mpsc::channel(MAILBOX_MESSAGES_MAX);
        (ShardHandle(sender), receiver)
    }

    /// Sends, waiting for room: backpressure reaches whoever sends.
    pub async fn send(&self, message: ShardMessage) -> Result<(), ShardGone> {
        self.0.send(message).await.map_err(|_| ShardGone)
    }

    /// Sends if there is room now.
    pub fn try_send(&self, message: ShardMessage) -> Result<(), ShardMessage> {
        self.0.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// Messages that wait.
    pub fn depth(&self) -> usize {
        self.0.max_capacity() - self.0.capacity()
    }

    /// Sends from a thread without a runtime.
    pub fn blocking_send(&self, message: ShardMessage) -> Result<(), ShardGone> {
        self.0.blocking_send(message).map_err(|_| ShardGone)
    }
}
