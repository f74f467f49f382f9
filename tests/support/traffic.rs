//! Load beside a test: an idempotent producer at full speed that writes down what it was promised,
//! and the judge who reads everything back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corduroy_client::{Acks, Client, Error, From, Outcome, Record, Ticket};

use super::wait_until;

/// Records of one partition that wait for their acknowledgement at most.
const OUTSTANDING_MAX: usize = 500;

/// How long a record may take before it counts as failed. Longer than any fault of a test.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a future to its end on a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// A client that gives up on a silent node soon.
pub async fn client(bootstrap: &str) -> Client {
    Client::builder()
        .bootstrap_servers(bootstrap)
        .set("socket.connection.setup.timeout.ms", "1500")
        .request_timeout(Duration::from_secs(5))
        .connect()
        .await
        .expect("the cluster answers")
}

/// What happened to the records of one partition. The n-th record's value begins with "n ".
#[derive(Debug, Default)]
pub struct PartitionLedger {
    /// (n, offset) of each acknowledged record, in the order in which they were queued.
    pub acked: Vec<(u64, i64)>,
    /// (n, error, may it be there all the same).
    pub failed: Vec<(u64, String, bool)>,
    /// Longest time between two acknowledgements.
    pub gap: Duration,
}

/// What a [`Traffic`] was promised.
#[derive(Debug)]
pub struct Ledger {
    /// The topic.
    pub topic: String,
    /// By partition.
    pub partitions: BTreeMap<i32, PartitionLedger>,
}

/// A producer that runs until it is stopped.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    thread: JoinHandle<Ledger>,
}

impl Traffic {
    /// Writes to every partition of a topic with acks=all and idempotence.
    pub fn start(bootstrap: &str, topic: &str, partitions: i32) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let acked = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, acked) = (stop.clone(), acked.clone());
            let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
            move || block_on(produce(&bootstrap, &topic, partitions, &stop, &acked))
        });
        Traffic {
            stop,
            acked,
            thread,
        }
    }

    /// Records acknowledged so far.
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Acquire)
    }

    /// Waits until `count` more records are acknowledged.
    pub fn wait_for_more(&self, count: u64) {
        let goal = self.acked() + count;
        wait_until(&format!("{count} more records are acknowledged"), || {
            assert!(!self.thread.is_finished(), "the producer ended early");
            self.acked() >= goal
        });
    }

    /// Stops, waits for every outstanding record, and returns the promises.
    pub fn finish(self) -> Ledger {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the producer ran to its end")
    }
}

async fn produce(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    stop: &Arc<AtomicBool>,
    acked: &Arc<AtomicU64>,
) -> Ledger {
    let client = client(bootstrap).await;
    let producer = client
        .producer()
        .acks(Acks::All)
        .linger(Duration::from_millis(1))
        .delivery_timeout(DELIVERY_TIMEOUT)
        .build();
    let lanes = (0..partitions).map(|partition| {
        let producer = producer.clone();
        async move {
            let (tickets, mut outstanding) = tokio::sync::mpsc::channel(OUTSTANDING_MAX);
            let feed = async {
                let mut n = 0u64;
                while !stop.load(Ordering::Acquire) {
                    let value = format!("{n} {:60}", partition);
                    let record = Record::to(topic).partition(partition).value(value);
                    let ticket = producer.queue(record).await;
                    if tickets.send((n, ticket)).await.is_err() {
                        break;
                    }
                    n += 1;
                }
                drop(tickets);
            };
            let collect = async {
                let mut ledger = PartitionLedger::default();
                let mut last = Instant::now();
                while let Some((n, ticket)) = outstanding.recv().await {
                    let ticket: Result<Ticket, Error> = ticket;
                    let outcome = match ticket {
                        Ok(ticket) => ticket.await,
                        Err(error) => Err(error),
                    };
                    match outcome {
                        Ok(meta) => {
                            let offset = meta.offset.expect("acks=all tells the offset");
                            ledger.acked.push((n, offset));
                            ledger.gap = ledger.gap.max(last.elapsed());
                            last = Instant::now();
                            acked.fetch_add(1, Ordering::AcqRel);
                        }
                        Err(error) => {
                            let maybe = error.outcome() != Outcome::NotWritten;
                            ledger.failed.push((n, error.to_string(), maybe));
                        }
                    }
                }
                ledger
            };
            let ((), ledger) = tokio::join!(feed, collect);
            (partition, ledger)
        }
    });
    let partitions = futures::future::join_all(lanes).await.into_iter().collect();
    Ledger {
        topic: topic.to_owned(),
        partitions,
    }
}

