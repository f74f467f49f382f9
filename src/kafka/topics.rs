//! Topics on the wire: create, delete, add partitions. The controller decides; these handlers
//! translate, and answer when this node's metadata shows the result, because clients go on at
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corduroy_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use corduroy_protocol::messages::create_topics_request::CreatableTopic;
use corduroy_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use corduroy_protocol::messages::delete_topics_response::DeletableTopicResult;
use corduroy_protocol::messages::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, TopicName,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::{GroupId, TopicId};
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use super::context::KafkaContext;
use super::groups::offsets_topic;
use super::metadata::wait_for_leaders;
use crate::config::effective::{Facts, topic_values};
use crate::config::{Scope, table};
use crate::controller::{Assignment, NewPartitions, NewTopic, TopicError, TopicInfo, TopicRef};
use crate::group::CONSUMER_OFFSETS;

/// A decision takes a round of disk writes: a client that allows less would never hear of it.
const DECISION_MIN: Duration = Duration::from_secs(1);

/// What a request allows, in parts: for the decision, and for its result to show.
struct Patience {
    decision: Duration,
    deadline: Instant,
}

impl Patience {
    fn of(ctx: &KafkaContext, timeout_ms: i32) -> Self {
        let allowed = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        Patience {
            decision: allowed.max(DECISION_MIN),
            deadline: ctx.env.now() + allowed.max(DECISION_MIN),
        }
    }

    fn left(&self, ctx: &KafkaContext) -> Duration {
        self.deadline.saturating_duration_since(ctx.env.now())
    }
}

/// Creates topics (versions 2 to 7). Answers once every new partition has a leader.
pub async fn create_topics(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let patience = Patience::of(ctx, request.timeout_ms);
    let twice = named_twice(request.topics.iter().map(|topic| topic.name.to_string()));
    let mut results = BTreeMap::new();
    let mut wanted = Vec::new();
    for topic in &request.topics {
        let name = topic.name.to_string();
        if twice.contains(&name) {
            results.insert(name, Err(asked_twice()));
        } else {
            wanted.push(completed(ctx, new_topic(topic)));
        }
    }
    let names: Vec<String> = wanted.iter().map(|topic| topic.name.clone()).collect();
    for topic in &wanted {
        warn_idle(
            &topic.name,
            topic.configs.iter().map(|(name, _)| name.as_str()),
        );
    }
    let decided = if wanted.is_empty() {
        Vec::new()
    } else {
        ctx.controller
            .create_topics(wanted, request.validate_only, patience.decision)
            .await
    };
    let mut decided: BTreeMap<String, Result<TopicInfo, TopicError>> =
        names.into_iter().zip(decided).collect();
    if !request.validate_only {
        demand_leaders(ctx, &mut decided, &patience, |_| 0).await;
    }
    results.append(&mut decided);
    let topics = results
        .into_iter()
        .map(|(name, result)| created(ctx, header, name, result))
        .collect();
    CreateTopicsResponse::default().with_topics(topics)
}

fn new_topic(topic: &CreatableTopic) -> NewTopic {
    NewTopic {
        name: topic.name.to_string(),
        partitions: (topic.num_partitions != -1).then_some(topic.num_partitions),
        replication_factor: (topic.replication_factor != -1).then_some(topic.replication_factor),
        assignments: topic
            .assignments
            .iter()
            .map(|assignment| Assignment {
                partition: assignment.partition_index,
                nodes: assignment.broker_ids.iter().map(|id| id.0).collect(),
            })
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|config| {
                (
                    config.name.to_string(),
                    config.value.as_ref().map(|v| v.to_string()),
                )
            })
            .collect(),
    }
}

/// One of the cluster's own topics is what it would make of it, where nothing else is asked for.
fn completed(ctx: &KafkaContext, asked: NewTopic) -> NewTopic {
    if asked.name != CONSUMER_OFFSETS {
        return asked;
    }
    let own = offsets_topic(ctx);
    let is_assigned = !asked.assignments.is_empty();
    let named = |name: &String| asked.configs.iter().any(|(asked, _)| asked == name);
    let configs = own.configs.into_iter().filter(|(name, _)| !named(name));
    NewTopic {
        configs: configs.chain(asked.configs.clone()).collect(),
        partitions: asked.partitions.or(own.partitions.filter(|_| !is_assigned)),
        replication_factor: asked
            .replication_factor
            .or(own.replication_factor.filter(|_| !is_assigned)),
        ..asked
    }
}

