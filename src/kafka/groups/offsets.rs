//! OffsetCommit, OffsetFetch and OffsetDelete.

use std::collections::BTreeMap;

use corduroy_group::classic::MemberIdentity;
use corduroy_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName, offset_commit_response as committed,
    offset_delete_response as deleted, offset_fetch_response as fetched,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use futures::future::join_all;

use crate::group::{CommitRequest, CommittedOffset, FetchOffsetsRequest, GroupCall, OffsetCommit};
use crate::kafka::context::KafkaContext;

use super::coordinator::ask;

/// First version of OffsetFetch for several groups (KIP-709).
const GROUPS_SINCE: i16 = 8;
/// First version of OffsetFetch with an error for the whole group.
const GROUP_ERROR_SINCE: i16 = 2;
/// First version of OffsetFetch that names the member (KIP-848).
const MEMBER_SINCE: i16 = 9;
/// Last version of OffsetCommit with a retention of its own.
const RETENTION_UNTIL: i16 = 4;
/// "No offset" on the wire.
const OFFSET_NONE: i64 = -1;

fn place(topic: &TopicName, partition: i32) -> TopicPartition {
    TopicPartition {
        topic: topic.to_string(),
        partition: PartitionIndex::new(partition),
    }
}

fn exists(ctx: &KafkaContext, topic: &str, partition: i32) -> bool {
    let route = ctx.shard.route(topic);
    route.is_some_and(|route| route.group(partition).is_some())
}

/// OffsetCommit (versions 2 to 9).
pub async fn offset_commit(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let offsets = request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| OffsetCommit {
            partition: place(&topic.name, partition.partition_index),
            offset: Offset::new(partition.committed_offset),
            leader_epoch: LeaderEpoch::new(partition.committed_leader_epoch),
            metadata: partition
                .committed_metadata
                .as_ref()
                .map(|text| text.to_string())
                .unwrap_or_default(),
            refused: (!exists(ctx, &topic.name, partition.partition_index))
                .then_some(ErrorCode::UnknownTopicOrPartition),
        })
    });
    let retention_ms = (header.api_version <= RETENTION_UNTIL && request.retention_time_ms >= 0)
        .then_some(request.retention_time_ms);
    let commit = CommitRequest {
        identity: MemberIdentity {
            member_id: request.member_id.to_string(),
            instance_id: request.group_instance_id.as_ref().map(|id| id.to_string()),
            generation: request.generation_id_or_member_epoch,
        },
        api_version: header.api_version,
        retention_ms,
        offsets: offsets.collect(),
    };
    let count = commit.offsets.len();
    let group = request.group_id.to_string();
    let answer = ask(ctx, &request.group_id, |reply| GroupCall::Commit {
        group,
        request: commit,
        reply,
    })
    .await;
    let codes = answer.unwrap_or_else(|code| vec![code; count]);
    if let Some(code) = codes.iter().find(|code| **code != ErrorCode::None) {
        ctx.shard.counters().failed(header.api_key, code.name());
    }
    let mut codes = codes.into_iter();
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let code = codes.next().unwrap_or(ErrorCode::UnknownServerError);
            committed::OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code.code())
        });
        committed::OffsetCommitResponseTopic::default()
            .with_partitions(partitions.collect())
            .with_name(topic.name)
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// One group of an OffsetFetch, in either layout.
struct Asked {
    group: String,
    member: Option<(Option<String>, i32)>,
    /// Topics with their partitions; `None`: all.
    topics: Option<Vec<(TopicName, Vec<i32>)>>,
}

type Fetched = Result<Vec<CommittedOffset>, ErrorCode>;

/// OffsetFetch (versions 1 to 9).
pub async fn offset_fetch(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if header.api_version < GROUPS_SINCE {
        let asked = Asked {
            group: request.group_id.to_string(),
            member: None,
            topics: request.topics.map(|topics| {
                let topics = topics.into_iter();
                topics.map(|t| (t.name, t.partition_indexes)).collect()
            }),
        };
        let answer = fetch_one(ctx, header, &asked).await;
        return old_answer(header, asked, answer);
    }
    let asked: Vec<Asked> = request
        .groups
        .into_iter()
        .map(|group| Asked {
            group: group.group_id.to_string(),
            member: (header.api_version >= MEMBER_SINCE)
                .then(|| (group.member_id.map(|id| id.to_string()), group.member_epoch)),
            topics: group.topics.map(|topics| {
                let topics = topics.into_iter();
                topics.map(|t| (t.name, t.partition_indexes)).collect()
            }),
        })
        .collect();
    let answers = join_all(asked.iter().map(|asked| fetch_one(ctx, header, asked))).await;
    let groups = asked.into_iter().zip(answers).map(|(asked, answer)| {
        let row = fetched::OffsetFetchResponseGroup::default()
            .with_group_id(StrBytes::from_string(asked.group).into());
        match answer {
            Err(code) => row.with_error_code(code.code()),
            Ok(offsets) => {
                let topics = by_topic(offsets).into_iter().map(|(name, offsets)| {
                    let partitions = offsets.into_iter().map(|committed| {
                        let (offset, epoch, metadata) = wire(&committed);
                        fetched::OffsetFetchResponsePartitions::default()
                            .with_partition_index(committed.partition.partition.get())
                            .with_committed_offset(offset)
                            .with_committed_leader_epoch(epoch)
                            .with_metadata(Some(metadata))
                    });
                    fetched::OffsetFetchResponseTopics::default()
                        .with_name(name)
                        .with_partitions(partitions.collect())
                });
                row.with_topics(topics.collect())
            }
        }
    });
    OffsetFetchResponse::default().with_groups(groups.collect())
}

