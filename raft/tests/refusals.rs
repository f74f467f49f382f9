//! What a replica does not take: other logs' entries, other replicas' messages.

#![allow(dead_code)]

mod harness;

use std::path::Path;

use corduroy_raft::Role;
use corduroy_record::{ReplicaId, Term};
use corduroy_storage::{Disk, SimDisk};
use harness::{Cluster, batch_of, run, test_config, wait_for};

/// Two logs that agree on index and term and not on the records before an entry cannot both be
/// right: the follower stops, and nothing is repaired behind anybody's back.
#[test]
fn a_follower_whose_offsets_differ_from_its_leaders_stops_alone_and_says_so() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        cluster.kill(victim).await;
        let two = batch_of(&["a", "and one too many"]);
        cluster.nodes[&victim]
            .forge_last(&cluster.env, cluster.group, two)
            .await;
        cluster.start(victim).await;
        cluster.commit(&["b"]).await;
        let reason = wait_for("the replica to stop", || {
            cluster.nodes[&victim].machine().borrow().stopped()
        })
        .await;
        assert!(
            reason.contains("base offset 1, but this log ends at 2"),
            "{reason}"
        );
        assert_eq!(cluster.replica(victim).view().role, Role::Stopped);
        assert_eq!(cluster.nodes[&victim].shard().metrics().restarts, 0);
        cluster.kill(victim).await;
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
    });
}

fn misdirected(cluster: &Cluster, node: i32) -> u64 {
    cluster.nodes[&node].shard().metrics().misdirected
}

fn partitions_on(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.list(Path::new("/data/partitions")).unwrap_or_default();
    names.sort();
    names
}

/// Law 7: a node that lost a replica and hosts another one of the group does not vote or store on
/// the lost one's behalf.
#[test]
fn messages_for_the_replica_that_a_node_hosted_before_reach_no_other() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        cluster.kill(victim).await;
        let node = cluster.nodes.get_mut(&victim).expect("a node");
        node.disk = SimDisk::new();
        node.replica = ReplicaId::new(2000);
        cluster.start(victim).await;
        cluster.commit(&["b"]).await;
        wait_for("appends to arrive", || {
            (misdirected(&cluster, victim) > 0).then_some(())
        })
        .await;
        // Without its leader the rest needs the lost replica's vote, and does not get it.
        cluster.kill(leader).await;
        let before = misdirected(&cluster, victim);
        wait_for("votes to be asked for", || {
            (misdirected(&cluster, victim) > before + 10).then_some(())
        })
        .await;
        for id in cluster.running() {
            assert_ne!(cluster.replica(id).view().role, Role::Leader, "node {id}");
        }
        let fresh = cluster.replica(victim);
        let state = fresh.log().state();
        assert_eq!((state.vote, state.last), (None, None));
        assert_eq!(fresh.view().term, Term::new(0));
        assert!(fresh.members().is_empty(), "it was told of no group");
        assert_eq!(cluster.nodes[&victim].shard().metrics().replicas, 1);
        cluster.start(leader).await;
        cluster.commit(&["c"]).await;
    });
}

#[test]
fn messages_for_a_group_that_a_node_does_not_host_create_nothing() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        let (shard, store) = (
            cluster.nodes[&victim].shard().clone(),
            cluster.nodes[&victim].store().clone(),
        );
        shard.close_replica(cluster.group).await;
        store.remove_log(cluster.group).await.expect("removed");
        let (files, before) = (
            partitions_on(&cluster.nodes[&victim].disk),
            misdirected(&cluster, victim),
        );
        let ticket = cluster.propose(leader, batch_of(&["b"]));
        ticket.wait().await;
        wait_for("appends and beats to be refused", || {
            (misdirected(&cluster, victim) > before + 3).then_some(())
        })
        .await;
        assert!(shard.replica(cluster.group).is_none());
        assert!(!store.contains(cluster.group));
        assert_eq!(shard.metrics().replicas, 0);
        assert_eq!(partitions_on(&cluster.nodes[&victim].disk), files);
    });
}
