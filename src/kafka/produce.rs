//! Produce, room 3 of the walk: check each batch once, split by owner shard, answer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use corduroy_protocol::messages::{
    BrokerId, ProduceRequest, ProduceResponse,
    produce_response::{
        BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse,
        TopicProduceResponse,
    },
};
use corduroy_protocol::{ErrorCode, RequestHeader, Response, StrBytes};
use corduroy_record::{
    Batch, BatchError, Compression, ControlRule, GroupId, InspectRules, Inspected, KeyRule,
    LeaderEpoch, NodeId, TimestampType, ValidateRules, ZstdRule, parse_single,
};
use futures::future::join_all;
use tokio::sync::oneshot;
use tracing::trace;

use crate::group::CONSUMER_OFFSETS;
use crate::partition::{Acks, PartitionError, Produced};
use crate::shard::{ProduceAnswer, ProduceItem, ProduceJob, ShardMessage};

use super::connection::{Reply, ReplyFuture};
use super::context::KafkaContext;
use super::dispatch::encoded;
use crate::shard::Counters;
use crate::shard::Route;
use crate::walk::WALK;

/// First version that may carry zstd (KIP-110).
const ZSTD_SINCE: i16 = 7;
/// First version whose errors name the new leader (KIP-951).
const LEADER_HINTS_SINCE: i16 = 10;
/// A client's timeout, at most; longer ones are cut.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// What the records of a compressed batch may become, whatever its size. They are not kept; the
/// limit is on the time that a small batch can cost.
const OUTPUT_BYTES_MAX_FLOOR: usize = 64 * 1024 * 1024;
/// The same as a multiple of a large batch's size, beyond what records compress to.
const OUTPUT_RATIO_MAX: usize = 32;

/// One partition's answer.
type Outcome = Result<Produced, Refusal>;

/// A refusal with the records that caused it (KIP-467).
struct Refusal {
    error: PartitionError,
    /// Their places in the batch.
    records: Vec<i32>,
    /// What is wrong with each of them.
    what: &'static str,
}

impl From<PartitionError> for Refusal {
    fn from(error: PartitionError) -> Self {
        Refusal {
            error,
            records: Vec::new(),
            what: "",
        }
    }
}

/// Where a partition's answer will come from.
enum Place {
    Refused(Refusal),
    /// The n-th item of the job of a shard.
    Job(u16, usize),
}

struct PartitionPlace {
    index: i32,
    place: Place,
}

type Answers = BTreeMap<u16, ProduceAnswer>;

/// Takes a produce request in. When this returns, every batch has its place in its partition's
/// order.
pub async fn start(
    ctx: KafkaContext,
    header: RequestHeader,
    request: ProduceRequest,
) -> ReplyFuture {
    let acks = match request.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Leader),
        -1 => Ok(Acks::All),
        other => Err(other),
    };
    let timeout = u64::try_from(request.timeout_ms).map_or(TIMEOUT_MAX, Duration::from_millis);
    let deadline = ctx.env.now() + timeout.min(TIMEOUT_MAX);
    let zstd = if header.api_version >= ZSTD_SINCE {
        ZstdRule::Allow
    } else {
        ZstdRule::Refuse
    };
    let transactional = request.transactional_id.is_some();
    let mut jobs: BTreeMap<u16, Vec<ProduceItem>> = BTreeMap::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let route = ctx.shard.route(&topic.name);
        let is_internal = topic.name.as_str() == CONSUMER_OFFSETS;
        let mut places = Vec::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data {
            let checked = match (&acks, transactional) {
                (Err(other), _) => Err(refusal(
                    ErrorCode::InvalidRequiredAcks,
                    format!("acks must be 0, 1 or -1, not {other}"),
                )),
                (_, true) => Err(refusal(
                    ErrorCode::TransactionalIdAuthorizationFailed,
                    "transactions are not served yet".to_owned(),
                )),
                (Ok(_), false) if is_internal => Err(refusal(
                    ErrorCode::InvalidTopicException,
                    format!("{CONSUMER_OFFSETS} is written by group coordinators alone"),
                )),
                (Ok(_), false) => check(route, partition.index, partition.records, zstd).await,
            };
            let place = match checked {
                Err(refusal) => Place::Refused(refusal),
                Ok((group, batch)) => {
                    let (topic, partition) = (topic.name.as_str(), partition.index);
                    let owner = ctx.shard.owner(group);
                    trace!(target: WALK, room = 3, topic, partition, %group, owner, "a batch is checked");
                    let items = jobs.entry(owner).or_default();
                    items.push(ProduceItem { group, batch });
                    Place::Job(owner, items.len() - 1)
                }
            };
            places.push(PartitionPlace {
                index: partition.index,
                place,
            });
        }
        topics.push((topic.name, places));
    }
    let acks = acks.unwrap_or(Acks::Leader);
    let counters = ctx.shard.counters().clone();
    for item in jobs.values().flatten() {
        Counters::add(&counters.produced_bytes, item.batch.size_bytes() as u64);
        let records = u64::try_from(item.batch.header().record_count).unwrap_or(0);
        Counters::add(&counters.produced_records, records);
    }
    let answers = hand_out(&ctx, jobs, acks, deadline).await;
    Box::pin(async move {
        let mut answers: Answers = join_all(answers).await.into_iter().collect();
        let mut outcomes = Vec::with_capacity(topics.len());
        let mut first_error = None;
        for (name, places) in topics {
            let partitions: Vec<(i32, Outcome)> = places
                .into_iter()
                .map(|place| (place.index, outcome(place.place, &mut answers)))
                .collect();
            for (_, outcome) in &partitions {
                if let Err(refusal) = outcome {
                    counters.failed(header.api_key, refusal.error.code.name());
                    first_error.get_or_insert(refusal.error.code);
                }
            }
            outcomes.push((name, partitions));
        }
        if acks == Acks::None && request.acks == 0 {
            // No reply to put an error into: closing makes the client look for the leader.
            return match first_error {
                None => Reply::Nothing,
                Some(error) => Reply::Close(format!("acks=0 produce failed: {}", error.name())),
            };
        }
        let mut hints = BTreeMap::new();
        let responses = outcomes
            .into_iter()
            .map(|(name, partitions)| {
                let partition_responses = partitions
                    .into_iter()
                    .map(|(index, outcome)| answer(&header, index, outcome, &mut hints))
                    .collect();
                TopicProduceResponse::default()
                    .with_name(name)
                    .with_partition_responses(partition_responses)
            })
            .collect();
        let mut response = ProduceResponse::default().with_responses(responses);
        if header.api_version >= LEADER_HINTS_SINCE {
            response.node_endpoints = endpoints(&ctx, hints.into_keys());
        }
        encoded(&header, &Response::Produce(response))
    })
}

