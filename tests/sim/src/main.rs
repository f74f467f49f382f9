//! Runs seeds: one process each, so that nothing of one run is left for the next.

mod batch;
mod entropy;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use corduroy_env::Env;
use corduroy_sim::{FaultClass, RunOptions, RunReport, note_panic, run_seed};

// As in the node's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A law was broken.
const VIOLATION: u8 = 1;
/// Too little was reached for green to mean anything.
const TOO_LITTLE: u8 = 2;
/// The simulator itself failed.
const BROKEN: u8 = 3;
/// A run that takes longer on this machine's clock, per simulated minute, hangs.
const REAL_SECONDS_PER_MINUTE_MAX: u64 = 600;

/// Runs whole clusters under seeds, with faults, and checks them at every step.
///
/// Exit status: 0 no law was broken, 1 one was, 2 the batch did not reach what it has to reach,
/// 3 the simulator itself failed. Status 2 comes only with at least 50 seeds and all classes: fewer
/// say what they reached and need not reach every point.
#[derive(Debug, Parser)]
#[command(name = "corduroy-sim", version)]
struct Arguments {
    /// How many seeds; from 50 on, each point that is counted has to be reached.
    #[arg(long, default_value_t = 50)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Only this one, in this process.
    #[arg(long)]
    seed: Option<u64>,
    /// Length of the phase with faults, in simulated minutes.
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// The same in simulated seconds.
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// A class of faults that does not happen; may be repeated.
    #[arg(long, value_name = "CLASS")]
    without: Vec<FaultClass>,
    /// Processes at the same time; by default one per core.
    #[arg(long)]
    jobs: Option<usize>,
    /// Begin no further seed once a law was broken.
    #[arg(long)]
    until_violation: bool,
    /// With --seed: every event as a line in this file.
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// With --seed: what the nodes log, as for `corduroy start --log`.
    #[arg(long, value_name = "FILTER", requires = "seed")]
    log: Option<String>,
}

impl Arguments {
    fn fault_seconds(&self) -> u64 {
        self.seconds.unwrap_or(self.minutes * 60)
    }

    fn run_options(&self, seed: u64) -> RunOptions {
        RunOptions {
            seed,
            fault_seconds: self.fault_seconds(),
            without: self.without.clone(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "planted-bugs")]
    if let Err(name) = corduroy_env::planted::choose_from_environment() {
        eprintln!("error: there is no planted bug `{name}`");
        return ExitCode::from(BROKEN);
    }
    let done = match arguments.seed {
        Some(seed) => run_one(&arguments, seed),
        None => batch::run(&arguments),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(BROKEN)
        }
    }
}

/// One seed, on a new thread: its hash maps take their keys from the seed.
fn run_one(arguments: &Arguments, seed: u64) -> anyhow::Result<u8> {
    if let Some(filter) = &arguments.log {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::try_new(filter)?)
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        note_panic();
        told(panic);
    }));
    let options = arguments.run_options(seed);
    let file = arguments.trace.as_ref().map(File::create).transpose()?;
    let (sender, receiver) = std::sync::mpsc::channel();
    entropy::seed(seed);
    let thread = Env::real().spawn_thread("simulation", move || {
        // Whoever waits has given up if nobody takes it.
        let _late = sender.send(run_seed(&options, file));
    })?;
    let limit = Duration::from_secs(
        REAL_SECONDS_PER_MINUTE_MAX * arguments.fault_seconds().div_ceil(60).max(1),
    );
    let report = match receiver.recv_timeout(limit) {
        Ok(report) => report?,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
            anyhow::bail!("seed {seed} hangs: no end after {} s", limit.as_secs());
        }
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            anyhow::bail!("the simulation of seed {seed} panicked");
        }
    };
    drop(thread);
    Ok(show(seed, &report))
}

/// The report of one seed, in the form that a batch reads.
fn show(seed: u64, report: &RunReport) -> u8 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu_micros = cpu.tv_sec * 1_000_000 + cpu.tv_nsec / 1_000;
    let [acked, failed, unknown, read] = report.records;
    println!(
        "seed={seed} trace={:016x} events={} millis={} cpu_micros={cpu_micros} acked={acked} \
         failed={failed} unknown={unknown} read={read}",
        report.trace, report.events, report.millis
    );
    let counts: Vec<String> = report
        .sometimes
        .counts()
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    println!("reached {}", counts.join(" "));
    match &report.violation {
        None => 0,
        Some(violation) => {
            println!("violation {violation}");
            VIOLATION
        }
    }
}
