//! How a group gets going (law 7): one first entry, the same on every replica.

#![allow(dead_code)]

mod harness;

use corduroy_raft::RaftConfig;
use corduroy_record::{LogIndex, NodeId};
use corduroy_storage::{Payload, SimDisk};
use harness::{Cluster, Stop, replica_id, run, test_config, wait_for};

/// A cluster whose replicas all begin with the first entry, as those of a topic do; started.
async fn begun(count: i32, config: RaftConfig) -> Cluster {
    let mut cluster = Cluster::new(count, config);
    let members: Vec<_> = (1..=count)
        .map(|id| (replica_id(id), NodeId::new(id)))
        .collect();
    for node in cluster.nodes.values_mut() {
        node.first_members = Some(members.clone());
    }
    for id in 1..=count {
        cluster.start(id).await;
    }
    cluster
}

#[test]
fn the_first_of_the_list_leads_and_all_hold_the_same_log() {
    run(async {
        let cluster = begun(3, test_config()).await;
        cluster.replica(2).lead_first();
        assert_eq!(cluster.leader(&[1, 2, 3]).await, 2);
        cluster.commit(&["a"]).await;
        assert_eq!(cluster.agree().await, ["a"]);
        let mut firsts = Vec::new();
        for id in 1..=3 {
            let log = cluster.replica(id).log().clone();
            let read = log.read(LogIndex::new(0), LogIndex::new(1), 1).await;
            let entry = &read.expect("readable")[0];
            let Payload::Membership(members) = &entry.payload else {
                panic!("no members: {entry:?}");
            };
            firsts.push((entry.head, members.clone()));
        }
        assert!(firsts.iter().all(|first| *first == firsts[0]), "{firsts:?}");
    });
}

/// It has their votes, and dies for good before it has told them anything: neither is untouched, and
/// nobody but the two is left to lead.
#[test]
fn a_group_starts_although_its_first_replica_died_with_their_votes() {
    run(async {
        let mut cluster = begun(3, test_config()).await;
        // Once node 1 leads, its log has an entry of its own, and nothing of it arrives any more.
        let stop = Stop {
            node: 1,
            index: LogIndex::new(1),
        };
        for other in [2, 3] {
            cluster.links.stop(1, other, stop);
        }
        cluster.replica(1).lead_first();
        wait_for("node 1 to have their votes", || {
            (cluster.log_end(1) == Some(LogIndex::new(1))).then_some(())
        })
        .await;
        cluster.kill(1).await;
        let state = |id: i32| cluster.replica(id).log().state();
        assert!([2, 3].iter().any(|id| state(*id).vote.is_some()));
        assert!(
            [2, 3]
                .iter()
                .all(|id| state(*id).last.map(|(_, at)| at) == Some(LogIndex::new(0)))
        );
        cluster.leader(&[2, 3]).await;
        cluster.commit(&["a"]).await;
        assert_eq!(cluster.agree().await, ["a"]);
    });
}

/// Whoever opens its replica last, with the group long under way, has nothing that the others have not.
#[test]
fn a_replica_that_is_opened_late_fetches_what_it_missed() {
    run(async {
        let mut cluster = begun(3, test_config()).await;
        cluster.kill(3).await;
        cluster.nodes.get_mut(&3).expect("a node").disk = SimDisk::new();
        cluster.replica(1).lead_first();
        cluster.leader(&[1, 2]).await;
        cluster.commit(&["a", "b"]).await;
        cluster.start(3).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
        cluster.kill(1).await;
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
    });
}
