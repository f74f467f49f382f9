//! Two processes with one identity: a copied data directory beside its original, and a restart.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::net::SocketAddr;

use serde_json::Value;
use support::traffic::Traffic;
use support::{Cluster, alone, wait_until};

const TOPIC: &str = "twins";
const PARTITIONS: usize = 6;

fn partitions() -> i32 {
    i32::try_from(PARTITIONS).expect("few")
}

fn json(cluster: &Cluster, args: &[&str]) -> Value {
    let text = cluster.must(&[args, &["-o", "json"]].concat());
    serde_json::from_str(&text).expect("JSON")
}

fn wait_all_in_sync(cluster: &Cluster) {
    for partition in 0..PARTITIONS {
        cluster.wait_in_sync(TOPIC, partition, 3);
    }
}

/// Where the cluster says that node 2 is.
fn registered(cluster: &Cluster) -> SocketAddr {
    let nodes = json(cluster, &["cluster", "nodes"]);
    let mut nodes = nodes.as_array().expect("rows").iter();
    let row = nodes.find(|row| row["node"] == 2);
    let address = row.expect("node 2")["address"].as_str().expect("text");
    address.parse().expect("an address")
}

fn assert_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{text}\nlacks {word:?}");
    }
}

/// Leader and epoch of each partition.
fn leaders(cluster: &Cluster) -> Vec<(i32, i32)> {
    let found = |partition| cluster.partition(TOPIC, partition).expect("the topic");
    (0..PARTITIONS)
        .map(found)
        .map(|found| (found.leader, found.epoch))
        .collect()
}

#[test]
fn a_copied_data_directory_is_refused_and_its_original_goes_on() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    // With one replica a copy needs nobody's vote to lead.
    cluster.must(&["topic", "create", "single", "-p", "6", "-r", "1"]);
    let traffic = Traffic::start(&cluster.bootstrap(), TOPIC, partitions());
    traffic.wait_for_more(200);
    let before = leaders(&cluster);
    let own = cluster.node(2).rpc;
    let kafka = cluster.node(2).kafka;

    let place = cluster.copy_node(2);
    let copy = &mut cluster.copies[place];
    copy.start();
    assert_eq!(copy.wait_ended(), Some(1), "{}", copy.log());
    let log = copy.log();
    let dir = copy.data_dir.display().to_string();
    assert_words(
        &log,
        &[
            "another process runs as node 2 (uuid ",
            &format!("at {own}"),
            &format!("is {dir} a copy of its data directory?"),
            "A copy must never be started beside its original",
        ],
    );
    assert!(!log.contains("leads"), "a copy has led: {log}");
    traffic.wait_for_more(200);

    assert_eq!(leaders(&cluster), before, "nobody was deposed");
    assert_eq!(registered(&cluster), kafka);
    let health = json(&cluster, &["cluster", "health"]);
    assert_eq!(
        (&health["healthy"], &health["nodes_unreachable"]),
        (&true.into(), &0.into())
    );
    let told = "a second process asks to be";
    for node in &cluster.nodes {
        assert!(
            node.log().contains(told),
            "node {} is silent about it",
            node.id
        );
    }
    let ledger = traffic.finish();
    assert!(ledger.failures().is_empty(), "{:?}", ledger.failures());
    ledger.verify(&cluster.bootstrap());
}

#[test]
fn the_copy_of_a_cluster_of_one_is_refused_too() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.create_topic(TOPIC, 1, &[]);
    let own = cluster.node(1).rpc;
    let place = cluster.copy_node(1);
    let copy = &mut cluster.copies[place];
    copy.start();
    assert_eq!(copy.wait_ended(), Some(1), "{}", copy.log());
    let at = format!("at {own}");
    assert_words(&copy.log(), &["another process runs as node 1 (uuid ", &at]);
    // Alone, it is the node: this is how a backup is restored.
    cluster.node(1).kill();
    let copy = &mut cluster.copies[place];
    copy.start();
    copy.wait_ready();
    assert!(copy.partition(TOPIC, 0).is_some());
}

