//! The leader epoch that others may see.

#![allow(dead_code)]

mod harness;

use corduroy_raft::{ReplicaEvent, Role};
use corduroy_record::LeaderEpoch;
use harness::{Cluster, replica_id, run, test_config, wait_for};

/// A term whose leader never commits anything may be skipped by the log: an epoch that was shown
/// and then does not exist would make consumers truncate.
#[test]
fn an_epoch_is_shown_only_once_an_entry_of_its_term_is_committed() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let before = cluster.replica(leader).view();
        assert_eq!(before.epoch, LeaderEpoch::from_term(before.term));
        let next = cluster.other_than(leader);
        // It is cut off at the moment it is elected: nothing of its term can be committed.
        let links = cluster.links.clone();
        cluster.nodes[&next].machine().borrow_mut().on_event = Some(Box::new(move |event| {
            if matches!(event, ReplicaEvent::LeaderChanged { is_self: true, .. }) {
                for other in 1..=3 {
                    links.cut(next, other);
                }
            }
        }));
        let _ = cluster
            .replica(leader)
            .transfer_leader(Some(replica_id(next)))
            .await;
        let elected = wait_for("the next leader", || {
            let view = cluster.replica(next).view();
            (view.role == Role::Leader && view.term > before.term).then_some(view)
        })
        .await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != next).collect();
        // Until the others have gone on in a later term, it leads in its own and shows the last.
        wait_for("the others' leader", || {
            let view = cluster.replica(next).view();
            assert_eq!((view.term, view.epoch), (elected.term, before.epoch));
            assert!(!view.leader_ready);
            rest.iter().find_map(|id| {
                let view = cluster.replica(*id).view();
                if view.term <= elected.term {
                    assert_eq!(view.epoch, before.epoch, "node {id}");
                }
                (view.role == Role::Leader && view.leader_ready && view.term > elected.term)
                    .then_some(())
            })
        })
        .await;
        cluster.nodes[&next].machine().borrow_mut().on_event = None;
        cluster.links.heal_all();
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
        for id in 1..=3 {
            let view = cluster.replica(id).view();
            assert_eq!(view.epoch, LeaderEpoch::from_term(view.term), "node {id}");
            let epochs = cluster.replica(id).log().epochs();
            let skipped = epochs
                .starts()
                .iter()
                .any(|start| start.term == elected.term);
            assert!(!skipped, "node {id} kept an epoch that nobody was shown");
        }
    });
}
