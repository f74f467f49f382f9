//! The program: reads the command line, runs, and says in its exit status how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use corduroy_env::Env;
use corduroy_jepsen::cli::{CheckArgs, Cli, Command, PreflightArgs};
use corduroy_jepsen::history::History;
use corduroy_jepsen::preflight::{Look, Preflight};
use corduroy_jepsen::report::RunSummary;
use corduroy_jepsen::verdict::{EXIT_HARNESS, EXIT_PASS};
use corduroy_jepsen::{checker, clean, report, run, trial};

/// Whether anything has panicked: also a task that nobody waits for.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nowhere to print to is no other outcome.
            let _ = error.print();
            return ExitCode::from(match error.use_stderr() {
                true => EXIT_HARNESS,
                false => EXIT_PASS,
            });
        }
    };
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.store(true, Ordering::Relaxed);
        say(panic);
    }));
    let env = Env::real();
    let acted = catch_unwind(AssertUnwindSafe(|| act(&env, cli.command)));
    if HAS_PANICKED.load(Ordering::Relaxed) {
        eprintln!("error: this program has panicked: what it says proves nothing");
        return ExitCode::from(EXIT_HARNESS);
    }
    match acted {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_HARNESS)
        }
        Err(_panicked) => ExitCode::from(EXIT_HARNESS),
    }
}

fn act(env: &Env, command: Command) -> anyhow::Result<u8> {
    // One thread: it may move between network namespaces.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        match command {
            Command::Run(args) => run::run(env, args).await,
            Command::Preflight(args) => preflight(env, &args).await,
            Command::Selftest(args) => trial::selftest(env, &args).await,
            Command::Check(args) => check(&args),
            Command::Clean => {
                let cleaned = clean::clean(env).await?;
                for run in &cleaned.running {
                    println!("run {run} goes on: left alone");
                }
                for run in &cleaned.runs {
                    println!("run {run}: what it left is gone");
                }
                if cleaned.runs.is_empty() && cleaned.running.is_empty() {
                    println!("nothing to clean up");
                }
                Ok(EXIT_PASS)
            }
        }
    })
}

async fn preflight(env: &Env, args: &PreflightArgs) -> anyhow::Result<u8> {
    let (scratch, run_file) = clean::scratch(env, "preflight")?;
    let binary = run::find_binary(None).ok();
    let look = Look {
        scratch: &scratch,
        nodes: args.nodes,
        topology: args.topology.map(Into::into),
        program: binary.as_deref(),
    };
    let found = Preflight::look(env, look).await;
    for line in found.lines() {
        println!("{line}");
    }
    run_file.remove_all(env).await?;
    Ok(EXIT_PASS)
}

fn check(args: &CheckArgs) -> anyhow::Result<u8> {
    let path = if args.history.is_dir() {
        args.history.join("history.jsonl")
    } else {
        args.history.clone()
    };
    let history = History::read(&path)?;
    let verdict = checker::check(&history, &history.header.settings);
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir)?;
        let summary = RunSummary {
            command: format!("corduroy-jepsen check {}", path.display()),
            ..RunSummary::default()
        };
        let files = report::write(dir, &summary, &history, &verdict)?;
        println!("report   {}", files.html.display());
    }
    for finding in &verdict.violations {
        for example in &finding.examples {
            println!("{}: {}", finding.class, example.what);
        }
    }
    println!("{}", verdict.line());
    Ok(verdict.exit_code())
}
