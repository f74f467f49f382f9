//! Corners of Kafka's protocol that clients stand in: what is out of range, asked for twice, asked
//! for in another version's words, or claimed by a header that does not keep it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, BytesMut};
use corduroy_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use corduroy_protocol::messages::{
    BrokerId, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
    ProducerId, TopicName,
};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};
use corduroy_record::{Batch, BatchBuilder, BuilderOptions, Compression, crc32c};
use support::wire::{Wire, batch, values};
use support::{Cluster, alone, wait_until};
use uuid::Uuid;

const ANSWER: Duration = Duration::from_secs(10);

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.expect("after 1970").as_millis()).expect("in range")
}

/// (error, offset, timestamp) of each (partition, timestamp) asked for, in version 9.
fn list_offsets(wire: &mut Wire, topic: &str, asked: &[(i32, i64)]) -> Vec<(ErrorCode, i64, i64)> {
    let partitions = asked
        .iter()
        .map(|(partition, timestamp)| {
            ListOffsetsPartition::default()
                .with_partition_index(*partition)
                .with_current_leader_epoch(-1)
                .with_timestamp(*timestamp)
        })
        .collect();
    let topic = ListOffsetsTopic::default()
        .with_name(name(topic))
        .with_partitions(partitions);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    let answer = wire.call(9, &Request::ListOffsets(request));
    let Ok(Response::ListOffsets(response)) = answer else {
        panic!("not an answer to ListOffsets");
    };
    response.topics[0]
        .partitions
        .iter()
        .map(|p| (ErrorCode::from_code(p.error_code), p.offset, p.timestamp))
        .collect()
}

fn take(wire: &mut Wire, topic: &str, batch: &Batch) -> i64 {
    let produced = wire
        .produce((topic, 0), -1, ANSWER, batch)
        .expect("answered");
    assert_eq!(produced.error, ErrorCode::None);
    produced.base_offset
}

/// A batch of one record each at these times.
fn timed(times: &[i64]) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for time in times {
        builder
            .push(*time, None, Some(b"timed"), &[])
            .expect("it fits");
    }
    builder.finish()
}

/// The batch with another largest timestamp in its header, and a CRC that fits.
fn claiming(batch: &Batch, max_timestamp: i64) -> Batch {
    let mut bytes = BytesMut::from(&batch.to_bytes()[..]);
    (&mut bytes[35..43]).put_i64(max_timestamp);
    let crc = crc32c(&bytes[21..]);
    (&mut bytes[17..21]).put_u32(crc);
    Batch::parse(bytes.freeze()).expect("a batch")
}

#[test]
fn a_header_that_claims_another_time_hides_no_batch() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("claims", 1, &[]);
    let mut wire = cluster.wire(1);
    let start = now_ms() - 100_000;
    take(&mut wire, "claims", &timed(&[start, start + 10]));
    let lying = claiming(&timed(&[start + 20, start + 30]), start + 5_000);
    take(&mut wire, "claims", &lying);
    take(&mut wire, "claims", &lying);
    take(&mut wire, "claims", &timed(&[start + 40, start + 50]));
    let hiding = claiming(&timed(&[start + 60]), start);
    take(&mut wire, "claims", &hiding);
    let cases = [
        (start + 5, (1, start + 10)),
        (start + 25, (3, start + 30)),
        (start + 35, (6, start + 40)),
        (start + 45, (7, start + 50)),
        (start + 51, (8, start + 60)),
        (start + 61, (-1, -1)),
    ];
    for (asked, (offset, timestamp)) in cases {
        let found = list_offsets(&mut wire, "claims", &[(0, asked)]);
        assert_eq!(
            found,
            [(ErrorCode::None, offset, timestamp)],
            "from {} ms on",
            asked - start
        );
    }
    let highest = list_offsets(&mut wire, "claims", &[(0, -3)]);
    assert_eq!(
        highest,
        [(ErrorCode::None, 8, start + 60)],
        "a record, not the header's claim"
    );
}

#[test]
fn only_the_leader_sets_the_timestamp_type_log_append_time() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("typed", 1, &[]);
    let mut wire = cluster.wire(1);
    let mut stamped = timed(&[now_ms() - 50, now_ms()]);
    stamped.set_log_append_time(now_ms());
    let refused = wire.produce(("typed", 0), -1, ANSWER, &stamped);
    let refused = refused.expect("answered");
    assert_eq!(refused.error, ErrorCode::InvalidTimestamp);
    assert_eq!(refused.base_offset, -1);
    assert_eq!(take(&mut wire, "typed", &timed(&[now_ms()])), 0);
}

