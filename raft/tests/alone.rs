//! A node without peers, in simulated time.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::ProposalOutcome;
use corduroy_record::{NodeId, ReplicaId};
use harness::{Cluster, batch, replica_id, run_paused, test_config};

/// Nobody acknowledges such a leader, so what openraft noted last grows old.
#[test]
fn a_leader_that_is_its_own_quorum_keeps_its_lease_while_it_idles() {
    run_paused(async {
        let config = test_config();
        let idle = config.election_max * 20;
        let (cluster, leader) = Cluster::led(1, config).await;
        cluster.commit(&["a"]).await;
        tokio::time::sleep(idle).await;
        assert!(cluster.replica(leader).view().lease_valid);
        let outcome = cluster.propose(leader, batch("b")).wait().await;
        assert!(
            matches!(outcome, ProposalOutcome::Applied(_)),
            "{outcome:?}"
        );
    });
}

/// An append stream that fails before it has read a request is asked for again at once: openraft
/// waits its backoff out inside the request stream.
#[test]
fn a_follower_that_cannot_be_reached_is_tried_at_the_pace_of_the_backoff() {
    run_paused(async {
        let (cluster, leader) = Cluster::led(1, test_config()).await;
        let replica = cluster.replica(leader);
        let nowhere = (ReplicaId::new(9999), NodeId::new(9));
        let members = vec![(replica_id(leader), NodeId::new(leader)), nowhere];
        let adding = cluster.env.spawn_local(async move {
            let added = replica.change_members(members, Duration::from_secs(60));
            assert!(added.await.is_err(), "nobody is there");
        });
        // The clock is pushed: a loop without rest would hold it for ever.
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let tried = cluster.nodes[&leader].shard().metrics().streams_refused;
        assert!(tried > 0, "it was never tried");
        // 10, 20, 40 ms and so on up to 500: about 25 in ten seconds.
        assert!(tried < 100, "tried {tried} times in ten seconds");
        adding.abort();
    });
}
