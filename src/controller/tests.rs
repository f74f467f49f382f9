//! The controller of several nodes in one process, over real sockets and real disks.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Env, Listener};
use corduroy_protocol::ErrorCode;
use corduroy_raft::{
    AddressBook, ClusterTag, Identity as RaftIdentity, Incarnations, RaftConfig, RaftShard,
    ShardHooks, read_hello, serve_anonymous,
};
use corduroy_record::{NodeId, ReplicaId};
use corduroy_storage::{Disk, IoMode, RealDisk, SimDisk, Store, StoreConfig, recover};
use tokio::task::{JoinHandle, LocalSet};
use uuid::Uuid;

use super::calls::{Answer, Call, decode_answer, encode_call};
use super::records::NodeRecord;
use super::requests::{Reply, Request};
use super::*;
use crate::config::NodeConfig;

mod twins;
mod voters;

/// Longer than any of this may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test);
}

/// Waits until a condition holds.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn raft_config() -> RaftConfig {
    RaftConfig {
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(200),
        election_max: Duration::from_millis(400),
        ..RaftConfig::default()
    }
}

/// A node that has only a controller.
struct Mini {
    controller: Controller,
    handle: ControllerHandle,
    image: Rc<RefCell<Arc<MetadataImage>>>,
    raft: RaftShard,
    store: Store,
    acceptor: JoinHandle<()>,
}

impl Mini {
    async fn start(
        identity: Identity,
        dir: &Path,
        listener: Listener,
    ) -> Result<Mini, ControllerError> {
        Mini::start_on(Arc::new(RealDisk), identity, dir, listener).await
    }

    async fn start_on(
        disk: Arc<dyn Disk>,
        identity: Identity,
        dir: &Path,
        listener: Listener,
    ) -> Result<Mini, ControllerError> {
        let env = Env::real();
        recover(&disk, dir).expect("recovers");
        let store = Store::open(
            disk.clone(),
            StoreConfig {
                io: IoMode::Inline,
                reserve_bytes: 0,
                ..StoreConfig::new(dir.to_owned(), 0)
            },
            env.clone(),
        )
        .expect("opens");
        env.spawn_local(store.clone().run());
        let book = AddressBook::new();
        let slot: Rc<RefCell<Option<Controller>>> = Rc::default();
        let answering = slot.clone();
        let raft = RaftShard::new(
            env.clone(),
            raft_config(),
            RaftIdentity {
                node: identity.node,
                incarnation: env.random_u64(),
                shard: 0,
                shards: 1,
                cluster: ClusterTag::unknown(),
                incarnations: Incarnations::default(),
            },
            store.clone(),
            book.clone(),
            ShardHooks {
                forward: Box::new(|_, _| {}),
                shard_of: Box::new(|_| 0),
                on_call: Rc::new(move |from, request| {
                    let controller = answering.borrow().clone();
                    Box::pin(async move {
                        match controller {
                            Some(controller) => controller.on_call(from, request).await,
                            None => Bytes::new(),
                        }
                    })
                }),
                on_cast: Rc::new(|_, _| {}),
            },
        );
        let rpc = listener.local_addr().expect("bound");
        let adopting = raft.clone();
        let spawner = env.clone();
        let acceptor = env.spawn_local(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let raft = adopting.clone();
                spawner.spawn_local(async move {
                    if let Ok(hello) = read_hello(&mut stream).await {
                        raft.adopt(stream, hello);
                    }
                });
            }
        });
        let image = Rc::new(RefCell::new(Arc::new(MetadataImage::default())));
        let published = image.clone();
        let (handle, inbox) = ControllerHandle::channel(&env);
        let controller = Controller::start(ControllerParts {
            env,
            raft: raft.clone(),
            store: store.clone(),
            book,
            identity,
            file: IdentityFile::new(disk, dir),
            config: Arc::new(NodeConfig::default()),
            addresses: addresses(rpc),
            inbox,
            hooks: ControllerHooks {
                publish: Box::new(move |image| *published.borrow_mut() = image),
                leader_changed: Box::new(|_| {}),
            },
        })
        .await?;
        *slot.borrow_mut() = Some(controller.clone());
        Ok(Mini {
            controller,
            handle,
            image,
            raft,
            store,
            acceptor,
        })
    }

    fn image(&self) -> Arc<MetadataImage> {
        self.image.borrow().clone()
    }

    fn has_topic(&self, name: &str) -> bool {
        self.image().topics.contains_key(name)
    }

    async fn create(&self, name: &str) -> Result<TopicInfo, TopicError> {
        let topics = vec![NewTopic::with_defaults(name)];
        self.handle
            .create_topics(topics, false, PATIENCE)
            .await
            .remove(0)
    }

    async fn stop(self) {
        self.acceptor.abort();
        self.raft.close().await;
        self.store.close().await.expect("closes");
    }
}

