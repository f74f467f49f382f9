//! Three replicas on real files with flush threads: everything that runs in production but Kafka.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use corduroy_raft::ProposalOutcome;
use harness::{Cluster, Ticket, batch, run, test_config};

#[test]
fn a_burst_on_real_files_is_durable_in_order_and_survives_a_restart() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let mut cluster = Cluster::new(3, test_config());
        for (id, node) in &mut cluster.nodes {
            node.real_root = Some(dir.path().join(id.to_string()));
        }
        cluster.start_all().await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        let mut single = Vec::new();
        for n in 0..200 {
            let before = tokio::time::Instant::now();
            let outcome = cluster
                .propose(leader, batch(&format!("s{n}")))
                .wait()
                .await;
            assert!(
                matches!(outcome, ProposalOutcome::Applied(_)),
                "{outcome:?}"
            );
            single.push(before.elapsed());
        }
        single.sort();
        println!(
            "one at a time: p50 {:?}, p99 {:?}",
            single[100], single[198]
        );

        let value = "x".repeat(1000);
        let before = tokio::time::Instant::now();
        let tickets: Vec<Ticket> = (0..5000)
            .map(|_| cluster.propose(leader, batch(&value)))
            .collect();
        for ticket in &tickets {
            assert!(matches!(ticket.wait().await, ProposalOutcome::Applied(_)));
        }
        let took = before.elapsed();
        println!(
            "5000 batches of 1 KB on three replicas in {took:?}: {:.0} a second",
            5000.0 / took.as_secs_f64()
        );
        assert!(
            took < Duration::from_secs(20),
            "stop-and-wait would take this long"
        );

        for id in 1..=3 {
            cluster.kill(id).await;
        }
        for id in 1..=3 {
            cluster.start(id).await;
        }
        let values = cluster.agree().await;
        assert_eq!(values.len(), 5200);
    });
}
