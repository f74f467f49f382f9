//! Who is in sync, and who may be handed a leadership: a replica that takes nothing is neither,
//! although its node is up and its partition idle.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::{RaftError, Role, Unfit};
use corduroy_record::NodeId;
use harness::{Cluster, batch_of, replica_id, run, run_paused, test_config, wait_for};

/// A lag that no test waits for: only a replica's own word puts it out.
const LAG_MAX: Duration = Duration::from_secs(3600);

fn in_sync(cluster: &Cluster, leader: i32) -> Vec<i32> {
    let mut nodes: Vec<i32> = cluster
        .replica(leader)
        .in_sync(LAG_MAX)
        .into_iter()
        .map(|(_, node)| node.get())
        .collect();
    nodes.sort_unstable();
    nodes
}

async fn wait_in_sync(cluster: &Cluster, leader: i32, wanted: &[i32]) {
    wait_for(&format!("{wanted:?} to be in sync"), || {
        (in_sync(cluster, leader) == wanted).then_some(())
    })
    .await;
}

fn without(victim: i32) -> Vec<i32> {
    (1..=3).filter(|id| *id != victim).collect()
}

#[test]
fn a_closed_replica_of_an_idle_group_leaves_and_returns_once_it_has_caught_up() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        wait_in_sync(&cluster, leader, &[1, 2, 3]).await;
        let victim = cluster.other_than(leader);
        let shard = cluster.nodes[&victim].shard().clone();
        shard.close_replica(cluster.group).await;
        // Nothing is written: the leader has to find out by itself.
        wait_in_sync(&cluster, leader, &without(victim)).await;
        cluster.kill(victim).await;
        cluster.start(victim).await;
        wait_in_sync(&cluster, leader, &[1, 2, 3]).await;
        cluster.commit(&["b"]).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

#[test]
fn a_closed_replica_of_a_sleeping_group_leaves() {
    run(async {
        let mut config = test_config();
        config.hibernate_after = Duration::from_millis(200);
        config.asleep_beat = Duration::from_millis(200);
        let (cluster, leader) = Cluster::led(3, config).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        wait_for("the group to sleep", || {
            (1..=3)
                .all(|id| cluster.replica(id).is_asleep())
                .then_some(())
        })
        .await;
        let victim = cluster.other_than(leader);
        let shard = cluster.nodes[&victim].shard().clone();
        shard.close_replica(cluster.group).await;
        wait_in_sync(&cluster, leader, &without(victim)).await;
    });
}

/// The flag falls only once the log is there again; before that it counts nowhere.
#[test]
fn a_replica_that_lost_its_log_is_out_until_it_has_it_again() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a", "b"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        cluster.kill(victim).await;
        wait_in_sync(&cluster, leader, &without(victim)).await;
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        cluster.start(victim).await;
        wait_for("the flag to fall", || {
            let is_flagged = cluster.replica(victim).log().state().no_vote;
            let end = cluster.replica(leader).log().state().last;
            let holds_all = cluster.replica(victim).log().state().last == end;
            assert!(
                holds_all || !in_sync(&cluster, leader).contains(&victim),
                "in sync without the log"
            );
            (!is_flagged).then_some(())
        })
        .await;
        wait_in_sync(&cluster, leader, &[1, 2, 3]).await;
    });
}

#[test]
fn a_leadership_is_not_handed_to_a_replica_that_cannot_take_it() {
    run_paused(async {
        let mut cluster = Cluster::simulated(3, test_config());
        let leader = cluster.lead_all().await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let term = cluster.replica(leader).view().term;
        let victim = cluster.other_than(leader);
        let to = Some(replica_id(victim));
        // As when a read has met damage in its log, which it has not opened again yet.
        let log = cluster.replica(victim).log().clone();
        log.set_no_vote(true).await.expect("durable");
        let moved = cluster.replica(leader).transfer_leader(to).await;
        assert_eq!(moved, Err(RaftError::Unfit(Unfit::Flagged)));
        log.set_no_vote(false).await.expect("durable");
        let shard = cluster.nodes[&victim].shard().clone();
        shard.close_replica(cluster.group).await;
        let moved = cluster.replica(leader).transfer_leader(to).await;
        assert_eq!(moved, Err(RaftError::Unfit(Unfit::Stopped)));
        cluster.kill(victim).await;
        wait_for("the leader to hold it down", || {
            let detector = cluster.nodes[&leader].detector();
            detector.is_down(NodeId::new(victim)).then_some(())
        })
        .await;
        let moved = cluster.replica(leader).transfer_leader(to).await;
        assert_eq!(moved, Err(RaftError::Unfit(Unfit::Down)));

        // It led on all the time, and hands over to the one that can when nobody is named.
        let view = cluster.replica(leader).view();
        assert_eq!((view.role, view.term), (Role::Leader, term));
        let ticket = cluster.propose(leader, batch_of(&["b"]));
        ticket.wait().await;
        let moved = cluster.replica(leader).transfer_leader(None).await;
        assert_eq!(moved, Ok(()));
        let third = (1..=3).find(|id| *id != leader && *id != victim);
        assert_eq!(Some(cluster.leader(&without(victim)).await), third);
    });
}
