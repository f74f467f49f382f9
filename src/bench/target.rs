//! The cluster that is measured: the one that was named, or three nodes of our own.

use std::time::Duration;

use corduroy_client::Client;
use corduroy_env::Env;

use super::spawned::SpawnedCluster;
use crate::cli::{
    CliError, CliResult, Context, Stop, connect_to, connect_to_measure, names_a_cluster,
};

/// Nodes that are started where no cluster is named.
const NODES: u8 = 3;

/// How long the nodes may take until they form a cluster.
const START_WAIT_MAX: Duration = Duration::from_secs(60);

/// A cluster under measurement.
pub(super) struct Target {
    pub(super) client: Client,
    /// The processes to watch.
    pub(super) pids: Vec<u32>,
    spawned: Option<SpawnedCluster>,
}

impl Target {
    /// Connects to the cluster that the command line, the environment or a properties file names;
    /// starts one where none is named.
    ///
    /// # Errors
    /// A cluster that does not answer, or does not start.
    pub(super) async fn open(context: &Context, watch_pids: &[u32]) -> CliResult<Target> {
        let mut pids = watch_pids.to_vec();
        if names_a_cluster(&context.connect) {
            return Ok(Target {
                client: connect_to_measure(context).await?,
                pids,
                spawned: None,
            });
        }
        eprintln!("no --brokers: starting {NODES} nodes");
        let mut cluster = SpawnedCluster::start(&context.env, NODES.into(), None).await?;
        match wait_for(&context.env, &mut cluster, NODES).await {
            Ok(client) => {
                pids.extend(cluster.pids());
                Ok(Target {
                    client,
                    pids,
                    spawned: Some(cluster),
                })
            }
            Err(stop) => {
                cluster.stop(&context.env).await;
                Err(stop)
            }
        }
    }

    /// Ends the nodes that were started for this.
    ///
    /// # Errors
    /// A node that ended before.
    pub(super) async fn close(self, env: &Env) -> CliResult {
        let Some(mut cluster) = self.spawned else {
            return Ok(());
        };
        let result = cluster.check();
        cluster.stop(env).await;
        result
    }
}

/// Waits until all nodes have joined.
pub(super) async fn wait_for(
    env: &Env,
    cluster: &mut SpawnedCluster,
    nodes: u8,
) -> CliResult<Client> {
    let deadline = env.now() + START_WAIT_MAX;
    loop {
        cluster.check()?;
        let last = match connect_to(&cluster.brokers()).await {
            Ok(client) => match client.admin().describe_cluster().await {
                Ok(view) if view.brokers.len() >= usize::from(nodes) => return Ok(client),
                Ok(view) => format!("{} nodes", view.brokers.len()),
                Err(error) => error.to_string(),
            },
            Err(Stop::Error(error)) => error.to_string(),
            Err(stop) => return Err(stop),
        };
        if env.now() >= deadline {
            return Err(CliError::failed("the nodes did not form a cluster")
                .fact("waited", format!("{} s", START_WAIT_MAX.as_secs()))
                .fact("last", last)
                .into());
        }
        env.sleep(Duration::from_millis(100)).await;
    }
}
