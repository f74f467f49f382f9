//! Fetch: split by owner shard, wait for enough, answer with shared batches.

use std::collections::BTreeMap;
use std::time::Duration;

use corduroy_protocol::messages::FetchRequest;
use corduroy_protocol::{
    ErrorCode, FetchPartitionData, FetchResponseData, FetchTopicData, RequestHeader,
    encode_fetch_response,
};
use corduroy_record::{GroupId, LeaderEpoch, Offset};
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::trace;

use crate::partition::{FetchSpec, Fetched, Isolation, PartitionError};
use crate::shard::{AnswerPermit, FetchAnswer, FetchJob, ShardMessage};

use super::connection::{Reply, ReplyFuture};
use super::context::KafkaContext;
use crate::shard::Counters;
use crate::walk::WALK;

/// `fetch.max.bytes` of the node: an answer holds no more, but for its first batch.
pub const FETCH_BYTES_MAX: usize = 55 * 1024 * 1024;
/// First version whose clients know OFFSET_NOT_AVAILABLE.
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 11;
/// A client's wait, at most.
const WAIT_MAX: Duration = Duration::from_secs(600);

enum Place {
    Refused(PartitionError),
    Job(u16, usize),
}

struct Wanted {
    name: corduroy_protocol::StrBytes,
    partitions: Vec<(i32, Place)>,
}

/// Serves a fetch request. Sessions (KIP-227) are declined: session id 0 and full answers, which
/// every client copes with.
pub fn start(ctx: KafkaContext, header: RequestHeader, request: FetchRequest) -> ReplyFuture {
    Box::pin(async move {
        if request.session_id != 0 && request.session_epoch > 0 {
            // We never gave this session out.
            let data = FetchResponseData {
                throttle_ms: 0,
                error: ErrorCode::FetchSessionIdNotFound,
                session_id: 0,
                topics: Vec::new(),
            };
            return Reply::Frame(encode_fetch_response(&header, &data));
        }
        let (data, memory) = serve(&ctx, &header, request).await;
        let pieces = encode_fetch_response(&header, &data);
        trace!(target: WALK, room = 6, pieces = pieces.len(), "a fetch response is laid out");
        Reply::Fetched { pieces, memory }
    })
}

async fn serve(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: FetchRequest,
) -> (FetchResponseData, Vec<AnswerPermit>) {
    let isolation = match request.isolation_level {
        0 => Isolation::ReadUncommitted,
        _ => Isolation::ReadCommitted,
    };
    let wait = u64::try_from(request.max_wait_ms).map_or(Duration::ZERO, Duration::from_millis);
    let deadline = ctx.env.now() + wait.min(WAIT_MAX);
    let bytes_max = usize::try_from(request.max_bytes)
        .unwrap_or(0)
        .min(FETCH_BYTES_MAX);
    let bytes_min = usize::try_from(request.min_bytes)
        .unwrap_or(0)
        .min(bytes_max);
    let mut jobs: BTreeMap<u16, Vec<(GroupId, FetchSpec)>> = BTreeMap::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut refused = false;
    for topic in request.topics {
        let route = ctx.shard.route(&topic.topic);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let place = match route.and_then(|route| route.group(partition.partition)) {
                None => {
                    refused = true;
                    Place::Refused(PartitionError::code(ErrorCode::UnknownTopicOrPartition))
                }
                Some(group) => {
                    let spec = FetchSpec {
                        from: Offset::new(partition.fetch_offset),
                        leader_epoch: LeaderEpoch::new(partition.current_leader_epoch),
                        last_fetched_epoch: LeaderEpoch::new(partition.last_fetched_epoch),
                        bytes_max: usize::try_from(partition.partition_max_bytes).unwrap_or(0),
                        isolation,
                    };
                    let owner = ctx.shard.owner(group);
                    let (topic, partition) = (topic.topic.as_str(), partition.partition);
                    trace!(target: WALK, room = 3, topic, partition, %group, owner, "a fetch is handed out");
                    let items = jobs.entry(owner).or_default();
                    items.push((group, spec));
                    Place::Job(owner, items.len() - 1)
                }
            };
            partitions.push((partition.partition, place));
        }
        topics.push(Wanted {
            name: topic.topic.0,
            partitions,
        });
    }
    let deadline = if refused { ctx.env.now() } else { deadline };
    let (mut answers, memory) = collect(ctx, jobs, bytes_min, bytes_max, deadline).await;
    let topics = topics
        .into_iter()
        .map(|topic| FetchTopicData {
            name: topic.name,
            partitions: topic
                .partitions
                .into_iter()
                .map(|(index, place)| {
                    let result = match place {
                        Place::Refused(error) => Err(error),
                        Place::Job(owner, item) => take(&mut answers, owner, item),
                    };
                    partition_data(ctx, header, index, isolation, result)
                })
                .collect(),
        })
        .collect();
    let data = FetchResponseData {
        throttle_ms: 0,
        error: ErrorCode::None,
        session_id: 0,
        topics,
    };
    (data, memory)
}

type Answers = BTreeMap<u16, Vec<Option<Result<Fetched, PartitionError>>>>;

fn take(answers: &mut Answers, owner: u16, item: usize) -> Result<Fetched, PartitionError> {
    answers
        .get_mut(&owner)
        .and_then(|answer| answer.get_mut(item))
        .and_then(Option::take)
        .unwrap_or_else(|| Err(PartitionError::code(ErrorCode::NotLeaderOrFollower)))
}

