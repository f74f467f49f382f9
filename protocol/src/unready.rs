//! A broker that does not serve yet says why, to clients that understand it.
//!
//! The protocol has no word for it: to other clients such a broker closes the connection, which each
//! of them takes for "try again, or elsewhere". Ours, which names itself in its first request
//! (KIP-511), is answered with an error and with the reason in a tagged field. Who does not know the
//! tag skips it (KIP-482).

use bytes::Bytes;
use kafka_protocol::messages::ApiVersionsResponse;

use crate::error_code::ErrorCode;

/// How our client names itself, in ApiVersions from version [`UNREADY_SINCE`] on.
pub const CLIENT_SOFTWARE_NAME: &str = "corduroy-client";

/// First version of ApiVersions whose request names the software, and whose answer has tags.
pub const UNREADY_SINCE: i16 = 3;

/// The tag of the reason: UTF-8 without a length of its own.
const REASON_TAG: i32 = 0x436F;

/// Bytes of a reason that are sent, and read.
const REASON_BYTES_MAX: usize = 1024;

/// The answer of a broker that does not serve yet.
pub fn unready_response(reason: &str) -> ApiVersionsResponse {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    let reason = Bytes::copy_from_slice(&reason.as_bytes()[..end]);
    ApiVersionsResponse::default()
        .with_error_code(ErrorCode::BrokerNotAvailable.code())
        .with_unknown_tagged_fields([(REASON_TAG, reason)].into())
}

/// Why the broker does not serve, if that is what it says.
pub fn unready_reason(response: &ApiVersionsResponse) -> Option<String> {
    if response.error_code != ErrorCode::BrokerNotAvailable.code() {
        return None;
    }
    let reason = response.unknown_tagged_fields.get(&REASON_TAG)?;
    let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
    Some(String::from_utf8_lossy(reason).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiKey, RequestHeader, Response, decode_response, encode_response};

    #[test]
    fn the_reason_crosses_the_wire_and_is_cut_at_a_character() {
        let header = RequestHeader {
            api_key: ApiKey::ApiVersions as i16,
            api_version: UNREADY_SINCE,
            correlation_id: 7,
            client_id: None,
        };
        let long = "é".repeat(REASON_BYTES_MAX);
        for (said, heard) in [
            ("it waits for 127.0.0.1:1", "it waits for 127.0.0.1:1"),
            (long.as_str(), &long[..REASON_BYTES_MAX]),
        ] {
            let response = Response::ApiVersions(unready_response(said));
            let mut frame = encode_response(&header, &response).expect("a frame");
            let body = frame.split_off(4);
            let (id, Response::ApiVersions(response)) =
                decode_response(ApiKey::ApiVersions, UNREADY_SINCE, body).expect("an answer")
            else {
                panic!("another API's answer");
            };
            assert_eq!(id, 7);
            assert_eq!(unready_reason(&response).as_deref(), Some(heard));
        }
        assert_eq!(unready_reason(&ApiVersionsResponse::default()), None);
    }
}
