//! `corduroy start`: a node from its first line to its last.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use corduroy_env::Env;
use tokio::signal::unix::{SignalKind, signal};

use super::beside::beside;
use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK};
use super::output::print;
use super::running::Running;
use crate::config::NodeConfig;
use crate::config::source::split_pair;

/// A signal so soon after the first one is the same one: many a tool signals the process and its
/// group.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_secs(1);
/// How long a graceful stop may take before we give up on it.
const STOP_WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  corduroy start
      one node: Kafka on 127.0.0.1:9092, rpc on 127.0.0.1:33145, admin on 127.0.0.1:9644
  corduroy start --node-id 1 --data-dir d1 --listen 127.0.0.1:9092 --rpc-listen 127.0.0.1:33145 \\
      --seeds 127.0.0.1:33145,127.0.0.1:33146,127.0.0.1:33147
      one of three; the same --seeds on each, its own id, directory and ports

Every setting can also stand in --config FILE (TOML), in --set key=value, or in the environment
(CORDUROY_LISTEN for `listen`). `corduroy config docs` lists them all.

SIGTERM or Ctrl-C hands leaderships over, flushes and ends; a second one ends at once.")]
pub struct StartArgs {
    /// The id that this node claims; without it the cluster assigns one
    #[arg(long, value_name = "N")]
    node_id: Option<i32>,

    /// Where this node keeps what it stores [default: ./corduroy-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Where Kafka clients connect [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    /// The address that clients are told to use [default: the one they came by]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// Where other nodes connect [default: 127.0.0.1:33145]
    #[arg(long, value_name = "HOST:PORT")]
    rpc_listen: Option<String>,

    /// The founders' rpc addresses, the same list on each of them [default: a cluster of its own]
    #[arg(long, value_name = "A,B,C")]
    seeds: Option<String>,

    /// Metrics and health [default: 127.0.0.1:9644, or a free port with --seeds]
    #[arg(long, value_name = "HOST:PORT|off")]
    admin_listen: Option<String>,

    /// Threads that own partitions [default: one for each core]
    #[arg(long, value_name = "N")]
    shards: Option<u32>,

    /// The rack of this node; replicas are spread over racks
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,

    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE", env = "CORDUROY_CONFIG")]
    config: Option<PathBuf>,

    /// Any setting by its name; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl StartArgs {
    /// The settings of a node that is started with these flags.
    pub(super) fn load(&self) -> CliResult<NodeConfig> {
        let config = NodeConfig::load(&self.flags()?, self.config.as_deref());
        config.map_err(|error| CliError::usage(error.to_string()).into())
    }

    /// The flags as settings, `--set` first so that a flag of its own wins.
    fn flags(&self) -> CliResult<Vec<(String, String)>> {
        let mut flags = Vec::new();
        for setting in &self.settings {
            flags.push(split_pair(setting).map_err(|e| CliError::usage(e.to_string()))?);
        }
        let named = [
            ("node.id", self.node_id.map(|id| id.to_string())),
            (
                "data.dir",
                self.data_dir
                    .as_ref()
                    .map(|dir| dir.to_string_lossy().into_owned()),
            ),
            ("listen", self.listen.clone()),
            ("advertised.listeners", self.advertise.clone()),
            ("rpc.listen", self.rpc_listen.clone()),
            ("seeds", self.seeds.clone()),
            ("admin.listen", self.admin_listen.clone()),
            ("shards", self.shards.map(|shards| shards.to_string())),
            ("broker.rack", self.rack.clone()),
        ];
        flags.extend(
            named
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?))),
        );
        Ok(flags)
    }
}

pub(super) fn run(env: &Env, args: &StartArgs) -> CliResult<ExitCode> {
    let config = args.load()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    allow_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(live(env, config));
    runtime.shutdown_background();
    result
}

/// A node holds a few files for each partition and a socket for each client: it asks for as many as
/// the system lets it have, which costs nothing until they are used.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

