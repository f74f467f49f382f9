//! Decisions on nodes: forming, joining, leaving.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_protocol::ErrorCode;

use super::Verdict;
use crate::controller::records::{Change, NodeRecord};
use crate::controller::requests::{NodeClaim, NodeGrant, Refusal, Reply};
use crate::controller::state::ControllerState;

/// The founders' cluster; asked again it is there already.
pub(super) fn form(
    state: &ControllerState,
    cluster_id: [u8; 16],
    nodes: &[NodeRecord],
    configs: &BTreeMap<String, String>,
) -> Verdict {
    if state.cluster_id().is_some() {
        return Verdict::Answer(Reply::Done);
    }
    let mut changes = vec![Change::ClusterFormed { cluster_id }];
    changes.extend(nodes.iter().cloned().map(Change::NodeRegistered));
    changes.extend(
        configs
            .iter()
            .map(|(name, value)| Change::ClusterConfigChanged {
                name: name.clone(),
                value: Some(value.clone()),
            }),
    );
    Verdict::Commit {
        changes,
        reply: Reply::Done,
    }
}

/// A node joins or announces itself again. Law: an id belongs to one uuid for good.
pub(super) fn register(state: &ControllerState, claim: &NodeClaim) -> Verdict {
    let record = match (state.node_of(&claim.uuid), claim.node) {
        (Some(known), Some(claimed)) if claimed != known.id => {
            return Verdict::refuse(
                ErrorCode::InvalidRequest,
                format!(
                    "cannot join as node {claimed}: this data directory belongs to node {known}\n  \
                     help    start with --node-id {known}, or give node {claimed} a --data-dir of \
                     its own",
                    known = known.id
                ),
            );
        }
        (Some(known), _) => claim.record(known.id, known.controller_replica),
        (None, Some(claimed)) => match refuse_id(state, claimed) {
            Some(refusal) => return refusal,
            None => claim.record(claimed, state.next_replica()),
        },
        (None, None) => claim.record(state.next_node(), state.next_replica()),
    };
    let mut nodes = state.nodes().clone();
    let known = nodes.insert(record.id, record.clone());
    let changes = match known {
        Some(known) if known == record => Vec::new(),
        _ => vec![Change::NodeRegistered(record.clone())],
    };
    let grant = NodeGrant {
        node: record.id,
        controller_replica: record.controller_replica,
        cluster_id: state.cluster_id().unwrap_or_default(),
        nodes: nodes.into_values().collect(),
        version: state.image().version + u64::from(!changes.is_empty()),
    };
    Verdict::of(changes, Reply::Node(grant))
}

/// Why somebody who does not speak for a known node may not register it at other addresses: the
/// process that is registered lives. A node that speaks for itself is let through: the transport
/// has taken its process for the living one. `down`: nodes without a living process.
pub(in crate::controller) fn refuse_twin(
    state: &ControllerState,
    claim: &NodeClaim,
    down: &BTreeSet<i32>,
) -> Option<Refusal> {
    let known = state.node_of(&claim.uuid)?;
    let moved = claim.record(known.id, known.controller_replica);
    if (&moved.kafka_host, moved.kafka_port, moved.rpc)
        == (&known.kafka_host, known.kafka_port, known.rpc)
        || down.contains(&known.id)
    {
        return None;
    }
    let uuid = uuid::Uuid::from_bytes(known.uuid);
    Some(Refusal::new(
        ErrorCode::DuplicateBrokerRegistration,
        format!(
            "another process runs as node {id} (uuid {uuid}) at {rpc}: is the data directory of the \
             one at {own} a copy of its own?\n  \
             help    stop one of the two. A copy must never be started beside its original",
            id = known.id,
            rpc = known.rpc,
            own = claim.rpc,
        ),
    ))
}

/// Why an unknown data directory cannot have this id.
fn refuse_id(state: &ControllerState, claimed: i32) -> Option<Verdict> {
    let fresh = state.next_node();
    if claimed < 0 {
        return Some(Verdict::refuse(
            ErrorCode::InvalidRequest,
            format!("cannot join as node {claimed}: a node id is 0 or more"),
        ));
    }
    if state.is_burnt(claimed) {
        return Some(Verdict::refuse(
            ErrorCode::DuplicateBrokerRegistration,
            format!(
                "cannot join as node {claimed}: that node was decommissioned, and ids never \
                 return\n  help    start with --node-id {fresh}, or without --node-id"
            ),
        ));
    }
    let owner = state.nodes().get(&claimed)?;
    let uuid = uuid::Uuid::from_bytes(owner.uuid);
    Some(Verdict::refuse(
        ErrorCode::DuplicateBrokerRegistration,
        format!(
            "cannot join as node {claimed}: that id belongs to another data directory\n  \
             found   node {claimed} = {uuid} at {rpc}\n  \
             help    if that disk is lost, run `corduroy cluster decommission {claimed}`; start \
             this node with a fresh id: --node-id {fresh}, or without --node-id",
            rpc = owner.rpc
        ),
    ))
}

/// Partitions that a refusal names; the rest is counted.
const NAMED_MAX: usize = 10;

/// A node leaves for good: one on which nothing lives, or one that is down. Partitions of a node that
/// is down keep their place on it, since nothing moves replicas yet; one whose only replica is there
/// would be lost for good, so it must be deleted first.
pub(super) fn remove(state: &ControllerState, node: i32, down: &BTreeSet<i32>) -> Verdict {
    if state.is_burnt(node) {
        return Verdict::Answer(Reply::Done);
    }
    if !state.nodes().contains_key(&node) {
        return Verdict::refuse(
            ErrorCode::BrokerIdNotRegistered,
            format!("there is no node {node}"),
        );
    }
    if state.nodes().len() == 1 {
        return Verdict::refuse(
            ErrorCode::InvalidRequest,
            format!("node {node} is the only node of the cluster"),
        );
    }
    let is_down = down.contains(&node);
    let (held, only) = partitions_on(state, node);
    if is_down && !only.is_empty() {
        return Verdict::refuse(
            ErrorCode::InvalidRequest,
            format!(
                "node {node} is down and holds the only replica of {}; start it again, or delete \
                 these topics first",
                named(&only)
            ),
        );
    }
    if !is_down && !held.is_empty() {
        return Verdict::refuse(
            ErrorCode::InvalidRequest,
            format!(
                "node {node} is up and still holds replicas of {}; replicas cannot be moved to \
                 another node yet: delete these topics, or stop the node if its disk is lost",
                named(&held)
            ),
        );
    }
    Verdict::Commit {
        changes: vec![Change::NodeRemoved { node }],
        reply: Reply::Done,
    }
}

/// The partitions with a replica on a node, and those of them that have no other.
fn partitions_on(state: &ControllerState, node: i32) -> (Vec<String>, Vec<String>) {
    let (mut held, mut only) = (Vec::new(), Vec::new());
    if state.replicas_on(node) == 0 {
        return (held, only);
    }
    for topic in state.topics().values() {
        for (index, replicas) in topic.partitions.iter().enumerate() {
            if replicas.iter().any(|replica| replica.node == node) {
                let name = format!("{}/{index}", topic.name);
                if replicas.iter().all(|replica| replica.node == node) {
                    only.push(name.clone());
                }
                held.push(name);
            }
        }
    }
    (held, only)
}

fn named(partitions: &[String]) -> String {
    let shown = partitions.iter().take(NAMED_MAX).cloned();
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if let Some(more) = partitions.len().checked_sub(NAMED_MAX).filter(|n| *n > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
