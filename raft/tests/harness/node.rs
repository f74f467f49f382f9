//! One node: a disk, a store, a shard, a failure detector, a listener.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_raft::{
    AddressBook, ClusterTag, FailureDetector, Identity, Incarnations, PeerState, Purpose,
    RaftConfig, RaftShard, Replica, ReplicaSpec, ShardHooks, read_hello, write_first_entry,
};
use corduroy_record::{Batch, GroupId, LogIndex, NodeId, ReplicaId};
use corduroy_storage::{
    AppendDone, Disk, IoMode, LogConfig, NewEntry, Payload, RealDisk, SimDisk, Store, StoreConfig,
    recover,
};
use tokio::task::JoinHandle;

use super::{Links, TestMachine, replica_id};

/// A node of a test cluster.
pub struct TestNode {
    id: i32,
    pub disk: SimDisk,
    pub log_config: LogConfig,
    pub padding_bytes: usize,
    pub shards: u16,
    /// The replica that a fresh log here belongs to.
    pub replica: ReplicaId,
    /// Budget of the recent-entries cache.
    pub cache_bytes: usize,
    /// The next start finds an empty disk, on which the operator registers the old replica as
    /// damaged.
    pub lose_disk: bool,
    /// At the next start the replica is flagged, and has its log and its vote.
    pub flagged: bool,
    /// A fresh log here begins with these members.
    pub first_members: Option<Vec<(ReplicaId, NodeId)>>,
    /// Real files and flush threads there, instead of a simulated disk.
    pub real_root: Option<PathBuf>,
    running: Option<Running>,
}

struct Running {
    shards: Vec<RaftShard>,
    host: usize,
    detector: FailureDetector,
    store: Store,
    replica: Replica,
    machine: Rc<RefCell<TestMachine>>,
    tasks: Vec<JoinHandle<()>>,
    casts: Rc<RefCell<Vec<Bytes>>>,
}

impl TestNode {
    pub fn new(id: i32) -> TestNode {
        TestNode {
            id,
            disk: SimDisk::new(),
            log_config: LogConfig::default(),
            padding_bytes: 0,
            shards: 1,
            replica: replica_id(id),
            cache_bytes: 64 << 20,
            lose_disk: false,
            flagged: false,
            first_members: None,
            real_root: None,
            running: None,
        }
    }

    fn root() -> PathBuf {
        PathBuf::from("/data")
    }

