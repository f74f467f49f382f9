//! A partition that nobody uses sleeps, takes a write at once, and still fails over.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::{Duration, Instant};

use corduroy_protocol::ErrorCode;
use support::wire::batch;
use support::{Cluster, alone, wait_until};

const ANSWER: Duration = Duration::from_secs(10);
const TOPIC: &str = "drowsy";
const PARTITIONS: usize = 4;

fn wait_asleep(cluster: &Cluster) {
    for node in cluster.nodes.iter().filter(|node| node.is_running()) {
        wait_until(&format!("the replicas of node {} sleep", node.id), || {
            node.metric("corduroy_raft_hibernating") >= Some(PARTITIONS as f64)
        });
    }
}

#[test]
fn a_sleeping_group_takes_a_write_and_fails_over() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, &["--set", "raft.hibernate.after.ms=500"]);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    for partition in 0..4 {
        let leader = cluster.leader(TOPIC, partition as usize);
        let produced = cluster
            .wire(leader)
            .produce((TOPIC, partition), -1, ANSWER, &batch(None, &["first"]))
            .expect("answered");
        assert_eq!(produced.error, ErrorCode::None);
    }
    wait_asleep(&cluster);

    let leader = cluster.leader(TOPIC, 0);
    let mut wire = cluster.wire(leader);
    let asked = Instant::now();
    let produced = wire
        .produce((TOPIC, 0), -1, ANSWER, &batch(None, &["second"]))
        .expect("answered");
    eprintln!("a write to a sleeping group took {:?}", asked.elapsed());
    assert_eq!(produced.error, ErrorCode::None);
    assert_eq!(produced.base_offset, 1);
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );

    wait_asleep(&cluster);
    let killed = Instant::now();
    cluster.node(leader).kill();
    let mut recovered = Duration::ZERO;
    wait_until("the group has a leader that takes writes", || {
        let successor = cluster.leader(TOPIC, 0);
        assert_ne!(successor, leader);
        let answer =
            cluster
                .wire(successor)
                .produce((TOPIC, 0), -1, ANSWER, &batch(None, &["third"]));
        recovered = killed.elapsed();
        answer.is_ok_and(|produced| {
            let taken = produced.error == ErrorCode::None;
            assert!(!taken || produced.base_offset == 2);
            taken
        })
    });
    eprintln!("failover of a sleeping group took {recovered:?}");
    for partition in 0..4 {
        assert_ne!(cluster.leader(TOPIC, partition), leader);
    }
    cluster.node(leader).start();
    for partition in 0..4 {
        cluster.wait_in_sync(TOPIC, partition, 3);
    }
    // Everybody dies in their sleep.
    wait_asleep(&cluster);
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    let leader = cluster.leader(TOPIC, 0);
    let produced = cluster
        .wire(leader)
        .produce((TOPIC, 0), -1, ANSWER, &batch(None, &["fourth"]))
        .expect("answered");
    assert_eq!((produced.error, produced.base_offset), (ErrorCode::None, 3));
}
