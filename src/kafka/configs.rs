//! Settings on the wire: DescribeConfigs and IncrementalAlterConfigs, for topics, for the cluster
//! (the broker resource with the empty name) and, to read, for this node (its id as the name).

use std::collections::BTreeSet;
use std::time::Duration;

use corduroy_protocol::messages::describe_configs_request::DescribeConfigsResource;
use corduroy_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use corduroy_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use corduroy_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use corduroy_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use tracing::warn;

use super::context::KafkaContext;
use super::topics::warn_idle;
use crate::config::effective::{
    Effective, Facts, Origin, SynonymValue, cluster_values, topic_values,
};
use crate::config::{DefaultValue, Layer, Scope, table};
use crate::controller::{ConfigAlteration, ConfigResource, ConfigStep, MetadataImage, TopicError};

/// DescribeConfigs' and AlterConfigs' resource types.
const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_BROKER: i8 = 4;

/// IncrementalAlterConfigs carries no timeout of its own.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer waits for this node's metadata to show the change.
const SHOW_TIMEOUT: Duration = Duration::from_secs(1);

/// One described key.
struct Described {
    effective: Effective,
    read_only: bool,
}

/// Describes settings (versions 1 to 4).
pub async fn describe_configs(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let image = ctx.metadata.image();
    let results = request
        .resources
        .iter()
        .map(|resource| {
            let result = DescribeConfigsResult::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            match describe(ctx, &image, resource) {
                Ok(described) => result.with_configs(
                    described
                        .into_iter()
                        .filter(|described| is_wanted(resource, described.effective.key.name))
                        .map(|described| described_on_wire(described, &request))
                        .collect(),
                ),
                Err(error) => {
                    ctx.shard
                        .counters()
                        .failed(header.api_key, error.code.name());
                    result
                        .with_error_code(error.code.code())
                        .with_error_message(Some(StrBytes::from_string(error.message)))
                }
            }
        })
        .collect();
    DescribeConfigsResponse::default().with_results(results)
}

fn describe(
    ctx: &KafkaContext,
    image: &MetadataImage,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Described>, TopicError> {
    let name = resource.resource_name.as_str();
    match resource.resource_type {
        RESOURCE_TOPIC => describe_topic(image, name),
        RESOURCE_BROKER if name.is_empty() => Ok(changed_in_cluster(image)),
        RESOURCE_BROKER if name == ctx.node.to_string() => Ok(describe_node(ctx, image)),
        RESOURCE_BROKER => Err(refusal(
            ErrorCode::InvalidRequest,
            format!(
                "this is node {}: ask it about itself, or with an empty name about the cluster, \
                 not about {name:?}",
                ctx.node
            ),
        )),
        other => Err(unknown_resource(other)),
    }
}

fn describe_topic(image: &MetadataImage, name: &str) -> Result<Vec<Described>, TopicError> {
    let topic = image.topics.get(name).ok_or_else(|| {
        refusal(
            ErrorCode::UnknownTopicOrPartition,
            format!("there is no topic {name:?}"),
        )
    })?;
    let facts = Facts {
        nodes: image.nodes.len(),
        replication_factor: topic.replication_factor(),
    };
    let values = topic_values(&topic.configs, &image.cluster_configs, facts);
    Ok(values
        .into_iter()
        .map(|effective| Described {
            effective,
            read_only: false,
        })
        .collect())
}

fn cluster_facts(image: &MetadataImage) -> Facts {
    let replication_factor = image.cluster().default_replication_factor;
    Facts {
        nodes: image.nodes.len(),
        replication_factor,
    }
}

/// What was set for the whole cluster: Kafka's answer for the empty name.
fn changed_in_cluster(image: &MetadataImage) -> Vec<Described> {
    cluster_values(&image.cluster_configs, cluster_facts(image))
        .into_iter()
        .filter(|effective| effective.origin == Origin::Cluster)
        .map(|effective| Described {
            effective,
            read_only: false,
        })
        .collect()
}

/// Everything that holds on this node: the cluster's settings, then its own, which only a restart
/// changes.
fn describe_node(ctx: &KafkaContext, image: &MetadataImage) -> Vec<Described> {
    let cluster = cluster_values(&image.cluster_configs, cluster_facts(image))
        .into_iter()
        .map(|effective| Described {
            effective,
            read_only: false,
        });
    let node = table::of(Scope::Node).iter().map(|key| {
        let set = ctx
            .config
            .settings
            .get(key.name)
            .is_some_and(|s| s.layer > Layer::Default);
        let origin = if set { Origin::Node } else { Origin::Default };
        // The id may have been assigned; the configuration then does not have it.
        let value = match key.name {
            "node.id" => Some(ctx.node.to_string()),
            _ => ctx.config.node_value(key),
        };
        let synonyms = value
            .iter()
            .map(|value| SynonymValue {
                name: key.name,
                value: value.clone(),
                origin,
            })
            .collect();
        Described {
            effective: Effective {
                key,
                value,
                origin,
                synonyms,
            },
            read_only: true,
        }
    });
    cluster.chain(node).collect()
}

fn is_wanted(resource: &DescribeConfigsResource, name: &str) -> bool {
    match &resource.configuration_keys {
        // Some clients say "all" with an empty list.
        Some(keys) if !keys.is_empty() => keys.iter().any(|key| key.as_str() == name),
        _ => true,
    }
}

fn described_on_wire(
    described: Described,
    request: &DescribeConfigsRequest,
) -> DescribeConfigsResourceResult {
    let Described {
        effective,
        read_only,
    } = described;
    let synonyms = if request.include_synonyms {
        effective.synonyms
    } else {
        Vec::new()
    };
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(effective.key.name))
        .with_value(effective.value.map(StrBytes::from_string))
        .with_read_only(read_only)
        .with_config_source(effective.origin.wire_code())
        .with_synonyms(
            synonyms
                .into_iter()
                .map(|synonym| {
                    DescribeConfigsSynonym::default()
                        .with_name(StrBytes::from_static_str(synonym.name))
                        .with_value(Some(StrBytes::from_string(synonym.value)))
                        .with_source(synonym.origin.wire_code())
                })
                .collect(),
        )
        .with_config_type(effective.key.kind.wire_code())
        .with_documentation(
            request
                .include_documentation
                .then(|| documentation(effective.key)),
        )
}

