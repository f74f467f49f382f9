//! The rows of the suite that measure the nodes themselves: at rest, and when one dies.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Client, Record, Ticket};
use corduroy_env::Env;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::BenchTopic;
use super::report::AnyReport;
use super::spawned::SpawnedCluster;
use super::suite::SuiteArgs;
use super::watch::{Watch, Watched};
use crate::cli::{CliError, CliResult, client_error, plural};

/// Groups go to sleep some seconds after their last write: each look at the nodes' CPU time takes
/// so long, and they rest when a look finds no less than the one before.
const LOOK: Duration = Duration::from_secs(5);
const REST_WAIT_MAX: Duration = Duration::from_secs(120);

/// A look that is within this part of the one before finds "no less".
const STEADY: f64 = 0.9;

/// Partitions, record size and rate of the load under which nodes are killed.
const FAILOVER_PARTITIONS: i32 = 12;
const FAILOVER_RECORD_BYTES: usize = 1024;
const FAILOVER_RECORDS_PER_SECOND: u32 = 1_000;

/// Kills, and how long the load goes on before and after each.
const KILLS: u32 = 5;
const BEFORE_KILL: Duration = Duration::from_secs(1);
const AFTER_KILL: Duration = Duration::from_secs(3);

/// How long a restarted node may take until it is in sync everywhere.
const RETURN_WAIT_MAX: Duration = Duration::from_secs(60);
const RETURN_LOOK: Duration = Duration::from_millis(200);

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodesRow {
    /// A topic without traffic; none at all if there are no partitions.
    AtRest { partitions: i32 },
    /// The longest time without an acknowledgement when a leader is killed.
    Failover,
}

/// The tables that rows stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Failover,
    AtRest,
}

/// The rows of docs/benchmarks.md, in its order.
pub(super) fn rows() -> Vec<NodesRow> {
    vec![
        NodesRow::Failover,
        NodesRow::AtRest { partitions: 0 },
        NodesRow::AtRest { partitions: 1_000 },
    ]
}

/// What nodes use that nobody asks anything of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtRestReport {
    /// "at-rest".
    pub kind: &'static str,
    pub partitions: i32,
    pub replication: i16,
    pub elapsed_seconds: f64,
    pub watched: Vec<Watched>,
    /// Resident memory for each replica, beyond what the nodes took before; `None` without any.
    pub resident_bytes_per_replica: Option<f64>,
}

/// What clients notice of a leader's death.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailoverReport {
    /// "failover".
    pub kind: &'static str,
    pub partitions: i32,
    pub records_per_second: u32,
    /// For each kill: the longest time between two acknowledgements of one partition, milliseconds.
    pub gaps_ms: Vec<f64>,
    pub acknowledged: u64,
    pub failed: u64,
}

impl NodesRow {
    pub(super) fn name(&self) -> String {
        match self {
            NodesRow::AtRest { partitions } => format!(
                "at rest with {}",
                plural(
                    u64::from(partitions.unsigned_abs()),
                    "partition",
                    "partitions"
                )
            ),
            NodesRow::Failover => format!("failover, {KILLS} kills of a leader"),
        }
    }

    pub(super) fn table(&self) -> Table {
        match self {
            NodesRow::AtRest { .. } => Table::AtRest,
            NodesRow::Failover => Table::Failover,
        }
    }

    pub(super) fn head(&self) -> &'static str {
        match self.table() {
            Table::AtRest => {
                "| at rest | cores per node | RSS per node MiB | KiB per replica |\n\
                 |---|---|---|---|\n"
            }
            Table::Failover => {
                "| failover | longest gap of a partition's acks at each kill, ms | acknowledged \
                 | failed |\n|---|---|---|---|\n"
            }
        }
    }

    /// Measures on nodes of its own: what other rows leave behind would be in the numbers.
    pub(super) async fn measure(&self, env: &Env, suite: &SuiteArgs) -> CliResult<AnyReport> {
        let mut cluster =
            SpawnedCluster::start(env, suite.nodes.into(), suite.dir.as_deref()).await?;
        let result = match *self {
            NodesRow::AtRest { partitions } => at_rest(env, suite, &mut cluster, partitions)
                .await
                .map(AnyReport::from),
            NodesRow::Failover => failover(env, suite, &mut cluster)
                .await
                .map(AnyReport::from),
        };
        cluster.stop(env).await;
        result
    }
}

async fn at_rest(
    env: &Env,
    suite: &SuiteArgs,
    cluster: &mut SpawnedCluster,
    partitions: i32,
) -> CliResult<AtRestReport> {
    let client = super::target::wait_for(env, cluster, suite.nodes).await?;
    let replication = i16::from(suite.nodes.min(3));
    rest(env, cluster).await?;
    let before = resident(&look(env, cluster, Duration::ZERO).await?);
    if partitions > 0 {
        let topic = BenchTopic::fresh(env, &client, partitions, Some(replication)).await?;
        topic.wait_for_leaders(env, &client).await?;
    }
    rest(env, cluster).await?;
    // Processor time comes in hundredths of a second: a short look would be all rounding.
    let elapsed = suite.duration.max(LOOK) * 2;
    let watched = look(env, cluster, elapsed).await?;
    let replicas = f64::from(partitions) * f64::from(replication);
    let more = resident(&watched) - before;
    Ok(AtRestReport {
        kind: "at-rest",
        partitions,
        replication,
        elapsed_seconds: elapsed.as_secs_f64(),
        resident_bytes_per_replica: (partitions > 0).then(|| more / replicas),
        watched,
    })
}

