//! Offsets by time: ListOffsets, asked of each partition's leader.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use corduroy_protocol::messages::{BrokerId, ListOffsetsRequest, TopicName};
use futures::future::join_all;
use tokio::time::{Instant, sleep_until};

use crate::client::ClientShared;
use crate::config::Isolation;
use crate::error::{Error, ErrorKind};
use crate::net::api::{Api, StrBytes};

/// Longest wait for one leader; then it is looked up again.
const LEADER_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long leaders may say that a partition does not exist.
const UNKNOWN_GRACE: Duration = Duration::from_secs(5);

/// Which offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffsetSpec {
    /// The first record that is kept.
    Earliest,
    /// Behind the last record: the high watermark, or the last stable offset for a reader of
    /// committed records.
    Latest,
    /// The record with the largest timestamp (needs ListOffsets 7, Kafka 3.0).
    MaxTimestamp,
    /// The first record of this time or later, in milliseconds since the Unix epoch.
    Timestamp(i64),
}

impl OffsetSpec {
    fn wire(self) -> i64 {
        match self {
            OffsetSpec::Latest => -1,
            OffsetSpec::Earliest => -2,
            OffsetSpec::MaxTimestamp => -3,
            OffsetSpec::Timestamp(unix_millis) => unix_millis.max(0),
        }
    }
}

/// What a leader answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset; `None` if no record is that young, or the partition is empty.
    pub offset: Option<i64>,
    /// The record's time, where a record was asked for.
    pub timestamp: Option<i64>,
    /// The epoch of the record's leader, where known.
    pub leader_epoch: Option<i32>,
}

/// What to ask about one topic.
pub(crate) struct Question<'a> {
    pub(crate) topic: &'a Arc<str>,
    pub(crate) wanted: BTreeMap<i32, OffsetSpec>,
    pub(crate) isolation: Isolation,
}

/// Asks until every partition has answered.
///
/// # Errors
/// The first error that is not retriable, or the last one before `deadline`.
pub(crate) async fn list(
    client: &ClientShared,
    mut question: Question<'_>,
    deadline: Instant,
) -> Result<BTreeMap<i32, ListedOffset>, Error> {
    let mut found = BTreeMap::new();
    let mut attempts = 0;
    let unknown_until = client.net.env.now() + UNKNOWN_GRACE;
    loop {
        let (listed, errors) = list_once(client, &question).await;
        question
            .wanted
            .retain(|partition, _| !listed.contains_key(partition));
        found.extend(listed);
        if question.wanted.is_empty() {
            return Ok(found);
        }
        attempts += 1;
        let wait = client.net.retry_backoff().wait(attempts, &client.net.env);
        let again = client.net.env.now() + wait;
        let passes =
            |error: &Error| error.is_retriable() || (error.is_passing() && again < unknown_until);
        let fatal = errors.iter().position(|error| !passes(error));
        let error = errors.into_iter().nth(fatal.unwrap_or(0));
        if fatal.is_some() || again >= deadline {
            let late = || Error::new(ErrorKind::ApiTimeout, "no offsets in time");
            return Err(error.unwrap_or_else(late).with_attempts(attempts));
        }
        sleep_until(again).await;
        // Whatever it was, it may be somebody else's to answer now; the next round tells.
        let _ = client.metadata.refresh(deadline).await;
    }
}

/// Asks each leader once. Returns what was answered, and why the rest was not.
pub(crate) async fn list_once(
    client: &ClientShared,
    question: &Question<'_>,
) -> (BTreeMap<i32, ListedOffset>, Vec<Error>) {
    let image = client.metadata.image();
    let mut found = BTreeMap::new();
    let mut errors = Vec::new();
    let mut by_leader: HashMap<i32, Vec<ListOffsetsPartition>> = HashMap::new();
    for (&partition, spec) in &question.wanted {
        let known = image.partition(question.topic, partition);
        let Some((leader, epoch)) = known.and_then(|known| known.seen()) else {
            let count = image.topics.get(question.topic).map(|t| t.partitions.len());
            let error = match (known, count) {
                (Some(_), _) => Error::broker(ErrorCode::LeaderNotAvailable, None),
                (None, Some(count)) if count > 0 => {
                    let message = format!("the topic has {count} partitions");
                    Error::new(ErrorKind::UnknownPartition, message)
                }
                (None, _) => Error::new(ErrorKind::UnknownTopic, "the partition is not known"),
            };
            errors.push(error.with_partition(question.topic, partition));
            continue;
        };
        by_leader.entry(leader).or_default().push(
            ListOffsetsPartition::default()
                .with_partition_index(partition)
                .with_current_leader_epoch(epoch)
                .with_timestamp(spec.wire()),
        );
    }
    let calls = by_leader.into_iter().map(|(leader, partitions)| {
        let image = image.clone();
        async move {
            let connection = client.metadata.pool().node(&image, leader).await?;
            let limit = client.net.settings.request_timeout.min(LEADER_WAIT_MAX);
            let answer = connection.call(limit, |version| request(question, version, partitions));
            Ok::<_, Error>((connection.label().clone(), answer.await?))
        }
    });
    for answer in join_all(calls).await {
        let (label, response) = match answer {
            Ok(answered) => answered,
            Err(error) => {
                errors.push(error.with_topic(question.topic));
                continue;
            }
        };
        for part in response.topics.iter().flat_map(|topic| &topic.partitions) {
            match ErrorCode::from_code(part.error_code) {
                ErrorCode::None => {
                    let listed = ListedOffset {
                        offset: Some(part.offset).filter(|offset| *offset >= 0),
                        timestamp: Some(part.timestamp).filter(|time| *time >= 0),
                        leader_epoch: Some(part.leader_epoch).filter(|epoch| *epoch >= 0),
                    };
                    found.insert(part.partition_index, listed);
                }
                code => errors.push(
                    Error::broker(code, None)
                        .with_api(ListOffsetsRequest::NAME)
                        .with_broker(&label)
                        .with_partition(question.topic, part.partition_index),
                ),
            }
        }
    }
    (found, errors)
}

fn request(
    question: &Question<'_>,
    version: i16,
    mut partitions: Vec<ListOffsetsPartition>,
) -> ListOffsetsRequest {
    if version < 4 {
        for partition in &mut partitions {
            partition.current_leader_epoch = -1;
        }
    }
    let isolation = if version >= 2 {
        question.isolation.wire()
    } else {
        0
    };
    let name = TopicName(StrBytes::from_string(question.topic.to_string()));
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(isolation)
        .with_topics(vec![
            ListOffsetsTopic::default()
                .with_name(name)
                .with_partitions(partitions),
        ])
}
