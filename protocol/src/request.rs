//! Requests: header and body, decoded on the server, encoded in the client.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;

use crate::api::Request;
use crate::frame::FRAME_LENGTH_BYTES;
use crate::schema::request_schema;
use crate::version::served;
use crate::walk::{Misshapen, REQUEST_ELEMENTS_MAX, tagged_fields_length, walk_body};

/// Bytes behind the body of a flexible Metadata request that are passed over: librdkafka (seen in
/// 2.16) writes the null list of "all topics" in one byte and leaves the other three of its old
/// four-byte count at the end. Apache Kafka passes over them too.
const METADATA_TRAILING_BYTES: usize = 3;

/// What stands before every request body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The API's number.
    pub api_key: i16,
    /// The version of the API, which decides both layouts, the request's and the answer's.
    pub api_version: i16,
    /// Chosen by the client, echoed in the answer.
    pub correlation_id: i32,
    /// The client's own name for itself; not a proof of identity.
    pub client_id: Option<StrBytes>,
}

/// Why a frame is not a request that we can answer. The connection is closed in all three cases,
/// but for ApiVersions of an unknown version, which gets
/// [`api_versions_fallback`](crate::api_versions_fallback).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes are not what header and version promise.
    #[error("malformed request: {what}")]
    Malformed {
        /// For the log.
        what: String,
    },
    /// We know the API but not this version of it.
    #[error("version {} of API {} is not served", header.api_version, header.api_key)]
    UnsupportedVersion {
        /// As far as it could be read.
        header: RequestHeader,
    },
    /// We do not serve this API in any version.
    #[error("API {} is not served", header.api_key)]
    UnknownApi {
        /// As far as it could be read.
        header: RequestHeader,
    },
}

impl RequestError {
    fn malformed(what: impl Into<String>) -> RequestError {
        RequestError::Malformed { what: what.into() }
    }

    /// The header to answer in version 0, if this is an ApiVersions request of a version above
    /// ours.
    pub fn wants_api_versions_fallback(&self) -> Option<&RequestHeader> {
        match self {
            RequestError::UnsupportedVersion { header }
                if header.api_key == ApiKey::ApiVersions as i16 =>
            {
                Some(header)
            }
            _ => None,
        }
    }
}

/// Why a message could not be encoded: a fault of the caller, who set a field that the version
/// does not have, or no such version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot encode {key:?} version {version}: {what}")]
pub struct EncodeError {
    /// The API.
    pub key: ApiKey,
    /// The version.
    pub version: i16,
    /// What the codec says.
    pub what: String,
}

/// Reads a request from a frame (without its length). Byte fields share the frame.
///
/// Nothing is allocated before the whole shape of the body is checked, see
/// [`REQUEST_ELEMENTS_MAX`](crate::REQUEST_ELEMENTS_MAX).
///
/// # Errors
/// See [`RequestError`]. Bytes after the body are an error too, but for the three that librdkafka
/// leaves behind a Metadata request.
pub fn decode_request(frame: Bytes) -> Result<(RequestHeader, Request), RequestError> {
    let mut rest = frame;
    let header = take_header(&mut rest)?;
    let Some(range) = served(header.api_key) else {
        return Err(RequestError::UnknownApi { header });
    };
    let version = header.api_version;
    if !range.serves(version) {
        return Err(RequestError::UnsupportedVersion { header });
    }
    let shape = |Misshapen(what): Misshapen| {
        RequestError::malformed(format!("{:?} version {version}: {what}", range.key))
    };
    let Some(schema) = request_schema(range.key) else {
        return Err(RequestError::UnknownApi { header });
    };
    if version >= schema.flexible_from {
        let bytes = tagged_fields_length(&rest).map_err(shape)?;
        rest.advance(bytes);
    }
    let trailing_allowed = match range.key {
        ApiKey::Metadata if version >= schema.flexible_from => METADATA_TRAILING_BYTES,
        _ => 0,
    };
    let trailing = walk_body(
        schema,
        version,
        REQUEST_ELEMENTS_MAX,
        trailing_allowed,
        &rest,
    )
    .map_err(shape)?;
    rest.truncate(rest.len() - trailing);
    match Request::decode(range.key, version, &mut rest) {
        None => Err(RequestError::UnknownApi { header }),
        Some(Err(what)) => Err(RequestError::malformed(format!(
            "{:?} version {version}: {what}",
            range.key
        ))),
        Some(Ok(_)) if rest.has_remaining() => Err(RequestError::malformed(format!(
            "{} bytes too many",
            rest.len()
        ))),
        Some(Ok(request)) => Ok((header, request)),
    }
}

