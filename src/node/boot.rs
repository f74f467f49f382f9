//! Boots a node on shard 0, in the order that the laws ask for: listeners, recovery of the whole
//! disk, identity, shards, controller, then clients.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle as Thread;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Env, Listener};
use corduroy_raft::{
    AddressBook, AdmissionDesk, ClusterTag, FailureDetector, ForwardedFrame,
    Identity as RaftIdentity, Incarnations, RaftConfig, RaftShard, ShardHooks,
};
use corduroy_record::{GroupId, NodeId};
use corduroy_storage::{Disk, IoMode, Store, StoreConfig};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::acceptor::{PeerTargets, TurnedAway, accept_clients, accept_peers};
use super::status::NodeStatusSource;
use super::thread::{run_local, serve_shard, shard_span};
use super::twin::{Peers, TwinWatch};
use super::waiting::Waiting;
use super::{ISOLATED_AFTER, SERVICE_CONTROLLER, SERVICE_MARKS, SERVICE_NODE, StartError, Started};
use super::{leaders, room};
use crate::admin::{self, AdminServer};
use crate::config::NodeConfig;
use crate::controller::records::NodeRecord;
use crate::controller::{
    Addresses, Controller, ControllerError, ControllerHandle, ControllerHooks, ControllerParts,
    Formation, HostPort, Identity, IdentityFile, MetadataImage, parted_text,
};
use crate::kafka;
use crate::leadership;
use crate::metadata::MetadataView;
use crate::shard::{Shard, ShardHandle, ShardMessage, ShardParts, shard_of};

/// How often shard 0 looks whether the node is isolated.
const ISOLATION_LOOK: Duration = Duration::from_millis(250);
// DESIGN 5.5: an isolated node names itself for no longer than three seconds.
const _: () = assert!(ISOLATED_AFTER.as_millis() + ISOLATION_LOOK.as_millis() < 3_000);

/// Answers a call from another node.
pub type CallAnswer = Rc<dyn Fn(Bytes) -> Pin<Box<dyn Future<Output = Bytes>>>>;

/// A node that serves; shard 0 goes on from here.
pub struct Booted {
    /// Shard 0's own task; it ends when the shard is told to stop.
    pub serving: JoinHandle<()>,
    /// What the starter gets.
    pub started: Started,
}

/// What every shard of the node is built from. Send: it crosses to the shards' threads.
#[derive(Clone)]
struct Common {
    env: Env,
    config: Arc<NodeConfig>,
    disk: Arc<dyn Disk>,
    root: PathBuf,
    node: NodeId,
    incarnation: u64,
    incarnations: Incarnations,
    cluster: ClusterTag,
    book: AddressBook,
    handles: Vec<ShardHandle>,
    controller: ControllerHandle,
}

/// The node's shards that live on the thread that boots it: shard 0, and in a simulation all of
/// them. Filled while the node boots.
#[derive(Clone, Default)]
pub struct LocalShards {
    open: Rc<std::cell::RefCell<Vec<Rc<Shard>>>>,
    serving: Rc<std::cell::RefCell<Vec<JoinHandle<()>>>>,
}

impl LocalShards {
    /// Those that are open by now.
    pub fn all(&self) -> Vec<Rc<Shard>> {
        self.open.borrow().clone()
    }

    /// The tasks of all but shard 0; they end when their shard is told to stop.
    pub fn take_serving(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.serving.borrow_mut())
    }

    fn push(&self, shard: &Rc<Shard>) {
        self.open.borrow_mut().push(shard.clone());
    }
}

