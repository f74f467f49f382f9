//! Golden frames of Apache Kafka's Java client: read, and written back byte for byte.

use bytes::Bytes;
use corduroy_protocol::messages::consumer_group_heartbeat_response::Assignment;
use corduroy_protocol::{
    ApiKey, FetchPartitionData, FetchResponseData, FetchTopicData, FetchedView, RequestHeader,
    Response, SERVED, decode_fetch_response, decode_request, decode_response,
    encode_fetch_response, encode_request, encode_response,
};
use corduroy_record::parse_many;

const MESSAGES: &str = include_str!("golden/messages.txt");

struct Golden {
    name: String,
    kind: &'static str,
    key: ApiKey,
    version: i16,
    sample: &'static str,
    frame: Bytes,
    body_at: usize,
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).expect("a hex digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn goldens(kind: &str) -> Vec<Golden> {
    let lines = MESSAGES.lines().filter(|line| !line.starts_with('#'));
    let all = lines.map(|line| {
        let words: Vec<&'static str> = line.split(' ').collect();
        let key: i16 = words[1].parse().expect("key");
        let key = ApiKey::try_from(key).expect("known key");
        let header = unhex(words[4]);
        let body_at = header.len();
        Golden {
            name: format!("{key:?} version {} ({} {})", words[2], words[0], words[3]),
            kind: words[0],
            key,
            version: words[2].parse().expect("version"),
            sample: words[3],
            frame: Bytes::from([header, unhex(words.get(5).copied().unwrap_or(""))].concat()),
            body_at,
        }
    });
    all.filter(|golden| golden.kind == kind).collect()
}

/// The frame without the length in front.
fn unframed(frame: Bytes) -> Bytes {
    let length = i32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
    assert_eq!(
        length as usize,
        frame.len() - 4,
        "the length counts what follows"
    );
    frame.slice(4..)
}

#[test]
fn there_are_goldens_for_every_served_version() {
    for kind in ["request", "response"] {
        let goldens = goldens(kind);
        for range in SERVED {
            for version in range.served_min..=range.max {
                for sample in ["full", "empty"] {
                    let found = goldens.iter().filter(|golden| {
                        golden.key == range.key
                            && golden.version == version
                            && golden.sample == sample
                    });
                    let name = format!("{kind} {:?} version {version} {sample}", range.key);
                    assert_eq!(found.count(), 1, "{name}");
                }
            }
        }
    }
}

#[test]
fn requests_are_read_and_written_back() {
    for Golden {
        name,
        key,
        version,
        frame,
        ..
    } in goldens("request")
    {
        let (header, request) = decode_request(frame.clone()).expect(&name);
        assert_eq!(
            (header.api_key, header.api_version),
            (key as i16, version),
            "{name}"
        );
        assert_eq!(header.correlation_id, 7, "{name}");
        assert_eq!(request.key(), key, "{name}");
        let again = encode_request(key, version, 7, header.client_id.as_deref(), &request);
        assert_eq!(unframed(again.expect(&name)), frame, "{name}");
    }
}

#[test]
fn responses_are_read_and_written_back() {
    for Golden {
        name,
        key,
        version,
        frame,
        ..
    } in goldens("response")
    {
        let (correlation_id, response) = decode_response(key, version, frame.clone()).expect(&name);
        assert_eq!(correlation_id, 7, "{name}");
        let again = encode_response(&header(key, version), &response).expect(&name);
        assert_eq!(unframed(again), frame, "{name}");
    }
}

fn header(key: ApiKey, version: i16) -> RequestHeader {
    RequestHeader {
        api_key: key as i16,
        api_version: version,
        correlation_id: 7,
        client_id: None,
    }
}

/// What our encoder would be given to say the same as a decoded response.
fn data(view: &FetchedView) -> FetchResponseData {
    let topics = view.topics.iter().map(|topic| FetchTopicData {
        name: topic.name.clone(),
        partitions: topic
            .partitions
            .iter()
            .map(|partition| FetchPartitionData {
                partition: partition.partition,
                error: partition.error,
                high_watermark: partition.high_watermark,
                last_stable_offset: partition.last_stable_offset,
                log_start_offset: partition.log_start_offset,
                diverging_epoch: partition.diverging_epoch,
                current_leader: partition.current_leader,
                aborted: partition.aborted.clone(),
                preferred_read_replica: partition.preferred_read_replica,
                batches: parse_many(partition.records.clone())
                    .map(|batch| batch.expect("batch"))
                    .collect(),
            })
            .collect(),
    });
    FetchResponseData {
        throttle_ms: view.throttle_ms,
        error: view.error,
        session_id: view.session_id,
        topics: topics.collect(),
    }
}

