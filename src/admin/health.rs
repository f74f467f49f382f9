//! Is this node alive, ready, and is its cluster well? Each answer names its reasons.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::status::{BrokenReplica, NodeStatus, PartitionView};

/// The most partitions that an answer names one by one; the counts are always whole.
pub const PARTITIONS_NAMED_MAX: usize = 20;

/// The answer of `/health/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub ready: bool,
    /// Why not; empty if ready.
    pub reasons: Vec<String>,
}

/// The answer of `/health/cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterHealth {
    /// Every partition has a leader, and so has the controller; and each replica of this node runs.
    pub healthy: bool,
    /// What is wrong, worst first; also lists what merely degrades (a replica out of sync).
    pub reasons: Vec<String>,
    pub nodes: usize,
    pub nodes_unreachable: usize,
    pub partitions: usize,
    pub partitions_leaderless: usize,
    pub partitions_under_replicated: usize,
    /// Replicas of the node that was asked that do not run although they should.
    pub replicas_broken: usize,
    /// Replicas of the node that was asked that neither vote nor lead until they have fetched from
    /// their leader what they lost.
    pub replicas_damaged: usize,
    /// What is wrong with replicas of the node that was asked; among the reasons too.
    pub replica_reasons: Vec<String>,
}

/// May clients be sent to this node?
pub fn readiness(status: &NodeStatus) -> Readiness {
    let mut reasons = Vec::new();
    if let Some(failure) = &status.disk_failure {
        reasons.push(format!("the disk failed: {failure}"));
    }
    if !status.is_serving {
        let unsaid = "the node has not joined its cluster yet".to_owned();
        reasons.push(status.waits.clone().unwrap_or(unsaid));
    }
    if status.is_stopping {
        reasons.push("the node is stopping".to_owned());
    }
    if status.is_isolated {
        reasons.push("the node hears no majority of its cluster".to_owned());
    }
    Readiness {
        ready: reasons.is_empty(),
        reasons,
    }
}

/// Is the cluster well, as far as this node can tell?
pub fn cluster_health(status: &NodeStatus) -> ClusterHealth {
    let leaderless: Vec<_> = status.leaderless().collect();
    let under_replicated: Vec<_> = status.under_replicated().collect();
    let unreachable: Vec<_> = status
        .nodes
        .iter()
        .filter(|node| !node.is_reachable)
        .collect();
    let mut reasons = readiness(status).reasons;
    let is_ready = reasons.is_empty();
    if status.controller.is_none() {
        reasons.push("the controller has no leader".to_owned());
    }
    if !leaderless.is_empty() {
        reasons.push(format!(
            "{} without a leader: {}",
            count_of(leaderless.len()),
            names(&leaderless)
        ));
    }
    let mut replica_reasons = broken_reasons(&status.broken);
    replica_reasons.extend(damaged_reason(&status.damaged));
    reasons.extend(replica_reasons.iter().cloned());
    if status.storage.is_disk_full {
        let free = status.storage.disk_free_bytes;
        reasons.push(format!(
            "the disk is full ({free} bytes are free): this node's leaders refuse produce, its \
             followers fall behind"
        ));
    } else if status.storage.is_disk_low {
        let free = status.storage.disk_free_bytes;
        reasons.push(format!("the disk is nearly full ({free} bytes are free)"));
    }
    for node in &unreachable {
        reasons.push(format!("node {} ({}) is unreachable", node.node, node.rpc));
    }
    if !under_replicated.is_empty() {
        reasons.push(format!(
            "{} with replicas out of sync: {}",
            count_of(under_replicated.len()),
            names(&under_replicated)
        ));
    }
    ClusterHealth {
        healthy: is_ready
            && status.controller.is_some()
            && leaderless.is_empty()
            && status.broken.is_empty(),
        reasons,
        nodes: status.nodes.len(),
        nodes_unreachable: unreachable.len(),
        partitions: status.partitions.len(),
        partitions_leaderless: leaderless.len(),
        partitions_under_replicated: under_replicated.len(),
        replicas_broken: status.broken.len(),
        replicas_damaged: status.damaged.len(),
        replica_reasons,
    }
}

