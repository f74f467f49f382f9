//! FindCoordinator, and the way from a group's name to its coordinator on this node.

use std::collections::BTreeSet;
use std::time::Duration;

use corduroy_group::partition_of_group;
use corduroy_protocol::messages::find_coordinator_response::Coordinator;
use corduroy_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::GroupId;
use tokio::sync::oneshot;
use tracing::warn;

use crate::controller::NewTopic;
use crate::group::{CONSUMER_OFFSETS, GroupCall, Reply};
use crate::kafka::context::KafkaContext;
use crate::kafka::metadata::{FAILOVER_WAIT, address_of, wait_for_leaders};
use crate::shard::ShardMessage;

/// First version that asks for several keys at once (KIP-699).
const BATCHED_SINCE: i16 = 4;
/// Key type of a consumer group.
const KEY_GROUP: i8 = 0;
/// Key type of a transactional id.
const KEY_TRANSACTION: i8 = 1;
/// How long a first group waits for the internal topic and its leaders.
const TOPIC_WAIT: Duration = Duration::from_secs(5);
/// How long it waits before that for nodes that the seeds name and that have not joined yet.
const FOUNDERS_WAIT: Duration = Duration::from_secs(3);

/// Where a group's coordinator is, or why nobody knows.
type Found = Result<(i32, String, i32), (ErrorCode, String)>;

