//! A node leaves for good: `corduroy cluster decommission`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::wire::{Wire, batch};
use support::{Cluster, alone, wait_until};

const WAIT: Duration = Duration::from_secs(10);

#[test]
fn a_node_that_is_down_leaves_for_good_and_the_others_go_on() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("kept", 1, &["min.insync.replicas=2"]);

    let refused = cluster.run(&["cluster", "decommission", "3"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{words}");
    for wanted in [
        "kept/0",
        "still holds replicas",
        "cannot be moved to another node yet",
    ] {
        assert!(words.contains(wanted), "no {wanted:?} in {words}");
    }

    cluster.node(3).kill();
    wait_until("node 3 is listed as down, and for how long", || {
        listed(&cluster)
            .iter()
            .any(|node| node["node"] == 3 && node["down_seconds"].is_u64())
    });
    let table = cluster.must(&["cluster", "nodes"]);
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with("3 "));
    assert!(row.is_some_and(|row| row.contains("down ")), "{table}");

    let mut said = String::new();
    wait_until("the controller knows that node 3 is down", || {
        let output = cluster.run(&["cluster", "decommission", "3", "-o", "json"]);
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        answer,
        serde_json::json!({"node": 3, "short_partitions": ["kept/0"]})
    );
    let again = cluster.run(&["cluster", "decommission", "3"]);
    assert!(again.status.success(), "gone already is gone: {again:?}");
    assert_eq!(listed_ids(&cluster), [1, 2]);

    // The two that are left go on, with data and with metadata.
    let leader = cluster.leader("kept", 0);
    let produced = cluster
        .wire(leader)
        .produce(("kept", 0), -1, WAIT, &batch(None, &["x"]))
        .expect("answered");
    assert_eq!(produced.error, ErrorCode::None);
    cluster.must(&["topic", "create", "after", "-p", "1", "-r", "2"]);

    // Its process finds no way back under the id that is burnt.
    cluster.node(3).start();
    assert_eq!(cluster.node(3).wait_ended(), Some(1));
    let log = cluster.nodes[2].log();
    for wanted in ["was decommissioned", "empty --data-dir"] {
        assert!(log.contains(wanted), "no {wanted:?} in {log}");
    }
}

fn listed(cluster: &Cluster) -> Vec<serde_json::Value> {
    let nodes = cluster.must(&["cluster", "nodes", "-o", "json"]);
    let nodes: serde_json::Value = serde_json::from_str(&nodes).expect("JSON");
    nodes.as_array().expect("a list").clone()
}

fn listed_ids(cluster: &Cluster) -> Vec<i64> {
    let nodes = listed(cluster);
    nodes
        .iter()
        .filter_map(|node| node["node"].as_i64())
        .collect()
}

/// A node that comes later knows every leader when it answers its first client, and can leave again
/// at once: its process is told and ends.
#[test]
fn a_fourth_node_knows_the_leaders_at_once_and_leaves_at_once() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("many", 20, &[]);
    let id = cluster.add_node();
    cluster.node(id).start();
    let mut first_answer = None;
    wait_until("the new node answers", || {
        let wire = Wire::try_connect(cluster.nodes[3].kafka, WAIT);
        first_answer = wire.and_then(|mut wire| wire.metadata("many")).ok();
        first_answer.is_some()
    });
    let (_, _, partitions) = first_answer.expect("an answer");
    let led = partitions.iter().filter(|found| found.leader >= 0).count();
    assert_eq!(
        (partitions.len(), led),
        (20, 20),
        "leaders of its first answer"
    );

    cluster.must(&["cluster", "decommission", "4"]);
    assert_eq!(cluster.node(id).wait_ended(), Some(1), "it stops by itself");
    let log = cluster.nodes[3].log();
    for wanted in ["node 4 was decommissioned", "empty --data-dir"] {
        assert!(log.contains(wanted), "no {wanted:?} in {log}");
    }
    assert_eq!(listed_ids(&cluster), [1, 2, 3]);
    cluster.must(&["topic", "create", "after", "-p", "1", "-r", "3"]);
}

/// Whoever comes without an id is given one that nobody has had, and keeps it.
#[test]
fn nodes_without_an_id_are_given_new_ones_for_good() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let newcomers = [cluster.add_node(), cluster.add_node()];
    for id in newcomers {
        cluster.node(id).claims_id = false;
        cluster.node(id).start();
    }
    // Its own word, and Metadata's: the id that stands beside its address.
    let given = |cluster: &Cluster, id: i32| {
        let node = cluster.at(id);
        node.wait_ready();
        let mut found = None;
        wait_until("everybody lists it", || {
            let address = node.kafka.to_string();
            let nodes = listed(cluster);
            let row = nodes.iter().find(|row| row["address"] == address.as_str());
            found = row.and_then(|row| row["node"].as_i64());
            found.is_some()
        });
        let found = i32::try_from(found.expect("an id")).expect("small");
        let mut brokers = Vec::new();
        wait_until("Metadata has it", || {
            let mut wire = Wire::connect(node.kafka);
            (brokers, _, _) = wire.metadata("any").expect("answered");
            brokers.contains(&found)
        });
        let line = format!("node {found}, is serving");
        assert!(node.log().contains(&line), "it says so itself");
        found
    };
    let ids = newcomers.map(|id| given(&cluster, id));
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| *id > 3), "{ids:?}");
    cluster.node(newcomers[0]).kill();
    cluster.node(newcomers[1]).terminate();
    for (id, before) in newcomers.into_iter().zip(ids) {
        cluster.node(id).start();
        assert_eq!(given(&cluster, id), before, "after a restart");
    }
    assert_eq!(listed_ids(&cluster).len(), 5);
}
