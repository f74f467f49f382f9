//! One run from its first process to its verdict.

mod load;
mod logs;
mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use tokio::signal::unix::{SignalKind, signal};

use crate::checker;
use crate::clean::RunFile;
use crate::cli::{AcksArg, ClientKind, RunArgs};
use crate::cluster::{Cluster, ClusterSetup};
use crate::coverage;
use crate::faults::inject::{Due, Injector};
use crate::faults::plan::plan;
use crate::faults::{FaultKind, Need, shim};
use crate::history::{
    Acks, ClientSettings, FORMAT, FaultPhase, GroupMinima, Header, History, HistoryWriter, Mark,
    Minima, Plan, ReplicasOf, STARVED_SECONDS_MAX,
};
use crate::planted::{self, Build};
use crate::preflight::{Look, Preflight};
use crate::report::{self, RunSummary};
use crate::topology::Topology;
use crate::verdict::{EXIT_COVERAGE, EXIT_HARNESS, Judgement, Verdict};
use crate::workload::recorder::Recorder;
use crate::workload::{DELIVERY_WAIT_MAX, WorkloadKind, final_read, group};
use load::Load;
use progress::Progress;

/// How long the nodes may take to form a cluster.
const FORM_WAIT_MAX: Duration = Duration::from_secs(60);
/// So often it is looked whether one of them has ended meanwhile.
const FORM_LOOKS: u32 = 60;
/// How long the cluster may take to be whole after everything was healed.
const WHOLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// How often that is waited for if the harness did not get the processor meanwhile.
const HEAL_TRIES: usize = 3;
/// How long clients go on after that: longer than a partition may be without a write, and a consumer
/// behind, until that is judged.
const AFTER_HEAL: Duration = Duration::from_secs(12);
/// How long their last answers may take.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long consumers may then take until they have been shown everything.
const READ_OUT_MAX: Duration = Duration::from_secs(30);
/// How long a node may take to stop at the end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);
/// Where disk images go if there is room: memory, which is quick.
const IMAGES_IN_MEMORY: &str = "/dev/shm";
/// A run with groups has to see so many generations, and so many commits while a fault was active.
const REBALANCES_MIN: u64 = 10;
const COMMITS_IN_FAULTS_PER_SECOND: u64 = 1;
const COMMITS_IN_FAULTS_MAX: u64 = 100;
/// Faults under which a coordinator has to be seen to give way.
const COORDINATORS_MOVE_BY: &[FaultKind] = &[
    FaultKind::Kill,
    FaultKind::Restart,
    FaultKind::PowerOne,
    FaultKind::PowerAll,
];
/// Writes that a single node has to acknowledge to those who waited while a fault held.
const WRITES_IN_FAULTS_ALONE: u64 = 10;
/// Old records of the queue's trimmed topics go while it runs.
const QUEUE_SETTINGS: &[&str] = &["log.retention.check.interval.ms=1000"];
/// What a trial says that was told to stop.
pub const INTERRUPTED: &str = "interrupted";
/// Nodes that join in the course of a run have so many machines, beside those of the first ones.
const SPARE_MACHINES: u8 = 2;
/// Room that is left there for others.
const MEMORY_LEFT_BYTES: u64 = 2 << 30;
/// Room that the images of one node may come to take.
const IMAGE_ROOM_BYTES: u64 = 512 << 20;

/// Everything that decides a run.
pub struct RunPlan {
    /// Seconds of load.
    pub seconds: u64,
    /// Nodes.
    pub nodes: u8,
    /// What clients do.
    pub workload: WorkloadKind,
    /// Whose clients they are.
    pub client: ClientKind,
    /// What producers wait for, and whether they are idempotent.
    pub acks: Acks,
    pub idempotence: bool,
    /// Which faults come; all possible.
    pub kinds: Vec<FaultKind>,
    /// Which were asked for by `all`, and are not possible here.
    pub skipped: Vec<FaultKind>,
    /// Sends per second.
    pub rate: u32,
    /// Decides the rest.
    pub seed: u64,
    /// Where everything goes; does not exist yet.
    pub out: PathBuf,
    /// The program under test.
    pub binary: PathBuf,
    /// `min.insync.replicas` of topics.
    pub min_insync: u32,
    /// Further settings of each node.
    pub settings: Vec<String>,
    /// Further variables of each node's environment.
    pub environment: Vec<(String, String)>,
    /// Keep data directories also when all is well.
    pub keep: bool,
    /// The command that runs it again.
    pub command: String,
    /// Show progress.
    pub is_shown: bool,
}

