//! What happens when a node dies, falls silent, or only seems to.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{RaftConfig, RaftError, ReplicaEvent, Role, Unfit};
use corduroy_record::NodeId;
use harness::{Cluster, batch, replica_id, run, test_config, wait_for};

#[test]
fn the_death_of_a_leader_is_answered_far_below_an_election_timeout() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, without_fallback()).await;
        cluster.commit(&["a"]).await;
        cluster.kill(leader).await;
        let rest = cluster.running();
        cluster.leader(&rest).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

/// Fallback timeouts that a test could never wait for.
fn without_fallback() -> RaftConfig {
    RaftConfig {
        election_min: Duration::from_secs(60),
        election_max: Duration::from_secs(90),
        ..test_config()
    }
}

/// A cluster whose leader is the one that the survey prefers: of equal logs the highest id.
async fn led_by_the_highest() -> Cluster {
    let (cluster, leader) = Cluster::led(3, without_fallback()).await;
    cluster.commit(&["a"]).await;
    if leader != 3 {
        let replica = cluster.replica(leader);
        let moved = replica.transfer_leader(Some(replica_id(3))).await;
        assert_eq!(moved, Ok(()));
    }
    assert_eq!(cluster.leader(&[1, 2, 3]).await, 3);
    cluster.agree().await;
    cluster
}

/// The old leader has the longest log and campaigns; it is not the leader of its old term.
#[test]
fn a_restart_of_all_is_answered_far_below_an_election_timeout() {
    run(async {
        let mut cluster = led_by_the_highest().await;
        for id in 1..=3 {
            cluster.kill(id).await;
        }
        for id in 1..=3 {
            cluster.start(id).await;
        }
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

#[test]
fn a_leader_that_lost_its_instance_is_succeeded_far_below_an_election_timeout() {
    run(async {
        let cluster = led_by_the_highest().await;
        let term = cluster.replica(3).view().term;
        cluster.nodes[&3].machine().borrow_mut().poison = Some(b"poison");
        cluster.propose_internal(3, b"poison").wait().await;
        // What it takes while it ends may be kept or not; here nothing is given to it.
        wait_for("a new term", || {
            let terms = (1..=3).map(|id| cluster.replica(id).view().term);
            terms.max().filter(|newest| *newest > term)
        })
        .await;
        cluster.leader(&[1, 2, 3]).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

#[test]
fn a_silent_leader_is_replaced_and_told_when_it_returns() {
    run(async {
        let (cluster, leader) = Cluster::led(3, without_fallback()).await;
        cluster.commit(&["a"]).await;
        for other in 1..=3 {
            cluster.links.cut(leader, other);
        }
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        cluster.leader(&rest).await;
        cluster.commit(&["b"]).await;
        cluster.links.heal_all();
        assert_eq!(cluster.agree().await, ["a", "b"]);
        let events = cluster.nodes[&leader].machine().borrow().events.clone();
        assert!(events.iter().any(|event| matches!(
            event,
            ReplicaEvent::LeaderChanged {
                is_self: false,
                leader: Some(_),
                ..
            }
        )));
    });
}

/// Law 12: one follower that cannot hear a healthy leader does not depose it.
#[test]
fn a_follower_that_alone_misses_the_leader_deposes_nobody() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let deaf = cluster.other_than(leader);
        cluster.commit(&["a"]).await;
        let term = cluster.replica(leader).view().term;
        cluster.links.cut(leader, deaf);
        wait_for("the deaf one to hold the leader down", || {
            cluster.nodes[&deaf]
                .detector()
                .is_down(NodeId::new(leader))
                .then_some(())
        })
        .await;
        for n in 0..40 {
            cluster.commit(&[&format!("b{n}")]).await;
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let view = cluster.replica(leader).view();
        assert_eq!(
            (view.role, view.term),
            (Role::Leader, term),
            "the leader was deposed"
        );
        cluster.links.heal_all();
        cluster.agree().await;
    });
}

/// Law 12: who once missed the leader for a moment, and has heard it since, does not help to depose
/// it later.
#[test]
fn a_leader_that_was_missed_before_and_is_heard_again_is_not_deposed() {
    run(async {
        let (cluster, leader) = Cluster::led(3, without_fallback()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let view = cluster.replica(leader).view();
        let followers: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        // Of equal logs the higher id campaigns: it is the one that misses the leader last.
        let (first, second) = (followers[0], followers[1]);
        let holds_down = |id: i32, down: bool| {
            let detector = cluster.nodes[&id].detector();
            (detector.is_down(NodeId::new(leader)) == down).then_some(())
        };
        cluster.links.cut(leader, first);
        wait_for("the first to miss the leader", || holds_down(first, true)).await;
        cluster.links.heal_all();
        wait_for("the first to hear it again", || holds_down(first, false)).await;
        cluster.commit(&["b"]).await;
        cluster.agree().await;
        cluster.links.cut(leader, second);
        wait_for("the second to miss the leader", || holds_down(second, true)).await;
        // Many attempts of a failover, if anybody agreed.
        tokio::time::sleep(cluster.config.failover_retry * 15).await;
        let after = cluster.replica(leader).view();
        assert_eq!((after.role, after.term), (Role::Leader, view.term));
        cluster.commit(&["c"]).await;
        cluster.links.heal_all();
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        assert_eq!(cluster.replica(leader).view().term, view.term);
    });
}

#[test]
fn the_isr_drops_a_dead_node_at_once_and_takes_it_back() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        let lag = Duration::from_secs(30);
        let in_sync = |cluster: &Cluster| {
            let mut nodes: Vec<i32> = cluster
                .replica(leader)
                .in_sync(lag)
                .iter()
                .map(|(_, node)| node.get())
                .collect();
            nodes.sort_unstable();
            nodes
        };
        wait_for("all in sync", || {
            (in_sync(&cluster) == [1, 2, 3]).then_some(())
        })
        .await;
        let dead = cluster.other_than(leader);
        cluster.kill(dead).await;
        wait_for("the dead one to leave", || {
            (!in_sync(&cluster).contains(&dead)).then_some(())
        })
        .await;
        cluster.commit(&["b", "c"]).await;
        cluster.start(dead).await;
        wait_for("it to return", || {
            (in_sync(&cluster) == [1, 2, 3]).then_some(())
        })
        .await;
        for follower in (1..=3).filter(|id| *id != leader) {
            assert!(cluster.replica(follower).in_sync(lag).is_empty());
        }
    });
}

#[test]
fn waiting_for_copies_counts_durable_voters() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        let dead = cluster.other_than(leader);
        cluster.kill(dead).await;
        cluster.commit(&["b"]).await;
        let end = cluster.log_end(leader).expect("entries");
        let soon = tokio::time::Instant::now() + Duration::from_millis(100);
        let replica = cluster.replica(leader);
        assert!(replica.wait_replicated(end, 2, soon).await);
        assert!(
            !replica.wait_replicated(end, 3, soon).await,
            "only two are alive"
        );
        let later = tokio::time::Instant::now() + harness::PATIENCE;
        let all = replica.wait_replicated(end, 3, later);
        cluster.start(dead).await;
        assert!(all.await);
    });
}

