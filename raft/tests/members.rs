//! Replicas come and go.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{RaftConfig, RaftError};
use corduroy_record::NodeId;
use corduroy_storage::LogConfig;
use harness::{Cluster, replica_id, run, test_config, wait_for};

/// Entries that nobody who lacks them counts as caught up.
const FAR_BEHIND: usize = 200;

fn members(ids: &[i32]) -> Vec<(corduroy_record::ReplicaId, NodeId)> {
    ids.iter()
        .map(|id| (replica_id(*id), NodeId::new(*id)))
        .collect()
}

async fn change(cluster: &Cluster, ids: &[i32]) {
    let among = cluster.running();
    loop {
        let leader = cluster
            .leader(
                &among
                    .iter()
                    .copied()
                    .filter(|id| is_member(cluster, *id))
                    .collect::<Vec<_>>(),
            )
            .await;
        let changed = cluster
            .replica(leader)
            .change_members(members(ids), Duration::from_secs(10))
            .await;
        match changed {
            Ok(()) => return,
            Err(RaftError::NotLeader { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_member(cluster: &Cluster, id: i32) -> bool {
    cluster
        .replica(id)
        .members()
        .iter()
        .any(|(replica, _, _)| *replica == replica_id(id))
}

#[test]
fn a_replica_is_replaced_by_another_that_has_caught_up() {
    run(async {
        let mut cluster = Cluster::new(4, test_config());
        for id in 1..=4 {
            cluster.start(id).await;
        }
        cluster.form(&[1, 2, 3]).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        for n in 0..100 {
            cluster.propose(leader, harness::batch(&n.to_string()));
        }
        cluster.commit(&["a"]).await;
        let leaving = cluster.other_than(leader);
        let staying: Vec<i32> = (1..=4).filter(|id| *id != leaving).collect();
        change(&cluster, &staying).await;
        cluster.kill(leaving).await;
        cluster.commit(&["b"]).await;
        let voters: Vec<i32> = cluster
            .replica(leader)
            .members()
            .iter()
            .filter(|(_, _, voter)| *voter)
            .map(|(_, node, _)| node.get())
            .collect();
        assert_eq!(voters, staying);
        let values = cluster.agree().await;
        assert_eq!(values.len(), 102);
    });
}

/// Only newcomers and a majority are waited for.
#[test]
fn a_voter_that_is_down_and_far_behind_holds_up_no_change() {
    run(async {
        let mut cluster = Cluster::new(4, test_config());
        for id in 1..=4 {
            cluster.start(id).await;
        }
        cluster.form(&[1, 2, 3]).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        let down = cluster.other_than(leader);
        cluster.kill(down).await;
        for n in 0..FAR_BEHIND {
            cluster.propose(leader, harness::batch(&n.to_string()));
        }
        cluster.commit(&["a"]).await;
        change(&cluster, &[1, 2, 3, 4]).await;
        let has = |cluster: &Cluster, id: i32| {
            let of = replica_id(id);
            let leader = cluster.replica(leader).members();
            leader.iter().any(|(member, _, _)| *member == of)
        };
        assert!(has(&cluster, 4), "the newcomer is in");
        let staying: Vec<i32> = (1..=4).filter(|id| *id != down).collect();
        change(&cluster, &staying).await;
        cluster.commit(&["b"]).await;
        assert!(!has(&cluster, down), "it is out");
    });
}

#[test]
fn a_leader_that_is_to_leave_hands_over_first() {
    run(async {
        let mut cluster = Cluster::new(4, test_config());
        for id in 1..=4 {
            cluster.start(id).await;
        }
        cluster.form(&[1, 2, 3]).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        cluster.commit(&["a"]).await;
        let staying: Vec<i32> = (1..=4).filter(|id| *id != leader).collect();
        change(&cluster, &staying).await;
        cluster.kill(leader).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

/// Three members with large tables, a fourth node, and a leader whose log begins at a snapshot.
async fn purged(mut config: RaftConfig) -> (Cluster, i32) {
    config.snapshot_chunk_bytes = 10_000;
    let mut cluster = Cluster::new(4, config);
    for node in cluster.nodes.values_mut() {
        node.log_config = LogConfig {
            segment_bytes: 2048,
            ..LogConfig::default()
        };
        node.padding_bytes = 105_000;
    }
    for id in 1..=4 {
        cluster.start(id).await;
    }
    cluster.form(&[1, 2, 3]).await;
    let leader = cluster.leader(&[1, 2, 3]).await;
    for n in 0..60 {
        cluster.commit(&[&n.to_string()]).await;
    }
    let replica = cluster.replica(leader);
    let boundary = replica
        .log()
        .segment_boundaries()
        .last()
        .expect("segments")
        .first_index;
    let before = corduroy_record::LogIndex::new(boundary.get() - 1);
    replica.purge_to(before).await.expect("saved tables");
    assert!(replica.log().state().log_start.index > corduroy_record::LogIndex::new(0));
    (cluster, leader)
}

#[test]
fn a_learner_behind_the_purge_point_gets_large_tables_in_chunks() {
    run(async {
        let (cluster, leader) = purged(test_config()).await;
        let replica = cluster.replica(leader);
        change(&cluster, &[1, 2, 3, 4]).await;
        cluster.commit(&["end"]).await;
        cluster.agree().await;
        assert_eq!(
            cluster.replica(4).log().state().log_start,
            replica.log().state().log_start,
            "the learner began at the snapshot"
        );
    });
}

/// A learner behind the purge point has got part of a snapshot, and its link is stuck.
async fn half_sent(config: RaftConfig) -> (Cluster, i32) {
    let (cluster, leader) = purged(config).await;
    // A few chunks of eleven; the first append and its refusal come before.
    cluster.links.stall_after(leader, 4, 40_000);
    let replica = cluster.replica(leader);
    cluster.env.spawn_local(async move {
        let target = members(&[1, 2, 3, 4]);
        let _ = replica.change_members(target, harness::PATIENCE).await;
    });
    wait_for("part of the snapshot", || {
        (cluster.nodes[&4].shard().metrics().assembling_bytes > 0
            && cluster.links.is_stalled(leader, 4))
        .then_some(())
    })
    .await;
    (cluster, leader)
}

#[test]
fn a_closed_replica_keeps_no_part_of_a_snapshot() {
    run(async {
        let (cluster, _) = half_sent(test_config()).await;
        let shard = cluster.nodes[&4].shard();
        shard.close_replica(cluster.group).await;
        assert_eq!(shard.metrics().assembling_bytes, 0);
    });
}

async fn nothing_assembled(cluster: &Cluster) {
    wait_for("the part to be dropped", || {
        let bytes = cluster.nodes[&4].shard().metrics().assembling_bytes;
        (bytes == 0).then_some(())
    })
    .await;
}

#[test]
fn a_dead_sender_leaves_no_part_of_a_snapshot() {
    run(async {
        let (mut cluster, leader) = half_sent(test_config()).await;
        cluster.kill(leader).await;
        nothing_assembled(&cluster).await;
    });
}

#[test]
fn a_lost_connection_leaves_no_part_of_a_snapshot() {
    run(async {
        let config = RaftConfig {
            // Nobody is held down here: it is the connection that ends.
            down_after: harness::PATIENCE * 10,
            ..test_config()
        };
        let (cluster, leader) = half_sent(config).await;
        cluster.links.cut(leader, 4);
        cluster.links.unstall(leader, 4);
        nothing_assembled(&cluster).await;
    });
}
