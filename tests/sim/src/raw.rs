//! One request on a connection of its own, for what the client crate would never send.

use std::time::Duration;

use corduroy_env::Env;
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::{GroupId, OffsetCommitRequest, TopicName};
use corduroy_protocol::{ErrorCode, Request, Response, decode_response, encode_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::group_ledger::{At, Identity};
use crate::machine::KAFKA_PORT;
use crate::network::{Host, address_of};

/// How long one node is waited for.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(3);
/// The newest version that names topics.
const COMMIT_VERSION: i16 = 9;
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
        let answer = tokio::time::timeout(ANSWER_WAIT_MAX, call(env, *host, &request)).await;
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

async fn call(env: &Env, host: Host, request: &Request) -> Option<Response> {
    let mut stream = env.connect(address_of(host, KAFKA_PORT)).await.ok()?;
    let key = request.key();
    let frame = encode_request(key, COMMIT_VERSION, 1, Some("simulator"), request).ok()?;
    stream.write_all(&frame).await.ok()?;
    stream.flush().await.ok()?;
    let length = stream.read_u32().await.ok()? as usize;
    if length > ANSWER_BYTES_MAX {
        return None;
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await.ok()?;
    let (_, response) = decode_response(key, COMMIT_VERSION, answer.into()).ok()?;
    Some(response)
}
