//! `corduroy-jepsen selftest`: the hand-made histories, and runs of a build with planted bugs.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use clap::ValueEnum;
use corduroy_env::Env;
use tokio::process::Command;

use crate::cli::{ClientKind, SelftestArgs};
use crate::faults::{self, FaultKind};
use crate::preflight::Preflight;
use crate::run::{self, RunPlan};
use crate::selftest::{self, BUG_VARIABLE, BUGS, Bug, Trial};
use crate::verdict::{EXIT_PASS, EXIT_VIOLATION, Verdict};
use crate::workload::WorkloadKind;

/// Sends per second in the trials of a bug, in turn: some show themselves under load, and some only
/// when a write is the last one for a while.
const RATES: [u32; 2] = [400, 30];

/// Judges the histories, then hunts the planted bugs if there is a build that has them.
///
/// # Errors
/// The harness'.
pub async fn selftest(env: &Env, args: &SelftestArgs) -> anyhow::Result<u8> {
    let report = selftest::histories();
    println!("{report}");
    let mut is_green = report.is_green();
    match &args.planted_binary {
        Some(binary) => is_green &= hunt(env, args, binary).await?,
        None => println!(
            "planted bugs: not run; build the node with `--features planted-bugs` and name it with \
             --planted-binary"
        ),
    }
    Ok(if is_green { EXIT_PASS } else { EXIT_VIOLATION })
}

async fn hunt(env: &Env, args: &SelftestArgs, binary: &Path) -> anyhow::Result<bool> {
    let bugs: Vec<&'static Bug> = if !args.bugs.is_empty() {
        let named = args.bugs.iter().map(|id| {
            let bug = BUGS.iter().find(|bug| bug.id == id);
            bug.with_context(|| format!("there is no planted bug `{id}`"))
        });
        named.collect::<anyhow::Result<_>>()?
    } else if args.all {
        BUGS.iter().collect()
    } else {
        selftest::rotation(args.seed)
    };
    let binary = run::find_binary(Some(binary))?;
    let scratch = std::env::temp_dir().join(format!("corduroy-selftest-{:x}", env.random_u64()));
    std::fs::create_dir(&scratch)?;
    let mut number = 0;
    let is_stopped = Cell::new(false);
    let report = selftest::mutations(
        &bugs,
        env,
        async |trial: &Trial| {
            if is_stopped.get() {
                return Err(run::INTERRUPTED.to_owned());
            }
            number += 1;
            let out = scratch.join(format!("trial-{number}"));
            let judged = one(env, trial, &binary, &out, args.seed).await;
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
            simulate(&binary, bug, seeds)
                .await
                .map_err(|error| format!("{error:#}"))
        },
        |line| println!("{line}"),
    )
    .await;
    let (caught, all) = (report.caught(), report.bugs.len());
    println!("mutation score: {caught} of {all}");
    if report.is_green() {
        std::fs::remove_dir_all(&scratch)?;
    } else {
        println!("the runs are kept in {}", scratch.display());
    }
    Ok(report.is_green())
}

/// Lets the simulator look for a bug: the build of it that lies beside the node's. The first seed
/// that goes red, and the law that it breaks.
async fn simulate(node: &Path, bug: &Bug, seeds: u64) -> anyhow::Result<Option<(u64, String)>> {
    let program = node.with_file_name("corduroy-sim");
    if !program.is_file() {
        bail!(
            "this one is for the simulator, and there is none at {}; build it with `-p corduroy-sim \
             --features planted-bugs`",
            program.display()
        );
    }
    let output = Command::new(&program)
        .args(["--seeds", &seeds.to_string(), "--until-violation"])
        .env(BUG_VARIABLE, bug.id)
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
    let preflight = Preflight::look(out, nodes, None);
    let names = trial.hint.faults.join(",");
    let asked = faults::parse(&names).map_err(anyhow::Error::msg)?;
    let kinds: Vec<FaultKind> = asked
        .kinds
        .into_iter()
        .filter(|kind| preflight.obstacle(*kind).is_none())
        .collect();
    let workload = WorkloadKind::value_variants()
        .iter()
        .copied()
        .find(|kind| kind.name() == trial.hint.workload)
        .with_context(|| format!("there is no workload `{}`", trial.hint.workload))?;
    let environment = trial
        .bug
        .map(|bug| (BUG_VARIABLE.to_owned(), bug.id.to_owned()));
    let plan = RunPlan {
        seconds: trial.load_seconds,
        nodes,
        workload,
        client: ClientKind::Corduroy,
        kinds,
        rate: RATES[trial.attempt as usize % RATES.len()],
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
