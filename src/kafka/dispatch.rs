//! Which handler serves which request. What fixes the order of appends happens before
//! [`start`] returns; the rest runs while the next request is read.

use std::io;

use bytes::Bytes;
use corduroy_protocol::{
    Request, RequestHeader, Response, api_versions_fallback, decode_request, encode_response,
};

use tracing::trace;

use super::connection::{Reply, ReplyFuture};
use super::context::KafkaContext;
use super::{
    api_versions, cluster, configs, fetch, groups, metadata, offsets, produce, producer_ids, topics,
};
use crate::walk::WALK;

/// Begins to serve one frame. An error closes the connection: what the client sent cannot be
/// answered (Kafka does the same).
pub async fn start(context: &KafkaContext, frame: Bytes) -> io::Result<(i16, ReplyFuture)> {
    let (header, request) = match decode_request(frame) {
        Ok(decoded) => decoded,
        Err(error) => {
            let Some(header) = error.wants_api_versions_fallback() else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    error.to_string(),
                ));
            };
            // KIP-511: answered in the layout that every client can read.
            let frame = api_versions_fallback(header);
            return Ok((header.api_key, now(Reply::Frame(vec![frame]))));
        }
    };
    let api_key = header.api_key;
    trace!(target: WALK, room = 2, api_key, version = header.api_version, "a request is decoded");
    let ctx = context.clone();
    let reply: ReplyFuture = match request {
        Request::Produce(request) => produce::start(ctx, header, request).await,
        Request::Fetch(request) => fetch::start(ctx, header, request),
        Request::ApiVersions(request) => {
            let response = api_versions::answer(&header, &request);
            now(encoded(&header, &Response::ApiVersions(response)))
        }
        Request::Metadata(request) => Box::pin(async move {
            let response = metadata::answer(&ctx, &header, request).await;
            encoded(&header, &Response::Metadata(response))
        }),
        Request::ListOffsets(request) => Box::pin(async move {
            let response = offsets::list_offsets(&ctx, &header, request).await;
            encoded(&header, &Response::ListOffsets(response))
        }),
        Request::OffsetForLeaderEpoch(request) => Box::pin(async move {
            let response = offsets::offset_for_leader_epoch(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetForLeaderEpoch(response))
        }),
        Request::InitProducerId(request) => Box::pin(async move {
            let response = producer_ids::init_producer_id(&ctx, &header, request).await;
            encoded(&header, &Response::InitProducerId(response))
        }),
        Request::CreateTopics(request) => Box::pin(async move {
            let response = topics::create_topics(&ctx, &header, request).await;
            encoded(&header, &Response::CreateTopics(response))
        }),
        Request::DeleteTopics(request) => Box::pin(async move {
            let response = topics::delete_topics(&ctx, &header, request).await;
            encoded(&header, &Response::DeleteTopics(response))
        }),
        Request::CreatePartitions(request) => Box::pin(async move {
            let response = topics::create_partitions(&ctx, &header, request).await;
            encoded(&header, &Response::CreatePartitions(response))
        }),
        Request::DescribeConfigs(request) => Box::pin(async move {
            let response = configs::describe_configs(&ctx, &header, request).await;
            encoded(&header, &Response::DescribeConfigs(response))
        }),
        Request::IncrementalAlterConfigs(request) => Box::pin(async move {
            let response = configs::incremental_alter_configs(&ctx, &header, request).await;
            encoded(&header, &Response::IncrementalAlterConfigs(response))
        }),
        Request::DescribeCluster(request) => Box::pin(async move {
            let response = cluster::describe_cluster(&ctx, &header, request).await;
            encoded(&header, &Response::DescribeCluster(response))
        }),
        Request::FindCoordinator(request) => Box::pin(async move {
            let response = groups::find_coordinator(&ctx, &header, request).await;
            encoded(&header, &Response::FindCoordinator(response))
        }),
        Request::JoinGroup(request) => Box::pin(async move {
            let response = groups::join_group(&ctx, &header, request).await;
            encoded(&header, &Response::JoinGroup(response))
        }),
        Request::SyncGroup(request) => Box::pin(async move {
            let response = groups::sync_group(&ctx, &header, request).await;
            encoded(&header, &Response::SyncGroup(response))
        }),
        Request::Heartbeat(request) => Box::pin(async move {
            let response = groups::heartbeat(&ctx, &header, request).await;
            encoded(&header, &Response::Heartbeat(response))
        }),
        Request::LeaveGroup(request) => Box::pin(async move {
            let response = groups::leave_group(&ctx, &header, request).await;
            encoded(&header, &Response::LeaveGroup(response))
        }),
        Request::OffsetCommit(request) => Box::pin(async move {
            let response = groups::offset_commit(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetCommit(response))
        }),
        Request::OffsetCommitById(request) => Box::pin(async move {
            let response = groups::offset_commit_by_id(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetCommit(response))
        }),
        Request::OffsetFetch(request) => Box::pin(async move {
            let response = groups::offset_fetch(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetFetch(response))
        }),
        Request::OffsetFetchById(request) => Box::pin(async move {
            let response = groups::offset_fetch_by_id(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetFetch(response))
        }),
        Request::OffsetDelete(request) => Box::pin(async move {
            let response = groups::offset_delete(&ctx, &header, request).await;
            encoded(&header, &Response::OffsetDelete(response))
        }),
        Request::ListGroups(request) => Box::pin(async move {
            let response = groups::list_groups(&ctx, &header, request).await;
            encoded(&header, &Response::ListGroups(response))
        }),
        Request::DescribeGroups(request) => Box::pin(async move {
            let response = groups::describe_groups(&ctx, &header, request).await;
            encoded(&header, &Response::DescribeGroups(response))
        }),
        Request::DeleteGroups(request) => Box::pin(async move {
            let response = groups::delete_groups(&ctx, &header, request).await;
            encoded(&header, &Response::DeleteGroups(response))
        }),
        Request::ConsumerGroupHeartbeat(request) => Box::pin(async move {
            let response = groups::consumer_group_heartbeat(&ctx, &header, request).await;
            encoded(&header, &Response::ConsumerGroupHeartbeat(response))
        }),
        Request::ConsumerGroupDescribe(request) => Box::pin(async move {
            let response = groups::consumer_group_describe(&ctx, &header, request).await;
            encoded(&header, &Response::ConsumerGroupDescribe(response))
        }),
    };
    Ok((api_key, reply))
}

/// A response as a reply; one that cannot be encoded closes the connection.
pub fn encoded(header: &RequestHeader, response: &Response) -> Reply {
    match encode_response(header, response) {
        Ok(frame) => Reply::Frame(vec![frame]),
        Err(error) => Reply::Close(format!("a response could not be encoded: {error}")),
    }
}

fn now(reply: Reply) -> ReplyFuture {
    Box::pin(std::future::ready(reply))
}