fn addresses(rpc: SocketAddr) -> Addresses {
    Addresses {
        kafka: HostPort::from(rpc),
        rpc,
        admin: None,
    }
}

async fn listen(addr: SocketAddr) -> Listener {
    Env::real().listen(addr).await.expect("a port")
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn record(id: i32, rpc: SocketAddr) -> NodeRecord {
    NodeRecord {
        id,
        uuid: [id as u8; 16],
        controller_replica: id as u64,
        kafka_host: rpc.ip().to_string(),
        kafka_port: rpc.port(),
        rpc,
        admin: None,
        rack: None,
    }
}

fn founder(id: i32, founding: &Founding) -> Identity {
    Identity {
        uuid: Uuid::from_bytes([id as u8; 16]),
        node: NodeId::new(id),
        controller_replica: ReplicaId::new(id as u64),
        cluster_id: None,
        controller_created: false,
        initialize: id == 1,
        members: founding.nodes.clone(),
        founding: Some(founding.clone()),
    }
}

struct Trio {
    _dir: tempfile::TempDir,
    dirs: Vec<PathBuf>,
    addrs: Vec<SocketAddr>,
    nodes: Vec<Option<Mini>>,
}

impl Trio {
    async fn start() -> Trio {
        let dir = tempfile::tempdir().expect("a directory");
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(listen(anywhere()).await);
        }
        let addrs: Vec<SocketAddr> = listeners
            .iter()
            .map(|l| l.local_addr().expect("bound"))
            .collect();
        let founding = Founding {
            nodes: (1..)
                .zip(&addrs)
                .map(|(id, addr)| record(id, *addr))
                .collect(),
            configs: [("num.partitions".to_owned(), "2".to_owned())].into(),
        };
        let mut trio = Trio {
            dirs: Vec::new(),
            addrs,
            nodes: Vec::new(),
            _dir: dir,
        };
        for (id, listener) in (1..).zip(listeners) {
            let path = trio._dir.path().join(format!("n{id}"));
            std::fs::create_dir_all(&path).expect("a directory");
            let identity = founder(id, &founding);
            let node = Mini::start(identity, &path, listener)
                .await
                .expect("starts");
            trio.dirs.push(path);
            trio.nodes.push(Some(node));
        }
        for node in trio.living() {
            tokio::time::timeout(PATIENCE, node.controller.joined())
                .await
                .expect("forms");
        }
        trio
    }

    fn living(&self) -> impl Iterator<Item = &Mini> {
        self.nodes.iter().flatten()
    }

    async fn leader(&self) -> usize {
        let leads = |node: &Option<Mini>| node.as_ref().is_some_and(|n| n.controller.is_leader());
        eventually("a leader", || self.nodes.iter().any(leads)).await;
        self.nodes.iter().position(leads).expect("just seen")
    }

    async fn stop(&mut self, place: usize) {
        self.nodes[place].take().expect("lives").stop().await;
    }

    async fn restart(&mut self, place: usize) {
        let file = IdentityFile::new(Arc::new(RealDisk), &self.dirs[place]);
        let identity::Stored::Placed(identity) = file.load().expect("reads") else {
            panic!("it had a place");
        };
        let listener = listen(self.addrs[place]).await;
        let node = Mini::start(identity, &self.dirs[place], listener)
            .await
            .expect("starts");
        self.nodes[place] = Some(node);
    }
}

