//! OffsetCommit, OffsetFetch and OffsetDelete.

use std::collections::BTreeMap;

use corduroy_group::classic::MemberIdentity;
use corduroy_group::records::OffsetValue;
use corduroy_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
    offset_commit_request::OffsetCommitRequestPartition, offset_commit_response as committed,
    offset_delete_response as deleted, offset_fetch_request::OffsetFetchRequestTopic,
    offset_fetch_response as fetched,
};
use corduroy_protocol::{
    ErrorCode, OffsetCommitByIdRequest, OffsetFetchByIdRequest, RequestHeader, StrBytes,
};
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use futures::future::join_all;
use uuid::Uuid;

use crate::controller::MetadataImage;
use crate::group::{
    AskedOffset, CommitRequest, CommittedOffset, FetchOffsetsRequest, GroupCall, OffsetCommit,
};
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

fn place(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition {
        topic: topic.to_owned(),
        partition: PartitionIndex::new(partition),
    }
}

fn exists(ctx: &KafkaContext, topic: &str, partition: i32) -> bool {
    let route = ctx.shard.route(topic);
    route.is_some_and(|route| route.group(partition).is_some())
}

/// A topic as a request names it: by name, from version 10 of both APIs on by id.
struct TopicRef {
    /// `None`: no topic has this id.
    name: Option<String>,
    /// All zero where topics go by name.
    id: Uuid,
}

impl TopicRef {
    fn named(name: &str) -> TopicRef {
        TopicRef {
            name: Some(name.to_owned()),
            id: Uuid::nil(),
        }
    }

    fn by_id(image: &MetadataImage, id: TopicId) -> TopicRef {
        TopicRef {
            name: image.topic_by_id(id).map(|topic| topic.name.clone()),
            id: id.uuid(),
        }
    }

    /// The id, where the topic goes by it.
    fn asked_id(&self) -> Option<TopicId> {
        (!self.id.is_nil()).then(|| TopicId::new(self.id))
    }

    fn wire_name(&self) -> TopicName {
        TopicName(StrBytes::from_string(self.name.clone().unwrap_or_default()))
    }
}

/// OffsetCommit, in either layout.
struct Commit {
    group: GroupId,
    identity: MemberIdentity,
    retention_ms: Option<i64>,
    topics: Vec<(TopicRef, Vec<OffsetCommitRequestPartition>)>,
}

/// OffsetCommit (versions 2 to 9).
pub async fn offset_commit(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let topics = request.topics.into_iter();
    let commit = Commit {
        identity: MemberIdentity {
            member_id: request.member_id.to_string(),
            instance_id: request.group_instance_id.map(|id| id.to_string()),
            generation: request.generation_id_or_member_epoch,
        },
        retention_ms: (header.api_version <= RETENTION_UNTIL && request.retention_time_ms >= 0)
            .then_some(request.retention_time_ms),
        topics: topics
            .map(|topic| (TopicRef::named(&topic.name), topic.partitions))
            .collect(),
        group: request.group_id,
    };
    commit_offsets(ctx, header, commit).await
}

/// OffsetCommit (version 10), whose topics go by id.
pub async fn offset_commit_by_id(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetCommitByIdRequest,
) -> OffsetCommitResponse {
    let image = ctx.metadata.image();
    let topics = request.topics.into_iter();
    let commit = Commit {
        identity: MemberIdentity {
            member_id: request.member_id.to_string(),
            instance_id: request.group_instance_id.map(|id| id.to_string()),
            generation: request.generation_id_or_member_epoch,
        },
        retention_ms: None,
        topics: topics
            .map(|topic| (TopicRef::by_id(&image, topic.topic_id), topic.partitions))
            .collect(),
        group: request.group_id,
    };
    commit_offsets(ctx, header, commit).await
}

