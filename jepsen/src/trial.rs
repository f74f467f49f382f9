//! `corduroy-jepsen selftest`: the hand-made histories, and runs of a build with planted bugs.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use clap::ValueEnum;
use corduroy_env::Env;
use tokio::process::Command;

use crate::clean;
use crate::cli::{ClientKind, SelftestArgs};
use crate::faults::{self, FaultKind};
use crate::history::Acks;
use crate::planted::{self, Build};
use crate::preflight::{Look, Preflight};
use crate::run::{self, RunPlan};
use crate::selftest::{self, BUGS, Bug, Judge, Trial};
use crate::verdict::{EXIT_COVERAGE, EXIT_PASS, EXIT_VIOLATION, Verdict};
use crate::workload::WorkloadKind;

/// A day: the rotation goes on by itself from one to the next.
const DAY_MILLIS: u64 = 24 * 3600 * 1000;
/// What the nodes of a trial are counted as, before there is one: every bug has so many.
const NODES: u8 = 3;

/// Judges the histories, then hunts the planted bugs.
///
/// # Errors
/// The harness'.
pub async fn selftest(env: &Env, args: &SelftestArgs) -> anyhow::Result<u8> {
    let named: Vec<&'static Bug> = args
        .bugs
        .iter()
        .map(|id| {
            let bug = BUGS.iter().find(|bug| bug.id == id);
            bug.with_context(|| format!("there is no planted bug `{id}`"))
        })
        .collect::<anyhow::Result<_>>()?;
    let seed = args
        .seed
        .unwrap_or_else(|| env.unix_millis().unsigned_abs() / DAY_MILLIS);
    let report = selftest::histories();
    println!("{report}");
    let failed = |is_green| if is_green { EXIT_PASS } else { EXIT_VIOLATION };
    if args.histories_only {
        println!("no planted bug was hunted: --histories-only");
        return Ok(failed(report.is_green()));
    }
    let binary = match planted::find(args.planted_binary.as_deref())? {
        Build::Found(binary) => binary,
        Build::Missing(why) => {
            eprintln!(
                "error: none of the {} planted bugs was hunted: {why}\n  \
                 help    {}\n  \
                 help    or judge the histories alone: --histories-only",
                BUGS.len(),
                planted::BUILD
            );
            return Ok(match report.is_green() {
                true => EXIT_COVERAGE,
                false => EXIT_VIOLATION,
            });
        }
    };
    let obstacles = obstacles(env, &binary).await?;
    let is_possible = |bug: &&Bug| obstacles.iter().all(|(id, _)| *id != bug.id);
    for (id, why) in &obstacles {
        if args.bugs.iter().any(|name| name == id) {
            eprintln!("error: {id} cannot be hunted here: {why}");
            return Ok(EXIT_COVERAGE);
        }
        println!("left  {id:<26} not hunted here: {why}");
    }
    let possible: Vec<&'static Bug> = BUGS.iter().filter(is_possible).collect();
    let bugs = match (named.is_empty(), args.all) {
        (false, _) => named,
        (true, true) => possible,
        (true, false) => selftest::rotation(seed, args.count, &possible),
    };
    let is_caught = hunt(env, seed, &bugs, &binary).await?;
    Ok(failed(report.is_green() && is_caught))
}

/// Bugs that nothing on this machine can bring out, with the reason.
async fn obstacles(env: &Env, binary: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let (scratch, run_file) = clean::scratch(env, "preflight")?;
    let look = Look {
        scratch: &scratch,
        nodes: NODES,
        topology: None,
        program: Some(binary),
    };
    let preflight = Preflight::look(env, look).await;
    let mut obstacles = Vec::new();
    for bug in BUGS {
        if matches!(bug.judge, Judge::Simulator { .. }) {
            let program = simulator_of(binary);
            if !program.is_file() {
                let why = format!("there is no simulator at {}", program.display());
                obstacles.push((bug.id, why));
            }
            continue;
        }
        let kinds = faults::parse(&bug.hint.faults.join(",")).map_err(anyhow::Error::msg)?;
        let mut reasons = kinds.kinds.iter().map(|kind| preflight.obstacle(*kind));
        if let Some(Some(why)) = reasons.next()
            && reasons.all(|other| other.is_some())
        {
            obstacles.push((bug.id, why.to_owned()));
        }
    }
    run_file.remove_all(env).await?;
    Ok(obstacles)
}

/// Where the simulator of a node's build lies.
fn simulator_of(node: &Path) -> PathBuf {
    node.with_file_name("corduroy-sim")
}