#[test]
fn tiered_storage_holds_nothing_and_what_is_asked_twice_is_refused_twice() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("asked", 2, &[]);
    let mut wire = cluster.wire(1);
    take(&mut wire, "asked", &batch(None, &["a", "b"]));
    let answers = list_offsets(&mut wire, "asked", &[(0, -5)]);
    assert_eq!(
        answers,
        [(ErrorCode::None, -1, -1)],
        "the end of tiered data"
    );
    let answers = list_offsets(&mut wire, "asked", &[(0, -6)]);
    assert_eq!(answers[0].0, ErrorCode::UnsupportedVersion);
    let answers = list_offsets(&mut wire, "asked", &[(0, -1), (1, -1), (0, -2)]);
    assert_eq!(
        answers,
        [
            (ErrorCode::InvalidRequest, -1, -1),
            (ErrorCode::None, 0, -1),
            (ErrorCode::InvalidRequest, -1, -1)
        ]
    );
}

#[test]
fn a_fetch_below_the_logs_start_is_told_where_it_starts() {
    let _alone = alone();
    let cluster = Cluster::start_with(1, &["--set", "log.retention.check.interval.ms=200"]);
    let configs = ["segment.bytes=16384", "retention.bytes=32768"];
    cluster.create_topic("shrunk", 1, &configs);
    let mut wire = cluster.wire(1);
    for _ in 0..40 {
        take(&mut wire, "shrunk", &batch(None, &["s".repeat(4000)]));
    }
    wait_until("retention has moved the start", || {
        list_offsets(&mut wire, "shrunk", &[(0, -2)])[0].1 > 0
    });
    // It may still move: what is told lies between two looks.
    let low = list_offsets(&mut wire, "shrunk", &[(0, -2)])[0].1;
    let fetched = wire.fetch("shrunk", 0, 0, ANSWER).expect("answered");
    let high = list_offsets(&mut wire, "shrunk", &[(0, -2)])[0].1;
    assert_eq!(fetched.error, ErrorCode::OffsetOutOfRange);
    assert!(
        (low..=high).contains(&fetched.log_start_offset),
        "{} is not in {low}..={high}",
        fetched.log_start_offset
    );
    assert_eq!(fetched.high_watermark, -1);
    let found = wire
        .fetch("shrunk", 0, fetched.log_start_offset, ANSWER)
        .expect("answered");
    assert_eq!(values(&found)[0].0, fetched.log_start_offset);
}

/// (error, name) of each topic of an answer.
fn metadata(
    wire: &mut Wire,
    version: i16,
    topics: &[(Option<&str>, Uuid)],
) -> Vec<(ErrorCode, Option<String>)> {
    let topics = topics
        .iter()
        .map(|(topic, id)| {
            MetadataRequestTopic::default()
                .with_name(topic.map(name))
                .with_topic_id(*id)
        })
        .collect();
    let request = MetadataRequest::default()
        .with_topics(Some(topics))
        .with_allow_auto_topic_creation(false);
    let answer = wire.call(version, &Request::Metadata(request));
    let Ok(Response::Metadata(response)) = answer else {
        panic!("not an answer to Metadata");
    };
    let topics = response.topics.iter();
    topics
        .map(|topic| {
            let name = topic.name.as_ref().map(|name| name.to_string());
            (ErrorCode::from_code(topic.error_code), name)
        })
        .collect()
}

#[test]
fn topic_ids_are_asked_for_from_version_12_on() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("known", 1, &[]);
    let mut wire = cluster.wire(1);
    let (none, unknown) = (Uuid::nil(), Uuid::from_u128(0xabc));
    let known = Some("known".to_owned());
    for version in [10, 11] {
        let by_name = metadata(&mut wire, version, &[(Some("known"), none)]);
        assert_eq!(by_name, [(ErrorCode::None, known.clone())]);
        let by_id = metadata(&mut wire, version, &[(Some("known"), unknown)]);
        assert_eq!(by_id, [(ErrorCode::InvalidRequest, known.clone())]);
    }
    let asked = [(Some("known"), none), (None, unknown), (None, none)];
    let answers = metadata(&mut wire, 12, &asked);
    assert_eq!(
        answers,
        [
            (ErrorCode::None, known),
            (ErrorCode::UnknownTopicId, None),
            (ErrorCode::InvalidRequest, None)
        ]
    );
}

/// What version 9 of Produce answers for a batch: error, message, (place, message) of records.
fn refused(wire: &mut Wire, topic: &str, batch: &Batch) -> (ErrorCode, String, Vec<(i32, String)>) {
    let data = PartitionProduceData::default().with_records(Some(batch.to_bytes()));
    let data = TopicProduceData::default()
        .with_name(name(topic))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![data]);
    let answer = wire.call(9, &Request::Produce(request));
    let Ok(Response::Produce(response)) = answer else {
        panic!("not an answer to Produce");
    };
    let partition = &response.responses[0].partition_responses[0];
    assert_eq!(partition.base_offset, -1);
    let text = |text: &Option<StrBytes>| text.as_deref().unwrap_or_default().to_owned();
    let records = partition.record_errors.iter();
    (
        ErrorCode::from_code(partition.error_code),
        text(&partition.error_message),
        records
            .map(|r| (r.batch_index, text(&r.batch_index_error_message)))
            .collect(),
    )
}

