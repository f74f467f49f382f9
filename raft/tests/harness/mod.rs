//! A cluster of replicas in one thread: real sockets over cuttable links, simulated disks.

mod link;
mod machine;
mod memory;
mod node;
pub mod script;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Env, Simulation};
use corduroy_raft::{
    Proposal, ProposalObserver, ProposalOutcome, ProposalPayload, RaftConfig, Replica, Role,
};
use corduroy_record::{
    Batch, BatchBuilder, BuilderOptions, GroupId, LogIndex, NodeId, Offset, PartitionIndex,
    ReplicaId, Term, TopicId,
};
use corduroy_storage::EntryHead;

pub use link::{Links, Stop};
pub use machine::TestMachine;
pub use node::TestNode;

/// Patience of every wait: the machine that runs this may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Timing short enough for a test, long enough for a busy machine.
pub fn test_config() -> RaftConfig {
    RaftConfig {
        heartbeat: Duration::from_millis(100),
        election_min: Duration::from_millis(400),
        election_max: Duration::from_millis(800),
        ping_interval: Duration::from_millis(30),
        down_after: Duration::from_millis(250),
        isolated_after: Duration::from_millis(600),
        hibernate_after: Duration::from_secs(3600),
        asleep_beat: Duration::from_millis(200),
        survey_max: Duration::from_millis(100),
        ..RaftConfig::default()
    }
}

/// Runs a test on the only kind of runtime that a shard knows.
pub fn run<F: Future<Output = ()> + 'static>(test: F) {
    run_on(false, test);
}

/// The same with simulated time, which advances when nothing else can. For nodes without peers, and
/// for [`Cluster::simulated`]: sockets know no simulated time.
pub fn run_paused<F: Future<Output = ()> + 'static>(test: F) {
    run_on(true, test);
}

fn run_on<F: Future<Output = ()> + 'static>(paused: bool, test: F) {
    // `RUST_LOG=corduroy_raft=debug,openraft=info` shows what a failing test did.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(120), test)
            .await
            .expect("the test takes too long");
    });
}

/// How a proposal went, filled in as it goes.
#[derive(Clone, Default)]
pub struct Ticket(Rc<RefCell<TicketState>>);

#[derive(Default)]
struct TicketState {
    appended: Option<EntryHead>,
    outcome: Option<ProposalOutcome>,
}

impl Ticket {
    pub fn appended(&self) -> Option<EntryHead> {
        self.0.borrow().appended
    }

    pub fn outcome(&self) -> Option<ProposalOutcome> {
        self.0.borrow().outcome
    }

    pub async fn wait(&self) -> ProposalOutcome {
        wait_for("an outcome", || self.outcome()).await
    }

    pub fn observer(&self) -> Box<dyn ProposalObserver> {
        Box::new(self.clone())
    }
}

impl ProposalObserver for Ticket {
    fn appended(&mut self, head: EntryHead) {
        let before = self.0.borrow_mut().appended.replace(head);
        assert!(before.is_none(), "appended is told once");
    }

    fn finished(self: Box<Self>, outcome: ProposalOutcome) {
        let before = self.0.borrow_mut().outcome.replace(outcome);
        assert!(before.is_none(), "an outcome is told once");
    }
}

/// Polls a condition that no event announces to a test.
pub async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A batch of one record.
pub fn batch(value: &str) -> Batch {
    batch_of(&[value])
}

/// A batch of several records.
pub fn batch_of(values: &[&str]) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for value in values {
        builder
            .push(1, None, Some(value.as_bytes()), &[])
            .expect("small");
    }
    builder.finish()
}

/// Some nodes, one group.
pub struct Cluster {
    pub env: Env,
    pub config: RaftConfig,
    pub group: GroupId,
    pub links: Rc<Links>,
    pub nodes: BTreeMap<i32, TestNode>,
}

/// The replica that node `node` hosts.
pub fn replica_id(node: i32) -> ReplicaId {
    ReplicaId::new(1000 + node as u64)
}

