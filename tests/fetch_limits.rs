//! What one Fetch answers with stays within the client's limit, however many shards take part.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::wire::{batch, values};
use support::{Cluster, alone};

const WAIT: Duration = Duration::from_secs(10);
const RECORD_BYTES: usize = 4_000;
const RECORDS: i64 = 20;

#[test]
fn shards_share_the_limit_of_one_answer() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    // A node of these tests has two shards, and partitions of one topic go round them.
    cluster.create_topic("shared", 2, &[]);
    let mut wire = cluster.wire(1);
    for partition in 0..2 {
        for n in 0..RECORDS {
            let value = format!("{n:0width$}", width = RECORD_BYTES);
            let produced = wire
                .produce(("shared", partition), -1, WAIT, &batch(None, &[value]))
                .expect("answered");
            assert_eq!(produced.error, ErrorCode::None);
        }
    }
    let limit = 10 * RECORD_BYTES;
    let mut next = [0i64; 2];
    while next != [RECORDS; 2] {
        let wanted = [(0, next[0]), (1, next[1])];
        let fetched = wire
            .fetch_within("shared", &wanted, WAIT, limit as i32)
            .expect("answered");
        let found: Vec<Vec<(i64, String)>> = fetched.iter().map(values).collect();
        let bytes: usize = found.iter().flatten().map(|(_, value)| value.len()).sum();
        assert!(
            bytes <= limit,
            "{bytes} bytes of values with a limit of {limit}"
        );
        assert!(bytes > 0, "every answer gets further: {next:?}");
        for (next, found) in next.iter_mut().zip(&found) {
            for (offset, value) in found {
                assert_eq!(offset, next, "in order, each once");
                assert_eq!(value.parse(), Ok(*offset));
                *next += 1;
            }
        }
    }
}
