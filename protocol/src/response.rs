//! Responses: encoded on the server, decoded in the client.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;

use crate::api::Response;
use crate::frame::FRAME_LENGTH_BYTES;
use crate::request::{EncodeError, RequestHeader, seal_frame};
use crate::schema::response_schema;
use crate::walk::{Misshapen, RESPONSE_ELEMENTS_MAX, tagged_fields_length, walk_body};

/// Why a frame is not the answer that the client waits for. The connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed answer to {key:?} version {version}: {what}")]
pub struct ResponseError {
    /// The API that was asked.
    pub key: ApiKey,
    /// The version that was asked.
    pub version: i16,
    /// For the log.
    pub what: String,
}

/// Encodes a response into a whole frame, its length included.
///
/// Fetch responses with records go through
/// [`encode_fetch_response`](crate::encode_fetch_response), which copies none of them.
///
/// # Errors
/// A body of another API than the request's, or a field that the version does not have.
pub fn encode_response(header: &RequestHeader, response: &Response) -> Result<Bytes, EncodeError> {
    let (key, version) = (response.key(), header.api_version);
    let fail = |what: String| EncodeError { key, version, what };
    if key as i16 != header.api_key {
        return Err(fail(format!("the request was API {}", header.api_key)));
    }
    let body_bytes = response.size(version).map_err(fail)?;
    let mut out = BytesMut::with_capacity(FRAME_LENGTH_BYTES + 4 + 1 + body_bytes);
    out.put_i32(0);
    out.put_i32(header.correlation_id);
    if response_header_version(key, version) >= 1 {
        out.put_u8(0);
    }
    response.encode(version, &mut out).map_err(fail)?;
    seal_frame(out).ok_or_else(|| fail("the frame exceeds 2 GiB".to_owned()))
}

/// Reads the answer to a request of `api_key` and `version` from a frame (without its length), and
/// returns its correlation id with it. Byte fields share the frame.
///
/// An ApiVersions answer that carries UNSUPPORTED_VERSION is read in the layout of version 0,
/// whatever was asked (KIP-511).
///
/// # Errors
/// See [`ResponseError`]. Bytes after the body are an error too, and so are arrays without their
/// elements: nothing is reserved before the shape is checked.
pub fn decode_response(
    api_key: ApiKey,
    version: i16,
    frame: Bytes,
) -> Result<(i32, Response), ResponseError> {
    let fail = |what: String| ResponseError {
        key: api_key,
        version,
        what,
    };
    let (correlation_id, mut rest) = take_response_header(api_key, version, frame)?;
    let is_fallback = api_key == ApiKey::ApiVersions
        && rest.starts_with(&crate::ErrorCode::UnsupportedVersion.code().to_be_bytes());
    let layout = if is_fallback { 0 } else { version };
    check_shape(api_key, layout, &rest)?;
    let response = Response::decode(api_key, layout, &mut rest)
        .ok_or_else(|| fail("no such API in this client".to_owned()))?
        .map_err(fail)?;
    if rest.has_remaining() {
        return Err(fail(format!("{} bytes too many", rest.len())));
    }
    Ok((correlation_id, response))
}

/// Takes the correlation id and the tagged fields; the rest is the body.
pub(crate) fn take_response_header(
    api_key: ApiKey,
    version: i16,
    frame: Bytes,
) -> Result<(i32, Bytes), ResponseError> {
    let fail = |what: &str| ResponseError {
        key: api_key,
        version,
        what: what.to_owned(),
    };
    let mut rest = frame;
    let correlation_id = rest
        .try_get_i32()
        .map_err(|_cut| fail("it has no header"))?;
    if response_header_version(api_key, version) >= 1 {
        let bytes = tagged_fields_length(&rest).map_err(|Misshapen(what)| fail(what))?;
        rest.advance(bytes);
    }
    Ok((correlation_id, rest))
}

/// Walks a body before it is decoded.
pub(crate) fn check_shape(key: ApiKey, version: i16, body: &[u8]) -> Result<(), ResponseError> {
    let fail = |what: &str| ResponseError {
        key,
        version,
        what: what.to_owned(),
    };
    let schema = response_schema(key).ok_or_else(|| fail("no such API in this client"))?;
    walk_body(schema, version, RESPONSE_ELEMENTS_MAX, 0, body)
        .map(|_none| ())
        .map_err(|Misshapen(what)| fail(what))
}

/// The version of the header before a response: 1 has tagged fields. Always 0 for ApiVersions,
/// whose answer must be readable before the client knows any version.
pub fn response_header_version(key: ApiKey, version: i16) -> i16 {
    key.response_header_version(version)
}
