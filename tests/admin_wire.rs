//! The administrative APIs in each version that is advertised: what they do, what they say, what they
//! refuse. The versions come from the table, so that one that is added is asked here at once.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use corduroy_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use corduroy_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use corduroy_protocol::messages::create_topics_response::CreatableTopicResult;
use corduroy_protocol::messages::delete_topics_request::DeleteTopicState;
use corduroy_protocol::messages::describe_configs_request::DescribeConfigsResource;
use corduroy_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use corduroy_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use corduroy_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use corduroy_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use corduroy_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
    DescribeClusterRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest, ProducerId, TopicName,
    TransactionalId,
};
use corduroy_protocol::{ApiKey, ErrorCode, Request, Response, StrBytes, served};
use support::wire::Wire;
use support::{Cluster, alone};

const TIMEOUT_MS: i32 = 30_000;

/// The resource types of settings.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// IncrementalAlterConfigs' operations (KIP-339).
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// DescribeConfigs' sources.
const FROM_TOPIC: i8 = 1;
const FROM_CLUSTER: i8 = 3;
const FROM_DEFAULT: i8 = 5;

/// Every advertised version of an API.
fn versions(key: ApiKey) -> std::ops::RangeInclusive<i16> {
    let range = served(key as i16).expect("served");
    assert_eq!(range.min, range.served_min, "all that is advertised");
    range.min..=range.max
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

/// Asks, and takes the answer's body out.
macro_rules! ask {
    ($wire:expr, $version:expr, $api:ident($request:expr)) => {
        match $wire.call($version, &Request::$api($request)) {
            Ok(Response::$api(response)) => response,
            other => panic!("{} version {}: {other:?}", stringify!($api), $version),
        }
    };
}

/// How many partitions a topic has; `None` without the topic.
fn partitions(wire: &mut Wire, topic: &str) -> Option<usize> {
    let (_, error, partitions) = wire.metadata(topic).expect("answered");
    match error {
        ErrorCode::None => Some(partitions.len()),
        error => {
            assert_eq!(error, ErrorCode::UnknownTopicOrPartition);
            None
        }
    }
}

fn topic_of(topic: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
}

fn create(version: i16, wire: &mut Wire, topic: CreatableTopic, dry: bool) -> CreatableTopicResult {
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(TIMEOUT_MS)
        .with_validate_only(dry);
    let mut response = ask!(wire, version, CreateTopics(request));
    assert_eq!(response.topics.len(), 1);
    response.topics.remove(0)
}

fn made(wire: &mut Wire, topic: &str, partitions: i32) -> CreatableTopicResult {
    let result = create(7, wire, topic_of(topic, partitions), false);
    assert_eq!(result.error_code, 0, "{result:?}");
    result
}

#[test]
fn topics_are_created_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::CreateTopics) {
        let topic = format!("made-{version}");
        let setting = |key: &str, value: &str| {
            CreatableTopicConfig::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
        };
        let wanted = topic_of(&topic, 3).with_configs(vec![setting("retention.ms", "7200000")]);
        let dry = create(version, &mut wire, wanted.clone(), true);
        assert_eq!(dry.error_code, 0, "version {version}: {dry:?}");
        assert_eq!(partitions(&mut wire, &topic), None, "only validated");

        let done = create(version, &mut wire, wanted.clone(), false);
        assert_eq!(done.error_code, 0, "version {version}: {done:?}");
        assert_eq!(done.error_message, None);
        assert_eq!(done.name, name(&topic));
        assert_eq!(partitions(&mut wire, &topic), Some(3));
        if version >= 5 {
            assert_eq!((done.num_partitions, done.replication_factor), (3, 1));
            let configs = done.configs.expect("settings");
            let value = |key: &str| {
                let found = configs.iter().find(|config| config.name.as_str() == key);
                let found = found.unwrap_or_else(|| panic!("{key} is not told"));
                (found.value.clone(), found.config_source)
            };
            assert_eq!(value("retention.ms"), (Some(text("7200000")), FROM_TOPIC));
            assert_eq!(
                value("cleanup.policy"),
                (Some(text("delete")), FROM_DEFAULT)
            );
        }
        assert_eq!(version >= 7, !done.topic_id.is_nil(), "version {version}");

        let refused = [
            (wanted, ErrorCode::TopicAlreadyExists),
            (topic_of("none", 0), ErrorCode::InvalidPartitions),
            (
                topic_of("two", 1).with_replication_factor(2),
                ErrorCode::InvalidReplicationFactor,
            ),
            (topic_of("a name", 1), ErrorCode::InvalidTopicException),
            (
                topic_of("odd", 1).with_configs(vec![setting("no.such.key", "1")]),
                ErrorCode::InvalidConfig,
            ),
        ];
        for (topic, error) in refused {
            for dry in [true, false] {
                let result = create(version, &mut wire, topic.clone(), dry);
                let code = ErrorCode::from_code(result.error_code);
                assert_eq!(code, error, "version {version}: {result:?}");
                assert!(result.error_message.is_some_and(|words| !words.is_empty()));
            }
        }
    }
}