async fn hunt(env: &Env, seed: u64, bugs: &[&'static Bug], binary: &Path) -> anyhow::Result<bool> {
    let (scratch, run_file) = clean::scratch(env, "selftest")?;
    let began = env.now();
    let mut number = 0;
    let is_stopped = Cell::new(false);
    let report = selftest::mutations(
        bugs,
        env,
        async |trial: &Trial| {
            if is_stopped.get() {
                return Err(run::INTERRUPTED.to_owned());
            }
            number += 1;
            let out = scratch.join(format!("trial-{number}"));
            let judged = one(env, trial, binary, &out, seed).await;
            judged.map_err(|error| {
                let reason = format!("{error:#}");
                if reason == run::INTERRUPTED {
                    is_stopped.set(true);
                }
                reason
            })
        },
        async |bug, seeds| {
            if is_stopped.get() {
                return Err(run::INTERRUPTED.to_owned());
            }
            simulate(binary, bug, seeds)
                .await
                .map_err(|error| format!("{error:#}"))
        },
        |line| println!("{line}"),
    )
    .await;
    let (caught, all) = (report.caught(), report.bugs.len());
    let seconds = (env.now() - began).as_secs();
    let left: Vec<&str> = BUGS
        .iter()
        .filter(|bug| !bugs.contains(bug))
        .map(|bug| bug.id)
        .collect();
    if !left.is_empty() {
        println!("not hunted this time (--all does): {}", left.join(" "));
    }
    println!("mutation score: {caught} of {all}, in {seconds} s (seed {seed})");
    if report.is_green() {
        run_file.remove_all(env).await?;
    } else {
        run_file.keep_all()?;
        println!("the runs are kept in {}", scratch.display());
    }
    Ok(report.is_green())
}

/// Lets the simulator look for a bug: the build of it that lies beside the node's. The first seed
/// that goes red, and the law that it breaks.
async fn simulate(node: &Path, bug: &Bug, seeds: u64) -> anyhow::Result<Option<(u64, String)>> {
    let program = simulator_of(node);
    if !program.is_file() {
        bail!(
            "this one is for the simulator, and there is none at {}\n  help    {}",
            program.display(),
            planted::BUILD
        );
    }
    let output = Command::new(&program)
        .args(["--seeds", &seeds.to_string(), "--until-violation"])
        .env(planted::VARIABLE, bug.id)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `seed 17: terms_ascend at 1230 ms: ...`
    let broken = text.lines().filter_map(|line| {
        let (seed, rest) = line.strip_prefix("seed ")?.split_once(": ")?;
        let (law, _) = rest.split_once(" at ")?;
        Some((seed.parse().ok()?, law.to_owned()))
    });
    match (output.status.code(), broken.min()) {
        (Some(1), Some(first)) => Ok(Some(first)),
        (Some(0 | 2), _) => Ok(None),
        (code, _) => bail!(
            "{} ended with {code:?}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

async fn one(
    env: &Env,
    trial: &Trial,
    binary: &Path,
    out: &Path,
    seed: u64,
) -> anyhow::Result<Verdict> {
    std::fs::create_dir(out)?;
    let out = &std::fs::canonicalize(out)?;
    let nodes = u8::try_from(trial.hint.nodes)?;
    let look = Look {
        scratch: out,
        nodes,
        topology: None,
        program: Some(binary),
    };
    let preflight = Preflight::look(env, look).await;
    let names = trial.faults.join(",");
    let asked = faults::parse(&names).map_err(anyhow::Error::msg)?;
    let (kinds, skipped): (Vec<FaultKind>, Vec<FaultKind>) = asked
        .kinds
        .into_iter()
        .partition(|kind| preflight.obstacle(*kind).is_none());
    let workload = WorkloadKind::value_variants()
        .iter()
        .copied()
        .find(|kind| kind.name() == trial.hint.workload)
        .with_context(|| format!("there is no workload `{}`", trial.hint.workload))?;
    let environment = trial
        .bug
        .map(|bug| (planted::VARIABLE.to_owned(), bug.id.to_owned()));
    let plan = RunPlan {
        seconds: trial.load_seconds,
        nodes,
        workload,
        client: ClientKind::Corduroy,
        acks: Acks::All,
        idempotence: true,
        kinds,
        skipped,
        rate: trial.hint.rate(trial.attempt),
        seed: seed.wrapping_add(u64::from(trial.attempt)),
        out: PathBuf::from(out),
        binary: binary.to_owned(),
        min_insync: trial.hint.min_insync_replicas,
        settings: Vec::new(),
        environment: environment.into_iter().collect(),
        keep: false,
        command: format!("a trial of {}", trial.bug.map_or("no bug", |bug| bug.id)),
        is_shown: false,
    };
    Ok(run::execute(env, &plan, &preflight).await?.verdict)
}
