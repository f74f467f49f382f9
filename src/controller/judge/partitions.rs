//! Decisions on adding partitions.

use corduroy_protocol::ErrorCode;
use corduroy_record::NodeId;

use super::topics::{Budget, check_nodes};
use super::{Facts, NEW_PARTITIONS_MAX, candidates};
use crate::controller::placement::{Wanted, place};
use crate::controller::records::{Change, TopicRecord};
use crate::controller::requests::{NewPartitions, Refusal};
use crate::controller::state::ControllerState;

/// Topics that grow, each on its own.
pub(super) fn create(
    state: &ControllerState,
    topics: &[NewPartitions],
    facts: &mut Facts<'_>,
) -> (Vec<Change>, Vec<Result<TopicRecord, Refusal>>) {
    let mut budget = Budget::new(state);
    let mut changes = Vec::new();
    let results = topics
        .iter()
        .map(|wanted| {
            let mut topic = state.topics().get(&wanted.topic).cloned().ok_or_else(|| {
                Refusal::new(
                    ErrorCode::UnknownTopicOrPartition,
                    format!("there is no topic {:?}", wanted.topic),
                )
            })?;
            let placed = placement(state, &topic, wanted, facts)?;
            let added = budget.take(state, &placed)?;
            topic.partitions.extend(added.iter().cloned());
            changes.push(Change::PartitionsAdded {
                topic: topic.id,
                partitions: added,
            });
            Ok(topic)
        })
        .collect();
    (changes, results)
}

fn placement(
    state: &ControllerState,
    topic: &TopicRecord,
    wanted: &NewPartitions,
    facts: &mut Facts<'_>,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let refuse = |message| Refusal::new(ErrorCode::InvalidPartitions, message);
    let present = topic.partitions.len();
    let count = usize::try_from(wanted.count).unwrap_or(0);
    if count == present {
        return Err(refuse(format!(
            "topic {:?} already has {present} partitions",
            topic.name
        )));
    }
    if count < present {
        return Err(refuse(format!(
            "topic {:?} has {present} partitions; {} would not be an increase",
            topic.name, wanted.count
        )));
    }
    let added = count - present;
    if added > NEW_PARTITIONS_MAX {
        return Err(refuse(format!(
            "at most {NEW_PARTITIONS_MAX} partitions are added at once"
        )));
    }
    let factor = topic.partitions.first().map_or(1, Vec::len);
    if let Some(assignments) = &wanted.assignments {
        if assignments.len() != added {
            return Err(Refusal::new(
                ErrorCode::InvalidReplicaAssignment,
                format!(
                    "{added} partitions are added, but {} are assigned",
                    assignments.len()
                ),
            ));
        }
        let nodes: Vec<&[i32]> = assignments.iter().map(|nodes| &nodes[..]).collect();
        return check_nodes(state, &nodes, factor);
    }
    let wanted = Wanted {
        first_partition: present,
        partitions: added,
        replication_factor: factor,
        start: (facts.random)(),
        shift: (facts.random)(),
    };
    place(&candidates(state, facts, factor), wanted).ok_or_else(|| {
        Refusal::new(
            ErrorCode::InvalidReplicationFactor,
            format!("a replication factor of {factor} needs as many nodes"),
        )
    })
}