async fn fetch_one(ctx: &KafkaContext, header: &RequestHeader, asked: &Asked) -> Fetched {
    let partitions = asked.topics.as_ref().map(|topics| {
        let topics = topics.iter();
        topics
            .flat_map(|(topic, partitions)| partitions.iter().map(|p| place(topic, *p)))
            .collect()
    });
    let request = FetchOffsetsRequest {
        member: asked.member.clone(),
        partitions,
    };
    let group = asked.group.clone();
    let answer = ask(ctx, &asked.group, |reply| GroupCall::FetchOffsets {
        group,
        request,
        reply,
    })
    .await
    .flatten();
    if let Err(code) = &answer {
        ctx.shard.counters().failed(header.api_key, code.name());
    }
    answer
}

/// Up to version 7. Version 1 has no place for the group's error, so each partition carries it.
fn old_answer(header: &RequestHeader, asked: Asked, answer: Fetched) -> OffsetFetchResponse {
    let (offsets, code) = match answer {
        Ok(offsets) => (offsets, ErrorCode::None),
        Err(code) => {
            let topics = asked.topics.into_iter().flatten();
            let partitions = topics.flat_map(|(topic, partitions)| {
                partitions.into_iter().map(move |p| CommittedOffset {
                    partition: place(&topic, p),
                    value: None,
                })
            });
            (partitions.collect(), code)
        }
    };
    let topics = by_topic(offsets).into_iter().map(|(name, offsets)| {
        let partitions = offsets.into_iter().map(|committed| {
            let (offset, epoch, metadata) = wire(&committed);
            fetched::OffsetFetchResponsePartition::default()
                .with_partition_index(committed.partition.partition.get())
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_metadata(Some(metadata))
                .with_error_code(code.code())
        });
        fetched::OffsetFetchResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    let response = OffsetFetchResponse::default().with_topics(topics.collect());
    match header.api_version >= GROUP_ERROR_SINCE {
        true => response.with_error_code(code.code()),
        false => response,
    }
}

/// Offset, leader epoch and metadata of a partition, as on the wire.
fn wire(committed: &CommittedOffset) -> (i64, i32, StrBytes) {
    match &committed.value {
        Some(value) => (
            value.offset.get(),
            value.leader_epoch.get(),
            StrBytes::from_string(value.metadata.clone()),
        ),
        None => (OFFSET_NONE, LeaderEpoch::NONE.get(), StrBytes::default()),
    }
}

fn by_topic(offsets: Vec<CommittedOffset>) -> Vec<(TopicName, Vec<CommittedOffset>)> {
    let mut order = Vec::new();
    let mut topics: BTreeMap<String, Vec<CommittedOffset>> = BTreeMap::new();
    for committed in offsets {
        let topic = committed.partition.topic.clone();
        let rows = topics.entry(topic.clone()).or_default();
        if rows.is_empty() {
            order.push(topic);
        }
        rows.push(committed);
    }
    order
        .into_iter()
        .map(|topic| {
            let rows = topics.remove(&topic).unwrap_or_default();
            (TopicName(StrBytes::from_string(topic)), rows)
        })
        .collect()
}

/// OffsetDelete (version 0).
pub async fn offset_delete(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let partitions: Vec<TopicPartition> = request
        .topics
        .iter()
        .flat_map(|topic| {
            let partitions = topic.partitions.iter();
            partitions.map(|partition| place(&topic.name, partition.partition_index))
        })
        .collect();
    let group = request.group_id.to_string();
    let answer = ask(ctx, &request.group_id, |reply| GroupCall::DeleteOffsets {
        group,
        partitions,
        reply,
    })
    .await
    .flatten();
    let codes = match answer {
        Ok(codes) => codes,
        Err(code) => {
            ctx.shard.counters().failed(header.api_key, code.name());
            return OffsetDeleteResponse::default().with_error_code(code.code());
        }
    };
    let mut codes = codes.into_iter();
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let code = codes.next().unwrap_or(ErrorCode::UnknownServerError);
            let known = exists(ctx, &topic.name, partition.partition_index);
            let code = match (code, known) {
                (ErrorCode::None, false) => ErrorCode::UnknownTopicOrPartition,
                (code, _) => code,
            };
            deleted::OffsetDeleteResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code.code())
        });
        deleted::OffsetDeleteResponseTopic::default()
            .with_partitions(partitions.collect())
            .with_name(topic.name.clone())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}
