//! One shard's replicas: opened, found by group, supervised, closed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Env, Stream};
use corduroy_record::{GroupId, NodeId, Offset, ReplicaId};
use corduroy_storage::{Log, Store};
use futures::future::LocalBoxFuture;
use tokio::sync::{Notify, Semaphore};

use crate::assembly::Assemblies;
use crate::awake::AwakeSet;
use crate::barrier::Barrier;
use crate::config::{AddressBook, Identity, RaftConfig, openraft_config};
use crate::counts::COMMIT_BUCKETS;
use crate::door::Door;
use crate::error::{CallError, RaftError};
use crate::failover;
use crate::hibernation;
use crate::log_store::LogStore;
use crate::machine::{self, MachineDriver};
use crate::network::NetworkFactory;
use crate::nodes::Nodes;
use crate::partition_span::PartitionSpan;
use crate::progress::Progress;
use crate::replica::Replica;
use crate::replica_core::{Core, Instance, Role, Sleep};
use crate::revert::Revert;
use crate::runtime::seed_randomness;
use crate::state_machine::StateMachine;
use crate::supervisor;
use crate::transport::{AskError, Forwarded, ReplyPath, Requests, Switchboard, serve};
use crate::types::{Raft, StoredMembership};
use crate::wire::{Frame, FrameEncoder, FrameReader, Hello, Message, Purpose, offer_hello};

/// Answers an application request from a node (-1: a caller without an id).
pub type OnCall = Rc<dyn Fn(NodeId, Bytes) -> LocalBoxFuture<'static, Bytes>>;
/// Takes a one-way application message.
pub type OnCast = Rc<dyn Fn(NodeId, Bytes)>;

/// What the node gives its shard's Raft.
pub struct ShardHooks {
    /// Hands a frame to another shard's [`RaftShard::deliver`].
    pub forward: Box<dyn Fn(u16, ForwardedFrame)>,
    /// Which shard of this node hosts a group.
    pub shard_of: Box<dyn Fn(GroupId) -> u16>,
    /// Answers application requests.
    pub on_call: OnCall,
    /// Takes one-way application messages.
    pub on_cast: OnCast,
}

/// A frame that reached this node on another shard. `Send`.
#[derive(Clone, Debug)]
pub struct ForwardedFrame {
    pub(crate) from: NodeId,
    pub(crate) frame: Frame,
    /// Counts against what the shard that read the frame may hand on.
    pub(crate) held: Forwarded,
}

impl ForwardedFrame {
    /// Bytes that it keeps alive, for the mailbox's budget.
    pub fn size_bytes(&self) -> usize {
        self.frame.size_bytes()
    }
}

/// A replica to open.
pub struct ReplicaSpec {
    /// The group.
    pub group: GroupId,
    /// Its replica here.
    pub replica: ReplicaId,
    /// Its log, created or opened by the caller.
    pub log: Log,
}

/// Counts of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftMetrics {
    /// Replicas that run here.
    pub replicas: usize,
    /// Of these, leaders.
    pub leaders: usize,
    /// Of these, asleep.
    pub asleep: usize,
    /// Of these, without a known leader.
    pub leaderless: usize,
    /// Of these, flagged to neither vote nor lead.
    pub no_vote: usize,
    /// Times that a replica was restarted after a panic.
    pub restarts: u64,
    /// Frames of heartbeats sent to other nodes.
    pub beat_frames: u64,
    /// Microseconds from proposal to applied, added up.
    pub commit_micros: u64,
    /// Applied proposals by time; see [`COMMIT_BUCKET_MICROS`](crate::COMMIT_BUCKET_MICROS), and
    /// one more for what is slower.
    pub commit_buckets: [u64; COMMIT_BUCKETS],
    /// Requests refused because they named a replica that is not here (law 7).
    pub misdirected: u64,
    /// Times that a replica here took the lead although most of its group had lost log: committed
    /// records may be lost (law 8).
    pub possible_losses: u64,
    /// Append streams that could not begin because their peer cannot be reached.
    pub streams_refused: u64,
    /// Bytes queued on this shard's connections to other nodes, right now.
    pub queued_bytes: usize,
    /// Bytes of snapshots that have arrived in part.
    pub assembling_bytes: u64,
    /// Bytes of frames that this shard has handed to others of the node and that are not done.
    pub forwarded_bytes: usize,
}