#[test]
fn three_founders_form_one_cluster_and_share_its_metadata() {
    run(async {
        let trio = Trio::start().await;
        let ids: Vec<Uuid> = trio.living().map(|node| node.image().cluster_id).collect();
        assert!(
            ids.iter().all(|id| *id == ids[0] && !id.is_nil()),
            "{ids:?}"
        );

        // Asked anywhere, seen everywhere.
        for (place, node) in trio.living().enumerate() {
            let name = format!("topic-{place}");
            let topic = node.create(&name).await.expect("created");
            assert_eq!(topic.partitions.len(), 2, "the founders' own default");
            assert_eq!(topic.replication_factor(), 3);
            for other in trio.living() {
                eventually("the topic is seen", || other.has_topic(&name)).await;
            }
        }
        let again = trio.living().next().expect("lives").create("topic-1").await;
        assert_eq!(
            again.expect_err("exists").code,
            ErrorCode::TopicAlreadyExists
        );

        let mut firsts = Vec::new();
        for node in trio.living() {
            firsts.push(
                node.handle
                    .allocate_producer_ids()
                    .await
                    .expect("a block")
                    .start,
            );
        }
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts.len(), 3, "no block is handed out twice");

        let alteration = ConfigAlteration {
            resource: ConfigResource::Cluster,
            steps: vec![(
                "replica.lag.time.max.ms".into(),
                ConfigStep::Set("900".into()),
            )],
        };
        let node = trio.living().last().expect("lives");
        let altered = node
            .handle
            .alter_configs(vec![alteration], false, PATIENCE)
            .await;
        assert_eq!(altered, [Ok(())]);
        for other in trio.living() {
            let lag = || other.image().cluster().replica_lag_time_max;
            eventually("the setting is seen", || {
                lag() == Duration::from_millis(900)
            })
            .await;
        }
    });
}

#[test]
fn the_controller_survives_its_leader_and_a_node_comes_back() {
    run(async {
        let mut trio = Trio::start().await;
        trio.living()
            .next()
            .expect("lives")
            .create("before")
            .await
            .expect("created");
        let place = trio.leader().await;
        trio.stop(place).await;
        let survivor = trio.living().next().expect("lives");
        survivor
            .create("without")
            .await
            .expect("two of three decide");
        trio.restart(place).await;
        let returned = trio.nodes[place].as_ref().expect("lives");
        eventually("the topics are seen", || {
            returned.has_topic("before") && returned.has_topic("without")
        })
        .await;

        let place = trio.leader().await;
        trio.nodes[place]
            .as_ref()
            .expect("lives")
            .controller
            .transfer_away()
            .await;
        trio.nodes[place]
            .as_ref()
            .expect("lives")
            .create("after")
            .await
            .expect("created");
        assert_ne!(trio.leader().await, place, "the leadership moved");
    });
}

#[test]
fn a_request_that_is_sent_twice_is_carried_out_once() {
    run(async {
        let trio = Trio::start().await;
        let call = encode_call(&Call::Execute {
            request: [5; 16],
            body: Request::CreateTopics {
                topics: vec![NewTopic::with_defaults("once")],
                validate_only: false,
            },
        })
        .expect("encodes");
        let mut replies = Vec::new();
        let leader = trio.leader().await;
        let leader = &trio.nodes[leader].as_ref().expect("lives").controller;
        for _ in 0..2 {
            let answer = leader.on_call(NodeId::new(1), call.clone()).await;
            match decode_answer(&answer).expect("decodes") {
                Answer::Reply(Reply::Topics(topics)) => replies.push(topics),
                other => panic!("{other:?}"),
            }
        }
        assert!(replies[0][0].is_ok(), "{replies:?}");
        assert_eq!(replies[0], replies[1], "the second time it is remembered");
    });
}

