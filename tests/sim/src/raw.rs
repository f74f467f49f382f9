//! One request on a connection of its own, for what the client crate would never send.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use corduroy_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use corduroy_protocol::messages::{
    BrokerId, GroupId, InitProducerIdRequest, ListOffsetsRequest, OffsetCommitRequest,
    OffsetFetchRequest, ProduceRequest, TopicName, TransactionalId,
};
use corduroy_protocol::{ErrorCode, Request, Response, decode_response, encode_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::group_ledger::{At, Identity};
use crate::machine::KAFKA_PORT;
use crate::network::{Host, address_of};

/// How long one node is waited for.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// The newest version that names topics.
const COMMIT_VERSION: i16 = 9;
/// The newest versions that ask for a producer id by itself, and that name topics.
const INIT_PRODUCER_ID_VERSION: i16 = 2;
const PRODUCE_VERSION: i16 = 9;
/// One with epochs, and before those of tiered storage.
const LIST_OFFSETS_VERSION: i16 = 7;
/// The newest version that names topics.
const OFFSET_FETCH_VERSION: i16 = 9;
/// Stands for the latest offset in a question (`ListOffsets`).
const LATEST: i64 = -1;
/// An answer that is longer is none.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Commits a position as somebody, with a text beside it. Asks node after node until one coordinates
/// the group; `None`: none did, or its answer did not come.
pub async fn commit_as(
    env: &Env,
    hosts: &[Host],
    group: &str,
    who: &Identity,
    (at, offset, text): (&At, i64, &str),
) -> Option<ErrorCode> {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(at.1)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text.to_owned().into()));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(at.0.clone().into()))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(group.to_owned().into()))
        .with_generation_id_or_member_epoch(who.generation)
        .with_member_id(who.member.clone().into())
        .with_topics(vec![topic]);
    let request = Request::OffsetCommit(request);
    for host in hosts {
        let answer =
            tokio::time::timeout(ANSWER_WAIT_MAX, call(env, *host, COMMIT_VERSION, &request)).await;
        let Ok(Some(Response::OffsetCommit(answer))) = answer else {
            continue;
        };
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let code = partitions.map(|partition| partition.error_code).next()?;
        match ErrorCode::from_code(code) {
            ErrorCode::NotCoordinator
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::CoordinatorLoadInProgress => {}
            code => return Some(code),
        }
    }
    None
}

/// A producer id with its epoch, from the first node that gives one.
pub async fn producer_id(env: &Env, hosts: &[Host]) -> Option<(i64, i16)> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None::<TransactionalId>)
        .with_transaction_timeout_ms(i32::MAX);
    let request = Request::InitProducerId(request);
    for host in hosts {
        let asked = call(env, *host, INIT_PRODUCER_ID_VERSION, &request);
        let answer = tokio::time::timeout(ANSWER_WAIT_MAX, asked).await;
        if let Ok(Some(Response::InitProducerId(answer))) = answer
            && answer.error_code == 0
        {
            return Some((answer.producer_id.0, answer.producer_epoch));
        }
    }
    None
}

/// Sends one batch to a partition with `acks=all`, to node after node until one leads it. Returns its
/// error and its offset; `None`: nobody knows whether it was written.
pub async fn produce(
    env: &Env,
    hosts: &[Host],
    (topic, partition): (&str, i32),
    batch: &Bytes,
) -> Option<(ErrorCode, i64)> {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(batch.clone()));
    let data = TopicProduceData::default()
        .with_name(TopicName(topic.to_owned().into()))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(ANSWER_WAIT_MAX.as_millis() as i32)
        .with_topic_data(vec![data]);
    let request = Request::Produce(request);
    for host in hosts {
        let asked = call(env, *host, PRODUCE_VERSION, &request);
        // No second node may get what the first one may have taken.
        let answer = tokio::time::timeout(ANSWER_WAIT_MAX, asked).await.ok()??;
        let Response::Produce(answer) = answer else {
            return None;
        };
        let mut partitions = answer
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses);
        let answer = partitions.next()?;
        match ErrorCode::from_code(answer.error_code) {
            ErrorCode::NotLeaderOrFollower => {}
            error => return Some((error, answer.base_offset)),
        }
    }
    Some((ErrorCode::NotLeaderOrFollower, -1))
}

/// The latest offset of a partition by one node; `None` where it does not say.
pub async fn latest(env: &Env, host: Host, (topic, partition): (&str, i32)) -> Option<i64> {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_current_leader_epoch(-1)
        .with_timestamp(LATEST);
    let topic = ListOffsetsTopic::default()
        .with_name(TopicName(topic.to_owned().into()))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    let request = Request::ListOffsets(request);
    let asked = call(env, host, LIST_OFFSETS_VERSION, &request);
    let answer = tokio::time::timeout(ANSWER_WAIT_MAX, asked).await;
    let Ok(Some(Response::ListOffsets(answer))) = answer else {
        return None;
    };
    let mut partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let answer = partitions.next()?;
    (answer.error_code == 0).then_some(answer.offset)
}

/// All committed positions of a group by one node; `None` where it does not say.
pub async fn positions(env: &Env, host: Host, group: &str) -> Option<BTreeMap<At, i64>> {
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId(group.to_owned().into()))
        .with_member_epoch(-1)
        .with_topics(None);
    let request = OffsetFetchRequest::default().with_groups(vec![group]);
    let request = Request::OffsetFetch(request);
    let asked = call(env, host, OFFSET_FETCH_VERSION, &request);
    let answer = tokio::time::timeout(ANSWER_WAIT_MAX, asked).await;
    let Ok(Some(Response::OffsetFetch(answer))) = answer else {
        return None;
    };
    let group = answer.groups.into_iter().next()?;
    let topics = group.topics.iter();
    let codes = topics.flat_map(|topic| topic.partitions.iter().map(|found| found.error_code));
    if group.error_code != 0 || codes.into_iter().any(|code| code != 0) {
        return None;
    }
    let found = group.topics.iter().flat_map(|topic| {
        let places = topic.partitions.iter();
        places.map(|found| {
            let at = (topic.name.to_string(), found.partition_index);
            (at, found.committed_offset)
        })
    });
    Some(found.filter(|(_, offset)| *offset >= 0).collect())
}

async fn call(env: &Env, host: Host, version: i16, request: &Request) -> Option<Response> {
    let mut stream = env.connect(address_of(host, KAFKA_PORT)).await.ok()?;
    let key = request.key();
    let frame = encode_request(key, version, 1, Some("simulator"), request).ok()?;
    stream.write_all(&frame).await.ok()?;
    stream.flush().await.ok()?;
    let length = stream.read_u32().await.ok()? as usize;
    if length > ANSWER_BYTES_MAX {
        return None;
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await.ok()?;
    let (_, response) = decode_response(key, version, answer.into()).ok()?;
    Some(response)
}