/// Asks every shard. As soon as one has something, the others are asked to hurry.
async fn collect(
    ctx: &KafkaContext,
    jobs: BTreeMap<u16, Vec<(GroupId, FetchSpec)>>,
    bytes_min: usize,
    bytes_max: usize,
    deadline: Instant,
) -> (Answers, Vec<AnswerPermit>) {
    let alone = jobs.len() <= 1;
    // Each shard gets its share, so that all of them together stay within the client's limit. A
    // share of nothing would be answered at once and for ever with nothing (KIP-74: a batch that
    // exceeds the limit is sent all the same).
    let bytes_max = (bytes_max / jobs.len().max(1)).max(1);
    let mut answers = Answers::new();
    let mut memory = Vec::with_capacity(jobs.len());
    let mut hurries: BTreeMap<u16, oneshot::Sender<()>> = BTreeMap::new();
    type Pending = LocalBoxFuture<'static, (u16, FetchAnswer)>;
    let mut pending: FuturesUnordered<Pending> = FuturesUnordered::new();
    if jobs.is_empty() {
        tokio::time::sleep_until(deadline).await;
        return (answers, memory);
    }
    for (owner, items) in jobs {
        let count = items.len();
        let (hurry, hurried) = oneshot::channel();
        hurries.insert(owner, hurry);
        // Several shards cannot see one another's bytes: each wakes at the first byte.
        let bytes_min = if alone { bytes_min } else { bytes_min.min(1) };
        let job = FetchJob {
            items,
            bytes_min,
            bytes_max,
            deadline,
        };
        if owner == ctx.shard.index() {
            let shard = ctx.shard.clone();
            pending.push(Box::pin(
                async move { (owner, shard.fetch(job, hurried).await) },
            ));
            continue;
        }
        let (reply, answer) = oneshot::channel();
        let handle = ctx.shard.handles().get(usize::from(owner)).cloned();
        pending.push(Box::pin(async move {
            let sent = match handle {
                Some(handle) => handle
                    .send(ShardMessage::Fetch(job, hurried, reply))
                    .await
                    .is_ok(),
                None => false,
            };
            let answer = if sent { answer.await.ok() } else { None };
            let gone = || PartitionError::code(ErrorCode::NotLeaderOrFollower);
            (
                owner,
                answer.unwrap_or_else(|| FetchAnswer {
                    items: (0..count).map(|_| Err(gone())).collect(),
                    memory: None,
                }),
            )
        }));
    }
    while let Some((owner, answer)) = pending.next().await {
        hurries.remove(&owner);
        answers.insert(owner, answer.items.into_iter().map(Some).collect());
        memory.extend(answer.memory);
        for (_, hurry) in std::mem::take(&mut hurries) {
            // A shard that has just answered needs no hurry.
            let _answered = hurry.send(());
        }
    }
    (answers, memory)
}

fn partition_data(
    ctx: &KafkaContext,
    header: &RequestHeader,
    index: i32,
    isolation: Isolation,
    result: Result<Fetched, PartitionError>,
) -> FetchPartitionData {
    let mut data = FetchPartitionData {
        partition: index,
        error: ErrorCode::None,
        high_watermark: -1,
        last_stable_offset: -1,
        log_start_offset: -1,
        diverging_epoch: None,
        current_leader: None,
        aborted: None,
        preferred_read_replica: -1,
        batches: Vec::new(),
    };
    match result {
        Ok(fetched) => {
            data.high_watermark = fetched.watermarks.high_watermark.get();
            data.last_stable_offset = fetched.watermarks.last_stable.get();
            data.log_start_offset = fetched.watermarks.log_start.get();
            data.diverging_epoch = fetched
                .diverging
                .map(|(epoch, offset)| (epoch.get(), offset.get()));
            if isolation == Isolation::ReadCommitted {
                data.aborted = Some(Vec::new());
            }
            let counters = ctx.shard.counters();
            Counters::add(&counters.fetched_bytes, fetched.bytes as u64);
            let records: i64 = fetched
                .batches
                .iter()
                .map(|b| i64::from(b.header().record_count))
                .sum();
            Counters::add(
                &counters.fetched_records,
                u64::try_from(records).unwrap_or(0),
            );
            data.batches = fetched.batches;
        }
        Err(error) => {
            ctx.shard
                .counters()
                .failed(header.api_key, error.code.name());
            data.error = code_for(header.api_version, error.code);
            data.log_start_offset = error.log_start.map_or(-1, Offset::get);
            data.current_leader = error.leader.map(|(node, epoch)| (node.get(), epoch.get()));
        }
    }
    data
}

/// An error in the words of a version.
fn code_for(version: i16, code: ErrorCode) -> ErrorCode {
    match code {
        // Older clients do not know it (KIP-392); they look for the leader and come back.
        ErrorCode::OffsetNotAvailable if version < OFFSET_NOT_AVAILABLE_SINCE => {
            ErrorCode::NotLeaderOrFollower
        }
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_clients_hear_of_no_error_that_they_do_not_know() {
        let cases = [
            (
                4,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::NotLeaderOrFollower,
            ),
            (
                10,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::NotLeaderOrFollower,
            ),
            (
                11,
                ErrorCode::OffsetNotAvailable,
                ErrorCode::OffsetNotAvailable,
            ),
            (4, ErrorCode::OffsetOutOfRange, ErrorCode::OffsetOutOfRange),
        ];
        for (version, code, want) in cases {
            assert_eq!(code_for(version, code), want, "version {version}");
        }
    }
}
