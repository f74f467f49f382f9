//! The command line: what a person types, and what comes back.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 the command did
//! what it was asked to do, 1 it could not, 2 the command line or a configuration file is wrong.

mod admins;
mod beside;
mod cluster;
mod cluster_view;
mod completions;
mod config;
mod connect;
mod consume;
mod debug;
mod error;
mod format;
mod group;
mod group_seek;
mod group_view;
mod http;
mod intake;
mod interrupt;
mod logging;
mod output;
mod partition;
#[cfg(feature = "planted-bugs")]
mod planted;
mod position;
mod produce;
mod record_json;
mod running;
mod start;
mod time;
mod topic;
mod topic_view;
mod waiting;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use corduroy_env::Env;

pub(crate) use beside::{beside, meanwhile};
pub(crate) use connect::{
    ConnectArgs, client_error, connect_to, connect_to_measure, names_a_cluster,
};
pub(crate) use error::{CliError, CliResult, EXIT_FAILED, EXIT_OK, EXIT_USAGE, Stop};
pub(crate) use interrupt::Interrupt;
pub(crate) use output::{plural, print, print_json, show_count, show_ids};
pub(crate) use produce::{AcksArg, Codec};
pub(crate) use running::Running;
pub(crate) use time::{parse_duration, show_duration};

use crate::{bench, demo};

/// What `--version` prints.
const VERSION: &str = if cfg!(feature = "planted-bugs") {
    concat!(env!("CARGO_PKG_VERSION"), "+planted-bugs")
} else {
    env!("CARGO_PKG_VERSION")
};

/// A replicated log that speaks Kafka's protocol.
#[derive(Debug, Parser)]
#[command(
    name = "corduroy",
    version = VERSION,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = "\
Examples:
  corduroy demo                                   three nodes, live traffic, things to try
  corduroy start                                  one node on 127.0.0.1:9092
  echo hi | corduroy produce greetings            one record in
  corduroy consume greetings --exit               and out again

Exit codes: 0 done, 1 failed (an unknown topic, an unhealthy cluster), 2 wrong usage.")]
struct Cli {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    log: logging::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node
    Start(start::StartArgs),
    /// Try it: a cluster of three in this process, live traffic, faults at your command
    Demo(demo::DemoArgs),
    /// Create, list, describe, change and delete topics
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Write records from standard input
    Produce(produce::ProduceArgs),
    /// Read records to standard output
    Consume(consume::ConsumeArgs),
    /// List, describe, move and delete consumer groups
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Look at the cluster
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Act on one partition
    #[command(subcommand)]
    Partition(partition::PartitionCommand),
    /// Show, change and explain the cluster's settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Measure a cluster
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Look inside a node's files
    #[command(subcommand)]
    Debug(debug::DebugCommand),
    /// Print what a shell needs to complete these commands
    Completions(completions::CompletionsArgs),
}

/// Everything a command is given besides its own arguments.
pub(crate) struct Context {
    pub(crate) env: Env,
    pub(crate) connect: ConnectArgs,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() {
                EXIT_USAGE
            } else {
                EXIT_OK
            };
            // A closed pipe while printing help is the reader's choice.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(Stop::PipeClosed) => ExitCode::from(EXIT_OK),
        Err(Stop::Told) => ExitCode::from(EXIT_FAILED),
        Err(Stop::Error(error)) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit())
        }
    }
}