/// One shard's Raft. Clone = another handle.
#[derive(Clone)]
pub struct RaftShard {
    inner: Rc<ShardInner>,
}

pub(crate) struct ShardInner {
    pub(crate) this: Weak<ShardInner>,
    pub(crate) env: Env,
    pub(crate) config: Rc<RaftConfig>,
    pub(crate) openraft: Result<Arc<openraft::Config>, String>,
    pub(crate) board: Rc<Switchboard>,
    pub(crate) nodes: Rc<Nodes>,
    pub(crate) hooks: ShardHooks,
    pub(crate) assemblies: RefCell<Assemblies>,
    pub(crate) restarts: Cell<u64>,
    pub(crate) closed: Cell<bool>,
    pub(crate) awake: Rc<AwakeSet>,
    /// Failovers that run at the same time.
    pub(crate) turns: Rc<Semaphore>,
    replicas: RefCell<HashMap<GroupId, Rc<Core>>>,
    pub(crate) store: Store,
}

impl ShardInner {
    pub(crate) fn core(&self, group: GroupId) -> Option<Rc<Core>> {
        self.replicas.borrow().get(&group).cloned()
    }

    pub(crate) fn cores(&self) -> Vec<Rc<Core>> {
        self.replicas.borrow().values().cloned().collect()
    }

    /// Builds and runs a replica's openraft instance. The machine is restored first.
    pub(crate) async fn start(&self, core: &Rc<Core>) -> Result<(), RaftError> {
        machine::restore(core)
            .await
            .map_err(|error| RaftError::Start(error.to_string()))?;
        let config = self.openraft.clone().map_err(RaftError::Config)?;
        let raft = Raft::build(
            core.id.get(),
            config,
            NetworkFactory::new(core.clone()),
            LogStore::new(core.clone()),
            MachineDriver::new(core.clone()),
        )
        .await
        .map_err(|error| RaftError::Start(error.to_string()))?;
        if core.stopped.get() {
            // Closed meanwhile: the log may have a next owner. Nothing of this has run.
            let _ = raft.shutdown().await;
            return Err(RaftError::Stopped);
        }
        if core.no_vote() {
            raft.runtime_config().elect(false);
        }
        core.set_instance(Some(Instance::new(raft.clone())));
        core.sleep.set(Sleep::Awake);
        self.awake.insert(core);
        raft.run();
        Ok(())
    }
}

impl RaftShard {
    /// A shard without replicas. Call it inside the shard's `LocalSet`.
    pub fn new(
        env: Env,
        config: RaftConfig,
        identity: Identity,
        store: Store,
        book: AddressBook,
        hooks: ShardHooks,
    ) -> RaftShard {
        seed_randomness(env.random_u64());
        let openraft = openraft_config(&config).map(Arc::new);
        let board = Switchboard::new(env.clone(), config.clone(), identity, book);
        let inner = Rc::new_cyclic(|this: &Weak<ShardInner>| ShardInner {
            this: this.clone(),
            env,
            config: Rc::new(config),
            openraft,
            board: board.clone(),
            nodes: Rc::new(Nodes::default()),
            hooks,
            assemblies: RefCell::default(),
            restarts: Cell::new(0),
            closed: Cell::new(false),
            awake: Rc::default(),
            turns: Rc::new(Semaphore::new(failover::TURNS_MAX)),
            replicas: RefCell::default(),
            store,
        });
        let requests: Weak<dyn Requests> = Rc::downgrade(&inner) as Weak<dyn Requests>;
        board.serve_by(requests);
        hibernation::spawn_ticker(&inner);
        RaftShard { inner }
    }

