//! Nodes with several shards that place the same group differently: frames find their way.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use corduroy_raft::RaftConfig;
use corduroy_record::NodeId;
use harness::{Cluster, run, test_config, wait_for};

#[test]
fn a_group_on_different_shards_of_its_nodes_replicates_fails_over_and_sleeps() {
    run(async {
        let config = RaftConfig {
            hibernate_after: Duration::from_millis(300),
            ..test_config()
        };
        let mut cluster = Cluster::new(3, config);
        for (id, node) in &mut cluster.nodes {
            node.shards = if *id == 3 { 3 } else { 2 };
        }
        cluster.start_all().await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        for n in 0..100 {
            cluster.propose(leader, harness::batch(&n.to_string()));
        }
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        wait_for("the group to sleep", || {
            (1..=3)
                .all(|id| cluster.replica(id).is_asleep())
                .then_some(())
        })
        .await;
        cluster.commit(&["b"]).await;
        cluster.kill(leader).await;
        let rest = cluster.running();
        cluster.leader(&rest).await;
        cluster.commit(&["c"]).await;
        cluster.start(leader).await;
        let values = cluster.agree().await;
        assert_eq!(values.len(), 103);
        let to = rest[0];
        let answer = cluster.nodes[&leader]
            .shard()
            .call(
                NodeId::new(to),
                Bytes::from_static(b"hello"),
                Duration::from_secs(5),
            )
            .await;
        assert_eq!(answer.expect("an answer"), format!("hello from {leader}"));
    });
}
