//! ApiVersions: what this node serves (KIP-511).

use corduroy_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use corduroy_protocol::{ErrorCode, RequestHeader, api_versions_response, is_software_name};

/// First version that names the client's software.
const NAMED_SINCE: i16 = 3;

/// The table of what is served.
pub fn answer(header: &RequestHeader, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    let named = header.api_version < NAMED_SINCE
        || (is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version));
    api_versions_response(if named {
        ErrorCode::None
    } else {
        ErrorCode::InvalidRequest
    })
}