/// How a run ended.
pub struct RunEnd {
    /// What the history shows.
    pub verdict: Verdict,
    /// Where the report is.
    pub report: PathBuf,
}

/// `corduroy-jepsen run`.
///
/// # Errors
/// The harness': exit status 3.
pub async fn run(env: &Env, args: RunArgs) -> anyhow::Result<u8> {
    if args.client == ClientKind::Librdkafka && !args.workload.is_all_of_producers_and_consumers() {
        eprintln!(
            "error: the workload {} reads and writes in ways that librdkafka has no calls for\n  \
             help    --client librdkafka goes with queue, topics and durability",
            args.workload.name()
        );
        return Ok(EXIT_HARNESS);
    }
    if args.client == ClientKind::Librdkafka && !cfg!(feature = "librdkafka") {
        eprintln!(
            "error: this build has no librdkafka\n  \
             help    cargo run --release -p corduroy-jepsen --features librdkafka -- run ..."
        );
        return Ok(EXIT_COVERAGE);
    }
    let bug = args.bug.as_deref().filter(|name| !name.is_empty());
    let binary = match bug {
        None => find_binary(args.binary.as_deref())?,
        Some(name) => {
            planted::check_name(name)?;
            match planted::find(args.binary.as_deref())? {
                Build::Found(binary) => binary,
                Build::Missing(why) => {
                    eprintln!("error: {why}\n  help    {}", planted::BUILD);
                    return Ok(EXIT_COVERAGE);
                }
            }
        }
    };
    let seed = args.seed.unwrap_or_else(|| env.random_below(1 << 32));
    let nodes = args.nodes.unwrap_or(match args.workload {
        WorkloadKind::Durability => 1,
        _ => 3,
    });
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("jepsen-{seed}")));
    std::fs::create_dir(&out)
        .with_context(|| format!("cannot create {} (it must not exist)", out.display()))?;
    // The kernel names mounts by their whole paths.
    let out = std::fs::canonicalize(out)?;
    let look = Look {
        scratch: &out,
        nodes,
        topology: args.topology.map(Into::into),
        program: Some(&binary),
    };
    let preflight = Preflight::look(env, look).await;
    for line in preflight.lines() {
        eprintln!("{line}");
    }
    let kinds: BTreeSet<FaultKind> = match preflight.admit(&args.faults) {
        Ok(kinds) => kinds,
        Err(refused) => {
            for reason in &refused {
                eprintln!("error: a fault that was asked for is not possible here: {reason}");
            }
            std::fs::remove_dir_all(&out)?;
            return Ok(EXIT_COVERAGE);
        }
    };
    let skipped = args.faults.kinds.difference(&kinds).copied().collect();
    let kinds: Vec<FaultKind> = kinds.into_iter().collect();
    let mut command = std::env::args().collect::<Vec<_>>().join(" ");
    if args.seed.is_none() {
        command = format!("{command} --seed {seed}");
    }
    // It may have come by the environment.
    if let Some(name) = bug.filter(|_| !command.contains("--bug")) {
        command = format!("{command} --bug {name}");
    }
    let environment = bug.map(|name| (planted::VARIABLE.to_owned(), name.to_owned()));
    eprintln!(
        "seed {seed}, {nodes} nodes of {}{}, {} s, workload {}, faults: {}",
        binary.display(),
        bug.map_or(String::new(), |name| format!(
            " with the planted bug {name}"
        )),
        args.time,
        args.workload.name(),
        names(&kinds)
    );
    let run = RunPlan {
        seconds: args.time,
        nodes,
        workload: args.workload,
        client: args.client,
        acks: args.acks.into(),
        // Kafka has it with acks=all only.
        idempotence: args.acks == AcksArg::All && !args.no_idempotence,
        kinds,
        skipped,
        rate: args.rate,
        seed,
        out,
        binary,
        min_insync: 2,
        settings: args.settings,
        environment: environment.into_iter().collect(),
        keep: args.keep,
        command,
        is_shown: true,
    };
    let end = execute(env, &run, &preflight).await?;
    println!("report   {}", end.report.display());
    for line in end.verdict.availability.lines() {
        println!("{line}");
    }
    if let Some(line) = end.verdict.delivery.line() {
        println!("{line}");
    }
    for finding in &end.verdict.violations {
        for example in &finding.examples {
            println!("{}: {}", finding.class, example.what);
        }
    }
    println!("{}", end.verdict.line());
    if end.verdict.judgement() == Judgement::TooLittleCoverage {
        eprintln!(
            "  help  run it longer (--time SECONDS), or with fewer faults (--faults NAME,NAME)"
        );
    }
    Ok(end.verdict.exit_code())
}