type Job = futures::future::LocalBoxFuture<'static, (u16, ProduceAnswer)>;

async fn hand_out(
    ctx: &KafkaContext,
    jobs: BTreeMap<u16, Vec<ProduceItem>>,
    acks: Acks,
    deadline: tokio::time::Instant,
) -> Vec<Job> {
    let mut answers: Vec<Job> = Vec::with_capacity(jobs.len());
    for (owner, items) in jobs {
        let count = items.len();
        let job = ProduceJob {
            items,
            acks,
            deadline,
        };
        if owner == ctx.shard.index() {
            let ticket = ctx.shard.produce(job);
            answers.push(Box::pin(async move { (owner, ticket.await) }));
            continue;
        }
        let (reply, answer) = oneshot::channel();
        let sent = match ctx.shard.handles().get(usize::from(owner)) {
            Some(handle) => handle.send(ShardMessage::Produce(job, reply)).await.is_ok(),
            None => false,
        };
        answers.push(Box::pin(async move {
            let answer = if sent { answer.await.ok() } else { None };
            (
                owner,
                answer.unwrap_or_else(|| vec![Err(stopping()); count]),
            )
        }));
    }
    answers
}

fn stopping() -> PartitionError {
    PartitionError::new(ErrorCode::NotLeaderOrFollower, "the node is stopping")
}

fn outcome(place: Place, answers: &mut Answers) -> Outcome {
    match place {
        Place::Refused(refusal) => Err(refusal),
        Place::Job(owner, item) => answers
            .get_mut(&owner)
            .and_then(|answer| answer.get(item).cloned())
            .unwrap_or_else(|| Err(stopping()))
            .map_err(Refusal::from),
    }
}

fn refusal(code: ErrorCode, message: String) -> Refusal {
    PartitionError::new(code, message).into()
}

