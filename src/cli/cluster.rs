//! `corduroy cluster`: who is there, and is it well?

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use corduroy_client::{BrokerDescription, Client, TopicDescription};
use serde::Deserialize;

use super::Context;
use super::admins::{Admins, find_admins};
use super::cluster_view::{HealthView, NodeRow, PartitionHealth, StatusView, nodes_text};
use super::connect::{client_error, connect_silently, lost_majority};
use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK, Stop};
use super::http;
use super::output::{OutputArgs, OutputFormat, print, print_json};
use super::time::parse_duration;
use crate::admin::{DecommissionAnswer, Refusal};

/// How long a node may take to accept a connection before it counts as unreachable.
const REACH_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often health is looked at while waiting for it.
const HEALTH_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Id, controller, health and nodes
    #[command(after_help = "\
Examples:
  corduroy cluster status
  corduroy cluster status -o json | jq .health.healthy")]
    Status(StatusArgs),
    /// The nodes: addresses, leaders, replicas, admin ports
    #[command(after_help = "\
Examples:
  corduroy cluster nodes
  corduroy cluster nodes -o json | jq -r '.[].admin'")]
    Nodes(NodesArgs),
    /// Exit with 0 only if every partition has a leader
    #[command(after_help = "\
Examples:
  corduroy cluster health
  corduroy cluster health --wait 30s             until it is, or time is up
  corduroy cluster health --wait 30s --nodes 3   and that many nodes are there")]
    Health(HealthArgs),
    /// Remove a node for good: one that is down, or on which no replica lives
    #[command(after_help = "\
Examples:
  corduroy cluster decommission 3
      node 3 is gone for good: its id is never used again

A node that is up leaves only when no replica lives on it (moving replicas away does not exist
yet). The partitions of a node that is down stay one replica short; one whose only replica is there
keeps the node from leaving.")]
    Decommission(DecommissionArgs),
}

#[derive(Debug, Args)]
pub struct DecommissionArgs {
    /// The id of the node
    #[arg(value_name = "NODE")]
    node: i32,

    /// An admin port of the cluster [default: ask the brokers for theirs]
    #[arg(long, value_name = "HOST:PORT", env = "CORDUROY_ADMIN")]
    admin: Option<SocketAddr>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Wait for a healthy cluster for up to this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    wait: Option<Duration>,

