//! `bench commits`: how many offset commits a cluster takes.
//!
//! Each group has one member, which has a connection to the group's coordinator and sends its next
//! commit as soon as one of those on their way is answered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use corduroy_client::Client;
use corduroy_env::Env;
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse, TopicName};
use corduroy_protocol::{ErrorCode, Response, StrBytes};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::group::classic::ClassicMember;
use super::group::{allow_descriptors, any_broker, delete_group};
use super::load::BenchTopic;
use super::produce::own_cpu_seconds;
use super::report::{Latencies, LatencySummary};
use super::watch::{Watch, Watched};
use super::wire::{Link, text};
use crate::cli::{CliError, CliResult, Interrupt, parse_duration, plural};

/// How long the members may take to join, and the last answers to come.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// File descriptors that this process needs besides one for each group.
const DESCRIPTORS_BESIDE: u64 = 256;

/// `bench commits`.
#[derive(Clone, Debug, Args)]
pub struct CommitsArgs {
    /// Groups, each with one member that commits
    #[arg(short = 'g', long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub groups: u32,

    /// Partitions in each commit
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: i32,

    /// Commits of a member on their way at once
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub in_flight: u32,

    /// Replicas of the topic [default: the cluster's]
    #[arg(short = 'r', long, value_name = "N",
          value_parser = clap::value_parser!(i16).range(1..=100))]
    pub replication: Option<i16>,

    /// How long commits are counted
    #[arg(long, alias = "for", value_name = "DURATION", default_value = "10s",
          value_parser = parse_duration)]
    pub duration: Duration,

    /// How long commits are made before they count
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub warm_up: Duration,

    /// Report the CPU and memory of this process, a node for instance; repeatable
    #[arg(long, value_name = "PID")]
    pub watch_pid: Vec<u32>,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommitsReport {
    /// "commits".
    pub kind: &'static str,
    pub groups: usize,
    /// Nodes that coordinate one group at least.
    pub coordinators: usize,
    /// Partitions in each commit.
    pub partitions: usize,
    /// Of each group.
    pub in_flight: usize,
    /// Answered without an error, for any partition.
    pub commits: u64,
    pub failed: u64,
    pub elapsed_seconds: f64,
    pub commits_per_second: f64,
    /// Commits for each CPU second of all watched processes; `None` if nobody is watched.
    pub commits_per_core_second: Option<f64>,
    pub latency: Option<LatencySummary>,
    /// CPU seconds of this process.
    pub client_cpu_seconds: f64,
    pub watched: Vec<Watched>,
}

/// Measures against the processes `pids`, with a topic and groups that exist for this alone.
pub(super) async fn measure(
    env: &Env,
    client: &Client,
    args: &CommitsArgs,
    pids: &[u32],
    interrupt: &mut Interrupt,
) -> CliResult<CommitsReport> {
    allow_descriptors(u64::from(args.groups) + DESCRIPTORS_BESIDE);
    let topic = BenchTopic::fresh(env, client, args.partitions, args.replication).await?;
    let work = async |topic: &BenchTopic| measure_on(env, client, args, pids, topic).await;
    topic.during(client, interrupt, work).await
}

async fn measure_on(
    env: &Env,
    client: &Client,
    args: &CommitsArgs,
    pids: &[u32],
    topic: &BenchTopic,
) -> CliResult<CommitsReport> {
    topic.wait_for_leaders(env, client).await?;
    let tag = env.random_u64() as u32;
    let groups: Vec<String> = (0..args.groups)
        .map(|number| format!("bench-{tag:08x}-{number}"))
        .collect();
    let entrance = enter(env, client, &groups, topic).await?;
    let coordinators = entrance.coordinators;
    let mut committers: Vec<Committer> = entrance
        .members
        .into_iter()
        .map(|member| Committer::new(env, member, topic, args.in_flight as usize))
        .collect();

    committers = run_all(env, committers, args.warm_up, &Rc::default()).await?;
    let tally = Rc::<RefCell<Tally>>::default();
    let watch = Watch::start(pids).map_err(CliError::failed)?;
    let cpu = own_cpu_seconds();
    let started = env.now();
    let committers = run_all(env, committers, args.duration, &tally).await?;
    let elapsed_seconds = (env.now() - started).as_secs_f64();
    let client_cpu_seconds = own_cpu_seconds() - cpu;
    let watched = watch.read(elapsed_seconds);

    for mut committer in committers {
        committer.member.leave().await?;
    }
    for group in &groups {
        delete_group(env, client, group).await;
    }
    let tally = tally.take();
    if let Some(code) = tally.first_error {
        let code = ErrorCode::from_code(code);
        if tally.commits == 0 {
            return Err(CliError::failed(format!("no commit succeeded: {code:?}")).into());
        }
        eprintln!(
            "warning: {} commits failed, the first one: {code:?}",
            tally.failed
        );
    }
    let node_cpu: f64 = watched.iter().map(|watched| watched.cpu_seconds).sum();
    Ok(CommitsReport {
        kind: "commits",
        groups: groups.len(),
        coordinators,
        partitions: topic.partitions as usize,
        in_flight: args.in_flight as usize,
        commits: tally.commits,
        failed: tally.failed,
        elapsed_seconds,
        commits_per_second: tally.commits as f64 / elapsed_seconds.max(f64::MIN_POSITIVE),
        commits_per_core_second: (node_cpu > 0.0).then(|| tally.commits as f64 / node_cpu),
        latency: tally.latencies.summary(),
        client_cpu_seconds,
        watched,
    })
}

