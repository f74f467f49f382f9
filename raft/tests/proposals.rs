//! The ordered door: proposals of one replica are appended in the order of the calls, or fail.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{ProposalOutcome, RefuseReason};
use corduroy_record::{NodeId, Offset, Term};
use harness::{Cluster, PATIENCE, Ticket, batch, batch_of, run, test_config, wait_for};

#[test]
fn a_pipeline_of_proposals_is_applied_in_order_with_dense_offsets() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let values: Vec<String> = (0..3000).map(|n| format!("v{n}")).collect();
        let tickets: Vec<Ticket> = values
            .iter()
            .map(|value| cluster.propose(leader, batch(value)))
            .collect();
        for (n, ticket) in tickets.iter().enumerate() {
            match ticket.wait().await {
                ProposalOutcome::Applied(head) => {
                    assert_eq!(head.base_offset, Offset::new(n as i64));
                    assert_eq!(ticket.appended(), Some(head), "acks=1 came first");
                }
                other => panic!("proposal {n}: {other:?}"),
            }
        }
        assert_eq!(cluster.agree().await, values);
    });
}

#[test]
fn batches_of_several_records_take_as_many_offsets_and_internal_entries_none() {
    run(async {
        let (cluster, _) = Cluster::led(1, test_config()).await;
        cluster.propose(1, batch_of(&["a", "b", "c"])).wait().await;
        cluster.propose_internal(1, b"state").wait().await;
        let ProposalOutcome::Applied(head) = cluster.propose(1, batch("d")).wait().await else {
            panic!("not applied");
        };
        assert_eq!(head.base_offset, Offset::new(3));
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d"]);
        assert_eq!(cluster.nodes[&1].tables().1, 1, "one internal entry");
    });
}

#[test]
fn acks_1_is_told_before_the_followers_hear_of_it() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        for other in [1, 2, 3] {
            cluster.links.cut(leader, other);
        }
        let ticket = cluster.propose(leader, batch("alone"));
        let head = wait_for("the write", || ticket.appended()).await;
        assert_eq!(head.base_offset, Offset::new(1));
        assert_eq!(ticket.outcome(), None);
    });
}

#[test]
fn a_proposal_for_another_term_is_refused_with_the_leader() {
    run(async {
        let (cluster, leader) = Cluster::led(3, test_config()).await;
        let follower = cluster.other_than(leader);
        let term = cluster.replica(leader).view().term;
        let at_follower = cluster.propose_in(follower, term, batch("x")).wait().await;
        let expected = RefuseReason::NotLeader {
            leader: Some(NodeId::new(leader)),
        };
        assert_eq!(at_follower, ProposalOutcome::NotAppended(expected));
        let later = Term::new(term.get() + 1);
        let in_later = cluster.propose_in(leader, later, batch("x")).wait().await;
        assert!(matches!(
            in_later,
            ProposalOutcome::NotAppended(RefuseReason::NotLeader { .. })
        ));
        let now = cluster.propose_in(leader, term, batch("y")).wait().await;
        assert!(matches!(now, ProposalOutcome::Applied(_)), "{now:?}");
    });
}

#[test]
fn proposals_that_meet_an_expired_lease_are_held_and_keep_their_order() {
    run(async {
        let mut config = test_config();
        config.propose_hold_max = PATIENCE;
        // No failover while the network is cut: the leader stays the leader.
        config.election_min = Duration::from_millis(300);
        config.election_max = Duration::from_millis(400);
        config.heartbeat = Duration::from_millis(50);
        let (cluster, leader) = Cluster::led(2, config).await;
        cluster.commit(&["a"]).await;
        let other = 3 - leader;
        cluster.links.cut(leader, other);
        wait_for("the lease to expire", || {
            (!cluster.replica(leader).view().lease_valid).then_some(())
        })
        .await;
        let mut tickets = Vec::new();
        for n in 0..50 {
            tickets.push(cluster.propose(leader, batch(&format!("held{n}"))));
            if n % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            tickets.iter().all(|ticket| ticket.outcome().is_none()),
            "held, not failed"
        );
        cluster.links.heal_all();
        let mut expected = vec!["a".to_owned()];
        for (n, ticket) in tickets.iter().enumerate() {
            match ticket.wait().await {
                ProposalOutcome::Applied(_) => expected.push(format!("held{n}")),
                // A new election may have come first: then all of them fail from here on.
                ProposalOutcome::NotAppended(_) => {}
                ProposalOutcome::Discarded => panic!("never appended: {n}"),
            }
        }
        assert_eq!(cluster.agree().await, expected);
    });
}

#[test]
fn a_lease_that_does_not_come_back_fails_the_first_and_those_behind_it() {
    run(async {
        let mut config = test_config();
        config.propose_hold_max = Duration::from_millis(100);
        let (cluster, leader) = Cluster::led(2, config).await;
        cluster.commit(&["a"]).await;
        cluster.links.cut(1, 2);
        wait_for("the lease to expire", || {
            (!cluster.replica(leader).view().lease_valid).then_some(())
        })
        .await;
        let first = cluster.propose(leader, batch("x"));
        let second = cluster.propose(leader, batch("y"));
        assert_eq!(
            first.wait().await,
            ProposalOutcome::NotAppended(RefuseReason::LeaseLost)
        );
        assert_eq!(
            second.wait().await,
            ProposalOutcome::NotAppended(RefuseReason::Predecessor)
        );
        // The door opens again once the lease is back.
        cluster.links.heal_all();
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

#[test]
fn random_cuts_never_reorder_or_duplicate_what_one_replica_proposed() {
    run(async {
        let mut config = test_config();
        config.heartbeat = Duration::from_millis(40);
        config.election_min = Duration::from_millis(150);
        config.election_max = Duration::from_millis(250);
        config.propose_hold_max = Duration::from_millis(300);
        let mut cluster = Cluster::new(3, config);
        cluster.start_all().await;
        let mut tickets: Vec<(u32, Ticket)> = Vec::new();
        let mut n = 0u32;
        for round in 0..12 {
            let leader = cluster.leader(&[1, 2, 3]).await;
            let other = (1..=3)
                .filter(|id| *id != leader)
                .nth(round % 2)
                .expect("another");
            for step in 0..60 {
                if step == 20 {
                    cluster.links.cut(leader, other);
                    if round % 3 == 0 {
                        cluster.links.cut(leader, 6 - leader - other);
                    }
                }
                if step == 45 {
                    cluster.links.heal_all();
                }
                tickets.push((n, cluster.propose(leader, batch(&n.to_string()))));
                n += 1;
                if step % 5 == 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        cluster.links.heal_all();
        let mut applied = Vec::new();
        let mut unknown = Vec::new();
        for (n, ticket) in &tickets {
            match ticket.wait().await {
                ProposalOutcome::Applied(_) => applied.push(*n),
                ProposalOutcome::Discarded => unknown.push(*n),
                ProposalOutcome::NotAppended(_) => {}
            }
        }
        let found: Vec<u32> = cluster
            .agree()
            .await
            .iter()
            .map(|value| value.parse().expect("a number"))
            .collect();
        assert!(
            found.is_sorted_by(|a, b| a < b),
            "order of the calls: {found:?}"
        );
        for n in &applied {
            assert!(
                found.binary_search(n).is_ok(),
                "{n} was acknowledged and is lost"
            );
        }
        for n in &found {
            assert!(
                applied.binary_search(n).is_ok() || unknown.binary_search(n).is_ok(),
                "{n} was called refused and is there"
            );
        }
        assert!(
            applied.len() > 200,
            "only {} of {} were applied",
            applied.len(),
            tickets.len()
        );
    });
}
