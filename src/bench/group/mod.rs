//! `bench group`: a group of many members, from its first join until it has come to rest.
//!
//! | file | holds |
//! |---|---|
//! | `classic`, `consumer` | a member by either protocol |
//! | `roster` | when a group is stable, as its members see it |
//! | `report` | the numbers |
//!
//! Each member is a participant of its own with a connection of its own, as its clients have; it
//! reads no records. All live on one thread.

pub(super) mod classic;
mod consumer;
pub(super) mod report;
mod roster;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corduroy_client::{Client, ErrorCode};
use corduroy_env::Env;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::BenchTopic;
use super::produce::own_cpu_seconds;
use super::report::Latencies;
use super::watch::{Watch, listener, usage};
use super::wire::{Endpoint, Link, RETRY_PAUSE};
use crate::cli::{CliError, CliResult, Interrupt, client_error, parse_duration};
use classic::{ClassicMember, HEARTBEAT_INTERVAL};
use consumer::{ConsumerMember, Next};
use report::{GroupReport, Phase};
use roster::Roster;

/// How long a group may take until it is stable.
const STABLE_WAIT_MAX: Duration = Duration::from_secs(300);

/// How long its members may take to leave at the end.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a group whose members have left may take to be empty.
const DELETE_WAIT_MAX: Duration = Duration::from_secs(10);

/// A pause behind the creation of the topic: what that costs is not the group's.
const TOPIC_PAUSE: Duration = Duration::from_secs(2);

/// File descriptors that this process needs besides one for each member.
const DESCRIPTORS_BESIDE: u64 = 256;

// Doc comments on the variants would give `--help` a longer form than `-h`.
/// How members and coordinator talk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProtocolArg {
    // JoinGroup, SyncGroup, Heartbeat; a leader among the members shares out.
    #[default]
    Classic,
    // ConsumerGroupHeartbeat (KIP-848); the coordinator shares out.
    Consumer,
}

impl ProtocolArg {
    pub(super) fn name(self) -> &'static str {
        match self {
            ProtocolArg::Classic => "classic",
            ProtocolArg::Consumer => "consumer",
        }
    }
}

/// `bench group`.
#[derive(Clone, Debug, Args)]
pub struct GroupArgs {
    /// Members of the group
    #[arg(short = 'm', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub members: u32,

    /// Partitions of the topic that they share
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(i32).range(1..=10_000))]
    pub partitions: i32,

    /// How members and coordinator talk
    #[arg(long, value_enum, default_value_t, value_name = "PROTOCOL")]
    pub protocol: ProtocolArg,

    /// Replicas of the topic [default: the cluster's]
    #[arg(short = 'r', long, value_name = "N",
          value_parser = clap::value_parser!(i16).range(1..=100))]
    pub replication: Option<i16>,

    /// How long the stable group is watched
    #[arg(long, alias = "for", value_name = "DURATION", default_value = "10s",
          value_parser = parse_duration)]
    pub duration: Duration,

    /// Report the CPU and memory of this process, a node for instance; repeatable
    #[arg(long, value_name = "PID")]
    pub watch_pid: Vec<u32>,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Measures against the processes `pids`, with a topic and a group that exist for this alone.
pub(super) async fn measure(
    env: &Env,
    client: &Client,
    args: &GroupArgs,
    pids: &[u32],
    interrupt: &mut Interrupt,
) -> CliResult<GroupReport> {
    allow_descriptors(u64::from(args.members) + DESCRIPTORS_BESIDE);
    let topic = BenchTopic::fresh(env, client, args.partitions, args.replication).await?;
    let work = async |topic: &BenchTopic| measure_on(env, client, args, pids, topic).await;
    topic.during(client, interrupt, work).await
}

