//! A shard: one core's thread and all that it owns. `!Send` state, no locks; everyone else sends
//! a message.

mod busy;
mod counters;
mod full_disk;
mod mailbox;
mod marks;
mod memory;
mod news;
mod placement;
mod producer_ids;
mod replicas;
mod routes;
mod serve;
mod status;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use corduroy_env::{DetachedStream, Env, Stream};
use corduroy_raft::{PeerState, RaftShard};
use corduroy_record::{GroupId, NodeId};
use corduroy_storage::Store;
use futures::future::LocalBoxFuture;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, info, warn};

use crate::config::NodeConfig;
use crate::controller::ControllerHandle;
use crate::group::{Coordinator, GroupCall};
use crate::leadership::Led;
use crate::metadata::{LeaderInfo, MetadataView};
use crate::partition::Partition;

use busy::BusyMeter;
pub use counters::{BUCKET_MICROS, CounterValues, Counters};
pub use mailbox::{
    EpochQuestion, FetchAnswer, FetchJob, OffsetQuestion, ProduceAnswer, ProduceItem, ProduceJob,
    ShardHandle, ShardMessage,
};
pub use memory::{AnswerBudget, AnswerPermit, FRAME_CREDIT_BYTES, MemoryBudget, MemoryPermit};
pub use placement::shard_of;
pub use producer_ids::ProducerIds;
pub use routes::{Route, Routes};
pub use status::{ClusterView, PartitionStatus, ShardStatus};

/// Serves a client's connection: what protocol it speaks is not the shard's business.
pub type ServeClient = fn(Rc<Shard>, Stream) -> LocalBoxFuture<'static, ()>;

/// What a shard is made of; the node puts it together on the shard's own thread.
pub struct ShardParts {
    /// Time, randomness, network.
    pub env: Env,
    /// This node.
    pub node: NodeId,
    /// Which shard of the node this is.
    pub index: u16,
    /// The node's settings.
    pub config: Arc<NodeConfig>,
    /// The shard's storage.
    pub store: Store,
    /// The shard's replicas and peers.
    pub raft: RaftShard,
    /// The shard's view of the cluster.
    pub metadata: MetadataView,
    /// Mailboxes of all shards of the node, in order; this one's too.
    pub handles: Vec<ShardHandle>,
    /// The way to the controller.
    pub controller: ControllerHandle,
    /// Serves a client's connection on this shard until either side closes.
    pub serve_client: ServeClient,
}

/// One shard of a node.
pub struct Shard {
    parts: ShardParts,
    partitions: RefCell<BTreeMap<GroupId, Rc<Partition>>>,
    /// One beside each replica of `__consumer_offsets`; it ends with its partition.
    coordinators: RefCell<BTreeMap<GroupId, Weak<Coordinator>>>,
    told: RefCell<HashMap<GroupId, LeaderInfo>>,
    led: Led,
    news: Rc<Notify>,
    image_changed: Notify,
    /// The first version of the image that is known to be of this life of the node.
    current_from: Cell<Option<u64>>,
    /// Whether what earlier lives left behind has been looked for.
    leftovers_removed: Cell<bool>,
    /// Replicas that the image wants here and that could not be opened at the last try, and why.
    unopened: RefCell<BTreeMap<GroupId, String>>,
    draining: Cell<bool>,
    /// Leaderships are on their way from a full disk.
    leaving: Cell<bool>,
    counters: Rc<Counters>,
    memory: MemoryBudget,
    answers: AnswerBudget,
    routes: RefCell<Routes>,
    producer_ids: ProducerIds,
    leadership_changes: Cell<u64>,
    /// Replicas in whose logs or votes damage was found.
    corruptions: Cell<u64>,
    /// Of these, the only copies: they stay open with what can be read.
    damaged_only_copies: RefCell<BTreeSet<GroupId>>,
    busy: BusyMeter,
}

impl Shard {
    /// A shard that serves nothing yet; [`Shard::run`] does.
    pub fn new(parts: ShardParts) -> Rc<Shard> {
        let busy = BusyMeter::new(parts.env.now());
        Rc::new(Shard {
            parts,
            partitions: RefCell::default(),
            coordinators: RefCell::default(),
            told: RefCell::default(),
            led: Led::default(),
            news: Rc::new(Notify::new()),
            image_changed: Notify::new(),
            current_from: Cell::default(),
            leftovers_removed: Cell::default(),
            unopened: RefCell::default(),
            draining: Cell::new(false),
            leaving: Cell::new(false),
            counters: Rc::default(),
            memory: MemoryBudget::new(memory::REQUEST_MEMORY_BYTES_MAX),
            answers: AnswerBudget::new(memory::ANSWER_MEMORY_BYTES_MAX),
            routes: RefCell::default(),
            producer_ids: ProducerIds::default(),
            leadership_changes: Cell::new(0),
            corruptions: Cell::new(0),
            damaged_only_copies: RefCell::default(),
            busy,
        })
    }

