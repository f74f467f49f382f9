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

use corduroy_protocol::messages::create_topics_request::CreatableTopic;
use corduroy_protocol::messages::{CreateTopicsRequest, TopicName};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};
use support::wire::{Wire, batch, values};
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
    let ready = cluster.at(1).admin_get("/health/ready");
    assert_eq!(ready.map(|(status, _)| status), Some(503));
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

/// Of three that have formed a cluster: one decides nothing and leads nothing, two do.
#[test]
fn one_of_three_serves_nothing_and_two_serve_everything() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("kept", 2, &[]);
    cluster.produce("kept", "before");
    for id in 1..=3 {
        cluster.node(id).terminate();
    }

    cluster.node(1).start();
    wait_until("it knows that it is alone", || {
        let found = cluster.at(1).admin_get("/health/cluster");
        found.is_some_and(|(status, body)| status == 503 && body.contains("controller"))
    });
    let ready = cluster.at(1).admin_get("/health/ready");
    assert_eq!(ready.map(|(status, _)| status), Some(503), "not ready");
    // It turns clients away, or decides nothing and names nobody.
    let topic = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("alone")))
        .with_num_partitions(1)
        .with_replication_factor(1);
    let create = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(1000);
    let create = Request::CreateTopics(create);
    let asked = Wire::try_connect(cluster.at(1).kafka, WAIT);
    if let Ok(answer) = asked.and_then(|mut wire| wire.call(5, &create)) {
        let Response::CreateTopics(answer) = answer else {
            panic!("not an answer to CreateTopics: {answer:?}");
        };
        assert_ne!(answer.topics[0].error_code, 0, "nobody can decide it");
    }
    if let Some(found) = cluster.at(1).partition("kept", 0) {
        assert_eq!(found.leader, -1);
    }
    assert_eq!(cluster.at(1).partition("alone", 0), None);
    let healthy = cluster.run(&["cluster", "health", "--wait", "1s"]);
    assert_eq!(healthy.status.code(), Some(1));

    cluster.node(2).start();
    cluster.must(&["cluster", "health", "--wait", "60s", "--nodes", "2"]);
    for id in 1..=2 {
        let ready = cluster.at(id).admin_get("/health/ready");
        assert_eq!(ready.map(|(status, _)| status), Some(200), "node {id}");
    }
    assert_eq!(cluster.produce("kept", "after"), 1);
    cluster.must(&["topic", "create", "together", "-p", "1", "-r", "2"]);
    let leader = cluster.leader("kept", 0);
    let read = cluster.wire(leader).fetch("kept", 0, 0, WAIT);
    let read = values(&read.expect("answered"));
    assert_eq!(read, [(0, "before".to_owned()), (1, "after".to_owned())]);
}

#[test]
fn health_names_the_partition_without_a_leader_and_gives_up_in_time() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.must(&["topic", "create", "single", "--assign", "3"]);
    cluster.must(&["topic", "create", "triple", "-p", "1", "-r", "3"]);
    cluster.wait_healthy();
    cluster.node(3).kill();
    let unwell = |cluster: &Cluster, args: &[&str]| {
        let health = cluster.run(&[&["cluster", "health"], args].concat());
        let said = String::from_utf8_lossy(&health.stdout).into_owned();
        (health.status.code(), said)
    };
    let mut said = String::new();
    wait_until("health says that a partition has no leader", || {
        let (code, words) = unwell(&cluster, &[]);
        said = words;
        code == Some(1) && said.contains("without a leader: single/0")
    });
    assert!(
        !said.contains("triple/0,") && !said.contains("leader: triple"),
        "{said}"
    );
    let (code, said) = unwell(&cluster, &["--wait", "2s", "-o", "json"]);
    assert_eq!(code, Some(1), "it gives up: {said}");
    let health: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(health["healthy"], false);
    assert_eq!(health["leaderless"], serde_json::json!(["single/0"]));

    cluster.node(3).start();
    let (code, said) = unwell(&cluster, &["--wait", "60s"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = unwell(&cluster, &[]);
    assert_eq!(code, Some(0), "{said}");
}