impl Ledger {
    /// Acknowledged records of all partitions.
    pub fn acked(&self) -> usize {
        self.partitions.values().map(|p| p.acked.len()).sum()
    }

    /// Longest time between two acknowledgements of one partition.
    pub fn gap(&self) -> Duration {
        self.partitions
            .values()
            .map(|p| p.gap)
            .max()
            .unwrap_or_default()
    }

    /// The first failures, for a message.
    pub fn failures(&self) -> Vec<&(u64, String, bool)> {
        self.partitions
            .values()
            .flat_map(|p| &p.failed)
            .take(5)
            .collect()
    }

    /// Reads everything back: each acknowledged record is there once, at its offset; nothing is
    /// there twice; what is there is in the order in which it was queued; nothing is there that
    /// surely failed.
    pub fn verify(&self, bootstrap: &str) {
        block_on(async {
            let client = client(bootstrap).await;
            for (partition, ledger) in &self.partitions {
                let found = read_all(&client, &self.topic, *partition).await;
                let place = format!("{}/{partition}", self.topic);
                judge(&place, ledger, &found);
            }
        });
    }
}

/// Everything below the high watermark: (offset, value).
pub async fn read_all(client: &Client, topic: &str, partition: i32) -> Vec<(i64, String)> {
    let mut reader = client
        .read(topic)
        .partition(partition)
        .from(From::Earliest)
        .until_high_watermark();
    let mut found = Vec::new();
    while let Some(batch) = reader.next().await {
        for record in batch.expect("readable").records() {
            let value = String::from_utf8(record.value().expect("a value").to_vec());
            found.push((record.offset(), value.expect("UTF-8")));
        }
    }
    found
}

fn judge(place: &str, ledger: &PartitionLedger, found: &[(i64, String)]) {
    let numbers: Vec<(i64, u64)> = found
        .iter()
        .map(|(offset, value)| {
            let n = value
                .split(' ')
                .next()
                .expect("a number")
                .parse()
                .expect("a number");
            (*offset, n)
        })
        .collect();
    for pair in numbers.windows(2) {
        let [(offset_a, a), (offset_b, b)] = pair else {
            unreachable!("windows of two")
        };
        assert!(
            b > a,
            "{place}: record {b} at {offset_b} follows record {a} at {offset_a}: {}",
            if numbers.iter().filter(|(_, n)| n == b).count() > 1 {
                "duplicated"
            } else {
                "reordered"
            }
        );
        assert_eq!(*offset_b, offset_a + 1, "{place}: offsets have no gaps");
    }
    let by_number: BTreeMap<u64, i64> = numbers.iter().map(|(offset, n)| (*n, *offset)).collect();
    let lost: Vec<_> = ledger
        .acked
        .iter()
        .filter(|(n, _)| !by_number.contains_key(n))
        .take(5)
        .collect();
    assert!(
        lost.is_empty(),
        "{place}: {} acknowledged records lost, the first are {lost:?} of {} (there: {}..={:?})",
        ledger
            .acked
            .iter()
            .filter(|(n, _)| !by_number.contains_key(n))
            .count(),
        ledger.acked.len(),
        numbers.first().map_or(0, |(_, n)| *n),
        numbers.last(),
    );
    for (n, offset) in &ledger.acked {
        assert_eq!(
            by_number[n], *offset,
            "{place}: record {n} is not where its ack said"
        );
    }
    for (n, error, maybe) in &ledger.failed {
        assert!(
            *maybe || !by_number.contains_key(n),
            "{place}: record {n} is there although it failed for sure: {error}"
        );
    }
}
