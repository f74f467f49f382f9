//! Replicas that lost log: they neither vote nor lead until they have caught up (law 8).

#![allow(dead_code)]

mod harness;

use corduroy_raft::Role;
use harness::{Cluster, run, test_config, wait_for};

#[test]
fn a_flagged_replica_refetches_and_then_votes_again() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a", "b", "c"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        // It comes back with an empty disk under its old replica id.
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        cluster.start(victim).await;
        wait_for("the flag to fall", || {
            (!cluster.replica(victim).log().state().no_vote).then_some(())
        })
        .await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        // Now it counts: the group lives with it and one other.
        let other = (1..=3)
            .find(|id| *id != leader && *id != victim)
            .expect("a third");
        cluster.kill(other).await;
        cluster.commit(&["d"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d"]);
    });
}

#[test]
fn a_flagged_replica_does_not_help_to_elect_a_leader() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        let (victim, behind) = (rest[0], rest[1]);
        // `behind` misses b; the victim had it and loses it; the leader dies.
        cluster.kill(behind).await;
        cluster.commit(&["b"]).await;
        cluster.agree().await;
        cluster.kill(leader).await;
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        cluster.start(victim).await;
        cluster.start(behind).await;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        for id in [victim, behind] {
            assert_ne!(
                cluster.replica(id).view().role,
                Role::Leader,
                "b would be lost"
            );
        }
        cluster.start(leader).await;
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
    });
}

/// When most replicas lost log, nobody may lead on the word of a few: all voters have to answer,
/// then the longest log leads, and says so.
#[test]
fn when_a_majority_is_flagged_the_longest_log_leads_once_all_have_answered() {
    run(async {
        let mut config = test_config();
        config.election_min = std::time::Duration::from_millis(200);
        config.election_max = std::time::Duration::from_millis(300);
        config.heartbeat = std::time::Duration::from_millis(50);
        let (mut cluster, leader) = Cluster::led(3, config).await;
        cluster.commit(&["a", "b"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        for id in 1..=3 {
            cluster.kill(id).await;
        }
        for id in &rest {
            cluster.nodes.get_mut(id).expect("a node").lose_disk = true;
            cluster.start(*id).await;
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        for id in &rest {
            assert_ne!(
                cluster.replica(*id).view().role,
                Role::Leader,
                "one is still missing"
            );
        }
        cluster.start(leader).await;
        assert_eq!(
            cluster.leader(&[1, 2, 3]).await,
            leader,
            "it alone has the log"
        );
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        for id in 1..=3 {
            wait_for("the flags to fall", || {
                (!cluster.replica(id).log().state().no_vote).then_some(())
            })
            .await;
        }
    });
}