fn dispatch(cli: Cli) -> CliResult<ExitCode> {
    // A node reports its life, but not each step of its Raft engine; other commands speak for
    // themselves, and the demo kills nodes on purpose.
    let default_filter = match &cli.command {
        Command::Start(_) => "info,openraft=off",
        _ => "error,openraft=off",
    };
    let env = Env::real();
    // These wait for a cluster that may not be there; the others say themselves what they wait for.
    let notice = match &cli.command {
        Command::Topic(_)
        | Command::Produce(_)
        | Command::Consume(_)
        | Command::Group(_)
        | Command::Partition(_)
        | Command::Config(_) => Some(waiting::RetryNotice::new(env.clone())),
        _ => None,
    };
    logging::start(&cli.log, default_filter, notice)?;
    #[cfg(feature = "planted-bugs")]
    planted::announce()?;
    let context = Context {
        env,
        connect: cli.connect,
    };
    let done = |()| ExitCode::from(EXIT_OK);
    match cli.command {
        Command::Start(args) => start::run(&context.env, &args),
        Command::Config(command) => on_runtime(config::run(&context, command)).map(done),
        Command::Debug(command) => debug::run(&command),
        Command::Completions(args) => completions::run(&args, Cli::command()).map(done),
        Command::Demo(args) => on_runtime(demo::run(&context, args)),
        Command::Topic(command) => on_runtime(topic::run(&context, command)).map(done),
        Command::Produce(args) => on_runtime(produce::run(&context, args)),
        Command::Consume(args) => on_runtime(consume::run(&context, args)).map(done),
        Command::Group(command) => on_runtime(group::run(&context, command)).map(done),
        Command::Cluster(command) => on_runtime(cluster::run(&context, command)),
        Command::Partition(command) => on_runtime(partition::run(&context, command)).map(done),
        Command::Bench(command) => on_runtime(bench::run(&context, command)).map(done),
    }
}

/// Runs one command to its end on this thread.
fn on_runtime<T>(command: impl Future<Output = CliResult<T>>) -> CliResult<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, command);
    drop(local);
    // A read of standard input can't be cancelled; it must not keep the process alive.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_agree_with_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_has_one_form() {
        // A second, longer form would need a person to know both `-h` and `--help`.
        fn check(command: &mut clap::Command) {
            let (short, long) = (command.render_help(), command.render_long_help());
            let squeezed = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(
                squeezed(short.to_string()),
                squeezed(long.to_string()),
                "{}",
                command.get_name()
            );
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        check(&mut command);
    }

    #[test]
    fn every_command_has_an_example_in_its_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            if command.get_subcommands().next().is_none() {
                let help = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let example = format!("{path} ");
                assert!(
                    help.contains("Example") && help.contains(example.trim()),
                    "`{path}` has no example in its help"
                );
            }
            command
                .get_subcommands()
                .for_each(|command| check(command, &path));
        }
        Cli::command()
            .get_subcommands()
            .for_each(|command| check(command, "corduroy"));
    }

    #[test]
    fn command_lines_of_the_documentation_parse() {
        for line in [
            "demo --for 20s",
            "start --node-id 1 --data-dir d1 --listen 127.0.0.1:9092 --rpc-listen 127.0.0.1:33145 \
             --seeds 127.0.0.1:33145,127.0.0.1:33146 --admin-listen off --shards 2 --set a=b",
            "topic create orders -p 6 -r 3 -c min.insync.replicas=2",
            "topic describe orders -o json",
            "topic add-partitions orders --to 12",
            "topic add-partitions orders --by 2",
            "produce orders -K: -H a=b -p 3 -z lz4 --acks 1",
            "produce orders -f %k:%v\\n --brokers a:1,b:2",
            "consume orders -o -10 -n 5 -f %p",
            "consume orders -o @-5m --json --exit --isolation read_committed",
            "consume orders -g billing -n 5",
            "group list -o json",
            "group describe billing",
            "group seek billing --to @-1h --dry-run",
            "group seek billing --to -100 --topic orders/3 --topic payments",
            "group seek billing --to +5",
            "group delete billing",
            "cluster health --wait 30s",
            "partition lead orders/3 2",
            "config docs",
            "config print --config corduroy.toml --set shards=2 -o json",
            "completions bash",
            "debug log-dump dir --verify",
            "bench produce --records 1000 --bytes 100 --json",
            "bench group --members 100 --partitions 50 --protocol consumer --json",
            "bench commits --groups 10 --partitions 5 --in-flight 4 --for 10s",
            "bench suite",
        ] {
            let words = std::iter::once("corduroy").chain(line.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("`{line}`: {error}");
            }
        }
    }

    #[test]
    fn wrong_command_lines_are_usage_errors() {
        for line in [
            "",
            "topic",
            "consume",
            "consume t -o sometimes",
            "topic add-partitions orders",
            "topic add-partitions orders --to 8 --by 2",
            "produce t -z rar",
            "produce t --acks 2",
            "consume t -g a -p 1",
            "group seek billing",
            "group seek billing --to sometimes",
            "cluster health --wait soon",
            "partition lead orders 2",
        ] {
            let words = std::iter::once("corduroy").chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "`{line}`");
        }
    }
}