async fn commit_offsets(
    ctx: &KafkaContext,
    header: &RequestHeader,
    commit: Commit,
) -> OffsetCommitResponse {
    let offsets: Vec<OffsetCommit> = commit
        .topics
        .iter()
        .flat_map(|(topic, partitions)| {
            partitions.iter().map(|partition| {
                let index = partition.partition_index;
                OffsetCommit {
                    partition: place(topic.name.as_deref().unwrap_or_default(), index),
                    topic_id: topic.asked_id(),
                    offset: Offset::new(partition.committed_offset),
                    leader_epoch: LeaderEpoch::new(partition.committed_leader_epoch),
                    metadata: partition
                        .committed_metadata
                        .as_ref()
                        .map(|text| text.to_string())
                        .unwrap_or_default(),
                    refused: match &topic.name {
                        None => Some(ErrorCode::UnknownTopicId),
                        Some(name) if !exists(ctx, name, index) => {
                            Some(ErrorCode::UnknownTopicOrPartition)
                        }
                        Some(_) => None,
                    },
                }
            })
        })
        .collect();
    // What is wrong with a partition itself is said of it, whatever the coordinator says of the
    // group.
    let refused: Vec<Option<ErrorCode>> = offsets.iter().map(|offset| offset.refused).collect();
    let group = commit.group.to_string();
    let request = CommitRequest {
        identity: commit.identity,
        api_version: header.api_version,
        retention_ms: commit.retention_ms,
        offsets,
    };
    let answer = ask(ctx, &commit.group, |reply| GroupCall::Commit {
        group,
        request,
        reply,
    })
    .await;
    let codes = answer.unwrap_or_else(|code| vec![code; refused.len()]);
    let codes: Vec<ErrorCode> = codes
        .into_iter()
        .zip(refused)
        .map(|(code, refused)| refused.unwrap_or(code))
        .collect();
    if let Some(code) = codes.iter().find(|code| **code != ErrorCode::None) {
        ctx.shard.counters().failed(header.api_key, code.name());
    }
    let mut codes = codes.into_iter();
    let topics = commit.topics.into_iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|partition| {
            let code = codes.next().unwrap_or(ErrorCode::UnknownServerError);
            committed::OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code.code())
        });
        committed::OffsetCommitResponseTopic::default()
            .with_partitions(partitions.collect())
            .with_name(topic.wire_name())
            .with_topic_id(topic.id)
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Partitions that one request may name: four bytes on the wire become a topic's name each.
const PARTITIONS_ASKED_MAX: usize = 256 * 1024;

/// One group of an OffsetFetch, in any layout.
struct Asked {
    group: GroupId,
    member: Option<(Option<String>, i32)>,
    /// Topics with their partitions; `None`: all.
    topics: Option<Vec<(TopicRef, Vec<i32>)>>,
    by_id: bool,
}

/// A topic of an answer, each partition with its error.
type Rows = Vec<(TopicRef, Vec<(i32, ErrorCode, Option<OffsetValue>)>)>;

/// OffsetFetch (versions 1 to 9).
pub async fn offset_fetch(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if header.api_version < GROUPS_SINCE {
        let topics = request.topics.map(|topics| {
            let topics = topics.into_iter();
            topics
                .map(
                    |OffsetFetchRequestTopic {
                         name,
                         partition_indexes,
                         ..
                     }| { (TopicRef::named(&name), partition_indexes) },
                )
                .collect()
        });
        let asked = Asked {
            group: request.group_id,
            member: None,
            topics,
            by_id: false,
        };
        let answer = fetch_one(ctx, header, &asked).await;
        return old_answer(header, asked, answer);
    }
    let groups = request.groups.into_iter().map(|group| Asked {
        group: group.group_id,
        member: (header.api_version >= MEMBER_SINCE)
            .then(|| (group.member_id.map(|id| id.to_string()), group.member_epoch)),
        topics: group.topics.map(|topics| {
            let topics = topics.into_iter();
            topics
                .map(|topic| (TopicRef::named(&topic.name), topic.partition_indexes))
                .collect()
        }),
        by_id: false,
    });
    fetch_all(ctx, header, groups.collect()).await
}

