//! Metadata: brokers, topics, leaders (KIP-516 topic ids from day one), and topics that are made
//! because somebody asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::messages::{
    BrokerId, MetadataRequest, MetadataResponse, TopicName,
    metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic},
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::{GroupId, NodeId, TopicId};
use uuid::Uuid;

use crate::controller::{MetadataImage, NewTopic, NodeInfo, TopicInfo};
use crate::group::{CONSUMER_OFFSETS, is_internal};

use super::context::KafkaContext;
use super::groups::offsets_topic;

/// First version that may ask by topic id, and leave the name out.
const TOPIC_IDS_SINCE: i16 = 12;
/// "Not asked for" in the authorized-operations fields.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;
/// How long an answer waits for the leaders of topics that it has just made.
const LEADERS_WAIT: Duration = Duration::from_secs(5);
/// How long after a node stopped answering an answer waits for new leaders in place of those on it.
/// A client asks the moment its connection breaks, which is before a failover can be over, and one
/// that is told of the dead leader once more, or of none, looks again only after its own timer
/// (librdkafka: 1 s, whatever its settings). Answers keep the order of their questions: until then
/// everything else on that connection waits as well, produced records of healthy partitions too. So
/// it is no longer than what a failover takes, and counts from the loss, not from the question.
pub const FAILOVER_WAIT: Duration = Duration::from_millis(500);
/// How long a node that is down stays in the list of brokers; it leads nothing meanwhile.
/// librdkafka 2.12 gives a broker that left the list up together with the partitions that it is
/// just moving away from it, and finds those again only a second later.
const LOST_BROKER_LISTED: Duration = Duration::from_secs(10);

/// What a client asked for.
enum Wanted {
    All,
    Named(Vec<(Option<TopicName>, Uuid)>),
}

/// Answers a metadata request.
pub async fn answer(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: MetadataRequest,
) -> MetadataResponse {
    let wanted = match request.topics {
        None => Wanted::All,
        // Version 0 has no null: an empty list means all topics.
        Some(topics) if topics.is_empty() && header.api_version == 0 => Wanted::All,
        // Beside an id the name counts for nothing: Java's client sends an empty one.
        Some(topics) => Wanted::Named(
            topics
                .into_iter()
                .map(|topic| {
                    let by_id = header.api_version >= TOPIC_IDS_SINCE && !topic.topic_id.is_nil();
                    (topic.name.filter(|_| !by_id), topic.topic_id)
                })
                .collect(),
        ),
    };
    if let Wanted::Named(names) = &wanted
        && !is_answerable(header.api_version, names)
    {
        ctx.shard
            .counters()
            .failed(header.api_key, ErrorCode::InvalidRequest.name());
        let topics = names
            .iter()
            .map(|(name, id)| refused_topic(header, name.clone(), *id, ErrorCode::InvalidRequest));
        return MetadataResponse::default()
            .with_controller_id(BrokerId(-1))
            .with_topics(topics.collect())
            .with_cluster_authorized_operations(OPERATIONS_NOT_ASKED);
    }
    let mut refused = BTreeMap::new();
    if let Wanted::Named(names) = &wanted {
        // Versions below 4 cannot say no.
        if header.api_version < 4 || request.allow_auto_topic_creation {
            refused = create_missing(ctx, names).await;
        }
    }
    let image = settled_image(ctx, &wanted).await;
    let topics = match wanted {
        Wanted::All => image
            .topics
            .values()
            .map(|t| topic_of(ctx, &image, t))
            .collect(),
        Wanted::Named(names) => names
            .into_iter()
            .map(|(name, id)| named(ctx, header, &image, name, id, &refused))
            .collect(),
    };
    let brokers = image
        .nodes
        .values()
        .filter(|node| listed(ctx, node.id))
        .map(|node| {
            let (host, port) = address_of(ctx, node);
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(node.id.get()))
                .with_host(StrBytes::from_string(host))
                .with_port(port)
                .with_rack(node.rack.clone().map(StrBytes::from_string))
        })
        .collect();
    let controller = if ctx.metadata.isolated() {
        None
    } else {
        ctx.metadata.controller_leader()
    };
    MetadataResponse::default()
        .with_brokers(brokers)
        .with_cluster_id(Some(StrBytes::from_string(image.cluster_id.to_string())))
        .with_controller_id(BrokerId(controller.map_or(-1, NodeId::get)))
        .with_topics(topics)
        .with_cluster_authorized_operations(OPERATIONS_NOT_ASKED)
}

