//! All records of a producer on their way, by topic and partition. Pure: no I/O and no clock.

use std::collections::HashMap;
use std::sync::Arc;

use corduroy_record::BatchError;
use tokio::time::Instant;

use super::partitioner::{Load, Sticky, partition_of_key};
use super::queue::{PartitionQueue, Rules};
use super::record::Record;
use super::seal::Identity;
use super::ticket::{Completion, Ticket};

/// The place of a partition's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey {
    topic: usize,
    partition: usize,
}

impl QueueKey {
    /// The partition's number in its topic.
    pub(crate) fn partition(self) -> i32 {
        self.partition as i32
    }
}

/// How records are spread over the partitions of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) ignore_keys: bool,
    pub(crate) adaptive: bool,
}

/// What happened to a record that was offered.
pub(crate) enum Offered {
    /// It has its place. `wake`: the sender should look.
    Queued { ticket: Ticket, wake: bool },
    /// The topic's partitions are not known here yet.
    UnknownTopic,
    /// It names a partition that the topic does not have, as far as is known.
    UnknownPartition { partitions: usize },
}

/// A record with what the caller found out before it took the lock.
pub(crate) struct Offer<'r, 'a> {
    pub(crate) record: &'r Record<'a>,
    pub(crate) size_bytes: usize,
    /// The record's time.
    pub(crate) timestamp: i64,
}

/// What a choice among partitions needs.
pub(crate) struct Choice {
    /// Which partitions have a leader.
    pub(crate) available: Vec<bool>,
    /// Any random number.
    pub(crate) random: u64,
}

struct TopicQueues {
    name: Arc<str>,
    partitions: Vec<PartitionQueue>,
    sticky: Sticky,
}

/// Law: a queue that is not empty is in `active`, and none is in it twice: a request holds one batch
/// of a partition, for its answers are found by partition.
pub(crate) struct Accumulator {
    rules: Rules,
    spread: Spread,
    names: HashMap<Arc<str>, usize>,
    topics: Vec<TopicQueues>,
    active: Vec<QueueKey>,
    /// The identity that partitions without one of their own take.
    pub(crate) identity: Option<Identity>,
}

impl Accumulator {
    pub(crate) fn new(rules: Rules, spread: Spread) -> Accumulator {
        Accumulator {
            rules,
            spread,
            names: HashMap::new(),
            topics: Vec::new(),
            active: Vec::new(),
            identity: None,
        }
    }

    /// Learns how many partitions a topic has. It never shrinks: what is queued keeps its place.
    pub(crate) fn set_partitions(&mut self, topic: &Arc<str>, partitions: usize) {
        let place = *self.names.entry(topic.clone()).or_insert_with(|| {
            self.topics.push(TopicQueues {
                name: topic.clone(),
                partitions: Vec::new(),
                sticky: Sticky::default(),
            });
            self.topics.len() - 1
        });
        let queues = &mut self.topics[place].partitions;
        if queues.len() < partitions {
            queues.resize_with(partitions, PartitionQueue::default);
        }
    }