async fn live(env: &Env, config: NodeConfig) -> CliResult<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stop = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let shown = Shown::of(&config);
    if !config.seeds.is_empty() {
        tracing::info!(seeds = %shown.seeds, "looking for the cluster");
    }
    // Joining may take as long as the other founders take to appear: wait beside the signals.
    let mut starting = {
        let node_env = env.clone();
        beside(env, "start", move || Running::start(&node_env, config))?
    };
    let mut handle = tokio::select! {
        started = &mut starting => match started {
            Ok(Ok(handle)) => handle,
            Ok(Err(error)) => return Err(CliError::failed(error.to_string()).into()),
            Err(_) => return Err(CliError::failed("the node ended while it started").into()),
        },
        name = stop() => {
            // It has answered nobody yet, so there is nothing to hand over or to flush.
            tracing::info!(signal = name, "stopped before the node served");
            return Ok(ExitCode::from(EXIT_OK));
        }
    };
    // Nobody has to read where the node listens; it runs without an audience.
    let _ = print(&shown.greeting(&handle));

    let name = tokio::select! {
        name = stop() => name,
        words = handle.parted() => {
            let stopping = beside(env, "stop", move || handle.stop())?;
            // Whoever else waits is told when it has ended; a second word is not needed.
            let _ = tokio::time::timeout(STOP_WAIT_MAX, stopping).await;
            return Err(CliError::failed(words).into());
        }
    };
    tracing::info!(
        signal = name,
        "stopping: handing leaderships over, flushing"
    );
    let stopping = beside(env, "stop", move || handle.stop())?;
    tokio::select! {
        stopped = stopping => match stopped {
            Ok(()) => {
                tracing::info!("stopped");
                Ok(ExitCode::from(EXIT_OK))
            }
            Err(_) => Err(CliError::failed("the node broke down while it stopped").into()),
        },
        name = again(env, &mut stop) => {
            tracing::warn!(signal = name, "stopped at once, on request");
            Ok(ExitCode::from(EXIT_FAILED))
        }
        () = env.sleep(STOP_WAIT_MAX) => {
            tracing::error!(seconds = STOP_WAIT_MAX.as_secs(), "the node did not stop in time");
            Ok(ExitCode::from(EXIT_FAILED))
        }
    }
}

/// The next signal that somebody meant as a second one.
async fn again(env: &Env, stop: &mut impl AsyncFnMut() -> &'static str) -> &'static str {
    let until = env.now() + SECOND_SIGNAL_AFTER;
    loop {
        let name = stop().await;
        if env.now() >= until {
            return name;
        }
    }
}

/// What the greeting tells of the configuration.
struct Shown {
    data_dir: PathBuf,
    shards: usize,
    seeds: String,
}

impl Shown {
    fn of(config: &NodeConfig) -> Shown {
        let seeds: Vec<String> = config.seeds.iter().map(ToString::to_string).collect();
        Shown {
            data_dir: config.data_dir.clone(),
            shards: config.shards,
            seeds: seeds.join(","),
        }
    }

    fn greeting(&self, handle: &Running) -> String {
        let kafka = handle.kafka_addr();
        let admin = match handle.admin_addr() {
            Some(addr) => format!("http://{addr}  (/metrics, /health/cluster)"),
            None => "off".to_owned(),
        };
        let data_dir = self.data_dir.display();
        let shards = self.shards;
        let plural = if shards == 1 { "" } else { "s" };
        format!(
            "corduroy {version}, node {node}, is serving\n  kafka  {kafka}\n  rpc    {rpc}\n  admin  \
             {admin}\n  data   {data_dir}  ({shards} shard{plural})\n  try    echo hi | corduroy \
             produce greetings --brokers {kafka}\n",
            version = env!("CARGO_PKG_VERSION"),
            node = handle.node_id(),
            rpc = handle.rpc_addr(),
        )
    }
}