#[test]
fn topics_are_deleted_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::DeleteTopics) {
        let topic = format!("gone-{version}");
        let id = made(&mut wire, &topic, 1).topic_id;
        let request = DeleteTopicsRequest::default().with_timeout_ms(TIMEOUT_MS);
        let by_name = |topic: &str| match version {
            ..=5 => request.clone().with_topic_names(vec![name(topic)]),
            _ => request.clone().with_topics(vec![
                DeleteTopicState::default().with_name(Some(name(topic))),
            ]),
        };
        let delete = |wire: &mut Wire, request: DeleteTopicsRequest| {
            let mut response = ask!(wire, version, DeleteTopics(request));
            assert_eq!(response.responses.len(), 1);
            let result = response.responses.remove(0);
            assert_eq!(
                version >= 5 && result.error_code != 0,
                result.error_message.is_some(),
                "version {version}: {result:?}"
            );
            (ErrorCode::from_code(result.error_code), result)
        };
        let (error, result) = delete(&mut wire, by_name(&topic));
        assert_eq!(error, ErrorCode::None, "version {version}");
        assert_eq!(result.name, Some(name(&topic)));
        assert_eq!(version >= 6, result.topic_id == id);
        assert_eq!(partitions(&mut wire, &topic), None);
        let (error, _) = delete(&mut wire, by_name(&topic));
        assert_eq!(error, ErrorCode::UnknownTopicOrPartition);
        if version >= 6 {
            let id = made(&mut wire, &topic, 1).topic_id;
            let state = DeleteTopicState::default()
                .with_name(None)
                .with_topic_id(id);
            let by_id = request.clone().with_topics(vec![state]);
            let (error, result) = delete(&mut wire, by_id.clone());
            assert_eq!(error, ErrorCode::None);
            assert_eq!((result.name, result.topic_id), (Some(name(&topic)), id));
            assert_eq!(partitions(&mut wire, &topic), None);
            let (error, _) = delete(&mut wire, by_id);
            assert_eq!(error, ErrorCode::UnknownTopicId);
        }
    }
}