/// Boots the node on a disk. Runs on shard 0, inside its `LocalSet`.
pub async fn boot(
    env: Env,
    config: Arc<NodeConfig>,
    disk: Arc<dyn Disk>,
    local: LocalShards,
) -> Result<Booted, StartError> {
    let kafka_listener = listen(&env, "Kafka clients", "--listen", config.listen).await?;
    let rpc_listener = listen(&env, "other nodes", "--rpc-listen", config.rpc_listen).await?;
    let kafka = kafka_listener.local_addr().map_err(StartError::Runtime)?;
    let rpc = rpc_listener.local_addr().map_err(StartError::Runtime)?;
    let waiting = Waiting::new();
    let turned_away = TurnedAway::start(&env, kafka_listener, waiting.clone());
    let status = NodeStatusSource::new(env.now(), waiting.clone());
    let admin = start_admin(&env, &config, &status)?;
    let config = Arc::new(with_bound_admin(&config, admin.as_ref()));

    let root = config.data_dir.clone();
    let report = corduroy_storage::recover(&disk, &root)?;
    info!(
        partitions = report.partitions,
        clean = report.clean,
        entries_replayed = report.entries_replayed,
        damaged = report.damaged.len(),
        torn_journals = report.torn_journals,
        "the disk is recovered"
    );

    let targets = PeerTargets::default();
    env.spawn_local(accept_peers(env.clone(), rpc_listener, targets.clone()));
    let file = IdentityFile::new(disk.clone(), &root);
    let addresses = addresses(&config, kafka, rpc, admin.as_ref().map(AdminServer::addr));
    let identity = find_place(&env, &config, &file, &addresses, &targets, &waiting).await?;
    let node = identity.node;
    status.set_node(node);
    // Shard 0's thread began before anybody knew.
    tracing::Span::current().record("node", node.get());
    info!(%node, "this node has its place");

    let cluster = ClusterTag::unknown();
    if let Some(id) = identity.cluster_id {
        cluster.set(id);
    }
    let book = AddressBook::new();
    let incarnation = env.random_u64();
    let incarnations = Incarnations::default();
    targets.set_desk(AdmissionDesk::new(
        env.clone(),
        RaftConfig {
            ping_interval: config.ping_interval,
            down_after: config.down_after,
            ..RaftConfig::default()
        },
        RaftIdentity {
            node,
            incarnation,
            shard: 0,
            shards: 1,
            cluster: cluster.clone(),
            incarnations: incarnations.clone(),
        },
        book.clone(),
    ));
    let calls = CallSlots::default();
    let known = identity.members.clone();
    let members = known.iter().map(|member| member.rpc);
    let registered = identity
        .members
        .iter()
        .find(|member| member.id == node.get());
    let twins = TwinWatch {
        env: env.clone(),
        node,
        uuid: identity.uuid,
        incarnation,
        cluster: cluster.clone(),
        own: addresses.rpc,
        registered: registered.map(|member| member.rpc),
        data_dir: root.clone(),
        down_after: config.down_after,
        ping_interval: config.ping_interval,
        places: members.chain(config.seeds.iter().copied()).collect(),
        peers: peers_known(&identity, &book, &calls),
    };
    waiting.set("it asks the other nodes whether anybody has its place".to_owned());
    // Before a replica opens: whoever is a copy must not have voted or led until it knows.
    incarnations.fall_silent();
    let asked = twins.ask(&incarnations, &book).await;
    let places = asked.map_err(StartError::Twin)?;
    let shards = config.shards.max(1);
    let mut mailboxes = Vec::with_capacity(shards);
    let mut handles = Vec::with_capacity(shards);
    for _ in 0..shards {
        let (handle, mailbox) = ShardHandle::new();
        handles.push(handle);
        mailboxes.push(mailbox);
    }
    let (controller_handle, inbox) = ControllerHandle::channel(&env);
    let common = Common {
        env: env.clone(),
        config: config.clone(),
        disk,
        root,
        node,
        incarnation,
        incarnations: incarnations.clone(),
        cluster: cluster.clone(),
        book: book.clone(),
        handles: handles.clone(),
        controller: controller_handle,
    };
    let mut mailboxes = mailboxes.into_iter();
    let mailbox = mailboxes.next().ok_or(StartError::Ended)?;
    let threads = start_other_shards(&common, mailboxes, &local).await?;

    let (shard, store) = build_shard(&common, 0, &calls)?;
    local.push(&shard);
    // Peers' connections come through the mailbox, and the controller needs its peers.
    let serving = env.spawn_local(serve_shard(shard.clone(), store.clone(), mailbox));
    let detector = start_detector(&common);
    let watching = twins.watch(incarnations, book.clone(), places);
    let mut twin = watch_twins(&env, watching);
    let controller = Controller::start(ControllerParts {
        env: env.clone(),
        identity,
        file,
        raft: shard.raft().clone(),
        store: store.clone(),
        book: book.clone(),
        config: config.clone(),
        addresses,
        inbox,
        hooks: controller_hooks(&env, &handles, &cluster),
    })
    .await?;
    calls.set_controller(controller.clone());
    calls.set_shard(&shard);
    targets.set_shards(handles.clone());
    env.spawn_local(watch_detector(
        env.clone(),
        detector,
        controller.clone(),
        book,
        handles.clone(),
    ));
    let (stop_controller, stop) = oneshot::channel::<oneshot::Sender<()>>();
    let leaving = controller.clone();
    env.spawn_local(async move {
        if let Ok(done) = stop.await {
            leaving.transfer_away().await;
            // A starter that gave up waiting needs no answer.
            let _gone = done.send(());
        }
    });
    tokio::select! {
        () = controller.joined() => {}
        () = tell_missing(&env, &shard, node, &known, &waiting) => {}
        reason = controller.parted() => return Err(ControllerError::Parted(reason).into()),
        words = &mut twin => return Err(words.map_or(StartError::Ended, StartError::Twin)),
    }
    let from = controller.image().version;
    broadcast(&env, &handles, || ShardMessage::ImageIsCurrent { from });
    leaders::learn(&shard, &controller.image()).await;
    let (parted_sender, parted) = oneshot::channel();
    let parting = controller.clone();
    env.spawn_local(async move {
        let words = tokio::select! {
            reason = parting.parted() => parted_text(&reason),
            Ok(words) = twin => words,
        };
        // A starter that is gone stops the node itself.
        let _gone = parted_sender.send(words);
    });
    let kafka_listener = turned_away.take().await.ok_or(StartError::Ended)?;
    status.set_serving(node, &handles, shard.controller().clone());
    env.spawn_local(accept_clients(env.clone(), kafka_listener, handles.clone()));
    let started = Started {
        node,
        kafka,
        rpc,
        admin,
        handles,
        threads,
        stop_controller,
        parted,
    };
    Ok(Booted { serving, started })
}