    /// The seam.
    pub fn env(&self) -> &Env {
        &self.parts.env
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.parts.node
    }

    /// Which shard of the node this is.
    pub fn index(&self) -> u16 {
        self.parts.index
    }

    /// The node's settings.
    pub fn config(&self) -> &Arc<NodeConfig> {
        &self.parts.config
    }

    /// The shard's view of the cluster.
    pub fn metadata(&self) -> &MetadataView {
        &self.parts.metadata
    }

    /// The way to the controller.
    pub fn controller(&self) -> &ControllerHandle {
        &self.parts.controller
    }

    /// The shard's replicas.
    pub fn raft(&self) -> &RaftShard {
        &self.parts.raft
    }

    /// Mailboxes of all shards of the node.
    pub fn handles(&self) -> &[ShardHandle] {
        &self.parts.handles
    }

    /// What the shard counts.
    pub fn counters(&self) -> &Rc<Counters> {
        &self.counters
    }

    /// Memory for requests that are being read or served.
    pub fn memory(&self) -> &MemoryBudget {
        &self.memory
    }

    /// What the data path needs of a topic, by the newest image.
    pub fn route(&self, topic: &str) -> Option<Route> {
        let image = self.parts.metadata.image();
        self.routes.borrow_mut().find(&image, topic)
    }

    /// This shard's block of producer ids.
    pub fn producer_ids(&self) -> &ProducerIds {
        &self.producer_ids
    }

    /// The shard of this node that hosts a group.
    pub fn owner(&self, group: GroupId) -> u16 {
        let shards = u16::try_from(self.parts.handles.len()).unwrap_or(u16::MAX);
        shard_of(group, shards)
    }

    /// The partition of a group, if its replica is open here.
    pub fn partition(&self, group: GroupId) -> Option<Rc<Partition>> {
        self.partitions.borrow().get(&group).cloned()
    }

    /// The group coordinator beside a replica of `__consumer_offsets`, if that is open here.
    pub fn coordinator(&self, group: GroupId) -> Option<Rc<Coordinator>> {
        self.coordinators.borrow().get(&group)?.upgrade()
    }

    /// All coordinators of this shard.
    pub(super) fn live_coordinators(&self) -> impl Iterator<Item = Rc<Coordinator>> + use<> {
        let coordinators: Vec<_> = self.coordinators.borrow().values().cloned().collect();
        coordinators.into_iter().filter_map(|weak| weak.upgrade())
    }

    /// Hands a call to a group's coordinator. Where it is not here the call is dropped, which its
    /// caller understands.
    pub fn coordinate(&self, group: GroupId, call: GroupCall) {
        if let Some(coordinator) = self.coordinator(group) {
            coordinator.serve(call);
        }
    }

    /// Serves the mailbox until it is told to stop. Returns whether to stop gracefully.
    pub async fn run(self: Rc<Self>, mut mailbox: mpsc::Receiver<ShardMessage>) -> bool {
        let env = self.parts.env.clone();
        env.spawn_local(self.clone().reconcile_replicas());
        env.spawn_local(self.clone().spread_news());
        env.spawn_local(self.clone().keep_retention());
        self.image_changed.notify_one();
        while let Some(message) = mailbox.recv().await {
            match message {
                ShardMessage::Stop { graceful } => return graceful,
                other => self.take(other),
            }
        }
        false
    }

    /// Ends everything on this shard in order: partitions, replicas, storage.
    pub async fn close(&self) {
        self.draining.set(true);
        let partitions: Vec<_> = self.partitions.borrow().values().cloned().collect();
        for partition in &partitions {
            partition.close();
        }
        self.parts.raft.close().await;
    }

    /// Retention and forgotten producers of everything that this shard leads: one clock for all.
    async fn keep_retention(self: Rc<Self>) {
        loop {
            self.parts
                .env
                .sleep(self.parts.config.retention_check)
                .await;
            let partitions: Vec<_> = self.partitions.borrow().values().cloned().collect();
            for partition in &partitions {
                partition.check_retention();
                partition.check_producers();
            }
            for coordinator in self.live_coordinators() {
                coordinator.check_size();
            }
        }
    }

