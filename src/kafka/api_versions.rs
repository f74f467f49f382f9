//! ApiVersions: what this node serves (KIP-511).

use corduroy_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, api_versions_response::ApiVersion,
};
use corduroy_protocol::{ErrorCode, RequestHeader, SERVED};

/// The request's key.
pub const API_KEY: i16 = 18;

/// First version that names the client's software.
const NAMED_SINCE: i16 = 3;

/// The table of what is served.
pub fn answer(header: &RequestHeader, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    if header.api_version >= NAMED_SINCE
        && !(is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version))
    {
        return ApiVersionsResponse::default()
            .with_error_code(ErrorCode::InvalidRequest.code());
    }
    let keys = SERVED
        .iter()
        .map(|range| {
            ApiVersion::default()
                .with_api_key(range.key as i16)
                .with_min_version(range.min)
                .with_max_version(range.max)
        })
        .collect();
    ApiVersionsResponse::default().with_api_keys(keys).with_finalized_features_epoch(-1)
}

/// Kafka's pattern for client software names and versions: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
fn is_software_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(name.chars().next()) && ends(name.chars().next_back()) && name.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::is_software_name;

    #[test]
    fn software_names_follow_kafkas_pattern() {
        for good in ["librdkafka", "apache-kafka-java", "4.3.0", "a"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "a_b", "ä"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }
}