/// Says which members this node does not hear, as long as it has not joined them. Does not end.
async fn tell_missing(
    env: &Env,
    shard: &Shard,
    own: NodeId,
    members: &[NodeRecord],
    waiting: &Waiting,
) {
    loop {
        let missing: Vec<String> = members
            .iter()
            .filter(|member| shard.metadata().unreachable(NodeId::new(member.id)))
            .map(|member| {
                format!(
                    "node {} ({}:{})",
                    member.id, member.kafka_host, member.kafka_port
                )
            })
            .collect();
        waiting.set(match missing.as_slice() {
            [] => "it waits for the controller to take it in again".to_owned(),
            missing => format!(
                "node {own} needs a majority of its cluster, and does not hear {}; start the nodes there",
                missing.join(", ")
            ),
        });
        env.sleep(ISOLATION_LOOK).await;
    }
}

/// Looks, whenever asked, at what is known by then of the cluster's other members.
fn peers_known(
    identity: &Identity,
    book: &AddressBook,
    calls: &CallSlots,
) -> Rc<dyn Fn() -> Peers> {
    let own = identity.node;
    let in_file = identity.members.iter().any(|member| member.id != own.get());
    let (book, shard) = (book.clone(), calls.shard.clone());
    Rc::new(move || {
        let shard = shard.borrow().upgrade();
        let controller = shard.and_then(|shard| shard.raft().replica(GroupId::CONTROLLER));
        Peers {
            in_file,
            in_book: book.nodes().iter().any(|node| *node != own),
            leads_alone: controller.is_some_and(|controller| {
                let members = controller.members();
                let mut voters = members.iter().filter(|(_, _, votes)| *votes);
                controller.view().leader_ready && voters.all(|(_, node, _)| *node == own)
            }),
        }
    })
}

/// Resolves with the node's last words if another process turns out to have its place.
fn watch_twins(
    env: &Env,
    watching: impl Future<Output = String> + 'static,
) -> oneshot::Receiver<String> {
    let (sender, words) = oneshot::channel();
    env.spawn_local(async move {
        let words = watching.await;
        // Whoever no longer listens is ending the node already.
        let _gone = sender.send(words);
    });
    words
}

