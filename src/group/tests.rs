//! A coordinator on one replica whose disk is simulated, and whose writes can be held back: what it
//! decides and tells meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Env, Listener, Network, NetworkFuture, Simulation, Stream};
use corduroy_group::GroupError;
use corduroy_group::classic::{
    JoinAnswer, JoinRequest, Leaving, MemberIdentity, SyncAnswer, SyncRequest,
};
use corduroy_group::consumer::HeartbeatRequest;
use corduroy_group::records::OffsetValue;
use corduroy_group::table::GroupKind;
use corduroy_protocol::ErrorCode;
use corduroy_raft::{
    AddressBook, ClusterTag, Identity, Incarnations, RaftConfig, RaftShard, ReplicaSpec, ShardHooks,
};
use corduroy_record::{
    GroupId, LeaderEpoch, NodeId, Offset, PartitionIndex, ReplicaId, TopicId, TopicPartition,
};
use corduroy_storage::{Disk, IoMode, SimDisk, Store, StoreConfig, recover};
use tokio::sync::{Notify, oneshot};

mod positions;
mod refusals;
mod upkeep;

use super::consumer::Then;
use super::{
    AskedOffset, CONSUMER_OFFSETS, CommitRequest, CommittedOffset, Coordinator,
    FetchOffsetsRequest, GroupCall, OffsetCommit,
};
use crate::controller::{MetadataImage, PartitionInfo, TopicInfo};
use crate::metadata::MetadataView;
use crate::partition::{Changes, Partition, PartitionMachine, PartitionSettings};

const GROUP: &str = "billing";
const TOPIC: &str = "orders";
const OLD: TopicId = TopicId::made_in(1, 1);
const NEW: TopicId = TopicId::made_in(2, 2);
const REPLICA: ReplicaId = ReplicaId::new(7);
const NODE: NodeId = NodeId::new(1);
/// Some day's noon, milliseconds since the Unix epoch.
const NOON_MS: i64 = 1_800_000_000_000;

/// A coordinator that leads alone.
struct World {
    env: Env,
    coordinator: Rc<Coordinator>,
    metadata: MetadataView,
}

fn topic(name: &str, id: TopicId) -> TopicInfo {
    TopicInfo {
        id,
        name: name.to_owned(),
        partitions: vec![PartitionInfo {
            replicas: vec![(REPLICA, NODE)],
        }],
        configs: BTreeMap::new(),
    }
}

/// An image in which [`TOPIC`] has this id, or does not exist.
fn image(version: u64, id: impl Into<Option<TopicId>>) -> Arc<MetadataImage> {
    let mut topics = vec![topic(CONSUMER_OFFSETS, TopicId::from_bytes([9; 16]))];
    topics.extend(id.into().map(|id| topic(TOPIC, id)));
    let settings = [("group.initial.rebalance.delay.ms", "0")];
    Arc::new(MetadataImage {
        version,
        topic_names: topics.iter().map(|t| (t.id, t.name.clone())).collect(),
        topics: topics.into_iter().map(|t| (t.name.clone(), t)).collect(),
        cluster_configs: settings
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..MetadataImage::default()
    })
}

/// Runs a test in simulated time, which goes on when nothing else can.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let test = async { test(World::start().await).await };
        let limit = Duration::from_secs(600);
        tokio::time::timeout(limit, test).await.expect("an end");
    });
}

/// A node's clocks: simulated time, and what the wall shows at the beginning.
fn clocks(unix_millis: i64) -> Env {
    Env::simulated(Simulation {
        seed: 1,
        unix_millis,
        network: Box::new(NoNetwork),
    })
}

struct NoNetwork;

impl Network for NoNetwork {
    fn listen(&self, _addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async { Err(ErrorKind::Unsupported.into()) })
    }

    fn connect(&self, _addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        Box::pin(async { Err(ErrorKind::Unsupported.into()) })
    }
}