#[test]
fn a_fourth_node_joins_and_a_stranger_with_a_taken_id_does_not() {
    run(async {
        let mut trio = Trio::start().await;
        let listener = listen(anywhere()).await;
        let rpc = listener.local_addr().expect("bound");
        let claim = |node| NodeClaim {
            uuid: [44; 16],
            node,
            kafka_host: "127.0.0.1".into(),
            kafka_port: 1,
            rpc,
            admin: None,
            rack: None,
        };
        let ask = |request: u8, node| {
            let join = Call::Join {
                request: [request; 16],
                claim: claim(node),
            };
            let controller = trio.nodes[1].as_ref().expect("lives").controller.clone();
            async move {
                let call = encode_call(&join).expect("encodes");
                match decode_answer(&controller.on_call(NodeId::new(-1), call).await) {
                    Ok(Answer::Reply(reply)) => reply,
                    other => panic!("{other:?}"),
                }
            }
        };
        let Reply::Refused(refusal) = ask(1, Some(2)).await else {
            panic!("node 2 is another")
        };
        assert!(
            refusal.message.contains("decommission 2"),
            "{}",
            refusal.message
        );
        let Reply::Node(grant) = ask(2, None).await else {
            panic!("it may join")
        };
        assert_eq!((grant.node, grant.nodes.len()), (4, 4));

        let identity = Identity {
            uuid: Uuid::from_bytes([44; 16]),
            node: NodeId::new(grant.node),
            controller_replica: ReplicaId::new(grant.controller_replica),
            cluster_id: Some(Uuid::from_bytes(grant.cluster_id)),
            controller_created: false,
            initialize: false,
            founding: None,
            members: grant.nodes,
        };
        let dir = trio._dir.path().join("n4");
        std::fs::create_dir_all(&dir).expect("a directory");
        let fourth = Mini::start(identity, &dir, listener).await.expect("starts");
        tokio::time::timeout(PATIENCE, fourth.controller.joined())
            .await
            .expect("joins");
        let topic = fourth.create("by-four").await.expect("created");
        assert_eq!(topic.replication_factor(), 3);
        trio.nodes.push(Some(fourth));
        for node in trio.living() {
            eventually("the topic is seen", || node.has_topic("by-four")).await;
            assert_eq!(node.image().nodes.len(), 4);
        }
    });
}

#[test]
fn a_single_node_remembers_and_a_lost_log_is_refused() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let file = IdentityFile::new(Arc::new(RealDisk), dir.path());
        let listener = listen(anywhere()).await;
        let rpc = listener.local_addr().expect("bound");
        let formation = Formation::new(
            Env::real(),
            &NodeConfig::default(),
            file.clone(),
            addresses(rpc),
        );
        let identity = formation.run().await.expect("a cluster of its own");
        assert_eq!(identity.node, NodeId::new(1));
        let node = Mini::start(identity, dir.path(), listener)
            .await
            .expect("starts");
        tokio::time::timeout(PATIENCE, node.controller.joined())
            .await
            .expect("forms");
        node.create("kept").await.expect("created");
        let cluster_id = node.image().cluster_id;
        let written = || match file.load() {
            Ok(identity::Stored::Placed(identity)) => identity.cluster_id == Some(cluster_id),
            _ => false,
        };
        eventually("the cluster's id is in the identity file", written).await;
        node.stop().await;

        // Another id for the same directory.
        let config = NodeConfig {
            node_id: Some(NodeId::new(2)),
            ..NodeConfig::default()
        };
        let formation = Formation::new(Env::real(), &config, file.clone(), addresses(rpc));
        let error = formation
            .run()
            .await
            .expect_err("it is node 1's")
            .to_string();
        assert!(error.starts_with("cannot start node 2"), "{error}");
        assert!(error.contains("--node-id 1"), "{error}");

        let formation = Formation::new(
            Env::real(),
            &NodeConfig::default(),
            file.clone(),
            addresses(rpc),
        );
        let identity = formation.run().await.expect("known");
        let node = Mini::start(identity.clone(), dir.path(), listen(rpc).await).await;
        let node = node.expect("starts");
        tokio::time::timeout(PATIENCE, node.controller.joined())
            .await
            .expect("leads again");
        eventually("the topic is there", || node.has_topic("kept")).await;
        assert_eq!(node.image().cluster_id, cluster_id);
        node.stop().await;

        for entry in std::fs::read_dir(dir.path()).expect("lists") {
            let path = entry.expect("an entry").path();
            if path != file.path() {
                let gone = if path.is_dir() {
                    std::fs::remove_dir_all(&path)
                } else {
                    std::fs::remove_file(&path)
                };
                gone.expect("removes");
            }
        }
        let error = Mini::start(identity, dir.path(), listen(rpc).await).await;
        let error = error.err().expect("its votes are gone").to_string();
        assert!(
            error.contains("missing") && error.contains("fresh id"),
            "{error}"
        );
    });
}

