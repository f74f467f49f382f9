//! One member by the consumer protocol (KIP-848): one request, answered at once.

use std::time::Duration;

use corduroy_env::Env;
use corduroy_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use corduroy_protocol::messages::consumer_group_heartbeat_response::Assignment;
use corduroy_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, TopicName,
};
use corduroy_protocol::{ApiKey, ErrorCode, Response, StrBytes};
use uuid::Uuid;

use super::super::wire::{Link, RETRY_PAUSE, is_not_ready, text};
use crate::cli::CliResult;

/// Java's `max.poll.interval.ms`.
const REBALANCE_TIMEOUT_MS: i32 = 300_000;

const EPOCH_JOIN: i32 = 0;
const EPOCH_LEAVE: i32 = -1;

/// First version in which a member brings its own id.
const OWN_ID_VERSION: i16 = 1;

/// A member with a connection of its own, as its clients have.
pub(super) struct ConsumerMember {
    env: Env,
    link: Link,
    group: StrBytes,
    topic: StrBytes,
    member_id: StrBytes,
    epoch: i32,
    owned: Vec<(Uuid, Vec<i32>)>,
    /// The coordinator has not been told of `owned`.
    is_unconfirmed: bool,
}

/// What a heartbeat led to.
pub(super) struct Beat {
    pub(super) latency: Duration,
    /// When the coordinator wants the next one.
    pub(super) next: Next,
}

pub(super) enum Next {
    /// At once: there is something to confirm, or to join again.
    Now,
    After(Duration),
}

impl ConsumerMember {
    /// Not in the group so far.
    pub(super) fn new(env: &Env, link: Link, group: &str, topic: &str) -> ConsumerMember {
        let brings_id = link
            .versions()
            .of(ApiKey::ConsumerGroupHeartbeat)
            .is_ok_and(|version| version >= OWN_ID_VERSION);
        let member_id = if brings_id {
            text(&env.random_uuid().to_string())
        } else {
            StrBytes::default()
        };
        ConsumerMember {
            env: env.clone(),
            link,
            group: text(group),
            topic: text(topic),
            member_id,
            epoch: EPOCH_JOIN,
            owned: Vec::new(),
            is_unconfirmed: false,
        }
    }

    pub(super) fn epoch(&self) -> i32 {
        self.epoch
    }

    /// The partitions that it may read.
    pub(super) fn partitions(&self) -> Vec<i32> {
        self.owned
            .iter()
            .flat_map(|(_, partitions)| partitions.iter().copied())
            .collect()
    }

    /// Joins, confirms or says that it lives, whichever is due.
    ///
    /// # Errors
    /// The connection's; a refusal that joining again does not help against.
    pub(super) async fn beat(&mut self) -> CliResult<Beat> {
        let is_join = self.epoch == EPOCH_JOIN;
        let mut request = self.request();
        if is_join {
            request = request
                .with_rebalance_timeout_ms(REBALANCE_TIMEOUT_MS)
                .with_subscribed_topic_names(Some(vec![TopicName(self.topic.clone())]));
        }
        if is_join || self.is_unconfirmed {
            request = request.with_topic_partitions(Some(self.told()));
        }
        let answer = self.link.call(request).await?;
        let Response::ConsumerGroupHeartbeat(body) = answer.response else {
            return Err(self.link.another());
        };
        let next = match ErrorCode::from_code(body.error_code) {
            ErrorCode::None => self.take(body, is_join),
            ErrorCode::UnknownMemberId | ErrorCode::FencedMemberEpoch => {
                self.epoch = EPOCH_JOIN;
                self.owned.clear();
                self.is_unconfirmed = false;
                Next::Now
            }
            code if is_not_ready(code) => {
                self.env.sleep(RETRY_PAUSE).await;
                Next::Now
            }
            _ => {
                let refused = self
                    .link
                    .refused("ConsumerGroupHeartbeat", body.error_code)
                    .fact("said", body.error_message.as_deref().unwrap_or("nothing"));
                return Err(refused.into());
            }
        };
        Ok(Beat {
            latency: answer.latency,
            next,
        })
    }

    fn take(&mut self, body: ConsumerGroupHeartbeatResponse, is_join: bool) -> Next {
        if let Some(id) = body.member_id {
            self.member_id = id;
        }
        self.epoch = body.member_epoch;
        self.is_unconfirmed = false;
        if let Some(assignment) = body.assignment {
            let owned = sorted(assignment);
            // As Java's client does: what it already has needs no confirmation, but for the first.
            self.is_unconfirmed = is_join || owned != self.owned;
            self.owned = owned;
        }
        if self.is_unconfirmed {
            Next::Now
        } else {
            let millis = u64::try_from(body.heartbeat_interval_ms).unwrap_or(0);
            Next::After(Duration::from_millis(millis.max(1)))
        }
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// The connection's, or a refusal.
    pub(super) async fn leave(&mut self) -> CliResult {
        self.epoch = EPOCH_LEAVE;
        let request = self.request();
        let Response::ConsumerGroupHeartbeat(body) = self.link.call(request).await?.response else {
            return Err(self.link.another());
        };
        if body.error_code != 0 {
            let refused = self.link.refused("ConsumerGroupHeartbeat", body.error_code);
            return Err(refused.into());
        }
        Ok(())
    }

    fn request(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(self.group.clone()))
            .with_member_id(self.member_id.clone())
            .with_member_epoch(self.epoch)
            .with_rebalance_timeout_ms(-1)
    }

    fn told(&self) -> Vec<TopicPartitions> {
        self.owned
            .iter()
            .map(|(topic, partitions)| {
                TopicPartitions::default()
                    .with_topic_id(*topic)
                    .with_partitions(partitions.clone())
            })
            .collect()
    }
}

fn sorted(assignment: Assignment) -> Vec<(Uuid, Vec<i32>)> {
    let mut owned: Vec<(Uuid, Vec<i32>)> = assignment
        .topic_partitions
        .into_iter()
        .map(|topic| {
            let mut partitions = topic.partitions;
            partitions.sort_unstable();
            (topic.topic_id, partitions)
        })
        .collect();
    owned.sort_unstable();
    owned
}