    /// Healthy also means that at least so many nodes are members
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(context: &Context, command: ClusterCommand) -> CliResult<ExitCode> {
    match command {
        ClusterCommand::Status(args) => {
            let client = connect_silently(context).await?;
            let snapshot = Snapshot::take(&client).await?;
            let nodes = snapshot.nodes(context, &client).await?;
            let mut health = snapshot.health(None, &nodes);
            health
                .reasons
                .extend(replica_reasons(context, &nodes).await);
            let view = StatusView {
                cluster_id: client.cluster_id(),
                controller: snapshot.controller,
                health,
                nodes,
            };
            match args.output.output {
                OutputFormat::Json => print_json(&view)?,
                OutputFormat::Table => print(&view.text())?,
            }
            snapshot.end()
        }
        ClusterCommand::Nodes(args) => {
            let client = connect_silently(context).await?;
            let snapshot = Snapshot::take(&client).await?;
            let nodes = snapshot.nodes(context, &client).await?;
            match args.output.output {
                OutputFormat::Json => print_json(&nodes)?,
                OutputFormat::Table if nodes.is_empty() => {}
                OutputFormat::Table => print(&nodes_text(&nodes))?,
            }
            snapshot.end()
        }
        ClusterCommand::Health(args) => health(context, &args).await,
        ClusterCommand::Decommission(args) => decommission(context, &args).await,
    }
}

async fn decommission(context: &Context, args: &DecommissionArgs) -> CliResult<ExitCode> {
    let admins = match args.admin {
        Some(addr) => Admins::given(addr),
        None => find_admins(&context.env, &connect_silently(context).await?).await?,
    };
    let admin = admins.first();
    let path = format!("/v1/nodes/{}/decommission", args.node);
    let answer = http::ask(&context.env, admin, "POST", &path)
        .await
        .map_err(|error| {
            CliError::failed(format!("cannot reach the admin port {admin}: {error}"))
                .help("name one with --admin HOST:PORT; a node prints its own when it starts")
        })?;
    if answer.status != 200 {
        let reason = match serde_json::from_str::<Refusal>(&answer.body) {
            Ok(refusal) => refusal.error,
            Err(_) => format!("{admin} answered {}: is it an admin port?", answer.status),
        };
        return Err(
            CliError::failed(format!("node {} was not removed: {reason}", args.node))
                .help("`corduroy cluster nodes` shows who is there")
                .into(),
        );
    }
    let answer: DecommissionAnswer = serde_json::from_str(&answer.body).map_err(|error| {
        CliError::failed(format!("cannot understand the admin port {admin}: {error}"))
    })?;
    match args.output.output {
        OutputFormat::Json => print_json(&answer)?,
        OutputFormat::Table => print(&decommissioned_text(&answer))?,
    }
    Ok(ExitCode::from(EXIT_OK))
}

fn decommissioned_text(answer: &DecommissionAnswer) -> String {
    let node = answer.node;
    let mut text = format!(
        "node {node} is removed for good; if its process runs, stop it (a new node needs an empty \
         data directory)\n"
    );
    if !answer.short_partitions.is_empty() {
        text.push_str(&format!(
            "one replica short from now on, since replicas cannot be moved yet: {}\n",
            answer.short_partitions.join(", ")
        ));
    }
    text
}

/// What metadata says at one moment.
struct Snapshot {
    controller: Option<i32>,
    brokers: Vec<BrokerDescription>,
    topics: Vec<TopicDescription>,
    /// That nobody has a majority: then the rest is what one node remembers.
    lost: Option<CliError>,
}

impl Snapshot {
    async fn take(client: &Client) -> CliResult<Snapshot> {
        let admin = client.admin();
        let wrong = |error| client_error(&error, "cannot describe the cluster");
        let described = admin.describe_cluster().await;
        let lost = lost_majority(described.as_ref().err());
        let (controller, brokers) = match described {
            Ok(cluster) => (cluster.controller, cluster.brokers),
            Err(_) if lost.is_some() => (None, Vec::new()),
            Err(error) => return Err(wrong(error).into()),
        };
        let names: Vec<String> = admin
            .list_topics()
            .await
            .map_err(wrong)?
            .into_iter()
            .map(|topic| topic.name)
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let topics = match names.as_slice() {
            [] => Vec::new(),
            names => admin.describe_topics(names).await.map_err(wrong)?,
        };
        Ok(Snapshot {
            controller,
            brokers,
            topics,
            lost,
        })
    }

    /// How a command ends that has shown this: a cluster without a majority is told last.
    fn end(self) -> CliResult<ExitCode> {
        match self.lost {
            Some(lost) => Err(lost.into()),
            None => Ok(ExitCode::from(EXIT_OK)),
        }
    }

    fn health(&self, nodes_min: Option<usize>, rows: &[NodeRow]) -> HealthView {
        let partitions: Vec<PartitionHealth> = self
            .topics
            .iter()
            .flat_map(|topic| {
                topic.partitions.iter().map(|partition| PartitionHealth {
                    name: format!("{}/{}", topic.name, partition.partition),
                    has_leader: partition.leader.is_some(),
                    replicas: partition.replicas.len(),
                    in_sync: partition.isr.len(),
                })
            })
            .collect();
        let has_controller = self.controller.is_some();
        let nodes = self.brokers.len();
        let health = HealthView::judge(nodes, self.topics.len(), has_controller, &partitions)
            .with_nodes(rows);
        let health = match &self.lost {
            Some(lost) => health.with_cause(lost.cause()),
            None => health,
        };
        match nodes_min {
            Some(nodes_min) => health.with_nodes_min(nodes_min),
            None => health,
        }
    }