impl World {
    async fn start() -> World {
        let env = clocks(NOON_MS);
        let (disk, root): (Arc<dyn Disk>, _) = (Arc::new(SimDisk::new()), PathBuf::from("/data"));
        recover(&disk, &root).expect("an empty disk");
        let config = StoreConfig {
            journal_file_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            reserve_bytes: 0,
            low_bytes: 0,
            critical_bytes: 0,
            io: IoMode::Inline,
            ..StoreConfig::new(root, 0)
        };
        let store = Store::open(disk, config, env.clone()).expect("a store");
        let flushing = store.clone();
        env.spawn_local(async move { flushing.run().await });
        let identity = Identity {
            node: NODE,
            incarnation: 1,
            shard: 0,
            shards: 1,
            cluster: ClusterTag::unknown(),
            incarnations: Incarnations::default(),
        };
        let hooks = ShardHooks {
            forward: Box::new(|_, _| {}),
            shard_of: Box::new(|_| 0),
            on_call: Rc::new(|_, request| Box::pin(async move { request })),
            on_cast: Rc::new(|_, _| {}),
        };
        let raft = RaftShard::new(
            env.clone(),
            RaftConfig::default(),
            identity,
            store.clone(),
            AddressBook::new(),
            hooks,
        );

        let image = image(1, OLD);
        let internal = &image.topics[CONSUMER_OFFSETS];
        let settings = PartitionSettings::resolve(&image, internal, 1);
        let group = internal.group(PartitionIndex::new(0));
        let partition = open(&env, &raft, &store, group, settings).await;
        World::coordinate(env, partition, image).await
    }

    /// Another coordinator of the same log takes over: of another node, with an image and clocks of
    /// its own, or of this one after a restart. What was only in memory is gone.
    async fn succeed(self, image: Arc<MetadataImage>, env: Env) -> World {
        self.coordinator.stop();
        self.coordinator.writer.idle().await;
        World::coordinate(env, self.coordinator.partition.clone(), image).await
    }

    async fn coordinate(env: Env, partition: Rc<Partition>, image: Arc<MetadataImage>) -> World {
        let metadata = MetadataView::new(image);
        let coordinator = Coordinator::new(env.clone(), partition, metadata.clone());
        env.spawn_local(coordinator.clone().run());
        let world = World {
            env,
            coordinator,
            metadata,
        };
        while world.coordinator.serving().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world
    }

    /// The topic is deleted, and another one made of the same name.
    fn recreate_topic(&self) {
        let version = self.metadata.image().version + 1;
        self.metadata.set_image(image(version, NEW));
    }

    /// Alters a setting of the cluster.
    fn set(&self, key: &str, value: &str) {
        let mut image = MetadataImage::clone(&self.metadata.image());
        image.version += 1;
        let configs = &mut image.cluster_configs;
        configs.insert(key.to_owned(), value.to_owned());
        self.metadata.set_image(Arc::new(image));
    }

    fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> GroupCall) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.coordinator.serve(call(reply));
        answer
    }

    fn commit(&self, topic_id: Option<TopicId>, offset: i64) -> oneshot::Receiver<Vec<ErrorCode>> {
        self.commit_as(identity("", -1), topic_id, offset)
    }

    fn commit_as(
        &self,
        identity: MemberIdentity,
        topic_id: Option<TopicId>,
        offset: i64,
    ) -> oneshot::Receiver<Vec<ErrorCode>> {
        self.ask(|reply| GroupCall::Commit {
            group: GROUP.to_owned(),
            request: commit_request(identity, topic_id, offset),
            reply,
        })
    }

    /// What is committed; the topic goes by id, or everything is asked for.
    async fn fetch(&self, topic_id: Option<TopicId>) -> Vec<CommittedOffset> {
        let asked = topic_id.map(|_| AskedOffset {
            partition: place(),
            topic_id,
        });
        let request = FetchOffsetsRequest {
            member: None,
            partitions: asked.map(|asked| vec![asked]),
        };
        let answer = self.ask(|reply| GroupCall::FetchOffsets {
            group: GROUP.to_owned(),
            request,
            reply,
        });
        answer.await.expect("an answer").expect("it coordinates")
    }

    fn join(&self, member_id: &str) -> oneshot::Receiver<JoinAnswer> {
        self.ask(|reply| GroupCall::Join {
            group: GROUP.to_owned(),
            request: join_request(member_id),
            reply,
        })
    }

    fn sync(&self, generation: i32) -> oneshot::Receiver<SyncAnswer> {
        self.ask(|reply| GroupCall::Sync {
            group: GROUP.to_owned(),
            request: sync_request(generation),
            reply,
        })
    }

    fn heartbeat(&self, generation: i32) -> oneshot::Receiver<Result<(), GroupError>> {
        self.ask(|reply| GroupCall::Heartbeat {
            group: GROUP.to_owned(),
            identity: identity("m1", generation),
            reply,
        })
    }

    /// A member alone in its group, whose assignment is durable; its generation.
    async fn settle(&self) -> i32 {
        let joined = self.join("").await.expect("an answer");
        let generation = joined.result.expect("it joins").generation;
        let synced = self.sync(generation).await.expect("an answer");
        assert_eq!(synced.expect("it syncs").assignment, "all");
        generation
    }

    async fn leave(&self) {
        let members = vec![Leaving {
            member_id: "m1".to_owned(),
            instance_id: None,
            reason: None,
        }];
        let left = self.ask(|reply| GroupCall::Leave {
            group: GROUP.to_owned(),
            members,
            reply,
        });
        assert_eq!(left.await.expect("an answer"), Ok(vec![Ok(())]));
    }

    /// A first member of the consumer protocol.
    fn join_consumer(
        &self,
    ) -> oneshot::Receiver<Result<corduroy_group::consumer::HeartbeatAnswer, GroupError>> {
        self.ask(|reply| GroupCall::ConsumerHeartbeat {
            group: GROUP.to_owned(),
            request: consumer_request(),
            reply,
        })
    }

    /// Whether the group's durable state has members.
    fn has_members(&self) -> bool {
        self.has_members_of(GROUP)
    }

    fn has_members_of(&self, group: &str) -> bool {
        let machine = self.coordinator.partition.machine();
        let table = machine.groups().expect("it holds groups");
        table.get(group).is_some_and(|state| state.has_members())
    }
}

fn commit_request(
    identity: MemberIdentity,
    topic_id: Option<TopicId>,
    offset: i64,
) -> CommitRequest {
    CommitRequest {
        identity,
        api_version: 10,
        retention_ms: None,
        offsets: vec![OffsetCommit {
            partition: place(),
            topic_id,
            offset: Offset::new(offset),
            leader_epoch: LeaderEpoch::NONE,
            metadata: String::new(),
            refused: None,
        }],
    }
}

fn join_request(member_id: &str) -> JoinRequest {
    JoinRequest {
        member_id: member_id.to_owned(),
        instance_id: None,
        fresh_member_id: "m1".to_owned(),
        requires_known_member_id: false,
        supports_skip_assignment: true,
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Bytes::new())],
        reason: None,
    }
}

/// By the leader, that everything is its own.
fn sync_request(generation: i32) -> SyncRequest {
    SyncRequest {
        identity: identity("m1", generation),
        protocol_type: None,
        protocol: None,
        assignments: [("m1".to_owned(), Bytes::from_static(b"all"))].into(),
    }
}

/// Of a member of the consumer protocol that joins.
fn consumer_request() -> HeartbeatRequest {
    HeartbeatRequest {
        member_id: "m1".to_owned(),
        fresh_member_id: None,
        member_epoch: 0,
        instance_id: None,
        rack_id: None,
        rebalance_timeout_ms: 10_000,
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        subscribed_topics: Some(vec![TOPIC.to_owned()]),
        subscribed_regex: None,
        server_assignor: None,
        owned: Some(BTreeMap::new()),
    }
}