fn names(kinds: &[FaultKind]) -> String {
    if kinds.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(" ")
}

/// Runs a plan and cleans up after it, whatever happens.
///
/// # Errors
/// The harness'.
pub async fn execute(env: &Env, run: &RunPlan, preflight: &Preflight) -> anyhow::Result<RunEnd> {
    let began = env.now();
    let mut run_file = RunFile::begin(env)?;
    let topology = Topology::build(
        env,
        preflight.topology,
        machines(run),
        run.seed,
        &mut run_file,
    )
    .await;
    let topology = match topology {
        Ok(topology) => topology,
        Err(error) => {
            run_file.remove_all(env).await?;
            return Err(error);
        }
    };
    let setup = ClusterSetup {
        binary: run.binary.clone(),
        founders: run.nodes,
        dir: run.out.clone(),
        // Also for a full disk: the kernel's own refusal says more than the library's.
        images: (needs(&run.kinds, Need::Images)
            || run.kinds.contains(&FaultKind::DiskFull)
                && preflight.obstacle(FaultKind::PowerOne).is_none())
        .then(|| images_dir(run)),
        freezer: needs(&run.kinds, Need::Freezer),
        shim: preflight
            .shim
            .clone()
            .filter(|_| needs(&run.kinds, Need::Shim)),
        extra: workload_settings(run.workload)
            .iter()
            .map(|setting| (*setting).to_owned())
            .chain(run.settings.iter().cloned())
            .flat_map(|setting| ["--set".to_owned(), setting])
            .collect(),
        environment: run.environment.clone(),
    };
    let mut cluster = Cluster::prepare(env, topology, run_file, setup).await?;
    let lived = live(env, run, &mut cluster).await;
    let judged = match lived {
        Ok(()) => judge(run, preflight, &cluster, env.now() - began),
        Err(error) => Err(error),
    };
    let is_clean = judged
        .as_ref()
        .is_ok_and(|end| end.verdict.violations.is_empty());
    let kept = if is_clean && !run.keep {
        Ok(())
    } else {
        cluster.keep_data()
    };
    cluster.remove_all(env, is_clean && !run.keep).await?;
    kept?;
    shim::remove(&run.out);
    judged
}

/// What has to come of each kind of fault in a full run.
fn due(run: &RunPlan) -> BTreeMap<FaultKind, Due> {
    let nodes = usize::from(run.nodes);
    // Elsewhere nothing is ever removed from a log.
    let trims = run.workload == WorkloadKind::Queue;
    let due = run.kinds.iter().map(|kind| {
        let due = Due {
            times: kind.times_due(nodes, trims),
            manners: kind.manners_due(nodes, trims),
        };
        (*kind, due)
    });
    due.collect()
}

