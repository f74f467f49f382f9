//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::faults::{self, Asked};
use crate::history::Acks;
use crate::selftest;
use crate::topology::TopologyKind;
use crate::workload::WorkloadKind;

/// Corduroy's fault tests: real processes, real faults, a checker.
#[derive(Debug, Parser)]
#[command(
    name = "corduroy-jepsen",
    version,
    after_help = "\
Exit status: 0 everything was as promised and enough was seen; 1 a violation; 2 too little was seen,
or what was asked for is not to be had here: a fault by name, the build with planted bugs, one with
librdkafka; 3 the harness itself failed, or was called wrongly."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run nodes, clients and faults; judge what the clients saw
    #[command(after_help = "\
Examples:
  corduroy-jepsen run
      three nodes, the queue workload, every fault that is possible here, 300 s
  corduroy-jepsen run --time 60 --faults kill,pause
  corduroy-jepsen run --faults network,power --workload list-append --seed 7
  corduroy-jepsen run --faults none
      the same clients without any fault
  corduroy-jepsen run --bug ack-before-flush --faults power-loss-all --time 30
      a node that is broken on purpose: has to end with 1 (needs the build of `selftest`, and root)

Faults: kill pause freeze restart leadership-transfer | partition partition-one-way connection-reset delay loss
reorder duplicate bandwidth | disk-slow disk-error read-error short-write disk-full flush-fail bit-rot |
power-loss power-loss-all | clock | membership. Groups: process, network, disk, power, all, none.
`all` takes what is possible here and says what is not; a fault or group named by itself must be
possible.")]
    Run(RunArgs),
    /// Show which faults are possible on this machine
    Preflight(PreflightArgs),
    /// Judge hand-made histories, then hunt planted bugs: three in rotation, or all of them
    #[command(after_help = "\
Examples:
  corduroy-jepsen selftest
      every history, and three of the planted bugs
  corduroy-jepsen selftest --all
      every history and every bug; each takes a run of 15 to 90 s, or more of them
  corduroy-jepsen selftest --histories-only

The build with planted bugs is looked for at target/planted/corduroy, where this puts it:
  cargo build --profile planted -p corduroy -p corduroy-sim --features planted-bugs

Exit status: 0 every history was judged exactly, every bug caught under its right name, and a run without
one was clean; 1 that is not so; 2 there is no such build.")]
    Selftest(SelftestArgs),
    /// Judge a history again
    Check(CheckArgs),
    /// Remove what crashed runs left on this machine: processes, namespaces, mounts, loop devices
    Clean,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Seconds of load
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub time: u64,

    /// Nodes [default: 3; 1 for the durability workload]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub nodes: Option<u8>,

    /// What clients do
    #[arg(long, value_enum, default_value_t = WorkloadKind::Queue)]
    pub workload: WorkloadKind,

    /// Which faults come
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = faults::parse)]
    pub faults: Asked,

    /// Records sent per second, all producers together
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,

    /// Decides which faults come when, and what clients do [default: a random one, printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Whose producers and consumers make the calls; librdkafka needs a build with `--features
    /// librdkafka`
    #[arg(long, value_enum, default_value_t = ClientKind::Corduroy)]
    pub client: ClientKind,

    /// Where everything goes; must not exist [default: ./jepsen-SEED]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// The program under test [default: `corduroy` beside this program, or as cargo builds it]
    #[arg(long, value_name = "PATH", env = "CORDUROY_BINARY")]
    pub binary: Option<PathBuf>,

    /// Plant this bug into the nodes, which need a build with the cargo feature `planted-bugs` [the
    /// program's default is that build then]
    #[arg(long, value_name = "NAME", env = "CORDUROY_PLANTED_BUG")]
    pub bug: Option<String>,

    /// What a write's acknowledgement waits for; without `all` producers are not idempotent, and
    /// less is promised
    #[arg(long, value_enum, default_value_t = AcksArg::All)]
    pub acks: AcksArg,

    /// Producers without idempotence: a request that is repeated may write twice, or overtake
    #[arg(long)]
    pub no_idempotence: bool,

    /// How the nodes are connected [default: namespaces where possible]
    #[arg(long, value_enum)]
    pub topology: Option<TopologyArg>,

    /// A further setting of each node; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,

    /// Keep data directories also when all is well
    #[arg(long)]
    pub keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientKind {
    /// The client of this repository
    Corduroy,
    /// librdkafka
    Librdkafka,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AcksArg {
    /// All replicas in sync have it
    All,
    /// The leader has it
    #[value(name = "1")]
    Leader,
    /// Nothing
    #[value(name = "0")]
    None,
}

impl From<AcksArg> for Acks {
    fn from(arg: AcksArg) -> Acks {
        match arg {
            AcksArg::All => Acks::All,
            AcksArg::Leader => Acks::Leader,
            AcksArg::None => Acks::None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopologyArg {
    /// TCP proxies on loopback; no rights needed
    Loopback,
    /// A network namespace for each node and a packet router; root
    Namespaces,
}

impl From<TopologyArg> for TopologyKind {
    fn from(arg: TopologyArg) -> TopologyKind {
        match arg {
            TopologyArg::Loopback => TopologyKind::Loopback,
            TopologyArg::Namespaces => TopologyKind::Namespaces,
        }
    }
}

#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// Nodes that a run would have
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub nodes: u8,

    /// How the nodes would be connected
    #[arg(long, value_enum)]
    pub topology: Option<TopologyArg>,
}

#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// All planted bugs instead of some in rotation
    #[arg(long, conflicts_with = "bugs")]
    pub all: bool,

    /// How many planted bugs a rotation has
    #[arg(long, value_name = "N", default_value_t = selftest::ROTATION)]
    pub count: usize,

    /// Judge the histories and no planted bug
    #[arg(long, conflicts_with_all = ["all", "bugs"])]
    pub histories_only: bool,

    /// A build with the cargo feature `planted-bugs` [default: target/planted/corduroy]
    #[arg(long, value_name = "PATH", env = "CORDUROY_PLANTED_BINARY")]
    pub planted_binary: Option<PathBuf>,

    /// Only these bugs, by id; repeatable
    #[arg(long = "bug", value_name = "ID")]
    pub bugs: Vec<String>,

    /// Mixed into every trial's seed, and the place in the rotation [default: the number of the day,
    /// so that each day has other bugs]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// history.jsonl of a run, or a run's directory
    #[arg(value_name = "HISTORY")]
    pub history: PathBuf,

    /// Also write results.json and report.html into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
