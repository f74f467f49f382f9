//! Each planted bug of the node does what its name says. What a node without one does in the same
//! place: tests/failover.rs and tests/idempotence.rs. The bugs of the storage: storage/tests.
#![allow(
    clippy::disallowed_methods,
    reason = "tests drive real processes with real threads"
)]

mod support;

use std::process::Command;
use std::time::Duration;

use corduroy_env::planted::{Bug, VARIABLE};
use corduroy_protocol::ErrorCode;
use corduroy_record::ProducerEpoch;
use support::wire::{Wire, batch, values};
use support::{Cluster, alone, corduroy, wait_until};

const TOPIC: &str = "planted";
const ANSWER: Duration = Duration::from_secs(20);
/// Short: what is asked for is there, or is not to be.
const GLANCE: Duration = Duration::from_millis(100);

fn start(count: usize, bug: Bug) -> Cluster {
    start_with(count, bug, &[])
}

fn start_with(count: usize, bug: Bug, configs: &[&str]) -> Cluster {
    let mut cluster = Cluster::plan(count, &[]);
    for node in &mut cluster.nodes {
        node.variables = vec![(VARIABLE, bug.name().into())];
        node.start();
    }
    cluster.wait_healthy();
    cluster.create_topic(TOPIC, 1, configs);
    cluster
}

/// A cluster with one committed record whose leader is then alone, and a connection to it.
fn isolated_leader(bug: Bug) -> (Cluster, Wire) {
    let mut cluster = start(3, bug);
    let leader = cluster.leader(TOPIC, 0);
    let mut wire = cluster.wire(leader);
    assert_eq!(produce(&mut wire, 1, "committed"), (ErrorCode::None, 0));
    wait_until("it is committed", || latest(&mut wire) == 1);
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.node(id).pause();
    }
    (cluster, wire)
}

fn produce(wire: &mut Wire, acks: i16, value: &str) -> (ErrorCode, i64) {
    let produced = wire
        .produce((TOPIC, 0), acks, ANSWER, &batch(None, &[value]))
        .expect("answered");
    (produced.error, produced.base_offset)
}

fn latest(wire: &mut Wire) -> i64 {
    wire.list_offset(TOPIC, 0, -1).expect("answered").1
}

fn read(wire: &mut Wire) -> Vec<(i64, String)> {
    values(&wire.fetch(TOPIC, 0, 0, GLANCE).expect("answered"))
}

fn all(values: &[&str]) -> Vec<(i64, String)> {
    (0..).zip(values.iter().map(ToString::to_string)).collect()
}

#[test]
fn a_name_that_no_bug_has_is_refused_with_the_list() {
    let output = Command::new(corduroy())
        .args(["start", "--data-dir", "/nowhere/at/all"])
        .env(VARIABLE, "no-such-bug")
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for bug in Bug::ALL {
        assert!(said.contains(bug.name()), "{} in {said}", bug.name());
    }
}

#[test]
fn a_build_with_bugs_says_so() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    assert!(cluster.nodes[0].log().contains("PLANTED BUGS"));
    assert!(cluster.must(&["--version"]).contains("+planted-bugs"));
}

/// What a bug breaks shows only where its row in docs/fault-tests.md says.
#[test]
fn a_node_with_any_bug_starts_serves_and_stops() {
    let _alone = alone();
    for bug in Bug::ALL {
        let mut cluster = start(1, bug);
        let mut wire = cluster.wire(1);
        for (offset, value) in (0..).zip(["one", "two", "three"]) {
            let produced = produce(&mut wire, -1, value);
            assert_eq!(produced, (ErrorCode::None, offset), "{}", bug.name());
        }
        for crash in [false, true] {
            let node = cluster.node(1);
            if crash {
                node.kill();
            } else {
                node.terminate();
            }
            node.start();
            cluster.wait_healthy();
            let read = read(&mut cluster.wire(1));
            assert_eq!(read, all(&["one", "two", "three"]), "{}", bug.name());
        }
    }
}

