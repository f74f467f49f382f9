//! The controller's decisions: a request and the state in, facts and an answer out.
//!
//! No I/O and no clock. Randomness and liveness come in as [`Facts`], so that a table of cases can
//! test every rule. Law: what is judged is the state just before the entry that it becomes; the
//! leader judges one request at a time, each after the one before it has been applied.

mod configs;
mod nodes;
mod partitions;
mod topics;

pub(super) use nodes::refuse_twin;

use std::collections::BTreeSet;

use corduroy_protocol::ErrorCode;
use corduroy_record::TopicId;

use super::placement::Candidate;
use super::records::Change;
use super::requests::{Refusal, Reply, Request};
use super::state::ControllerState;

/// Producer ids per block, as Kafka's controller hands them out.
pub const PRODUCER_ID_BLOCK: i64 = 1000;

/// New partitions that one request may create: bounds the log entry.
pub const NEW_PARTITIONS_MAX: usize = 20_000;

/// Replicas that one node may hold.
pub const REPLICAS_PER_NODE_MAX: usize = 20_000;

/// What the decision depends on beside the state.
pub struct Facts<'a> {
    /// Nodes that the failure detector holds down.
    pub down: &'a BTreeSet<i32>,
    /// A source of random numbers.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl Facts<'_> {
    /// The id of a topic that this decision makes.
    ///
    /// What is judged is the state just before the entry that it becomes: the version that follows
    /// `state`'s is the first that shows the topic.
    fn topic_id(&mut self, state: &ControllerState) -> [u8; 16] {
        let random = u128::from((self.random)()) << 64 | u128::from((self.random)());
        TopicId::made_in(state.image().version.saturating_add(1), random).bytes()
    }
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing changes; this is the answer.
    Answer(Reply),
    /// These facts go into the log; the answer holds once they are applied.
    Commit {
        /// What changes.
        changes: Vec<Change>,
        /// The answer.
        reply: Reply,
    },
}

impl Verdict {
    fn refuse(code: ErrorCode, message: impl Into<String>) -> Verdict {
        Verdict::Answer(Reply::Refused(Refusal::new(code, message)))
    }

    /// A commit, unless there is nothing to commit.
    fn of(changes: Vec<Change>, reply: Reply) -> Verdict {
        if changes.is_empty() {
            Verdict::Answer(reply)
        } else {
            Verdict::Commit { changes, reply }
        }
    }
}

/// Decides on a request.
pub fn judge(state: &ControllerState, request: &Request, facts: &mut Facts<'_>) -> Verdict {
    if state.cluster_id().is_none() && !matches!(request, Request::Form { .. }) {
        return Verdict::refuse(
            ErrorCode::CoordinatorNotAvailable,
            "the cluster is still forming; try again",
        );
    }
    match request {
        Request::Form {
            cluster_id,
            nodes,
            configs,
        } => nodes::form(state, *cluster_id, nodes, configs),
        Request::RegisterNode(claim) => nodes::register(state, claim),
        Request::RemoveNode { node } => nodes::remove(state, *node, facts.down),
        Request::CreateTopics {
            topics,
            validate_only,
        } => {
            let (changes, results) = topics::create(state, topics, facts);
            let changes = if *validate_only { Vec::new() } else { changes };
            Verdict::of(changes, Reply::Topics(results))
        }
        Request::DeleteTopics { topics } => topics::delete(state, topics),
        Request::CreatePartitions {
            topics,
            validate_only,
        } => {
            let (changes, results) = partitions::create(state, topics, facts);
            let changes = if *validate_only { Vec::new() } else { changes };
            Verdict::of(changes, Reply::Topics(results))
        }
        Request::AlterConfigs {
            alterations,
            validate_only,
        } => {
            let (changes, results) = configs::alter(state, alterations);
            let changes = if *validate_only { Vec::new() } else { changes };
            Verdict::of(changes, Reply::Configs(results))
        }
        Request::AllocateProducerIds => {
            let first = state.next_producer();
            let next = first + PRODUCER_ID_BLOCK;
            Verdict::Commit {
                changes: vec![Change::ProducerIdsTaken { next }],
                reply: Reply::ProducerIds { first, next },
            }
        }
    }
}

/// The nodes that may take new replicas: the living ones if there are enough of them, else all. A
/// replica on a node that is down comes to life with the node.
fn candidates(
    state: &ControllerState,
    facts: &Facts<'_>,
    replication_factor: usize,
) -> Vec<Candidate> {
    let candidate = |node: &super::records::NodeRecord| Candidate {
        node: corduroy_record::NodeId::new(node.id),
        rack: node.rack.clone(),
    };
    let living: Vec<Candidate> = state
        .nodes()
        .values()
        .filter(|node| !facts.down.contains(&node.id))
        .map(candidate)
        .collect();
    if living.len() >= replication_factor {
        return living;
    }
    state.nodes().values().map(candidate).collect()
}

#[cfg(test)]
mod tests;