async fn measure_on(
    env: &Env,
    client: &Client,
    args: &GroupArgs,
    pids: &[u32],
    topic: &BenchTopic,
) -> CliResult<GroupReport> {
    topic.wait_for_leaders(env, client).await?;
    let group = format!("bench-{:08x}", env.random_u64() as u32);
    let mut any = Link::negotiate(env, &any_broker(client).await?).await?;
    let coordinator = any.find_coordinators(std::slice::from_ref(&group)).await?;
    let coordinator = coordinator
        .into_iter()
        .next()
        .ok_or_else(|| CliError::failed("the group has no coordinator"))?;
    drop(any);
    env.sleep(TOPIC_PAUSE).await;

    let coordinator_pid = listener(pids, coordinator.port);
    let resident_bytes_before = coordinator_pid
        .and_then(usage)
        .map(|usage| usage.resident_bytes);
    let started = env.now();
    let links = open_links(env, &coordinator, args.members as usize).await?;
    let connect_seconds = (env.now() - started).as_secs_f64();

    let mut crowd = Crowd::new(env, args, topic);
    let meter = Meter::start(env, pids)?;
    crowd.enter(links, &group, &topic.name);
    let epoch = crowd.until_stable(0).await?;
    let join = meter.stop(env, epoch);

    crowd.stage.heartbeats.replace(Latencies::new());
    let meter = Meter::start(env, pids)?;
    crowd.rest(args.duration).await?;
    let epoch_after = crowd.stage.roster.borrow().stable_epoch();
    if epoch_after != Some(epoch) {
        eprintln!("warning: the group did not stay stable while it was left alone");
    }
    let rest = meter.stop(env, epoch_after.unwrap_or(-1));
    let heartbeat = crowd.stage.heartbeats.replace(Latencies::new()).summary();

    let departure = if args.members > 1 {
        let meter = Meter::start(env, pids)?;
        crowd.dismiss(args.members as usize - 1);
        let epoch = crowd.until_stable(epoch).await?;
        Some(meter.stop(env, epoch))
    } else {
        None
    };

    crowd.end().await?;
    delete_group(env, client, &group).await;
    Ok(GroupReport {
        kind: "group",
        protocol: args.protocol.name(),
        members: args.members as usize,
        partitions: topic.partitions as usize,
        coordinator: coordinator.node,
        coordinator_pid,
        resident_bytes_before,
        connect_seconds,
        join,
        rest,
        heartbeat,
        departure,
    })
}

/// Deletes a group whose members have left. What was measured is worth more than a group that stays
/// behind, so this only warns.
pub(super) async fn delete_group(env: &Env, client: &Client, group: &str) {
    let deadline = env.now() + DELETE_WAIT_MAX;
    while let Err(error) = client.admin().delete_group(group).await {
        // A coordinator may answer the last leave before the group counts as empty.
        if error.code() != Some(ErrorCode::NonEmptyGroup) || env.now() >= deadline {
            eprintln!("warning: cannot delete the group {group}: {error}");
            return;
        }
        env.sleep(RETRY_PAUSE).await;
    }
}

/// A broker to ask for coordinators.
pub(super) async fn any_broker(client: &Client) -> CliResult<Endpoint> {
    let cluster = client
        .admin()
        .describe_cluster()
        .await
        .map_err(|error| client_error(&error, "cannot describe the cluster"))?;
    let broker = cluster
        .brokers
        .first()
        .ok_or_else(|| CliError::failed("the cluster names no broker"))?;
    Endpoint::new(broker.id, &broker.host, broker.port)
}

async fn open_links(env: &Env, at: &Endpoint, count: usize) -> CliResult<Vec<Link>> {
    let first = Link::negotiate(env, at).await?;
    let versions = first.versions().clone();
    let mut links = vec![first];
    while links.len() < count {
        links.push(Link::open(env, at, &versions).await?);
    }
    Ok(links)
}

/// Raises this process's limit of open files as far as it may; nodes that it starts inherit it.
pub(super) fn allow_descriptors(needed: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        // Where even the highest is too low, opening a connection says so.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        );
    }
}

/// The processes and this one over a phase.
struct Meter {
    watch: Watch,
    cpu_seconds: f64,
    started: Instant,
}

impl Meter {
    fn start(env: &Env, pids: &[u32]) -> CliResult<Meter> {
        Ok(Meter {
            watch: Watch::start(pids).map_err(CliError::failed)?,
            cpu_seconds: own_cpu_seconds(),
            started: env.now(),
        })
    }

    fn stop(self, env: &Env, epoch: i32) -> Phase {
        let elapsed_seconds = (env.now() - self.started).as_secs_f64();
        Phase {
            elapsed_seconds,
            epoch,
            client_cpu_seconds: own_cpu_seconds() - self.cpu_seconds,
            watched: self.watch.read(elapsed_seconds),
        }
    }
}

/// What members and the measurement share.
struct Stage {
    env: Env,
    roster: RefCell<Roster>,
    changed: Notify,
    heartbeats: RefCell<Latencies>,
    /// One for each member: it is asked to leave.
    goodbyes: Vec<Notify>,
}

impl Stage {
    fn change(&self, change: impl FnOnce(&mut Roster)) {
        change(&mut self.roster.borrow_mut());
        self.changed.notify_one();
    }

    /// Waits, at most until the member is asked to leave: `true`.
    async fn is_over_within(&self, member: usize, pause: Duration) -> bool {
        let Some(goodbye) = self.goodbyes.get(member) else {
            return true;
        };
        tokio::select! {
            () = goodbye.notified() => true,
            () = self.env.sleep(pause) => false,
        }
    }
}

/// All members, as tasks of this thread. Dropping it closes their connections.
struct Crowd {
    env: Env,
    protocol: ProtocolArg,
    partitions: i32,
    stage: Rc<Stage>,
    tasks: JoinSet<CliResult>,
}