/// FindCoordinator (versions 0 to 6).
pub async fn find_coordinator(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let batched = header.api_version >= BATCHED_SINCE;
    let keys = match batched {
        true => request.coordinator_keys,
        false => vec![request.key],
    };
    let mut coordinators = find(ctx, request.key_type, keys).await;
    for (code, _) in coordinators
        .iter()
        .filter_map(|(_, found)| found.as_ref().err())
    {
        ctx.shard.counters().failed(header.api_key, code.name());
    }
    if batched {
        let coordinators = coordinators.into_iter().map(|(key, found)| {
            let row = Coordinator::default().with_key(key);
            match found {
                Ok((node, host, port)) => row
                    .with_node_id(BrokerId(node))
                    .with_host(StrBytes::from_string(host))
                    .with_port(port),
                Err((code, message)) => row
                    .with_node_id(BrokerId(-1))
                    .with_port(-1)
                    .with_error_code(code.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        return FindCoordinatorResponse::default().with_coordinators(coordinators.collect());
    }
    let response = FindCoordinatorResponse::default();
    match coordinators.pop() {
        Some((_, Ok((node, host, port)))) => response
            .with_node_id(BrokerId(node))
            .with_host(StrBytes::from_string(host))
            .with_port(port),
        Some((_, Err((code, message)))) => response
            .with_node_id(BrokerId(-1))
            .with_port(-1)
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_string(message))),
        None => response,
    }
}

/// All keys are waited for together: one without a leader holds up nobody for longer than alone. The
/// empty key is a group like any other: what commits without members may do so in its name.
async fn find(ctx: &KafkaContext, key_type: i8, keys: Vec<StrBytes>) -> Vec<(StrBytes, Found)> {
    let refused = match key_type {
        KEY_GROUP => match make_offsets_topic(ctx).await {
            Ok(()) => None,
            Err(message) => Some((ErrorCode::CoordinatorNotAvailable, message)),
        },
        KEY_TRANSACTION => Some((
            ErrorCode::TransactionalIdAuthorizationFailed,
            "transactions are not served yet".to_owned(),
        )),
        other => Some((
            ErrorCode::InvalidRequest,
            format!("coordinators of key type {other} are not known here"),
        )),
    };
    if let Some(refused) = refused {
        let keys = keys.into_iter();
        return keys.map(|key| (key, Err(refused.clone()))).collect();
    }
    let places: BTreeSet<GroupId> = keys
        .iter()
        .filter_map(|key| partition_of(ctx, key))
        .collect();
    let places: Vec<GroupId> = places.into_iter().collect();
    wait_for_coordinators(ctx, places).await;
    let keys = keys.into_iter();
    keys.map(|key| {
        let found = leader_of(ctx, &key);
        (key, found)
    })
    .collect()
}

/// Waits for coordinators as Metadata does for leaders: a client that is told of none waits for its
/// own timer (librdkafka: 0.5 s). No longer than until [`FAILOVER_WAIT`] after a leader was lost or
/// has resigned, or after somebody asked first where nobody has led yet: the answers behind this one
/// wait as well.
async fn wait_for_coordinators(ctx: &KafkaContext, mut places: Vec<GroupId>) {
    places.retain(|place| ctx.metadata.leader(*place).is_none());
    ctx.metadata.ask_for(&places, ctx.env.now());
    let waited = ctx.metadata.failed_over(&ctx.env, places, FAILOVER_WAIT);
    waited.await;
}

/// The leader of a group's partition, as far as this node knows now.
fn leader_of(ctx: &KafkaContext, key: &str) -> Found {
    let unavailable = |message: String| (ErrorCode::CoordinatorNotAvailable, message);
    let group = partition_of(ctx, key)
        .ok_or_else(|| unavailable(format!("{CONSUMER_OFFSETS} does not exist yet")))?;
    let image = ctx.metadata.image();
    let leader = ctx
        .metadata
        .leader(group)
        .filter(|leader| leader.node != ctx.node || !ctx.metadata.isolated());
    let node = leader.and_then(|leader| image.nodes.get(&leader.node));
    match node {
        Some(node) => {
            let (host, port) = address_of(ctx, node);
            Ok((node.id.get(), host, port))
        }
        None => Err(unavailable(format!(
            "partition {} of {CONSUMER_OFFSETS} has no leader at the moment",
            group.partition
        ))),
    }
}

/// The internal topic as this cluster would create it.
pub fn offsets_topic(ctx: &KafkaContext) -> NewTopic {
    let image = ctx.metadata.image();
    let groups = ctx.metadata.group_configs();
    let factor = groups
        .topic_replication_factor
        .min(image.nodes.len())
        .max(1);
    let config = |name: &str, value: String| (name.to_owned(), Some(value));
    NewTopic {
        partitions: Some(groups.topic_partitions),
        replication_factor: i16::try_from(factor).ok(),
        configs: vec![
            config("cleanup.policy", "compact".to_owned()),
            config("compression.type", "producer".to_owned()),
            config("segment.bytes", groups.topic_segment_bytes.to_string()),
        ],
        ..NewTopic::with_defaults(CONSUMER_OFFSETS)
    }
}

/// How many nodes of those that the seeds name, and that the internal topic needs for its `factor`
/// of replicas, have not joined yet.
fn missing_founders(factor: usize, seeds: usize, nodes: usize) -> usize {
    factor.min(seeds).saturating_sub(nodes)
}

/// The internal topic keeps the replicas that it is created with. So a first group that comes while
/// a cluster is only just forming waits a little for the nodes that the seeds name.
async fn wait_for_founders(ctx: &KafkaContext) {
    let missing = || {
        let image = ctx.metadata.image();
        let factor = ctx.metadata.group_configs().topic_replication_factor;
        missing_founders(factor, ctx.config.seeds.len(), image.nodes.len())
    };
    let is_complete = || missing() == 0;
    if is_complete()
        || ctx
            .wait_until(ctx.env.now() + FOUNDERS_WAIT, is_complete)
            .await
    {
        return;
    }
    warn!(
        nodes = ctx.metadata.image().nodes.len(),
        missing = missing(),
        "{CONSUMER_OFFSETS} is created with fewer replicas than offsets.topic.replication.factor: \
         not all nodes of the seeds have joined"
    );
}

/// Creates the internal topic when the first group asks for its coordinator, as Kafka does.
async fn make_offsets_topic(ctx: &KafkaContext) -> Result<(), String> {
    if ctx.metadata.image().topics.contains_key(CONSUMER_OFFSETS) {
        return Ok(());
    }
    wait_for_founders(ctx).await;
    let topic = offsets_topic(ctx);
    let results = ctx
        .controller
        .create_topics(vec![topic], false, TOPIC_WAIT)
        .await;
    for result in results {
        match result {
            Ok(topic) => {
                let groups: Vec<GroupId> = topic.groups().collect();
                wait_for_leaders(ctx, &groups, TOPIC_WAIT).await;
            }
            // Another node was faster; its image is on the way.
            Err(error) if error.code == ErrorCode::TopicAlreadyExists => {
                let known = || ctx.metadata.image().topics.contains_key(CONSUMER_OFFSETS);
                let _in_time = ctx.wait_until(ctx.env.now() + TOPIC_WAIT, known).await;
            }
            Err(error) => {
                return Err(format!("{CONSUMER_OFFSETS} could not be created: {error}"));
            }
        }
    }
    Ok(())
}

/// The Raft group of the partition that coordinates a consumer group.
fn partition_of(ctx: &KafkaContext, group: &str) -> Option<GroupId> {
    let image = ctx.metadata.image();
    let topic = image.topics.get(CONSUMER_OFFSETS)?;
    let partitions = u32::try_from(topic.partitions.len()).ok()?;
    Some(GroupId {
        topic: topic.id,
        partition: partition_of_group(group, partitions),
    })
}

/// Bytes of a group's name: each of its committed offsets carries it.
const GROUP_ID_BYTES_MAX: usize = 4096;

/// Asks a group's coordinator, on whichever shard of this node it is.
///
/// # Errors
/// INVALID_GROUP_ID where the name is longer than [`GROUP_ID_BYTES_MAX`];
/// NOT_COORDINATOR where it is not on this node; COORDINATOR_NOT_AVAILABLE where what has to be
/// written first takes too long (it may still be written).
pub(super) async fn ask<T>(
    ctx: &KafkaContext,
    group: &str,
    call: impl FnOnce(Reply<T>) -> GroupCall,
) -> Result<T, ErrorCode> {
    if group.len() > GROUP_ID_BYTES_MAX {
        return Err(ErrorCode::InvalidGroupId);
    }
    let place = partition_of(ctx, group).ok_or(ErrorCode::NotCoordinator)?;
    ask_partition(ctx, place, call).await
}

/// [`ask`], of the coordinator of one partition of the internal topic.
pub(super) async fn ask_partition<T>(
    ctx: &KafkaContext,
    place: GroupId,
    call: impl FnOnce(Reply<T>) -> GroupCall,
) -> Result<T, ErrorCode> {
    let (reply, answer) = oneshot::channel();
    let call = call(reply);
    let write_wait = ctx.metadata.group_configs().offsets_commit_timeout;
    let answer = answer_in_time(answer, call.answer_wait(write_wait));
    let owner = ctx.shard.owner(place);
    if owner == ctx.shard.index() {
        ctx.shard.coordinate(place, call);
    } else {
        let handle = ctx.shard.handles().get(usize::from(owner));
        let handle = handle.ok_or(ErrorCode::NotCoordinator)?;
        let message = ShardMessage::Group(place, Box::new(call));
        handle
            .send(message)
            .await
            .map_err(|_| ErrorCode::NotCoordinator)?;
    }
    answer.await
}

/// The coordinator's answer, within `wait` if there is a bound.
async fn answer_in_time<T>(
    answer: oneshot::Receiver<T>,
    wait: Option<Duration>,
) -> Result<T, ErrorCode> {
    let answered = match wait {
        Some(wait) => tokio::time::timeout(wait, answer)
            .await
            .map_err(|_| ErrorCode::CoordinatorNotAvailable)?,
        None => answer.await,
    };
    // An answer that never comes: the coordinator went away with the question.
    answered.map_err(|_| ErrorCode::NotCoordinator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn founders_are_waited_for_as_far_as_the_replicas_need_them() {
        // `offsets.topic.replication.factor`, nodes among the seeds, nodes that have joined.
        let rows = [
            ((3, 3, 1), 2, "two of three are still to come"),
            ((3, 3, 2), 1, "one is"),
            ((3, 3, 3), 0, "all are here"),
            ((3, 5, 3), 0, "more than it takes are here"),
            ((3, 1, 1), 0, "a node that knows of no other"),
            ((3, 0, 1), 0, "a node without seeds"),
            ((1, 3, 1), 0, "one replica"),
            ((3, 2, 1), 1, "a cluster of two"),
            ((3, 3, 4), 0, "nodes that no seed names count too"),
        ];
        for ((factor, seeds, nodes), missing, what) in rows {
            assert_eq!(missing_founders(factor, seeds, nodes), missing, "{what}");
        }
    }
}
