//! A panic restarts one replica alone; a storage error stops it for good (law 3).

#![allow(dead_code)]

mod harness;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_raft::{ReplicaEvent, ReplicaSpec, Role};
use harness::{Cluster, TestMachine, run, test_config, wait_for};

#[test]
fn a_panic_in_a_machine_restarts_that_replica_from_its_log() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let victim = cluster.other_than(leader);
        cluster.commit(&["a"]).await;
        cluster.nodes[&victim].machine().borrow_mut().poison = Some(b"poison");
        cluster.propose_internal(leader, b"poison").wait().await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
        let restores = cluster.nodes[&victim].machine().borrow().restores;
        assert_eq!(restores, 2, "at open and after the panic");
        assert_eq!(cluster.nodes[&victim].shard().metrics().restarts, 1);
    });
}

#[test]
fn a_leader_that_panicked_leads_again_only_in_a_new_term() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let term = cluster.replica(leader).view().term;
        cluster.commit(&["a"]).await;
        cluster.nodes[&leader].machine().borrow_mut().poison = Some(b"poison");
        cluster.propose_internal(leader, b"poison").wait().await;
        wait_for("a new term", || {
            (1..=3)
                .any(|id| {
                    let view = cluster.replica(id).view();
                    view.role == Role::Leader && view.term > term
                })
                .then_some(())
        })
        .await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

/// Whoever closes a replica may open its log anew: the one that was about to be restarted must not
/// come back beside it, with the same id and the same votes.
#[test]
fn a_replica_that_is_closed_before_its_restart_does_not_come_back() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let victim = cluster.other_than(leader);
        cluster.commit(&["a"]).await;
        let (shard, old) = (
            cluster.nodes[&victim].shard().clone(),
            cluster.nodes[&victim].machine(),
        );
        old.borrow_mut().poison = Some(b"poison");
        cluster.propose_internal(leader, b"poison").wait().await;
        wait_for("the panic to be noticed", || {
            (shard.metrics().restarts == 1).then_some(())
        })
        .await;
        let log = cluster.replica(victim).log().clone();
        shard.close_replica(cluster.group).await;
        let told = old.borrow().events.len();
        let spec = ReplicaSpec {
            group: cluster.group,
            replica: log.replica(),
            log,
        };
        let machine = Rc::new(RefCell::new(TestMachine::default()));
        let replica = shard.open(spec, machine.clone()).await.expect("it opens");
        // The restart was due after 100 ms.
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.commit(&["b"]).await;
        let end = cluster.log_end(leader).expect("entries");
        wait_for("the new replica to apply", || {
            (replica.view().applied >= end).then_some(())
        })
        .await;
        assert_eq!(machine.borrow().records, 2);
        assert_eq!(old.borrow().restores, 1, "at its opening, and never again");
        assert_eq!(old.borrow().events.len(), told, "it is told of nothing");
    });
}

#[test]
fn a_failed_flush_stops_the_replica_and_the_others_go_on() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.nodes[&leader].disk.fail_flush("", 0);
        cluster.propose(leader, harness::batch("lost?"));
        wait_for("the replica to stop", || {
            cluster.nodes[&leader]
                .machine()
                .borrow()
                .events
                .iter()
                .any(|event| matches!(event, ReplicaEvent::Stopped { .. }))
                .then_some(())
        })
        .await;
        assert_eq!(cluster.replica(leader).view().role, Role::Stopped);
        assert_eq!(cluster.nodes[&leader].shard().metrics().restarts, 0);
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        cluster.leader(&rest).await;
        cluster.kill(leader).await;
        cluster.commit(&["b"]).await;
        let values = cluster.agree().await;
        assert_eq!(values.first().map(String::as_str), Some("a"));
        assert_eq!(values.last().map(String::as_str), Some("b"));
    });
}

#[test]
fn a_full_disk_holds_a_replica_up_until_there_is_room() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let full = cluster.other_than(leader);
        cluster.nodes[&full].disk.set_capacity(0);
        let large = "x".repeat(300_000);
        for _ in 0..10 {
            cluster.commit(&[&large]).await;
        }
        let end = cluster.log_end(leader);
        assert!(cluster.replica(full).view().applied.get() < end.expect("entries").get());
        cluster.nodes[&full].disk.set_capacity(u64::MAX);
        cluster.commit(&["b"]).await;
        let values = cluster.agree().await;
        assert_eq!(values.len(), 12);
        let stopped = cluster.nodes[&full]
            .machine()
            .borrow()
            .events
            .iter()
            .any(|event| matches!(event, ReplicaEvent::Stopped { .. }));
        assert!(!stopped, "it recovers without a restart of the process");
    });
}

/// Its log is never written here: the disk fails under somebody else's flush.
#[test]
fn a_failed_disk_stops_a_leader_that_writes_nothing() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.nodes[&leader].disk.fail_flush("", 0);
        let log = cluster.replica(leader).log().clone();
        let state = log.state();
        log.save_vote(state.vote.expect("a leader has voted"))
            .await
            .expect_err("the flush fails");
        let stopped = || cluster.replica(leader).view().role == Role::Stopped;
        wait_for("the leader to stop", || stopped().then_some(())).await;
        cluster.kill(leader).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

/// openraft goes on asking for what a full disk has just refused, to send it to followers: that is
/// no loss, and the replica comes back.
#[test]
fn a_leader_that_is_asked_for_what_its_full_disk_refused_comes_back() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let large = "x".repeat(300_000);
        for other in (1..=3).filter(|id| *id != leader) {
            // What is in flight to it does not get through: it is asked for again.
            cluster.links.stall_after(leader, other, 0);
        }
        cluster.nodes[&leader].disk.set_capacity(0);
        let tickets: Vec<_> = (0..8)
            .map(|_| cluster.propose(leader, harness::batch(&large)))
            .collect();
        wait_for("the disk to refuse them", || {
            (cluster.nodes[&leader].shard().metrics().restarts > 0).then_some(())
        })
        .await;
        for other in (1..=3).filter(|id| *id != leader) {
            cluster.links.unstall(leader, other);
        }
        cluster.nodes[&leader].disk.set_capacity(u64::MAX);
        for ticket in tickets {
            ticket.wait().await;
        }
        cluster.commit(&["b"]).await;
        let values = cluster.agree().await;
        assert_eq!(values.last().map(String::as_str), Some("b"));
        let stopped = cluster.nodes[&leader].machine().borrow().stopped();
        assert_eq!(
            stopped, None,
            "it recovers without a restart of the process"
        );
    });
}

/// A log that lacks what its replica counts on has lost it. Restarting for ever would not bring it
/// back, and nobody would be told.
#[test]
fn a_leader_whose_log_lost_its_end_stops_and_says_so() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let behind = cluster.other_than(leader);
        cluster.kill(behind).await;
        let held = cluster.log_end(leader).expect("entries");
        cluster.commit(&["b", "c"]).await;
        let log = cluster.replica(leader).log().clone();
        log.truncate_after(Some(held)).await.expect("a cut");
        cluster.start(behind).await;
        let reason = wait_for("the leader to stop", || {
            cluster.nodes[&leader].machine().borrow().stopped()
        })
        .await;
        assert!(reason.contains("is outside of the log"), "{reason}");
        assert_eq!(cluster.nodes[&leader].shard().metrics().restarts, 0);
        // The others have it all.
        cluster.kill(leader).await;
        cluster.commit(&["d"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d"]);
    });
}
