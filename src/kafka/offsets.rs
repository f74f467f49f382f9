//! ListOffsets and OffsetForLeaderEpoch.

use std::collections::BTreeMap;

use corduroy_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse},
    offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult},
};
use corduroy_protocol::{ErrorCode, RequestHeader};
use corduroy_record::{GroupId, LeaderEpoch};
use futures::future::join_all;
use tokio::sync::oneshot;

use crate::partition::{EpochEnd, FoundOffset, Isolation, OffsetTarget, PartitionError};
use crate::shard::{EpochQuestion, OffsetQuestion, ShardMessage};

use super::context::KafkaContext;
use super::topics::named_twice;

/// First version of ListOffsets whose answer names the leader's epoch.
const LEADER_EPOCH_SINCE: i16 = 4;

/// First version of ListOffsets whose clients know OFFSET_NOT_AVAILABLE (KIP-207).
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 5;

/// One question per partition of a request, sent to the shards that own them; answers in order.
async fn ask<Q, A>(
    ctx: &KafkaContext,
    questions: Vec<Result<(GroupId, Q), PartitionError>>,
    send: impl Fn(Vec<Q>, oneshot::Sender<Vec<Result<A, PartitionError>>>) -> ShardMessage,
) -> Vec<Result<A, PartitionError>> {
    let mut jobs: BTreeMap<u16, (Vec<usize>, Vec<Q>)> = BTreeMap::new();
    let mut answers: Vec<Option<Result<A, PartitionError>>> = Vec::new();
    for (place, question) in questions.into_iter().enumerate() {
        match question {
            Err(error) => answers.push(Some(Err(error))),
            Ok((group, question)) => {
                let job = jobs.entry(ctx.shard.owner(group)).or_default();
                job.0.push(place);
                job.1.push(question);
                answers.push(None);
            }
        }
    }
    let asked = jobs.into_iter().map(|(owner, (places, questions))| {
        let (reply, answer) = oneshot::channel();
        let message = send(questions, reply);
        let handle = ctx.shard.handles().get(usize::from(owner)).cloned();
        async move {
            let sent = match handle {
                Some(handle) => handle.send(message).await.is_ok(),
                None => false,
            };
            (
                places,
                if sent {
                    answer.await.unwrap_or_default()
                } else {
                    Vec::new()
                },
            )
        }
    });
    for (places, results) in join_all(asked).await {
        for (place, result) in places.into_iter().zip(results) {
            if let Some(slot) = answers.get_mut(place) {
                *slot = Some(result);
            }
        }
    }
    answers
        .into_iter()
        .map(|answer| {
            answer.unwrap_or_else(|| Err(PartitionError::code(ErrorCode::NotLeaderOrFollower)))
        })
        .collect()
}

fn group_of(ctx: &KafkaContext, topic: &str, partition: i32) -> Result<GroupId, PartitionError> {
    ctx.shard
        .route(topic)
        .and_then(|route| route.group(partition))
        .ok_or_else(|| PartitionError::code(ErrorCode::UnknownTopicOrPartition))
}

/// Positions by end or by time.
pub async fn list_offsets(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let isolation = match request.isolation_level {
        0 => Isolation::ReadUncommitted,
        _ => Isolation::ReadCommitted,
    };
    let mut questions = Vec::new();
    let places = request.topics.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter();
        partitions.map(|partition| (topic.name.clone(), partition.partition_index))
    });
    let twice = named_twice(places);
    for topic in &request.topics {
        for partition in &topic.partitions {
            let place = (topic.name.clone(), partition.partition_index);
            let question = if !twice.contains(&place) {
                group_of(ctx, &topic.name, partition.partition_index).and_then(|group| {
                    let target = target(header.api_version, partition.timestamp)?;
                    let epoch = LeaderEpoch::new(partition.current_leader_epoch);
                    Ok((
                        group,
                        OffsetQuestion {
                            group,
                            target,
                            epoch,
                            isolation,
                        },
                    ))
                })
            } else {
                Err(PartitionError::new(
                    ErrorCode::InvalidRequest,
                    "a partition named twice",
                ))
            };
            questions.push(question);
        }
    }
    let mut answers = ask(ctx, questions, ShardMessage::Offsets).await.into_iter();
    let topics = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions = topic
                .partitions
                .iter()
                .map(|p| found(ctx, header, p.partition_index, answers.next()))
                .collect();
            ListOffsetsTopicResponse::default()
                .with_name(topic.name)
                .with_partitions(partitions)
        })
        .collect();
    ListOffsetsResponse::default().with_topics(topics)
}