/// OffsetFetch (version 10), whose topics go by id.
pub async fn offset_fetch_by_id(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetFetchByIdRequest,
) -> OffsetFetchResponse {
    let image = ctx.metadata.image();
    let groups = request.groups.into_iter().map(|group| Asked {
        group: group.group_id,
        member: Some((group.member_id.map(|id| id.to_string()), group.member_epoch)),
        topics: group.topics.map(|topics| {
            let topics = topics.into_iter();
            topics
                .map(|topic| {
                    let named = TopicRef::by_id(&image, topic.topic_id);
                    (named, topic.partition_indexes)
                })
                .collect()
        }),
        by_id: true,
    });
    fetch_all(ctx, header, groups.collect()).await
}

impl Asked {
    /// How many partitions it names.
    fn partitions(&self) -> usize {
        let topics = self.topics.iter().flatten();
        topics.map(|(_, partitions)| partitions.len()).sum()
    }
}

/// From version 8 on: several groups, an error for each.
async fn fetch_all(
    ctx: &KafkaContext,
    header: &RequestHeader,
    asked: Vec<Asked>,
) -> OffsetFetchResponse {
    let answers = match asked.iter().map(Asked::partitions).sum::<usize>() {
        0..=PARTITIONS_ASKED_MAX => {
            join_all(asked.iter().map(|asked| fetch_one(ctx, header, asked))).await
        }
        _ => vec![Err(ErrorCode::InvalidRequest); asked.len()],
    };
    let groups = asked.into_iter().zip(answers).map(|(asked, answer)| {
        let row = fetched::OffsetFetchResponseGroup::default().with_group_id(asked.group.clone());
        match answer {
            Err(code) => row.with_error_code(code.code()),
            Ok(offsets) => {
                let topics = rows(asked, offsets).into_iter().map(|(topic, rows)| {
                    let partitions = rows.into_iter().map(|(partition, code, committed)| {
                        let (offset, epoch, metadata) = wire(committed);
                        fetched::OffsetFetchResponsePartitions::default()
                            .with_partition_index(partition)
                            .with_committed_offset(offset)
                            .with_committed_leader_epoch(epoch)
                            .with_metadata(Some(metadata))
                            .with_error_code(code.code())
                    });
                    fetched::OffsetFetchResponseTopics::default()
                        .with_name(topic.wire_name())
                        .with_topic_id(topic.id)
                        .with_partitions(partitions.collect())
                });
                row.with_topics(topics.collect())
            }
        }
    });
    OffsetFetchResponse::default().with_groups(groups.collect())
}

