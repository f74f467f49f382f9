//! The door against what openraft may answer, and when.

use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::{
    BatchBuilder, BuilderOptions, GroupId, LogIndex, Offset, PartitionIndex, ReplicaId, TopicId,
};
use corduroy_storage::{EntryKind, IoMode, LogConfig, SimDisk, Store, StoreConfig};
use futures::task::{ArcWake, waker};

use super::*;
use crate::config::{AddressBook, ClusterTag, Identity, RaftConfig};
use crate::incarnations::Incarnations;
use crate::shard::{RaftShard, ReplicaSpec, ShardHooks};
use crate::state_machine::StateMachine;

struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _: &[corduroy_storage::AppliedEntry]) {}
    fn tables(&self) -> Bytes {
        Bytes::new()
    }
    fn restore(&mut self, _: Option<Bytes>) -> Result<(), String> {
        Ok(())
    }
    fn event(&mut self, _: &crate::state_machine::ReplicaEvent) {}
}

/// The only replica of its group, which it leads, on a simulated disk.
async fn lone_leader() -> (RaftShard, Rc<Core>) {
    let env = Env::real();
    let (node, id) = (NodeId::new(1), ReplicaId::new(1001));
    let config = StoreConfig {
        journal_file_bytes: 1 << 20,
        reserve_bytes: 0,
        low_bytes: 0,
        critical_bytes: 0,
        io: IoMode::Inline,
        ..StoreConfig::new("/data".into(), 0)
    };
    let store = Store::open(Arc::new(SimDisk::new()), config, env.clone()).expect("a store");
    let flushing = store.clone();
    env.spawn_local(async move { flushing.run().await });
    let group = GroupId {
        topic: TopicId::new(env.random_uuid()),
        partition: PartitionIndex::new(0),
    };
    let log = store
        .create_log(group, id, LogConfig::default())
        .await
        .expect("a log");
    let identity = Identity {
        node,
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
    let shard = RaftShard::new(
        env.clone(),
        RaftConfig {
            // More than that waits at the door.
            propose_window: 2,
            ..RaftConfig::default()
        },
        identity,
        store,
        AddressBook::new(),
        hooks,
    );
    let spec = ReplicaSpec {
        group,
        replica: id,
        log,
    };
    let machine = Rc::new(RefCell::new(Nothing));
    let replica = shard.open(spec, machine).await.expect("it opens");
    replica
        .initialize(vec![(id, node)])
        .await
        .expect("a fresh group");
    let core = replica.core();
    while !core.view().leader_ready {
        env.sleep(std::time::Duration::from_millis(1)).await;
    }
    (shard, core)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// What was told, in the order of the telling.
#[derive(Clone, Default)]
struct Told(Rc<RefCell<Vec<(u32, ProposalOutcome)>>>);

struct Observer(u32, Told);

impl ProposalObserver for Observer {
    fn finished(self: Box<Self>, outcome: ProposalOutcome) {
        self.1.0.borrow_mut().push((self.0, outcome));
    }
}

impl Told {
    fn observer(&self, n: u32) -> Box<dyn ProposalObserver> {
        Box::new(Observer(n, self.clone()))
    }

    fn refused(&self) -> Vec<(u32, RefuseReason)> {
        let told = self.0.borrow();
        let refusals = told.iter().map(|(n, outcome)| match outcome {
            ProposalOutcome::NotAppended(reason) => (*n, *reason),
            other => panic!("{n}: {other:?}"),
        });
        refusals.collect()
    }
}

fn payload(n: u32) -> ProposalPayload {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    builder
        .push(1, None, Some(n.to_string().as_bytes()), &[])
        .expect("small");
    ProposalPayload::Batch(builder.finish())
}

/// A proposal that openraft has, as far as the door knows.
fn depart(core: &Rc<Core>, told: &Told, n: u32, hold: std::time::Duration) -> Rc<Ticket> {
    let now = core.env.now();
    let term = core.term();
    let order = {
        let mut state = core.door.state.borrow_mut();
        if state.term != term {
            assert!(state.begin(term).is_empty());
        }
        state.next_order += 1;
        state.next_order - 1
    };
    core.door.depart(Waiting {
        order,
        term,
        payload: payload(n),
        observer: told.observer(n),
        proposed_at: now,
        deadline: now + hold,
    })
}

fn propose(core: &Rc<Core>, told: &Told, n: u32) {
    let proposal = Proposal {
        payload: payload(n),
        term: core.term(),
    };
    core.door.propose(proposal, told.observer(n));
}

fn lease_expired() -> Option<ClientWriteResult<TypeConfig>> {
    let mut forward = ForwardToLeader::empty();
    forward.reason = ForwardReason::LeaseExpired;
    Some(Err(ClientWriteError::ForwardToLeader(forward)))
}

const AT_ONCE: std::time::Duration = std::time::Duration::ZERO;
const LONG: std::time::Duration = std::time::Duration::from_secs(3600);

/// Law 14. A producer has 3, 4 and 5 in flight. 3 is refused for good; the lease is back
/// before 4 and 5 are appended. Whatever was judged as their successor must not slip past.
#[test]
fn nothing_passes_a_broken_door_before_all_behind_the_refused_one_are_told() {
    run(async {
        let (_shard, core) = lone_leader().await;
        let told = Told::default();
        let [three, four, five] = [3, 4, 5].map(|n| depart(&core, &told, n, AT_ONCE));
        core.door.completed(&core, &three, lease_expired());
        assert!(!core.door.admit(&core, &four));
        propose(&core, &told, 6);
        assert!(!core.door.admit(&core, &five));
        // 4 and 5 are not told yet: who proposes now still counts on them.
        propose(&core, &told, 7);
        while told.0.borrow().len() < 5 {
            tokio::task::yield_now().await;
        }
        let mut refused = told.refused();
        refused.sort_by_key(|(n, _)| *n);
        let behind = |n| (n, RefuseReason::Predecessor);
        assert_eq!(
            refused,
            [
                (3, RefuseReason::LeaseLost),
                behind(4),
                behind(5),
                behind(6),
                behind(7)
            ]
        );
        assert!(!core.door.state.borrow().broken);
        // All have heard of it: the door is open.
        told.0.borrow_mut().clear();
        propose(&core, &told, 8);
        while told.0.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(
            told.0.borrow()[0],
            (8, ProposalOutcome::Applied(_))
        ));
    });
}

/// The same when the lease is not back: the later ones have time left, and fail all the same.
#[test]
fn what_was_in_flight_behind_a_refused_one_is_not_held() {
    run(async {
        let (_shard, core) = lone_leader().await;
        let told = Told::default();
        let three = depart(&core, &told, 3, AT_ONCE);
        let four = depart(&core, &told, 4, LONG);
        core.door.completed(&core, &three, lease_expired());
        core.door.completed(&core, &four, lease_expired());
        let expected = [(3, RefuseReason::LeaseLost), (4, RefuseReason::Predecessor)];
        assert_eq!(told.refused(), expected);
    });
}

/// While the lease is won back nothing overtakes what is about to be proposed again.
#[test]
fn what_is_proposed_while_the_lease_is_won_back_queues_behind() {
    run(async {
        let (_shard, core) = lone_leader().await;
        let told = Told::default();
        let [one, two] = [1, 2].map(|n| depart(&core, &told, n, LONG));
        core.door.completed(&core, &one, lease_expired());
        propose(&core, &told, 3);
        assert!(!core.door.admit(&core, &two), "a void in its place");
        propose(&core, &told, 4);
        while told.0.borrow().len() < 4 {
            tokio::task::yield_now().await;
        }
        let told = told.0.borrow();
        let offsets: Vec<(u32, i64)> = told
            .iter()
            .map(|(n, outcome)| match outcome {
                ProposalOutcome::Applied(head) => (*n, head.base_offset.get()),
                other => panic!("{n}: {other:?}"),
            })
            .collect();
        assert_eq!(offsets, [(1, 0), (2, 1), (3, 2), (4, 3)]);
    });
}

#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl ArcWake for Wakes {
    fn wake_by_ref(wakes: &Arc<Self>) {
        wakes.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// openraft may take as long as a slow disk: the shard's core is not spent on waiting for it.
#[test]
fn waiting_for_what_is_in_flight_wakes_nobody_until_it_has_landed() {
    run(async {
        let (_shard, core) = lone_leader().await;
        let told = Told::default();
        let [one, two] = [1, 2].map(|n| depart(&core, &told, n, LONG));
        let wakes = Arc::new(Wakes::default());
        let woken = || wakes.0.load(std::sync::atomic::Ordering::Relaxed);
        let waker = waker(wakes.clone());
        let mut cx = std::task::Context::from_waker(&waker);
        let mut empty = Box::pin(core.door.confirm(&core));
        assert!(empty.as_mut().poll(&mut cx).is_pending());
        tokio::task::yield_now().await;
        core.door.land(&one);
        assert_eq!(woken(), 0, "nothing to do yet");
        core.door.land(&two);
        assert_eq!(woken(), 1);
        assert!(empty.as_mut().poll(&mut cx).is_ready());
    });
}

/// What a former instance left behind does not count as landed in the next one's order.
#[test]
fn tickets_of_a_former_instance_do_not_land_in_the_next() {
    run(async {
        let (_shard, core) = lone_leader().await;
        let told = Told::default();
        let old = depart(&core, &told, 1, LONG);
        core.door.restart();
        let new = depart(&core, &told, 2, LONG);
        core.door.completed(&core, &old, None);
        assert_eq!(core.door.state.borrow().in_flight, 1, "the new one");
        assert!(!core.door.admit(&core, &old));
        assert!(core.door.admit(&core, &new));
        new.placed(EntryHead {
            term: core.term(),
            index: LogIndex::new(9),
            base_offset: Offset::ZERO,
            records: 1,
            kind: EntryKind::Batch,
        });
        assert_eq!(told.refused(), [(1, RefuseReason::Stopped)]);
    });
}
