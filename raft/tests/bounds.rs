//! What replication may hold and read: everything is bounded in bytes, and a follower that is
//! close costs no disk.

#![allow(dead_code)]

mod harness;

use corduroy_raft::{ProposalOutcome, RaftConfig};
use harness::{Cluster, PATIENCE, Ticket, batch, run, test_config, wait_for};

const WINDOW_BYTES: usize = 256 << 10;
const REQUEST_BYTES: usize = 64 << 10;
const VALUE_BYTES: usize = 16 << 10;
const LARGE_BYTES: usize = 800 << 10;
/// Envelopes, beats and answers beside the entries.
const SLACK_BYTES: usize = 64 << 10;

/// Nobody is replaced here, however busy the machine is.
fn patient() -> RaftConfig {
    RaftConfig {
        election_min: PATIENCE / 4,
        election_max: PATIENCE / 2,
        propose_hold_max: PATIENCE,
        ..test_config()
    }
}

fn narrow() -> RaftConfig {
    RaftConfig {
        append_window_bytes: WINDOW_BYTES,
        append_bytes_max: REQUEST_BYTES,
        ..patient()
    }
}

/// Proposes `count` values at once and waits for all of them.
async fn fill(cluster: &Cluster, leader: i32, count: usize, value_bytes: usize) {
    let value = "x".repeat(value_bytes);
    let tickets: Vec<Ticket> = (0..count)
        .map(|_| cluster.propose(leader, batch(&value)))
        .collect();
    for ticket in tickets {
        let outcome = ticket.wait().await;
        assert!(
            matches!(outcome, ProposalOutcome::Applied(_)),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_peer_that_reads_nothing_makes_the_sender_hold_one_window() {
    run(async {
        let (cluster, leader) = Cluster::led(3, narrow()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let stuck = cluster.other_than(leader);
        // Bytes stop, connections stay. Far more follows than sockets could swallow.
        cluster.links.cut(leader, stuck);
        fill(&cluster, leader, 1200, VALUE_BYTES).await;
        let held = cluster.nodes[&leader].shard().metrics().queued_bytes;
        assert!(
            held <= WINDOW_BYTES + REQUEST_BYTES + SLACK_BYTES,
            "{held} bytes wait for a peer that reads nothing"
        );
        cluster.links.heal_all();
        assert_eq!(cluster.agree().await.len(), 1201);
    });
}

#[test]
fn a_close_follower_costs_no_disk_read() {
    run(async {
        let (cluster, leader) = Cluster::led(3, patient()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let reads = || -> Vec<u64> {
            let disks = cluster.nodes.values().map(|node| &node.disk);
            disks.map(|disk| disk.read_calls(".log")).collect()
        };
        let before = reads();
        fill(&cluster, leader, 300, VALUE_BYTES).await;
        let end = cluster.log_end(leader).expect("entries");
        for id in 1..=3 {
            wait_for("all to apply", || {
                (cluster.replica(id).view().applied >= end).then_some(())
            })
            .await;
        }
        assert_eq!(reads(), before, "replication or apply went to the disk");
    });
}

#[test]
fn catching_up_reads_no_more_than_what_may_be_in_flight() {
    run(async {
        let mut cluster = Cluster::new(3, narrow());
        for node in cluster.nodes.values_mut() {
            node.cache_bytes = REQUEST_BYTES;
        }
        let leader = cluster.lead_all().await;
        let late = cluster.other_than(leader);
        cluster.kill(late).await;
        fill(&cluster, leader, 1000, VALUE_BYTES).await;
        let disk = cluster.nodes[&leader].disk.clone();
        let before = disk.bytes_read(".log");
        let passed = 2 * REQUEST_BYTES;
        cluster.links.stall_after(leader, late, passed);
        cluster.start(late).await;
        wait_for("the late one to be sent what passes", || {
            cluster.links.is_stalled(leader, late).then_some(())
        })
        .await;
        // Time for more reads, if there were any: what passes now takes several turns each.
        for n in 0..20 {
            cluster.commit(&[&n.to_string()]).await;
        }
        let read = (disk.bytes_read(".log") - before) as usize;
        assert!(read > 0, "it came from the cache");
        let may_fly = passed + WINDOW_BYTES + REQUEST_BYTES;
        assert!(
            read <= 2 * may_fly,
            "{read} bytes read ahead of a follower that takes none"
        );
        cluster.links.unstall(leader, late);
        assert_eq!(cluster.agree().await.len(), 1020);
    });
}

/// Storage reads ahead by a window, so that small entries come in one read; of large ones it reads
/// no more than that.
#[test]
fn applying_what_the_cache_has_dropped_reads_headers_and_not_records() {
    run(async {
        let mut cluster = Cluster::new(3, patient());
        for node in cluster.nodes.values_mut() {
            node.cache_bytes = REQUEST_BYTES;
        }
        let leader = cluster.lead_all().await;
        let follower = cluster.other_than(leader);
        let disk = cluster.nodes[&follower].disk.clone();
        let before = disk.bytes_read(".log");
        fill(&cluster, leader, 30, LARGE_BYTES).await;
        let end = cluster.log_end(leader).expect("entries");
        wait_for("the follower to apply", || {
            (cluster.replica(follower).view().applied >= end).then_some(())
        })
        .await;
        assert_eq!(cluster.nodes[&follower].tables().0, 30, "records applied");
        let read = disk.bytes_read(".log") - before;
        assert!(read > 0, "it came from the cache");
        let records = (30 * LARGE_BYTES) as u64;
        assert!(read < records / 4, "{read} bytes read to apply {records}");
    });
}
