//! Decisions on topics: creation, deletion.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_protocol::ErrorCode;
use corduroy_record::NodeId;

use super::{Facts, NEW_PARTITIONS_MAX, REPLICAS_PER_NODE_MAX, Verdict, candidates};
use crate::config::{ClusterConfigs, table};
use crate::controller::placement::{Wanted, place};
use crate::controller::records::{Change, PartitionRecord, ReplicaRecord, TopicRecord};
use crate::controller::requests::{Assignment, NewTopic, Refusal, Reply, TopicRef};
use crate::controller::state::ControllerState;
use crate::controller::topic_name;

/// Where new replicas get their ids, and how many partitions this request has created.
pub(super) struct Budget {
    next_replica: u64,
    partitions: usize,
    replicas: BTreeMap<i32, usize>,
}

impl Budget {
    pub(super) fn new(state: &ControllerState) -> Self {
        Budget {
            next_replica: state.next_replica(),
            partitions: 0,
            replicas: BTreeMap::new(),
        }
    }

    /// Gives every replica its id, unless that would exceed a limit.
    pub(super) fn take(
        &mut self,
        state: &ControllerState,
        placed: &[Vec<NodeId>],
    ) -> Result<Vec<PartitionRecord>, Refusal> {
        if self.partitions + placed.len() > NEW_PARTITIONS_MAX {
            return Err(Refusal::new(
                ErrorCode::PolicyViolation,
                format!("one request may create at most {NEW_PARTITIONS_MAX} partitions"),
            ));
        }
        let mut replicas = self.replicas.clone();
        for node in placed.iter().flatten() {
            let count = replicas
                .entry(node.get())
                .or_insert_with(|| state.replicas_on(node.get()));
            *count += 1;
            if *count > REPLICAS_PER_NODE_MAX {
                return Err(Refusal::new(
                    ErrorCode::PolicyViolation,
                    format!("node {node} would hold more than {REPLICAS_PER_NODE_MAX} replicas"),
                ));
            }
        }
        self.replicas = replicas;
        self.partitions += placed.len();
        let mut fresh = || {
            let id = self.next_replica;
            self.next_replica += 1;
            id
        };
        Ok(placed
            .iter()
            .map(|nodes| {
                let record = |node: &NodeId| ReplicaRecord {
                    replica: fresh(),
                    node: node.get(),
                };
                nodes.iter().map(record).collect()
            })
            .collect())
    }
}

/// Topics to create, each on its own: one that is refused does not keep the others.
pub(super) fn create(
    state: &ControllerState,
    topics: &[NewTopic],
    facts: &mut Facts<'_>,
) -> (Vec<Change>, Vec<Result<TopicRecord, Refusal>>) {
    let mut budget = Budget::new(state);
    let mut names = NewNames::default();
    let results: Vec<Result<TopicRecord, Refusal>> = topics
        .iter()
        .map(|topic| {
            names.check(state, &topic.name)?;
            let configs = check_configs(&topic.configs)?;
            let placed = placement(state, topic, facts)?;
            let partitions = budget.take(state, &placed)?;
            names.take(&topic.name);
            Ok(TopicRecord {
                name: topic.name.clone(),
                id: facts.topic_id(state),
                partitions,
                configs,
            })
        })
        .collect();
    let changes = results
        .iter()
        .flatten()
        .cloned()
        .map(Change::TopicCreated)
        .collect();
    (changes, results)
}

/// The names that this request has taken so far.
#[derive(Default)]
struct NewNames {
    by_collision_key: BTreeMap<String, String>,
}

impl NewNames {
    fn check(&self, state: &ControllerState, name: &str) -> Result<(), Refusal> {
        topic_name::check(name)
            .map_err(|reason| Refusal::new(ErrorCode::InvalidTopicException, reason))?;
        // As in Kafka, which takes its other internal topics from whoever creates them first.
        if name == topic_name::RESERVED {
            let reason = format!("the name {name} is reserved: no topic may have it");
            return Err(Refusal::new(ErrorCode::InvalidRequest, reason));
        }
        let key = topic_name::collision_key(name);
        let owner = state
            .collision(name)
            .or(self.by_collision_key.get(&key).map(String::as_str));
        match owner {
            None => Ok(()),
            Some(owner) if owner == name => Err(Refusal::new(
                ErrorCode::TopicAlreadyExists,
                format!("topic {name:?} already exists"),
            )),
            Some(owner) => Err(Refusal::new(
                ErrorCode::InvalidTopicException,
                format!(
                    "topic {name:?} collides with the existing topic {owner:?}: names must differ \
                     in more than '.' and '_'"
                ),
            )),
        }
    }

    fn take(&mut self, name: &str) {
        self.by_collision_key
            .insert(topic_name::collision_key(name), name.to_owned());
    }
}

fn check_configs(
    configs: &[(String, Option<String>)],
) -> Result<BTreeMap<String, String>, Refusal> {
    let refuse = |message| Refusal::new(ErrorCode::InvalidConfig, message);
    let mut checked = BTreeMap::new();
    for (name, value) in configs {
        let key = table::topic_key(name)
            .ok_or_else(|| refuse(table::unknown_message(crate::config::Scope::Topic, name)))?;
        let value = value
            .as_deref()
            .ok_or_else(|| refuse(format!("{name} has no value")))?;
        let value = key
            .check(value)
            .map_err(|error| refuse(error.to_string()))?;
        checked.insert(name.clone(), value);
    }
    Ok(checked)
}

