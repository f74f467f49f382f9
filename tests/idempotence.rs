//! A producer that sends a batch again gets the offset it got before: after a restart of every
//! node, and from a replica that was rebuilt from a snapshot.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_record::{Batch, BatchBuilder, BuilderOptions, ProducerEpoch, ProducerId};
use support::traffic::{block_on, client, read_all};
use support::wire::{Produced, batch};
use support::{Cluster, alone, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

/// Records in each batch of these tests.
const BATCH_RECORDS: i32 = 3;

/// The n-th batch of a producer.
fn numbered(producer: (ProducerId, ProducerEpoch), n: i32) -> Batch {
    let values: Vec<String> = (0..BATCH_RECORDS).map(|i| format!("{n}.{i}")).collect();
    batch(Some((producer.0, producer.1, n * BATCH_RECORDS)), &values)
}

/// Sends a batch to whoever leads until it gets an answer that is not about leadership.
fn send(cluster: &Cluster, topic: &str, batch: &Batch) -> Produced {
    let mut answer = None;
    wait_until("the leader answers", || {
        let leader = cluster.leader(topic, 0);
        match cluster.wire(leader).produce((topic, 0), -1, ANSWER, batch) {
            Ok(produced) if !produced.error.is_retriable() => {
                answer = Some(produced);
                true
            }
            _ => false,
        }
    });
    answer.expect("waited for")
}

fn new_producer(cluster: &Cluster, topic: &str) -> (ProducerId, ProducerEpoch) {
    cluster
        .wire(cluster.leader(topic, 0))
        .producer_id()
        .expect("an id")
}

#[test]
fn the_window_survives_a_restart_of_every_node() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "window";
    cluster.create_topic(topic, 1, &[]);
    let producer = new_producer(&cluster, topic);
    let sent: Vec<(Batch, i64)> = (0..7)
        .map(|n| {
            let batch = numbered(producer, n);
            let produced = send(&cluster, topic, &batch);
            assert_eq!(produced.error, ErrorCode::None);
            (batch, produced.base_offset)
        })
        .collect();
    let check = |cluster: &Cluster, when: &str| {
        for (batch, offset) in &sent[2..] {
            let again = send(cluster, topic, batch);
            assert_eq!(
                again,
                Produced {
                    error: ErrorCode::None,
                    base_offset: *offset
                },
                "{when}: one of the last five, sent again"
            );
        }
        for (batch, _) in &sent[..2] {
            let again = send(cluster, topic, batch);
            assert_eq!(
                again.error,
                ErrorCode::OutOfOrderSequenceNumber,
                "{when}: too old"
            );
        }
        let gap = send(cluster, topic, &numbered(producer, 50));
        assert_eq!(
            gap.error,
            ErrorCode::OutOfOrderSequenceNumber,
            "{when}: a gap"
        );
        let old_epoch = (producer.0, ProducerEpoch::new(producer.1.get() + 1));
        let restarted = send(cluster, topic, &numbered(old_epoch, 3));
        assert_eq!(
            restarted.error,
            ErrorCode::OutOfOrderSequenceNumber,
            "{when}: a new epoch begins with sequence 0"
        );
    };
    check(&cluster, "before");
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    check(&cluster, "after kill -9 of all");
    for node in &mut cluster.nodes {
        node.terminate();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    check(&cluster, "after a clean restart of all");
    let next = send(&cluster, topic, &numbered(producer, 7));
    assert_eq!(
        next,
        Produced {
            error: ErrorCode::None,
            base_offset: 21
        }
    );
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    let expected: Vec<(i64, String)> = (0..24)
        .map(|i| {
            (
                i,
                format!(
                    "{}.{}",
                    i / i64::from(BATCH_RECORDS),
                    i % i64::from(BATCH_RECORDS)
                ),
            )
        })
        .collect();
    assert_eq!(found, expected, "each record once");
}

/// Retention and producers are looked at this often, where a test waits for it.
const LOOKS_OFTEN: [&str; 2] = ["--set", "log.retention.check.interval.ms=200"];

/// A batch of one record that was made `age` ago.
fn aged(producer: (ProducerId, ProducerEpoch), sequence: i32, age: Duration) -> Batch {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let mut builder = BatchBuilder::new(BuilderOptions {
        producer_id: producer.0,
        producer_epoch: producer.1,
        base_sequence: sequence,
        ..BuilderOptions::default()
    });
    let timestamp = i64::try_from((now - age).as_millis()).expect("in range");
    builder
        .push(timestamp, None, Some(b"aged"), &[])
        .expect("it fits");
    builder.finish()
}

#[test]
fn a_producer_without_a_record_for_a_day_is_forgotten_and_a_younger_one_is_not() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, &LOOKS_OFTEN);
    let topic = "forgetful";
    cluster.create_topic(topic, 1, &[]);
    let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
    let old = new_producer(&cluster, topic);
    let young = new_producer(&cluster, topic);
    let first = send(&cluster, topic, &aged(young, 0, day - hour));
    assert_eq!(first.error, ErrorCode::None);
    let second = send(&cluster, topic, &aged(old, 0, day + hour));
    assert_eq!(second.error, ErrorCode::None);
    // A producer that is not known may begin anywhere; one that is known leaves no gap.
    wait_until("the old producer is forgotten", || {
        send(&cluster, topic, &aged(old, 50, hour)).error == ErrorCode::None
    });
    let gap = send(&cluster, topic, &aged(young, 50, hour));
    assert_eq!(gap.error, ErrorCode::OutOfOrderSequenceNumber);
    // Every replica has followed the decision: another leader judges alike.
    let next = cluster.leader(topic, 0) % 3 + 1;
    cluster.lead(topic, 0, next);
    let again = send(&cluster, topic, &aged(old, 0, hour));
    assert_eq!(again.error, ErrorCode::OutOfOrderSequenceNumber);
    let gap = send(&cluster, topic, &aged(young, 50, hour));
    assert_eq!(gap.error, ErrorCode::OutOfOrderSequenceNumber);
    cluster.node(next).terminate();
}