/// The newest image, once no asked partition's leader is on a node that has just been lost, or
/// [`FAILOVER_WAIT`] after it was.
async fn settled_image(ctx: &KafkaContext, wanted: &Wanted) -> Arc<MetadataImage> {
    // Nearly always: nobody is to be waited for, and no partition is looked at.
    if ctx.metadata.any_lost_within(ctx.env.now(), FAILOVER_WAIT) {
        let image = ctx.metadata.image();
        let groups: Vec<GroupId> = match wanted {
            Wanted::All => image.topics.values().flat_map(TopicInfo::groups).collect(),
            Wanted::Named(names) => {
                let topics = names.iter().filter_map(|(name, id)| match name {
                    Some(name) => image.topics.get(name.as_str()),
                    None => image.topic_by_id(TopicId::new(*id)),
                });
                topics.flat_map(TopicInfo::groups).collect()
            }
        };
        ctx.metadata
            .failed_over(&ctx.env, groups, FAILOVER_WAIT)
            .await;
    }
    ctx.metadata.image()
}

/// A node that hears of no majority leaves itself out; one that has been down for a while too.
fn listed(ctx: &KafkaContext, node: NodeId) -> bool {
    if node == ctx.node {
        !ctx.metadata.isolated()
    } else {
        let now = ctx.env.now();
        !ctx.metadata.unreachable(node) || ctx.metadata.lost_within(node, now, LOST_BROKER_LISTED)
    }
}

/// Where a client reaches a node: what the node advertises; for this node, without anything
/// advertised, the address that the client itself has used.
pub fn address_of(ctx: &KafkaContext, node: &NodeInfo) -> (String, i32) {
    if node.id == ctx.node
        && ctx.config.advertised.is_none()
        && let Some(reached) = ctx.reached_at
    {
        return (reached.ip().to_string(), i32::from(reached.port()));
    }
    let host = match node.kafka.host.parse::<IpAddr>() {
        // A node that listens on every address is where the other nodes reach it.
        Ok(ip) if ip.is_unspecified() => node.rpc.ip().to_string(),
        _ => node.kafka.host.clone(),
    };
    (host, i32::from(node.kafka.port))
}

fn named(
    ctx: &KafkaContext,
    header: &RequestHeader,
    image: &MetadataImage,
    name: Option<TopicName>,
    id: Uuid,
    refused: &BTreeMap<String, ErrorCode>,
) -> MetadataResponseTopic {
    let topic = match &name {
        Some(name) => image.topics.get(name.as_str()),
        None => image.topic_by_id(TopicId::new(id)),
    };
    if let Some(topic) = topic {
        return topic_of(ctx, image, topic);
    }
    let error = match &name {
        None if id.is_nil() => ErrorCode::InvalidRequest,
        None => ErrorCode::UnknownTopicId,
        Some(name) => refused
            .get(name.as_str())
            .copied()
            .unwrap_or(ErrorCode::UnknownTopicOrPartition),
    };
    refused_topic(header, name, id, error)
}

/// Whether a request asks in the words of its version. Versions 10 and 11 carry topic ids and
/// accept names alone, as in Kafka (KIP-516); one that asks otherwise is refused as a whole.
fn is_answerable(version: i16, names: &[(Option<TopicName>, Uuid)]) -> bool {
    version >= TOPIC_IDS_SINCE || names.iter().all(|(name, id)| name.is_some() && id.is_nil())
}

fn refused_topic(
    header: &RequestHeader,
    name: Option<TopicName>,
    id: Uuid,
    error: ErrorCode,
) -> MetadataResponseTopic {
    // Before version 12 the name cannot be null.
    let name = if header.api_version < TOPIC_IDS_SINCE {
        Some(name.unwrap_or_default())
    } else {
        name
    };
    MetadataResponseTopic::default()
        .with_error_code(error.code())
        .with_name(name)
        .with_topic_id(id)
        .with_topic_authorized_operations(OPERATIONS_NOT_ASKED)
}

fn topic_of(ctx: &KafkaContext, image: &MetadataImage, topic: &TopicInfo) -> MetadataResponseTopic {
    let partitions = topic
        .groups()
        .zip(&topic.partitions)
        .map(|(group, partition)| {
            let replicas: Vec<NodeId> = partition.replicas.iter().map(|(_, n)| *n).collect();
            partition_of(ctx, image, group, &replicas)
        })
        .collect();
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(topic.name.clone()))))
        .with_topic_id(topic.id.uuid())
        .with_is_internal(is_internal(&topic.name))
        .with_partitions(partitions)
        .with_topic_authorized_operations(OPERATIONS_NOT_ASKED)
}