#[test]
fn a_node_whose_controller_replica_stopped_says_so() {
    run(async {
        let disk = SimDisk::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let dir = Path::new("/node");
        disk.create_dir_all(dir).expect("a directory");
        let file = IdentityFile::new(shared.clone(), dir);
        let listener = listen(anywhere()).await;
        let rpc = listener.local_addr().expect("bound");
        let config = NodeConfig::default();
        let formation = Formation::new(Env::real(), &config, file, addresses(rpc));
        let identity = formation.run().await.expect("a cluster of its own");
        let node = Mini::start_on(shared, identity, dir, listener)
            .await
            .expect("starts");
        tokio::time::timeout(PATIENCE, node.controller.joined())
            .await
            .expect("forms");
        disk.fail_flush("", 0);
        let error = node.create("lost").await.expect_err("the disk failed");
        assert_eq!(error.code, ErrorCode::KafkaStorageError, "{error}");
        for words in ["controller has stopped", "ask another node"] {
            assert!(error.message.contains(words), "{error}");
        }
    });
}

/// Starts to look for a place with an empty disk, its rpc port answering meanwhile.
#[expect(
    clippy::disallowed_methods,
    reason = "the task's value is the test's; the seam's tasks have none"
)]
fn seek(
    listener: Listener,
    dir: &Path,
    seeds: &[SocketAddr],
    node_id: Option<i32>,
) -> JoinHandle<Result<Identity, ControllerError>> {
    let env = Env::real();
    std::fs::create_dir_all(dir).expect("a directory");
    let config = NodeConfig {
        node_id: node_id.map(NodeId::new),
        seeds: seeds.to_vec(),
        ..NodeConfig::default()
    };
    let file = IdentityFile::new(Arc::new(RealDisk), dir);
    let rpc = listener.local_addr().expect("bound");
    let formation = Formation::new(env.clone(), &config, file, addresses(rpc));
    let answering = formation.clone();
    let spawner = env.clone();
    let acceptor = env.spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let formation = answering.clone();
            spawner.spawn_local(async move {
                let Ok(hello) = read_hello(&mut stream).await else {
                    return;
                };
                let answer = move |request: Bytes| {
                    let answer = formation.answer(&request);
                    async move { answer }
                };
                // A caller that goes away is its own business.
                let _ = serve_anonymous(stream, hello, answer).await;
            });
        }
    });
    tokio::task::spawn_local(async move {
        let place = formation.run().await;
        if place.is_err() {
            // As a process that ends.
            acceptor.abort();
        }
        place
    })
}

async fn found(task: JoinHandle<Result<Identity, ControllerError>>) -> Result<Identity, String> {
    let identity = tokio::time::timeout(PATIENCE, task)
        .await
        .expect("it ends")
        .expect("no panic");
    identity.map_err(|error| error.to_string())
}

#[test]
fn seeds_with_empty_disks_agree_on_who_is_who() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(listen(anywhere()).await);
        }
        let seeds: Vec<SocketAddr> = listeners
            .iter()
            .map(|l| l.local_addr().expect("bound"))
            .collect();
        let mut tasks = Vec::new();
        for (place, listener) in listeners.into_iter().enumerate() {
            // The second one claims an id of its own.
            let claim = (place == 1).then_some(20);
            let path = dir.path().join(place.to_string());
            tasks.push(seek(listener, &path, &seeds, claim));
        }
        let mut identities = Vec::new();
        for task in tasks {
            identities.push(found(task).await.expect("a place"));
        }
        let ids: Vec<i32> = identities
            .iter()
            .map(|identity| identity.node.get())
            .collect();
        assert_eq!(ids, [1, 20, 3]);
        let first = identities[0].founding.clone();
        assert!(first.is_some() && identities.iter().all(|identity| identity.founding == first));
        let starters: Vec<bool> = identities
            .iter()
            .map(|identity| identity.initialize)
            .collect();
        assert_eq!(
            starters,
            [true, false, false],
            "one replica alone starts the group"
        );
    });
}

#[test]
fn seeds_that_disagree_refuse_and_say_why() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (listen(anywhere()).await, listen(anywhere()).await);
        let addr = |listener: &Listener| listener.local_addr().expect("bound");
        let seeds = [addr(&one), addr(&two)];
        let swapped = [seeds[1], seeds[0]];
        let one = seek(one, &dir.path().join("1"), &seeds, None);
        let two = seek(two, &dir.path().join("2"), &swapped, None);
        for task in [one, two] {
            let error = found(task).await.expect_err("the lists differ");
            assert!(
                error.contains("the seeds disagree") && error.contains("same order"),
                "{error}"
            );
        }
    });
}