fn documentation(key: &crate::config::ConfigKey) -> StrBytes {
    let mut text = String::from(key.doc);
    if let DefaultValue::Computed(rule) = key.default {
        text.push_str(&format!(" Default: {rule}."));
    }
    if !key.enforced {
        text.push_str(" Stored; nothing acts on it yet.");
    }
    StrBytes::from_string(text)
}

/// Changes settings (versions 0 and 1): each resource on its own, all of it or nothing.
pub async fn incremental_alter_configs(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for resource in &request.resources {
        let key = (resource.resource_type, resource.resource_name.to_string());
        if !seen.insert(key.clone()) {
            twice.insert(key);
        }
    }
    let mut verdicts: Vec<Result<(), TopicError>> = Vec::new();
    let mut alterations = Vec::new();
    let mut places = Vec::new();
    for (place, resource) in request.resources.iter().enumerate() {
        let key = (resource.resource_type, resource.resource_name.to_string());
        let alteration = if twice.contains(&key) {
            Err(refusal(
                ErrorCode::InvalidRequest,
                "a resource is named twice".to_owned(),
            ))
        } else {
            alteration(ctx, resource)
        };
        verdicts.push(match alteration {
            Ok(alteration) => {
                alterations.push(alteration);
                places.push(place);
                Ok(())
            }
            Err(error) => Err(error),
        });
    }
    if !alterations.is_empty() {
        let altered = alterations.clone();
        let results = ctx
            .controller
            .alter_configs(alterations, request.validate_only, DECISION_TIMEOUT)
            .await;
        for (place, result) in places.into_iter().zip(&results) {
            verdicts[place] = result.clone();
        }
        if !request.validate_only {
            let done: Vec<ConfigAlteration> = altered
                .into_iter()
                .zip(results)
                .filter_map(|(alteration, result)| result.is_ok().then_some(alteration))
                .collect();
            done.iter().for_each(warn_about);
            let deadline = ctx.env.now() + SHOW_TIMEOUT;
            let shown = || {
                let image = ctx.metadata.image();
                done.iter().all(|alteration| is_shown(&image, alteration))
            };
            let _shown = ctx.wait_until(deadline, shown).await;
        }
    }
    let responses = request
        .resources
        .into_iter()
        .zip(verdicts)
        .map(|(resource, verdict)| {
            let response = AlterConfigsResourceResponse::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name);
            match verdict {
                Ok(()) => response.with_error_message(None),
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
    IncrementalAlterConfigsResponse::default().with_responses(responses)
}

fn alteration(
    ctx: &KafkaContext,
    resource: &AlterConfigsResource,
) -> Result<ConfigAlteration, TopicError> {
    let name = resource.resource_name.as_str();
    let target = match resource.resource_type {
        RESOURCE_TOPIC => ConfigResource::Topic(name.to_owned()),
        RESOURCE_BROKER if name.is_empty() => ConfigResource::Cluster,
        RESOURCE_BROKER => {
            return Err(refusal(
                ErrorCode::InvalidRequest,
                format!(
                    "the settings of one node come from its flags, environment and file (this is \
                     node {}); the cluster's are changed on the broker resource with the empty \
                     name",
                    ctx.node
                ),
            ));
        }
        other => return Err(unknown_resource(other)),
    };
    let steps = resource
        .configs
        .iter()
        .map(step)
        .collect::<Result<_, _>>()?;
    Ok(ConfigAlteration {
        resource: target,
        steps,
    })
}

/// KIP-339's operations: SET 0, DELETE 1, APPEND 2, SUBTRACT 3.
fn step(config: &AlterableConfig) -> Result<(String, ConfigStep), TopicError> {
    let name = config.name.to_string();
    let value = || {
        let value = config.value.as_ref().map(|value| value.to_string());
        value.ok_or_else(|| refusal(ErrorCode::InvalidConfig, format!("{name} has no value")))
    };
    let step = match config.config_operation {
        0 => ConfigStep::Set(value()?),
        1 => ConfigStep::Delete,
        2 => ConfigStep::Append(value()?),
        3 => ConfigStep::Subtract(value()?),
        other => {
            return Err(refusal(
                ErrorCode::InvalidRequest,
                format!("{name}: there is no operation {other}"),
            ));
        }
    };
    Ok((name, step))
}

/// Whether an image shows a change. Lists may have changed again since; they are not waited for.
fn is_shown(image: &MetadataImage, alteration: &ConfigAlteration) -> bool {
    let (scope, configs) = match &alteration.resource {
        ConfigResource::Cluster => (Scope::Cluster, &image.cluster_configs),
        ConfigResource::Topic(name) => match image.topics.get(name) {
            Some(topic) => (Scope::Topic, &topic.configs),
            None => return true,
        },
    };
    alteration.steps.iter().all(|(name, step)| match step {
        ConfigStep::Set(value) => {
            let stored = table::find(scope, name).and_then(|key| key.check(value).ok());
            configs.get(name) == stored.as_ref()
        }
        ConfigStep::Delete => !configs.contains_key(name),
        ConfigStep::Append(_) | ConfigStep::Subtract(_) => true,
    })
}

fn warn_about(alteration: &ConfigAlteration) {
    let set = alteration
        .steps
        .iter()
        .filter(|(_, step)| *step != ConfigStep::Delete);
    let names = set.map(|(name, _)| name.as_str());
    match &alteration.resource {
        ConfigResource::Topic(topic) => warn_idle(topic, names),
        ConfigResource::Cluster => {
            for name in table::idle(Scope::Cluster, names) {
                warn!(
                    setting = name,
                    "this setting is stored, but nothing acts on it yet"
                );
            }
        }
    }
}

fn unknown_resource(kind: i8) -> TopicError {
    refusal(
        ErrorCode::InvalidRequest,
        format!("resource type {kind} has no settings here; 2 is a topic, 4 a broker"),
    )
}

fn refusal(code: ErrorCode, message: String) -> TopicError {
    TopicError { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_translated() {
        let config = |operation, value: Option<&'static str>| {
            AlterableConfig::default()
                .with_name(StrBytes::from_static_str("cleanup.policy"))
                .with_config_operation(operation)
                .with_value(value.map(StrBytes::from_static_str))
        };
        let cases: [(i8, Option<&'static str>, Result<ConfigStep, ErrorCode>); 7] = [
            (0, Some("compact"), Ok(ConfigStep::Set("compact".into()))),
            (0, None, Err(ErrorCode::InvalidConfig)),
            (1, None, Ok(ConfigStep::Delete)),
            (1, Some("ignored"), Ok(ConfigStep::Delete)),
            (2, Some("compact"), Ok(ConfigStep::Append("compact".into()))),
            (3, Some("delete"), Ok(ConfigStep::Subtract("delete".into()))),
            (4, Some("x"), Err(ErrorCode::InvalidRequest)),
        ];
        for (operation, value, want) in cases {
            let got = step(&config(operation, value))
                .map(|(_, step)| step)
                .map_err(|e| e.code);
            assert_eq!(got, want, "operation {operation} with {value:?}");
        }
    }

    #[test]
    fn a_change_is_shown_when_the_image_has_its_checked_value() {
        let mut image = MetadataImage::default();
        let change = |step| ConfigAlteration {
            resource: ConfigResource::Cluster,
            steps: vec![("num.partitions".to_owned(), step)],
        };
        assert!(!is_shown(&image, &change(ConfigStep::Set(" 9 ".into()))));
        assert!(is_shown(&image, &change(ConfigStep::Delete)));
        image
            .cluster_configs
            .insert("num.partitions".into(), "9".into());
        assert!(is_shown(&image, &change(ConfigStep::Set(" 9 ".into()))));
        assert!(!is_shown(&image, &change(ConfigStep::Delete)));
    }
}
