//! `corduroy bench`: what a cluster does under load, seen through our own client.
//!
//! One process, one thread: the client's cost is in every number, and is printed beside it.
//! Latencies count from the moment a record was due, so a stall is not hidden by the records that
//! were not sent meanwhile.

mod consume;
mod end_to_end;
mod load;
mod options;
mod produce;
mod report;
mod spawned;
mod suite;
mod watch;

use clap::Subcommand;

use crate::cli::{CliResult, Context, print, print_json};
use options::{ConsumeArgs, EndToEndArgs, ProduceArgs};
use report::Report;
use suite::SuiteArgs;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Write as fast as the cluster takes it, or at a given rate
    #[command(after_help = "\
Examples:
  corduroy bench produce --partitions 16 --bytes 1024 --duration 10s
  corduroy bench produce --window 1 --linger 0 --records 10000     latency of one at a time
  corduroy bench produce --rate 50000 --watch-pid 4711 --json      half load, a node's CPU")]
    Produce(ProduceArgs),
    /// Read a topic from its start; fills one first if none is named
    #[command(after_help = "\
Examples:
  corduroy bench consume --records 1000000 --bytes 1024
  corduroy bench consume --topic orders --json")]
    Consume(ConsumeArgs),
    /// From the moment a record is due to the moment a reader has it
    #[command(after_help = "\
Examples:
  corduroy bench end-to-end --rate 1000 --linger 0 --duration 10s
  corduroy bench end-to-end --partitions 16 --rate 5000 --bytes 100")]
    EndToEnd(EndToEndArgs),
    /// Rerun the table of docs/benchmarks.md against three nodes of its own
    #[command(after_help = "\
Examples:
  corduroy bench suite                         every row, about five minutes
  corduroy bench suite --duration 1s --json    a quick look")]
    Suite(SuiteArgs),
}

pub(crate) async fn run(context: &Context, command: BenchCommand) -> CliResult {
    match command {
        BenchCommand::Produce(args) => {
            let client = crate::cli::connect(context).await?;
            show(
                &produce::run(&context.env, &client, &args).await?,
                args.load.json,
            )
        }
        BenchCommand::Consume(args) => {
            let client = crate::cli::connect(context).await?;
            show(
                &consume::run(&context.env, &client, &args).await?,
                args.load.json,
            )
        }
        BenchCommand::EndToEnd(args) => {
            let client = crate::cli::connect(context).await?;
            show(
                &end_to_end::run(&context.env, &client, &args).await?,
                args.load.json,
            )
        }
        BenchCommand::Suite(args) => suite::run(&context.env, &args).await,
    }
}

fn show(report: &Report, is_json: bool) -> CliResult {
    if is_json {
        print_json(report)?;
    } else {
        print(&report.text())?;
    }
    Ok(())
}
