//! The requests of a member, each in the version that the coordinator speaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use corduroy_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use corduroy_protocol::messages::leave_group_request::MemberIdentity;
use corduroy_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use corduroy_protocol::messages::{
    ConsumerGroupHeartbeatRequest, GroupId, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest,
    SyncGroupRequest, TopicName,
};

use super::assignor::{Assignments, Subscriber};
use super::consumer::{Beat, ById, JOIN_EPOCH, Pulse};
use super::embedded::{Subscription, decode_assignment, encode_assignment};
use super::machine::{Identity, JoinRefusal, Joined, MemberConfig, Wish};
use crate::config::Strategy;
use crate::error::{Error, ErrorKind};
use crate::net::api::{Api, StrBytes};
use crate::net::connection::Connection;
use crate::topic_partition::TopicPartition;

/// The protocol type of all consumers.
const PROTOCOL_TYPE: &str = "consumer";

/// How much longer than the rebalance timeout a JoinGroup may take.
const JOIN_SLACK: Duration = Duration::from_secs(5);

/// First version of a request that knows static members.
const JOIN_INSTANCE_VERSION: i16 = 5;
const SYNC_INSTANCE_VERSION: i16 = 3;
const HEARTBEAT_INSTANCE_VERSION: i16 = 3;

/// First version of a heartbeat of the consumer protocol that may carry a pattern.
const PATTERN_VERSION: i16 = 1;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group_id(config: &MemberConfig) -> GroupId {
    GroupId(text(&config.group))
}

fn instance(config: &MemberConfig, version: i16, since: i16) -> Option<StrBytes> {
    config
        .instance_id
        .as_deref()
        .filter(|_| version >= since)
        .map(text)
}

fn refusal(api: &'static str, code: i16, message: Option<&str>, on: &Connection) -> Error {
    Error::broker(ErrorCode::from_code(code), message)
        .with_api(api)
        .with_broker(on.label())
}

pub(super) async fn join(
    on: &Connection,
    config: &MemberConfig,
    wish: Wish,
    request_timeout: Duration,
) -> Result<Joined, JoinRefusal> {
    let version = on
        .version::<JoinGroupRequest>()
        .map_err(JoinRefusal::Error)?;
    if config.instance_id.is_some() && version < JOIN_INSTANCE_VERSION {
        let message = "the broker knows no static members (group.instance.id needs Kafka 2.3)";
        return Err(JoinRefusal::Error(
            Error::new(ErrorKind::Unsupported, message).with_broker(on.label()),
        ));
    }
    let identity = wish.identity;
    let subscription = Subscription {
        topics: wish.topics,
        owned: wish.owned,
        generation: identity.generation,
    };
    let protocols = config.strategies.iter().map(|strategy| {
        JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str(strategy.name()))
            .with_metadata(subscription.encode(*strategy, &wish.previous))
    });
    let request = JoinGroupRequest::default()
        .with_group_id(group_id(config))
        .with_session_timeout_ms(millis(config.session_timeout))
        .with_rebalance_timeout_ms(millis(config.rebalance_timeout))
        .with_member_id(text(&identity.member_id))
        .with_group_instance_id(instance(config, version, JOIN_INSTANCE_VERSION))
        .with_protocol_type(StrBytes::from_static_str(PROTOCOL_TYPE))
        .with_protocols(protocols.collect());
    // It is answered when the others have joined.
    let limit = request_timeout.max(config.rebalance_timeout + JOIN_SLACK);
    let answer = on
        .call(limit, |_version| request)
        .await
        .map_err(JoinRefusal::Error)?;
    match ErrorCode::from_code(answer.error_code) {
        ErrorCode::None => {}
        ErrorCode::MemberIdRequired => {
            return Err(JoinRefusal::MemberIdRequired(answer.member_id.to_string()));
        }
        _ => {
            let error = refusal(JoinGroupRequest::NAME, answer.error_code, None, on);
            return Err(JoinRefusal::Error(error));
        }
    }
    // A leader that takes the place of its own predecessor is told that nothing has changed.
    let leads = answer.leader == answer.member_id && !answer.skip_assignment;
    let protocol = answer.protocol_name.as_deref().unwrap_or_default();
    let strategy = Strategy::from_name(protocol);
    let lead = leads.then(|| {
        let members = answer.members.iter().filter_map(|member| {
            match Subscription::decode(&member.metadata, strategy) {
                Ok(subscription) => Some(Subscriber {
                    member_id: member.member_id.to_string(),
                    instance_id: member.group_instance_id.as_ref().map(ToString::to_string),
                    subscription,
                }),
                Err(error) => {
                    // It gets nothing, and the others go on.
                    tracing::warn!(member = %member.member_id, %error, "cannot read what a member wants");
                    None
                }
            }
        });
        members.collect()
    });
    Ok(Joined {
        identity: Identity {
            member_id: answer.member_id.to_string(),
            generation: answer.generation_id,
        },
        protocol: protocol.to_owned(),
        lead,
    })
}

