//! Which APIs are served, in which versions.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse};

use crate::error_code::ErrorCode;
use crate::request::RequestHeader;

/// The versions of one API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiRange {
    /// The API.
    pub key: ApiKey,
    /// Lowest version that ApiVersions advertises.
    pub min: i16,
    /// Highest version, advertised and served.
    pub max: i16,
    /// Lowest version that is served: above `min` only for Produce.
    pub served_min: i16,
}

impl ApiRange {
    const fn new(key: ApiKey, min: i16, max: i16) -> ApiRange {
        ApiRange {
            key,
            min,
            max,
            served_min: min,
        }
    }

    /// Whether requests of this version are answered.
    pub const fn serves(&self, version: i16) -> bool {
        self.served_min <= version && version <= self.max
    }
}

/// The version table, ascending by key. An API is listed only with versions whose whole behaviour
/// is served: clients switch features on ranges.
///
/// Produce is advertised from 0 although 0 to 2 are refused: librdkafka below 2.11.1 stops
/// compressing otherwise (KAFKA-18659).
pub const SERVED: &[ApiRange] = &[
    ApiRange {
        key: ApiKey::Produce,
        min: 0,
        max: 12,
        served_min: 3,
    },
    ApiRange::new(ApiKey::Fetch, 4, 12),
    ApiRange::new(ApiKey::ListOffsets, 1, 9),
    ApiRange::new(ApiKey::Metadata, 0, 13),
    ApiRange::new(ApiKey::OffsetCommit, 2, 10),
    ApiRange::new(ApiKey::OffsetFetch, 1, 10),
    ApiRange::new(ApiKey::FindCoordinator, 0, 6),
    ApiRange::new(ApiKey::JoinGroup, 0, 9),
    ApiRange::new(ApiKey::Heartbeat, 0, 4),
    ApiRange::new(ApiKey::LeaveGroup, 0, 5),
    ApiRange::new(ApiKey::SyncGroup, 0, 5),
    ApiRange::new(ApiKey::DescribeGroups, 0, 6),
    ApiRange::new(ApiKey::ListGroups, 0, 5),
    ApiRange::new(ApiKey::ApiVersions, 0, 4),
    ApiRange::new(ApiKey::CreateTopics, 2, 7),
    ApiRange::new(ApiKey::DeleteTopics, 1, 6),
    ApiRange::new(ApiKey::InitProducerId, 0, 5),
    ApiRange::new(ApiKey::OffsetForLeaderEpoch, 2, 4),
    ApiRange::new(ApiKey::DescribeConfigs, 1, 4),
    ApiRange::new(ApiKey::CreatePartitions, 0, 3),
    ApiRange::new(ApiKey::DeleteGroups, 0, 2),
    ApiRange::new(ApiKey::IncrementalAlterConfigs, 0, 1),
    ApiRange::new(ApiKey::OffsetDelete, 0, 0),
    ApiRange::new(ApiKey::DescribeCluster, 0, 1),
    ApiRange::new(ApiKey::ConsumerGroupHeartbeat, 0, 1),
    ApiRange::new(ApiKey::ConsumerGroupDescribe, 0, 1),
];

/// The row of an API key as on the wire.
pub fn served(key: i16) -> Option<&'static ApiRange> {
    SERVED.iter().find(|range| range.key as i16 == key)
}

/// The body that answers ApiVersions: the table and no features. `throttle_time_ms` is 0.
pub fn api_versions_response(error: ErrorCode) -> ApiVersionsResponse {
    let keys = SERVED.iter().map(|range| {
        ApiVersion::default()
            .with_api_key(range.key as i16)
            .with_min_version(range.min)
            .with_max_version(range.max)
    });
    ApiVersionsResponse::default()
        .with_error_code(error.code())
        .with_api_keys(keys.collect())
}

/// The frame that answers an ApiVersions request of a version above ours (KIP-511): layout of
/// version 0, UNSUPPORTED_VERSION, and the versions of ApiVersions itself, so that the client can
/// ask again.
pub fn api_versions_fallback(header: &RequestHeader) -> Bytes {
    const KEY: ApiKey = ApiKey::ApiVersions;
    let rows = SERVED.iter().filter(|range| range.key == KEY);
    let mut body = BytesMut::new();
    body.put_i32(header.correlation_id);
    body.put_i16(ErrorCode::UnsupportedVersion.code());
    body.put_i32(rows.clone().count() as i32);
    for range in rows {
        body.put_i16(KEY as i16);
        body.put_i16(range.min);
        body.put_i16(range.max);
    }
    let mut frame = BytesMut::with_capacity(4 + body.len());
    frame.put_i32(body.len() as i32);
    frame.put(body);
    frame.freeze()
}

/// Whether `text` may be a client's software name or version in ApiVersions 3 and later (KIP-511):
/// letters, digits, `-` and `.`, the latter two not at the ends. Otherwise: INVALID_REQUEST.
pub fn is_software_name(text: &str) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && bytes.iter().all(is_inner)
}
