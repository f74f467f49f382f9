//! `corduroy demo`: a real cluster in one process, live traffic, faults at the user's command.

mod cluster;
mod ledger;
mod sample;
mod traffic;
mod verdict;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use corduroy_client::{Client, From};
use corduroy_env::Env;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

pub(crate) use cluster::free_ports;

use crate::cli::{
    self, CliError, CliResult, EXIT_FAILED, EXIT_OK, client_error, parse_duration, print,
    show_count,
};
use cluster::{DemoCluster, NODES};
use sample::{PARTITIONS, TOPIC};
use traffic::Traffic;
use verdict::{Verdict, at};

/// How long the nodes may take until they have met and serve.
const START_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long the cluster may take until every partition has a leader again.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(30);

/// How often the state is printed while nobody types.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// How often removing the directory is tried again, and how soon.
const REMOVE_TRIES_MAX: usize = 40;
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  corduroy demo
      three nodes in this process, live traffic; type `kill 2`, `heal`, `quit`
  corduroy demo --for 20s
      produces with acks=all, kills a leader, heals, reads everything back, prints a verdict;
      exits with 0 if every acknowledged record is there once and in order, else with 1")]
pub struct DemoArgs {
    /// Run by itself for this long: produce, kill a leader, heal, verify
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    duration: Option<Duration>,

    /// Records a second
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,

    /// Keep the nodes' data in this directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// The demo at work.
struct Demo {
    env: Env,
    started: Instant,
    cluster: DemoCluster,
    client: Client,
    traffic: Traffic,
}

pub(crate) async fn run(context: &cli::Context, args: DemoArgs) -> CliResult<ExitCode> {
    let env = context.env.clone();
    let temporary = match args.data_dir {
        Some(_) => None,
        None => Some(
            tempfile::Builder::new()
                .prefix("corduroy-demo-")
                .tempdir()?,
        ),
    };
    let root = match (&args.data_dir, &temporary) {
        (Some(dir), _) => dir.clone(),
        (None, Some(dir)) => dir.path().to_owned(),
        (None, None) => return Err(CliError::failed("the demo has no directory").into()),
    };
    let played = play(&env, &args, &root).await;
    if let Some(dir) = temporary {
        remove(&env, dir.keep()).await;
    }
    played
}

/// Removes the demo's directory. A node that was still starting when the demo was interrupted may
/// write into it at the same time; it dies with us.
async fn remove(env: &Env, dir: PathBuf) {
    for _ in 0..REMOVE_TRIES_MAX {
        match std::fs::remove_dir_all(&dir) {
            Err(_) if dir.exists() => env.sleep(REMOVE_PAUSE).await,
            _ => return,
        }
    }
    eprintln!("warning: {} could not be removed", dir.display());
}

/// Does `work` unless SIGINT or SIGTERM comes first. The nodes die with us then; what is to be seen
/// of the demo is over.
async fn unless_interrupted<T>(
    work: impl Future<Output = CliResult<T>>,
) -> CliResult<Result<T, ExitCode>> {
    tokio::select! {
        done = work => done.map(Ok),
        stopped = interrupted() => stopped.map(Err),
    }
}

async fn interrupted() -> CliResult<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    eprintln!("interrupted: no verdict");
    Ok(ExitCode::from(EXIT_FAILED))
}

async fn play(env: &Env, args: &DemoArgs, root: &Path) -> CliResult<ExitCode> {
    let mut demo = match unless_interrupted(begin(env, args, root)).await? {
        Ok(demo) => demo,
        Err(code) => return Ok(code),
    };
    match args.duration {
        Some(duration) => {
            if let Err(code) = unless_interrupted(demo.play(duration)).await? {
                return Ok(code);
            }
        }
        // Here a signal is a way to say "enough": the verdict follows.
        None => demo.obey().await?,
    }
    match unless_interrupted(demo.conclude()).await? {
        Ok(code) | Err(code) => Ok(code),
    }
}