    /// Starts a replica: loads its checkpoint into `machine`, then joins the group.
    ///
    /// # Errors
    /// The group is open already; its log or tables cannot be read; the configuration is invalid.
    pub async fn open(
        &self,
        spec: ReplicaSpec,
        machine: Rc<RefCell<dyn StateMachine>>,
    ) -> Result<Replica, RaftError> {
        let inner = &self.inner;
        if inner.closed.get() {
            return Err(RaftError::Stopped);
        }
        if inner.core(spec.group).is_some() {
            return Err(RaftError::AlreadyOpen(spec.group));
        }
        let state = spec.log.state();
        let flagged = state.damaged || state.no_vote;
        if state.damaged && !state.no_vote {
            // Law 8: the flag is durable before the replica starts.
            spec.log
                .set_no_vote(true)
                .await
                .map_err(|error| RaftError::Start(error.to_string()))?;
        }
        let now = inner.env.now();
        let span = PartitionSpan::new(spec.group, machine.borrow().topic());
        let core = Rc::new(Core {
            env: inner.env.clone(),
            config: inner.config.clone(),
            board: inner.board.clone(),
            nodes: inner.nodes.clone(),
            group: spec.group,
            id: spec.replica,
            span,
            log: spec.log,
            machine,
            door: Door::new(),
            progress: Progress::default(),
            instance: RefCell::new(None),
            driver: RefCell::default(),
            applied: Cell::new(None),
            high_watermark: Cell::new(Offset::ZERO),
            applied_membership: RefCell::new(StoredMembership::default()),
            applied_changed: Notify::new(),
            ready_term: Cell::new(None),
            storage_error: RefCell::new(None),
            stop_reason: RefCell::new(None),
            disk_full: Cell::new(false),
            gone_end: Cell::default(),
            stopped: Cell::new(false),
            stopping: Notify::new(),
            supervisor: RefCell::new(None),
            touched_at: Cell::new(now),
            sleep: Cell::new(Sleep::Awake),
            awake: inner.awake.clone(),
            turns: inner.turns.clone(),
            stand_in_until: Cell::new(now),
            lost: Cell::new(None),
            leader_heard_at: Cell::new(now),
            ordered: Cell::new(None),
            revert: Cell::new(if flagged {
                Revert::Unannounced
            } else {
                Revert::None
            }),
            returning: RefCell::default(),
            all_answered_until: Cell::new(None),
            flagged_campaign: Cell::new(None),
            own_lost_term: Cell::new(None),
            failover_running: Cell::new(false),
            hurried: Cell::new(0),
            barrier: RefCell::new(Barrier::default()),
            boundary: Cell::new(None),
            checkpointed: Cell::new(None),
        });
        core.door.bind(&core);
        // Entered before it runs: its peers' first messages must find it.
        inner.replicas.borrow_mut().insert(spec.group, core.clone());
        if let Err(error) = inner.start(&core).await {
            inner.replicas.borrow_mut().remove(&spec.group);
            return Err(error);
        }
        supervisor::spawn(inner, &core);
        Ok(Replica::new(core))
    }

    /// Stops a replica and forgets it; its log stays.
    pub async fn close_replica(&self, group: GroupId) {
        let core = self.inner.replicas.borrow_mut().remove(&group);
        if let Some(core) = core {
            self.inner.awake.remove(group);
            self.inner.assemblies.borrow_mut().forget_group(group);
            supervisor::stop(&core).await;
        }
    }

    /// The replica of `group` on this shard.
    pub fn replica(&self, group: GroupId) -> Option<Replica> {
        self.inner.core(group).map(Replica::new)
    }

    /// All replicas on this shard, by group.
    pub fn replicas(&self) -> Vec<Replica> {
        let mut cores = self.inner.cores();
        cores.sort_by_key(|core| core.group);
        cores.into_iter().map(Replica::new).collect()
    }

    /// The groups whose replicas here are awake. Nothing about the others changes by itself.
    pub fn awake_groups(&self) -> Vec<GroupId> {
        self.inner.awake.groups()
    }

    /// Serves a connection whose hello named this shard (or is a detector's or a stranger's).
    pub fn adopt(&self, stream: Stream, hello: Hello) {
        let board = self.inner.board.clone();
        self.inner.env.spawn_local(serve(board, stream, hello));
    }

    /// Takes a frame that arrived on another shard of this node.
    pub fn deliver(&self, frame: ForwardedFrame) {
        let board = &self.inner.board;
        let ForwardedFrame { from, frame, held } = frame;
        let reply = ReplyPath::Node(from, board.clone());
        match board.receive(from, frame, reply) {
            Ok(Some(work)) => {
                self.inner.env.spawn_local(async move {
                    work.await;
                    // Not before: what it carries is in memory until it is on the disk.
                    drop(held);
                });
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "a forwarded frame is dropped"),
        }
    }

