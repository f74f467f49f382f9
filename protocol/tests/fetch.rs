//! The hand-written Fetch response, judged by the generated decoder.

use bytes::Bytes;
use corduroy_protocol::{
    ApiKey, ErrorCode, FetchPartitionData, FetchResponseData, FetchTopicData, RequestHeader,
    Response, StrBytes, decode_fetch_response, decode_response, encode_fetch_response,
};
use corduroy_record::{Batch, BatchBuilder, BuilderOptions, LeaderEpoch, Offset, parse_many};

fn batch(base_offset: i64, value: &str) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    builder
        .push(0, None, Some(value.as_bytes()), &[])
        .expect("push");
    let mut batch = builder.finish();
    batch.stamp(Offset::new(base_offset), LeaderEpoch::new(3));
    batch
}

fn header(api_version: i16) -> RequestHeader {
    RequestHeader {
        api_key: 1,
        api_version,
        correlation_id: 77,
        client_id: None,
    }
}

/// Two topics: several batches, none, an error; every optional field set somewhere.
fn sample() -> FetchResponseData {
    let full = FetchPartitionData {
        partition: 0,
        error: ErrorCode::None,
        high_watermark: 1 << 40,
        last_stable_offset: 90,
        log_start_offset: 5,
        diverging_epoch: Some((4, 80)),
        current_leader: Some((2, 9)),
        aborted: Some(vec![(11, 6), (12, 7)]),
        preferred_read_replica: 3,
        batches: vec![
            batch(10, "ten"),
            batch(11, &"x".repeat(300)),
            batch(12, "twelve"),
        ],
    };
    let empty = FetchPartitionData {
        partition: 1,
        high_watermark: 7,
        last_stable_offset: 7,
        log_start_offset: 0,
        diverging_epoch: None,
        current_leader: None,
        aborted: Some(vec![]),
        preferred_read_replica: -1,
        batches: vec![],
        ..full.clone()
    };
    let failed = FetchPartitionData {
        current_leader: Some((1, 8)),
        ..FetchPartitionData::failed(300, ErrorCode::NotLeaderOrFollower)
    };
    FetchResponseData {
        throttle_ms: 12,
        error: ErrorCode::None,
        session_id: 0,
        topics: vec![
            FetchTopicData {
                name: StrBytes::from_static_str("first"),
                partitions: vec![full, empty],
            },
            FetchTopicData {
                name: StrBytes::from_string("t".repeat(249)),
                partitions: vec![failed],
            },
        ],
    }
}

#[test]
fn every_version_is_decoded_to_what_was_meant() {
    let data = sample();
    for version in 4..=12 {
        let pieces = encode_fetch_response(&header(version), &data);
        let frame = Bytes::from(pieces.concat());
        assert_eq!(
            frame[..4],
            (frame.len() as i32 - 4).to_be_bytes(),
            "version {version}"
        );
        let (correlation_id, view) =
            decode_fetch_response(version, frame.slice(4..)).expect("decode");
        assert_eq!(correlation_id, 77);
        assert_eq!(
            (view.throttle_ms, view.error, view.session_id),
            (12, ErrorCode::None, 0)
        );
        assert_eq!(view.topics.len(), data.topics.len());
        for (topic, expected) in view.topics.iter().zip(&data.topics) {
            assert_eq!(topic.name, expected.name);
            assert_eq!(topic.partitions.len(), expected.partitions.len());
            for (found, expected) in topic.partitions.iter().zip(&expected.partitions) {
                let what = format!("version {version}, partition {}", expected.partition);
                assert_eq!(found.partition, expected.partition, "{what}");
                assert_eq!(found.error, expected.error, "{what}");
                assert_eq!(found.high_watermark, expected.high_watermark, "{what}");
                assert_eq!(
                    found.last_stable_offset, expected.last_stable_offset,
                    "{what}"
                );
                assert_eq!(found.aborted, expected.aborted, "{what}");
                let since = |from, value, default| if version >= from { value } else { default };
                let log_start = since(5, expected.log_start_offset, -1);
                assert_eq!(found.log_start_offset, log_start, "{what}");
                let nearer = i64::from(expected.preferred_read_replica);
                assert_eq!(
                    i64::from(found.preferred_read_replica),
                    since(11, nearer, -1),
                    "{what}"
                );
                let is_tagged = version >= 12;
                assert_eq!(
                    found.diverging_epoch,
                    expected.diverging_epoch.filter(|_| is_tagged),
                    "{what}"
                );
                assert_eq!(
                    found.current_leader,
                    expected.current_leader.filter(|_| is_tagged),
                    "{what}"
                );
                let batches: Vec<Batch> = parse_many(found.records.clone())
                    .collect::<Result<_, _>>()
                    .expect("batches");
                assert_eq!(batches, expected.batches, "{what}");
            }
        }
    }
}

/// "No records" is an empty field, never null: old clients trip over null.
#[test]
fn no_records_is_not_null() {
    for version in 4..=12 {
        let frame = Bytes::from(encode_fetch_response(&header(version), &sample()).concat());
        let (_, response) =
            decode_response(ApiKey::Fetch, version, frame.slice(4..)).expect("decode");
        let Response::Fetch(body) = response else {
            panic!("{response:?}")
        };
        for topic in body.responses {
            for partition in topic.partitions {
                assert!(partition.records.is_some(), "version {version}");
            }
        }
    }
}

#[test]
fn bodies_are_shared_and_heads_are_packed() {
    let data = sample();
    let batches: Vec<&Batch> = data.topics[0].partitions[0].batches.iter().collect();
    let pieces = encode_fetch_response(&header(12), &data);
    assert_eq!(pieces.len(), 2 * batches.len() + 1);
    for (batch, piece) in batches.iter().zip(pieces.iter().skip(1).step_by(2)) {
        assert_eq!(
            piece.as_ptr(),
            batch.body().as_ptr(),
            "the body is the batch's own memory"
        );
        assert_eq!(piece.len(), batch.body().len());
    }
    assert!(
        pieces[2].len() == 16,
        "between two batches stands the second one's head alone"
    );

    let frame = Bytes::from(pieces.concat()).slice(4..);
    let (_, view) = decode_fetch_response(12, frame.clone()).expect("decode");
    let records = &view.topics[0].partitions[0].records;
    assert!(
        frame.as_ptr_range().contains(&records.as_ptr()),
        "the client shares the frame"
    );
}

#[test]
fn an_empty_response_is_one_piece() {
    let data = FetchResponseData {
        throttle_ms: 0,
        error: ErrorCode::FetchSessionIdNotFound,
        session_id: 0,
        topics: vec![],
    };
    for version in 4..=12 {
        let pieces = encode_fetch_response(&header(version), &data);
        assert_eq!(pieces.len(), 1);
        let (_, view) = decode_fetch_response(version, pieces[0].slice(4..)).expect("decode");
        let expected = if version >= 7 {
            data.error
        } else {
            ErrorCode::None
        };
        assert_eq!(view.error, expected);
        assert_eq!(view.topics, []);
    }
}