impl Crowd {
    fn new(env: &Env, args: &GroupArgs, topic: &BenchTopic) -> Crowd {
        let members = args.members as usize;
        let roster = Roster::new(members, topic.partitions as usize);
        Crowd {
            env: env.clone(),
            protocol: args.protocol,
            partitions: topic.partitions,
            stage: Rc::new(Stage {
                env: env.clone(),
                roster: RefCell::new(roster),
                changed: Notify::new(),
                heartbeats: RefCell::new(Latencies::new()),
                goodbyes: (0..members).map(|_| Notify::new()).collect(),
            }),
            tasks: JoinSet::new(),
        }
    }

    fn enter(&mut self, links: Vec<Link>, group: &str, topic: &str) {
        for (number, link) in links.into_iter().enumerate() {
            let stage = self.stage.clone();
            match self.protocol {
                ProtocolArg::Classic => {
                    let member = ClassicMember::new(&self.env, link, group, topic, self.partitions);
                    self.tasks.spawn_local(live_classic(stage, number, member));
                }
                ProtocolArg::Consumer => {
                    let member = ConsumerMember::new(&self.env, link, group, topic);
                    self.tasks.spawn_local(live_consumer(stage, number, member));
                }
            }
        }
    }

    /// Waits until the group is stable in a later epoch than `after`.
    async fn until_stable(&mut self, after: i32) -> CliResult<i32> {
        let deadline = self.env.now() + STABLE_WAIT_MAX;
        loop {
            let epoch = self.stage.roster.borrow().stable_epoch();
            if let Some(epoch) = epoch.filter(|&epoch| epoch > after) {
                return Ok(epoch);
            }
            tokio::select! {
                () = self.stage.changed.notified() => {}
                Some(ended) = self.tasks.join_next() => outcome(ended)?,
                () = tokio::time::sleep_until(deadline) => {
                    let (settled, present) = self.stage.roster.borrow().progress();
                    return Err(CliError::failed("the group did not become stable")
                        .fact("waited", format!("{} s", STABLE_WAIT_MAX.as_secs()))
                        .fact("settled", format!("{settled} of {present} members"))
                        .into());
                }
            }
        }
    }

    async fn rest(&mut self, duration: Duration) -> CliResult {
        let end = self.env.now() + duration;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Ok(()),
                Some(ended) = self.tasks.join_next() => outcome(ended)?,
            }
        }
    }

    fn dismiss(&self, member: usize) {
        if let Some(goodbye) = self.stage.goodbyes.get(member) {
            goodbye.notify_one();
        }
    }

    async fn end(mut self) -> CliResult {
        for goodbye in &self.stage.goodbyes {
            goodbye.notify_one();
        }
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                outcome(ended)?;
            }
            Ok(())
        };
        tokio::time::timeout(LEAVE_WAIT_MAX, all)
            .await
            .map_err(|_elapsed| CliError::failed("the members could not leave"))?
    }
}

fn outcome(ended: Result<CliResult, tokio::task::JoinError>) -> CliResult {
    ended.map_err(|error| CliError::failed(format!("a member failed: {error}")))?
}

async fn live_classic(stage: Rc<Stage>, number: usize, mut member: ClassicMember) -> CliResult {
    loop {
        let partitions = member.join().await?;
        let generation = member.generation();
        stage.change(|roster| roster.settle(number, generation, &partitions));
        loop {
            if stage.is_over_within(number, HEARTBEAT_INTERVAL).await {
                stage.change(|roster| roster.leave(number));
                return member.leave().await;
            }
            let (stands, latency) = member.heartbeat().await?;
            stage.heartbeats.borrow_mut().record(latency);
            if !stands {
                stage.change(|roster| roster.unsettle(number));
                break;
            }
        }
    }
}

async fn live_consumer(stage: Rc<Stage>, number: usize, mut member: ConsumerMember) -> CliResult {
    loop {
        let beat = member.beat().await?;
        stage.heartbeats.borrow_mut().record(beat.latency);
        match beat.next {
            Next::Now => stage.change(|roster| roster.unsettle(number)),
            Next::After(pause) => {
                let (epoch, partitions) = (member.epoch(), member.partitions());
                stage.change(|roster| roster.settle(number, epoch, &partitions));
                if stage.is_over_within(number, pause).await {
                    stage.change(|roster| roster.leave(number));
                    return member.leave().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corduroy_env::Env;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_member_that_is_asked_to_leave_waits_no_longer() {
        let stage = Stage {
            env: Env::real(),
            roster: RefCell::new(Roster::new(1, 1)),
            changed: Notify::new(),
            heartbeats: RefCell::new(Latencies::new()),
            goodbyes: vec![Notify::new()],
        };
        assert!(!stage.is_over_within(0, Duration::ZERO).await);
        // Asked before it waits: that counts too.
        stage.goodbyes[0].notify_one();
        assert!(stage.is_over_within(0, Duration::from_secs(3600)).await);
    }
}
