//! How a shard is doing, for metrics, health and the command line.

use corduroy_raft::{RaftMetrics, Role};
use corduroy_record::{GroupId, NodeId, TopicPartition};
use corduroy_storage::StoreMetrics;

use crate::kafka::CounterValues;
use crate::partition::Watermarks;

use super::Shard;

/// One partition's replica.
#[derive(Clone, Debug)]
pub struct PartitionStatus {
    /// The group.
    pub group: GroupId,
    /// As users name it.
    pub name: TopicPartition,
    /// What the replica is.
    pub role: Role,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// The replica's term.
    pub term: u64,
    /// Replicas that vote.
    pub voters: usize,
    /// Voters in sync; only the leader knows.
    pub in_sync: Option<usize>,
    /// Its offsets.
    pub watermarks: Watermarks,
    /// Bytes of its log.
    pub size_bytes: u64,
    /// Why it stopped or may not vote; empty when it is well.
    pub trouble: String,
}

/// One shard.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Which one.
    pub shard: u16,
    /// Messages that wait for it.
    pub mailbox_depth: usize,
    /// Its replicas.
    pub partitions: Vec<PartitionStatus>,
    /// What its connections counted.
    pub kafka: CounterValues,
    /// What its replicas counted.
    pub raft: RaftMetrics,
    /// What its storage counted.
    pub storage: StoreMetrics,
    /// Why its disk takes nothing any more.
    pub disk_failure: Option<String>,
}

impl Shard {
    /// How this shard is doing now.
    pub fn status(&self) -> ShardStatus {
        let partitions = self
            .partitions
            .borrow()
            .values()
            .map(|partition| {
                let view = partition.replica().view();
                let state = partition.replica().log().state();
                let leads = view.role == Role::Leader;
                let trouble = match (state.damaged, state.no_vote) {
                    (true, _) => "damaged: it refetches from its leader and does not vote",
                    (false, true) => "does not vote until it has caught up",
                    (false, false) => "",
                };
                PartitionStatus {
                    group: partition.group(),
                    name: partition.name().clone(),
                    role: view.role,
                    leader: view.leader.map(|(_, node)| node),
                    term: view.term.get(),
                    voters: partition.replica().members().iter().filter(|m| m.2).count(),
                    in_sync: leads.then(|| partition.in_sync().len()),
                    watermarks: partition.watermarks(),
                    size_bytes: state.size_bytes,
                    trouble: trouble.to_owned(),
                }
            })
            .collect();
        ShardStatus {
            shard: self.index(),
            mailbox_depth: self
                .handles()
                .get(usize::from(self.index()))
                .map_or(0, super::ShardHandle::depth),
            partitions,
            kafka: self.counters().values(),
            raft: self.parts.raft.metrics(),
            storage: self.parts.store.metrics(),
            disk_failure: self.parts.store.failed(),
        }
    }
}