#[test]
fn partitions_are_added_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::CreatePartitions) {
        let topic = format!("wider-{version}");
        made(&mut wire, &topic, 2);
        let widen = |wire: &mut Wire, topic: &str, count: i32, dry: bool| {
            let wanted = CreatePartitionsTopic::default()
                .with_name(name(topic))
                .with_count(count)
                .with_assignments(None);
            let request = CreatePartitionsRequest::default()
                .with_topics(vec![wanted])
                .with_timeout_ms(TIMEOUT_MS)
                .with_validate_only(dry);
            let response = ask!(wire, version, CreatePartitions(request));
            assert_eq!(response.results.len(), 1);
            let result = &response.results[0];
            assert_eq!(result.name, name(topic));
            assert_eq!(result.error_code != 0, result.error_message.is_some());
            ErrorCode::from_code(result.error_code)
        };
        assert_eq!(widen(&mut wire, &topic, 5, true), ErrorCode::None);
        assert_eq!(partitions(&mut wire, &topic), Some(2), "only validated");
        assert_eq!(widen(&mut wire, &topic, 5, false), ErrorCode::None);
        assert_eq!(partitions(&mut wire, &topic), Some(5), "version {version}");
        for dry in [true, false] {
            let fewer = widen(&mut wire, &topic, 4, dry);
            assert_eq!(fewer, ErrorCode::InvalidPartitions, "version {version}");
            let unknown = widen(&mut wire, "nowhere", 4, dry);
            assert_eq!(unknown, ErrorCode::UnknownTopicOrPartition);
        }
        assert_eq!(partitions(&mut wire, &topic), Some(5));
    }
}

/// One setting as a version describes it, with where else it has a value.
fn described(
    version: i16,
    wire: &mut Wire,
    resource: (i8, &str),
    key: &str,
) -> Result<Option<DescribeConfigsResourceResult>, ErrorCode> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(resource.0)
        .with_resource_name(text(resource.1))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    let mut response = ask!(wire, version, DescribeConfigs(request));
    let mut result = response.results.remove(0);
    match ErrorCode::from_code(result.error_code) {
        ErrorCode::None => {
            assert!(result.configs.len() <= 1, "only what was asked for");
            Ok(result.configs.pop())
        }
        error => Err(error),
    }
}

/// Value and source of a topic's setting.
fn value_of(wire: &mut Wire, topic: &str, key: &str) -> (String, i8) {
    let found = described(4, wire, (TOPIC, topic), key).expect("described");
    let found = found.expect("the setting");
    let value = found.value.expect("a value");
    (value.to_string(), found.config_source)
}

/// One step on one resource: its error.
fn alter(
    version: i16,
    wire: &mut Wire,
    resource: (i8, &str),
    step: (&str, i8, Option<&str>),
    dry: bool,
) -> ErrorCode {
    let (key, operation, value) = step;
    let config = AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(operation)
        .with_value(value.map(text));
    let resource = AlterConfigsResource::default()
        .with_resource_type(resource.0)
        .with_resource_name(text(resource.1))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(dry);
    let response = ask!(wire, version, IncrementalAlterConfigs(request));
    let result = &response.responses[0];
    assert_eq!(result.error_code != 0, result.error_message.is_some());
    ErrorCode::from_code(result.error_code)
}

#[test]
fn settings_are_described_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    made(&mut wire, "described", 1);
    let topic = (TOPIC, "described");
    let set = ("retention.ms", SET, Some("7200000"));
    assert_eq!(alter(1, &mut wire, topic, set, false), ErrorCode::None);
    let set = ("log.retention.ms", SET, Some("3600000"));
    assert_eq!(
        alter(1, &mut wire, (BROKER, ""), set, false),
        ErrorCode::None
    );
    for version in versions(ApiKey::DescribeConfigs) {
        let own = described(version, &mut wire, topic, "retention.ms").expect("described");
        let own = own.expect("the setting");
        assert_eq!(own.value, Some(text("7200000")), "version {version}");
        assert_eq!(own.config_source, FROM_TOPIC);
        assert!(!own.read_only && !own.is_sensitive);
        let synonyms: Vec<(&str, Option<&str>, i8)> = own
            .synonyms
            .iter()
            .map(|found| (found.name.as_str(), found.value.as_deref(), found.source))
            .collect();
        let expected = [
            ("retention.ms", Some("7200000"), FROM_TOPIC),
            ("log.retention.ms", Some("3600000"), FROM_CLUSTER),
        ];
        assert_eq!(synonyms[..2], expected, "version {version}");
        let told = own.documentation.is_some_and(|words| !words.is_empty());
        assert_eq!(version >= 3, told);
        // LONG, from version 3 on; before it there is no type.
        assert_eq!(own.config_type, if version >= 3 { 5 } else { 0 });

        let default = described(version, &mut wire, topic, "cleanup.policy").expect("described");
        let default = default.expect("the setting");
        assert_eq!(default.value, Some(text("delete")));
        assert_eq!(default.config_source, FROM_DEFAULT);

        let node = described(version, &mut wire, (BROKER, "1"), "node.id").expect("described");
        let node = node.expect("the setting");
        assert_eq!((node.value, node.read_only), (Some(text("1")), true));

        let nothing = described(version, &mut wire, topic, "no.such.key");
        assert_eq!(nothing, Ok(None), "version {version}");
        let unknown = described(version, &mut wire, (TOPIC, "nowhere"), "retention.ms");
        assert_eq!(unknown, Err(ErrorCode::UnknownTopicOrPartition));
        for resource in [(BROKER, "2"), (99, "described")] {
            let refused = described(version, &mut wire, resource, "retention.ms");
            assert_eq!(refused, Err(ErrorCode::InvalidRequest), "{resource:?}");
        }
    }
}