    /// The failure detector holds `node` down.
    pub fn node_down(&self, node: NodeId) {
        if self.inner.nodes.set_down(node) {
            self.inner.drop_assemblies_of(node);
            failover::node_down(&self.inner, node);
        }
    }

    /// The failure detector hears `node` again.
    pub fn node_up(&self, node: NodeId) {
        self.inner.nodes.set_up(node);
        self.inner.board.node_up(node);
        failover::node_up(&self.inner, node);
    }

    /// Asks another node's [`ShardHooks::on_call`].
    ///
    /// # Errors
    /// The node cannot be reached, or does not answer in time.
    pub async fn call(
        &self,
        to: NodeId,
        request: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let asked = self.inner.board.ask(to, timeout, |link, call| {
            link.send(&Message::Call { call }, vec![request])
        });
        match asked.await {
            Ok((Message::CallAnswer { .. }, answer)) => Ok(answer),
            Ok(_) => Err(CallError::Protocol),
            Err(AskError::Down) => Err(CallError::Unreachable),
            Err(AskError::Timeout) => Err(CallError::Timeout),
        }
    }

    /// Sends a one-way message to another node's [`ShardHooks::on_cast`]; it may get lost.
    pub fn cast(&self, to: NodeId, message: Bytes) {
        let _ = self.inner.board.send(to, &Message::Cast, vec![message]);
    }

    /// Counts.
    pub fn metrics(&self) -> RaftMetrics {
        let board = &self.inner.board;
        let (commit_micros, commit_buckets) = board.counts.commits();
        let mut metrics = RaftMetrics {
            restarts: self.inner.restarts.get(),
            beat_frames: board.counts.beat_frames.get(),
            commit_micros,
            commit_buckets,
            misdirected: board.counts.misdirected.get(),
            possible_losses: board.counts.possible_losses.get(),
            streams_refused: board.counts.streams_refused.get(),
            queued_bytes: board.queued_bytes(),
            assembling_bytes: self.inner.assemblies.borrow().bytes(),
            forwarded_bytes: board.forwarding.bytes(),
            ..RaftMetrics::default()
        };
        for core in self.inner.replicas.borrow().values() {
            metrics.replicas += 1;
            metrics.leaders += usize::from(core.role() == Role::Leader);
            metrics.asleep += usize::from(core.is_asleep());
            metrics.leaderless += usize::from(core.leader().is_none());
            metrics.no_vote += usize::from(core.no_vote());
        }
        metrics
    }

    /// Stops all replicas and connections.
    pub async fn close(&self) {
        self.inner.closed.set(true);
        let cores: Vec<Rc<Core>> = self
            .inner
            .replicas
            .borrow_mut()
            .drain()
            .map(|(_, core)| core)
            .collect();
        for core in cores {
            supervisor::stop(&core).await;
        }
        self.inner.assemblies.borrow_mut().clear();
        self.inner.board.close();
    }
}

/// One request on a fresh connection, for a node that has no id yet (join, formation).
///
/// # Errors
/// Nobody answers there in time, or not in our protocol.
pub async fn call_address(
    env: &Env,
    addr: SocketAddr,
    request: Bytes,
    timeout: Duration,
) -> Result<Bytes, CallError> {
    let exchange = async {
        let mut stream = env
            .connect(addr)
            .await
            .map_err(|_| CallError::Unreachable)?;
        let anyone = NodeId::new(-1);
        let hello = Hello {
            purpose: Purpose::Anonymous,
            cluster: None,
            node: anyone,
            target_node: anyone,
            incarnation: 0,
            target_shard: 0,
            refusal: None,
        };
        offer_hello(&mut stream, &hello)
            .await
            .map_err(|_| CallError::Protocol)?;
        let head = FrameEncoder::default()
            .encode(&Message::Call { call: 0 }, request.len())
            .map_err(|_| CallError::TooLarge)?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &head)
            .await
            .map_err(|_| CallError::Unreachable)?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, &request)
            .await
            .map_err(|_| CallError::Unreachable)?;
        let mut reader = FrameReader::new(stream);
        let frame = reader.next().await.map_err(|_| CallError::Unreachable)?;
        match frame.message() {
            Ok(Message::CallAnswer { .. }) => Ok(frame.payload),
            _ => Err(CallError::Protocol),
        }
    };
    tokio::time::timeout(timeout, exchange)
        .await
        .unwrap_or(Err(CallError::Timeout))
}
