//! What a user is told when something is not available: a leadership that cannot move, a replica that
//! does not run, a cluster that has not formed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::wire::batch;
use support::{Cluster, PATIENCE, alone, wait_until};

const WAIT: Duration = Duration::from_secs(10);

#[test]
fn a_leadership_does_not_move_to_a_node_that_is_out_of_sync() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("led", 1, &["min.insync.replicas=2"]);
    let leader = cluster.leader("led", 0);
    let other = (1..=3).find(|id| *id != leader).expect("another");
    cluster.node(other).pause();
    cluster.wait_in_sync("led", 0, 2);
    let before = cluster.partition("led", 0).expect("known");

    let admin = cluster.node(leader).admin.to_string();
    let target = other.to_string();
    let refused = cluster.run(&["partition", "lead", "led/0", &target, "--admin", &admin]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{words}");
    let cause = format!("node {other} does not lead led/0");
    for wanted in [&cause, "it is not in sync", "in sync are:", "choose a node"] {
        assert!(words.contains(wanted), "no {wanted:?} in {words}");
    }

    // Nothing was tried: the same leader in the same epoch takes the next record.
    let produced = cluster
        .wire(leader)
        .produce(("led", 0), -1, WAIT, &batch(None, &["x"]))
        .expect("answered");
    assert_eq!(produced.error, ErrorCode::None);
    let after = cluster.partition("led", 0).expect("known");
    assert_eq!(
        (after.leader, after.epoch),
        (before.leader, before.epoch),
        "the leadership did not move"
    );
    cluster.node(other).resume();
}

#[test]
fn a_topic_whose_first_replica_is_dead_gets_a_leader() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("before", 3, &[]);
    let dead = 3;
    cluster.node(dead).pause();
    for partition in 0..3 {
        cluster.wait_in_sync("before", partition, 2);
    }
    // By hand, since a node that is down is not chosen; it would start the group.
    let created = cluster.run(&["topic", "create", "orphan", "--assign", "3,1,2"]);
    let words = String::from_utf8_lossy(&created.stderr).into_owned();
    let leader = cluster.leader("orphan", 0);
    assert_ne!(leader, dead, "{words}");
    let produced = cluster
        .wire(leader)
        .produce(("orphan", 0), -1, WAIT, &batch(None, &["x"]))
        .expect("answered");
    assert_eq!(produced.error, ErrorCode::None);
    cluster.node(dead).resume();
    cluster.wait_in_sync("orphan", 0, 3);
}

/// The state file of the only partition below a directory.
fn state_file(dir: &Path) -> PathBuf {
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|name| name == "state") {
                return path;
            }
        }
    }
    panic!("no state file");
}

#[test]
fn a_replica_that_does_not_run_makes_the_cluster_unhealthy_and_says_why() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.create_topic("only", 1, &[]);
    let produced = cluster
        .wire(1)
        .produce(("only", 0), -1, WAIT, &batch(None, &["x"]))
        .expect("answered");
    assert_eq!(produced.error, ErrorCode::None);
    cluster.node(1).terminate();
    let state = state_file(&cluster.node(1).data_dir.join("partitions"));
    fs::remove_file(state).expect("removed");

    cluster.node(1).start();
    cluster.node(1).wait_ready();
    let mut body = String::new();
    wait_until("health names the replica", || {
        let Some((status, text)) = cluster.nodes[0].admin_get("/health/cluster") else {
            return false;
        };
        body = text;
        status == 503 && body.contains("(only/0)")
    });
    let health: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(health["healthy"], false);
    assert_eq!(health["replicas_broken"], 1);
    let reasons = health["reasons"].as_array().expect("reasons");
    let reason = reasons
        .iter()
        .filter_map(|reason| reason.as_str())
        .find(|reason| reason.starts_with("a replica of this node does not run (only/0): "));
    assert!(
        reason.is_some_and(|text| text.contains("damaged")),
        "{body}"
    );
    let leader = cluster.partition("only", 0).map(|found| found.leader);
    assert_eq!(leader, Some(-1), "nobody is named as its leader");
}

#[test]
fn a_node_that_waits_for_its_seeds_names_them_and_turns_clients_away() {
    let _alone = alone();
    let mut cluster = Cluster::plan(3, &[]);
    cluster.node(1).start();
    wait_until("it says whom it waits for", || {
        let log = cluster.nodes[0].log();
        log.lines().any(|line| {
            line.contains("waiting for seeds that do not answer")
                && cluster.nodes[1..]
                    .iter()
                    .all(|node| line.contains(&node.rpc.to_string()))
        })
    });
    let mut client = TcpStream::connect(cluster.nodes[0].kafka).expect("the port is open");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    // Closed or reset; a client that waits would see the timeout.
    match client.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the client was not turned away: {other:?}"),
    }
    for id in 2..=3 {
        cluster.node(id).start();
    }
    cluster.wait_healthy();
    assert_eq!(
        cluster
            .must(&["cluster", "health", "--nodes", "3"])
            .lines()
            .count(),
        1
    );
}