/// The special timestamps by the version that brought them (KIP-734, KIP-405, KIP-1005).
fn target(version: i16, timestamp: i64) -> Result<OffsetTarget, PartitionError> {
    match timestamp {
        -1 => Ok(OffsetTarget::Latest),
        -2 => Ok(OffsetTarget::Earliest),
        -3 if version >= 7 => Ok(OffsetTarget::MaxTimestamp),
        -4 if version >= 8 => Ok(OffsetTarget::Earliest),
        -5 if version >= 9 => Ok(OffsetTarget::LatestTiered),
        0.. => Ok(OffsetTarget::Timestamp(timestamp)),
        other => Err(PartitionError::new(
            ErrorCode::UnsupportedVersion,
            format!("timestamp {other} is not served"),
        )),
    }
}

fn found(
    ctx: &KafkaContext,
    header: &RequestHeader,
    index: i32,
    answer: Option<Result<FoundOffset, PartitionError>>,
) -> ListOffsetsPartitionResponse {
    let response = ListOffsetsPartitionResponse::default().with_partition_index(index);
    match answer {
        Some(Ok(found)) => {
            let response = response
                .with_offset(found.offset.get())
                .with_timestamp(found.timestamp);
            if header.api_version >= LEADER_EPOCH_SINCE {
                response.with_leader_epoch(found.epoch.get())
            } else {
                response
            }
        }
        Some(Err(error)) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            response
                .with_error_code(code_for(header.api_version, error.code).code())
                .with_offset(-1)
                .with_timestamp(-1)
        }
        None => response
            .with_error_code(ErrorCode::UnknownServerError.code())
            .with_offset(-1)
            .with_timestamp(-1),
    }
}

/// An error in the words of a version, as Kafka puts it.
fn code_for(version: i16, code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::OffsetNotAvailable if version < OFFSET_NOT_AVAILABLE_SINCE => {
            ErrorCode::LeaderNotAvailable
        }
        code => code,
    }
}

/// Ends of leader epochs (KIP-101, KIP-320).
pub async fn offset_for_leader_epoch(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut questions = Vec::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            questions.push(
                group_of(ctx, &topic.topic, partition.partition).map(|group| {
                    let question = EpochQuestion {
                        group,
                        asked: LeaderEpoch::new(partition.leader_epoch),
                        current: LeaderEpoch::new(partition.current_leader_epoch),
                    };
                    (group, question)
                }),
            );
        }
    }
    let mut answers = ask(ctx, questions, ShardMessage::Epochs).await.into_iter();
    let topics = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions = topic
                .partitions
                .iter()
                .map(|p| epoch_end(ctx, header, p.partition, answers.next()))
                .collect();
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic)
                .with_partitions(partitions)
        })
        .collect();
    OffsetForLeaderEpochResponse::default().with_topics(topics)
}

fn epoch_end(
    ctx: &KafkaContext,
    header: &RequestHeader,
    index: i32,
    answer: Option<Result<EpochEnd, PartitionError>>,
) -> EpochEndOffset {
    let response = EpochEndOffset::default().with_partition(index);
    match answer {
        Some(Ok(end)) => response
            .with_leader_epoch(end.epoch.get())
            .with_end_offset(end.offset.get()),
        Some(Err(error)) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            response
                .with_error_code(error.code.code())
                .with_leader_epoch(-1)
                .with_end_offset(-1)
        }
        None => response
            .with_error_code(ErrorCode::UnknownServerError.code())
            .with_leader_epoch(-1)
            .with_end_offset(-1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_clients_hear_of_no_error_that_they_do_not_know() {
        let cases = [
            (
                1,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::LeaderNotAvailable,
            ),
            (
                4,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::LeaderNotAvailable,
            ),
            (
                5,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::OffsetNotAvailable,
            ),
            (
                9,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::OffsetNotAvailable,
            ),
            (
                1,
                ErrorCode::NotLeaderOrFollower,
                ErrorCode::NotLeaderOrFollower,
            ),
        ];
        for (version, code, want) in cases {
            assert_eq!(code_for(version, code), want, "version {version}");
        }
    }
}
