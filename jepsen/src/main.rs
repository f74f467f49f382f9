//! The program: reads the command line, runs, and says in its exit status how it ended.

use std::process::ExitCode;

use clap::Parser;
use corduroy_env::Env;
use corduroy_jepsen::cli::{CheckArgs, Cli, Command, PreflightArgs};
use corduroy_jepsen::history::History;
use corduroy_jepsen::preflight::Preflight;
use corduroy_jepsen::report::RunSummary;
use corduroy_jepsen::verdict::{EXIT_HARNESS, EXIT_PASS};
use corduroy_jepsen::{checker, clean, report, run, trial};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let env = Env::real();
    match act(&env, cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_HARNESS)
        }
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
            Command::Preflight(args) => preflight(env, &args),
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

fn preflight(env: &Env, args: &PreflightArgs) -> anyhow::Result<u8> {
    let scratch = std::env::temp_dir().join(format!("corduroy-preflight-{:x}", env.random_u64()));
    std::fs::create_dir(&scratch)?;
    let found = Preflight::look(&scratch, args.nodes, args.topology.map(Into::into));
    for line in found.lines() {
        println!("{line}");
    }
    std::fs::remove_dir_all(scratch)?;
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