    fn take(self: &Rc<Self>, message: ShardMessage) {
        match message {
            ShardMessage::Image(image) => {
                self.parts.metadata.set_image(image);
                self.image_changed.notify_one();
            }
            ShardMessage::ImageIsCurrent { from } => {
                self.current_from.set(Some(from));
                self.image_changed.notify_one();
            }
            ShardMessage::Leaders(updates) => {
                self.parts
                    .metadata
                    .set_leaders(&updates, self.parts.env.now());
            }
            ShardMessage::Led { gained, lost } => self.tell(gained, lost),
            ShardMessage::Peer { node, state } => self.peer_changed(node, state),
            ShardMessage::Isolated(isolated) => self.parts.metadata.set_isolated(isolated),
            ShardMessage::ControllerLeader(leader) => {
                self.parts.metadata.set_controller_leader(leader);
            }
            ShardMessage::Client(stream) => self.serve_client(stream),
            ShardMessage::PeerStream(stream, hello) => match stream.attach() {
                Ok(stream) => self.parts.raft.adopt(stream, hello),
                Err(error) => warn!(%error, "a peer's connection could not be taken over"),
            },
            ShardMessage::Frame(frame) => self.parts.raft.deliver(frame),
            ShardMessage::Produce(job, reply) => {
                let answer = self.produce(job);
                self.answer_later(answer, reply);
            }
            ShardMessage::Fetch(job, hurry, reply) => {
                let shard = self.clone();
                self.answer_later(async move { shard.fetch(job, hurry).await }, reply);
            }
            ShardMessage::Offsets(questions, reply) => {
                let shard = self.clone();
                self.answer_later(async move { shard.offsets(questions).await }, reply);
            }
            ShardMessage::Epochs(questions, reply) => {
                // A receiver that has gone away needs no answer.
                let _gone = reply.send(self.epochs(&questions));
            }
            ShardMessage::Marks(groups, reply) => {
                let answer = self.clone().ask_marks(groups);
                self.answer_later(answer, reply);
            }
            ShardMessage::Group(group, call) => self.coordinate(group, *call),
            ShardMessage::Transfer(group, to, reply) => {
                let shard = self.clone();
                self.answer_later(async move { shard.transfer(group, to).await }, reply);
            }
            ShardMessage::Drain(reply) => {
                let shard = self.clone();
                self.answer_later(async move { shard.drain().await }, reply);
            }
            ShardMessage::LedMarks(groups, reply) => {
                let _gone = reply.send(self.led_marks(&groups));
            }
            ShardMessage::HasRoom(reply) => {
                let _gone = reply.send(self.has_room());
            }
            ShardMessage::OthersWithRoom(reply) => {
                let shard = self.clone();
                self.answer_later(async move { shard.others_with_room().await }, reply);
            }
            ShardMessage::Status(reply) => {
                let _gone = reply.send(self.status());
            }
            ShardMessage::Cluster(reply) => {
                let _gone = reply.send(self.cluster_view());
            }
            ShardMessage::Stop { .. } => debug!("a second order to stop"),
        }
    }

    fn answer_later<T: 'static>(
        &self,
        answer: impl Future<Output = T> + 'static,
        reply: tokio::sync::oneshot::Sender<T>,
    ) {
        self.parts.env.spawn_local(async move {
            let _gone = reply.send(answer.await);
        });
    }

    fn peer_changed(&self, node: NodeId, state: PeerState) {
        let now = match state {
            PeerState::Up => "up",
            PeerState::Suspect => "suspect",
            PeerState::Down => "down",
        };
        info!(peer = %node, state = now, "a peer changed");
        self.parts
            .metadata
            .set_peer(node, state, self.parts.env.now());
        match state {
            PeerState::Down => self.parts.raft.node_down(node),
            PeerState::Up => {
                self.parts.raft.node_up(node);
                if self.parts.index == 0 {
                    self.tell_everything_to(node);
                }
            }
            PeerState::Suspect => {}
        }
        self.news.notify_one();
    }

    fn serve_client(self: &Rc<Self>, stream: DetachedStream) {
        if self.draining.get() {
            return;
        }
        match stream.attach() {
            Ok(stream) => {
                let shard = self.clone();
                self.parts
                    .env
                    .spawn_local((self.parts.serve_client)(shard, stream));
            }
            Err(error) => warn!(%error, "a client's connection could not be taken over"),
        }
    }
}
