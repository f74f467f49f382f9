//! A node leaves for good: `corduroy cluster decommission`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::wire::batch;
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
    let nodes = cluster.must(&["cluster", "nodes", "-o", "json"]);
    let nodes: serde_json::Value = serde_json::from_str(&nodes).expect("JSON");
    let ids: Vec<i64> = nodes
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|node| node["node"].as_i64())
        .collect();
    assert_eq!(ids, [1, 2]);

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
    wait_until("the node says why it does not serve", || {
        cluster.nodes[2].log().contains("was decommissioned")
    });
    cluster.node(3).kill();
}
