//! Consumers by assignment: each takes the partitions of a topic and reads them from the start, on
//! and on. One that has lost its reader takes the same topic again, so that nobody leaves the end of a
//! topic that is out of use unread; after the load they read out whatever is left of any topic.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use corduroy_client::{From, Isolation, Reader, Told};

use super::keys::LiveTopic;
#[cfg(feature = "librdkafka")]
use super::librdkafka::Taker;
use super::{Shared, take_record, take_told};
use crate::chance::Chance;
use crate::cli::ClientKind;
use crate::history::{Answer, Call, Key, Outcome, PartitionRead, WorkerId};

/// How long one poll waits for records.
const POLL_WAIT: Duration = Duration::from_millis(500);
/// A poll that has taken so many records takes no more.
const RECORDS_MAX: usize = 500;
/// How long to wait after a client that cannot connect, or a reader that has failed: short, so that
/// somebody reads while a cluster comes back.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a consumer stays with a topic that is out of use and gives nothing more.
const IDLE_POLLS_MAX: u32 = 6;

/// Runs one consumer: reads the topic of a place, and whatever topic comes after it.
pub async fn run(shared: Shared, worker: WorkerId, place: usize, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    let mut last: Option<LiveTopic> = None;
    let mut is_read = true;
    while !shared.is_over() {
        let unfinished = last.as_ref().filter(|_| !is_read);
        let unfinished = unfinished.filter(|topic| shared.keys.all().contains(topic));
        let topic = match shared.keys.unread_topics() {
            Some(unread) => chance.pick(&unread).cloned(),
            None => unfinished
                .cloned()
                .or_else(|| shared.keys.at(place))
                .or_else(|| last.clone()),
        };
        let Some(topic) = topic else {
            shared.pause(AGAIN).await;
            continue;
        };
        let Some(reader) = Taking::new(&shared, &topic).await else {
            shared.pause(AGAIN).await;
            continue;
        };
        let half_ms = u64::try_from(shared.crash_every.as_millis() / 2).unwrap_or(u64::MAX);
        let life = Duration::from_millis(half_ms + chance.below(half_ms * 2));
        let consumer = Consumer {
            shared: &shared,
            worker,
            place,
            topic: topic.clone(),
        };
        is_read = consumer.follow(reader, life).await;
        last = Some(topic);
    }
}

/// Records of one partition, in their order.
pub struct Taken {
    /// The partition.
    pub partition: i32,
    /// Where the consumer goes on.
    pub next: i64,
    /// Offset, leader epoch (-1: not told) and value of each.
    pub records: Vec<(i64, i32, Option<Bytes>)>,
    /// What the leader said of the partition, if the client tells.
    pub told: Option<Told>,
}

/// Whose consumer it is.
enum Taking {
    Corduroy(Box<Reader>),
    #[cfg(feature = "librdkafka")]
    Librdkafka(Taker),
}

impl Taking {
    /// A consumer of all partitions of a topic, from their start; `None` if there is none now.
    async fn new(shared: &Shared, topic: &LiveTopic) -> Option<Taking> {
        match shared.client {
            #[cfg(feature = "librdkafka")]
            ClientKind::Librdkafka => {
                let taker = Taker::new(shared, &topic.keys()).ok()?;
                Some(Taking::Librdkafka(taker))
            }
            #[cfg(not(feature = "librdkafka"))]
            ClientKind::Librdkafka => None,
            ClientKind::Corduroy => {
                let client = shared.client("jepsen-consumer").await.ok()?;
                let reader = client
                    .read(&*topic.name)
                    .partitions(0..i32::try_from(topic.partitions).unwrap_or(0))
                    .from(From::Earliest)
                    .isolation(Isolation::ReadCommitted)
                    .max_wait(POLL_WAIT / 2)
                    .follow();
                Some(Taking::Corduroy(Box::new(reader)))
            }
        }
    }

