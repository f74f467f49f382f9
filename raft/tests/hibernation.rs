//! Idle groups sleep, and wake for whatever needs them (law 13).

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{ProposalOutcome, RaftConfig, Role};
use harness::{Cluster, batch, run, test_config, wait_for};

fn sleepy() -> RaftConfig {
    RaftConfig {
        hibernate_after: Duration::from_millis(200),
        ..test_config()
    }
}

async fn asleep(cluster: &Cluster) -> i32 {
    let running = cluster.running();
    let leader = cluster.leader(&running).await;
    wait_for("the group to sleep", || {
        running
            .iter()
            .all(|id| cluster.replica(*id).is_asleep())
            .then_some(())
    })
    .await;
    leader
}

#[test]
fn an_idle_group_sleeps_and_a_write_wakes_it_in_its_own_term() {
    run(async {
        let (cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        let term = cluster.replica(leader).view().term;
        // Longer than any lease or election timeout.
        tokio::time::sleep(Duration::from_millis(2000)).await;
        let view = cluster.replica(leader).view();
        assert!(view.lease_valid, "the detector stands in for the lease");
        assert_eq!(
            cluster
                .replica(leader)
                .in_sync(Duration::from_millis(1))
                .len(),
            3
        );
        let before = tokio::time::Instant::now();
        cluster.commit(&["b"]).await;
        println!("a sleeping group took a write in {:?}", before.elapsed());
        assert!(!cluster.replica(leader).is_asleep());
        assert_eq!(
            cluster.replica(leader).view().term,
            term,
            "no election was needed"
        );
        assert_eq!(cluster.agree().await, ["a", "b"]);
        asleep(&cluster).await;
    });
}

#[test]
fn a_sleeping_group_is_on_nobodys_clock() {
    run(async {
        let (cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        for id in 1..=3 {
            let awake = cluster.nodes[&id].shard().awake_groups();
            assert!(awake.is_empty(), "node {id} looks after {awake:?}");
        }
        let before = cluster.nodes[&leader].shard().metrics();
        assert!(
            before.beat_frames > 0,
            "beats were counted while it was awake"
        );
        cluster.commit(&["b"]).await;
        let shard = cluster.nodes[&leader].shard();
        assert_eq!(shard.awake_groups(), [cluster.group]);
        let commits = |buckets: &[u64]| buckets.iter().sum::<u64>();
        let counted = shard.metrics();
        assert_eq!(commits(&counted.commit_buckets), 2);
        assert!(counted.commit_micros > before.commit_micros);
    });
}

#[test]
fn a_group_sleeps_without_a_dead_follower_and_wakes_when_it_returns() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let dead = cluster.other_than(leader);
        cluster.kill(dead).await;
        cluster.commit(&["b"]).await;
        let leader = asleep(&cluster).await;
        let term = cluster.replica(leader).view().term;
        cluster.start(dead).await;
        assert_eq!(cluster.agree().await, ["a", "b"], "it caught up");
        assert_eq!(cluster.replica(leader).view().term, term, "no election");
        // All three sleep together again.
        asleep(&cluster).await;
        cluster.kill(dead).await;
        let other = cluster
            .running()
            .into_iter()
            .find(|id| *id != leader)
            .expect("a third node");
        cluster.kill(leader).await;
        cluster.start(dead).await;
        cluster.commit(&["c"]).await;
        cluster.start(leader).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        assert!(cluster.running().contains(&other));
    });
}

#[test]
fn a_sleeping_group_whose_leader_dies_elects_another() {
    run(async {
        let (mut cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        tokio::time::sleep(Duration::from_millis(1000)).await;
        cluster.kill(leader).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

#[test]
fn a_sleeping_group_whose_follower_restarts_keeps_its_leader() {
    run(async {
        let (mut cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        let term = cluster.replica(leader).view().term;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let follower = cluster.other_than(leader);
        cluster.kill(follower).await;
        cluster.start(follower).await;
        let after = asleep(&cluster).await;
        let view = cluster.replica(leader).view();
        assert_eq!((after, view.term, view.role), (leader, term, Role::Leader));
    });
}

#[test]
fn a_read_barrier_wakes_a_sleeping_group() {
    run(async {
        let (cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        tokio::time::sleep(Duration::from_millis(1000)).await;
        cluster
            .replica(leader)
            .read_barrier()
            .await
            .expect("still the leader");
    });
}

/// Law 12: what the leader last heard of a majority is as old as the sleep; the detector stands in
/// until it has heard one again. The first writer wakes the group, the second comes right behind.
#[test]
fn a_woken_leader_takes_the_writes_of_all_who_come_at_once() {
    run(async {
        let (cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        // Longer than any lease.
        tokio::time::sleep(cluster.config.election_max * 2).await;
        let write = |value: &'static str| {
            let view = cluster.replica(leader).view();
            assert!(view.lease_valid, "{value}: what a writer looks at first");
            cluster.propose(leader, batch(value))
        };
        let first = write("b");
        assert!(!cluster.replica(leader).is_asleep());
        let second = write("c");
        for ticket in [first, second] {
            let outcome = ticket.wait().await;
            assert!(
                matches!(outcome, ProposalOutcome::Applied(_)),
                "{outcome:?}"
            );
        }
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
    });
}

#[test]
fn a_woken_leader_without_its_majority_has_no_lease() {
    run(async {
        let (mut cluster, _) = Cluster::led(3, sleepy()).await;
        cluster.commit(&["a"]).await;
        let leader = asleep(&cluster).await;
        for id in (1..=3).filter(|id| *id != leader) {
            cluster.kill(id).await;
        }
        // Each of their deaths wakes it, the last one well within the time that a lease lasts.
        wait_for("the lease to end", || {
            (!cluster.replica(leader).view().lease_valid).then_some(())
        })
        .await;
        assert!(!cluster.replica(leader).is_asleep());
    });
}