#[test]
fn a_replica_behind_the_purge_point_is_rebuilt_with_the_producers_windows() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, &LOOKS_OFTEN);
    let topic = "purged";
    let configs = ["segment.bytes=16384", "retention.bytes=32768"];
    cluster.create_topic(topic, 1, &configs);
    let behind = cluster.leader(topic, 0) % 3 + 1;
    cluster.node(behind).kill();

    // The window of this producer can reach the absent node through a snapshot alone.
    let producer = new_producer(&cluster, topic);
    let sent: Vec<(Batch, i64)> = (0..5)
        .map(|n| {
            let batch = numbered(producer, n);
            let produced = send(&cluster, topic, &batch);
            assert_eq!(produced.error, ErrorCode::None);
            (batch, produced.base_offset)
        })
        .collect();
    let last_offset = sent[4].1 + i64::from(BATCH_RECORDS) - 1;

    let filler = "f".repeat(4000);
    let mut end = 0;
    for _ in 0..40 {
        let produced = send(&cluster, topic, &batch(None, &[&filler]));
        assert_eq!(produced.error, ErrorCode::None);
        end = produced.base_offset + 1;
    }
    let earliest = |cluster: &Cluster| {
        let leader = cluster.leader(topic, 0);
        cluster
            .wire(leader)
            .list_offset(topic, 0, -2)
            .ok()
            .map(|(_, offset)| offset)
    };
    wait_until("retention has purged the producer's batches", || {
        earliest(&cluster).is_some_and(|start| start > last_offset)
    });

    cluster.node(behind).start();
    cluster.wait_in_sync(topic, 0, 3);
    cluster.lead(topic, 0, behind);
    for (batch, offset) in &sent {
        let again = send(&cluster, topic, batch);
        assert_eq!(
            again,
            Produced {
                error: ErrorCode::None,
                base_offset: *offset
            }
        );
    }
    let gap = send(&cluster, topic, &numbered(producer, 9));
    assert_eq!(gap.error, ErrorCode::OutOfOrderSequenceNumber);
    let next = send(&cluster, topic, &numbered(producer, 5));
    assert_eq!(
        next,
        Produced {
            error: ErrorCode::None,
            base_offset: end
        }
    );
    assert_eq!(
        cluster.leader(topic, 0),
        behind,
        "the rebuilt replica answered all of it"
    );
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    let first = found.first().expect("records").0;
    assert!(first > last_offset, "what was purged stays purged: {first}");
    let offsets: Vec<i64> = found.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(
        offsets,
        (first..end + 3).collect::<Vec<_>>(),
        "no gap, nothing twice"
    );
    assert!(
        found
            .iter()
            .filter(|(offset, _)| *offset < end)
            .all(|(_, value)| *value == filler)
    );
}

/// Safety law 14: a leader that cannot confirm its leadership calls no sequence wrong. Its table may
/// be the one that is wrong, and a client that believes it sends its records again under a new epoch.
#[test]
fn a_leader_without_its_majority_says_that_it_does_not_lead_and_not_that_a_sequence_is_wrong() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "unconfirmed";
    cluster.create_topic(topic, 1, &[]);
    let producer = new_producer(&cluster, topic);
    assert_eq!(
        send(&cluster, topic, &numbered(producer, 0)).error,
        ErrorCode::None
    );
    let leader = cluster.leader(topic, 0);
    let mut wire = cluster.wire(leader);
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.node(id).pause();
    }
    // acks=1, which a leader takes as long as its lease lasts: the sequence is what it looks at.
    let gap = numbered(producer, 50);
    let refused = wire.produce((topic, 0), 1, ANSWER, &gap).expect("answered");
    assert_eq!(refused.error, ErrorCode::NotLeaderOrFollower);
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.node(id).resume();
    }
    assert_eq!(
        send(&cluster, topic, &gap).error,
        ErrorCode::OutOfOrderSequenceNumber,
        "confirmed by a majority"
    );
}

/// Blocks of ids are durable before an id of them is given: kill -9 of everybody gives none twice.
#[test]
fn no_producer_id_is_given_twice_whatever_is_killed() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let mut given = BTreeSet::new();
    for round in 0..3 {
        for id in 1..=3 {
            let mut wire = cluster.wire(id);
            for _ in 0..5 {
                // A node that has only just started may not have reached the controller.
                wait_until("a producer gets an id", || {
                    let Ok(Some((producer, epoch))) = wire.try_producer_id() else {
                        return false;
                    };
                    assert_eq!(epoch, ProducerEpoch::new(0));
                    assert!(given.insert(producer), "{producer:?} again, round {round}");
                    true
                });
            }
        }
        for id in 1..=3 {
            cluster.node(id).kill();
        }
        for id in 1..=3 {
            cluster.node(id).start();
        }
        cluster.wait_healthy();
        for id in 1..=3 {
            cluster.node(id).wait_ready();
        }
    }
    assert_eq!(given.len(), 45);
}
