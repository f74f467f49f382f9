//! Replicas that lost log: they neither vote nor lead until they have caught up (law 8).

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{ProposalOutcome, RaftConfig, Role};
use corduroy_record::LogIndex;
use harness::{Cluster, Stop, batch, run, test_config, wait_for};

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

/// Law 8: what was written while a replica was down counts as well. It has all that it lost, and
/// all but the last entry of what a leader had after its restart, and still may not vote.
#[test]
fn a_flag_falls_only_at_the_end_that_a_leader_had_after_the_restart() {
    run(async {
        let config = RaftConfig {
            append_entries_max: 1,
            append_window_requests: 1,
            // The held link carries no pings either.
            down_after: Duration::from_secs(60),
            election_min: Duration::from_secs(60),
            election_max: Duration::from_secs(90),
            ..test_config()
        };
        let (mut cluster, leader) = Cluster::led(3, config).await;
        cluster.commit(&["a", "b", "c"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        cluster.kill(victim).await;
        cluster.commit(&["d", "e"]).await;
        let end = cluster.log_end(leader).expect("entries");
        let last_but_one = LogIndex::new(end.get() - 1);
        let stop = Stop {
            node: victim,
            index: last_but_one,
        };
        cluster.links.stop(leader, victim, stop);
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        cluster.start(victim).await;
        let log = cluster.replica(victim).log().clone();
        wait_for("all but the last entry", || {
            (log.state().durable_last == Some(last_but_one)).then_some(())
        })
        .await;
        // A change of the flag would be a record of its own, before this one.
        log.flush().await.expect("durable");
        assert!(log.state().no_vote, "it votes without {end}");
        cluster.commit(&["f"]).await;
        log.flush().await.expect("durable");
        assert!(log.state().no_vote, "it votes without {end}");
        cluster.links.heal_all();
        wait_for("the flag to fall", || (!log.state().no_vote).then_some(())).await;
        assert!(log.state().durable_last >= Some(end));
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d", "e", "f"]);
        let metrics = cluster.nodes[&leader].shard().metrics();
        assert_eq!(metrics.possible_losses, 0, "nothing can be lost here");
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

/// Law 8: a replica that forgot its vote takes the first leader that speaks to it for the newest. An
/// older one, that has not heard of its end, would commit on its word what the newer one never saw.
#[test]
fn a_replica_that_forgot_its_vote_does_not_help_an_older_leader() {
    run(async {
        let (mut cluster, older) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != older).collect();
        for other in &rest {
            cluster.links.cut(older, *other);
        }
        let newer = cluster.leader(&rest).await;
        for value in ["b", "c"] {
            let outcome = cluster.propose(newer, batch(value)).wait().await;
            assert!(
                matches!(outcome, ProposalOutcome::Applied(_)),
                "{outcome:?}"
            );
        }
        let victim = rest.iter().copied().find(|id| *id != newer).expect("one");
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        cluster.links.cut(newer, victim);
        cluster.links.heal(older, victim);
        cluster.start(victim).await;
        let stale = cluster.propose(older, batch("stale"));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let told = stale.outcome();
        assert!(
            !matches!(told, Some(ProposalOutcome::Applied(_))),
            "{told:?} on the word of one that forgot who leads"
        );
        assert!(cluster.replica(victim).log().state().no_vote);
        cluster.links.heal_all();
        cluster.commit(&["d"]).await;
        let values = cluster.agree().await;
        assert_eq!(values[..3], ["a", "b", "c"]);
        wait_for("the flag to fall", || {
            (!cluster.replica(victim).log().state().no_vote).then_some(())
        })
        .await;
    });
}

/// It still has its vote, for this very leader, and refuses an older one by itself: it comes back on
/// the leader's word alone, and the group goes on with the two.
#[test]
fn a_replica_that_kept_its_vote_comes_back_without_the_third() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        let (victim, third) = (rest[0], rest[1]);
        cluster.kill(third).await;
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").flagged = true;
        cluster.start(victim).await;
        cluster.commit(&["b"]).await;
        wait_for("the flag to fall", || {
            (!cluster.replica(victim).log().state().no_vote).then_some(())
        })
        .await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
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
        let possible_losses = |cluster: &Cluster, id: i32| {
            let metrics = cluster.nodes[&id].shard().metrics();
            metrics.possible_losses
        };
        for id in &rest {
            assert_eq!(possible_losses(&cluster, *id), 0, "nobody leads yet");
        }
        cluster.start(leader).await;
        assert_eq!(
            cluster.leader(&[1, 2, 3]).await,
            leader,
            "it alone has the log"
        );
        assert!(
            possible_losses(&cluster, leader) > 0,
            "what only the two had may be lost, and nobody is told"
        );
        for id in &rest {
            assert_eq!(possible_losses(&cluster, *id), 0, "they do not lead");
        }
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