#[test]
fn ack_below_min_insync_acknowledges_what_a_majority_holds() {
    let _alone = alone();
    let mut cluster = start_with(3, Bug::AckBelowMinInsync, &["min.insync.replicas=3"]);
    let leader = cluster.leader(TOPIC, 0);
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.node(follower).kill();
    cluster.wait_in_sync(TOPIC, 0, 2);
    let mut wire = cluster.wire(leader);
    assert_eq!(produce(&mut wire, -1, "two of three"), (ErrorCode::None, 0));
}

#[test]
fn watermark_is_log_end_shows_what_is_not_committed() {
    let _alone = alone();
    let (_cluster, mut wire) = isolated_leader(Bug::WatermarkIsLogEnd);
    assert_eq!(produce(&mut wire, 1, "alone"), (ErrorCode::None, 1));
    assert_eq!(read(&mut wire), all(&["committed", "alone"]));
}

#[test]
fn stale_leader_serves_shows_what_is_not_committed_once_the_lease_is_over() {
    let _alone = alone();
    let (_cluster, mut wire) = isolated_leader(Bug::StaleLeaderServes);
    assert_eq!(produce(&mut wire, 1, "alone"), (ErrorCode::None, 1));
    assert_eq!(read(&mut wire), all(&["committed"]));
    wait_until("the lease is over", || {
        read(&mut wire) == all(&["committed", "alone"])
    });
}

#[test]
fn older_epoch_accepted_takes_a_fenced_producers_batch() {
    let _alone = alone();
    let cluster = start(1, Bug::OlderEpochAccepted);
    let mut wire = cluster.wire(1);
    let (id, epoch) = wire.producer_id().expect("answered");
    let newer = ProducerEpoch::new(epoch.get() + 1);
    for (offset, (epoch, value)) in [(newer, "newer"), (epoch, "fenced")]
        .into_iter()
        .enumerate()
    {
        let produced = wire
            .produce(
                (TOPIC, 0),
                -1,
                ANSWER,
                &batch(Some((id, epoch, 0)), &[value]),
            )
            .expect("answered");
        assert_eq!(produced.error, ErrorCode::None, "{value}");
        assert_eq!(produced.base_offset, offset as i64);
    }
    assert_eq!(read(&mut wire), all(&["newer", "fenced"]));
}

#[test]
fn window_of_one_appends_the_retry_of_the_last_but_one_again() {
    let _alone = alone();
    let cluster = start(1, Bug::WindowOfOne);
    let mut wire = cluster.wire(1);
    let (id, epoch) = wire.producer_id().expect("answered");
    let mut send = |sequence: i32| {
        let batch = batch(Some((id, epoch, sequence)), &["value"]);
        let produced = wire.produce((TOPIC, 0), -1, ANSWER, &batch);
        let produced = produced.expect("answered");
        (produced.error, produced.base_offset)
    };
    for sequence in 0..3 {
        assert_eq!(send(sequence), (ErrorCode::None, i64::from(sequence)));
    }
    assert_eq!(send(2), (ErrorCode::None, 2), "the last is remembered");
    assert_eq!(send(1), (ErrorCode::None, 3), "and no other");
    assert_eq!(send(5).0, ErrorCode::OutOfOrderSequenceNumber, "a gap");
}

#[test]
fn offset_at_propose_gives_one_offset_to_two_records() {
    let _alone = alone();
    let cluster = start(1, Bug::OffsetAtPropose);
    // Batches meet at the door when several connections send at once.
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (mut wire, sender) = (cluster.wire(1), sender.clone());
            scope.spawn(move || {
                for _ in 0..100 {
                    let (error, offset) = produce(&mut wire, -1, "value");
                    assert_eq!(error, ErrorCode::None);
                    sender.send(offset).expect("received");
                }
            });
        }
    });
    drop(sender);
    let mut told: Vec<i64> = told.into_iter().collect();
    let read = read(&mut cluster.wire(1));
    let mut read: Vec<i64> = read.into_iter().map(|(offset, _)| offset).collect();
    assert_eq!(read.len(), 800, "all of them are there");
    told.sort_unstable();
    read.sort_unstable();
    assert_eq!(read, told);
    assert!(!read.is_sorted_by(|one, next| one < next), "{read:?}");
}