/// All that a batch must be, checked once, on the connection's shard. A long look inside makes
/// room for the shard's other work now and then.
async fn check(
    route: Option<Route>,
    partition: i32,
    records: Option<Bytes>,
    zstd: ZstdRule,
) -> Result<(GroupId, Batch), Refusal> {
    let (route, group) = route
        .and_then(|route| route.group(partition).map(|group| (route, group)))
        .ok_or_else(|| {
            refusal(
                ErrorCode::UnknownTopicOrPartition,
                "this topic or partition does not exist".to_owned(),
            )
        })?;
    let records = records.filter(|bytes| !bytes.is_empty()).ok_or_else(|| {
        refusal(
            ErrorCode::InvalidRecord,
            "the request holds no batch".to_owned(),
        )
    })?;
    let mut batch = parse_single(records).map_err(|error| batch_refusal(&error))?;
    let rules = ValidateRules {
        batch_bytes_max: route.max_message_bytes,
        control: ControlRule::Refuse,
        zstd,
    };
    batch
        .validate(&rules)
        .map_err(|error| batch_refusal(&error))?;
    if batch.header().attributes.timestamp_type() == TimestampType::LogAppendTime {
        // Consumers would see the batch's largest timestamp for every record. Whether the leader's
        // clock counts is the topic's business; Kafka refuses it too.
        return Err(refusal(
            ErrorCode::InvalidTimestamp,
            "only the leader may set the timestamp type LogAppendTime".to_owned(),
        ));
    }
    if batch.header().attributes.is_transactional() {
        return Err(refusal(
            ErrorCode::InvalidTxnState,
            "a transactional batch outside a transaction".to_owned(),
        ));
    }
    let inspected = inspect(&batch, route).await?;
    if !inspected.keyless.is_empty() {
        return Err(Refusal {
            error: PartitionError::new(
                ErrorCode::InvalidRecord,
                "a compacted topic takes no record without a key",
            ),
            records: inspected.keyless,
            what: "it has no key",
        });
    }
    if batch.header().max_timestamp != inspected.max_timestamp {
        // The time index and the limits on timestamps go by the header.
        batch.set_max_timestamp(inspected.max_timestamp);
    }
    Ok((group, batch))
}

/// Looks at the records themselves: what is no record is refused here, or every consumer of the
/// partition would stand before it.
async fn inspect(batch: &Batch, route: Route) -> Result<Inspected, Refusal> {
    let size_bytes = batch.size_bytes();
    let rules = InspectRules {
        output_bytes_max: OUTPUT_BYTES_MAX_FLOOR.max(size_bytes.saturating_mul(OUTPUT_RATIO_MAX)),
        keys: if route.compacted {
            KeyRule::Required
        } else {
            KeyRule::Optional
        },
    };
    let inspection = batch.inspection(&rules);
    let mut inspection = inspection.map_err(|error| batch_refusal(&error))?;
    loop {
        match inspection.step() {
            Ok(Some(inspected)) => return Ok(inspected),
            Ok(None) => tokio::task::yield_now().await,
            Err(error) => return Err(batch_refusal(&error)),
        }
    }
}

fn batch_refusal(error: &BatchError) -> Refusal {
    let code = match error {
        BatchError::Truncated { .. } | BatchError::Corrupt { .. } => ErrorCode::CorruptMessage,
        BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
        BatchError::UnsupportedMagic(_) => ErrorCode::UnsupportedForMessageFormat,
        BatchError::UnknownCodec(_) => ErrorCode::UnsupportedCompressionType,
        BatchError::CodecRefused(Compression::Zstd) => ErrorCode::UnsupportedCompressionType,
        // Behind a CRC that fits: sending it again would not help.
        _ => ErrorCode::InvalidRecord,
    };
    let mut refusal = refusal(code, error.to_string());
    if let BatchError::InvalidRecord { index, what } = error {
        refusal.records.push(*index);
        refusal.what = what;
    }
    refusal
}

fn answer(
    header: &RequestHeader,
    index: i32,
    outcome: Outcome,
    hints: &mut BTreeMap<NodeId, LeaderEpoch>,
) -> PartitionProduceResponse {
    let response = PartitionProduceResponse::default().with_index(index);
    match outcome {
        Ok(produced) => response
            .with_base_offset(produced.base_offset.get())
            .with_log_append_time_ms(produced.log_append_time_ms)
            .with_log_start_offset(produced.log_start.get()),
        Err(Refusal {
            error,
            records,
            what,
        }) => {
            let mut response = response
                .with_error_code(error.code.code())
                .with_base_offset(-1)
                .with_log_append_time_ms(-1)
                .with_log_start_offset(-1);
            if header.api_version >= 8 {
                if !error.message.is_empty() {
                    response.error_message = Some(StrBytes::from_string(error.message));
                }
                response.record_errors = records
                    .into_iter()
                    .map(|record| {
                        BatchIndexAndErrorMessage::default()
                            .with_batch_index(record)
                            .with_batch_index_error_message(Some(StrBytes::from_static_str(what)))
                    })
                    .collect();
            }
            if let Some((node, epoch)) = error.leader
                && header.api_version >= LEADER_HINTS_SINCE
            {
                hints.insert(node, epoch);
                response.current_leader = LeaderIdAndEpoch::default()
                    .with_leader_id(BrokerId(node.get()))
                    .with_leader_epoch(epoch.get());
            }
            response
        }
    }
}

fn endpoints(ctx: &KafkaContext, nodes: impl Iterator<Item = NodeId>) -> Vec<NodeEndpoint> {
    let image = ctx.metadata.image();
    nodes
        .filter_map(|node| {
            let (host, port) = super::metadata::address_of(ctx, image.nodes.get(&node)?);
            Some(
                NodeEndpoint::default()
                    .with_node_id(BrokerId(node.get()))
                    .with_host(StrBytes::from_string(host))
                    .with_port(port),
            )
        })
        .collect()
}
