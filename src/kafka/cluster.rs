//! DescribeCluster: the nodes as Metadata names them, without topics.

use corduroy_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use corduroy_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::NodeId;

use super::context::KafkaContext;
use super::metadata::address_of;

/// KIP-919: whom the client wants to hear of. Controllers are no endpoints of their own here.
const ENDPOINT_BROKERS: i8 = 1;
/// "Not asked for", and there is nothing to authorize yet.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// Describes the cluster (versions 0 and 1).
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
    let isolated = ctx.metadata.isolated();
    let is_reachable = |node: NodeId| {
        if node == ctx.node {
            !isolated
        } else {
            !ctx.metadata.unreachable(node)
        }
    };
    let brokers = image
        .nodes
        .values()
        .filter(|node| is_reachable(node.id))
        .map(|node| {
            let (host, port) = address_of(ctx, node);
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(node.id.get()))
                .with_host(StrBytes::from_string(host))
                .with_port(port)
                .with_rack(node.rack.clone().map(StrBytes::from_string))
        })
        .collect();
    let controller = if isolated {
        None
    } else {
        ctx.metadata.controller_leader()
    };
    response
        .with_endpoint_type(ENDPOINT_BROKERS)
        .with_controller_id(BrokerId(controller.map_or(-1, NodeId::get)))
        .with_brokers(brokers)
}