#[test]
fn a_node_that_hears_no_majority_counts_itself_as_isolated() {
    run(async {
        let (cluster, _) = Cluster::led(3, test_config()).await;
        for other in [2, 3] {
            cluster.links.cut(1, other);
        }
        wait_for("isolation", || {
            cluster.nodes[&1].detector().isolated().then_some(())
        })
        .await;
        assert!(!cluster.nodes[&2].detector().isolated());
        cluster.links.heal_all();
        wait_for("its end", || {
            (!cluster.nodes[&1].detector().isolated()).then_some(())
        })
        .await;
    });
}

#[test]
fn a_read_barrier_needs_a_majority_and_sees_everything_before_it() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        let replica = cluster.replica(leader);
        let (one, two, three) = tokio::join!(
            replica.read_barrier(),
            replica.read_barrier(),
            replica.read_barrier()
        );
        let index = one.expect("a leader");
        assert!(two.is_ok() && three.is_ok());
        assert!(Some(index) >= cluster.log_end(leader));
        let follower = cluster.other_than(leader);
        let refused = cluster
            .replica(follower)
            .read_barrier()
            .await
            .expect_err("a follower");
        assert_eq!(refused.leader, Some(NodeId::new(leader)));
        for other in 1..=3 {
            cluster.links.cut(leader, other);
        }
        assert!(
            replica.read_barrier().await.is_err(),
            "cut off from its majority"
        );
    });
}

#[test]
fn a_transfer_to_a_node_that_is_gone_leaves_a_leader_that_writes() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        let gone = cluster.other_than(leader);
        // Cut, but not yet held down: it does not say that it can lead, so nothing is tried.
        cluster.links.cut(leader, gone);
        let moved = cluster
            .replica(leader)
            .transfer_leader(Some(replica_id(gone)))
            .await;
        assert!(
            matches!(moved, Err(RaftError::Unfit(Unfit::Silent | Unfit::Down))),
            "{moved:?}"
        );
        cluster.links.heal_all();
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
        let leader = cluster.leader(&[1, 2, 3]).await;
        let unknown = cluster
            .replica(leader)
            .transfer_leader(Some(replica_id(99)))
            .await;
        assert_eq!(unknown, Err(RaftError::NoTarget));
        assert!(cluster.propose(leader, batch("c")).wait().await != harness_refused());
    });
}

fn harness_refused() -> corduroy_raft::ProposalOutcome {
    corduroy_raft::ProposalOutcome::NotAppended(corduroy_raft::RefuseReason::Stopped)
}
