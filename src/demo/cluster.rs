//! Three real nodes in one process, each with its own threads, ports and directory.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use corduroy_env::Env;
use tokio::sync::oneshot;

use crate::cli::{CliError, CliResult, Running, beside};
use crate::config::{Layers, NodeConfig};

/// Nodes of the demo's cluster: the smallest number that survives the loss of one.
pub(super) const NODES: usize = 3;

/// A member of the cluster, running or not.
struct Member {
    kafka: SocketAddr,
    rpc: SocketAddr,
    data_dir: PathBuf,
    handle: Option<Running>,
}

/// The demo's nodes, numbered from 1.
pub(super) struct DemoCluster {
    env: Env,
    members: Vec<Member>,
}

impl DemoCluster {
    /// Starts the nodes together, as a cluster forms only when all founders have met.
    pub(super) async fn start(env: &Env, root: &Path) -> CliResult<DemoCluster> {
        let ports = free_ports(env, NODES * 2).await?;
        let members = ports
            .chunks(2)
            .enumerate()
            .map(|(index, ports)| Member {
                kafka: ports[0],
                rpc: ports[1],
                data_dir: root.join(format!("node-{}", index + 1)),
                handle: None,
            })
            .collect();
        let mut cluster = DemoCluster {
            env: env.clone(),
            members,
        };
        let starts: Vec<_> = (1..=NODES).map(|number| cluster.launch(number)).collect();
        for (index, start) in starts.into_iter().enumerate() {
            cluster.members[index].handle = Some(started(start?).await?);
        }
        Ok(cluster)
    }

    /// Where clients begin: every node, living or not, as a careful user would write it.
    pub(super) fn bootstrap(&self) -> String {
        let addrs: Vec<String> = self
            .members
            .iter()
            .map(|member| member.kafka.to_string())
            .collect();
        addrs.join(",")
    }

    /// Where the first living node serves metrics and health.
    pub(super) fn admin(&self) -> Option<SocketAddr> {
        self.members
            .iter()
            .find_map(|member| member.handle.as_ref()?.admin_addr())
    }

    /// Is this node running?
    pub(super) fn is_up(&self, number: usize) -> bool {
        self.member(number)
            .is_some_and(|member| member.handle.is_some())
    }

    /// The nodes that are not running.
    pub(super) fn down(&self) -> Vec<usize> {
        (1..=NODES).filter(|&number| !self.is_up(number)).collect()
    }

    /// Ends a node as a crash would: no hand-over, no flush, sockets closed.
    pub(super) async fn kill(&mut self, number: usize) -> CliResult {
        let handle = self
            .members
            .get_mut(number.wrapping_sub(1))
            .and_then(|member| member.handle.take())
            .ok_or_else(|| CliError::failed(format!("node {number} is not running")))?;
        wait(beside(&self.env, "kill", move || handle.kill())?).await
    }

    /// Starts every node that is down.
    pub(super) async fn heal(&mut self) -> CliResult<Vec<usize>> {
        let down = self.down();
        let starts: Vec<_> = down
            .iter()
            .map(|&number| (number, self.launch(number)))
            .collect();
        for (number, start) in starts {
            self.members[number - 1].handle = Some(started(start?).await?);
        }
        Ok(down)
    }

    /// Ends every node gracefully, all at once.
    pub(super) async fn stop(mut self) -> CliResult {
        let mut stops = Vec::new();
        for member in &mut self.members {
            if let Some(handle) = member.handle.take() {
                stops.push(beside(&self.env, "stop", move || handle.stop())?);
            }
        }
        for stop in stops {
            wait(stop).await?;
        }
        Ok(())
    }

    fn member(&self, number: usize) -> Option<&Member> {
        self.members.get(number.checked_sub(1)?)
    }

    /// Begins to start a node on a thread of its own.
    fn launch(&self, number: usize) -> CliResult<Start> {
        let config = self.config(number)?;
        let env = self.env.clone();
        Ok(beside(&self.env, "start", move || {
            Running::start(&env, config).map_err(|error| error.to_string())
        })?)
    }

    fn config(&self, number: usize) -> CliResult<NodeConfig> {
        let member = &self.members[number - 1];
        let seeds: Vec<String> = self
            .members
            .iter()
            .map(|member| member.rpc.to_string())
            .collect();
        let flags = [
            ("node.id", number.to_string()),
            ("data.dir", member.data_dir.to_string_lossy().into_owned()),
            ("listen", member.kafka.to_string()),
            ("rpc.listen", member.rpc.to_string()),
            ("seeds", seeds.join(",")),
            ("admin.listen", "127.0.0.1:0".to_owned()),
            // Three nodes share this machine's cores.
            ("shards", "1".to_owned()),
        ];
        // The environment is left out: the demo is the same on every machine.
        let layers = Layers {
            flags: flags
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            ..Layers::default()
        };
        Ok(
            NodeConfig::from_layers(&layers)
                .map_err(|error| CliError::failed(error.to_string()))?,
        )
    }
}

type Start = oneshot::Receiver<Result<Running, String>>;

async fn started(start: Start) -> CliResult<Running> {
    Ok(wait(start).await?.map_err(CliError::failed)?)
}

async fn wait<T>(work: oneshot::Receiver<T>) -> CliResult<T> {
    Ok(work
        .await
        .map_err(|_| CliError::failed("a node's thread panicked"))?)
}

/// Loopback ports that are free now. Held all at once, so that they differ.
pub(crate) async fn free_ports(env: &Env, count: usize) -> io::Result<Vec<SocketAddr>> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(env.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?);
    }
    listeners
        .iter()
        .map(corduroy_env::Listener::local_addr)
        .collect()
}
