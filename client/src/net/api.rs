//! The APIs that this client calls, each with the versions that it speaks.

use corduroy_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, CreatePartitionsRequest, CreatePartitionsResponse,
    CreateTopicsRequest, CreateTopicsResponse, DeleteGroupsRequest, DeleteGroupsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, DescribeClusterRequest, DescribeClusterResponse,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    FetchRequest, FetchResponse, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    HeartbeatResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    InitProducerIdRequest, InitProducerIdResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse, ProduceRequest, ProduceResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use corduroy_protocol::{ApiKey, Request, Response};

pub(crate) use corduroy_protocol::StrBytes;

use crate::error::{Error, Outcome};

/// A request that knows its API.
pub(crate) trait Api: Sized {
    /// Kafka's number of it.
    const KEY: ApiKey;
    /// Kafka's name of it.
    const NAME: &'static str;
    /// The versions that this client speaks, both inclusive.
    const VERSIONS: (i16, i16);
    /// The answer's body.
    type Response;

    fn into_request(self) -> Request;
    fn from_response(response: Response) -> Option<Self::Response>;

    /// An error of the call, whose request may have arrived. One that only reads has no effect.
    fn lost(error: Error) -> Error {
        let outcome = match only_reads(Self::KEY) {
            true => Outcome::NotWritten,
            false => Outcome::Unknown,
        };
        error.with_api(Self::NAME).with_outcome(outcome)
    }
}

/// Whether requests of an API leave everything as it is.
fn only_reads(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::Fetch
            | ApiKey::ListOffsets
            | ApiKey::Metadata
            | ApiKey::DescribeConfigs
            | ApiKey::DescribeCluster
            | ApiKey::FindCoordinator
            | ApiKey::OffsetFetch
            | ApiKey::OffsetForLeaderEpoch
            | ApiKey::ListGroups
            | ApiKey::DescribeGroups
            | ApiKey::ConsumerGroupDescribe
    )
}

macro_rules! apis {
    ($($name:ident $request:ident $response:ident $min:literal..=$max:literal;)*) => {
        $(impl Api for $request {
            const KEY: ApiKey = ApiKey::$name;
            const NAME: &'static str = stringify!($name);
            const VERSIONS: (i16, i16) = ($min, $max);
            type Response = $response;

            fn into_request(self) -> Request {
                Request::$name(self)
            }

            fn from_response(response: Response) -> Option<$response> {
                match response {
                    Response::$name(response) => Some(response),
                    _ => None,
                }
            }
        })*
    };
}

// Topics go by name: Produce 13 and Fetch 13 know ids only, and gain a client nothing. Fetch 4 to
// 12 and Produce 3 to 12 are what every broker since Kafka 0.11 offers a part of.
apis! {
    Produce ProduceRequest ProduceResponse 3..=12;
    Fetch FetchRequest FetchResponse 4..=12;
    ListOffsets ListOffsetsRequest ListOffsetsResponse 1..=7;
    Metadata MetadataRequest MetadataResponse 1..=12;
    CreateTopics CreateTopicsRequest CreateTopicsResponse 2..=7;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse 1..=6;
    InitProducerId InitProducerIdRequest InitProducerIdResponse 0..=5;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse 1..=4;
    CreatePartitions CreatePartitionsRequest CreatePartitionsResponse 0..=3;
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse 0..=1;
    DescribeCluster DescribeClusterRequest DescribeClusterResponse 0..=1;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse 0..=6;
    JoinGroup JoinGroupRequest JoinGroupResponse 2..=9;
    SyncGroup SyncGroupRequest SyncGroupResponse 0..=5;
    Heartbeat HeartbeatRequest HeartbeatResponse 0..=4;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse 0..=5;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse 2..=9;
    OffsetFetch OffsetFetchRequest OffsetFetchResponse 1..=9;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse 2..=4;
    ListGroups ListGroupsRequest ListGroupsResponse 0..=5;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse 0..=6;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse 0..=2;
    OffsetDelete OffsetDeleteRequest OffsetDeleteResponse 0..=0;
    ConsumerGroupHeartbeat ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse 0..=1;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse 0..=1;
}