/// The same, as a history says it: shorter runs have no time for every manner.
fn manners_due(run: &RunPlan) -> BTreeMap<String, Vec<String>> {
    if run.seconds < coverage::FULL_RUN_SECONDS {
        return BTreeMap::new();
    }
    let due = due(run)
        .into_iter()
        .filter(|(_, due)| !due.manners.is_empty());
    let named = due.map(|(kind, due)| {
        let manners = due.manners.iter().map(|manner| (*manner).to_owned());
        (kind.name().to_owned(), manners.collect())
    });
    named.collect()
}

/// Nodes of the run, and where others join, places for them.
fn machines(run: &RunPlan) -> u8 {
    let is_changing = run.kinds.contains(&FaultKind::Membership);
    run.nodes + if is_changing { SPARE_MACHINES } else { 0 }
}

fn needs(kinds: &[FaultKind], need: Need) -> bool {
    kinds.iter().any(|kind| kind.needs().contains(&need))
}

/// Settings of nodes that a workload needs.
fn workload_settings(workload: WorkloadKind) -> &'static [&'static str] {
    match workload {
        WorkloadKind::Group => group::NODE_SETTINGS,
        WorkloadKind::Queue => QUEUE_SETTINGS,
        _ => &[],
    }
}

fn images_dir(run: &RunPlan) -> PathBuf {
    let wanted = MEMORY_LEFT_BYTES + u64::from(machines(run)) * IMAGE_ROOM_BYTES;
    let free = rustix::fs::statvfs(IMAGES_IN_MEMORY)
        .map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if free >= wanted {
        PathBuf::from(IMAGES_IN_MEMORY)
    } else {
        run.out.clone()
    }
}

/// Starts the nodes, loads them under faults, heals, reads everything, and looks at what the nodes
/// leave. The history has all of it.
async fn live(env: &Env, run: &RunPlan, cluster: &mut Cluster) -> anyhow::Result<()> {
    for id in cluster.ids() {
        cluster.start(id)?;
    }
    form(cluster)
        .await
        .context("the nodes did not form a cluster; see their logs")?;

    let history = run.out.join("history.jsonl");
    let recorder = Recorder::new(env, HistoryWriter::create(&history, &header(env, run))?);
    let load = Load::start(env, run, &recorder, cluster.bootstrap());
    load.wait_topics(FORM_WAIT_MAX).await?;
    recorder.mark(Mark::LoadBegin { at: recorder.now() });

    let seconds = Duration::from_secs(run.seconds);
    let due = due(run);
    let mut injector = Injector::new(env, &recorder, run.seed, &due, &cluster.ids());
    let progress = Progress::start(env, run, &recorder, injector.shown());
    let times = due.iter().map(|(kind, due)| (*kind, due.times)).collect();
    let steps = plan(run.seed, seconds, &times);
    let now = env.now();
    let interrupted = tokio::select! {
        done = injector.run(cluster, steps, (now, now + seconds)) => {
            done?;
            false
        }
        () = asked_to_stop() => true,
    };
    if interrupted && !run.is_shown {
        // A trial among many: the program is to end, so there is nothing to judge.
        bail!("{INTERRUPTED}");
    }
    if interrupted {
        recorder.note("interrupted");
        eprintln!("\ninterrupted: healing, reading, judging what there is");
    }
    for what in injector.undo_all(cluster).await? {
        breakdown(&recorder, what);
    }
    cluster.heal().await?;
    recorder.mark(Mark::Healed { at: recorder.now() });
    progress.say("healed");
    match wait_healed(cluster, &recorder).await {
        Healing::Whole => injector.note_whole(),
        Healing::Unjudged(why) => recorder.note(why),
        Healing::Broken(what) => breakdown(&recorder, what),
    }
    env.sleep(AFTER_HEAL).await;
    let last_answers = DELIVERY_WAIT_MAX + LAST_ANSWERS;
    load.stop_writing(env, last_answers).await;
    let from = recorder.now();
    recorder.mark(Mark::LoadEnd { at: from });
    progress.say("reading on");
    for missing in load.read_out(env, READ_OUT_MAX).await {
        recorder.note(missing);
    }
    let until = recorder.now();
    recorder.mark(Mark::ReadOut { from, until });
    load.stop(env, last_answers).await;
    for missing in load.drain(run.workload).await {
        recorder.note(missing);
    }
    note_members(&recorder, cluster).await;
    progress.say("reading every replica");
    for missing in final_read::run(load.shared(), cluster, &load.topics()).await {
        recorder.note(missing);
    }
    for remark in injector.remarks() {
        recorder.note(remark.clone());
    }
    let offsets_topic = load.offsets_topic().await;
    drop(progress);
    recorder.flush()?;
    for id in cluster.ids() {
        cluster.terminate(id, STOP_WAIT_MAX).await?;
    }
    cluster.notice_ends();
    // Whatever the harness missed meanwhile: this the nodes themselves have written down.
    for what in cluster.crashes().iter().cloned().chain(cluster.stops()?) {
        breakdown(&recorder, what);
    }
    let known = logs::Known {
        rotted: injector.rotted(),
        offsets_topic: offsets_topic.as_deref(),
    };
    let looked = logs::look(&run.binary, cluster, &known);
    for what in looked.found {
        breakdown(&recorder, what);
    }
    if !looked.left_out.is_empty() {
        recorder.note(format!(
            "logs that were not compared, as a checkpoint does not say up to where they were known to \
             be committed: {}",
            looked.left_out.join(", ")
        ));
    }
    recorder.mark(Mark::LogsCompared {
        at: recorder.now(),
        partitions: looked.partitions,
        entries: looked.entries,
        controller_entries: looked.controller_entries,
        offsets_entries: looked.offsets_entries,
    });
    recorder.flush()?;
    Ok(())
}