struct Entrance {
    members: Vec<ClassicMember>,
    coordinators: usize,
}

/// One member in each group, all joined.
async fn enter(
    env: &Env,
    client: &Client,
    groups: &[String],
    topic: &BenchTopic,
) -> CliResult<Entrance> {
    let mut any = Link::negotiate(env, &any_broker(client).await?).await?;
    let places = any.find_coordinators(groups).await?;
    let mut versions = HashMap::new();
    let mut tasks = JoinSet::new();
    for (group, place) in groups.iter().zip(&places) {
        let link = match versions.get(place) {
            Some(known) => Link::open(env, place, known).await?,
            None => {
                let link = Link::negotiate(env, place).await?;
                versions.insert(place.clone(), link.versions().clone());
                link
            }
        };
        let mut member = ClassicMember::new(env, link, group, &topic.name, topic.partitions);
        tasks.spawn_local(async move {
            member.join().await?;
            CliResult::Ok(member)
        });
    }
    Ok(Entrance {
        members: gather(tasks, WAIT_MAX).await?,
        coordinators: versions.len(),
    })
}

/// Waits for all tasks; the first that fails ends them all.
async fn gather<T: 'static>(
    mut tasks: JoinSet<CliResult<T>>,
    limit: Duration,
) -> CliResult<Vec<T>> {
    let all = async {
        let mut results = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            let result =
                ended.map_err(|error| CliError::failed(format!("a member failed: {error}")))?;
            results.push(result?);
        }
        Ok(results)
    };
    tokio::time::timeout(limit, all)
        .await
        .map_err(|_elapsed| CliError::failed("the coordinators do not answer"))?
}

async fn run_all(
    env: &Env,
    committers: Vec<Committer>,
    duration: Duration,
    tally: &Rc<RefCell<Tally>>,
) -> CliResult<Vec<Committer>> {
    let end = env.now() + duration;
    let mut tasks = JoinSet::new();
    for mut committer in committers {
        let tally = tally.clone();
        tasks.spawn_local(async move {
            committer.run(end, &tally).await?;
            CliResult::Ok(committer)
        });
    }
    gather(tasks, duration + WAIT_MAX).await
}

/// What all committers have done together.
#[derive(Default)]
struct Tally {
    commits: u64,
    failed: u64,
    first_error: Option<i16>,
    latencies: Latencies,
}

impl Tally {
    fn count(&mut self, answer: &OffsetCommitResponse, latency: Duration) {
        match first_error(answer) {
            None => {
                self.commits += 1;
                self.latencies.record(latency);
            }
            Some(code) => {
                self.failed += 1;
                self.first_error.get_or_insert(code);
            }
        }
    }
}

fn first_error(answer: &OffsetCommitResponse) -> Option<i16> {
    answer
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|partition| partition.error_code)
        .find(|&code| code != 0)
}

/// A member that commits.
struct Committer {
    env: Env,
    member: ClassicMember,
    topic: StrBytes,
    partitions: i32,
    in_flight: usize,
    offset: i64,
}

impl Committer {
    fn new(env: &Env, member: ClassicMember, topic: &BenchTopic, in_flight: usize) -> Committer {
        Committer {
            env: env.clone(),
            member,
            topic: text(&topic.name),
            partitions: topic.partitions,
            in_flight,
            offset: 0,
        }
    }

    /// Commits until `end`, then waits for what is on its way.
    async fn run(&mut self, end: Instant, tally: &RefCell<Tally>) -> CliResult {
        loop {
            while self.env.now() < end && self.member.link.pending() < self.in_flight {
                let commit = self.next();
                self.member.link.send(commit).await?;
            }
            if self.member.link.pending() == 0 {
                return Ok(());
            }
            let answer = self.member.link.receive().await?;
            let Response::OffsetCommit(body) = answer.response else {
                return Err(self.member.link.another());
            };
            tally.borrow_mut().count(&body, answer.latency);
        }
    }

