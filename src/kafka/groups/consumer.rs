//! ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

use corduroy_group::consumer::HeartbeatRequest;
use corduroy_group::records::Assignment;
use corduroy_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, TopicName, consumer_group_describe_response as described,
    consumer_group_heartbeat_response as beaten,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::{PartitionIndex, TopicId};
use futures::future::join_all;

use crate::controller::MetadataImage;
use crate::group::GroupCall;
use crate::kafka::context::KafkaContext;

use super::coordinator::ask;
use super::membership::{client_host, fresh_member_id};

/// First version whose members name themselves (KIP-1082).
const MEMBER_NAMED_SINCE: i16 = 1;
/// First version of ConsumerGroupDescribe that tells a member's type.
const MEMBER_TYPE_SINCE: i16 = 1;
/// "Not asked for", and there is nothing to authorize yet.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// ConsumerGroupHeartbeat (versions 0 and 1).
pub async fn consumer_group_heartbeat(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let client_id = header.client_id.as_deref().unwrap_or_default().to_owned();
    let text = |text: Option<StrBytes>| text.map(|text| text.to_string());
    let group = request.group_id.to_string();
    let fresh_member_id =
        (header.api_version < MEMBER_NAMED_SINCE).then(|| fresh_member_id(ctx, &client_id));
    let beat = HeartbeatRequest {
        member_id: request.member_id.to_string(),
        fresh_member_id,
        member_epoch: request.member_epoch,
        instance_id: text(request.instance_id),
        rack_id: text(request.rack_id),
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        client_id,
        client_host: client_host(ctx),
        subscribed_topics: request
            .subscribed_topic_names
            .map(|names| names.into_iter().map(|name| name.to_string()).collect()),
        subscribed_regex: text(request.subscribed_topic_regex),
        server_assignor: text(request.server_assignor),
        owned: request.topic_partitions.map(|topics| {
            let mut owned = Assignment::new();
            for topic in topics {
                let partitions = topic.partitions.into_iter().map(PartitionIndex::new);
                let owned = owned.entry(TopicId::new(topic.topic_id)).or_default();
                owned.extend(partitions);
            }
            owned
        }),
    };
    let asked = ask(ctx, &request.group_id, |reply| {
        GroupCall::ConsumerHeartbeat {
            group,
            request: beat,
            reply,
        }
    });
    let response = ConsumerGroupHeartbeatResponse::default();
    match asked.await.unwrap_or_else(|code| Err(code.into())) {
        Ok(answer) => {
            let assignment = answer.assignment.map(|assignment| {
                let topics = assignment.into_iter().map(|(topic, partitions)| {
                    beaten::TopicPartitions::default()
                        .with_topic_id(topic.uuid())
                        .with_partitions(partitions.into_iter().map(|p| p.get()).collect())
                });
                beaten::Assignment::default().with_topic_partitions(topics.collect())
            });
            response
                .with_member_id(Some(StrBytes::from_string(answer.member_id)))
                .with_member_epoch(answer.member_epoch)
                .with_heartbeat_interval_ms(answer.heartbeat_interval_ms)
                .with_assignment(assignment)
        }
        Err(error) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            let message = (!error.message.is_empty()).then_some(error.message);
            response
                .with_error_code(error.code.code())
                .with_error_message(message.map(StrBytes::from_string))
        }
    }
}

/// ConsumerGroupDescribe (versions 0 and 1).
pub async fn consumer_group_describe(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let image = ctx.metadata.image();
    let image = &*image;
    let asked = request.group_ids.into_iter().map(|id| async move {
        let group = id.to_string();
        let asked = async {
            if group.is_empty() {
                return Err(ErrorCode::InvalidGroupId);
            }
            ask(ctx, &id, |reply| GroupCall::ConsumerDescribe {
                group,
                reply,
            })
            .await
        };
        let row = described::DescribedGroup::default()
            .with_group_id(id.clone())
            .with_authorized_operations(OPERATIONS_NOT_ASKED);
        match asked.await.unwrap_or_else(|code| Err(code.into())) {
            Ok(group) => {
                let members = group.members.into_iter().map(|member| {
                    let names = member.topics.into_iter();
                    let row = described::Member::default()
                        .with_member_id(StrBytes::from_string(member.member_id))
                        .with_instance_id(member.instance_id.map(StrBytes::from_string))
                        .with_rack_id(member.rack_id.map(StrBytes::from_string))
                        .with_member_epoch(member.member_epoch)
                        .with_client_id(StrBytes::from_string(member.client_id))
                        .with_client_host(StrBytes::from_string(member.client_host))
                        .with_subscribed_topic_names(
                            names.map(|n| TopicName(StrBytes::from_string(n))).collect(),
                        )
                        .with_subscribed_topic_regex(member.regex.map(StrBytes::from_string))
                        .with_assignment(assignment(image, &member.assignment))
                        .with_target_assignment(assignment(image, &member.target));
                    match header.api_version >= MEMBER_TYPE_SINCE {
                        true => row.with_member_type(if member.is_classic { 0 } else { 1 }),
                        false => row,
                    }
                });
                row.with_group_state(StrBytes::from_static_str(group.state))
                    .with_group_epoch(group.epoch)
                    .with_assignment_epoch(group.assignment_epoch)
                    .with_assignor_name(StrBytes::from_static_str(group.assignor))
                    .with_members(members.collect())
            }
            Err(error) => {
                ctx.shard
                    .counters()
                    .failed(header.api_key, error.code.name());
                row.with_error_code(error.code.code())
                    .with_error_message(Some(StrBytes::from_string(error.message)))
            }
        }
    });
    ConsumerGroupDescribeResponse::default().with_groups(join_all(asked).await)
}

/// Partitions with the names of their topics; a deleted topic has none any more.
fn assignment(image: &MetadataImage, assignment: &Assignment) -> described::Assignment {
    let topics = assignment.iter().map(|(topic, partitions)| {
        let name = image.topic_by_id(*topic).map(|info| info.name.clone());
        described::TopicPartitions::default()
            .with_topic_id(topic.uuid())
            .with_topic_name(TopicName(StrBytes::from_string(name.unwrap_or_default())))
            .with_partitions(partitions.iter().map(|p| p.get()).collect())
    });
    described::Assignment::default().with_topic_partitions(topics.collect())
}