#[test]
fn settings_are_altered_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        let topic = format!("altered-{version}");
        made(&mut wire, &topic, 1);
        let resource = (TOPIC, topic.as_str());
        let steps = [
            (
                ("retention.ms", SET, Some("7200000")),
                "7200000",
                FROM_TOPIC,
            ),
            (("retention.ms", DELETE, None), "604800000", FROM_DEFAULT),
            (
                ("cleanup.policy", APPEND, Some("compact")),
                "delete,compact",
                FROM_TOPIC,
            ),
            (
                ("cleanup.policy", SUBTRACT, Some("delete")),
                "compact",
                FROM_TOPIC,
            ),
            (("cleanup.policy", DELETE, None), "delete", FROM_DEFAULT),
        ];
        for (step, value, source) in steps {
            let before = value_of(&mut wire, &topic, step.0);
            let dry = alter(version, &mut wire, resource, step, true);
            assert_eq!(dry, ErrorCode::None, "version {version}, {step:?}");
            let after = value_of(&mut wire, &topic, step.0);
            assert_eq!(after, before, "only validated");
            let done = alter(version, &mut wire, resource, step, false);
            assert_eq!(done, ErrorCode::None, "version {version}, {step:?}");
            let after = value_of(&mut wire, &topic, step.0);
            assert_eq!(after, (value.to_owned(), source), "{step:?}");
        }
        let refused = [
            (("retention.ms", 4, Some("1")), ErrorCode::InvalidRequest),
            (("retention.ms", -1, Some("1")), ErrorCode::InvalidRequest),
            (("retention.ms", SET, None), ErrorCode::InvalidConfig),
            (
                ("retention.ms", SET, Some("soon")),
                ErrorCode::InvalidConfig,
            ),
            (
                ("retention.ms", APPEND, Some("1")),
                ErrorCode::InvalidConfig,
            ),
            (
                ("retention.ms", SUBTRACT, Some("1")),
                ErrorCode::InvalidConfig,
            ),
            (
                ("cleanup.policy", APPEND, Some("burn")),
                ErrorCode::InvalidConfig,
            ),
            (("no.such.key", SET, Some("1")), ErrorCode::InvalidConfig),
        ];
        for (step, error) in refused {
            let before = value_of(&mut wire, &topic, "retention.ms");
            for dry in [true, false] {
                let got = alter(version, &mut wire, resource, step, dry);
                assert_eq!(got, error, "version {version}, {step:?}");
            }
            assert_eq!(value_of(&mut wire, &topic, "retention.ms"), before);
        }
        let set = ("retention.ms", SET, Some("7200000"));
        let elsewhere = [
            ((TOPIC, "nowhere"), ErrorCode::UnknownTopicOrPartition),
            ((BROKER, "1"), ErrorCode::InvalidRequest),
            ((99, topic.as_str()), ErrorCode::InvalidRequest),
        ];
        for (resource, error) in elsewhere {
            let got = alter(version, &mut wire, resource, set, false);
            assert_eq!(got, error, "version {version}, {resource:?}");
        }
        // The whole cluster's: what the topic has not set itself follows.
        let set = ("log.retention.ms", SET, Some("3600000"));
        assert_eq!(
            alter(version, &mut wire, (BROKER, ""), set, false),
            ErrorCode::None
        );
        let follows = value_of(&mut wire, &topic, "retention.ms");
        assert_eq!(follows, ("3600000".to_owned(), FROM_CLUSTER));
        let unset = ("log.retention.ms", DELETE, None);
        assert_eq!(
            alter(version, &mut wire, (BROKER, ""), unset, false),
            ErrorCode::None
        );
    }
}