/// Starts the nodes, the topic and the traffic.
async fn begin(env: &Env, args: &DemoArgs, root: &Path) -> CliResult<Demo> {
    let begun = env.now();
    let start = tokio::time::timeout(START_WAIT_MAX, DemoCluster::start(env, root));
    let cluster = start.await.map_err(|_| {
        CliError::failed(format!(
            "the nodes did not form a cluster within {} s",
            START_WAIT_MAX.as_secs()
        ))
        .help("`corduroy demo --log info` shows what they say")
    })??;
    let client = cli::connect_to(&cluster.bootstrap()).await?;
    create_topic(&client).await?;
    settled(env, &client).await?;
    print(&format!(
        "corduroy demo: {NODES} nodes in this process, up after {}\n  brokers  {}\n  topic    \
         {TOPIC} ({PARTITIONS} partitions x {NODES} replicas), {} records/s with acks=all\n  data  \
         \u{20}  {}\n",
        at(env.now() - begun),
        cluster.bootstrap(),
        show_count(args.rate.into()),
        root.display(),
    ))?;
    if let Some(admin) = cluster.admin() {
        print(&format!("  admin    http://{admin}/health/cluster\n"))?;
    }
    let traffic = Traffic::start(env, &client, args.rate);
    let started = env.now();
    first_record(env, &client).await?;
    print(&format!(
        "  first record readable {} after the start\n",
        at(env.now() - begun)
    ))?;
    Ok(Demo {
        env: env.clone(),
        started,
        cluster,
        client,
        traffic,
    })
}

async fn create_topic(client: &Client) -> CliResult {
    client
        .admin()
        .create_topic(TOPIC)
        .partitions(PARTITIONS)
        .replication(NODES as i16)
        .config("min.insync.replicas", "2")
        .ensure()
        .await
        .map_err(|error| client_error(&error, "cannot create the demo's topic"))?;
    Ok(())
}

/// The leader of each partition; `None` where there is none.
async fn leaders(client: &Client) -> CliResult<Vec<Option<i32>>> {
    let topic = client
        .admin()
        .describe_topic(TOPIC)
        .await
        .map_err(|error| client_error(&error, "cannot describe the demo's topic"))?;
    Ok(topic
        .partitions
        .iter()
        .map(|partition| partition.leader)
        .collect())
}

/// Waits until every partition has a leader.
async fn settled(env: &Env, client: &Client) -> CliResult {
    let deadline = env.now() + SETTLE_WAIT_MAX;
    loop {
        let last = match leaders(client).await {
            Ok(leaders) if !leaders.is_empty() && leaders.iter().all(Option::is_some) => {
                return Ok(());
            }
            Ok(leaders) => format!("{leaders:?}"),
            Err(cli::Stop::Error(error)) => error.to_string(),
            Err(stop) => return Err(stop),
        };
        if env.now() >= deadline {
            return Err(CliError::failed("the cluster did not settle")
                .fact("waited", format!("{} s", SETTLE_WAIT_MAX.as_secs()))
                .fact("leaders", last)
                .into());
        }
        env.sleep(Duration::from_millis(50)).await;
    }
}

/// Returns when a consumer has the first record.
async fn first_record(env: &Env, client: &Client) -> CliResult {
    let mut reader = client.read(TOPIC).from(From::Earliest).follow();
    tokio::select! {
        batch = reader.next() => match batch {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(client_error(&error, "cannot read the demo's topic").into()),
            None => Err(CliError::failed("the demo's topic has no records").into()),
        },
        () = env.sleep(SETTLE_WAIT_MAX) => {
            let seconds = SETTLE_WAIT_MAX.as_secs();
            Err(CliError::failed(format!("no record was readable within {seconds} s")).into())
        }
    }
}

impl Demo {
    /// One line with the time, on standard output.
    fn say(&self, text: &str) -> CliResult {
        Ok(print(&format!(
            "{:>8}  {text}\n",
            at(self.env.now() - self.started)
        ))?)
    }

    /// The run that needs nobody: a leader dies after a third and comes back after two.
    async fn play(&mut self, duration: Duration) -> CliResult {
        self.env.sleep(duration / 3).await;
        let victim = leaders(&self.client).await?.into_iter().flatten().next();
        let victim = victim
            .and_then(|node| usize::try_from(node).ok())
            .unwrap_or(1);
        self.kill(victim).await?;
        self.env.sleep(duration / 3).await;
        self.heal().await?;
        self.env.sleep(duration / 3).await;
        Ok(())
    }