fn created(
    ctx: &KafkaContext,
    header: &RequestHeader,
    name: String,
    result: Result<TopicInfo, TopicError>,
) -> CreatableTopicResult {
    let response =
        CreatableTopicResult::default().with_name(TopicName(StrBytes::from_string(name)));
    match result {
        Err(error) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            response
                .with_error_code(error.code.code())
                .with_error_message(Some(StrBytes::from_string(error.message)))
                .with_num_partitions(-1)
                .with_replication_factor(-1)
                .with_configs(Some(Vec::new()))
        }
        Ok(topic) => response
            .with_error_message(None)
            .with_topic_id(topic.id.uuid())
            .with_num_partitions(count(topic.partitions.len()))
            .with_replication_factor(i16::try_from(topic.replication_factor()).unwrap_or(i16::MAX))
            .with_configs(Some(configs_of(ctx, &topic))),
    }
}

fn configs_of(ctx: &KafkaContext, topic: &TopicInfo) -> Vec<CreatableTopicConfigs> {
    let image = ctx.metadata.image();
    let facts = Facts {
        nodes: image.nodes.len(),
        replication_factor: topic.replication_factor(),
    };
    topic_values(&topic.configs, &image.cluster_configs, facts)
        .into_iter()
        .map(|effective| {
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_static_str(effective.key.name))
                .with_value(effective.value.map(StrBytes::from_string))
                .with_config_source(effective.origin.wire_code())
        })
        .collect()
}

/// Deletes topics (versions 1 to 6; by id from 6). Answers once this node's metadata is without
/// them; their data goes in the background.
pub async fn delete_topics(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let patience = Patience::of(ctx, request.timeout_ms);
    let asked: Vec<(Option<TopicName>, Uuid)> = if header.api_version >= 6 {
        request
            .topics
            .into_iter()
            .map(|topic| (topic.name, topic.topic_id))
            .collect()
    } else {
        request
            .topic_names
            .into_iter()
            .map(|name| (Some(name), Uuid::nil()))
            .collect()
    };
    let twice = named_twice(asked.iter().map(|(name, id)| (name.clone(), *id)));
    let mut responses = Vec::new();
    let mut wanted = Vec::new();
    let mut kept = Vec::new();
    let mut refused = BTreeSet::new();
    for (name, id) in asked {
        let contradiction = name.is_some() != id.is_nil();
        if twice.contains(&(name.clone(), id)) || contradiction {
            if refused.insert((name.clone(), id)) {
                responses.push(deleted(ctx, header, (name, id), Err(asked_twice())));
            }
            continue;
        }
        wanted.push(match &name {
            Some(name) => TopicRef::Name(name.to_string()),
            None => TopicRef::Id(*id.as_bytes()),
        });
        kept.push((name, id));
    }
    if !wanted.is_empty() {
        let results = ctx
            .controller
            .delete_topics(wanted, patience.decision)
            .await;
        let gone: Vec<TopicId> = results.iter().flatten().map(|topic| topic.id).collect();
        let is_gone = || {
            let image = ctx.metadata.image();
            gone.iter().all(|id| image.topic_by_id(*id).is_none())
        };
        let _shown = ctx.wait_until(patience.deadline, is_gone).await;
        for (asked, result) in kept.into_iter().zip(results) {
            responses.push(deleted(ctx, header, asked, result));
        }
    }
    DeleteTopicsResponse::default().with_responses(responses)
}

fn deleted(
    ctx: &KafkaContext,
    header: &RequestHeader,
    (name, id): (Option<TopicName>, Uuid),
    result: Result<TopicInfo, TopicError>,
) -> DeletableTopicResult {
    match result {
        Ok(topic) => DeletableTopicResult::default()
            .with_name(Some(TopicName(StrBytes::from_string(topic.name))))
            .with_topic_id(topic.id.uuid()),
        Err(error) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            // Versions 1 and 2 have no code for it.
            let code = match error.code {
                ErrorCode::TopicDeletionDisabled if header.api_version < 3 => {
                    ErrorCode::InvalidRequest
                }
                code => code,
            };
            DeletableTopicResult::default()
                .with_name(name)
                .with_topic_id(id)
                .with_error_code(code.code())
                .with_error_message(Some(StrBytes::from_string(error.message)))
        }
    }
}