/// What became of the cluster after the heal.
#[derive(Debug, PartialEq, Eq)]
enum Healing {
    Whole,
    /// Not whole, and nothing follows from it: why.
    Unjudged(String),
    /// Not whole, as it may not be.
    Broken(String),
}

/// Waits until everything is whole again; longer if the harness did not get the processor meanwhile.
async fn wait_healed(cluster: &mut Cluster, recorder: &Recorder) -> Healing {
    let mut starved = Vec::new();
    loop {
        let before = recorder.starved_seconds();
        let missing = match cluster.wait_whole(WHOLE_WAIT_MAX).await {
            Ok(()) => return Healing::Whole,
            Err(error) => format!("{error:#}"),
        };
        starved.push(recorder.starved_seconds() - before);
        if let Some(judged) = judge_heal(&missing, &starved) {
            return judged;
        }
    }
}

/// What to conclude from so many waits in vain, by the seconds that the harness was without the
/// processor in each of them. `None`: wait once more.
///
/// Without root the network between the nodes is this program, so what was not done while it stood
/// still proves nothing. One wait that it did not stand still in does.
fn judge_heal(missing: &str, starved: &[f64]) -> Option<Healing> {
    let what = format!("not whole again after the heal, {missing}");
    if starved
        .last()
        .is_none_or(|last| *last < STARVED_SECONDS_MAX)
    {
        return Some(Healing::Broken(what));
    }
    (starved.len() >= HEAL_TRIES).then(|| {
        let seconds: f64 = starved.iter().sum();
        Healing::Unjudged(format!(
            "{what}; but this program did not get the processor for {seconds:.0} s of it"
        ))
    })
}

/// Waits until the cluster is there. A node that ends before that is no finding, but nothing to test.
async fn form(cluster: &mut Cluster) -> anyhow::Result<()> {
    let mut missing = Ok(());
    for _ in 0..FORM_LOOKS {
        missing = cluster.wait_whole(FORM_WAIT_MAX / FORM_LOOKS).await;
        if let Some(crash) = cluster.crashes().first() {
            bail!("{crash}");
        }
        if missing.is_ok() {
            break;
        }
    }
    missing
}