    /// The run that obeys its user until he has seen enough.
    async fn obey(&mut self) -> CliResult {
        print(&format!(
            "\nThings to try:\n  kill 2      node 2 dies without a word; watch its leaders \
             move\n  heal        start it again\n  corduroy consume {TOPIC} --brokers {}\n           \
             \u{20} in another terminal: read along\n  quit        stop, read everything back, \
             print a verdict\n\n",
            self.cluster.bootstrap()
        ))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut is_listening = true;
        let mut ticks = tokio::time::interval(STATUS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.status().await?,
                line = lines.next_line(), if is_listening => match line? {
                    Some(line) => {
                        if !self.command(line.trim()).await? {
                            return Ok(());
                        }
                    }
                    // No terminal: run until a signal.
                    None => is_listening = false,
                },
                result = tokio::signal::ctrl_c() => return Ok(result?),
                _ = terminate.recv() => return Ok(()),
            }
        }
    }

    /// Does what one line says; `false` to end.
    async fn command(&mut self, line: &str) -> CliResult<bool> {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (None, _) | (Some("status"), None) => self.status().await?,
            (Some("kill"), Some(number)) => match number.parse() {
                Ok(number) if self.cluster.is_up(number) => self.kill(number).await?,
                _ => self.say(&format!(
                    "no running node `{number}`; nodes are 1 to {NODES}"
                ))?,
            },
            (Some("heal"), None) => self.heal().await?,
            (Some("quit" | "exit" | "q"), None) => return Ok(false),
            _ => self.say("commands: kill N, heal, status, quit")?,
        }
        Ok(true)
    }

    async fn kill(&mut self, number: usize) -> CliResult {
        let led = self.led_by(number).await;
        self.cluster.kill(number).await?;
        self.say(&format!("killed node {number} ({led})"))
    }

    async fn led_by(&self, number: usize) -> String {
        let leaders = leaders(&self.client).await.unwrap_or_default();
        let led: Vec<String> = leaders
            .iter()
            .enumerate()
            .filter(|(_, leader)| {
                leader.and_then(|node| usize::try_from(node).ok()) == Some(number)
            })
            .map(|(partition, _)| format!("{TOPIC}/{partition}"))
            .collect();
        if led.is_empty() {
            "it led nothing".to_owned()
        } else {
            format!("it led {}", led.join(", "))
        }
    }

    async fn heal(&mut self) -> CliResult {
        let begun = self.env.now();
        let healed = self.cluster.heal().await?;
        if healed.is_empty() {
            return self.say("nothing to heal: every node is up");
        }
        for number in healed {
            self.say(&format!(
                "started node {number} again, it serves after {}",
                at(self.env.now() - begun)
            ))?;
        }
        Ok(())
    }

    async fn status(&self) -> CliResult {
        let (acknowledged, failed) = {
            let ledger = self.traffic.ledger().borrow();
            (ledger.acknowledged_count(), ledger.failed_count())
        };
        let down = self.cluster.down();
        let shown_leaders = match leaders(&self.client).await {
            Ok(leaders) => leaders
                .iter()
                .map(|leader| leader.map_or_else(|| "-".to_owned(), |node| node.to_string()))
                .collect::<Vec<_>>()
                .join(" "),
            Err(_) => "unknown".to_owned(),
        };
        let down = match down.as_slice() {
            [] => String::new(),
            down => format!("   down: {}", cli::show_ids(down)),
        };
        self.say(&format!(
            "{} acknowledged, {failed} failed   leaders of {TOPIC}/0..{}: {shown_leaders}{down}",
            show_count(acknowledged),
            PARTITIONS - 1,
        ))
    }

    /// Ends the traffic, judges it, ends the nodes.
    async fn conclude(mut self) -> CliResult<ExitCode> {
        if !self.cluster.down().is_empty() {
            self.heal().await?;
        }
        self.say("the traffic ends; reading everything back")?;
        let ledger = self.traffic.stop().await?;
        settled(&self.env, &self.client).await?;
        let verdict = Verdict::reach(&self.client, &ledger).await?;
        drop(self.client);
        self.cluster.stop().await?;
        if std::io::stdout().is_terminal() {
            print("\n")?;
        }
        print(&verdict.text())?;
        Ok(ExitCode::from(if verdict.is_passed() {
            EXIT_OK
        } else {
            EXIT_FAILED
        }))
    }
}