/// Waits until the nodes have nothing left to do of their own accord.
async fn rest(env: &Env, cluster: &mut SpawnedCluster) -> CliResult {
    let deadline = env.now() + REST_WAIT_MAX;
    let mut before = f64::MAX;
    loop {
        let cores: f64 = look(env, cluster, LOOK)
            .await?
            .iter()
            .map(|node| node.cores)
            .sum();
        if cores >= before * STEADY || env.now() >= deadline {
            return Ok(());
        }
        before = cores;
    }
}

async fn look(env: &Env, cluster: &mut SpawnedCluster, span: Duration) -> CliResult<Vec<Watched>> {
    cluster.check()?;
    let watch = Watch::start(&cluster.pids()).map_err(CliError::failed)?;
    env.sleep(span).await;
    cluster.check()?;
    Ok(watch.read(span.as_secs_f64()))
}

fn resident(watched: &[Watched]) -> f64 {
    watched.iter().map(|node| node.resident_bytes as f64).sum()
}

/// The acknowledgements of all partitions.
struct Acks {
    last: Vec<Option<Instant>>,
    longest: Duration,
    acknowledged: u64,
    failed: u64,
}

impl Acks {
    fn note(&mut self, partition: usize, is_ok: bool, now: Instant) {
        if !is_ok {
            self.failed += 1;
            return;
        }
        self.acknowledged += 1;
        let before = self
            .last
            .get_mut(partition)
            .and_then(|last| last.replace(now));
        if let Some(before) = before {
            self.longest = self.longest.max(now - before);
        }
    }
}

async fn failover(
    env: &Env,
    suite: &SuiteArgs,
    cluster: &mut SpawnedCluster,
) -> CliResult<FailoverReport> {
    if suite.nodes < 3 {
        return Err(CliError::usage("a failover needs three nodes").into());
    }
    let client = super::target::wait_for(env, cluster, suite.nodes).await?;
    let topic = BenchTopic::fresh(env, &client, FAILOVER_PARTITIONS, Some(3)).await?;
    topic.wait_for_leaders(env, &client).await?;
    let acks = Rc::new(RefCell::new(Acks {
        last: vec![None; FAILOVER_PARTITIONS.unsigned_abs() as usize],
        longest: Duration::ZERO,
        acknowledged: 0,
        failed: 0,
    }));
    let load = env.spawn_local(steady_load(
        env.clone(),
        client.clone(),
        topic.name.clone(),
        acks.clone(),
    ));
    let mut gaps_ms = Vec::new();
    for kill in 0..KILLS {
        env.sleep(BEFORE_KILL).await;
        let victim = leader_of(&client, &topic.name, kill).await?;
        acks.borrow_mut().longest = Duration::ZERO;
        cluster.kill(victim)?;
        env.sleep(AFTER_KILL).await;
        let longest = {
            let acks = acks.borrow();
            // A partition that has not come back is the longest gap of all.
            let open = acks.last.iter().flatten().map(|last| env.now() - *last);
            open.max().unwrap_or_default().max(acks.longest)
        };
        gaps_ms.push(longest.as_secs_f64() * 1e3);
        cluster.restart(victim)?;
        wait_in_sync(env, &client, &topic.name).await?;
    }
    load.abort();
    let acks = acks.borrow();
    Ok(FailoverReport {
        kind: "failover",
        partitions: FAILOVER_PARTITIONS,
        records_per_second: FAILOVER_RECORDS_PER_SECOND,
        gaps_ms,
        acknowledged: acks.acknowledged,
        failed: acks.failed,
    })
}

/// Records at a steady rate, to one partition after the other, until it is aborted.
async fn steady_load(env: Env, client: Client, topic: String, acks: Rc<RefCell<Acks>>) {
    let producer = client.producer().linger(Duration::ZERO).build();
    let value = vec![b'x'; FAILOVER_RECORD_BYTES];
    let mut collectors = JoinSet::new();
    let mut queues = Vec::new();
    for partition in 0..FAILOVER_PARTITIONS.unsigned_abs() as usize {
        let (queue, mut tickets) = mpsc::unbounded_channel::<Ticket>();
        let (acks, env) = (acks.clone(), env.clone());
        collectors.spawn_local(async move {
            while let Some(ticket) = tickets.recv().await {
                let is_ok = ticket.await.is_ok();
                acks.borrow_mut().note(partition, is_ok, env.now());
            }
        });
        queues.push(queue);
    }
    let started = env.now();
    let mut sent: u32 = 0;
    loop {
        let due = started
            + Duration::from_secs_f64(f64::from(sent) / f64::from(FAILOVER_RECORDS_PER_SECOND));
        tokio::time::sleep_until(due).await;
        let partition = sent % FAILOVER_PARTITIONS.unsigned_abs();
        let record = Record::to(topic.as_str())
            .partition(partition.cast_signed())
            .value(&value);
        match (producer.queue(record).await, queues.get(partition as usize)) {
            // The collectors end after their queues.
            (Ok(ticket), Some(queue)) => drop(queue.send(ticket)),
            _ => acks.borrow_mut().failed += 1,
        }
        sent += 1;
    }
}

