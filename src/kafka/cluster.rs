//! DescribeCluster: the nodes as Metadata names them, without topics.

use corduroy_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use corduroy_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::NodeId;

use crate::controller::MetadataImage;

use super::context::KafkaContext;
use super::metadata::address_of;

/// KIP-919: whom the client wants to hear of. Controllers are no endpoints of their own here.
const ENDPOINT_BROKERS: i8 = 1;
/// "Not asked for", and there is nothing to authorize yet.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// Missing nodes that an error names.
const NODES_NAMED_MAX: usize = 10;

/// Describes the cluster (versions 0 and 1). A node that hears no majority answers with
/// BROKER_NOT_AVAILABLE, and whom it misses.
pub async fn describe_cluster(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let image = ctx.metadata.image();
    let response = DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_string(image.cluster_id.to_string()))
        .with_cluster_authorized_operations(OPERATIONS_NOT_ASKED);
    if header.api_version >= 1 && request.endpoint_type != ENDPOINT_BROKERS {
        let code = ErrorCode::MismatchedEndpointType;
        ctx.shard.counters().failed(header.api_key, code.name());
        return response
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_static_str(
                "this listener answers about brokers (endpoint type 1) only",
            )))
            .with_endpoint_type(ENDPOINT_BROKERS)
            .with_controller_id(BrokerId(-1));
    }
    if ctx.metadata.isolated() {
        // Not the empty list that Metadata has to be content with: here there is room for words.
        let code = ErrorCode::BrokerNotAvailable;
        ctx.shard.counters().failed(header.api_key, code.name());
        return response
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_string(isolation_text(ctx, &image))))
            .with_endpoint_type(ENDPOINT_BROKERS)
            .with_controller_id(BrokerId(-1));
    }
    let brokers = image
        .nodes
        .values()
        .filter(|node| node.id == ctx.node || !ctx.metadata.unreachable(node.id))
        .map(|node| {
            let (host, port) = address_of(ctx, node);
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(node.id.get()))
                .with_host(StrBytes::from_string(host))
                .with_port(port)
                .with_rack(node.rack.clone().map(StrBytes::from_string))
        })
        .collect();
    let controller = ctx.metadata.controller_leader();
    response
        .with_endpoint_type(ENDPOINT_BROKERS)
        .with_controller_id(BrokerId(controller.map_or(-1, NodeId::get)))
        .with_brokers(brokers)
}

/// What a node that hears no majority knows: whom it misses.
fn isolation_text(ctx: &KafkaContext, image: &MetadataImage) -> String {
    let missing = image
        .nodes
        .values()
        .filter(|node| node.id != ctx.node && ctx.metadata.unreachable(node.id))
        .map(|node| {
            let (host, port) = address_of(ctx, node);
            format!("node {} ({host}:{port})", node.id)
        });
    let missing: Vec<String> = missing.take(NODES_NAMED_MAX).collect();
    format!(
        "node {} hears no majority of its cluster of {}: it misses {}",
        ctx.node,
        image.nodes.len(),
        match missing.as_slice() {
            // Its detector has heard of none yet.
            [] => "the others".to_owned(),
            missing => missing.join(", "),
        }
    )
}
