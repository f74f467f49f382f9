//! A topic that is deleted and created again shares nothing with its ancestor, and works at once.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corduroy_client::{Acks, Record};
use corduroy_protocol::ErrorCode;
use support::traffic::{Traffic, block_on, client, read_all};
use support::wire::{Wire, values};
use support::{Cluster, alone, rounds, wait_until};

const RECORDS: i64 = 50;

/// From "created" to the first record's acknowledgement.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Topics of which a node keeps data.
fn topics_on_disk(data_dir: &Path) -> usize {
    std::fs::read_dir(data_dir.join("partitions")).map_or(0, Iterator::count)
}

struct StopThem<'a>(&'a AtomicBool);

impl Drop for StopThem<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads both partitions from their beginning again and again: whoever has seen a round never sees
/// an earlier one. Returns how many records it saw.
fn watch(address: SocketAddr, topic: &str, stop: &AtomicBool) -> usize {
    let mut newest = [-1; 2];
    let mut seen = 0;
    let mut connection = None;
    while !stop.load(Ordering::Acquire) {
        let Some(wire) = connection.as_mut() else {
            connection = Wire::try_connect(address, Duration::from_secs(5)).ok();
            continue;
        };
        for partition in 0..2 {
            let Ok(fetched) = wire.fetch(topic, partition, 0, Duration::from_millis(20)) else {
                connection = None;
                break;
            };
            if fetched.error != ErrorCode::None {
                continue;
            }
            let newest = &mut newest[usize::try_from(partition).expect("0 or 1")];
            for (_, value) in values(&fetched) {
                let round = value
                    .strip_prefix("round ")
                    .and_then(|rest| rest.split_once(','));
                let round: i32 = round.expect("a round").0.parse().expect("a number");
                assert!(
                    round >= *newest,
                    "round {round} is seen after round {newest}"
                );
                *newest = round;
                seen += 1;
            }
        }
    }
    seen
}

#[test]
fn a_recreated_topic_never_shows_old_data() {
    let _alone = alone();
    let cluster = Cluster::start(3);
    cluster.create_topic("bystander", 2, &[]);
    let traffic = Traffic::start(&cluster.bootstrap(), "bystander", 2);
    traffic.wait_for_more(100);
    let topic = "again";
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        // Reads the topic by its name, whatever it is at the moment, from every node.
        let nosy: Vec<_> = cluster
            .nodes
            .iter()
            .map(|node| {
                let address = node.kafka;
                scope.spawn(move || watch(address, topic, stop))
            })
            .collect();
        // Stops the readers also when a round fails.
        let stop = StopThem(stop);
        for round in 0..rounds() {
            cluster.must(&["topic", "create", topic, "-p", "2", "-r", "3"]);
            let created = Instant::now();
            block_on(async {
                let client = client(&cluster.bootstrap()).await;
                let producer = client.producer().acks(Acks::All).build();
                let mut tickets = Vec::new();
                for n in 0..RECORDS {
                    for partition in 0..2 {
                        let record = Record::to(topic)
                            .partition(partition)
                            .value(format!("round {round}, record {n}"));
                        tickets.push((n, producer.queue(record).await.expect("queued")));
                    }
                }
                for (n, ticket) in tickets {
                    let meta = ticket
                        .await
                        .unwrap_or_else(|e| panic!("round {round}: {e}"));
                    assert_eq!(meta.offset, Some(n), "round {round}: a new log begins at 0");
                }
                assert!(
                    created.elapsed() < AT_ONCE,
                    "round {round}: {:?}",
                    created.elapsed()
                );
                for partition in 0..2 {
                    let found = read_all(&client, topic, partition).await;
                    let expected: Vec<(i64, String)> = (0..RECORDS)
                        .map(|n| (n, format!("round {round}, record {n}")))
                        .collect();
                    assert_eq!(found, expected, "round {round}");
                }
            });
            cluster.must(&["topic", "delete", topic]);
        }
        drop(stop);
        let seen: usize = nosy
            .into_iter()
            .map(|reader| reader.join().expect("a reader"))
            .sum();
        assert!(seen > 0, "the readers saw records");
    });
    let ledger = traffic.finish();
    assert!(
        ledger.failures().is_empty(),
        "the bystander noticed: {:?}",
        ledger.failures()
    );
    ledger.verify(&cluster.bootstrap());
    for node in &cluster.nodes {
        wait_until(
            &format!("node {} has removed the deleted data", node.id),
            || topics_on_disk(&node.data_dir) == 1,
        );
    }
}
