//! What planted bugs of the storage do to a group.

#![allow(dead_code)]

mod harness;

use std::collections::BTreeSet;

use corduroy_env::planted::{Bug, with};
use harness::{Cluster, run, test_config, wait_for};

#[test]
fn truncation_keeps_offset_makes_replicas_number_the_same_records_differently() {
    with(Some(Bug::TruncationKeepsOffset), || {
        run(async {
            let (cluster, leader) = Cluster::led(3, test_config()).await;
            cluster.commit(&["a"]).await;
            cluster.agree().await;
            let others: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
            for other in &others {
                cluster.links.cut(leader, *other);
            }
            let lost = cluster.propose(leader, harness::batch("lost"));
            wait_for("it to be appended", || lost.appended()).await;
            cluster.leader(&others).await;
            // Among two leaders it takes the one of the newer term.
            cluster.commit(&["b"]).await;
            cluster.links.heal_all();
            let end = wait_for("the deposed leader to follow", || {
                let end = cluster.log_end(others[0])?;
                (cluster.log_end(leader) == Some(end)).then_some(end)
            })
            .await;
            wait_for("it to apply", || {
                (cluster.replica(leader).view().applied >= end).then_some(())
            })
            .await;
            let ends: BTreeSet<i64> = (1..=3).map(|id| cluster.next_offset(id).get()).collect();
            assert_eq!(ends, BTreeSet::from([2, 3]));
        });
    });
}

/// The committed records that are left after a power failure of all nodes at once.
fn left_after_power_loss(bug: Option<Bug>, seed: u64) -> Vec<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    with(bug, || {
        run(async move {
            let (mut cluster, _leader) = Cluster::led(3, test_config()).await;
            cluster.commit(&["a", "b", "c"]).await;
            for id in 1..=3 {
                cluster.power_off(id, seed + id as u64).await;
            }
            for id in 1..=3 {
                cluster.start(id).await;
            }
            cluster.leader(&[1, 2, 3]).await;
            sender.send(cluster.agree().await).expect("received");
        });
    });
    receiver.recv().expect("a log")
}

#[test]
fn a_flush_that_comes_too_late_loses_committed_records_when_all_lose_power() {
    assert_eq!(left_after_power_loss(None, 1), ["a", "b", "c"]);
    for bug in [Bug::AckBeforeFlush, Bug::CallbackBeforeSync] {
        let loses = (1..20)
            .map(|seed| left_after_power_loss(Some(bug), 10 * seed))
            .any(|left| left.len() < 3);
        assert!(loses, "{}: nothing was lost", bug.name());
    }
}