async fn open(
    env: &Env,
    raft: &RaftShard,
    store: &Store,
    group: GroupId,
    settings: PartitionSettings,
) -> Rc<Partition> {
    let log = store.create_log(group, REPLICA, settings.log_config());
    let log = log.await.expect("a log");
    let name = TopicPartition {
        topic: CONSUMER_OFFSETS.to_owned(),
        partition: PartitionIndex::new(0),
    };
    let role_changed = Rc::new(Notify::new());
    let machine =
        PartitionMachine::new(name.clone(), Changes::default(), role_changed.clone(), true);
    let machine = Rc::new(RefCell::new(machine));
    let spec = ReplicaSpec {
        group,
        replica: REPLICA,
        log,
    };
    let replica = raft.open(spec, machine.clone()).await.expect("it opens");
    let started = replica.initialize(vec![(REPLICA, NODE)]);
    started.await.expect("a group of one");
    let news = Rc::new(Notify::new());
    let partition = Partition::new(
        env.clone(),
        name,
        replica,
        machine,
        settings,
        role_changed,
        news,
    );
    env.spawn_local(partition.clone().run());
    partition
}

fn place() -> TopicPartition {
    TopicPartition {
        topic: TOPIC.to_owned(),
        partition: PartitionIndex::new(0),
    }
}

fn identity(member_id: &str, generation: i32) -> MemberIdentity {
    MemberIdentity {
        member_id: member_id.to_owned(),
        instance_id: None,
        generation,
    }
}

