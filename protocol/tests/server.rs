//! What a server decides before any handler runs.

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_protocol::messages::{
    ApiVersionsRequest, MetadataRequest, MetadataResponse, ProduceRequest,
};
use corduroy_protocol::{
    ApiKey, ErrorCode, Request, RequestError, RequestHeader, Response, SERVED,
    api_versions_fallback, api_versions_response, decode_request, decode_response, encode_request,
    encode_response, is_software_name, served,
};

fn frame(key: i16, version: i16, rest: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(key);
    bytes.put_i16(version);
    bytes.put_i32(42);
    bytes.put_slice(rest);
    bytes.freeze()
}

const NO_CLIENT: &[u8] = &[0xff, 0xff];

#[test]
fn version_table_is_the_promised_one() {
    let table: Vec<(i16, i16, i16, i16)> = SERVED
        .iter()
        .map(|range| (range.key as i16, range.min, range.max, range.served_min))
        .collect();
    assert_eq!(
        table,
        [
            (0, 0, 12, 3),
            (1, 4, 12, 4),
            (2, 1, 9, 1),
            (3, 0, 13, 0),
            (8, 2, 10, 2),
            (9, 1, 10, 1),
            (10, 0, 6, 0),
            (11, 0, 9, 0),
            (12, 0, 4, 0),
            (13, 0, 5, 0),
            (14, 0, 5, 0),
            (15, 0, 6, 0),
            (16, 0, 5, 0),
            (18, 0, 4, 0),
            (19, 2, 7, 2),
            (20, 1, 6, 1),
            (22, 0, 5, 0),
            (23, 2, 4, 2),
            (32, 1, 4, 1),
            (37, 0, 3, 0),
            (42, 0, 2, 0),
            (44, 0, 1, 0),
            (47, 0, 0, 0),
            (60, 0, 1, 0),
            (68, 0, 1, 0),
            (69, 0, 1, 0),
        ]
    );
    assert_eq!(served(3).map(|range| range.key), Some(ApiKey::Metadata));
    assert_eq!(served(4), None);
    assert_eq!(served(-1), None);
}

#[test]
fn unserved_versions_and_apis_are_told_apart() {
    for range in SERVED {
        for version in [range.served_min - 1, range.max + 1, i16::MAX, i16::MIN] {
            let outcome = decode_request(frame(range.key as i16, version, NO_CLIENT));
            let Err(RequestError::UnsupportedVersion { header }) = &outcome else {
                panic!("{:?} version {version}: {outcome:?}", range.key);
            };
            assert_eq!(header.correlation_id, 42);
        }
    }
    for key in [-1, 4, 7, 24, 71, 9999] {
        let outcome = decode_request(frame(key, 0, NO_CLIENT));
        assert!(
            matches!(outcome, Err(RequestError::UnknownApi { .. })),
            "{key}: {outcome:?}"
        );
    }
    // Advertised for librdkafka's sake, but not served.
    let outcome = decode_request(frame(ApiKey::Produce as i16, 2, NO_CLIENT));
    assert!(matches!(
        outcome,
        Err(RequestError::UnsupportedVersion { .. })
    ));
}

#[test]
fn short_frames_are_malformed() {
    let whole = frame(ApiKey::Metadata as i16, 1, &[0xff, 0xff, 0, 0, 0, 0]);
    assert!(decode_request(whole.clone()).is_ok());
    for cut in 0..whole.len() {
        let outcome = decode_request(whole.slice(..cut));
        assert!(
            matches!(outcome, Err(RequestError::Malformed { .. })),
            "{cut}: {outcome:?}"
        );
    }
    for client_id in [&[0xff, 0xfe][..], &[0, 1, 0x80], &[0, 9, b'x']] {
        let outcome = decode_request(frame(ApiKey::Metadata as i16, 1, client_id));
        assert!(
            matches!(outcome, Err(RequestError::Malformed { .. })),
            "{client_id:?}"
        );
    }
}