    pub async fn start(
        &mut self,
        env: &Env,
        config: &RaftConfig,
        group: GroupId,
        links: &Rc<Links>,
        all: &[i32],
    ) {
        assert!(self.running.is_none(), "node {} runs already", self.id);
        let lost = std::mem::take(&mut self.lose_disk);
        if lost {
            self.disk = SimDisk::new();
        }
        let (disk, root, io): (Arc<dyn Disk>, PathBuf, IoMode) = match &self.real_root {
            Some(root) => (Arc::new(RealDisk), root.clone(), IoMode::Threads),
            None => (
                Arc::new(self.disk.clone()),
                TestNode::root(),
                IoMode::Inline,
            ),
        };
        recover(&disk, &root).expect("recovery");
        let store = self.open_store(disk, root, io, env);
        let flushing = store.clone();
        let mut tasks = vec![env.spawn_local(async move { flushing.run().await })];

        let book = AddressBook::new();
        let incarnation = env.random_u64();
        let incarnations = Incarnations::default();
        let identity = |shard: u16| Identity {
            node: NodeId::new(self.id),
            incarnation,
            shard,
            shards: self.shards,
            cluster: ClusterTag::unknown(),
            incarnations: incarnations.clone(),
        };
        let casts = Rc::new(RefCell::new(Vec::new()));
        // Different nodes place the group on different shards.
        let host = self.id as usize % self.shards as usize;
        let shards: Rc<RefCell<Vec<RaftShard>>> = Rc::default();
        for shard in 0..self.shards {
            let heard = casts.clone();
            let (others, forwarding) = (shards.clone(), env.clone());
            let hooks = ShardHooks {
                forward: Box::new(move |shard, frame| {
                    // As through a mailbox: not from within the sender.
                    let target = others.borrow()[shard as usize].clone();
                    forwarding.spawn_local(async move { target.deliver(frame) });
                }),
                shard_of: Box::new(move |_| host as u16),
                on_call: Rc::new(|from, request| {
                    let answer = format!("{} from {from}", String::from_utf8_lossy(&request));
                    Box::pin(async move { Bytes::from(answer) })
                }),
                on_cast: Rc::new(move |_, message| heard.borrow_mut().push(message)),
            };
            let opened = RaftShard::new(
                env.clone(),
                config.clone(),
                identity(shard),
                store.clone(),
                book.clone(),
                hooks,
            );
            shards.borrow_mut().push(opened);
        }

        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = env.listen(any).await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let (accepting, accept_env) = (shards.clone(), env.clone());
        tasks.push(env.spawn_local(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else {
                    continue;
                };
                let shards = accepting.clone();
                accept_env.spawn_local(async move {
                    if let Ok(hello) = read_hello(&mut stream).await {
                        assert!(hello.purpose != Purpose::Peer || hello.node != NodeId::new(-1));
                        let shards = shards.borrow();
                        let shard = hello.target_shard as usize % shards.len();
                        shards[shard].adopt(stream, hello);
                    }
                });
            }
        }));
        links.set_target(self.id, Some(addr)).await;
        for other in all {
            if *other != self.id {
                book.set(NodeId::new(*other), links.address(self.id, *other).await);
            } else {
                book.set(NodeId::new(*other), addr);
            }
        }

        let told = shards.clone();
        let detector = FailureDetector::new(
            env.clone(),
            config.clone(),
            identity(0),
            book,
            Box::new(move |node, state| {
                for shard in told.borrow().iter() {
                    match state {
                        PeerState::Down => shard.node_down(node),
                        PeerState::Up => shard.node_up(node),
                        PeerState::Suspect => {}
                    }
                }
            }),
        );
        tasks.push(env.spawn_local(detector.clone().run()));

        let log = if store.contains(group) {
            store.open_log(group, self.log_config).expect("the log")
        } else {
            store
                .create_log(group, self.replica, self.log_config)
                .await
                .expect("a log")
        };
        if lost || std::mem::take(&mut self.flagged) {
            log.set_no_vote(true).await.expect("a flag");
        }
        if let Some(members) = &self.first_members {
            write_first_entry(&log, members)
                .await
                .expect("a first entry");
        }
        let machine = Rc::new(RefCell::new(TestMachine {
            padding_bytes: self.padding_bytes,
            ..TestMachine::default()
        }));
        let spec = ReplicaSpec {
            group,
            replica: log.replica(),
            log,
        };
        let shards = shards.borrow().clone();
        let replica = shards[host]
            .open(spec, machine.clone())
            .await
            .expect("the replica opens");
        links.set_replica(self.id, Some(replica.clone()));
        self.running = Some(Running {
            shards,
            host,
            detector,
            store,
            replica,
            machine,
            tasks,
            casts,
        });
    }

    fn open_store(&self, disk: Arc<dyn Disk>, root: PathBuf, io: IoMode, env: &Env) -> Store {
        let config = StoreConfig {
            journal_file_bytes: 1 << 20,
            cache_bytes: self.cache_bytes,
            reserve_bytes: 0,
            low_bytes: 0,
            critical_bytes: 0,
            io,
            ..StoreConfig::new(root, 0)
        };
        Store::open(disk, config, env.clone()).expect("a store")
    }

    /// Puts another batch in the place of the last entry of a node that does not run: its index
    /// and term stay. No fault does this; it stands for a bug that made two logs differ.
    pub async fn forge_last(&self, env: &Env, group: GroupId, batch: Batch) {
        assert!(self.running.is_none(), "node {} runs", self.id);
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        recover(&disk, &TestNode::root()).expect("recovery");
        let store = self.open_store(disk, TestNode::root(), IoMode::Inline, env);
        let flushing = store.clone();
        let task = env.spawn_local(async move { flushing.run().await });
        let log = store.open_log(group, self.log_config).expect("the log");
        let (term, index) = log.state().last.expect("an entry");
        let before = LogIndex::new(index.get() - 1);
        log.truncate_after(Some(before)).await.expect("cut");
        let forged = NewEntry {
            term,
            index,
            base_offset: None,
            payload: Payload::Batch(batch),
        };
        log.append(vec![forged], AppendDone::default())
            .expect("in place");
        log.flush().await.expect("durable");
        task.abort();
        self.disk.kill_process();
    }

    /// Ends the process. With a seed the machine loses its power too: of what was not flushed, an
    /// arbitrary part is gone.
    pub async fn kill(&mut self, links: &Rc<Links>, power_loss: Option<u64>) {
        let Some(running) = self.running.take() else {
            return;
        };
        links.set_target(self.id, None).await;
        links.set_replica(self.id, None);
        for task in &running.tasks {
            task.abort();
        }
        match power_loss {
            Some(seed) => self.disk.crash(seed),
            None => self.disk.kill_process(),
        }
        for shard in &running.shards {
            shard.close().await;
        }
        drop(running.store);
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn replica(&self) -> Option<Replica> {
        self.running.as_ref().map(|running| running.replica.clone())
    }

    fn get(&self) -> &Running {
        self.running.as_ref().expect("the node runs")
    }

    pub fn shard(&self) -> &RaftShard {
        &self.get().shards[self.get().host]
    }

    pub fn detector(&self) -> &FailureDetector {
        &self.get().detector
    }

    pub fn store(&self) -> &Store {
        &self.get().store
    }

    pub fn machine(&self) -> Rc<RefCell<TestMachine>> {
        self.get().machine.clone()
    }

    pub fn casts(&self) -> Vec<Bytes> {
        self.get().casts.borrow().clone()
    }

    pub fn tables(&self) -> (u64, u64, u64) {
        self.get().machine.borrow().fingerprint()
    }
}
