//! A topic that is deleted and created again shares nothing with its ancestor, and works at once.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corduroy_client::{Acks, Record};
use corduroy_protocol::ErrorCode;
use support::traffic::{Traffic, block_on, client, read_all};
use support::wire::{Wire, values};
use support::{Cluster, PATIENCE, alone, rounds, wait_until};

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

/// One acknowledged write: its value, its offset, and the clock of [`Lives`] when it was sent and
/// when it was acknowledged.
struct Written {
    value: String,
    offset: i64,
    sent: u64,
    acked: u64,
}

/// Counts the topic's lives: even while it exists and nobody touches it, odd while it is being
/// deleted and created again.
#[derive(Default)]
struct Lives(AtomicU64);

impl Lives {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn pass(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Writes by the topic's name without a pause, whatever becomes of it.
fn write_on(bootstrap: &str, partition: i32, lives: &Lives, stop: &AtomicBool) -> Vec<Written> {
    block_on(async {
        let client = client(bootstrap).await;
        let producer = client
            .producer()
            .acks(Acks::All)
            .delivery_timeout(Duration::from_secs(20))
            .build();
        let mut written = Vec::new();
        for n in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (value, sent) = (format!("{partition}.{n}"), lives.now());
            let record = Record::to(WRITTEN)
                .partition(partition)
                .value(value.clone());
            // A write that fails promises nothing.
            if let Ok(meta) = producer.send(record).await
                && let Some(offset) = meta.offset
            {
                let acked = lives.now();
                written.push(Written {
                    value,
                    offset,
                    sent,
                    acked,
                });
            }
        }
        written
    })
}

/// The topic of [`write_on`].
const WRITTEN: &str = "written-on";

/// What a life of the topic holds is read while it lasts. A write that was acknowledged in an
/// earlier life is not among it; one that was sent and acknowledged in this one is, at its offset.
#[test]
fn writes_in_flight_belong_to_one_life_of_their_topic() {
    let _alone = alone();
    let cluster = Cluster::start(3);
    cluster.configure(&[("auto.create.topics.enable", "false")]);
    let (lives, stop) = (Lives::default(), AtomicBool::new(false));
    let create = || {
        // Its name is free as soon as the deletion is known to whoever is asked.
        wait_until("it is created again", || {
            let args = ["topic", "create", WRITTEN, "-p", "2", "-r", "3"];
            cluster.run(&args).status.success()
        });
    };
    create();
    let mut read = Vec::new();
    let written: Vec<Vec<Written>> = std::thread::scope(|scope| {
        let (lives, stop) = (&lives, &stop);
        let stopper = StopThem(stop);
        let bootstrap = cluster.bootstrap();
        let writers: Vec<_> = (0..2)
            .map(|partition| {
                let bootstrap = bootstrap.clone();
                scope.spawn(move || write_on(&bootstrap, partition, lives, stop))
            })
            .collect();
        for _ in 0..rounds() {
            block_on(async {
                let client = client(&bootstrap).await;
                for partition in 0..2 {
                    let mut found = Vec::new();
                    // Something is in it: this life has been written to.
                    let deadline = Instant::now() + PATIENCE;
                    while found.len() < 20 {
                        assert!(Instant::now() < deadline, "the writers have stopped");
                        found = read_all(&client, WRITTEN, partition).await;
                    }
                    read.push((lives.now(), partition, found));
                }
            });
            lives.pass();
            cluster.must(&["topic", "delete", WRITTEN]);
            create();
            lives.pass();
        }
        drop(stopper);
        let ended = writers.into_iter();
        ended.map(|w| w.join().expect("a writer")).collect()
    });
    let mut checked = 0;
    for (life, partition, found) in &read {
        let written = &written[usize::try_from(*partition).expect("small")];
        let at: BTreeMap<&str, i64> = found.iter().map(|(at, value)| (&**value, *at)).collect();
        assert_eq!(at.len(), found.len(), "each once in life {life}");
        let end = i64::try_from(found.len()).expect("few");
        for write in written {
            let place = at.get(write.value.as_str());
            if write.acked < *life && write.acked % 2 == 0 {
                assert_eq!(place, None, "{} is of life {}", write.value, write.acked);
            }
            // Below what was read: later ones may have been acknowledged after the read.
            if write.sent == *life && write.acked == *life && write.offset < end {
                assert_eq!(place, Some(&write.offset), "{} in life {life}", write.value);
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "some were written and read in one life");
}

/// What a node keeps of its topics: names below `registry` and `partitions`.
fn kept(data_dir: &Path, of_topics: &BTreeSet<String>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for place in ["registry", "partitions"] {
        for entry in fs::read_dir(data_dir.join(place)).into_iter().flatten() {
            let name = entry.expect("an entry").file_name();
            let name = name.to_str().expect("a name").to_owned();
            if of_topics.iter().any(|topic| name.starts_with(topic)) {
                names.insert(format!("{place}/{name}"));
            }
        }
    }
    names
}

/// A node that was killed between the end of a topic and the removal of its data, or whose controller
/// skipped that end with a snapshot, has a log that no image ever mentions.
#[test]
fn what_an_ended_topic_left_behind_goes_at_the_next_start() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.create_topic("stays", 1, &[]);
    let mut before = BTreeSet::new();
    let data_dir = cluster.node(1).data_dir.clone();
    let topics = |data_dir: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(data_dir.join("partitions")).expect("a directory");
        entries
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_str().expect("a name").to_owned())
            .collect()
    };
    before.extend(topics(&data_dir));
    cluster.create_topic("ends", 1, &[]);
    let ended: BTreeSet<String> = topics(&data_dir).difference(&before).cloned().collect();
    assert_eq!(ended.len(), 1);
    let names = kept(&data_dir, &ended);
    assert_eq!(names.len(), 2, "{names:?}");

    cluster.node(1).terminate();
    let saved = cluster.scratch().join("saved");
    for name in &names {
        let to = saved.join(name);
        fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        let copied = std::process::Command::new("cp")
            .args([
                "-r".as_ref(),
                data_dir.join(name).as_os_str(),
                to.as_os_str(),
            ])
            .status();
        assert!(copied.expect("cp").success());
    }
    cluster.node(1).start();
    cluster.node(1).wait_ready();
    cluster.must(&["topic", "delete", "ends"]);
    wait_until("the data to go", || kept(&data_dir, &ended).is_empty());

    cluster.node(1).terminate();
    for name in &names {
        fs::rename(saved.join(name), data_dir.join(name)).expect("moved");
    }
    assert_eq!(kept(&data_dir, &ended), names);
    cluster.node(1).start();
    cluster.node(1).wait_ready();
    wait_until("what was left behind to go", || {
        kept(&data_dir, &ended).is_empty()
    });
    assert_eq!(kept(&data_dir, &before).len(), 2, "the other topic stays");
}