    /// The topics that records were queued for.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.iter().map(|topic| &topic.name)
    }

    /// Gives a record its partition and its place. `now` is called only when a batch begins,
    /// `choice` (with the topic) when a record without a key needs another partition.
    ///
    /// # Errors
    /// Those of the batch builder: the record can't be written as it is.
    pub(crate) fn offer(
        &mut self,
        offer: &Offer<'_, '_>,
        now: impl FnOnce() -> Instant,
        choice: impl FnOnce(&str) -> Choice,
    ) -> Result<Offered, BatchError> {
        let record = offer.record;
        let Some(&place) = self.names.get(&*record.topic) else {
            return Ok(Offered::UnknownTopic);
        };
        let TopicQueues {
            name,
            partitions,
            sticky,
        } = &mut self.topics[place];
        let count = partitions.len();
        let is_unknown = |partition: &usize| *partition >= count;
        let key = record.key.as_ref().filter(|_| !self.spread.ignore_keys);
        let mut hurried = false;
        let (partition, is_sticky) = match (record.partition, key) {
            (Some(partition), _) => (usize::try_from(partition).unwrap_or(usize::MAX), false),
            (None, Some(key)) if count > 0 => (partition_of_key(key.as_ref(), count), false),
            (None, _) => {
                let mut kept = sticky.current();
                if let Some(full) = kept
                    .filter(|kept| partitions[*kept].would_overflow(&self.rules, offer.size_bytes))
                {
                    partitions[full].hurry();
                    hurried = true;
                    kept = None;
                }
                let chosen = match kept {
                    Some(kept) => kept,
                    None => {
                        let Choice { available, random } = choice(name);
                        let loads: Vec<Load> = partitions
                            .iter()
                            .enumerate()
                            .map(|(index, queue)| Load {
                                queued: queue.waiting_batches(),
                                available: available.get(index).copied().unwrap_or(false),
                            })
                            .collect();
                        sticky.choose(&loads, self.spread.adaptive, random)
                    }
                };
                (chosen, true)
            }
        };
        if is_unknown(&partition) {
            return Ok(Offered::UnknownPartition { partitions: count });
        }
        let queue = &mut partitions[partition];
        let appended = queue.append(
            &self.rules,
            offer.size_bytes,
            || (Completion::new(name.clone(), partition as i32), now()),
            |builder| {
                let key = record.key.as_ref().map(AsRef::as_ref);
                let value = record.value.as_ref().map(AsRef::as_ref);
                if record.headers.is_empty() {
                    return builder.push(offer.timestamp, key, value, &[]);
                }
                let headers: Vec<(&str, Option<&[u8]>)> = record
                    .headers
                    .iter()
                    .map(|(name, value)| (&**name, value.as_ref().map(AsRef::as_ref)))
                    .collect();
                builder.push(offer.timestamp, key, value, &headers)
            },
        );
        if !queue.is_empty() && !std::mem::replace(&mut queue.listed, true) {
            self.active.push(QueueKey {
                topic: place,
                partition,
            });
        }
        let (completion, index, wake) = appended?;
        if is_sticky {
            sticky.count(offer.size_bytes, self.rules.batch_bytes, queue.is_full());
        }
        let ticket = Ticket::new(completion, index, offer.timestamp);
        Ok(Offered::Queued {
            ticket,
            wake: wake || hurried,
        })
    }

    /// The rules of all queues.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The queues that have something on its way. Forgets those that have nothing any more, and
    /// begins with another one each time so that none is always last.
    pub(crate) fn active(&mut self) -> Vec<QueueKey> {
        let topics = &mut self.topics;
        self.active.retain(|key| {
            let queue = &mut topics[key.topic].partitions[key.partition];
            queue.listed = !queue.is_empty();
            queue.listed
        });
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        self.active.clone()
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.active().is_empty()
    }

    /// The topic of a queue.
    pub(crate) fn topic(&self, key: QueueKey) -> &Arc<str> {
        &self.topics[key.topic].name
    }

    /// A queue.
    pub(crate) fn queue(&mut self, key: QueueKey) -> &mut PartitionQueue {
        &mut self.topics[key.topic].partitions[key.partition]
    }

    /// Lets no batch wait for more records, and names all that are not settled.
    pub(crate) fn flush(&mut self) -> Vec<Arc<Completion>> {
        let mut open = Vec::new();
        for key in self.active() {
            self.queue(key).flush(&mut open);
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corduroy_record::Compression;

    use super::*;

    fn accumulator(partitions: usize) -> Accumulator {
        let rules = Rules {
            idempotent: true,
            window: 5,
            linger: Duration::from_millis(5),
            batch_bytes: 200,
            compression: Compression::None,
            delivery_timeout: Duration::from_secs(120),
            retries: u32::MAX,
        };
        let mut accumulator = Accumulator::new(
            rules,
            Spread {
                ignore_keys: false,
                adaptive: true,
            },
        );
        accumulator.set_partitions(&"t".into(), partitions);
        accumulator
    }

    fn offer(accumulator: &mut Accumulator, record: &Record<'_>, random: u64) -> Offered {
        let size_bytes = record.size_bound();
        let offer = Offer {
            record,
            size_bytes,
            timestamp: 1,
        };
        accumulator
            .offer(&offer, Instant::now, |_| Choice {
                available: vec![true; 4],
                random,
            })
            .expect("fits")
    }

    fn partition(offered: Offered) -> i32 {
        match offered {
            Offered::Queued { ticket, .. } => ticket.partition(),
            _ => panic!("not queued"),
        }
    }

    #[test]
    fn keys_stay_together_and_named_partitions_win() {
        let mut all = accumulator(4);
        let home = partition(offer(&mut all, &Record::to("t").key("a"), 0));
        for random in 0..8 {
            assert_eq!(
                partition(offer(&mut all, &Record::to("t").key("a"), random)),
                home
            );
        }
        let named = Record::to("t").key("a").partition((home + 1) % 4);
        assert_eq!(partition(offer(&mut all, &named, 0)), (home + 1) % 4);
    }

    #[test]
    fn records_without_a_key_fill_a_batch_before_they_move_on() {
        let mut all = accumulator(4);
        let record = Record::to("t").value(&[0; 60]);
        let places: Vec<i32> = (0..6)
            .map(|random| partition(offer(&mut all, &record, random % 4)))
            .collect();
        // Batches of 200 bytes hold one record of this size bound, then two do not fit any more.
        assert!(
            places.windows(2).any(|pair| pair[0] != pair[1]),
            "{places:?}"
        );
        let tiny = Record::to("t").value("x");
        let mut all = accumulator(4);
        let places: Vec<i32> = (0..3)
            .map(|random| partition(offer(&mut all, &tiny, random)))
            .collect();
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut all = accumulator(2);
        assert!(matches!(
            offer(&mut all, &Record::to("u"), 0),
            Offered::UnknownTopic
        ));
        for wrong in [2, -1] {
            let record = Record::to("t").partition(wrong);
            assert!(matches!(
                offer(&mut all, &record, 0),
                Offered::UnknownPartition { partitions: 2 }
            ));
        }
        assert!(all.is_idle());
    }

    #[test]
    fn a_partition_whose_records_expired_stands_in_line_once() {
        let mut all = accumulator(1);
        let record = Record::to("t").value("x");
        assert_eq!(partition(offer(&mut all, &record, 0)), 0);
        let first = all.active()[0];
        let (rules, late) = (
            all.rules().clone(),
            Instant::now() + Duration::from_secs(121),
        );
        let mut settled = Vec::new();
        all.queue(first).expire(&rules, late, &mut settled);
        assert_eq!(settled.len(), 1);
        // Before anybody looked: twice in line, and one request would hold two of its batches.
        assert_eq!(partition(offer(&mut all, &record, 0)), 0);
        assert_eq!(all.active().len(), 1);
    }

    #[test]
    fn the_sender_is_woken_by_the_first_record_and_by_a_full_batch() {
        let mut all = accumulator(1);
        let record = Record::to("t").value(&[0; 10]);
        let wakes: Vec<bool> = (0..10)
            .map(|_| match offer(&mut all, &record, 0) {
                Offered::Queued { wake, .. } => wake,
                _ => panic!("not queued"),
            })
            .collect();
        assert!(wakes[0]);
        assert!(!wakes[1]);
        assert!(wakes[2..].iter().any(|wake| *wake), "{wakes:?}");
    }
}