    async fn nodes(&self, context: &Context, client: &Client) -> CliResult<Vec<NodeRow>> {
        let mut leaders: BTreeMap<i32, usize> = BTreeMap::new();
        let mut replicas: BTreeMap<i32, usize> = BTreeMap::new();
        for partition in self.topics.iter().flat_map(|topic| &topic.partitions) {
            if let Some(leader) = partition.leader {
                *leaders.entry(leader).or_default() += 1;
            }
            for &node in &partition.replicas {
                *replicas.entry(node).or_default() += 1;
            }
        }
        // Another kind of cluster has no admin ports; that is no failure of this command.
        let admins = find_admins(&context.env, client).await.ok();
        let reachable = self
            .brokers
            .iter()
            .map(|broker| reach(context, broker.host.clone(), broker.port));
        let reachable = futures::future::join_all(reachable).await;
        let row = |node: i32, address: String, rack: Option<String>| NodeRow {
            node,
            address,
            rack,
            controller: self.controller == Some(node),
            admin: admins
                .as_ref()
                .and_then(|admins| admins.of(node))
                .map(|addr| addr.to_string()),
            reachable: false,
            down_seconds: None,
            leaders: leaders.get(&node).copied().unwrap_or(0),
            replicas: replicas.get(&node).copied().unwrap_or(0),
        };
        let brokers = self.brokers.iter().zip(reachable);
        let mut rows: BTreeMap<i32, NodeRow> = brokers
            .map(|(broker, reachable)| {
                let address = format!("{}:{}", broker.host, broker.port);
                let row = row(broker.id, address, broker.rack.clone());
                (broker.id, NodeRow { reachable, ..row })
            })
            .collect();
        // Clients are not told of a node that is down; whoever looks after the cluster is, for as
        // long as it is a member.
        for member in admins.iter().flat_map(Admins::members) {
            let known = rows
                .entry(member.node)
                .or_insert_with(|| row(member.node, member.kafka.clone(), member.rack.clone()));
            if !known.reachable {
                known.down_seconds = member.down_seconds;
            }
        }
        Ok(rows.into_values().collect())
    }
}

/// The part of an admin port's `/health/cluster` that metadata does not show.
#[derive(Deserialize)]
struct ReplicaHealth {
    #[serde(default)]
    replica_reasons: Vec<String>,
}

/// What each node says about its own replicas, as far as it answers soon.
async fn replica_reasons(context: &Context, nodes: &[NodeRow]) -> Vec<String> {
    let asks = nodes
        .iter()
        .filter(|row| row.reachable)
        .map(|row| async move {
            let admin = row.admin.as_ref()?.parse().ok()?;
            let asked = http::ask(&context.env, admin, "GET", "/health/cluster");
            let answer = tokio::time::timeout(REACH_WAIT_MAX, asked)
                .await
                .ok()?
                .ok()?;
            let health: ReplicaHealth = serde_json::from_str(&answer.body).ok()?;
            let reasons = health.replica_reasons.into_iter();
            Some(reasons.map(move |reason| format!("node {}: {reason}", row.node)))
        });
    let answers = futures::future::join_all(asks).await;
    answers.into_iter().flatten().flatten().collect()
}

/// Does the node accept connections?
async fn reach(context: &Context, host: String, port: i32) -> bool {
    use std::net::ToSocketAddrs;
    let Ok(port) = u16::try_from(port) else {
        return false;
    };
    // Brokers advertise addresses more often than names; a name blocks for its look-up.
    let Ok(mut addrs) = (host.as_str(), port).to_socket_addrs() else {
        return false;
    };
    let Some(addr) = addrs.next() else {
        return false;
    };
    let connected = tokio::time::timeout(REACH_WAIT_MAX, context.env.connect(addr)).await;
    matches!(connected, Ok(Ok(_)))
}

async fn health(context: &Context, args: &HealthArgs) -> CliResult<ExitCode> {
    let deadline = context.env.now() + args.wait.unwrap_or(Duration::ZERO);
    loop {
        let look = async {
            let client = connect_silently(context).await?;
            let snapshot = Snapshot::take(&client).await?;
            let nodes = snapshot.nodes(context, &client).await?;
            Ok::<_, Stop>(snapshot.health(args.nodes, &nodes))
        };
        let is_last = context.env.now() >= deadline;
        let left = deadline.saturating_duration_since(context.env.now());
        let looked = match args.wait {
            Some(_) => tokio::time::timeout(left.max(HEALTH_EVERY), look)
                .await
                .ok(),
            None => Some(look.await),
        };
        match looked {
            Some(Ok(health)) if health.healthy || is_last => {
                match args.output.output {
                    OutputFormat::Json => print_json(&health)?,
                    OutputFormat::Table => print(&health.text())?,
                }
                let exit = if health.healthy { EXIT_OK } else { EXIT_FAILED };
                return Ok(ExitCode::from(exit));
            }
            Some(Err(stop)) if is_last => return Err(stop),
            None if is_last => {
                eprintln!("error: the cluster did not answer in time");
                return Ok(ExitCode::from(EXIT_FAILED));
            }
            _ => context.env.sleep(HEALTH_EVERY).await,
        }
    }
}