/// A founder's file goes on naming all who founded the cluster.
#[test]
fn the_last_node_of_a_cluster_serves_again_though_its_file_names_another() {
    let _alone = alone();
    let mut cluster = Cluster::start(2);
    let file = cluster.node(1).data_dir.join("node.id");
    cluster.must(&["cluster", "decommission", "2"]);
    assert_eq!(cluster.node(2).wait_ended(), Some(1));
    cluster.node(1).kill();
    let text = std::fs::read_to_string(&file).expect("the identity file");
    assert_words(&text, &["id = 1", "id = 2"]);
    let survivor = cluster.node(1);
    survivor.start();
    survivor.wait_ready();
}

#[test]
fn a_killed_node_is_taken_back_at_the_same_address_and_at_another() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    let traffic = Traffic::start(&cluster.bootstrap(), TOPIC, partitions());
    for moves in [false, true] {
        traffic.wait_for_more(200);
        cluster.node(2).kill();
        if moves {
            cluster.node(2).move_elsewhere();
        }
        cluster.node(2).start();
        wait_all_in_sync(&cluster);
        let kafka = cluster.node(2).kafka;
        wait_until("clients are sent to node 2", || {
            registered(&cluster) == kafka
        });
    }
    let log = cluster.node(2).log();
    assert!(!log.contains("another process"), "{log}");
    let ledger = traffic.finish();
    assert!(ledger.failures().is_empty(), "{:?}", ledger.failures());
    ledger.verify(&cluster.bootstrap());
}

#[test]
fn a_silent_process_whose_place_was_taken_ends_when_it_wakes() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    // All of it stands still, as a virtual machine does while it is cloned.
    cluster.node(2).pause();
    let place = cluster.copy_node(2);
    cluster.copies[place].start();
    cluster.copies[place].wait_ready();
    wait_all_in_sync(&cluster);
    let kafka = cluster.copies[place].kafka;
    let before = leaders(&cluster);

    cluster.node(2).resume();
    let ended = cluster.node(2).wait_ended();
    let log = cluster.node(2).log();
    assert_eq!(ended, Some(1), "{log}");
    let at = format!("at {}", cluster.copies[place].rpc);
    assert_words(
        &log,
        &["has taken the place of this one as node 2 (uuid ", &at],
    );
    assert_eq!(registered(&cluster), kafka);
    assert_eq!(
        leaders(&cluster),
        before,
        "the one that woke deposed nobody"
    );
    cluster.wait_healthy();
}

/// Node 2 and a copy of it, started together: one of them is the node, and the other one ends.
fn check_started_together(mut cluster: Cluster, place: usize) {
    cluster.node(2).start();
    cluster.copies[place].start();
    let mut copy_lost = false;
    wait_until("one of the two ends", || {
        copy_lost = cluster.copies[place].has_ended();
        copy_lost || cluster.node(2).has_ended()
    });
    let (loser, winner) = if copy_lost {
        let own = cluster.node(2).kafka;
        (&mut cluster.copies[place], own)
    } else {
        let copys = cluster.copies[place].kafka;
        (cluster.node(2), copys)
    };
    assert_eq!(loser.wait_ended(), Some(1), "{}", loser.log());
    let log = loser.log();
    assert_words(&log, &["another process runs as node 2 (uuid "]);
    assert!(!log.contains("leads"), "it has led: {log}");
    wait_all_in_sync(&cluster);
    wait_until("clients are sent to the other one", || {
        registered(&cluster) == winner
    });
    cluster.wait_healthy();
}

#[test]
fn an_original_and_its_copy_that_start_together_are_told_apart() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    cluster.node(2).kill();
    let place = cluster.copy_node(2);
    check_started_together(cluster, place);
}

/// Nobody remembers who was node 2: the others start at the same moment.
#[test]
fn an_original_and_its_copy_are_told_apart_by_nodes_that_have_just_started_too() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    let place = cluster.copy_node(2);
    for id in [1, 3] {
        cluster.node(id).start();
    }
    check_started_together(cluster, place);
}