#[test]
fn our_fetch_encoder_writes_what_java_writes() {
    let mut seen = 0;
    for Golden {
        name,
        key,
        version,
        sample,
        frame,
        ..
    } in goldens("response")
    {
        if key != ApiKey::Fetch {
            continue;
        }
        let (_, view) = decode_fetch_response(version, frame.clone()).expect(&name);
        let pieces = encode_fetch_response(&header(key, version), &data(&view));
        let ours = unframed(Bytes::from(pieces.concat()));
        // Java's sample also sets the snapshot id (tag 2 of a partition), which only replicas of
        // KRaft's metadata read: from version 12 on compare what both can say. And we write no null
        // for no records.
        if version < 12 && sample != "null" {
            assert_eq!(ours, frame, "{name}");
        }
        assert_eq!(
            decode_fetch_response(version, ours).expect(&name).1,
            view,
            "{name}"
        );
        seen += 1;
    }
    assert_eq!(seen, 3 * 9);
}

/// Every way to cut a frame, and one byte more, is refused.
#[test]
fn cut_and_overlong_frames_are_refused() {
    for Golden {
        name,
        kind,
        key,
        version,
        frame,
        ..
    } in goldens("request").into_iter().chain(goldens("response"))
    {
        let is_refused = |frame: Bytes| match kind {
            "request" => decode_request(frame).is_err(),
            _ => decode_response(key, version, frame).is_err(),
        };
        for cut in 0..frame.len() {
            assert!(is_refused(frame.slice(..cut)), "{name} cut at {cut}");
        }
        let longer = Bytes::from([&frame[..], &[0]].concat());
        assert!(is_refused(longer), "{name} with a byte too many");
    }
}

/// Unknown tagged fields are skipped, wherever they stand at the end of a flexible body.
#[test]
fn unknown_tagged_fields_are_skipped() {
    let mut seen = 0;
    for Golden {
        name,
        key,
        version,
        frame,
        body_at,
        ..
    } in goldens("request")
    {
        // A flexible request's header ends with its own tag count; so does the body.
        let is_flexible = corduroy_protocol::request_header_version(key, version) == 2;
        if !is_flexible || frame[frame.len() - 1] != 0 || name.contains("full") {
            continue;
        }
        let (body_end, header_end) = (frame.len() - 1, body_at - 1);
        let unknown: &[u8] = &[1, 99, 2, 0xab, 0xcd];
        let tagged = [
            &frame[..header_end],
            unknown,
            &frame[body_at..body_end],
            unknown,
        ]
        .concat();
        let (_, plain) = decode_request(frame.clone()).expect(&name);
        let (_, request) = decode_request(Bytes::from(tagged)).expect(&name);
        assert_eq!(request.key(), plain.key(), "{name}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

/// The byte in front of a nullable struct is 1 or -1. Readers differ about all others, so a frame
/// with one of them is refused rather than read at two different places.
#[test]
fn a_struct_is_there_or_null() {
    // Before it: correlation id, tags, throttle time, error, message "s3", member "s4", two numbers.
    const PRESENCE_AT: usize = 4 + 1 + 4 + 2 + 3 + 3 + 4 + 4;
    const KEY: ApiKey = ApiKey::ConsumerGroupHeartbeat;
    let mut seen = 0;
    for golden in goldens("response") {
        if (golden.key, golden.sample) != (KEY, "full") {
            continue;
        }
        assert_eq!(golden.frame[PRESENCE_AT], 1, "{}", golden.name);
        let (_, whole) = decode_response(KEY, golden.version, golden.frame.clone()).expect("whole");
        let Response::ConsumerGroupHeartbeat(body) = whole else {
            panic!("{whole:?}")
        };
        let assignment = body.assignment.expect("it is there");
        let topics = assignment.topic_partitions.into_iter();
        let partitions: Vec<Vec<i32>> = topics.map(|topic| topic.partitions).collect();
        assert_eq!(partitions, [[8, 9], [11, 12]], "{}", golden.name);

        // An assignment of nothing, that can also be read as none and one unknown tagged field.
        let read = |presence: u8| {
            let frame = [&golden.frame[..PRESENCE_AT], &[presence, 1, 0, 0]].concat();
            decode_response(KEY, golden.version, Bytes::from(frame))
        };
        let (_, nothing) = read(1).expect(&golden.name);
        let Response::ConsumerGroupHeartbeat(body) = nothing else {
            panic!("{nothing:?}")
        };
        assert_eq!(body.assignment, Some(Assignment::default()));
        for presence in [0, 2, 0x7f, 0x80, 0xfe] {
            assert!(read(presence).is_err(), "{} {presence}", golden.name);
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
}