/// The node (counted from 0) that leads one of the topic's partitions.
async fn leader_of(client: &Client, topic: &str, kill: u32) -> CliResult<usize> {
    let described = client.admin().describe_topic(topic).await;
    let described = described.map_err(|error| client_error(&error, "cannot describe the topic"))?;
    let count = described.partitions.len().max(1);
    let leader = described
        .partitions
        .get(kill as usize % count)
        .and_then(|partition| partition.leader)
        .and_then(|leader| usize::try_from(leader - 1).ok());
    leader.ok_or_else(|| CliError::failed("a partition has no leader to kill").into())
}

async fn wait_in_sync(env: &Env, client: &Client, topic: &str) -> CliResult {
    let deadline = env.now() + RETURN_WAIT_MAX;
    loop {
        if let Ok(described) = client.admin().describe_topic(topic).await {
            let mut partitions = described.partitions.iter();
            if partitions.all(|at| at.isr.len() == at.replicas.len() && at.leader.is_some()) {
                return Ok(());
            }
        }
        if env.now() >= deadline {
            return Err(CliError::failed("a restarted node did not come back in sync").into());
        }
        env.sleep(RETURN_LOOK).await;
    }
}

impl AtRestReport {
    /// The report for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "at rest: {} x {}, {} s\n",
            self.partitions, self.replication, self.elapsed_seconds
        );
        for node in &self.watched {
            text.push_str(&node.line());
            text.push('\n');
        }
        text
    }

    /// The report as a row of its table.
    pub(super) fn markdown_row(&self) -> String {
        let nodes = self.watched.len().max(1) as f64;
        let cores: f64 = self.watched.iter().map(|node| node.cores).sum();
        let replica = self
            .resident_bytes_per_replica
            .map_or_else(|| "-".to_owned(), |bytes| format!("{:.0}", bytes / 1024.0));
        format!(
            "| {} partitions x {} | {:.4} | {:.0} | {replica} |\n",
            self.partitions,
            self.replication,
            cores / nodes,
            resident(&self.watched) / nodes / 1_048_576.0,
        )
    }
}

impl FailoverReport {
    /// The report for people.
    pub(super) fn text(&self) -> String {
        format!("failover: {}\n", self.gaps())
    }

    /// The report as a row of its table.
    pub(super) fn markdown_row(&self) -> String {
        format!(
            "| {} partitions, {} records/s | {} | {} | {} |\n",
            self.partitions,
            self.records_per_second,
            self.gaps(),
            self.acknowledged,
            self.failed
        )
    }

    fn gaps(&self) -> String {
        let gaps: Vec<String> = self.gaps_ms.iter().map(|gap| format!("{gap:.0}")).collect();
        gaps.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_cells_as_its_head() {
        let rest = AtRestReport {
            kind: "at-rest",
            partitions: 10,
            replication: 3,
            elapsed_seconds: 10.0,
            watched: vec![Watched {
                pid: 7,
                cpu_seconds: 0.1,
                cores: 0.01,
                resident_bytes: 64 << 20,
            }],
            resident_bytes_per_replica: Some(2048.0),
        };
        let failover = FailoverReport {
            kind: "failover",
            partitions: 12,
            records_per_second: 1000,
            gaps_ms: vec![120.0, 90.4],
            acknowledged: 7,
            failed: 0,
        };
        let cells = |text: &str| text.lines().next().unwrap_or_default().matches('|').count();
        let rows = [
            (NodesRow::AtRest { partitions: 10 }, rest.markdown_row()),
            (NodesRow::Failover, failover.markdown_row()),
        ];
        for (row, text) in &rows {
            assert_eq!(cells(row.head()), cells(text), "{text}");
        }
        assert_eq!(rows[0].1, "| 10 partitions x 3 | 0.0100 | 64 | 2 |\n");
        assert!(rows[1].1.contains("| 120, 90 |"), "{}", rows[1].1);
    }

    #[test]
    fn the_longest_gap_is_of_one_partition() {
        let mut acks = Acks {
            last: vec![None; 2],
            longest: Duration::ZERO,
            acknowledged: 0,
            failed: 0,
        };
        let start = Env::real().now();
        let after = |millis| start + Duration::from_millis(millis);
        acks.note(0, true, start);
        acks.note(1, true, after(30));
        acks.note(0, true, after(60));
        acks.note(1, false, after(90));
        assert_eq!(acks.longest, Duration::from_millis(60));
        assert_eq!((acks.acknowledged, acks.failed), (3, 1));
    }
}
