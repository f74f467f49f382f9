//! How a shard is doing, for metrics, health and the command line.

use corduroy_raft::{RaftMetrics, Role};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corduroy_record::{GroupId, NodeId};
use corduroy_storage::StoreMetrics;

use crate::controller::MetadataImage;
use crate::group::GroupStatus;
use crate::metadata::LeaderInfo;
use crate::partition::Watermarks;

use super::{CounterValues, Shard};

/// One partition's replica.
#[derive(Clone, Debug)]
pub struct PartitionStatus {
    /// The group.
    pub group: GroupId,
    /// Whether this replica leads.
    pub is_leader: bool,
    /// Whether its group sleeps.
    pub is_hibernating: bool,
    /// Whether it lost data and refetches it without a vote.
    pub is_damaged: bool,
    /// Its offsets.
    pub watermarks: Watermarks,
    /// Bytes of its log.
    pub size_bytes: u64,
}

/// One shard.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Share of time that its thread spent on a CPU lately, from 0 to 1.
    pub busy_ratio: f64,
    /// Messages that wait for it.
    pub mailbox_depth: usize,
    /// Its replicas.
    pub partitions: Vec<PartitionStatus>,
    /// What its connections counted.
    pub kafka: CounterValues,
    /// What its replicas counted.
    pub raft: RaftMetrics,
    /// Damage found in logs and votes since the process began.
    pub corruptions: u64,
    /// Leaderships gained and lost here.
    pub leadership_changes: u64,
    /// What its storage counted.
    pub storage: StoreMetrics,
    /// Why its disk takes nothing any more.
    pub disk_failure: Option<String>,
    /// Replicas that do not run although they should, the controller's too, and why.
    pub broken: Vec<(GroupId, String)>,
    /// Replicas that run and lost log or vote, the controller's too: they neither vote nor lead until
    /// they have fetched from their leader what they lost.
    pub damaged: Vec<GroupId>,
    /// The consumer groups that this shard coordinates.
    pub groups: Vec<GroupStatus>,
    /// Rebalances of classic groups that began here, and epochs of consumer groups.
    pub group_rebalances: u64,
}

/// The cluster, as one shard sees it.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// The controller's image.
    pub image: Arc<MetadataImage>,
    /// Last known leaders.
    pub leaders: HashMap<GroupId, LeaderInfo>,
    /// Nodes that the failure detector holds down, and for how long they have not answered.
    pub down: HashMap<NodeId, Duration>,
    /// Whether this node hears of no majority.
    pub isolated: bool,
    /// Who leads the controller.
    pub controller_leader: Option<NodeId>,
}

impl Shard {
    /// The cluster as this shard sees it.
    pub fn cluster_view(&self) -> ClusterView {
        self.metadata().cluster_view(self.env().now())
    }

    fn broken(&self) -> Vec<(GroupId, String)> {
        let stopped = self.parts.raft.replicas().into_iter();
        let stopped = stopped.filter_map(|replica| Some((replica.group(), replica.stop_reason()?)));
        let unopened = self.unopened.borrow();
        let unopened = unopened
            .iter()
            .map(|(group, reason)| (*group, format!("it cannot be opened: {reason}")));
        let partitions = self.partitions.borrow();
        let damaged = partitions.values().map(|partition| partition.replica());
        let damaged = damaged
            .filter(|replica| replica.log().must_reopen())
            .map(|replica| (replica.group(), "it met damage in its log".to_owned()));
        stopped.chain(unopened).chain(damaged).collect()
    }

    fn damaged(&self, broken: &[(GroupId, String)]) -> Vec<GroupId> {
        let replicas = self.parts.raft.replicas().into_iter();
        let flagged = replicas.filter(|replica| {
            let state = replica.log().state();
            state.damaged || state.no_vote
        });
        let runs = |group: &GroupId| broken.iter().all(|(other, _)| other != group);
        flagged
            .map(|replica| replica.group())
            .filter(runs)
            .collect()
    }

    /// How this shard is doing now.
    pub fn status(&self) -> ShardStatus {
        let partitions = self
            .partitions
            .borrow()
            .values()
            .map(|partition| {
                let view = partition.replica().view();
                let state = partition.replica().log().state();
                PartitionStatus {
                    group: partition.group(),
                    is_leader: view.role == Role::Leader,
                    is_hibernating: partition.replica().is_asleep(),
                    is_damaged: state.damaged || state.no_vote,
                    watermarks: partition.watermarks(),
                    size_bytes: state.size_bytes,
                }
            })
            .collect();
        let broken = self.broken();
        ShardStatus {
            busy_ratio: self.busy.ratio(self.env().now()),
            mailbox_depth: self
                .handles()
                .get(usize::from(self.index()))
                .map_or(0, super::ShardHandle::depth),
            partitions,
            kafka: self.counters().values(),
            raft: self.parts.raft.metrics(),
            corruptions: self.corruptions.get(),
            leadership_changes: self.leadership_changes.get(),
            storage: self.parts.store.metrics(),
            disk_failure: self.parts.store.failed(),
            damaged: self.damaged(&broken),
            broken,
            groups: self.live_coordinators().flat_map(|c| c.status()).collect(),
            group_rebalances: self.live_coordinators().map(|c| c.rebalances()).sum(),
        }
    }
}