#[test]
fn the_cluster_is_described_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(3);
    let status = cluster.must(&["cluster", "status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let mut wire = cluster.wire(2);
    for version in versions(ApiKey::DescribeCluster) {
        let request = DescribeClusterRequest::default();
        let answer = ask!(wire, version, DescribeCluster(request.clone()));
        assert_eq!(answer.error_code, 0, "version {version}");
        assert_eq!(
            Some(answer.cluster_id.as_str()),
            status["cluster_id"].as_str()
        );
        let mut found: Vec<(i32, String)> = answer
            .brokers
            .iter()
            .map(|found| (found.broker_id.0, format!("{}:{}", found.host, found.port)))
            .collect();
        found.sort();
        let expected: Vec<(i32, String)> = (1..=3)
            .map(|id| (id, cluster.at(id).kafka.to_string()))
            .collect();
        assert_eq!(found, expected, "version {version}");
        assert!((1..=3).contains(&answer.controller_id.0));
        assert_eq!(answer.cluster_authorized_operations, i32::MIN, "not asked");
        if version >= 1 {
            assert_eq!(answer.endpoint_type, 1);
            let controllers = request.with_endpoint_type(2);
            let answer = ask!(wire, version, DescribeCluster(controllers));
            let error = ErrorCode::from_code(answer.error_code);
            assert_eq!(error, ErrorCode::MismatchedEndpointType);
            assert!(answer.brokers.is_empty());
        }
    }
}

#[test]
fn producers_are_identified_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    let mut given = Vec::new();
    for version in versions(ApiKey::InitProducerId) {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(i32::MAX);
        let answer = ask!(wire, version, InitProducerId(request.clone()));
        assert_eq!(answer.error_code, 0, "version {version}");
        let id = answer.producer_id.0;
        assert!(id >= 0 && !given.contains(&id), "{id} after {given:?}");
        assert_eq!(answer.producer_epoch, 0);
        given.push(id);
        if version >= 3 {
            // KIP-360: the same identity in its next epoch.
            let named = request
                .clone()
                .with_producer_id(ProducerId(id))
                .with_producer_epoch(0);
            let answer = ask!(wire, version, InitProducerId(named));
            let bumped = (
                answer.error_code,
                answer.producer_id.0,
                answer.producer_epoch,
            );
            assert_eq!(bumped, (0, id, 1), "version {version}");
        }
        let transactional = request.with_transactional_id(Some(TransactionalId(text("tx"))));
        let answer = ask!(wire, version, InitProducerId(transactional));
        let error = ErrorCode::from_code(answer.error_code);
        assert_eq!(error, ErrorCode::TransactionalIdAuthorizationFailed);
        assert_eq!((answer.producer_id.0, answer.producer_epoch), (-1, -1));
    }
}

/// Three records a second apart; their time and the epoch they were written in.
fn three_records(cluster: &Cluster, topic: &str) -> i32 {
    cluster.create_topic(topic, 1, &[]);
    for value in ["a", "b", "c"] {
        cluster.produce(topic, value);
    }
    cluster.partition(topic, 0).expect("known").epoch
}

