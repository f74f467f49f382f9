//! `corduroy-jepsen selftest`: the hand-made histories, and runs of a build with planted bugs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use corduroy_env::Env;

use crate::cli::SelftestArgs;
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
    let mut is_interrupted = false;
    let report = selftest::mutations(
        &bugs,
        env,
        async |trial: &Trial| {
            if is_interrupted {
                return Err(run::INTERRUPTED.to_owned());
            }
            number += 1;
            let out = scratch.join(format!("trial-{number}"));
            let judged = one(env, trial, &binary, &out, args.seed).await;
            judged.map_err(|error| {
                let reason = format!("{error:#}");
                is_interrupted |= reason == run::INTERRUPTED;
                reason
            })
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