fn placement(
    state: &ControllerState,
    topic: &NewTopic,
    facts: &mut Facts<'_>,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if !topic.assignments.is_empty() {
        if topic.partitions.is_some() || topic.replication_factor.is_some() {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "give either assignments, or counts of partitions and replicas, not both",
            ));
        }
        return by_hand(state, &topic.assignments);
    }
    let cluster = ClusterConfigs::resolve(state.cluster_configs(), state.nodes().len());
    let partitions = topic.partitions.unwrap_or(cluster.num_partitions);
    if partitions < 1 {
        return Err(Refusal::new(
            ErrorCode::InvalidPartitions,
            format!("a topic has at least 1 partition, not {partitions}"),
        ));
    }
    let factor = match topic.replication_factor {
        Some(factor) => i64::from(factor),
        None => cluster.default_replication_factor as i64,
    };
    let nodes = state.nodes().len();
    let factor = match usize::try_from(factor) {
        Ok(factor) if (1..=nodes).contains(&factor) => factor,
        _ => {
            return Err(Refusal::new(
                ErrorCode::InvalidReplicationFactor,
                format!("a replication factor of {factor} needs as many nodes; there are {nodes}"),
            ));
        }
    };
    // Before anything of that size is built.
    if partitions as usize > NEW_PARTITIONS_MAX {
        return Err(Refusal::new(
            ErrorCode::InvalidPartitions,
            format!("a topic is created with at most {NEW_PARTITIONS_MAX} partitions"),
        ));
    }
    let wanted = Wanted {
        first_partition: 0,
        partitions: partitions as usize,
        replication_factor: factor,
        start: (facts.random)(),
        shift: (facts.random)(),
    };
    place(&candidates(state, facts, factor), wanted).ok_or_else(|| {
        Refusal::new(
            ErrorCode::InvalidReplicationFactor,
            format!("fewer than {factor} nodes"),
        )
    })
}

fn by_hand(
    state: &ControllerState,
    assignments: &[Assignment],
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let refuse = |message| Refusal::new(ErrorCode::InvalidReplicaAssignment, message);
    let mut sorted: Vec<&Assignment> = assignments.iter().collect();
    sorted.sort_by_key(|assignment| assignment.partition);
    for (index, assignment) in sorted.iter().enumerate() {
        if usize::try_from(assignment.partition).ok() != Some(index) {
            return Err(refuse(
                "partitions must be numbered from 0 without gaps".to_owned(),
            ));
        }
    }
    let nodes: Vec<&[i32]> = sorted
        .iter()
        .map(|assignment| &assignment.nodes[..])
        .collect();
    let factor = nodes.first().map_or(0, |first| first.len());
    check_nodes(state, &nodes, factor)
}

/// Checks nodes that somebody named: known, distinct, as many for each partition.
pub(super) fn check_nodes(
    state: &ControllerState,
    partitions: &[&[i32]],
    replication_factor: usize,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let refuse = |message: String| Refusal::new(ErrorCode::InvalidReplicaAssignment, message);
    for nodes in partitions {
        if nodes.is_empty() {
            return Err(refuse("a partition needs at least one node".into()));
        }
        if nodes.len() != replication_factor {
            return Err(refuse(format!(
                "every partition needs {replication_factor} nodes; {nodes:?} has {}",
                nodes.len()
            )));
        }
        let distinct: BTreeSet<i32> = nodes.iter().copied().collect();
        if distinct.len() != nodes.len() {
            return Err(refuse(format!("{nodes:?} names a node twice")));
        }
        if let Some(stranger) = nodes.iter().find(|node| !state.nodes().contains_key(node)) {
            return Err(refuse(format!("there is no node {stranger}")));
        }
    }
    Ok(partitions
        .iter()
        .map(|nodes| nodes.iter().map(|id| NodeId::new(*id)).collect())
        .collect())
}

/// Topics to delete, each on its own.
pub(super) fn delete(state: &ControllerState, topics: &[TopicRef]) -> Verdict {
    if !ClusterConfigs::resolve(state.cluster_configs(), state.nodes().len()).delete_topics {
        return Verdict::refuse(
            ErrorCode::TopicDeletionDisabled,
            "topics cannot be deleted: delete.topic.enable is false",
        );
    }
    let results: Vec<Result<TopicRecord, Refusal>> = topics
        .iter()
        .map(|topic| match topic {
            TopicRef::Name(name) => state.topics().get(name).cloned().ok_or_else(|| {
                Refusal::new(
                    ErrorCode::UnknownTopicOrPartition,
                    format!("there is no topic {name:?}"),
                )
            }),
            TopicRef::Id(id) => state.topic(id).cloned().ok_or_else(|| {
                Refusal::new(
                    ErrorCode::UnknownTopicId,
                    format!(
                        "there is no topic with the id {}",
                        uuid::Uuid::from_bytes(*id)
                    ),
                )
            }),
        })
        .collect();
    // By name and by id at once would delete a topic twice.
    let ids: BTreeSet<[u8; 16]> = results.iter().flatten().map(|topic| topic.id).collect();
    let changes = ids
        .into_iter()
        .map(|topic| Change::TopicDeleted { topic })
        .collect();
    Verdict::of(changes, Reply::Topics(results))
}
