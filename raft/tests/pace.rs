//! What happens by the clock, in simulated time: beats, and a node that knows that it is alone.

#![allow(dead_code)]

mod harness;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_raft::{RaftConfig, Replica, ReplicaSpec, Role};
use corduroy_record::{GroupId, NodeId, PartitionIndex};
use corduroy_storage::LogConfig;
use harness::{Cluster, TestMachine, replica_id, run_paused};
use tokio::time::Instant;

/// DESIGN 5.5: Metadata stops naming an isolated leader within three seconds. What is left of them
/// here is for the node, which looks four times a second and tells its shards.
#[test]
fn a_node_knows_within_two_and_a_half_seconds_that_it_is_alone() {
    run_paused(async {
        let mut cluster = Cluster::simulated(3, RaftConfig::default());
        let leader = cluster.lead_all().await;
        cluster.commit(&["a"]).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!cluster.nodes[&leader].detector().isolated());
        for other in 1..=3 {
            cluster.links.cut(leader, other);
        }
        let lost = Instant::now();
        while !cluster.nodes[&leader].detector().isolated() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(lost.elapsed() <= Duration::from_millis(2_502), "too late");
        }
        // Not for a moment's silence either: an election takes that long.
        assert!(
            lost.elapsed() > Duration::from_secs(2),
            "{:?}",
            lost.elapsed()
        );
        for other in (1..=3).filter(|id| *id != leader) {
            assert!(!cluster.nodes[&other].detector().isolated());
        }
    });
}

const GROUPS: i32 = 60;

/// One more group of all three nodes, formed on one of them.
async fn add_group(cluster: &Cluster, number: i32) -> [Replica; 3] {
    let group = GroupId {
        topic: cluster.group.topic,
        partition: PartitionIndex::new(number),
    };
    let mut replicas = Vec::new();
    for node in cluster.nodes.values() {
        let replica = node.replica;
        let log = node
            .store()
            .create_log(group, replica, LogConfig::default());
        let log = log.await.expect("a log");
        let spec = ReplicaSpec {
            group,
            replica,
            log,
        };
        let machine = Rc::new(RefCell::new(TestMachine::default()));
        replicas.push(node.shard().open(spec, machine).await.expect("it opens"));
    }
    let members = (1..=3)
        .map(|id| (replica_id(id), NodeId::new(id)))
        .collect();
    let first = &replicas[usize::try_from(number).expect("a number") % 3];
    first.initialize(members).await.expect("a fresh group");
    let Ok(replicas) = replicas.try_into() else {
        panic!("three nodes");
    };
    replicas
}

/// DESIGN 6: beats belong to node pairs. Each group has a clock of its own; what leaves for a node
/// is a few frames for each interval, however many groups there are.
#[test]
fn beats_of_all_groups_share_a_few_frames() {
    run_paused(async {
        let config = RaftConfig {
            hibernate_after: Duration::from_secs(3600),
            ..RaftConfig::default()
        };
        let beat = config.heartbeat;
        let mut cluster = Cluster::simulated(3, config);
        cluster.lead_all().await;
        let mut groups = Vec::new();
        for number in 1..GROUPS {
            groups.push(add_group(&cluster, number).await);
        }
        let leads = |replica: &Replica| replica.view().role == Role::Leader;
        let is_led = |replicas: &[Replica; 3]| replicas.iter().any(leads);
        while !groups.iter().all(is_led) {
            tokio::time::sleep(beat).await;
        }
        // Nobody remembers the election any more.
        tokio::time::sleep(beat * 4).await;
        let terms = || -> Vec<_> { groups.iter().map(|g| g[0].view().term).collect() };
        let terms_before = terms();
        let frames = |id: i32| cluster.nodes[&id].shard().metrics().beat_frames;
        let before: Vec<u64> = (1..=3).map(frames).collect();
        const INTERVALS: u32 = 10;
        tokio::time::sleep(beat * INTERVALS).await;
        for id in 1..=3 {
            let led = cluster.nodes[&id].shard().metrics().leaders;
            assert!(led > 10, "node {id} leads {led}: the groups are not spread");
            let sent = frames(id) - before[usize::try_from(id - 1).expect("small")];
            let per_interval = sent as f64 / f64::from(INTERVALS);
            println!("node {id}: {led} groups, {per_interval} frames for two peers per interval");
            assert!(sent >= u64::from(INTERVALS), "node {id} is silent");
            // Two peers; a beat waits a fifth of an interval for others.
            assert!(
                per_interval <= 12.0,
                "node {id} sends {per_interval} frames of beats per interval for {led} groups"
            );
        }
        assert_eq!(terms(), terms_before, "beats came too late for some group");
        for replicas in &groups {
            for replica in replicas {
                let silent = replica.leader_silent_for();
                assert!(
                    silent < beat * 2,
                    "{replica:?} has not heard its leader for {silent:?}"
                );
            }
        }
    });
}

/// A beat says that the leader is awake. One that waits for others must not come behind the leader's
/// order to sleep, whenever in an interval that is given: a follower that it woke would look for a
/// leader that sleeps.
#[test]
fn no_beat_wakes_a_follower_that_was_just_told_to_sleep() {
    const PHASES: u32 = 10;
    run_paused(async {
        let config = RaftConfig::default();
        let (beat, idle) = (config.heartbeat, config.hibernate_after);
        let mut cluster = Cluster::simulated(3, config);
        cluster.lead_all().await;
        let all = |cluster: &Cluster| (1..=3).all(|id| cluster.replica(id).is_asleep());
        for phase in 0..PHASES {
            tokio::time::sleep(beat / PHASES * phase).await;
            cluster.commit(&["a"]).await;
            let committed = Instant::now();
            while !all(&cluster) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(
                    committed.elapsed() < idle * 2,
                    "phase {phase}: it does not sleep"
                );
            }
            // Longer than a follower would wait for a leader that it misses.
            for _ in 0..350 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert!(all(&cluster), "phase {phase}: somebody was woken");
            }
        }
    });
}
