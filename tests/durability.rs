//! What was acknowledged with acks=all stays, whoever dies: once, in order, where its ack said.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use support::traffic::Traffic;
use support::{Cluster, alone};

const TOPIC: &str = "ledger";
const PARTITIONS: i32 = 3;

#[test]
fn acked_records_survive_kill_9_of_leader_follower_and_everyone() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, 3, &[]);
    let traffic = Traffic::start(&cluster.bootstrap(), TOPIC, PARTITIONS);
    traffic.wait_for_more(2_000);

    let leader = cluster.leader(TOPIC, 0);
    cluster.node(leader).kill();
    traffic.wait_for_more(2_000);
    cluster.node(leader).start();
    cluster.wait_in_sync(TOPIC, 0, 3);
    traffic.wait_for_more(1_000);

    let follower = cluster.leader(TOPIC, 0) % 3 + 1;
    cluster.node(follower).kill();
    traffic.wait_for_more(2_000);
    cluster.node(follower).start();
    cluster.wait_in_sync(TOPIC, 0, 3);
    traffic.wait_for_more(1_000);

    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    traffic.wait_for_more(2_000);

    let ledger = traffic.finish();
    eprintln!(
        "{} records acknowledged, longest gap {:?}",
        ledger.acked(),
        ledger.gap()
    );
    assert!(
        ledger.failures().is_empty(),
        "no record failed: {:?}",
        ledger.failures()
    );
    ledger.verify(&cluster.bootstrap());

    // And once more from the disks alone.
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_healthy();
    ledger.verify(&cluster.bootstrap());
}

#[test]
fn a_frozen_leader_is_replaced_and_harms_nothing_when_it_thaws() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, 3, &[]);
    let traffic = Traffic::start(&cluster.bootstrap(), TOPIC, PARTITIONS);
    traffic.wait_for_more(1_000);
    let frozen = cluster.leader(TOPIC, 0);
    cluster.node(frozen).pause();
    let successor = cluster.leader(TOPIC, 0);
    assert_ne!(successor, frozen);
    traffic.wait_for_more(2_000);
    cluster.node(frozen).resume();
    cluster.wait_in_sync(TOPIC, 0, 3);
    traffic.wait_for_more(1_000);
    let ledger = traffic.finish();
    eprintln!(
        "{} records acknowledged, longest gap {:?}",
        ledger.acked(),
        ledger.gap()
    );
    assert!(
        ledger.failures().is_empty(),
        "no record failed: {:?}",
        ledger.failures()
    );
    ledger.verify(&cluster.bootstrap());
}
