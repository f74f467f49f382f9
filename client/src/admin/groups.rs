//! Groups: list, describe, delete, and their committed offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use corduroy_protocol::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, GroupId,
    ListGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest, TopicName,
    consumer_group_describe_response as consumer, describe_groups_response as classic,
};
use futures::future::join_all;
use tokio::time::Instant;

use super::{Admin, check};
use crate::client::Target;
use crate::error::{Error, ErrorKind};
use crate::group::coordinator::ask;
use crate::group::offsets::{CommittedOffsets, Signature, commit_errors, commit_request, fetch};
use crate::group::{by_topic, decode_assignment};
use crate::net::api::StrBytes;
use crate::topic_partition::TopicPartition;

/// The state of a group that does not exist, by Kafka's name.
const DEAD: &str = "Dead";

/// A group of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupListing {
    /// Its id.
    pub id: String,
    /// `consumer`, `connect` or another protocol type; empty for a group that only holds offsets.
    pub protocol_type: String,
    /// Kafka's name of its state; `None` before Kafka 2.6.
    pub state: Option<String>,
    /// `classic`, `consumer` or another type; `None` before Kafka 3.8.
    pub group_type: Option<String>,
    /// The broker that coordinates it.
    pub coordinator: i32,
}

/// A group, in full.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// Its id.
    pub id: String,
    /// Kafka's name of its state: `Stable`, `PreparingRebalance`, `CompletingRebalance`, `Empty`,
    /// `Assigning`, `Reconciling`.
    pub state: String,
    /// `consumer`, `connect` or another protocol type.
    pub protocol_type: String,
    /// `classic` or `consumer`.
    pub group_type: String,
    /// The assignor, empty without members.
    pub assignor: String,
    /// The group epoch of the consumer protocol.
    pub epoch: Option<i32>,
    /// The broker that coordinates it.
    pub coordinator: i32,
    /// Its members, by id.
    pub members: Vec<MemberDescription>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberDescription {
    /// Its id.
    pub id: String,
    /// `group.instance.id`, for a static member.
    pub instance_id: Option<String>,
    /// `client.id`.
    pub client_id: String,
    /// Where it connects from.
    pub host: String,
    /// The member epoch of the consumer protocol.
    pub epoch: Option<i32>,
    /// Its partitions. Empty as well for a protocol type whose assignments are not known here.
    pub assignment: BTreeSet<TopicPartition>,
}

impl Admin {
    /// All groups, by id. Each broker knows those that it coordinates: all are asked.
    ///
    /// # Errors
    /// The first broker's that does not answer: the list would have gaps.
    pub async fn list_groups(&self) -> Result<Vec<GroupListing>, Error> {
        let deadline = self.client.api_deadline();
        let brokers = self.describe_cluster().await?.brokers;
        let lists = brokers.iter().map(|broker| async {
            let answer = self.client.ask(
                Target::Node(broker.id),
                deadline,
                |_version| ListGroupsRequest::default(),
                |answer| check(answer.error_code, None),
            );
            Ok::<_, Error>((broker.id, answer.await?))
        });
        let mut groups = BTreeMap::new();
        for list in join_all(lists).await {
            let (coordinator, list) = list?;
            for group in list.groups {
                let text = |text: &StrBytes| (!text.is_empty()).then(|| text.to_string());
                let listing = GroupListing {
                    id: group.group_id.to_string(),
                    protocol_type: group.protocol_type.to_string(),
                    state: text(&group.group_state),
                    group_type: text(&group.group_type).map(|kind| kind.to_lowercase()),
                    coordinator,
                };
                groups.insert(listing.id.clone(), listing);
            }
        }
        Ok(groups.into_values().collect())
    }

