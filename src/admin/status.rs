//! What a node knows about itself and its cluster at one moment, for metrics and health.
//!
//! Plain data: the node fills it, the admin port prints it. Everything defaults to "nothing yet",
//! so a node that has just started can answer too.

use std::collections::BTreeMap;

use serde::Serialize;

use super::histogram::Histogram;

/// One node's state and counters. Counters count from the start of the process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeStatus {
    /// This node's id; `None` before the cluster gave it one.
    pub node: Option<i32>,
    /// The cluster's id; `None` before it has formed.
    pub cluster_id: Option<String>,
    /// Seconds since the process started.
    pub uptime_seconds: f64,
    /// It has joined its cluster and answers clients.
    pub is_serving: bool,
    /// What it waits for before it serves.
    pub waits: Option<String>,
    /// It is on its way out: leaderships are being handed over.
    pub is_stopping: bool,
    /// It hears no majority of its cluster.
    pub is_isolated: bool,
    /// Why the disk takes nothing more: a flush failed. Never recovers within a process.
    pub disk_failure: Option<String>,
    /// Replicas on this node that do not run although they should.
    pub broken: Vec<BrokenReplica>,
    /// Replicas on this node that neither vote nor lead until they have fetched from their leader what
    /// they lost: `topic/partition`, or "the controller".
    pub damaged: Vec<String>,
    /// The node that leads the controller, if known.
    pub controller: Option<i32>,
    /// All nodes of the cluster, this one too.
    pub nodes: Vec<NodeView>,
    /// All partitions of the cluster as this node's metadata shows them.
    pub partitions: Vec<PartitionView>,
    pub kafka: KafkaStatus,
    pub raft: RaftStatus,
    pub storage: StorageStatus,
    /// One per shard, in order.
    pub shards: Vec<ShardStatus>,
    /// The consumer groups that this node coordinates.
    pub groups: Vec<GroupView>,
    /// Generations and group epochs that began on this node.
    pub group_rebalances: u64,
}

/// A consumer group that this node coordinates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupView {
    pub group: String,
    pub members: u64,
    /// Records between the committed offsets and the high watermarks, by topic.
    pub lag: BTreeMap<String, u64>,
    /// Partitions that are not in `lag`: no leader said in time how far they are.
    pub lag_unknown: u64,
}

/// A member of the cluster as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeView {
    pub node: i32,
    /// Where clients reach it: `host:port`.
    pub kafka: String,
    /// Where other nodes reach it.
    pub rpc: String,
    /// Its admin port, unless it is off.
    pub admin: Option<String>,
    pub rack: Option<String>,
    /// The failure detector hears it.
    pub is_reachable: bool,
    /// For how long it has not answered, if the failure detector holds it down.
    pub down_seconds: Option<u64>,
}

/// A partition of the cluster. What only its replicas know is `None` elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartitionView {
    pub topic: String,
    pub partition: i32,
    pub leader: Option<i32>,
    pub leader_epoch: i32,
    /// Nodes, the preferred leader first.
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    /// The replica on this node, if there is one.
    pub local: Option<LocalReplica>,
}

/// A replica on this node that does not run although it should: nothing mends it by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BrokenReplica {
    /// `topic/partition`, or "the controller".
    pub name: String,
    /// Why, in words.
    pub reason: String,
}

/// The replica of a partition on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LocalReplica {
    pub is_leader: bool,
    /// It sleeps: no ticks until somebody needs it.
    pub is_hibernating: bool,
    /// It lost data and neither votes nor leads until it has refetched it.
    pub is_damaged: bool,
    pub log_start_offset: i64,
    pub high_watermark: i64,
    pub log_end_offset: i64,
    pub size_bytes: u64,
}

/// What clients asked for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KafkaStatus {
    /// Open client connections.
    pub connections: u64,
    /// By API name ("Produce").
    pub apis: BTreeMap<String, ApiStatus>,
    pub records_produced: u64,
    pub bytes_produced: u64,
    pub records_fetched: u64,
    pub bytes_fetched: u64,
}

/// What became of the requests of one API.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ApiStatus {
    /// Answered requests by error name; "NONE" is success.
    pub requests: BTreeMap<String, u64>,
    /// From the last byte of a request to the first of its answer.
    pub seconds: Histogram,
}

/// Replication on this node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RaftStatus {
    /// Replicas on this node, the controller's too.
    pub replicas: u64,
    /// Of those, how many lead.
    pub leaders: u64,
    /// Of those, how many sleep.
    pub hibernating: u64,
    /// Elections and transfers seen by replicas on this node.
    pub leadership_changes: u64,
    /// Leaderships that replicas on this node took although most of their group had lost log.
    pub possible_losses: u64,
    /// Heartbeats sent between node pairs.
    pub heartbeats: u64,
    /// From proposal to applied, on leaders.
    pub commit_seconds: Histogram,
}

/// The node's disk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StorageStatus {
    pub append_seconds: Histogram,
    /// One flush turn of a shard.
    pub flush_seconds: Histogram,
    /// Bytes in logs and journals.
    pub bytes: u64,
    pub bytes_appended: u64,
    pub disk_free_bytes: u64,
    /// Free space is below `storage.disk.low.bytes`.
    pub is_disk_low: bool,
    /// Free space is below `storage.disk.critical.bytes`, or a write found none: produce to this
    /// node's leaders is refused.
    pub is_disk_full: bool,
    /// Damage found in logs, indices, journals or votes.
    pub corruptions: u64,
}

/// One shard of the node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ShardStatus {
    /// Part of the time that its thread was on a CPU, 0 to 1, since the last status that is a
    /// second old or more.
    pub busy_ratio: f64,
    /// Messages waiting from other shards.
    pub mailbox_depth: u64,
    pub partitions: u64,
}

impl NodeStatus {
    /// Partitions without a leader.
    pub fn leaderless(&self) -> impl Iterator<Item = &PartitionView> {
        self.partitions
            .iter()
            .filter(|partition| partition.leader.is_none())
    }

    /// Partitions with a leader and fewer replicas in sync than they have.
    pub fn under_replicated(&self) -> impl Iterator<Item = &PartitionView> {
        self.partitions.iter().filter(|partition| {
            partition.leader.is_some() && partition.in_sync.len() < partition.replicas.len()
        })
    }
}
