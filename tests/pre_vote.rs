//! A node that misses the leaders and can still ask for votes deposes nobody.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use corduroy_protocol::ErrorCode;
use support::wire::batch;
use support::{Cluster, Node, PATIENCE, alone, wait_until};

const PARTITIONS: usize = 4;

/// Lines of a node's log with this text.
fn lines(node: &Node, text: &str) -> usize {
    node.log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

/// Leader and epoch of each partition.
fn leaders(cluster: &Cluster) -> Vec<(i32, i32)> {
    (0..PARTITIONS)
        .map(|partition| cluster.partition("kept", partition).expect("known"))
        .map(|found| (found.leader, found.epoch))
        .collect()
}

/// One record for each partition: a group that sleeps misses no leader.
fn write_to_all(cluster: &Cluster, leaders: &[(i32, i32)]) {
    for (partition, (leader, _)) in (0i32..).zip(leaders) {
        let sent = batch(None, &["x"]);
        let produced = cluster
            .wire(*leader)
            .produce(("kept", partition), -1, PATIENCE, &sent);
        assert_eq!(produced.expect("answered").error, ErrorCode::None);
    }
}

/// Nothing reaches it, and what it sends arrives: without pre-votes, each of its campaigns would be a
/// new term, which ends every leader that hears of it.
#[test]
fn a_node_that_hears_no_leader_for_longer_than_an_election_timeout_deposes_nobody() {
    let _alone = alone();
    let mut cluster = Cluster::plan(3, &[]);
    let proxy = cluster.put_behind(3);
    for node in &mut cluster.nodes {
        node.variables = vec![("CORDUROY_LOG", "info,openraft=info".into())];
        node.start();
    }
    cluster.wait_healthy();
    cluster.create_topic("kept", PARTITIONS, &[]);
    for partition in 0..PARTITIONS {
        let node = i32::try_from(partition).expect("small") % 2 + 1;
        cluster.lead("kept", partition, node);
        cluster.wait_in_sync("kept", partition, 3);
    }
    let before = leaders(&cluster);

    let asked = lines(cluster.at(3), "election timeout expired");
    let refused = |cluster: &Cluster| {
        let text = "vote-request: ";
        lines(cluster.at(1), text) + lines(cluster.at(2), text)
    };
    let refused_before = refused(&cluster);
    proxy.cut();
    wait_until(
        "its election timeouts have passed, and it was refused",
        || {
            write_to_all(&cluster, &before);
            let asks = lines(cluster.at(3), "election timeout expired") - asked;
            asks >= PARTITIONS && refused(&cluster) - refused_before >= PARTITIONS
        },
    );
    assert_eq!(leaders(&cluster), before, "while it was cut off");

    proxy.heal();
    // What it hears of again is what was before, and it follows.
    write_to_all(&cluster, &before);
    for (partition, (leader, epoch)) in before.iter().enumerate() {
        cluster.wait_in_sync("kept", partition, 3);
        wait_until("node 3 knows its leader", || {
            let found = cluster.at(3).partition("kept", partition);
            found.is_some_and(|found| (found.leader, found.epoch) == (*leader, *epoch))
        });
    }
    assert_eq!(leaders(&cluster), before, "the same leaders and epochs");
}
