//! OffsetCommit and OffsetFetch.

use std::collections::BTreeMap;
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use corduroy_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
    TopicName,
};
use tokio::time::Instant;

use super::calls::{by_topic, text};
use super::coordinator::ask;
use super::machine::Identity;
use crate::client::ClientShared;
use crate::error::Error;
use crate::net::api::{Api, StrBytes};
use crate::topic_partition::TopicPartition;

/// A committed position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommittedOffset {
    /// Where the group goes on.
    pub offset: i64,
    /// The epoch of the leader of the record before it, where known.
    pub leader_epoch: Option<i32>,
    /// What the committer wrote beside it.
    pub metadata: Option<String>,
}

impl CommittedOffset {
    /// A position without anything beside it.
    pub fn at(offset: i64) -> CommittedOffset {
        CommittedOffset {
            offset,
            leader_epoch: None,
            metadata: None,
        }
    }
}

/// Committed positions by partition.
pub type CommittedOffsets = BTreeMap<TopicPartition, CommittedOffset>;

/// Who commits.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    pub(crate) identity: Identity,
    pub(crate) instance_id: Option<String>,
}

impl Signature {
    /// Somebody who is no member: it may commit while the group has none.
    pub(crate) fn nobody() -> Signature {
        Signature {
            identity: Identity {
                member_id: String::new(),
                generation: -1,
            },
            instance_id: None,
        }
    }
}

pub(crate) fn commit_request(
    version: i16,
    group: &str,
    signature: &Signature,
    offsets: &CommittedOffsets,
) -> OffsetCommitRequest {
    let instance = signature
        .instance_id
        .as_deref()
        .filter(|_| version >= 7)
        .map(text);
    let by_topic = by_topic(
        offsets
            .iter()
            .map(|(at, committed)| (at.clone(), committed)),
    );
    let topics = by_topic.into_iter().map(|(topic, partitions)| {
        let partitions = partitions.into_iter().map(|(partition, committed)| {
            let request = OffsetCommitRequestPartition::default()
                .with_partition_index(partition)
                .with_committed_offset(committed.offset)
                .with_committed_metadata(Some(text(committed.metadata.as_deref().unwrap_or(""))));
            if version < 6 {
                return request;
            }
            request.with_committed_leader_epoch(committed.leader_epoch.unwrap_or(-1))
        });
        OffsetCommitRequestTopic::default()
            .with_name(TopicName(text(&topic)))
            .with_partitions(partitions.collect())
    });
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(signature.identity.generation)
        .with_member_id(text(&signature.identity.member_id))
        .with_group_instance_id(instance)
        // The broker's own retention.
        .with_retention_time_ms(-1)
        .with_topics(topics.collect())
}

/// The error of each partition.
pub(crate) fn commit_errors(answer: &OffsetCommitResponse) -> BTreeMap<TopicPartition, ErrorCode> {
    let mut errors = BTreeMap::new();
    for topic in &answer.topics {
        let name: Arc<str> = (**topic.name).into();
        for partition in &topic.partitions {
            let at = TopicPartition::new(name.clone(), partition.partition_index);
            errors.insert(at, ErrorCode::from_code(partition.error_code));
        }
    }
    errors
}

/// The group's committed positions: of these partitions, or of all that have one. A partition
/// without one is not in the answer.
///
/// # Errors
/// As [`ask`], and the first error of a partition.
pub(crate) async fn fetch(
    client: &ClientShared,
    group: &str,
    partitions: Option<&[TopicPartition]>,
    deadline: Instant,
) -> Result<CommittedOffsets, Error> {
    let by_topic = partitions.map(|all| by_topic(all.iter().map(|at| (at.clone(), ()))));
    let (answer, _) = ask(
        client,
        group,
        deadline,
        |version| fetch_request(version, group, by_topic.as_ref()),
        |answer| fetched(answer).map(drop),
    )
    .await?;
    fetched(&answer)
}

/// Partitions by topic.
type Wanted = BTreeMap<Arc<str>, Vec<(i32, ())>>;

fn fetch_request(version: i16, group: &str, topics: Option<&Wanted>) -> OffsetFetchRequest {
    let indexes = |partitions: &[(i32, ())]| partitions.iter().map(|(index, ())| *index).collect();
    // An offset that an open transaction may still replace is waited for (KIP-447).
    let request = OffsetFetchRequest::default().with_require_stable(version >= 7);
    if version >= 8 {
        let topics = topics.map(|topics| {
            let topics = topics.iter().map(|(topic, partitions)| {
                OffsetFetchRequestTopics::default()
                    .with_name(TopicName(text(topic)))
                    .with_partition_indexes(indexes(partitions))
            });
            topics.collect()
        });
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_member_id(None)
            .with_member_epoch(-1)
            .with_topics(topics);
        return request.with_groups(vec![group]);
    }
    let topics = topics.map(|topics| {
        let topics = topics.iter().map(|(topic, partitions)| {
            OffsetFetchRequestTopic::default()
                .with_name(TopicName(text(topic)))
                .with_partition_indexes(indexes(partitions))
        });
        topics.collect()
    });
    request
        .with_group_id(GroupId(text(group)))
        .with_topics(topics)
}

fn fetched(answer: &OffsetFetchResponse) -> Result<CommittedOffsets, Error> {
    let mut offsets = CommittedOffsets::new();
    let mut take = |topic: &TopicName,
                    partition: i32,
                    error_code: i16,
                    committed: (i64, i32, &Option<StrBytes>)| {
        let topic: Arc<str> = (***topic).into();
        match ErrorCode::from_code(error_code) {
            ErrorCode::None => {}
            code => {
                return Err(Error::broker(code, None)
                    .with_api(OffsetFetchRequest::NAME)
                    .with_partition(&topic, partition));
            }
        }
        let (offset, leader_epoch, metadata) = committed;
        if offset >= 0 {
            let committed = CommittedOffset {
                offset,
                leader_epoch: Some(leader_epoch).filter(|epoch| *epoch >= 0),
                metadata: metadata
                    .as_deref()
                    .filter(|text| !text.is_empty())
                    .map(str::to_owned),
            };
            offsets.insert(TopicPartition::new(topic, partition), committed);
        }
        Ok(())
    };
    let check = |code: i16| match ErrorCode::from_code(code) {
        ErrorCode::None => Ok(()),
        code => Err(Error::broker(code, None).with_api(OffsetFetchRequest::NAME)),
    };
    check(answer.error_code)?;
    for topic in &answer.topics {
        for part in &topic.partitions {
            let committed = (
                part.committed_offset,
                part.committed_leader_epoch,
                &part.metadata,
            );
            take(
                &topic.name,
                part.partition_index,
                part.error_code,
                committed,
            )?;
        }
    }
    for group in &answer.groups {
        check(group.error_code)?;
        for topic in &group.topics {
            for part in &topic.partitions {
                let committed = (
                    part.committed_offset,
                    part.committed_leader_epoch,
                    &part.metadata,
                );
                take(
                    &topic.name,
                    part.partition_index,
                    part.error_code,
                    committed,
                )?;
            }
        }
    }
    Ok(offsets)
}