/// Adds partitions (versions 0 to 3). Answers once every new partition has a leader.
pub async fn create_partitions(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let patience = Patience::of(ctx, request.timeout_ms);
    let twice = named_twice(request.topics.iter().map(|topic| topic.name.to_string()));
    let image = ctx.metadata.image();
    let mut results = BTreeMap::new();
    let mut wanted = Vec::new();
    let mut present = BTreeMap::new();
    for topic in request.topics {
        let name = topic.name.to_string();
        if twice.contains(&name) {
            results.insert(name, Err(asked_twice()));
            continue;
        }
        let known = image
            .topics
            .get(&name)
            .map_or(0, |topic| topic.partitions.len());
        present.insert(name.clone(), known);
        let assignments = topic.assignments.map(|assignments| {
            assignments
                .into_iter()
                .map(|assignment| assignment.broker_ids.iter().map(|id| id.0).collect())
                .collect()
        });
        wanted.push(NewPartitions {
            topic: name,
            count: topic.count,
            assignments,
        });
    }
    let names: Vec<String> = wanted.iter().map(|topic| topic.topic.clone()).collect();
    let decided = if wanted.is_empty() {
        Vec::new()
    } else {
        ctx.controller
            .create_partitions(wanted, request.validate_only, patience.decision)
            .await
    };
    let mut decided: BTreeMap<String, Result<TopicInfo, TopicError>> =
        names.into_iter().zip(decided).collect();
    if !request.validate_only {
        let first_new = |topic: &TopicInfo| present.get(&topic.name).copied().unwrap_or(0);
        demand_leaders(ctx, &mut decided, &patience, first_new).await;
    }
    results.append(&mut decided);
    let results = results
        .into_iter()
        .map(|(name, result)| {
            let response = CreatePartitionsTopicResult::default()
                .with_name(TopicName(StrBytes::from_string(name)));
            match result {
                Ok(_) => response,
                Err(error) => {
                    ctx.shard
                        .counters()
                        .failed(header.api_key, error.code.name());
                    response
                        .with_error_code(error.code.code())
                        .with_error_message(Some(StrBytes::from_string(error.message)))
                }
            }
        })
        .collect();
    CreatePartitionsResponse::default().with_results(results)
}

/// Waits for the leaders of the partitions from `first_new` on, and turns a topic that has none
/// in time into REQUEST_TIMED_OUT: it is there, but not ready.
async fn demand_leaders(
    ctx: &KafkaContext,
    results: &mut BTreeMap<String, Result<TopicInfo, TopicError>>,
    patience: &Patience,
    first_new: impl Fn(&TopicInfo) -> usize,
) {
    let new_groups = |topic: &TopicInfo| {
        topic
            .groups()
            .skip(first_new(topic))
            .collect::<Vec<GroupId>>()
    };
    let groups: Vec<GroupId> = results.values().flatten().flat_map(new_groups).collect();
    if groups.is_empty() || wait_for_leaders(ctx, &groups, patience.left(ctx)).await {
        return;
    }
    for result in results.values_mut() {
        let Ok(topic) = result else { continue };
        let leaderless = new_groups(topic)
            .into_iter()
            .filter(|group| ctx.metadata.leader(*group).is_none());
        let leaderless = leaderless.count();
        if leaderless > 0 {
            *result = Err(TopicError {
                code: ErrorCode::RequestTimedOut,
                message: format!(
                    "topic {:?} exists, but {leaderless} of its partitions have no leader yet",
                    topic.name
                ),
            });
        }
    }
}

/// Says in the log which settings nothing acts on yet.
pub(super) fn warn_idle<'a>(topic: &str, names: impl IntoIterator<Item = &'a str>) {
    for name in table::idle(Scope::Topic, names) {
        warn!(
            topic,
            setting = name,
            "this setting is stored, but nothing acts on it yet"
        );
    }
}

/// Names that stand in a request more than once.
pub(super) fn named_twice<T: Ord + Clone>(names: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(name.clone())).collect()
}

fn asked_twice() -> TopicError {
    TopicError {
        code: ErrorCode::InvalidRequest,
        message: "each topic may be named once in a request, by its name or by its id".into(),
    }
}

fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_twice_is_found() {
        let names = ["a", "b", "a", "c", "a"];
        assert_eq!(named_twice(names.into_iter()), BTreeSet::from(["a"]));
    }

    #[test]
    fn minus_one_asks_for_the_default() {
        let topic = CreatableTopic::default()
            .with_num_partitions(-1)
            .with_replication_factor(-1);
        let new = new_topic(&topic);
        assert_eq!((new.partitions, new.replication_factor), (None, None));
        let topic = CreatableTopic::default()
            .with_num_partitions(0)
            .with_replication_factor(2);
        let new = new_topic(&topic);
        assert_eq!((new.partitions, new.replication_factor), (Some(0), Some(2)));
    }
}