    /// A group with its members.
    ///
    /// # Errors
    /// Broker(GroupIdNotFound) where there is none.
    pub async fn describe_group(&self, group: &str) -> Result<GroupDescription, Error> {
        let deadline = self.client.api_deadline();
        // Each protocol has an API of its own, and knows nothing of the other's groups.
        match self.describe_consumer(group, deadline).await {
            Err(error) if is_another_type(&error) => {}
            described => return described,
        }
        self.describe_classic(group, deadline).await
    }

    async fn describe_consumer(
        &self,
        group: &str,
        deadline: Instant,
    ) -> Result<GroupDescription, Error> {
        let id = GroupId(StrBytes::from_string(group.to_owned()));
        let (answer, coordinator) = ask(
            &self.client,
            group,
            deadline,
            |_version| ConsumerGroupDescribeRequest::default().with_group_ids(vec![id.clone()]),
            |answer| {
                answer
                    .groups
                    .iter()
                    .try_for_each(|group| check(group.error_code, group.error_message.as_deref()))
            },
        )
        .await?;
        let described = answer.groups.into_iter().next().ok_or_else(absent)?;
        let assignment = |assignment: consumer::Assignment| {
            let topics = assignment.topic_partitions.into_iter();
            topics
                .flat_map(|topic| {
                    let name: Arc<str> = (**topic.topic_name).into();
                    let partitions = topic.partitions.into_iter();
                    partitions.map(move |partition| TopicPartition::new(name.clone(), partition))
                })
                .collect()
        };
        let mut members: Vec<MemberDescription> = described
            .members
            .into_iter()
            .map(|member| MemberDescription {
                id: member.member_id.to_string(),
                instance_id: member.instance_id.map(|id| id.to_string()),
                client_id: member.client_id.to_string(),
                host: member.client_host.to_string(),
                epoch: Some(member.member_epoch),
                assignment: assignment(member.assignment),
            })
            .collect();
        members.sort_by(|left, right| left.id.cmp(&right.id));
        Ok(GroupDescription {
            id: described.group_id.to_string(),
            state: described.group_state.to_string(),
            protocol_type: "consumer".to_owned(),
            group_type: "consumer".to_owned(),
            assignor: described.assignor_name.to_string(),
            epoch: Some(described.group_epoch),
            coordinator,
            members,
        })
    }

    async fn describe_classic(
        &self,
        group: &str,
        deadline: Instant,
    ) -> Result<GroupDescription, Error> {
        let id = GroupId(StrBytes::from_string(group.to_owned()));
        let (answer, coordinator) = ask(
            &self.client,
            group,
            deadline,
            |_version| DescribeGroupsRequest::default().with_groups(vec![id.clone()]),
            |answer| {
                answer
                    .groups
                    .iter()
                    .try_for_each(|group| check(group.error_code, group.error_message.as_deref()))
            },
        )
        .await?;
        let described = answer.groups.into_iter().next().ok_or_else(absent)?;
        if *described.group_state == *DEAD {
            // Before version 6 this is how a broker says so.
            return Err(Error::broker(ErrorCode::GroupIdNotFound, None));
        }
        let is_consumer = *described.protocol_type == *"consumer";
        let assignment = |member: &classic::DescribedGroupMember| {
            let bytes = &member.member_assignment;
            // Who assigned what is for people to see: unreadable bytes are shown as nothing.
            let readable = is_consumer.then(|| decode_assignment(bytes).ok()).flatten();
            readable.unwrap_or_default()
        };
        let mut members: Vec<MemberDescription> = described
            .members
            .iter()
            .map(|member| MemberDescription {
                id: member.member_id.to_string(),
                instance_id: member.group_instance_id.as_ref().map(ToString::to_string),
                client_id: member.client_id.to_string(),
                host: member.client_host.to_string(),
                epoch: None,
                assignment: assignment(member),
            })
            .collect();
        members.sort_by(|left, right| left.id.cmp(&right.id));
        Ok(GroupDescription {
            id: described.group_id.to_string(),
            state: described.group_state.to_string(),
            protocol_type: described.protocol_type.to_string(),
            group_type: "classic".to_owned(),
            assignor: described.protocol_data.to_string(),
            epoch: None,
            coordinator,
            members,
        })
    }