impl Cluster {
    /// Nodes 1 to `count`, not started.
    pub fn new(count: i32, config: RaftConfig) -> Cluster {
        Cluster::on(Env::real(), count, config)
    }

    /// The same within [`run_paused`]: the network knows simulated time too.
    pub fn simulated(count: i32, config: RaftConfig) -> Cluster {
        let env = Env::simulated(Simulation {
            seed: 1,
            unix_millis: 1_700_000_000_000,
            network: Box::new(memory::MemoryNetwork::default()),
        });
        Cluster::on(env, count, config)
    }

    fn on(env: Env, count: i32, config: RaftConfig) -> Cluster {
        let group = GroupId {
            topic: TopicId::new(env.random_uuid()),
            partition: PartitionIndex::new(0),
        };
        let links = Links::new(env.clone());
        let nodes = (1..=count).map(|id| (id, TestNode::new(id))).collect();
        Cluster {
            env,
            config,
            group,
            links,
            nodes,
        }
    }

    /// All nodes started, the group formed out of all of them, and who leads it.
    pub async fn led(count: i32, config: RaftConfig) -> (Cluster, i32) {
        let mut cluster = Cluster::new(count, config);
        let leader = cluster.lead_all().await;
        (cluster, leader)
    }

    /// Starts all nodes, forms the group out of all of them, and waits for its leader.
    pub async fn lead_all(&mut self) -> i32 {
        self.start_all().await;
        let all: Vec<i32> = self.nodes.keys().copied().collect();
        self.leader(&all).await
    }

    /// A running node other than `node`.
    pub fn other_than(&self, node: i32) -> i32 {
        let mut others = self.running().into_iter().filter(|id| *id != node);
        others.next().expect("another node")
    }

    /// Starts all nodes and forms the group out of all of them.
    pub async fn start_all(&mut self) {
        let ids: Vec<i32> = self.nodes.keys().copied().collect();
        for id in &ids {
            self.start(*id).await;
        }
        self.form(&ids).await;
    }

    /// Gives the group its members, on the first of them.
    pub async fn form(&self, ids: &[i32]) {
        let members = ids
            .iter()
            .map(|id| (replica_id(*id), NodeId::new(*id)))
            .collect();
        self.replica(ids[0])
            .initialize(members)
            .await
            .expect("a fresh group");
    }

    pub async fn start(&mut self, id: i32) {
        let all: Vec<i32> = self.nodes.keys().copied().collect();
        let (env, config, group, links) = (
            self.env.clone(),
            self.config.clone(),
            self.group,
            self.links.clone(),
        );
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        node.start(&env, &config, group, &links, &all).await;
    }

    /// The process dies: what its disk was told stays, sockets close.
    pub async fn kill(&mut self, id: i32) {
        self.end(id, None).await;
    }

    /// The machine loses its power: what was not flushed may be gone.
    pub async fn power_off(&mut self, id: i32, seed: u64) {
        self.end(id, Some(seed)).await;
    }

    async fn end(&mut self, id: i32, power_loss: Option<u64>) {
        let links = self.links.clone();
        let node = self.nodes.get_mut(&id).expect("a node of the cluster");
        node.kill(&links, power_loss).await;
    }

    pub fn replica(&self, id: i32) -> Replica {
        self.nodes[&id].replica().expect("the node runs")
    }

