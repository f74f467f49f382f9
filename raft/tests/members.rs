//! Replicas come and go.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::RaftError;
use corduroy_record::NodeId;
use corduroy_storage::LogConfig;
use harness::{Cluster, replica_id, run, test_config};

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

#[test]
fn a_learner_behind_the_purge_point_gets_large_tables_in_chunks() {
    run(async {
        let mut config = test_config();
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
