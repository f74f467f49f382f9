//! One row per API: the request and response bodies under one name each.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteGroupsRequest, DeleteGroupsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeClusterRequest, DescribeClusterResponse, DescribeConfigsRequest,
    DescribeConfigsResponse, DescribeGroupsRequest, DescribeGroupsResponse, FetchRequest,
    FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    HeartbeatResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    InitProducerIdRequest, InitProducerIdResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse, ProduceRequest, ProduceResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use kafka_protocol::protocol::{Decodable, Encodable};

use crate::by_id::{BY_ID_SINCE, OffsetCommitByIdRequest, OffsetFetchByIdRequest};

/// What the codec says, as text: its errors are for people only.
pub(crate) type CodecResult<T> = Result<T, String>;

macro_rules! apis {
    (
        $($name:ident($request:ident, $response:ident),)*
        ---
        $($later:ident($later_request:ident) = $of:ident since $since:ident,)*
    ) => {
        /// The body of a request. An API whose request changed its nature has a variant for each.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant is the API of its name")]
        pub enum Request {
            $($name($request),)*
            $($later($later_request),)*
        }

        /// The body of a response.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant is the API of its name")]
        pub enum Response {
            $($name($response),)*
        }

        impl Request {
            /// The API that the body belongs to.
            pub fn key(&self) -> ApiKey {
                match self {
                    $(Request::$name(_) => ApiKey::$name,)*
                    $(Request::$later(_) => ApiKey::$of,)*
                }
            }

            /// `None` for an API that we have no row for.
            pub(crate) fn decode(
                key: ApiKey,
                version: i16,
                bytes: &mut Bytes,
            ) -> Option<CodecResult<Request>> {
                match key {
                    $(ApiKey::$of if version >= $since => Some(
                        $later_request::decode(bytes, version).map(Request::$later),
                    ),)*
                    $(ApiKey::$name => Some(
                        $request::decode(bytes, version)
                            .map(Request::$name)
                            .map_err(|error| error.to_string()),
                    ),)*
                    _ => None,
                }
            }

            pub(crate) fn size(&self, version: i16) -> CodecResult<usize> {
                match self {
                    $(Request::$name(body) => {
                        body.compute_size(version).map_err(|error| error.to_string())
                    })*
                    $(Request::$later(body) => body.compute_size(version),)*
                }
            }

            pub(crate) fn encode(&self, version: i16, out: &mut BytesMut) -> CodecResult<()> {
                match self {
                    $(Request::$name(body) => {
                        body.encode(out, version).map_err(|error| error.to_string())
                    })*
                    $(Request::$later(body) => body.encode(out, version),)*
                }
            }
        }

        impl Response {
            /// The API that the body belongs to.
            pub fn key(&self) -> ApiKey {
                match self {
                    $(Response::$name(_) => ApiKey::$name,)*
                }
            }

            /// `None` for an API that we have no row for.
            pub(crate) fn decode(
                key: ApiKey,
                version: i16,
                bytes: &mut Bytes,
            ) -> Option<CodecResult<Response>> {
                match key {
                    $(ApiKey::$name => Some(
                        $response::decode(bytes, version)
                            .map(Response::$name)
                            .map_err(|error| error.to_string()),
                    ),)*
                    _ => None,
                }
            }

            pub(crate) fn size(&self, version: i16) -> CodecResult<usize> {
                match self {
                    $(Response::$name(body) => body.compute_size(version),)*
                }
                .map_err(|error| error.to_string())
            }

            pub(crate) fn encode(&self, version: i16, out: &mut BytesMut) -> CodecResult<()> {
                match self {
                    $(Response::$name(body) => body.encode(out, version),)*
                }
                .map_err(|error| error.to_string())
            }
        }

        $(
            impl From<$request> for Request {
                fn from(body: $request) -> Request {
                    Request::$name(body)
                }
            }

            impl From<$response> for Response {
                fn from(body: $response) -> Response {
                    Response::$name(body)
                }
            }
        )*

        $(
            impl From<$later_request> for Request {
                fn from(body: $later_request) -> Request {
                    Request::$later(body)
                }
            }
        )*
    };
}

apis! {
    ApiVersions(ApiVersionsRequest, ApiVersionsResponse),
    Metadata(MetadataRequest, MetadataResponse),
    Produce(ProduceRequest, ProduceResponse),
    Fetch(FetchRequest, FetchResponse),
    ListOffsets(ListOffsetsRequest, ListOffsetsResponse),
    CreateTopics(CreateTopicsRequest, CreateTopicsResponse),
    DeleteTopics(DeleteTopicsRequest, DeleteTopicsResponse),
    CreatePartitions(CreatePartitionsRequest, CreatePartitionsResponse),
    DescribeConfigs(DescribeConfigsRequest, DescribeConfigsResponse),
    IncrementalAlterConfigs(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    DescribeCluster(DescribeClusterRequest, DescribeClusterResponse),
    InitProducerId(InitProducerIdRequest, InitProducerIdResponse),
    OffsetForLeaderEpoch(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    FindCoordinator(FindCoordinatorRequest, FindCoordinatorResponse),
    JoinGroup(JoinGroupRequest, JoinGroupResponse),
    SyncGroup(SyncGroupRequest, SyncGroupResponse),
    Heartbeat(HeartbeatRequest, HeartbeatResponse),
    LeaveGroup(LeaveGroupRequest, LeaveGroupResponse),
    OffsetCommit(OffsetCommitRequest, OffsetCommitResponse),
    OffsetFetch(OffsetFetchRequest, OffsetFetchResponse),
    ListGroups(ListGroupsRequest, ListGroupsResponse),
    DescribeGroups(DescribeGroupsRequest, DescribeGroupsResponse),
    DeleteGroups(DeleteGroupsRequest, DeleteGroupsResponse),
    OffsetDelete(OffsetDeleteRequest, OffsetDeleteResponse),
    ConsumerGroupHeartbeat(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    ConsumerGroupDescribe(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ---
    OffsetCommitById(OffsetCommitByIdRequest) = OffsetCommit since BY_ID_SINCE,
    OffsetFetchById(OffsetFetchByIdRequest) = OffsetFetch since BY_ID_SINCE,
}
