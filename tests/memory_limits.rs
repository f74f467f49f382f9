//! What clients make a node hold is bounded, and nobody's share keeps the others from being served.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use corduroy_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use corduroy_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use corduroy_protocol::messages::{BrokerId, FetchRequest, ProduceRequest, TopicName};
use corduroy_protocol::{ErrorCode, Request, StrBytes, encode_request};
use support::wire::batch;
use support::{Cluster, PATIENCE, alone, api_versions_request, corduroy, round_trip};

const ANSWER: Duration = Duration::from_secs(30);
const MIB: usize = 1024 * 1024;

fn connect(cluster: &Cluster) -> TcpStream {
    let stream = TcpStream::connect(cluster.nodes[0].kafka).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// A frame, with its length, that produces `bytes` zeros: a batch of no format that we take.
fn produce_zeros(bytes: usize) -> Vec<u8> {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(vec![0; bytes].into()));
    let data = TopicProduceData::default()
        .with_name(name("any"))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(1000)
        .with_topic_data(vec![data]);
    let request = Request::Produce(request);
    encode_request(request.key(), 9, 1, Some("test"), &request)
        .expect("encoded")
        .to_vec()
}

/// The next answer on a connection, without its length.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).expect("a whole answer");
    body
}

#[test]
fn large_frames_that_fill_the_memory_together_are_all_served() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let frame = produce_zeros(65 * MIB);
    // Five for each of the node's two shards. Of each, four hold 64 MiB of the shard's 256.
    let mut streams: Vec<TcpStream> = (0..10).map(|_| connect(&cluster)).collect();
    let (first, rest) = frame.split_at(40 * MIB);
    for stream in &mut streams[..8] {
        stream.write_all(first).expect("read");
    }
    // What is small waits for none of them, whatever they do next.
    let mut newcomer = connect(&cluster);
    round_trip(&mut newcomer, &api_versions_request(2)).expect("a newcomer is served");
    std::thread::scope(|scope| {
        for (at, stream) in streams.iter_mut().enumerate() {
            let unsent: &[u8] = if at < 8 { rest } else { &frame };
            scope.spawn(move || {
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                stream.write_all(unsent).expect("read to its end");
                let answer = answer(stream);
                assert_eq!(answer[..4], 1i32.to_be_bytes(), "its own answer");
            });
        }
    });
    let mut newcomer = connect(&cluster);
    round_trip(&mut newcomer, &api_versions_request(3)).expect("a newcomer is served");
}

#[test]
fn a_request_above_the_configured_size_closes_its_connection() {
    let _alone = alone();
    let cluster = Cluster::start_with(1, &["--set", "socket.request.max.bytes=100000"]);
    let mut stream = connect(&cluster);
    let longest = produce_zeros(99_900);
    assert!(longest.len() <= 100_004);
    stream.write_all(&longest).expect("sent");
    assert_eq!(answer(&mut stream)[..4], 1i32.to_be_bytes(), "served");
    // Refused by its length alone: nothing else is sent.
    stream.write_all(&100_001i32.to_be_bytes()).expect("sent");
    let mut rest = Vec::new();
    let closed = stream.read_to_end(&mut rest);
    assert!(
        closed.is_ok_and(|bytes| bytes == 0),
        "closed without an answer"
    );
    let refused = Command::new(corduroy())
        .args(["start", "--set", "socket.request.max.bytes=104857601"])
        .args([
            "--data-dir",
            &cluster.scratch().join("no").to_string_lossy(),
        ])
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("104857600"), "{said}");
}

/// A frame, with its length, that fetches up to 50 MiB from the start.
fn fetch_much(topic: &str) -> Vec<u8> {
    let bytes = 50 << 20;
    let partition = FetchPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(-1)
        .with_fetch_offset(0)
        .with_log_start_offset(-1)
        .with_partition_max_bytes(bytes);
    let topic = FetchTopic::default()
        .with_topic(name(topic))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(1000)
        .with_min_bytes(1)
        .with_max_bytes(bytes)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let request = Request::Fetch(request);
    encode_request(request.key(), 11, 1, Some("test"), &request)
        .expect("encoded")
        .to_vec()
}

#[test]
fn fetch_answers_that_nobody_takes_hold_a_bounded_memory() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("unread", 1, &[]);
    let mut wire = cluster.wire(1);
    let value = "v".repeat(MIB - 1024);
    for _ in 0..55 {
        let produced = wire
            .produce(("unread", 0), -1, ANSWER, &batch(None, &[&value]))
            .expect("answered");
        assert_eq!(produced.error, ErrorCode::None);
    }
    let before = cluster.nodes[0].resident_bytes();
    let fetch = fetch_much("unread");
    // One client asks for 1,200 MiB and takes nothing.
    let mut pipelining = connect(&cluster);
    for _ in 0..24 {
        pipelining.write_all(&fetch).expect("sent");
    }
    // Ten ask for 50 MiB each and take the length alone, by which time all of it has been read.
    let mut stalled: Vec<(TcpStream, usize)> = (0..10)
        .map(|_| {
            let mut stream = connect(&cluster);
            stream.write_all(&fetch).expect("sent");
            let mut length = [0; 4];
            stream.read_exact(&mut length).expect("an answer");
            (stream, u32::from_be_bytes(length) as usize)
        })
        .collect();
    let lengths: Vec<usize> = stalled.iter().map(|(_, length)| *length).collect();
    assert!(
        lengths.iter().all(|length| *length >= MIB - 1024),
        "{lengths:?}"
    );
    assert!(
        lengths[0] > 40 * MIB,
        "as long as there is room: {lengths:?}"
    );
    let grown = cluster.nodes[0].resident_bytes().saturating_sub(before);
    assert!(
        grown < 350 * MIB as u64,
        "{} MiB for answers that nobody takes: {lengths:?}",
        grown / MIB as u64
    );
    // What is not taken is there all the same, whole.
    let (stream, length) = &mut stalled[0];
    let mut body = vec![0; *length];
    stream.read_exact(&mut body).expect("the rest");
    drop(stalled);
    for _ in 0..3 {
        assert!(answer(&mut pipelining).len() >= MIB - 1024);
    }
}