    /// Deletes a group with its committed offsets. It must have no members.
    ///
    /// # Errors
    /// Broker(NonEmptyGroup), Broker(GroupIdNotFound). An unknown outcome means that the group may
    /// be gone.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let id = GroupId(StrBytes::from_string(group.to_owned()));
        ask(
            &self.client,
            group,
            self.client.api_deadline(),
            |_version| DeleteGroupsRequest::default().with_groups_names(vec![id.clone()]),
            |answer| match answer.results.first() {
                Some(result) => check(result.error_code, None),
                None => Err(absent()),
            },
        )
        .await
        .map(drop)
    }

    /// The committed offsets of a group. A group that has none, or does not exist, has an empty
    /// answer.
    ///
    /// # Errors
    /// Why the coordinator does not answer.
    pub async fn group_offsets(&self, group: &str) -> Result<CommittedOffsets, Error> {
        fetch(&self.client, group, None, self.client.api_deadline()).await
    }

    /// Commits offsets for a group that has no members; it is created if there is none.
    ///
    /// # Errors
    /// Broker(UnknownMemberId) while the group has members; the first refusal of a partition, in
    /// which case others may have been committed.
    pub async fn set_group_offsets(
        &self,
        group: &str,
        offsets: &CommittedOffsets,
    ) -> Result<(), Error> {
        if offsets.is_empty() {
            return Ok(());
        }
        let signature = Signature::nobody();
        ask(
            &self.client,
            group,
            self.client.api_deadline(),
            |version| -> OffsetCommitRequest {
                commit_request(version, group, &signature, offsets)
            },
            |answer| {
                let errors = commit_errors(answer).into_iter();
                let mut wrong = errors.filter(|(_, code)| *code != ErrorCode::None);
                match wrong.next() {
                    None => Ok(()),
                    Some((at, code)) => {
                        Err(Error::broker(code, None).with_partition(&at.topic, at.partition))
                    }
                }
            },
        )
        .await
        .map(drop)
    }

    /// Deletes committed offsets of partitions that no member of the group is subscribed to.
    ///
    /// # Errors
    /// Broker(GroupSubscribedToTopic), Broker(GroupIdNotFound), the first error of a partition.
    pub async fn delete_group_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<(), Error> {
        let by_topic = by_topic(partitions.iter().map(|at| (at.clone(), ())));
        let topics: Vec<OffsetDeleteRequestTopic> = by_topic
            .into_iter()
            .map(|(topic, partitions)| {
                let partitions = partitions.into_iter().map(|(partition, ())| {
                    OffsetDeleteRequestPartition::default().with_partition_index(partition)
                });
                OffsetDeleteRequestTopic::default()
                    .with_name(TopicName(StrBytes::from_string(topic.to_string())))
                    .with_partitions(partitions.collect())
            })
            .collect();
        ask(
            &self.client,
            group,
            self.client.api_deadline(),
            |_version| {
                OffsetDeleteRequest::default()
                    .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
                    .with_topics(topics.clone())
            },
            |answer| {
                check(answer.error_code, None)?;
                for topic in &answer.topics {
                    let name: Arc<str> = (**topic.name).into();
                    for part in &topic.partitions {
                        check(part.error_code, None)
                            .map_err(|error| error.with_partition(&name, part.partition_index))?;
                    }
                }
                Ok(())
            },
        )
        .await
        .map(drop)
    }
}

/// Whether the group may be there, under the other protocol.
fn is_another_type(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported
            | ErrorKind::Broker(ErrorCode::GroupIdNotFound | ErrorCode::UnsupportedVersion)
    )
}

fn absent() -> Error {
    Error::new(
        ErrorKind::Malformed,
        "the answer does not mention the group",
    )
}