/// Three records in a codec; `change` spoils their bytes before they are compressed. Counts and
/// CRC fit, as from a client whose encoder is wrong.
fn spoilt(codec: Compression, change: impl FnOnce(&mut Vec<u8>)) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for value in ["one", "two", "three"] {
        builder
            .push(now_ms(), None, Some(value.as_bytes()), &[])
            .expect("it fits");
    }
    let wire = builder.finish().to_bytes();
    let mut records = wire[61..].to_vec();
    change(&mut records);
    let stored = codec.compress(&records).expect("compressed");
    let mut wire = BytesMut::from(&wire[..61]);
    wire.extend_from_slice(&stored);
    let length = i32::try_from(wire.len() - 12).expect("small");
    (&mut wire[8..12]).put_i32(length);
    (&mut wire[21..23]).put_i16(i16::from(codec.code()));
    let crc = crc32c(&wire[21..]);
    (&mut wire[17..21]).put_u32(crc);
    Batch::parse(wire.freeze()).expect("a batch")
}

#[test]
fn garbage_with_a_right_crc_is_refused_and_leaves_the_log_as_it_was() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("clean", 1, &[]);
    let mut wire = cluster.wire(1);
    for codec in Compression::ALL {
        let garbage = spoilt(codec, |records| records.fill(0xa7));
        let (error, message, records) = refused(&mut wire, "clean", &garbage);
        assert_eq!(error, ErrorCode::InvalidRecord, "{codec:?}: {message}");
        assert!(message.contains("record 0"), "{codec:?}: {message}");
        assert_eq!(records[0].0, 0, "{codec:?}");
        // The second record says that it is the third: its offset delta follows its length, its
        // attributes and its time, a byte each.
        let second = 1 + 6 + "one".len();
        let place = spoilt(codec, |records| records[second + 3] = 4);
        let (error, _, records) = refused(&mut wire, "clean", &place);
        assert_eq!(error, ErrorCode::InvalidRecord, "{codec:?}");
        assert_eq!(records.len(), 1, "{codec:?}");
        assert_eq!(records[0].0, 1, "{codec:?}: the place of the bad record");
        assert!(
            records[0].1.contains("offset delta"),
            "{codec:?}: {records:?}"
        );
        let cut = spoilt(codec, |records| records.truncate(12));
        assert_eq!(
            refused(&mut wire, "clean", &cut).0,
            ErrorCode::InvalidRecord
        );
        let more = spoilt(codec, |records| records.push(0));
        assert_eq!(
            refused(&mut wire, "clean", &more).0,
            ErrorCode::InvalidRecord
        );
    }
    for (n, codec) in (0..).zip(Compression::ALL) {
        let sound = spoilt(codec, |_| {});
        assert_eq!(take(&mut wire, "clean", &sound), 3 * n, "{codec:?}");
    }
    let fetched = wire.fetch("clean", 0, 0, ANSWER).expect("answered");
    assert_eq!(values(&fetched)[0], (0, "one".to_owned()));
}

#[test]
fn a_compacted_topic_names_each_record_without_a_key() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("keyed", 1, &["cleanup.policy=compact"]);
    let mut wire = cluster.wire(1);
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for key in [Some(&b"a"[..]), None, Some(&b""[..]), None] {
        builder
            .push(now_ms(), key, Some(b"v"), &[])
            .expect("it fits");
    }
    let (error, _, records) = refused(&mut wire, "keyed", &builder.finish());
    assert_eq!(error, ErrorCode::InvalidRecord);
    let places: Vec<i32> = records.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [1, 3]);
    assert!(records[0].1.contains("no key"), "{records:?}");
}

#[test]
fn a_producer_id_that_nobody_was_given_is_not_taken_on_trust() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    let mut ask = |id: i64, epoch: i16| {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(epoch);
        let answer = wire.call(4, &Request::InitProducerId(request));
        let Ok(Response::InitProducerId(response)) = answer else {
            panic!("not an answer to InitProducerId");
        };
        let error = ErrorCode::from_code(response.error_code);
        (error, response.producer_id.0, response.producer_epoch)
    };
    let (error, given, epoch) = ask(-1, -1);
    assert_eq!((error, epoch), (ErrorCode::None, 0));
    wait_until("this node knows which ids have been given", || {
        ask(given, 0) == (ErrorCode::None, given, 1)
    });
    let (error, other, epoch) = ask(given + 1_000_000, 3);
    assert_eq!((error, epoch), (ErrorCode::None, 0), "a new identity");
    assert!(other != given && other < given + 1_000_000, "{other}");
    assert_eq!(ask(given, -1).0, ErrorCode::InvalidRequest);
    assert_eq!(ask(-1, 0).0, ErrorCode::InvalidRequest);
}