    pub fn running(&self) -> Vec<i32> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.is_running())
            .map(|(id, _)| *id)
            .collect()
    }

    /// The one node that leads and is ready, once all `among` follow it.
    pub async fn leader(&self, among: &[i32]) -> i32 {
        wait_for(&format!("a leader of {among:?}"), || {
            let views: Vec<_> = among
                .iter()
                .map(|id| (*id, self.replica(*id).view()))
                .collect();
            let (leader, view) = views
                .iter()
                .find(|(_, v)| v.role == Role::Leader && v.leader_ready)?;
            let all = views.iter().all(|(_, other)| {
                other.term == view.term
                    && other
                        .leader
                        .is_some_and(|(_, node)| node == NodeId::new(*leader))
            });
            all.then_some(*leader)
        })
        .await
    }

    /// Proposes on a node in its present term.
    pub fn propose(&self, id: i32, batch: Batch) -> Ticket {
        let term = self.replica(id).view().term;
        self.propose_in(id, term, batch)
    }

    pub fn propose_in(&self, id: i32, term: Term, batch: Batch) -> Ticket {
        let ticket = Ticket::default();
        let payload = ProposalPayload::Batch(batch);
        self.replica(id)
            .propose(Proposal { payload, term }, ticket.observer());
        ticket
    }

    pub fn propose_internal(&self, id: i32, bytes: &'static [u8]) -> Ticket {
        let term = self.replica(id).view().term;
        let ticket = Ticket::default();
        let payload = ProposalPayload::Internal(Bytes::from_static(bytes));
        self.replica(id)
            .propose(Proposal { payload, term }, ticket.observer());
        ticket
    }

    /// Proposes until it is applied, wherever the leader is.
    pub async fn commit(&self, values: &[&str]) {
        for value in values {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            loop {
                assert!(
                    tokio::time::Instant::now() < deadline,
                    "{value:?} is not committed"
                );
                let leader = self
                    .running()
                    .into_iter()
                    .filter(|id| self.replica(*id).view().role == Role::Leader)
                    .max_by_key(|id| self.replica(*id).view().term);
                if let Some(leader) = leader
                    && let ProposalOutcome::Applied(_) =
                        self.propose(leader, batch(value)).wait().await
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// All committed values on one node, in order, with a check of their offsets.
    pub async fn values(&self, id: i32) -> Vec<String> {
        let replica = self.replica(id);
        let upto = replica.view().high_watermark;
        let mut from = replica.log().state().log_start.offset;
        let mut values = Vec::new();
        while from < upto {
            let batches = replica
                .log()
                .read_offsets(from, upto, 1 << 20)
                .await
                .expect("readable");
            assert!(!batches.is_empty(), "nothing at offset {from}");
            for batch in batches {
                batch.check_crc().expect("an intact batch");
                assert_eq!(
                    batch.header().base_offset,
                    from,
                    "offsets follow each other"
                );
                for record in batch.records(1 << 20).expect("records") {
                    let record = record.expect("a record");
                    values.push(
                        String::from_utf8(record.value.expect("a value").to_vec()).expect("text"),
                    );
                }
                from = batch.header().next_offset();
            }
        }
        values
    }

    /// Waits until all running nodes have applied the same end, then checks that logs, offsets
    /// and tables are the same. Returns the committed values.
    pub async fn agree(&self) -> Vec<String> {
        let running = self.running();
        let leader = self.leader(&running).await;
        self.replica(leader)
            .read_barrier()
            .await
            .expect("a barrier on the leader");
        let view = self.replica(leader).view();
        for id in &running {
            wait_for(&format!("node {id} to apply {}", view.applied), || {
                (self.replica(*id).view().applied >= view.applied).then_some(())
            })
            .await;
        }
        let values = self.values(leader).await;
        let tables = self.nodes[&leader].tables();
        let end = self.replica(leader).log().state();
        for id in &running {
            let other = self.replica(*id);
            assert_eq!(
                other.view().high_watermark,
                view.high_watermark,
                "node {id}"
            );
            assert_eq!(
                other.log().state().next_offset,
                end.next_offset,
                "node {id}"
            );
            assert_eq!(other.log().state().last, end.last, "node {id}");
            assert_eq!(self.nodes[id].tables(), tables, "tables of node {id}");
            let theirs = self.values(*id).await;
            let overlap = theirs.len().min(values.len());
            assert_eq!(
                theirs[theirs.len() - overlap..],
                values[values.len() - overlap..],
                "values of node {id}"
            );
        }
        values
    }

    pub fn log_end(&self, id: i32) -> Option<LogIndex> {
        self.replica(id).log().state().last.map(|(_, index)| index)
    }

    pub fn next_offset(&self, id: i32) -> Offset {
        self.replica(id).log().state().next_offset
    }
}