async fn listen(
    env: &Env,
    what: &'static str,
    flag: &'static str,
    addr: SocketAddr,
) -> Result<Listener, StartError> {
    env.listen(addr).await.map_err(|source| StartError::Listen {
        what,
        flag,
        addr,
        source,
    })
}

fn start_admin(
    env: &Env,
    config: &NodeConfig,
    status: &NodeStatusSource,
) -> Result<Option<AdminServer>, StartError> {
    let Some(addr) = config.admin_listen else {
        return Ok(None);
    };
    let services = status.services();
    admin::start(env, addr, services)
        .map(Some)
        .map_err(|source| StartError::Listen {
            what: "metrics and health",
            flag: "--admin-listen",
            addr,
            source,
        })
}

/// The settings with the admin port that was really bound: port 0 asked for any, and whoever asks
/// this node for its settings wants to reach it.
fn with_bound_admin(config: &NodeConfig, admin: Option<&AdminServer>) -> NodeConfig {
    let mut bound = config.clone();
    bound.admin_listen = admin.map(AdminServer::addr);
    if let (Some(setting), Some(admin)) = (bound.settings.get_mut("admin.listen"), admin) {
        setting.value = admin.addr().to_string();
    }
    bound
}

fn addresses(
    config: &NodeConfig,
    kafka: SocketAddr,
    rpc: SocketAddr,
    admin: Option<SocketAddr>,
) -> Addresses {
    let advertised = config
        .advertised
        .as_deref()
        .and_then(|text| text.parse().ok());
    Addresses {
        kafka: advertised.unwrap_or_else(|| HostPort::from(kafka)),
        rpc: config.rpc_advertised.unwrap_or(rpc),
        admin,
    }
}

/// Identity from the data directory, or from the seeds; the rpc port answers meanwhile.
async fn find_place(
    env: &Env,
    config: &NodeConfig,
    file: &IdentityFile,
    addresses: &Addresses,
    targets: &PeerTargets,
    waiting: &Waiting,
) -> Result<Identity, StartError> {
    let formation = Formation::new(env.clone(), config, file.clone(), addresses.clone());
    let waiting = waiting.clone();
    formation.tell_waits(move |why| waiting.set(why));
    let answering = formation.clone();
    targets.set_answer(Rc::new(move |request| {
        let answer = answering.answer(&request);
        Box::pin(std::future::ready(answer))
    }));
    Ok(formation.run().await?)
}

/// Who answers calls that arrive on shard 0, once it runs.
#[derive(Clone, Default)]
struct CallSlots {
    controller: Rc<std::cell::RefCell<Option<Controller>>>,
    shard: Rc<std::cell::RefCell<std::rc::Weak<Shard>>>,
}

impl CallSlots {
    fn set_controller(&self, controller: Controller) {
        *self.controller.borrow_mut() = Some(controller);
    }

    fn set_shard(&self, shard: &Rc<Shard>) {
        *self.shard.borrow_mut() = Rc::downgrade(shard);
    }
}