/// Notes whom the final read has to ask.
async fn note_members(recorder: &Recorder, cluster: &Cluster) {
    let nodes = cluster.ids();
    let partitions = cluster.partitions().await.into_iter();
    let replicas = partitions.map(|((topic, partition), state)| ReplicasOf {
        topic,
        partition,
        nodes: state.living(&nodes),
    });
    recorder.mark(Mark::Members {
        at: recorder.now(),
        replicas: replicas.collect(),
        nodes,
    });
}

fn breakdown(recorder: &Recorder, what: String) {
    recorder.mark(Mark::Breakdown {
        at: recorder.now(),
        what,
    });
}

/// Ctrl-C or SIGTERM.
async fn asked_to_stop() {
    let terminate = signal(SignalKind::terminate());
    let Ok(mut terminate) = terminate else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn header(env: &Env, run: &RunPlan) -> Header {
    let replication = u32::from(run.nodes.min(3));
    let mut minima = Minima::for_run(run.seconds);
    let is_short = run.seconds < coverage::FULL_RUN_SECONDS;
    if is_short && !matches!(run.workload, WorkloadKind::Queue | WorkloadKind::Group) {
        // Small by design: each read of them is a whole log, each topic lives for seconds.
        minima.writes_in_faults /= 4;
        minima.reads_in_faults /= 10;
    }
    if run.nodes == 1 {
        // It serves nobody while a fault holds: what counts is who waited for it.
        minima.writes_in_faults = minima.writes_in_faults.min(WRITES_IN_FAULTS_ALONE);
        minima.reads_in_faults = 0;
    }
    if run.workload == WorkloadKind::Group {
        minima.group = Some(group_minima(run));
    }
    // Of a single node there is nothing to compare.
    minima.controller_compared = run.nodes > 1;
    minima.offsets_compared = run.nodes > 1 && run.workload == WorkloadKind::Group;
    Header {
        format: FORMAT,
        workload: run.workload.name().to_owned(),
        nodes: (1..=u32::from(run.nodes)).collect(),
        seed: run.seed,
        started_unix_millis: env.unix_millis(),
        settings: ClientSettings {
            replication_factor: replication,
            min_insync_replicas: run.min_insync.min(replication),
            client: run.client.name().to_owned(),
            acks: run.acks,
            idempotence: run.idempotence,
            ..ClientSettings::default()
        },
        plan: Plan {
            faults: run
                .kinds
                .iter()
                .map(|kind| kind.name().to_owned())
                .collect(),
            load_seconds: run.seconds,
            minima,
            skipped: run
                .skipped
                .iter()
                .map(|kind| kind.name().to_owned())
                .collect(),
            manners: manners_due(run),
        },
    }
}

/// The least that groups have to go through.
fn group_minima(run: &RunPlan) -> GroupMinima {
    let disturbs = |kind: &FaultKind| COORDINATORS_MOVE_BY.contains(kind);
    let partitions = load::QUEUE_PLACES as u64 * u64::from(load::QUEUE_PARTITIONS);
    GroupMinima {
        rebalances: REBALANCES_MIN,
        commits_in_faults: (run.seconds * COMMITS_IN_FAULTS_PER_SECOND).min(COMMITS_IN_FAULTS_MAX),
        coordinator_changes: u64::from(run.nodes > 1 && run.kinds.iter().any(disturbs)),
        drained: group::GROUP_COUNT * partitions,
    }
}

impl ClientKind {
    fn name(self) -> &'static str {
        match self {
            ClientKind::Corduroy => "corduroy",
            ClientKind::Librdkafka => "librdkafka",
        }
    }
}

