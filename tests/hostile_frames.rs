//! Bytes that no client would send: the connection closes or gets an error, memory stays flat,
//! and others do not notice.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::{Cluster, PATIENCE, api_versions_request, round_trip};

/// Memory that hostile connections may cost a node, all together.
const GROWTH_BYTES_MAX: u64 = 64 * 1024 * 1024;

fn connect(cluster: &Cluster) -> TcpStream {
    let stream = TcpStream::connect(cluster.nodes[0].kafka).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Whether the node closes the connection (or resets it) after what was sent.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe
        ),
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len())
        .expect("small")
        .to_be_bytes()
        .to_vec();
    frame.extend_from_slice(body);
    frame
}

fn request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&7i32.to_be_bytes());
    frame.extend_from_slice(&(-1i16).to_be_bytes());
    frame.extend_from_slice(body);
    framed(&frame)
}

#[test]
fn hostile_frames_close_their_own_connection_only() {
    let cluster = Cluster::start(1);
    let mut bystander = connect(&cluster);
    round_trip(&mut bystander, &api_versions_request(1)).expect("served");
    let before = cluster.nodes[0].resident_bytes();

    let mut garbage = vec![0u8; 4096];
    for (i, byte) in garbage.iter_mut().enumerate() {
        *byte = (i * 131 % 251) as u8;
    }
    let huge_array = i32::MAX.to_be_bytes();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("length 0", 0i32.to_be_bytes().to_vec()),
        ("length -1", (-1i32).to_be_bytes().to_vec()),
        ("length 2^31-1", i32::MAX.to_be_bytes().to_vec()),
        ("a frame of one byte", framed(&[3])),
        ("a frame of three bytes", framed(&[0, 3, 0])),
        (
            "an HTTP request",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        ),
        ("garbage in a frame", framed(&garbage)),
        ("an unknown key", request(9999, 0, &[])),
        ("an unknown version", request(3, 99, &[])),
        ("Metadata with 2^31-1 topics", request(3, 1, &huge_array)),
        (
            "CreateTopics with 2^31-1 topics",
            request(19, 2, &huge_array),
        ),
        (
            "DescribeConfigs with 2^31-1 resources",
            request(32, 1, &huge_array),
        ),
        ("Produce with 2^31-1 topics", {
            let mut body = (-1i16).to_be_bytes().to_vec();
            body.extend_from_slice(&1i16.to_be_bytes());
            body.extend_from_slice(&1000i32.to_be_bytes());
            body.extend_from_slice(&huge_array);
            request(0, 3, &body)
        }),
        ("Fetch with 2^31-1 topics", {
            let mut body = (-1i32).to_be_bytes().to_vec();
            body.extend_from_slice(&[0; 12]);
            body.push(0);
            body.extend_from_slice(&huge_array);
            request(1, 4, &body)
        }),
        (
            "trailing bytes",
            request(3, 1, &[0xff, 0xff, 0xff, 0xff, 1, 2, 3]),
        ),
    ];
    for (name, bytes) in &cases {
        for _ in 0..20 {
            let mut stream = connect(&cluster);
            // The node may close while we still write.
            let _closed_early = stream.write_all(bytes);
            assert!(is_closed(&mut stream), "{name}: the connection stays open");
        }
        round_trip(&mut bystander, &api_versions_request(2))
            .unwrap_or_else(|e| panic!("{name}: another connection was disturbed: {e}"));
    }

    let after = cluster.nodes[0].resident_bytes();
    assert!(
        after < before + GROWTH_BYTES_MAX,
        "memory grew from {before} to {after} bytes"
    );
}

#[test]
fn slow_senders_hold_no_memory_and_disturb_nobody() {
    let cluster = Cluster::start(1);
    let mut bystander = connect(&cluster);
    round_trip(&mut bystander, &api_versions_request(1)).expect("served");
    let before = cluster.nodes[0].resident_bytes();
    // Each claims 90 MiB and sends a little: together more than any budget.
    let mut slow: Vec<TcpStream> = (0..100).map(|_| connect(&cluster)).collect();
    for stream in &mut slow {
        stream
            .write_all(&(90 * 1024 * 1024i32).to_be_bytes())
            .expect("sent");
        stream.write_all(&[0; 100]).expect("sent");
    }
    for _ in 0..50 {
        round_trip(&mut bystander, &api_versions_request(3)).expect("still served");
    }
    let mut newcomer = connect(&cluster);
    newcomer
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    round_trip(&mut newcomer, &api_versions_request(4)).expect("newcomers are served");
    let after = cluster.nodes[0].resident_bytes();
    assert!(
        after < before + GROWTH_BYTES_MAX,
        "memory grew from {before} to {after} bytes"
    );
    // A truncated frame ends with its sender.
    for stream in slow {
        drop(stream);
    }
    round_trip(&mut bystander, &api_versions_request(5)).expect("still served");
}

#[test]
fn an_api_versions_request_of_the_future_is_answered_in_version_zero() {
    let cluster = Cluster::start(1);
    let mut stream = connect(&cluster);
    let mut frame = Vec::new();
    frame.extend_from_slice(&18i16.to_be_bytes());
    frame.extend_from_slice(&99i16.to_be_bytes());
    frame.extend_from_slice(&42i32.to_be_bytes());
    frame.extend_from_slice(&(-1i16).to_be_bytes());
    frame.push(0);
    let body = round_trip(&mut stream, &frame).expect("answered");
    assert_eq!(
        body[..4],
        42i32.to_be_bytes(),
        "the correlation id, and no tagged fields after it"
    );
    assert_eq!(body[4..6], 35i16.to_be_bytes(), "UNSUPPORTED_VERSION");
    let keys = i32::from_be_bytes(body[6..10].try_into().expect("four bytes"));
    assert_eq!(
        body.len(),
        10 + usize::try_from(keys).expect("a count") * 6,
        "exactly version 0"
    );
    let ranges: Vec<[i16; 3]> = body[10..]
        .chunks(6)
        .map(|c| {
            [0, 2, 4].map(|at| i16::from_be_bytes(c[at..at + 2].try_into().expect("two bytes")))
        })
        .collect();
    assert!(
        ranges.contains(&[18, 0, 4]),
        "ApiVersions itself is in the list: {ranges:?}"
    );
    round_trip(&mut stream, &api_versions_request(43)).expect("the connection goes on");
}