#[test]
fn offsets_are_listed_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let epoch = three_records(&cluster, "listed");
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::ListOffsets) {
        let mut list = |topic: &str, timestamp: i64, current: i32| {
            let mut asked = ListOffsetsPartition::default().with_timestamp(timestamp);
            if version >= 4 {
                asked = asked.with_current_leader_epoch(current);
            }
            let asked = ListOffsetsTopic::default()
                .with_name(name(topic))
                .with_partitions(vec![asked]);
            let request = ListOffsetsRequest::default()
                .with_replica_id(BrokerId(-1))
                .with_topics(vec![asked]);
            let response = ask!(wire, version, ListOffsets(request));
            let found = response.topics[0].partitions[0].clone();
            (ErrorCode::from_code(found.error_code), found)
        };
        // Latest, earliest, by time, and what later versions brought.
        let mut asked = vec![(-1, 3), (-2, 0), (0, 0), (i64::MAX, -1)];
        if version >= 8 {
            asked.push((-4, 0));
        }
        if version >= 9 {
            asked.push((-5, -1));
        }
        for (timestamp, offset) in asked {
            let (error, found) = list("listed", timestamp, -1);
            assert_eq!(error, ErrorCode::None, "version {version}, {timestamp}");
            assert_eq!(found.offset, offset, "version {version}, {timestamp}");
            if version >= 4 && offset >= 0 {
                assert_eq!(found.leader_epoch, epoch, "version {version}, {timestamp}");
            }
        }
        let (error, newest) = list("listed", -3, -1);
        if version >= 7 {
            assert_eq!(error, ErrorCode::None, "version {version}");
            assert!((0..3).contains(&newest.offset) && newest.timestamp > 0);
        } else {
            assert_eq!(error, ErrorCode::UnsupportedVersion, "version {version}");
        }
        let (error, _) = list("nowhere", -1, -1);
        assert_eq!(error, ErrorCode::UnknownTopicOrPartition);
        if version >= 4 {
            let (error, _) = list("listed", -1, epoch + 1);
            assert_eq!(error, ErrorCode::UnknownLeaderEpoch);
        }
    }
}

#[test]
fn ends_of_epochs_are_told_in_every_version() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let epoch = three_records(&cluster, "ended");
    let mut wire = cluster.wire(1);
    for version in versions(ApiKey::OffsetForLeaderEpoch) {
        let mut end = |topic: &str, current: i32, asked: i32| {
            let asked = OffsetForLeaderPartition::default()
                .with_current_leader_epoch(current)
                .with_leader_epoch(asked);
            let asked = OffsetForLeaderTopic::default()
                .with_topic(name(topic))
                .with_partitions(vec![asked]);
            let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![asked]);
            if version >= 3 {
                request = request.with_replica_id(BrokerId(-1));
            }
            let response = ask!(wire, version, OffsetForLeaderEpoch(request));
            let found = &response.topics[0].partitions[0];
            let error = ErrorCode::from_code(found.error_code);
            (error, found.leader_epoch, found.end_offset)
        };
        let known = end("ended", -1, epoch);
        assert_eq!(known, (ErrorCode::None, epoch, 3), "version {version}");
        let current = end("ended", epoch, epoch);
        assert_eq!(current, (ErrorCode::None, epoch, 3), "version {version}");
        let later = end("ended", -1, epoch + 1);
        assert_eq!(later, (ErrorCode::None, -1, -1), "version {version}");
        let ahead = end("ended", epoch + 1, epoch);
        assert_eq!(ahead, (ErrorCode::UnknownLeaderEpoch, -1, -1));
        let nowhere = end("nowhere", -1, epoch);
        assert_eq!(nowhere, (ErrorCode::UnknownTopicOrPartition, -1, -1));
    }
}