/// The committed offsets of all partitions that are asked for and can be named, in order.
async fn fetch_one(
    ctx: &KafkaContext,
    header: &RequestHeader,
    asked: &Asked,
) -> Result<Vec<CommittedOffset>, ErrorCode> {
    if asked.partitions() > PARTITIONS_ASKED_MAX {
        return Err(ErrorCode::InvalidRequest);
    }
    let partitions = asked.topics.as_ref().map(|topics| {
        let known = topics
            .iter()
            .filter_map(|(topic, partitions)| Some((topic, topic.name.as_deref()?, partitions)));
        known
            .flat_map(|(topic, name, partitions)| {
                partitions.iter().map(move |partition| AskedOffset {
                    partition: place(name, *partition),
                    topic_id: topic.asked_id(),
                })
            })
            .collect()
    });
    let request = FetchOffsetsRequest {
        member: asked.member.clone(),
        partitions,
    };
    let group = asked.group.to_string();
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

/// An answer in the order of its question.
fn rows(asked: Asked, offsets: Vec<CommittedOffset>) -> Rows {
    let Some(topics) = asked.topics else {
        return all_rows(asked.by_id, offsets);
    };
    let mut offsets = offsets.into_iter();
    let topics = topics.into_iter().map(|(topic, partitions)| {
        let known = topic.name.is_some();
        let partitions = partitions.into_iter().map(|partition| {
            let committed = match known {
                true => offsets.next().map_or(Ok(None), |offset| offset.value),
                false => Err(ErrorCode::UnknownTopicId),
            };
            match committed {
                Ok(value) => (partition, ErrorCode::None, value),
                Err(code) => (partition, code, None),
            }
        });
        let partitions = partitions.collect();
        (topic, partitions)
    });
    topics.collect()
}

/// All offsets of a group by topic. One whose topic is gone cannot be named by id.
fn all_rows(by_id: bool, offsets: Vec<CommittedOffset>) -> Rows {
    let mut topics: BTreeMap<(String, Option<TopicId>), Vec<_>> = BTreeMap::new();
    for committed in offsets {
        let (TopicPartition { topic, partition }, id) = (committed.partition, committed.topic_id);
        let rows = topics.entry((topic, id.filter(|_| by_id))).or_default();
        let value = committed.value.ok().flatten();
        rows.push((partition.get(), ErrorCode::None, value));
    }
    let topics = topics.into_iter().filter_map(|((name, id), rows)| {
        let id = match by_id {
            true => id?.uuid(),
            false => Uuid::nil(),
        };
        let name = Some(name);
        Some((TopicRef { name, id }, rows))
    });
    topics.collect()
}

/// Up to version 7. Version 1 has no place for the group's error, so each partition carries it.
fn old_answer(
    header: &RequestHeader,
    asked: Asked,
    answer: Result<Vec<CommittedOffset>, ErrorCode>,
) -> OffsetFetchResponse {
    let response = OffsetFetchResponse::default();
    let (offsets, code) = match answer {
        Ok(offsets) => (offsets, ErrorCode::None),
        Err(code) if header.api_version >= GROUP_ERROR_SINCE => {
            return response.with_error_code(code.code());
        }
        Err(code) => (Vec::new(), code),
    };
    let topics = rows(asked, offsets).into_iter().map(|(topic, rows)| {
        let partitions = rows.into_iter().map(|(partition, _, committed)| {
            let (offset, epoch, metadata) = wire(committed);
            fetched::OffsetFetchResponsePartition::default()
                .with_partition_index(partition)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_metadata(Some(metadata))
                .with_error_code(code.code())
        });
        fetched::OffsetFetchResponseTopic::default()
            .with_name(topic.wire_name())
            .with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

/// Offset, leader epoch and metadata of a partition, as on the wire.
fn wire(committed: Option<OffsetValue>) -> (i64, i32, StrBytes) {
    match committed {
        Some(value) => (
            value.offset.get(),
            value.leader_epoch.get(),
            StrBytes::from_string(value.metadata),
        ),
        None => (OFFSET_NONE, LeaderEpoch::NONE.get(), StrBytes::default()),
    }
}

/// OffsetDelete (version 0). Only offsets of partitions that exist are the coordinator's to delete.
pub async fn offset_delete(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let failed = |code: ErrorCode| {
        ctx.shard.counters().failed(header.api_key, code.name());
        code.code()
    };
    if request.group_id.is_empty() {
        return OffsetDeleteResponse::default().with_error_code(failed(ErrorCode::InvalidGroupId));
    }
    let asked: Vec<(TopicName, Vec<(i32, bool)>)> = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                (index, exists(ctx, &topic.name, index))
            });
            let partitions = partitions.collect();
            (topic.name, partitions)
        })
        .collect();
    let known: Vec<TopicPartition> = asked
        .iter()
        .flat_map(|(topic, partitions)| {
            let known = partitions.iter().filter(|(_, exists)| *exists);
            known.map(|(partition, _)| place(topic, *partition))
        })
        .collect();
    let codes = match known.is_empty() {
        true => Ok(Vec::new()),
        false => {
            let group = request.group_id.to_string();
            ask(ctx, &request.group_id, |reply| GroupCall::DeleteOffsets {
                group,
                partitions: known,
                reply,
            })
            .await
            .flatten()
        }
    };
    let mut codes = match codes {
        Ok(codes) => codes.into_iter(),
        Err(code) => return OffsetDeleteResponse::default().with_error_code(failed(code)),
    };
    let topics = asked.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(partition, exists)| {
            let code = match exists {
                true => codes.next().unwrap_or(ErrorCode::UnknownServerError),
                false => ErrorCode::UnknownTopicOrPartition,
            };
            deleted::OffsetDeleteResponsePartition::default()
                .with_partition_index(partition)
                .with_error_code(code.code())
        });
        deleted::OffsetDeleteResponseTopic::default()
            .with_partitions(partitions.collect())
            .with_name(name)
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}