fn partition_of(
    ctx: &KafkaContext,
    image: &MetadataImage,
    group: GroupId,
    replicas: &[NodeId],
) -> MetadataResponsePartition {
    let brokers = |nodes: &[NodeId]| nodes.iter().map(|n| BrokerId(n.get())).collect::<Vec<_>>();
    let offline: Vec<NodeId> = replicas
        .iter()
        .copied()
        .filter(|node| !image.nodes.contains_key(node) || ctx.metadata.unreachable(*node))
        .collect();
    let response = MetadataResponsePartition::default()
        .with_partition_index(group.partition.get())
        .with_replica_nodes(brokers(replicas))
        .with_offline_replicas(brokers(&offline));
    // An isolated node's own idea of its leadership is worth nothing: a client that is sent back
    // here would never leave. Any other replica knows better.
    let known = ctx.metadata.leader(group);
    let isolated_self =
        ctx.metadata.isolated() && known.as_ref().is_none_or(|leader| leader.node == ctx.node);
    if isolated_self && let Some(other) = replicas.iter().find(|node| **node != ctx.node) {
        return response
            .with_leader_id(BrokerId(other.get()))
            .with_leader_epoch(-1)
            .with_isr_nodes(brokers(&[*other]));
    }
    match known {
        Some(leader) => response
            .with_leader_id(BrokerId(leader.node.get()))
            .with_leader_epoch(leader.epoch.get())
            .with_isr_nodes(brokers(&leader.in_sync)),
        None => {
            let in_sync = ctx
                .metadata
                .last_leader(group)
                .map(|l| l.in_sync)
                .unwrap_or_default();
            response
                .with_error_code(ErrorCode::LeaderNotAvailable.code())
                .with_leader_id(BrokerId(-1))
                .with_leader_epoch(-1)
                .with_isr_nodes(brokers(&in_sync))
        }
    }
}

/// Makes the topics that are missing, where the cluster allows it, and waits a little for their
/// leaders: clients produce right after. Returns why the others could not be made.
async fn create_missing(
    ctx: &KafkaContext,
    names: &[(Option<TopicName>, Uuid)],
) -> BTreeMap<String, ErrorCode> {
    let image = ctx.metadata.image();
    if !image.cluster().auto_create_topics {
        return BTreeMap::new();
    }
    let missing: Vec<String> = names
        .iter()
        .filter_map(|(name, _)| name.as_ref())
        .filter(|name| !image.topics.contains_key(name.as_str()))
        .map(|name| name.to_string())
        .collect();
    if missing.is_empty() {
        return BTreeMap::new();
    }
    let new = missing.iter().map(|name| match name.as_str() {
        CONSUMER_OFFSETS => offsets_topic(ctx),
        name => NewTopic::with_defaults(name),
    });
    let new = new.collect();
    let results = ctx.controller.create_topics(new, false, LEADERS_WAIT).await;
    let mut refused = BTreeMap::new();
    let mut groups = Vec::new();
    for (name, result) in missing.into_iter().zip(results) {
        match result {
            Ok(topic) => groups.extend(topic.groups()),
            // Somebody else was faster: just as well.
            Err(error) if error.code == ErrorCode::TopicAlreadyExists => {}
            Err(error) => {
                ctx.shard.counters().failed(3, error.code.name());
                refused.insert(name, error.code);
            }
        }
    }
    wait_for_leaders(ctx, &groups, LEADERS_WAIT).await;
    refused
}

/// Waits until this node knows a leader for each of `groups`. Returns whether it does.
pub async fn wait_for_leaders(ctx: &KafkaContext, groups: &[GroupId], timeout: Duration) -> bool {
    let known = |group: &GroupId| {
        ctx.metadata.image().partition_of(*group).is_some() && ctx.metadata.leader(*group).is_some()
    };
    let deadline = ctx.env.now() + timeout;
    ctx.wait_until(deadline, || groups.iter().all(known)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_asked_for_by_what_their_version_knows() {
        let named = || (Some(TopicName(StrBytes::from_static_str("t"))), Uuid::nil());
        let by_id = || (None, Uuid::from_u128(7));
        let neither = || (None, Uuid::nil());
        assert!(is_answerable(9, &[named()]));
        for version in [10, 11] {
            assert!(is_answerable(version, &[named()]));
            assert!(!is_answerable(version, &[named(), by_id()]));
            assert!(!is_answerable(version, &[neither()]));
            let both = (named().0, by_id().1);
            assert!(!is_answerable(version, &[both]));
        }
        assert!(
            is_answerable(12, &[named(), by_id(), neither()]),
            "judged one by one"
        );
        assert!(is_answerable(13, &[]));
    }
}