pub(super) async fn sync(
    on: &Connection,
    config: &MemberConfig,
    identity: Identity,
    strategy: Strategy,
    assignments: Assignments,
    request_timeout: Duration,
) -> Result<BTreeSet<TopicPartition>, Error> {
    let assignments = assignments.iter().map(|(member, partitions)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(encode_assignment(partitions))
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group_id(config))
        .with_generation_id(identity.generation)
        .with_member_id(text(&identity.member_id))
        .with_assignments(assignments.collect());
    // It is answered when the leader has divided.
    let limit = request_timeout.max(config.rebalance_timeout + JOIN_SLACK);
    let answer = on
        .call(limit, |version| {
            let request =
                request.with_group_instance_id(instance(config, version, SYNC_INSTANCE_VERSION));
            if version < 5 {
                return request;
            }
            request
                .with_protocol_type(Some(StrBytes::from_static_str(PROTOCOL_TYPE)))
                .with_protocol_name(Some(StrBytes::from_static_str(strategy.name())))
        })
        .await?;
    if answer.error_code != 0 {
        return Err(refusal(SyncGroupRequest::NAME, answer.error_code, None, on));
    }
    decode_assignment(&answer.assignment)
}

pub(super) async fn heartbeat(
    on: &Connection,
    config: &MemberConfig,
    identity: Identity,
    limit: Duration,
) -> Result<(), Error> {
    let answer = on
        .call(limit, |version| {
            HeartbeatRequest::default()
                .with_group_id(group_id(config))
                .with_generation_id(identity.generation)
                .with_member_id(text(&identity.member_id))
                .with_group_instance_id(instance(config, version, HEARTBEAT_INSTANCE_VERSION))
        })
        .await?;
    match answer.error_code {
        0 => Ok(()),
        code => Err(refusal(HeartbeatRequest::NAME, code, None, on)),
    }
}

pub(super) async fn consumer_heartbeat(
    on: &Connection,
    config: &MemberConfig,
    beat: Beat,
    limit: Duration,
) -> Result<Pulse, Error> {
    let mut request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id(config))
        .with_member_id(text(&beat.identity.member_id))
        .with_member_epoch(beat.identity.generation)
        .with_instance_id(config.instance_id.as_deref().map(text))
        .with_rebalance_timeout_ms(-1)
        .with_topic_partitions(beat.owned.as_ref().map(partitions_by_id));
    let is_join = beat.identity.generation == JOIN_EPOCH;
    if config.pattern.is_some()
        && is_join
        && on.version::<ConsumerGroupHeartbeatRequest>()? < PATTERN_VERSION
    {
        let message = "the broker knows no subscription by pattern (Kafka 4.0 does)";
        return Err(Error::new(ErrorKind::Unsupported, message).with_broker(on.label()));
    }
    if beat.is_full {
        let topics = config.topics.iter().map(|topic| TopicName(text(topic)));
        request = request
            .with_rebalance_timeout_ms(millis(config.rebalance_timeout))
            .with_subscribed_topic_names(Some(topics.collect()))
            .with_subscribed_topic_regex(config.pattern.as_ref().map(|one| text(one.source())))
            .with_server_assignor(config.remote_assignor.as_deref().map(text));
    }
    let answer = on
        .call(limit, |version| {
            if version == 0 && is_join {
                // Before version 1 the coordinator chooses the member's id.
                return request.with_member_id(StrBytes::default());
            }
            request
        })
        .await?;
    if answer.error_code != 0 {
        let message = answer.error_message.as_deref();
        return Err(refusal(
            ConsumerGroupHeartbeatRequest::NAME,
            answer.error_code,
            message,
            on,
        ));
    }
    let assignment = answer.assignment.map(|assignment| {
        let topics = assignment.topic_partitions.into_iter();
        topics
            .map(|topic| (topic.topic_id, topic.partitions.into_iter().collect()))
            .collect::<ById>()
    });
    Ok(Pulse {
        identity: Identity {
            member_id: answer
                .member_id
                .map_or(beat.identity.member_id, |id| id.to_string()),
            generation: answer.member_epoch,
        },
        heartbeat_interval: Duration::from_millis(
            u64::try_from(answer.heartbeat_interval_ms)
                .unwrap_or(0)
                .max(1),
        ),
        assignment,
    })
}

fn partitions_by_id(owned: &ById) -> Vec<TopicPartitions> {
    owned
        .iter()
        .map(|(id, partitions)| {
            TopicPartitions::default()
                .with_topic_id(*id)
                .with_partitions(partitions.iter().copied().collect())
        })
        .collect()
}

/// Signs a member of either protocol off.
pub(super) async fn leave(
    on: &Connection,
    config: &MemberConfig,
    identity: Identity,
    is_consumer: bool,
    limit: Duration,
) -> Result<(), Error> {
    if is_consumer {
        let beat = Beat {
            identity,
            is_full: false,
            owned: None,
        };
        return consumer_heartbeat(on, config, beat, limit).await.map(drop);
    }
    let answer = on
        .call(limit, |version| {
            let request = LeaveGroupRequest::default().with_group_id(group_id(config));
            if version < 3 {
                return request.with_member_id(text(&identity.member_id));
            }
            request.with_members(vec![
                MemberIdentity::default().with_member_id(text(&identity.member_id)),
            ])
        })
        .await?;
    let member = answer.members.first().map_or(0, |member| member.error_code);
    match if answer.error_code == 0 {
        member
    } else {
        answer.error_code
    } {
        0 => Ok(()),
        code => Err(refusal(LeaveGroupRequest::NAME, code, None, on)),
    }
}

pub(super) fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// Partitions by topic, as most requests want them.
pub(crate) fn by_topic<T>(
    partitions: impl IntoIterator<Item = (TopicPartition, T)>,
) -> BTreeMap<Arc<str>, Vec<(i32, T)>> {
    let mut topics: BTreeMap<Arc<str>, Vec<(i32, T)>> = BTreeMap::new();
    for (at, value) in partitions {
        topics
            .entry(at.topic)
            .or_default()
            .push((at.partition, value));
    }
    topics
}
