//! What the cluster does to a group: topics that come, grow or go; a group that changes protocol.

use std::collections::BTreeMap;

use corduroy_protocol::ErrorCode;

use super::regex::TopicPattern;
use super::state::ConsumerState;
use super::target;
use super::topics::Topics;
use crate::GroupError;
use crate::records::{ClassicValue, ConsumerValue, GroupRecord, RegexValue};

/// Looks at the topics anew: regular expressions are resolved again, and the group epoch grows if
/// the topics to which members subscribe are others than before. The next heartbeat then computes
/// the target assignment.
///
/// To be called for every group when topics change, and once when a coordinator begins. Without
/// changes it writes nothing.
pub fn topics_changed(
    group: &str,
    state: &ConsumerState,
    topics: &dyn Topics,
    now_ms: i64,
) -> Vec<GroupRecord> {
    // Expressions that nobody uses: a decision was cut between its records.
    let mut records: Vec<GroupRecord> = state
        .regexes()
        .keys()
        .filter(|regex| state.regex_subscribers(regex) == 0)
        .map(|regex| GroupRecord::Regex {
            group: group.to_owned(),
            regex: regex.clone(),
            value: None,
        })
        .collect();
    if state.members().is_empty() {
        return records;
    }
    let fresh: BTreeMap<String, RegexValue> = state
        .regexes_in_use()
        .filter_map(|regex| {
            let before = state.regexes().get(regex);
            if before.is_some_and(|before| before.version == topics.version()) {
                return None;
            }
            // It was valid when it came; a record of another coordinator that is not valid here
            // keeps its topics.
            let value = TopicPattern::new(regex).ok()?.resolve(topics, now_ms);
            let same = before.is_some_and(|before| before.topics == value.topics);
            (!same).then(|| (regex.to_owned(), value))
        })
        .collect();
    let metadata_hash = target::metadata_hash(state, &fresh, topics);
    if metadata_hash != state.metadata_hash() {
        records.push(GroupRecord::Consumer {
            group: group.to_owned(),
            value: Some(ConsumerValue {
                epoch: state.epoch().saturating_add(1),
                metadata_hash,
            }),
        });
    }
    records.extend(fresh.into_iter().map(|(regex, value)| GroupRecord::Regex {
        group: group.to_owned(),
        regex,
        value: Some(value),
    }));
    records
}

/// A classic group as a group of this protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// To be written before the records of the decision that follows.
    pub records: Vec<GroupRecord>,
    /// The state that they make, from which that decision is made.
    pub state: ConsumerState,
}

/// An empty classic group becomes one of this protocol when a member joins it by
/// ConsumerGroupHeartbeat. Epochs go on from `last_generation`, the highest generation or epoch
/// that the group ever had.
///
/// # Errors
///
/// GROUP_ID_NOT_FOUND (Kafka's choice) if the group has members of the classic protocol.
pub fn from_classic(
    group: &str,
    classic: &ClassicValue,
    last_generation: i32,
) -> Result<Conversion, GroupError> {
    if !classic.members.is_empty() {
        return Err(GroupError::new(
            ErrorCode::GroupIdNotFound,
            format!("group {group} has members that use the classic protocol"),
        ));
    }
    let epoch = last_generation.max(classic.generation).max(0);
    Ok(Conversion {
        records: vec![
            GroupRecord::Classic {
                group: group.to_owned(),
                value: None,
            },
            GroupRecord::Consumer {
                group: group.to_owned(),
                value: Some(ConsumerValue {
                    epoch,
                    metadata_hash: 0,
                }),
            },
        ],
        state: ConsumerState::starting_at(epoch),
    })
}

/// The tombstones that make room for a classic group of the same name when a member joins by
/// JoinGroup. The classic group's generations should go on from the state's epoch.
///
/// # Errors
///
/// INCONSISTENT_GROUP_PROTOCOL if the group has members.
pub fn to_classic(group: &str, state: &ConsumerState) -> Result<Vec<GroupRecord>, GroupError> {
    if !state.members().is_empty() {
        return Err(GroupError::new(
            ErrorCode::InconsistentGroupProtocol,
            format!("group {group} has members that use the consumer protocol"),
        ));
    }
    let mut records = Vec::new();
    state.tombstones(group, &mut records);
    Ok(records)
}
