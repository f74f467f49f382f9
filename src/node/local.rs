//! A node on one `LocalSet`: all its shards on the caller's thread, its disk given. This is how
//! a simulator runs several production nodes under one seed.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_group::table::GroupTable;
use corduroy_raft::{RaftMetrics, Replica};
use corduroy_record::{GroupId, NodeId, Offset};
use corduroy_storage::Disk;
use tokio::task::JoinHandle;

use super::StartError;
use super::boot::{Booted, LocalShards, boot};
use crate::config::NodeConfig;
use crate::controller::MetadataImage;
use crate::shard::{Shard, ShardMessage};

/// A node of which everything lives on the caller's `LocalSet`. Clone = another handle. Dropping
/// handles stops nothing; dropping the `LocalSet` is the process's death.
#[derive(Clone, Default)]
pub struct LocalNode {
    shards: LocalShards,
}

/// A node that serves, until told to stop.
pub struct LocalServing {
    booted: Booted,
    shards: LocalShards,
}

impl LocalNode {
    /// A node that has not booted.
    pub fn new() -> LocalNode {
        LocalNode::default()
    }

    /// Boots the node on `disk`, and returns once it serves. Its shards can be looked at before:
    /// replicas run as soon as the node knows them. Needs [`Env::simulated`].
    ///
    /// # Errors
    /// As [`super::start`].
    pub async fn boot(
        &self,
        env: Env,
        config: NodeConfig,
        disk: Arc<dyn Disk>,
    ) -> Result<LocalServing, StartError> {
        let booted = boot(env, Arc::new(config), disk, self.shards.clone()).await?;
        Ok(LocalServing {
            booted,
            shards: self.shards.clone(),
        })
    }

    /// All replicas that run on the node now, by group.
    pub fn replicas(&self) -> Vec<Replica> {
        let mut replicas: Vec<Replica> = Vec::new();
        for shard in self.shards.all() {
            replicas.extend(shard.raft().replicas());
        }
        replicas.sort_by_key(Replica::group);
        replicas
    }

    /// The four offsets of a partition that is open here: log start, last stable, high watermark,
    /// log end.
    pub fn watermarks(&self, group: GroupId) -> Option<[Offset; 4]> {
        let shards = self.shards.all();
        let partition = shards.iter().find_map(|shard| shard.partition(group))?;
        let marks = partition.watermarks();
        Some([
            marks.log_start,
            marks.last_stable,
            marks.high_watermark,
            marks.log_end,
        ])
    }

    /// The consumer groups of a partition of `__consumer_offsets` that is open here, as of its last
    /// applied entry.
    pub fn groups(&self, group: GroupId) -> Option<GroupTable> {
        let shards = self.shards.all();
        let partition = shards.iter().find_map(|shard| shard.partition(group))?;
        partition.machine().groups().cloned()
    }

    /// The controller's image, as shard 0 has it.
    pub fn image(&self) -> Option<Arc<MetadataImage>> {
        self.first().map(|shard| shard.cluster_view().image)
    }

    /// Nodes that the failure detector holds down.
    pub fn down(&self) -> Vec<NodeId> {
        let down = self.first().map(|shard| shard.cluster_view().down);
        let mut down: Vec<NodeId> = down.into_iter().flatten().map(|(node, _)| node).collect();
        down.sort_unstable();
        down
    }

    /// Removes a node from the cluster for good, through this one, as `corduroy cluster
    /// decommission` does.
    ///
    /// # Errors
    /// Why it was refused, or that nobody answered in time: then it may have been removed, or may
    /// still be.
    pub async fn remove_node(&self, node: NodeId, timeout: Duration) -> Result<(), String> {
        let shard = self.first().ok_or("this node has not booted")?;
        let controller = shard.controller().clone();
        drop(shard);
        let removed = controller.remove_node(node, timeout).await;
        removed.map_err(|error| error.to_string())
    }

    /// What the node's replicas and peer connections counted, shard by shard.
    pub fn raft_metrics(&self) -> Vec<RaftMetrics> {
        let shards = self.shards.all();
        shards.iter().map(|shard| shard.raft().metrics()).collect()
    }

    /// Why a shard's disk takes nothing any more.
    pub fn disk_failure(&self) -> Option<String> {
        let shards = self.shards.all();
        shards.iter().find_map(|shard| shard.status().disk_failure)
    }

    fn first(&self) -> Option<Rc<Shard>> {
        self.shards.all().into_iter().next()
    }
}

impl LocalServing {
    /// The node's id.
    pub fn node(&self) -> NodeId {
        self.booted.started.node
    }

    /// Where it listens for Kafka clients.
    pub fn kafka(&self) -> SocketAddr {
        self.booted.started.kafka
    }

    /// Shard 0's task; it ends after a stop, or in a panic.
    pub fn serving(&mut self) -> &mut JoinHandle<()> {
        &mut self.booted.serving
    }

    /// The node's last words, told once: it was removed, or another process has its place. It
    /// serves nothing any more and is to be stopped.
    pub fn parted(&mut self) -> Option<String> {
        self.booted.started.parted.try_recv().ok()
    }

    /// Stops as on SIGTERM: leaderships move away, everything is flushed, clean marks are set.
    pub async fn stop(self) {
        let Booted { serving, started } = self.booted;
        super::move_away(&started.handles, started.stop_controller).await;
        for handle in &started.handles {
            // A shard that has ended needs no order to.
            let _ended = handle.send(ShardMessage::Stop { graceful: true }).await;
        }
        for shard in self.shards.take_serving().into_iter().chain([serving]) {
            let _ended = shard.await;
        }
    }
}
