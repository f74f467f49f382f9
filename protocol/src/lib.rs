//! Kafka's wire protocol: frames, headers, the version table, error codes, bodies.
//!
//! Bodies come from the `kafka-protocol` crate, and this crate is the only one that may name it,
//! so that it can be replaced. Three things are ours, because there it would copy or trust too
//! much: record batches (the `record` crate), the Fetch response ([`encode_fetch_response`]), and
//! the walk over a frame before it is decoded (`walk`). A fourth it does not know yet: requests
//! for committed offsets by topic id (`by_id`).
//!
//! | file | holds |
//! |---|---|
//! | `version` | which APIs and versions are served; the answer to ApiVersions |
//! | `frame` | the length before each frame |
//! | `request`, `response` | headers with bodies, both ways |
//! | `api` | one row per API: the enums over its bodies |
//! | `by_id` | requests of OffsetCommit and OffsetFetch 10, whose topics go by id |
//! | `fetch` | the Fetch response, encoded around shared batches, and its decoded view |
//! | `schema`, `walk` | the shape of each body, checked before anything is reserved for it |
//! | `unready` | the word of a broker that does not serve yet, to our own client |
//! | `error_code` | the error codes |

mod api;
mod by_id;
mod error_code;
mod fetch;
mod frame;
mod request;
mod response;
mod schema;
mod unready;
mod version;
mod walk;

pub use kafka_protocol::messages;
pub use kafka_protocol::messages::ApiKey;
pub use kafka_protocol::protocol::StrBytes;

pub use api::{Request, Response};
pub use by_id::{
    OffsetCommitByIdRequest, OffsetCommitByIdTopic, OffsetFetchByIdGroup, OffsetFetchByIdRequest,
    OffsetFetchByIdTopic,
};
pub use error_code::ErrorCode;
pub use fetch::{
    FetchPartitionData, FetchResponseData, FetchTopicData, FetchedPartition, FetchedTopic,
    FetchedView, decode_fetch_response, encode_fetch_response,
};
pub use frame::{FRAME_BYTES_MAX, FRAME_LENGTH_BYTES, FrameError, frame_length};
pub use request::{
    EncodeError, RequestError, RequestHeader, decode_request, encode_request,
    request_header_version,
};
pub use response::{ResponseError, decode_response, encode_response, response_header_version};
pub use unready::{CLIENT_SOFTWARE_NAME, UNREADY_SINCE, unready_reason, unready_response};
pub use version::{
    ApiRange, SERVED, api_versions_fallback, api_versions_response, is_software_name, served,
};
pub use walk::REQUEST_ELEMENTS_MAX;
