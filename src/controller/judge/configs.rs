//! Decisions on settings.

use std::collections::BTreeSet;

use corduroy_protocol::ErrorCode;

use crate::config::effective::{Facts as DefaultFacts, cluster_value, topic_value};
use crate::config::key::{ConfigKey, Kind, list_items};
use crate::config::{Scope, table};
use crate::controller::records::Change;
use crate::controller::requests::{ConfigAlteration, ConfigResource, ConfigStep, Refusal};
use crate::controller::state::ControllerState;

/// Changes of settings, each resource on its own, all of its steps or none.
pub(super) fn alter(
    state: &ControllerState,
    alterations: &[ConfigAlteration],
) -> (Vec<Change>, Vec<Result<(), Refusal>>) {
    let mut changes = Vec::new();
    let results = alterations
        .iter()
        .map(|alteration| {
            changes.extend(alter_one(state, alteration)?);
            Ok(())
        })
        .collect();
    (changes, results)
}

fn alter_one(
    state: &ControllerState,
    alteration: &ConfigAlteration,
) -> Result<Vec<Change>, Refusal> {
    let (scope, topic) = match &alteration.resource {
        ConfigResource::Cluster => (Scope::Cluster, None),
        ConfigResource::Topic(name) => {
            let topic = state.topics().get(name).ok_or_else(|| {
                Refusal::new(
                    ErrorCode::UnknownTopicOrPartition,
                    format!("there is no topic {name:?}"),
                )
            })?;
            (Scope::Topic, Some(topic))
        }
    };
    let facts = DefaultFacts {
        nodes: state.nodes().len(),
        replication_factor: topic
            .and_then(|topic| topic.partitions.first())
            .map_or(state.nodes().len().clamp(1, 3), Vec::len),
    };
    let own = match topic {
        Some(topic) => &topic.configs,
        None => state.cluster_configs(),
    };
    let mut seen = BTreeSet::new();
    let mut changes = Vec::new();
    for (name, step) in &alteration.steps {
        let refuse = |message| Refusal::new(ErrorCode::InvalidConfig, message);
        if !seen.insert(name) {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                format!("{name} is changed twice in one request"),
            ));
        }
        let key =
            table::find(scope, name).ok_or_else(|| refuse(table::unknown_message(scope, name)))?;
        let current = || {
            let effective = match topic {
                Some(topic) => topic_value(key, &topic.configs, state.cluster_configs(), facts),
                None => cluster_value(key, state.cluster_configs(), facts),
            };
            effective.value.unwrap_or_default()
        };
        let value = new_value(key, step, current).map_err(refuse)?;
        if own.get(name) == value.as_ref() {
            continue;
        }
        changes.push(match topic {
            Some(topic) => Change::TopicConfigChanged {
                topic: topic.id,
                name: name.clone(),
                value,
            },
            None => Change::ClusterConfigChanged {
                name: name.clone(),
                value,
            },
        });
    }
    Ok(changes)
}

/// The value after a step; none returns to the default.
fn new_value(
    key: &ConfigKey,
    step: &ConfigStep,
    current: impl FnOnce() -> String,
) -> Result<Option<String>, String> {
    let check = |value: &str| {
        key.check(value)
            .map(Some)
            .map_err(|error| error.to_string())
    };
    match step {
        ConfigStep::Set(value) => check(value),
        ConfigStep::Delete => Ok(None),
        ConfigStep::Append(_) | ConfigStep::Subtract(_) if key.kind != Kind::List => Err(format!(
            "{} is not a list: nothing can be added to it or taken from it",
            key.name
        )),
        ConfigStep::Append(items) => {
            let current = current();
            let mut list = list_items(&current);
            for item in list_items(items) {
                if !list.contains(&item) {
                    list.push(item);
                }
            }
            check(&list.join(","))
        }
        ConfigStep::Subtract(items) => {
            let current = current();
            let gone = list_items(items);
            let list: Vec<&str> = list_items(&current)
                .into_iter()
                .filter(|item| !gone.contains(item))
                .collect();
            check(&list.join(","))
        }
    }
}