    fn next(&mut self) -> OffsetCommitRequest {
        self.offset += 1;
        let partitions = (0..self.partitions).map(|partition| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(partition)
                .with_committed_offset(self.offset)
                .with_committed_leader_epoch(0)
                .with_committed_metadata(Some(StrBytes::default()))
        });
        OffsetCommitRequest::default()
            .with_group_id(self.member.group())
            .with_generation_id_or_member_epoch(self.member.generation())
            .with_member_id(self.member.member_id().clone())
            .with_topics(vec![
                OffsetCommitRequestTopic::default()
                    .with_name(TopicName(self.topic.clone()))
                    .with_partitions(partitions.collect()),
            ])
    }
}

impl CommitsReport {
    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "commits by {} on {}, {} each, {} in flight per group",
            plural(self.groups as u64, "group", "groups"),
            plural(self.coordinators as u64, "coordinator", "coordinators"),
            plural(self.partitions as u64, "partition", "partitions"),
            self.in_flight,
        );
        let _ = writeln!(
            text,
            "  {:>10.0} commits/s   {} commits in {:.2} s, {} failed",
            self.commits_per_second, self.commits, self.elapsed_seconds, self.failed
        );
        if let Some(rate) = self.commits_per_core_second {
            let _ = writeln!(
                text,
                "  {rate:>10.0} commits for each CPU second of the watched processes"
            );
        }
        if let Some(latency) = self.latency {
            let _ = writeln!(
                text,
                "  latency ms   p50 {:.3}   p90 {:.3}   p99 {:.3}   p99.9 {:.3}   max {:.3}",
                latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms
            );
        }
        let _ = writeln!(text, "  this process  {:.2} CPU s", self.client_cpu_seconds);
        for watched in &self.watched {
            let _ = writeln!(text, "{}", watched.line());
        }
        text
    }
}

/// The head of [`markdown_row`]'s table.
pub(super) fn markdown_head() -> String {
    "| groups | partitions a commit | in flight a group | commits/s | commits/s per core of the \
     nodes | p50 ms | p99 ms | client cores | node cores |\n|---|---|---|---|---|---|---|---|---|\n"
        .to_owned()
}

/// One measurement as a row of a markdown table; "-" where nobody watched.
pub(super) fn markdown_row(report: &CommitsReport) -> String {
    let seconds = report.elapsed_seconds.max(f64::MIN_POSITIVE);
    let cores: f64 = report.watched.iter().map(|watched| watched.cores).sum();
    let none = || "-".to_owned();
    let (p50, p99) = report.latency.map_or_else(
        || (none(), none()),
        |latency| {
            (
                format!("{:.2}", latency.p50_ms),
                format!("{:.2}", latency.p99_ms),
            )
        },
    );
    format!(
        "| {} | {} | {} | {:.0} | {} | {p50} | {p99} | {:.2} | {} |\n",
        report.groups,
        report.partitions,
        report.in_flight,
        report.commits_per_second,
        report
            .commits_per_core_second
            .map_or_else(none, |rate| format!("{rate:.0}")),
        report.client_cpu_seconds / seconds,
        if report.watched.is_empty() {
            none()
        } else {
            format!("{cores:.2}")
        },
    )
}

#[cfg(test)]
mod tests {
    use corduroy_protocol::messages::offset_commit_response::{
        OffsetCommitResponsePartition, OffsetCommitResponseTopic,
    };

    use super::*;

    fn answer(codes: &[i16]) -> OffsetCommitResponse {
        let partitions = codes
            .iter()
            .map(|&code| OffsetCommitResponsePartition::default().with_error_code(code));
        OffsetCommitResponse::default().with_topics(vec![
            OffsetCommitResponseTopic::default().with_partitions(partitions.collect()),
        ])
    }

    #[test]
    fn a_commit_with_one_refused_partition_has_failed() {
        let mut tally = Tally::default();
        tally.count(&answer(&[0, 0]), Duration::from_millis(1));
        tally.count(&answer(&[0, 27, 16]), Duration::from_millis(1));
        tally.count(&answer(&[16]), Duration::from_millis(1));
        assert_eq!((tally.commits, tally.failed), (1, 2));
        assert_eq!(tally.first_error, Some(27));
    }

    #[test]
    fn a_row_has_as_many_cells_as_its_head() {
        let report = CommitsReport {
            kind: "commits",
            groups: 64,
            coordinators: 3,
            partitions: 10,
            in_flight: 1,
            commits: 1_000,
            failed: 0,
            elapsed_seconds: 2.0,
            commits_per_second: 500.0,
            commits_per_core_second: Some(250.0),
            latency: None,
            client_cpu_seconds: 1.0,
            watched: vec![Watched {
                pid: 7,
                cpu_seconds: 4.0,
                cores: 2.0,
                resident_bytes: 0,
            }],
        };
        let cells = |line: &str| line.matches('|').count();
        let row = markdown_row(&report);
        assert_eq!(
            cells(markdown_head().lines().next().expect("head")),
            cells(&row)
        );
        assert_eq!(row, "| 64 | 10 | 1 | 500 | 250 | - | - | 0.50 | 2.00 |\n");
    }
}
