//! `corduroy bench`: what a cluster does under load, seen through our own client.
//!
//! One process, one thread: the client's cost is in every number, and is printed beside it.
//! Latencies count from the moment a record was due, so a stall is not hidden by the records that
//! were not sent meanwhile. A signal ends a measurement; the topic that was made for it goes.

mod commits;
mod consume;
mod end_to_end;
mod group;
mod load;
mod options;
mod produce;
mod progress;
mod report;
mod spawned;
mod suite;
mod suite_groups;
mod suite_nodes;
mod target;
mod watch;
mod wire;

use clap::Subcommand;

use crate::cli::{CliError, CliResult, Context, Interrupt, connect_to_measure, print, print_json};
use commits::CommitsArgs;
use group::GroupArgs;
use options::{ConsumeArgs, EndToEndArgs, ProduceArgs};
use report::AnyReport;
use suite::SuiteArgs;
use target::Target;

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
    /// A group of many members: from its first join until it is stable, at rest, and when one leaves
    #[command(after_help = "\
Where no cluster is named, three nodes are started for it. Members learn that one has left by their
next heartbeat: up to 3 s (classic) or what the coordinator says (consumer) of that time are theirs.

Examples:
  corduroy bench group                         1,000 members, 1,000 partitions, classic protocol
  corduroy bench group --protocol consumer --members 100 --json
  corduroy bench group --brokers host:9092 --watch-pid 4711")]
    Group(GroupArgs),
    /// Offset commits a second, and for each core of the nodes
    #[command(after_help = "\
Where no cluster is named, three nodes are started for it.

Examples:
  corduroy bench commits                       64 groups, one commit at a time each
  corduroy bench commits --groups 1 --partitions 100 --in-flight 8 --for 30s
  corduroy bench commits --brokers host:9092 --watch-pid 4711 --json")]
    Commits(CommitsArgs),
    /// Rerun the tables of docs/benchmarks.md against three nodes of its own
    #[command(after_help = "\
Examples:
  corduroy bench suite                         every row, about eleven minutes
  corduroy bench suite --duration 1s --json    a quick look")]
    Suite(SuiteArgs),
}

pub(crate) async fn run(context: &Context, command: BenchCommand) -> CliResult {
    let env = &context.env;
    let mut interrupt = Interrupt::listen(env)?;
    match command {
        BenchCommand::Produce(args) => {
            let client = unless(&mut interrupt, connect_to_measure(context)).await?;
            let report = produce::run(env, &client, &args, &mut interrupt).await?;
            show(report, args.load.json)
        }
        BenchCommand::Consume(args) => {
            let client = unless(&mut interrupt, connect_to_measure(context)).await?;
            let report = consume::run(env, &client, &args, &mut interrupt).await?;
            show(report, args.load.json)
        }
        BenchCommand::EndToEnd(args) => {
            let client = unless(&mut interrupt, connect_to_measure(context)).await?;
            let report = end_to_end::run(env, &client, &args, &mut interrupt).await?;
            show(report, args.load.json)
        }
        BenchCommand::Group(args) => {
            let opening = Target::open(context, &args.watch_pid);
            let target = unless(&mut interrupt, opening).await?;
            let (client, pids) = (&target.client, &target.pids);
            let report = group::measure(env, client, &args, pids, &mut interrupt).await;
            let closed = target.close(env).await;
            show(report?, args.json)?;
            closed
        }
        BenchCommand::Commits(args) => {
            let opening = Target::open(context, &args.watch_pid);
            let target = unless(&mut interrupt, opening).await?;
            let (client, pids) = (&target.client, &target.pids);
            let report = commits::measure(env, client, &args, pids, &mut interrupt).await;
            let closed = target.close(env).await;
            show(report?, args.json)?;
            closed
        }
        BenchCommand::Suite(args) => suite::run(env, &args, &mut interrupt).await,
    }
}

/// Does `work`, unless a signal comes first: then it is dropped.
async fn unless<T>(
    interrupt: &mut Interrupt,
    work: impl Future<Output = CliResult<T>>,
) -> CliResult<T> {
    tokio::select! {
        biased;
        name = interrupt.first() => Err(CliError::failed(format!("ended by {name}")).into()),
        done = work => done,
    }
}

fn show(report: impl Into<AnyReport>, is_json: bool) -> CliResult {
    let report = report.into();
    if is_json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    Ok(())
}