fn build_shard(
    common: &Common,
    index: u16,
    calls: &CallSlots,
) -> Result<(Rc<Shard>, Store), StartError> {
    let env = &common.env;
    let config = &common.config;
    let store = Store::open(
        common.disk.clone(),
        StoreConfig {
            journal_file_bytes: config.journal_file_bytes,
            journal_files_max: config.journal_files_max,
            inline_bytes_max: config.inline_bytes_max,
            cache_bytes: config.cache_bytes,
            reserve_bytes: config.reserve_bytes,
            low_bytes: config.disk_low_bytes,
            critical_bytes: config.disk_critical_bytes,
            io: if env.is_simulated() {
                IoMode::Inline
            } else {
                IoMode::Threads
            },
            ..StoreConfig::new(common.root.clone(), usize::from(index))
        },
        env.clone(),
    )?;
    env.spawn_local(store.clone().run());
    let shards = u16::try_from(common.handles.len()).unwrap_or(u16::MAX);
    let identity = RaftIdentity {
        node: common.node,
        incarnation: common.incarnation,
        shard: index,
        shards,
        cluster: common.cluster.clone(),
        incarnations: common.incarnations.clone(),
    };
    let metadata = MetadataView::new(Arc::new(MetadataImage::default()));
    let raft_config = RaftConfig {
        ping_interval: config.ping_interval,
        down_after: config.down_after,
        hibernate_after: config.hibernate_after,
        isolated_after: ISOLATED_AFTER,
        ..RaftConfig::default()
    };
    let news: Rc<std::cell::RefCell<Option<Rc<Shard>>>> = Rc::default();
    let hooks = ShardHooks {
        forward: forwarder(env, &common.handles),
        shard_of: Box::new(move |group: GroupId| shard_of(group, shards)),
        on_call: call_hook(calls.clone()),
        on_cast: cast_hook(news.clone()),
    };
    let raft = RaftShard::new(
        env.clone(),
        raft_config,
        identity,
        store.clone(),
        common.book.clone(),
        hooks,
    );
    let shard = Shard::new(ShardParts {
        env: env.clone(),
        node: common.node,
        index,
        config: config.clone(),
        store: store.clone(),
        raft,
        metadata,
        handles: common.handles.clone(),
        controller: common.controller.clone(),
        serve_client: |shard, stream| Box::pin(kafka::serve_connection(shard, stream)),
    });
    *news.borrow_mut() = Some(shard.clone());
    Ok((shard, store))
}

/// Frames for groups of other shards, in order.
fn forwarder(env: &Env, handles: &[ShardHandle]) -> Box<dyn Fn(u16, ForwardedFrame)> {
    // A queue per target and one task that empties it: a full mailbox must not reorder frames.
    // What is in it is bounded by the windows of the streams that feed it.
    let queues: Vec<mpsc::UnboundedSender<ForwardedFrame>> = handles
        .iter()
        .map(|handle| {
            let (queue, mut frames) = mpsc::unbounded_channel();
            let handle = handle.clone();
            env.spawn_local(async move {
                while let Some(frame) = frames.recv().await {
                    if handle.send(ShardMessage::Frame(frame)).await.is_err() {
                        return;
                    }
                }
            });
            queue
        })
        .collect();
    Box::new(move |shard, frame| {
        if let Some(queue) = queues.get(usize::from(shard)) {
            // A closed queue means that the node is stopping.
            let _stopping = queue.send(frame);
        }
    })
}

type CallHook = Rc<dyn Fn(NodeId, Bytes) -> futures::future::LocalBoxFuture<'static, Bytes>>;

fn call_hook(calls: CallSlots) -> CallHook {
    Rc::new(move |from, request| {
        let controller = calls.controller.borrow().clone();
        let shard = calls.shard.borrow().upgrade();
        Box::pin(async move {
            match (request.first(), controller, shard) {
                (Some(&SERVICE_CONTROLLER), Some(controller), _) => {
                    controller.on_call(from, request).await
                }
                (Some(&SERVICE_MARKS), _, Some(shard)) if from.get() >= 0 => {
                    shard.answer_marks(request).await
                }
                (Some(&SERVICE_NODE), _, Some(shard)) if from.get() >= 0 => match &request[1..] {
                    room::QUESTION => room::answer(&shard).await,
                    _ => leaders::answer(&shard),
                },
                // Not ready, or not for us: an empty answer is "no answer" to every caller.
                _ => Bytes::new(),
            }
        })
    })
}

fn cast_hook(shard: Rc<std::cell::RefCell<Option<Rc<Shard>>>>) -> Rc<dyn Fn(NodeId, Bytes)> {
    Rc::new(move |from, message| match message.split_first() {
        Some((&SERVICE_NODE, body)) => match leadership::decode(body) {
            Ok(updates) => {
                if let Some(shard) = shard.borrow().as_ref() {
                    shard.publish(updates);
                }
            }
            Err(error) => warn!(%from, %error, "leadership news that cannot be read"),
        },
        _ => warn!(%from, "a message of an unknown service"),
    })
}

