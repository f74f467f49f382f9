//! `corduroy cluster`: who is there, and is it well?

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use corduroy_client::{Client, ClusterDescription, TopicDescription};

use super::Context;
use super::admins::find_admins;
use super::cluster_view::{HealthView, NodeRow, PartitionHealth, StatusView, nodes_text};
use super::connect::{client_error, connect};
use super::error::{CliResult, EXIT_FAILED, EXIT_OK, Stop};
use super::output::{OutputArgs, OutputFormat, print, print_json};
use super::time::parse_duration;

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
            let client = connect(context).await?;
            let snapshot = Snapshot::take(&client).await?;
            let view = StatusView {
                cluster_id: snapshot.cluster.cluster_id.clone(),
                controller: snapshot.cluster.controller,
                health: snapshot.health(None),
                nodes: snapshot.nodes(context, &client).await?,
            };
            match args.output.output {
                OutputFormat::Json => print_json(&view)?,
                OutputFormat::Table => print(&view.text())?,
            }
            Ok(ExitCode::from(EXIT_OK))
        }
        ClusterCommand::Nodes(args) => {
            let client = connect(context).await?;
            let nodes = Snapshot::take(&client)
                .await?
                .nodes(context, &client)
                .await?;
            match args.output.output {
                OutputFormat::Json => print_json(&nodes)?,
                OutputFormat::Table => print(&nodes_text(&nodes))?,
            }
            Ok(ExitCode::from(EXIT_OK))
        }
        ClusterCommand::Health(args) => health(context, &args).await,
    }
}

/// What metadata says at one moment.
struct Snapshot {
    cluster: ClusterDescription,
    topics: Vec<TopicDescription>,
}

impl Snapshot {
    async fn take(client: &Client) -> CliResult<Snapshot> {
        let admin = client.admin();
        let wrong = |error| client_error(&error, "cannot describe the cluster");
        let cluster = admin.describe_cluster().await.map_err(wrong)?;
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
        Ok(Snapshot { cluster, topics })
    }

    fn health(&self, nodes_min: Option<usize>) -> HealthView {
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
        let nodes = self.cluster.brokers.len();
        let has_controller = self.cluster.controller.is_some();
        let health = HealthView::judge(nodes, self.topics.len(), has_controller, &partitions);
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
            .cluster
            .brokers
            .iter()
            .map(|broker| reach(context, broker.host.clone(), broker.port));
        let reachable = futures::future::join_all(reachable).await;
        let rows = self
            .cluster
            .brokers
            .iter()
            .zip(reachable)
            .map(|(broker, reachable)| NodeRow {
                node: broker.id,
                address: format!("{}:{}", broker.host, broker.port),
                rack: broker.rack.clone(),
                controller: self.cluster.controller == Some(broker.id),
                admin: admins
                    .as_ref()
                    .and_then(|admins| admins.of(broker.id))
                    .map(|addr| addr.to_string()),
                reachable,
                leaders: leaders.get(&broker.id).copied().unwrap_or(0),
                replicas: replicas.get(&broker.id).copied().unwrap_or(0),
            });
        Ok(rows.collect())
    }
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
            let client = connect(context).await?;
            Ok::<_, Stop>(Snapshot::take(&client).await?.health(args.nodes))
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