/// Takes the header up to the client id: the tagged fields come only after the version is known to
/// be one of ours.
fn take_header(rest: &mut Bytes) -> Result<RequestHeader, RequestError> {
    const FIXED_BYTES: usize = 2 + 2 + 4;
    if rest.len() < FIXED_BYTES {
        return Err(RequestError::malformed(format!(
            "a frame of {} bytes",
            rest.len()
        )));
    }
    let mut header = RequestHeader {
        api_key: rest.get_i16(),
        api_version: rest.get_i16(),
        correlation_id: rest.get_i32(),
        client_id: None,
    };
    match take_client_id(rest) {
        Ok(client_id) => {
            header.client_id = client_id;
            Ok(header)
        }
        // A later header may look different there: what version it is matters more.
        Err(_) if served(header.api_key).is_none_or(|range| header.api_version > range.max) => {
            Ok(header)
        }
        Err(error) => Err(error),
    }
}

/// A nullable string with a 16-bit length, in all header versions.
fn take_client_id(rest: &mut Bytes) -> Result<Option<StrBytes>, RequestError> {
    let cut = || RequestError::malformed("the header ends inside the client id");
    let length = rest.try_get_i16().map_err(|_cut| cut())?;
    if length == -1 {
        return Ok(None);
    }
    let length = usize::try_from(length)
        .map_err(|_negative| RequestError::malformed("the client id has a negative length"))?;
    if rest.len() < length {
        return Err(cut());
    }
    StrBytes::from_utf8(rest.split_to(length))
        .map(Some)
        .map_err(|_not_utf8| RequestError::malformed("the client id is not UTF-8"))
}

/// Encodes a request into a whole frame, its length included.
///
/// # Errors
/// A version that the codec does not know, a field that the version does not have, a body of
/// another API than `api_key`.
pub fn encode_request(
    api_key: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
    request: &Request,
) -> Result<Bytes, EncodeError> {
    let fail = |what: String| EncodeError {
        key: api_key,
        version,
        what,
    };
    if request.key() != api_key {
        return Err(fail(format!("the body is of {:?}", request.key())));
    }
    let client_bytes = client_id.map_or(0, str::len);
    let Ok(client_length) = i16::try_from(client_bytes) else {
        return Err(fail("the client id is too long".to_owned()));
    };
    const HEADER_BYTES_MAX: usize = FRAME_LENGTH_BYTES + 2 + 2 + 4 + 2 + 1;
    let body_bytes = request.size(version).map_err(fail)?;
    let mut out = BytesMut::with_capacity(HEADER_BYTES_MAX + client_bytes + body_bytes);
    out.put_i32(0);
    out.put_i16(api_key as i16);
    out.put_i16(version);
    out.put_i32(correlation_id);
    match client_id {
        None => out.put_i16(-1),
        Some(text) => {
            out.put_i16(client_length);
            out.put_slice(text.as_bytes());
        }
    }
    if request_header_version(api_key, version) >= 2 {
        out.put_u8(0);
    }
    request.encode(version, &mut out).map_err(fail)?;
    seal_frame(out).ok_or_else(|| fail("the frame exceeds 2 GiB".to_owned()))
}

/// The version of the header before a request: 2 has tagged fields.
pub fn request_header_version(key: ApiKey, version: i16) -> i16 {
    key.request_header_version(version)
}

/// Writes the length into the four bytes that were left for it.
pub(crate) fn seal_frame(mut frame: BytesMut) -> Option<Bytes> {
    let length = i32::try_from(frame.len() - FRAME_LENGTH_BYTES).ok()?;
    frame[..FRAME_LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Some(frame.freeze())
}