/// Starts every shard but the first on a thread of its own and waits until all are open. In a
/// simulation, all live on this thread.
async fn start_other_shards(
    common: &Common,
    mailboxes: impl Iterator<Item = mpsc::Receiver<ShardMessage>>,
    local: &LocalShards,
) -> Result<Vec<Thread<()>>, StartError> {
    let mut threads = Vec::new();
    if common.env.is_simulated() {
        for (index, mailbox) in (1u16..).zip(mailboxes) {
            let (shard, store) = build_shard(common, index, &CallSlots::default())?;
            local.push(&shard);
            let serving = common.env.spawn_local(serve_shard(shard, store, mailbox));
            local.serving.borrow_mut().push(serving);
        }
        return Ok(threads);
    }
    let mut opened = Vec::new();
    for (index, mailbox) in (1u16..).zip(mailboxes) {
        let (report, open) = oneshot::channel();
        let common = common.clone();
        let thread = common
            .env
            .clone()
            .spawn_thread(&format!("shard-{index}"), move || {
                let span = shard_span(Some(common.node), index);
                let result = run_local(&span, async move {
                    match build_shard(&common, index, &CallSlots::default()) {
                        Ok((shard, store)) => {
                            if report.send(Ok(())).is_ok() {
                                serve_shard(shard, store, mailbox).await;
                            }
                        }
                        Err(error) => {
                            let _gone = report.send(Err(error));
                        }
                    }
                });
                if let Err(error) = result {
                    tracing::error!(index, %error, "a shard has no runtime");
                }
            })
            .map_err(StartError::Thread)?;
        threads.push(thread);
        opened.push(open);
    }
    for open in opened {
        open.await.map_err(|_| StartError::Ended)??;
    }
    Ok(threads)
}

fn start_detector(common: &Common) -> FailureDetector {
    let identity = RaftIdentity {
        node: common.node,
        incarnation: common.incarnation,
        shard: 0,
        shards: u16::try_from(common.handles.len()).unwrap_or(u16::MAX),
        cluster: common.cluster.clone(),
        incarnations: common.incarnations.clone(),
    };
    let raft_config = RaftConfig {
        ping_interval: common.config.ping_interval,
        down_after: common.config.down_after,
        isolated_after: ISOLATED_AFTER,
        ..RaftConfig::default()
    };
    let env = common.env.clone();
    let handles = common.handles.clone();
    let detector = FailureDetector::new(
        common.env.clone(),
        raft_config,
        identity,
        common.book.clone(),
        Box::new(move |node, state| {
            broadcast(&env, &handles, || ShardMessage::Peer { node, state });
        }),
    );
    common.env.spawn_local(detector.clone().run());
    detector
}

/// Tells all shards, off the caller's path where a mailbox is full.
fn broadcast(env: &Env, handles: &[ShardHandle], message: impl Fn() -> ShardMessage) {
    for handle in handles {
        if let Err(message) = handle.try_send(message()) {
            let handle = handle.clone();
            env.spawn_local(async move {
                let _stopping = handle.send(message).await;
            });
        }
    }
}

fn controller_hooks(env: &Env, handles: &[ShardHandle], cluster: &ClusterTag) -> ControllerHooks {
    let cluster = cluster.clone();
    let (image_env, image_handles) = (env.clone(), handles.to_vec());
    let (leader_env, leader_handles) = (env.clone(), handles.to_vec());
    ControllerHooks {
        publish: Box::new(move |image| {
            if !image.cluster_id.is_nil() && !cluster.set(image.cluster_id) {
                warn!(found = %image.cluster_id, "the controller's log is of another cluster");
            }
            broadcast(&image_env, &image_handles, || {
                ShardMessage::Image(image.clone())
            });
        }),
        leader_changed: Box::new(move |leader| {
            broadcast(&leader_env, &leader_handles, || {
                ShardMessage::ControllerLeader(leader)
            });
        }),
    }
}

/// Tells shards and controller what the failure detector sees beyond single changes.
async fn watch_detector(
    env: Env,
    detector: FailureDetector,
    controller: Controller,
    book: AddressBook,
    handles: Vec<ShardHandle>,
) {
    let mut isolated = false;
    let mut look = tokio::time::interval(ISOLATION_LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        for node in book.nodes() {
            controller.set_down(node, detector.is_down(node));
        }
        let now = detector.isolated();
        if now != isolated {
            isolated = now;
            info!(isolated, "whether this node hears a majority has changed");
            broadcast(&env, &handles, || ShardMessage::Isolated(isolated));
        }
    }
}