/// One sentence for each reason: a failed disk ends a thousand replicas with the same one.
fn broken_reasons(broken: &[BrokenReplica]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for replica in broken {
        let names = by_reason.entry(&replica.reason).or_default();
        names.push(replica.name.clone());
    }
    let sentences = by_reason.into_iter().map(|(reason, names)| {
        let names = some_of(names);
        format!("a replica of this node does not run ({names}): {reason}")
    });
    sentences.collect()
}

fn damaged_reason(damaged: &[String]) -> Option<String> {
    let names = (!damaged.is_empty()).then(|| some_of(damaged.to_vec()))?;
    Some(format!(
        "a replica of this node is damaged ({names}): it neither votes nor leads until it has fetched \
         from its leader what it lost"
    ))
}

fn count_of(partitions: usize) -> String {
    format!(
        "{partitions} partition{}",
        if partitions == 1 { "" } else { "s" }
    )
}

fn names(partitions: &[&PartitionView]) -> String {
    let names = partitions
        .iter()
        .map(|partition| format!("{}/{}", partition.topic, partition.partition));
    some_of(names.collect())
}

fn some_of(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(PARTITIONS_NAMED_MAX);
    names.truncate(PARTITIONS_NAMED_MAX);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::status::NodeView;
    use super::*;

    fn healthy() -> NodeStatus {
        NodeStatus {
            is_serving: true,
            controller: Some(1),
            nodes: vec![NodeView {
                node: 1,
                is_reachable: true,
                ..NodeView::default()
            }],
            partitions: vec![PartitionView {
                topic: "t".to_owned(),
                leader: Some(1),
                replicas: vec![1, 2],
                in_sync: vec![1, 2],
                ..PartitionView::default()
            }],
            ..NodeStatus::default()
        }
    }

    #[test]
    fn a_healthy_cluster_has_no_reasons() {
        let health = cluster_health(&healthy());
        assert!(health.healthy);
        assert_eq!(health.reasons, Vec::<String>::new());
    }

    #[test]
    fn each_trouble_is_named() {
        type Break = fn(&mut NodeStatus);
        let cases: [(Break, bool, &str); 10] = [
            (
                |s| s.partitions[0].leader = None,
                false,
                "1 partition without a leader: t/0",
            ),
            (
                |s| s.controller = None,
                false,
                "the controller has no leader",
            ),
            (
                |s| s.is_isolated = true,
                false,
                "the node hears no majority of its cluster",
            ),
            (
                |s| s.disk_failure = Some("I/O error".to_owned()),
                false,
                "the disk failed: I/O error",
            ),
            (
                |s| {
                    s.broken = ["t/0", "u/1"]
                        .map(|name| BrokenReplica {
                            name: name.to_owned(),
                            reason: "its disk failed".to_owned(),
                        })
                        .to_vec();
                },
                false,
                "a replica of this node does not run (t/0, u/1): its disk failed",
            ),
            (
                |s| s.damaged = ["t/0", "the controller"].map(str::to_owned).to_vec(),
                true,
                "a replica of this node is damaged (t/0, the controller): it neither votes nor leads \
                 until it has fetched from its leader what it lost",
            ),
            (
                |s| s.storage.is_disk_low = true,
                true,
                "the disk is nearly full (0 bytes are free)",
            ),
            (
                |s| (s.storage.is_disk_low, s.storage.is_disk_full) = (true, true),
                true,
                "the disk is full (0 bytes are free): this node's leaders refuse produce, its \
                 followers fall behind",
            ),
            (
                |s| s.nodes[0].is_reachable = false,
                true,
                "node 1 () is unreachable",
            ),
            (
                |s| s.partitions[0].in_sync = vec![1],
                true,
                "1 partition with replicas out of sync: t/0",
            ),
        ];
        for (break_it, stays_healthy, reason) in cases {
            let mut status = healthy();
            break_it(&mut status);
            let health = cluster_health(&status);
            assert_eq!(health.healthy, stays_healthy, "{reason}");
            assert_eq!(health.reasons, [reason]);
        }
    }

    #[test]
    fn a_node_that_has_not_joined_is_not_ready() {
        let readiness = readiness(&NodeStatus::default());
        assert!(!readiness.ready);
        assert_eq!(
            readiness.reasons,
            ["the node has not joined its cluster yet"]
        );
    }
}