fn judge(
    run: &RunPlan,
    preflight: &Preflight,
    cluster: &Cluster,
    took: Duration,
) -> anyhow::Result<RunEnd> {
    let history = History::read(&run.out.join("history.jsonl"))?;
    let verdict = checker::check(&history, &history.header.settings);
    let is_violation = !verdict.violations.is_empty();
    let remarks = history.marks.iter().filter_map(|mark| match mark {
        Mark::Note { at, text } => Some(format!("{:.1} s: {text}", at.seconds())),
        _ => None,
    });
    let summary = RunSummary {
        command: run.command.clone(),
        product: product(&run.binary),
        preflight: preflight.lines(),
        total_seconds: took.as_secs_f64(),
        node_logs: cluster.log_names(),
        kept_data: if is_violation || run.keep {
            kept_data(run, cluster)
        } else {
            Vec::new()
        },
        remarks: remarks.collect(),
    };
    let files = report::write(&run.out, &summary, &history, &verdict)?;
    write_timeline(&run.out.join("timeline.txt"), &history)?;
    Ok(RunEnd {
        verdict,
        report: files.html,
    })
}

/// Where data of nodes lies, seen from the run's directory.
fn kept_data(run: &RunPlan, cluster: &Cluster) -> Vec<String> {
    let kept = cluster.nodes().iter().map(|node| {
        let kept = node.kept();
        let path = kept.strip_prefix(&run.out).unwrap_or(&kept);
        path.display().to_string()
    });
    kept.collect()
}

/// The faults as lines of text.
fn write_timeline(path: &Path, history: &History) -> anyhow::Result<()> {
    let mut file = std::fs::File::create(path)?;
    for fault in &history.faults {
        let phase = match fault.phase {
            FaultPhase::Begin => "begin",
            FaultPhase::End => "end",
            FaultPhase::Missed => "missed",
            FaultPhase::Recovered => "whole",
            FaultPhase::Overtaken => "not whole",
            FaultPhase::Refused => "refused",
        };
        let targets: Vec<String> = fault.targets.iter().map(|id| format!("n{id}")).collect();
        writeln!(
            file,
            "{:9.3} s  {phase:<9} {:<20} {:<9} {}",
            fault.at.seconds(),
            fault.fault,
            targets.join(" "),
            fault.detail
        )?;
    }
    Ok(())
}

fn product(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!(
        "{} ({})",
        version.unwrap_or_else(|error| error.to_string()),
        binary.display()
    )
}

/// The program under test: the one that was named, the one beside this program, or the one that
/// cargo builds.
///
/// # Errors
/// That there is none.
pub fn find_binary(asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = asked {
        if !path.is_file() {
            bail!("there is no program at {}", path.display());
        }
        return Ok(std::path::absolute(path)?);
    }
    let own = std::env::current_exe().context("where is this program?")?;
    let beside = own.parent().map(|dir| dir.join("corduroy"));
    let built = ["target/release/corduroy", "target/debug/corduroy"].map(PathBuf::from);
    for path in beside.into_iter().chain(built) {
        if path.is_file() {
            return Ok(std::path::absolute(path)?);
        }
    }
    bail!(
        "there is no `corduroy` beside {}\n  help    build it (`cargo build --release`), or name one \
         with --binary",
        own.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heal_is_excused_only_where_the_harness_stood_still_each_time() {
        let broken = Some(Healing::Broken(
            "not whole again after the heal, q/1 has no leader".to_owned(),
        ));
        let judge = |starved: &[f64]| judge_heal("q/1 has no leader", starved);
        assert_eq!(judge(&[0.0]), broken);
        assert_eq!(judge(&[STARVED_SECONDS_MAX - 1.0]), broken);
        assert_eq!(judge(&[30.0]), None, "it waits again");
        assert_eq!(judge(&[30.0, 0.5]), broken, "that one time was enough");
        assert_eq!(judge(&[30.0, 20.0]), None);
        let Some(Healing::Unjudged(why)) = judge(&[30.0, 20.0, 11.0]) else {
            panic!("the harness never had a processor");
        };
        assert!(why.contains("did not get the processor for 61 s"), "{why}");
    }
}