/// A later ApiVersions may have any body, and even another header after the correlation id.
#[test]
fn api_versions_of_the_future_is_answered_in_version_0() {
    for rest in [
        NO_CLIENT,
        &[],
        &[0, 3, b'a', b'b', b'c', 0, 1, 2, 3],
        &[0xff; 30],
        &[0x7f, 0xff],
    ] {
        let error = decode_request(frame(18, 5, rest)).expect_err("not served");
        let header = error.wants_api_versions_fallback().expect("a fallback");
        let expected: &[u8] = &[
            0, 0, 0, 16, // length
            0, 0, 0, 42, // correlation id; no tagged fields in any version
            0, 35, // UNSUPPORTED_VERSION
            0, 0, 0, 1, // one API:
            0, 18, 0, 0, 0, 4, // ApiVersions, 0 to 4; and no throttle time
        ];
        assert_eq!(api_versions_fallback(header), expected);
    }
    let other = decode_request(frame(3, 99, NO_CLIENT)).expect_err("not served");
    assert_eq!(
        other.wants_api_versions_fallback(),
        None,
        "all others close the connection"
    );
}

#[test]
fn a_client_reads_the_fallback_in_any_version() {
    let header = RequestHeader {
        api_key: 18,
        api_version: 4,
        correlation_id: 9,
        client_id: None,
    };
    let frame = api_versions_fallback(&header);
    let (correlation_id, response) =
        decode_response(ApiKey::ApiVersions, 4, frame.slice(4..)).expect("read");
    let Response::ApiVersions(body) = response else {
        panic!("{response:?}")
    };
    assert_eq!((correlation_id, body.error_code), (9, 35));
    assert_eq!(
        (body.api_keys[0].min_version, body.api_keys[0].max_version),
        (0, 4)
    );
}

#[test]
fn api_versions_lists_the_table_in_every_version() {
    let body = Response::from(api_versions_response(ErrorCode::None));
    for api_version in 0..=4 {
        let header = RequestHeader {
            api_key: 18,
            api_version,
            correlation_id: 1,
            client_id: None,
        };
        let frame = encode_response(&header, &body).expect("encode");
        assert_eq!(
            frame[4..10],
            [0, 0, 0, 1, 0, 0],
            "header version 0, then the error"
        );
        let (_, again) =
            decode_response(ApiKey::ApiVersions, api_version, frame.slice(4..)).expect("decode");
        assert_eq!(again, body, "version {api_version}");
    }
}

#[test]
fn software_names() {
    for good in ["apache-kafka-java", "librdkafka", "a", "4.3.0", "A.b-9"] {
        assert!(is_software_name(good), "{good}");
    }
    for bad in ["", "-a", "a-", ".a", "a.", "a b", "a_b", "\u{e4}", "a\n"] {
        assert!(!is_software_name(bad), "{bad:?}");
    }
}

#[test]
fn encoding_refuses_what_the_version_cannot_say() {
    let produce = Request::from(ProduceRequest::default());
    assert!(
        encode_request(ApiKey::Metadata, 1, 1, None, &produce).is_err(),
        "wrong API"
    );
    assert!(
        encode_request(ApiKey::Produce, 99, 1, None, &produce).is_err(),
        "no such version"
    );
    let metadata = Request::from(MetadataRequest::default().with_allow_auto_topic_creation(false));
    assert!(
        encode_request(ApiKey::Metadata, 1, 1, None, &metadata).is_err(),
        "not in version 1"
    );
    let long = "x".repeat(40_000);
    let versions = Request::from(ApiVersionsRequest::default());
    assert!(encode_request(ApiKey::ApiVersions, 0, 1, Some(&long), &versions).is_err());

    let header = RequestHeader {
        api_key: 0,
        api_version: 3,
        correlation_id: 1,
        client_id: None,
    };
    let response = Response::from(MetadataResponse::default());
    assert!(
        encode_response(&header, &response).is_err(),
        "the answer to another request"
    );
}

#[test]
fn librdkafkas_metadata_request_with_three_bytes_behind_it_is_read() {
    // As sent by confluent-kafka 2.16.1: "all topics", version 13.
    let frame = "0003000d00000008000772646b61666b610000000000010000";
    let bytes: Vec<u8> = (0..frame.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&frame[at..at + 2], 16).expect("hex"))
        .collect();
    let (header, request) = decode_request(Bytes::from(bytes.clone())).expect("it is read");
    assert_eq!((header.api_version, header.correlation_id), (13, 8));
    let Request::Metadata(request) = request else {
        panic!("not a Metadata request");
    };
    assert_eq!(request.topics, None, "all topics");
    let mut four_more = bytes;
    four_more.push(0);
    assert!(
        decode_request(Bytes::from(four_more)).is_err(),
        "no client sends a fourth"
    );
}
