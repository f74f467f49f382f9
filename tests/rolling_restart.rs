//! SIGTERM of each node in turn under load: leaderships move first, and no record fails.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use support::traffic::Traffic;
use support::{Cluster, alone};

const TOPIC: &str = "rolling";
const PARTITIONS: usize = 4;

#[test]
fn a_rolling_restart_fails_no_record() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, PARTITIONS, &[]);
    let traffic = Traffic::start(
        &cluster.bootstrap(),
        TOPIC,
        i32::try_from(PARTITIONS).expect("few"),
    );
    traffic.wait_for_more(1_000);
    for id in 1..=3 {
        cluster.node(id).terminate();
        traffic.wait_for_more(1_000);
        cluster.node(id).start();
        for partition in 0..PARTITIONS {
            cluster.wait_in_sync(TOPIC, partition, 3);
        }
        traffic.wait_for_more(500);
    }
    let ledger = traffic.finish();
    eprintln!(
        "{} records acknowledged, longest gap {:?}",
        ledger.acked(),
        ledger.gap()
    );
    assert!(
        ledger.failures().is_empty(),
        "no record failed: {:?}",
        ledger.failures()
    );
    ledger.verify(&cluster.bootstrap());
}