    /// What comes next.
    async fn next(&mut self) -> Result<Taken, String> {
        let batch = match self {
            Taking::Corduroy(reader) => reader.next().await,
            #[cfg(feature = "librdkafka")]
            Taking::Librdkafka(taker) => return taker.next().await,
        };
        match batch {
            Some(Ok(batch)) => Ok(Taken {
                partition: batch.partition(),
                next: batch.next_offset(),
                told: Some(batch.told()),
                records: batch
                    .records()
                    .iter()
                    .map(|record| {
                        let value = record.value().map(Bytes::copy_from_slice);
                        (record.offset(), record.leader_epoch(), value)
                    })
                    .collect(),
            }),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the reader has ended".to_owned()),
        }
    }
}

struct Consumer<'a> {
    shared: &'a Shared,
    worker: WorkerId,
    place: usize,
    topic: LiveTopic,
}

impl Consumer<'_> {
    /// Polls until the topic is out of use and empty (then it is read), the reader fails or its life
    /// is over.
    async fn follow(&self, mut reader: Taking, life: Duration) -> bool {
        let recorder = &self.shared.recorder;
        let process = recorder.process();
        let keys = self.topic.keys();
        let assign = Call::Assign { keys: keys.clone() };
        let id = recorder.invoke(self.worker, process, assign);
        recorder.complete(id, Outcome::Ok(Answer::Done));
        let end = self.shared.env.now() + life;
        let mut positions: BTreeMap<Key, i64> = BTreeMap::new();
        let mut idle = 0;
        while !self.shared.is_over() {
            let call = Call::Poll { keys: keys.clone() };
            let id = recorder.invoke(self.worker, process, call);
            match self.poll(&mut reader, &mut positions).await {
                Ok(reads) => {
                    idle = if reads.is_empty() { idle + 1 } else { 0 };
                    recorder.complete(id, Outcome::Ok(Answer::Read(reads)));
                }
                Err(error) => {
                    recorder.complete(id, Outcome::Fail { error });
                    self.shared.pause(AGAIN).await;
                    return false;
                }
            }
            if let Some(unread) = self.shared.keys.unread_topics() {
                match unread.contains(&self.topic) {
                    true => continue,
                    false => return true,
                }
            }
            let is_old = self.shared.keys.at(self.place).as_ref() != Some(&self.topic);
            if is_old && idle >= IDLE_POLLS_MAX {
                return true;
            }
            if self.shared.env.now() > end {
                let id = recorder.invoke(self.worker, process, Call::Crash);
                recorder.complete(id, Outcome::Ok(Answer::Done));
                return false;
            }
        }
        true
    }

    /// What is there, or comes soon.
    async fn poll(
        &self,
        reader: &mut Taking,
        positions: &mut BTreeMap<Key, i64>,
    ) -> Result<Vec<PartitionRead>, String> {
        let mut reads: Vec<PartitionRead> = Vec::new();
        let mut wait = POLL_WAIT;
        let mut records = 0;
        while records < RECORDS_MAX {
            let Ok(next) = tokio::time::timeout(wait, reader.next()).await else {
                break;
            };
            let taken = match next {
                Ok(taken) => taken,
                // What came before the error counts all the same; the error comes again.
                Err(error) if reads.is_empty() => return Err(error),
                Err(_) => break,
            };
            // Only what is there already is added to the first batch.
            wait = Duration::ZERO;
            let Ok(partition) = u32::try_from(taken.partition) else {
                continue;
            };
            let key = self.topic.key(partition);
            let from = positions.get(&key).copied().unwrap_or(0);
            let place = reads.iter().position(|read| read.key == key);
            let place = place.unwrap_or_else(|| {
                reads.push(PartitionRead::at(key.clone(), from));
                reads.len() - 1
            });
            let Some(read) = reads.get_mut(place) else {
                continue;
            };
            for (offset, epoch, value) in &taken.records {
                take_record(read, *offset, *epoch, value.as_deref());
            }
            if let Some(told) = &taken.told {
                let asked = self.shared.recorder.nanos(told.asked_at);
                take_told(read, told, Some(asked));
                read.log_start = (told.log_start >= 0).then_some(told.log_start);
            }
            read.next = taken.next;
            self.shared.keys.read(&key, read.next);
            positions.insert(key, read.next);
            records += taken.records.len();
        }
        Ok(reads)
    }
}