/// Lets everything go on that can.
async fn calm() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Whether nobody has been answered yet.
fn waits<T>(answer: &mut oneshot::Receiver<T>) -> bool {
    matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

fn offset_of(committed: &[CommittedOffset]) -> Vec<Result<Option<i64>, ErrorCode>> {
    let value = |value: &OffsetValue| value.offset.get();
    let values = committed.iter().map(|committed| committed.value.as_ref());
    values
        .map(|found| {
            found
                .map(|found| found.as_ref().map(value))
                .map_err(|code| *code)
        })
        .collect()
}

#[test]
fn a_commit_by_id_is_of_the_topic_that_has_the_name_when_it_is_decided() {
    run(|world| async move {
        let committed = world.commit(Some(OLD), 7).await.expect("an answer");
        assert_eq!(committed, [ErrorCode::None]);
        assert_eq!(offset_of(&world.fetch(Some(OLD)).await), [Ok(Some(7))]);
        // The client's shard has looked the old name up before this.
        world.recreate_topic();
        let late = world.commit(Some(OLD), 8).await.expect("an answer");
        assert_eq!(late, [ErrorCode::UnknownTopicId]);
        assert_eq!(
            offset_of(&world.fetch(Some(NEW)).await),
            [Ok(None)],
            "the new topic has nothing of the old one"
        );
        assert_eq!(
            offset_of(&world.fetch(Some(OLD)).await),
            [Err(ErrorCode::UnknownTopicId)]
        );
    });
}

#[test]
fn a_position_of_a_recreated_topic_lives_and_its_ancestors_is_seen_by_nobody() {
    run(|world| async move {
        let committed = world.commit(Some(OLD), 7).await.expect("an answer");
        assert_eq!(committed, [ErrorCode::None]);
        world.recreate_topic();
        // Before the tombstone, and whoever asks.
        assert!(world.fetch(None).await.is_empty());
        let committed = world.commit(Some(NEW), 3).await.expect("an answer");
        assert_eq!(committed, [ErrorCode::None]);
        calm().await;
        let found = world.fetch(None).await;
        assert_eq!(offset_of(&found), [Ok(Some(3))]);
        assert_eq!(found[0].topic_id, Some(NEW));
        assert_eq!(offset_of(&world.fetch(Some(NEW)).await), [Ok(Some(3))]);
    });
}

/// A generation is told before anything of it is durable (docs/kafka-compat.md says so, and why), an
/// assignment only afterwards.
#[test]
fn an_assignment_is_told_when_it_is_durable() {
    run(|world| async move {
        let held = world.coordinator.writer.hold();
        let joined = world.join("").await.expect("an answer before any write");
        let generation = joined.result.expect("it joins").generation;
        let mut synced = world.sync(generation);
        calm().await;
        assert!(waits(&mut synced), "the assignment is not durable");
        assert!(!world.has_members());
        drop(held);
        let synced = synced.await.expect("an answer").expect("it syncs");
        assert_eq!(synced.assignment, "all");
        assert!(world.has_members());
    });
}

#[test]
fn a_commit_from_outside_takes_along_what_the_last_leave_owes() {
    run(|world| async move {
        world.settle().await;
        let end = || world.coordinator.partition.watermarks().log_end.get();
        let before = end();
        let held = world.coordinator.writer.hold();
        // Answered at once; the record that says so waits.
        world.leave().await;
        let mut committed = world.commit(None, 5);
        calm().await;
        assert!(waits(&mut committed) && world.has_members());
        let owed = world.coordinator.owed(GROUP);
        assert!(owed.is_some(), "the durable state still has the member");
        drop(held);
        assert_eq!(committed.await.expect("an answer"), [ErrorCode::None]);
        assert!(!world.has_members(), "applied with the commit");
        assert_eq!(
            end() - before,
            3,
            "the leave, and the commit with what it owes"
        );
        assert_eq!(
            world.coordinator.owed(GROUP),
            None,
            "nothing is left to say"
        );
    });
}

#[test]
fn who_leads_again_takes_office_when_the_writes_before_are_settled() {
    run(|world| async move {
        let generation = world.settle().await;
        let before = world.coordinator.held().expect("it leads");
        let held = world.coordinator.writer.hold();
        let mut late = world.commit_as(identity("m1", generation), None, 9);
        // As at the end of a lease that is renewed in the same term.
        world.coordinator.abdicate(ErrorCode::NotCoordinator);
        assert_eq!(
            world.coordinator.serving(),
            Err(ErrorCode::CoordinatorLoadInProgress),
            "it leads, and does not know the outcome of its own write"
        );
        let heard = world.heartbeat(generation).await.expect("an answer");
        let refused = heard.expect_err("not in office").code;
        assert_eq!(refused, ErrorCode::CoordinatorLoadInProgress);
        assert!(waits(&mut late));
        drop(held);
        assert_eq!(late.await.expect("an answer"), [ErrorCode::None]);
        calm().await;
        let after = world.coordinator.held().expect("it is in office");
        assert_eq!(after.term, before.term);
        assert_ne!(after, before);
        assert!(!world.coordinator.holds(before));
        let heard = world.heartbeat(generation).await.expect("an answer");
        assert_eq!(heard, Ok(()), "the same generation");
        assert_eq!(offset_of(&world.fetch(None).await), [Ok(Some(9))]);
    });
}

#[test]
fn what_was_decided_in_an_office_is_not_followed_up_in_the_next_one() {
    run(|world| async move {
        let before = world.coordinator.held().expect("it leads");
        world.coordinator.abdicate(ErrorCode::NotCoordinator);
        world.coordinator.held().expect("in office again");
        let (reply, answer) = oneshot::channel();
        let told = corduroy_group::consumer::HeartbeatAnswer {
            member_id: "m1".to_owned(),
            member_epoch: 1,
            heartbeat_interval_ms: 1,
            assignment: None,
        };
        let then = Then::Answer("m1".to_owned(), Box::new(told), reply);
        let coordinator = &world.coordinator;
        coordinator.write_decision(before, GROUP, Vec::new(), then);
        assert!(answer.await.is_err(), "a later coordinator answers");
    });
}

#[test]
fn a_group_is_not_deleted_while_its_first_member_is_on_its_way() {
    run(|world| async move {
        assert_eq!(world.commit(None, 4).await, Ok(vec![ErrorCode::None]));
        let held = world.coordinator.writer.hold();
        let mut joined = world.join_consumer();
        calm().await;
        assert!(waits(&mut joined));
        assert_eq!(
            world.coordinator.judge_delete(GROUP),
            Err(ErrorCode::CoordinatorLoadInProgress)
        );
        drop(held);
        let joined = joined.await.expect("an answer").expect("it joins");
        assert_eq!(joined.member_epoch, 1);
        assert_eq!(
            world.coordinator.judge_delete(GROUP),
            Err(ErrorCode::NonEmptyGroup)
        );
        let machine = world.coordinator.partition.machine();
        let state = machine.groups().and_then(|table| table.get(GROUP));
        let state = state.expect("it is there");
        assert!(matches!(state.kind, GroupKind::Consumer(_)));
        assert_eq!(state.offsets.len(), 1);
    });
}
