//! Log lines for programs: whatever is said about a partition says where it was said.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use serde_json::{Map, Value};
use support::wire::batch;
use support::{Cluster, alone, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

/// The lines of a node with this message: the fields of their spans together.
fn lines(log: &str, message: &str) -> Vec<Map<String, Value>> {
    let objects = log.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["fields"]["message"] == message).then_some(line)
    });
    objects
        .map(|line| {
            let spans = line["spans"].as_array().cloned().unwrap_or_default();
            let mut fields = Map::new();
            for span in spans.iter().chain([&line["span"]]) {
                fields.extend(span.as_object().expect("an object").clone());
            }
            fields.remove("name");
            fields
        })
        .collect()
}

#[test]
fn a_line_about_a_partition_carries_node_shard_topic_partition_and_epoch() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, &["--log-format", "json"]);
    let topic = "spoken-of";
    cluster.create_topic(topic, 4, &[]);
    for partition in 0..4usize {
        let found = cluster.partition(topic, partition).expect("known");
        let node = &cluster.nodes[usize::try_from(found.leader - 1).expect("an id")];
        let mut said = Vec::new();
        wait_until("the leader says that it leads", || {
            said = lines(&node.log(), "leads");
            said.retain(|line| line["topic"] == topic && line["partition"] == partition);
            !said.is_empty()
        });
        let line = said.last().expect("a line");
        let keys: BTreeSet<&str> = line.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            BTreeSet::from(["node", "shard", "topic", "partition", "epoch"])
        );
        assert_eq!(line["node"], found.leader);
        assert_eq!(line["epoch"], found.epoch);
        assert!(line["shard"] == 0 || line["shard"] == 1, "{line:?}");
    }
    // Both shards have spoken, and each in its own name.
    let shards: BTreeSet<i64> = cluster
        .nodes
        .iter()
        .flat_map(|node| lines(&node.log(), "leads"))
        .map(|line| line["shard"].as_i64().expect("a number"))
        .collect();
    assert!(!shards.is_empty());
    // A move of the leadership is told by both, with the epoch of each.
    let old = cluster.partition(topic, 0).expect("known");
    let heir = old.leader % 3 + 1;
    cluster.lead(topic, 0, heir);
    let produced = cluster
        .wire(heir)
        .produce((topic, 0), -1, ANSWER, &batch(None, &["x"]));
    assert_eq!(produced.expect("answered").error, ErrorCode::None);
    let new = cluster.partition(topic, 0).expect("known");
    let log = |cluster: &mut Cluster, node: i32, message: &str| {
        let said = lines(&cluster.node(node).log(), message);
        let about = said.into_iter();
        let about = about.filter(|line| line["topic"] == topic && line["partition"] == 0);
        about.map(|line| line["epoch"].clone()).collect::<Vec<_>>()
    };
    wait_until("both have said so", || {
        log(&mut cluster, heir, "leads").contains(&Value::from(new.epoch))
            && !log(&mut cluster, old.leader, "leads no more").is_empty()
    });
    // What says nothing about a partition carries the other two alone.
    for node in &cluster.nodes {
        let said = lines(&node.log(), "this node has its place");
        let keys: Vec<&str> = said[0].keys().map(String::as_str).collect();
        assert_eq!(keys, ["node", "shard"]);
        assert_eq!(said[0]["node"], node.id);
    }
}
