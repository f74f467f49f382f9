//! The topics that producers write to now. After so many writes a topic is out of use and a new one
//! takes its place: creation happens under faults as well.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_client::{Client, ErrorKind};
use tokio::sync::watch;

use super::{Shared, failed_write};
use crate::chance::Chance;
use crate::history::{Answer, Call, Key, Outcome, WorkerId};

/// What is kept of a topic whose old records are removed: a few seconds' worth. By size, not by
/// age, so that nothing moves any more once writing has ended.
const TRIMMED_BYTES: &str = "524288";
const TRIMMED_SEGMENT_BYTES: &str = "65536";
/// How long to wait after a creation that failed.
const AGAIN: Duration = Duration::from_millis(500);

/// A topic of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTopic {
    /// Its name.
    pub name: Arc<str>,
    /// How many topics of this name came before.
    pub incarnation: u32,
    /// Its partitions.
    pub partitions: u32,
    /// Whether old records of it are removed while it is in use, so that its start moves and
    /// replicas have snapshots.
    pub trims: bool,
}

impl LiveTopic {
    /// Its partitions as keys.
    pub fn keys(&self) -> Vec<Key> {
        (0..self.partitions)
            .map(|partition| self.key(partition))
            .collect()
    }

    /// One of its partitions.
    pub fn key(&self, partition: u32) -> Key {
        Key::new(self.name.clone(), partition).of_incarnation(self.incarnation)
    }
}

/// The topics in use and those that were.
pub struct LiveKeys {
    state: RefCell<State>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// By place: what producers write to.
    live: Vec<Option<(LiveTopic, u64)>>,
    /// Everything that was ever created and not deleted.
    all: Vec<LiveTopic>,
    writes_max: u64,
    next_name: u32,
    /// By topic: writes on their way, and those whose outcome nobody knows.
    unsettled: BTreeMap<Arc<str>, Unsettled>,
    /// How far some consumer has read from the start.
    read_to: BTreeMap<Key, i64>,
    /// After the load: the ends that consumers have to come to.
    ends: Option<BTreeMap<Key, i64>>,
}

/// Writes to a topic that may still land in whatever bears its name.
#[derive(Clone, Copy, Default)]
struct Unsettled {
    on_their_way: u64,
    unknown: u64,
}

impl LiveKeys {
    /// Room for `places` topics at a time, each out of use after `writes_max` writes.
    pub fn new(places: usize, writes_max: u64) -> LiveKeys {
        LiveKeys {
            state: RefCell::new(State {
                live: vec![None; places],
                writes_max,
                ..State::default()
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// A partition to write to, and a count of it; `None` before the first topic is there.
    pub fn pick(&self, chance: &mut Chance) -> Option<(usize, LiveTopic, u32)> {
        let state = &mut *self.state.borrow_mut();
        let there: Vec<usize> = (0..state.live.len())
            .filter(|place| state.live[*place].is_some())
            .collect();
        let place = *chance.pick(&there)?;
        let (topic, writes) = state.live[place].as_mut()?;
        *writes += 1;
        let partition = u32::try_from(chance.below(u64::from(topic.partitions))).unwrap_or(0);
        Some((place, topic.clone(), partition))
    }

    /// A write to a topic is on its way.
    pub fn began(&self, topic: &Arc<str>) {
        let mut state = self.state.borrow_mut();
        state
            .unsettled
            .entry(topic.clone())
            .or_default()
            .on_their_way += 1;
    }

    /// A write to a topic has ended.
    pub fn ended(&self, topic: &Arc<str>, outcome: &Outcome) {
        let mut state = self.state.borrow_mut();
        let unsettled = state.unsettled.entry(topic.clone()).or_default();
        unsettled.on_their_way = unsettled.on_their_way.saturating_sub(1);
        unsettled.unknown += u64::from(matches!(outcome, Outcome::Unknown { .. }));
    }

    /// Writes on their way to a topic, and those of unknown outcome.
    pub fn unsettled(&self, topic: &str) -> (u64, u64) {
        let state = self.state.borrow();
        let unsettled = state.unsettled.get(topic).copied().unwrap_or_default();
        (unsettled.on_their_way, unsettled.unknown)
    }

    /// The topic of a place.
    pub fn at(&self, place: usize) -> Option<LiveTopic> {
        let state = self.state.borrow();
        state
            .live
            .get(place)?
            .as_ref()
            .map(|(topic, _)| topic.clone())
    }

    /// A consumer has read a partition from its start up to an offset.
    pub fn read(&self, key: &Key, next: i64) {
        let mut state = self.state.borrow_mut();
        match state.read_to.get_mut(key) {
            Some(read_to) => *read_to = next.max(*read_to),
            None => {
                state.read_to.insert(key.clone(), next);
            }
        }
    }

    /// Nothing is written any more: from now on consumers read whatever has not been read up to
    /// these ends.
    pub fn read_out(&self, ends: BTreeMap<Key, i64>) {
        self.state.borrow_mut().ends = Some(ends);
        self.changed.send_modify(|version| *version += 1);
    }

    /// The partitions that nobody has read to their ends, with those; `None` while clients write.
    pub fn unread(&self) -> Option<Vec<(Key, i64)>> {
        let state = self.state.borrow();
        let ends = state.ends.as_ref()?.iter();
        let read_to = |key| state.read_to.get(key).copied().unwrap_or(0);
        let unread = ends.filter(|(key, end)| read_to(key) < **end);
        Some(unread.map(|(key, end)| (key.clone(), *end)).collect())
    }

    /// The topics of those partitions.
    pub fn unread_topics(&self) -> Option<Vec<LiveTopic>> {
        let unread = self.unread()?;
        let mut topics = self.all();
        let is_unread = |topic: &LiveTopic| {
            let mut of_it = unread.iter().map(|(key, _)| key);
            of_it.any(|key| key.topic == topic.name && key.incarnation == topic.incarnation)
        };
        topics.retain(is_unread);
        Some(topics)
    }

    /// How many topics there are at a time.
    pub fn places(&self) -> usize {
        self.state.borrow().live.len()
    }

    /// Everything that was created and not deleted.
    pub fn all(&self) -> Vec<LiveTopic> {
        self.state.borrow().all.clone()
    }

    /// A place that needs a new topic.
    fn vacant(&self) -> Option<usize> {
        let state = self.state.borrow();
        state.live.iter().position(|topic| {
            topic
                .as_ref()
                .is_none_or(|(_, writes)| *writes >= state.writes_max)
        })
    }

    fn next_name(&self, prefix: &str) -> Arc<str> {
        let mut state = self.state.borrow_mut();
        state.next_name += 1;
        format!("{prefix}-{}", state.next_name).into()
    }

    /// Puts a topic into use.
    pub fn put(&self, place: usize, topic: LiveTopic) {
        let mut state = self.state.borrow_mut();
        state.all.push(topic.clone());
        if let Some(slot) = state.live.get_mut(place) {
            *slot = Some((topic, 0));
        }
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Takes a topic out of use, because it is about to be deleted.
    pub fn remove(&self, place: usize) {
        let mut state = self.state.borrow_mut();
        if let Some((gone, _)) = state.live.get_mut(place).and_then(Option::take) {
            state.all.retain(|topic| *topic != gone);
        }
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Changes whenever a topic comes or goes.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// Creates a topic, as often as it takes. `None` if clients were stopped first.
pub async fn create(
    shared: &Shared,
    client: &Client,
    worker: WorkerId,
    topic: LiveTopic,
) -> Option<LiveTopic> {
    let process = shared.recorder.process();
    while !shared.is_over() {
        let call = Call::CreateTopic {
            key: topic.key(0),
            partitions: topic.partitions,
            trims: topic.trims,
        };
        let id = shared.recorder.invoke(worker, process, call);
        let mut create = client
            .admin()
            .create_topic(&*topic.name)
            .partitions(i32::try_from(topic.partitions).unwrap_or(i32::MAX))
            .replication(shared.replication)
            .ensure();
        if shared.replication > 1 {
            create = create.config("min.insync.replicas", shared.min_insync.to_string());
        }
        if topic.trims {
            create = create
                .config("segment.bytes", TRIMMED_SEGMENT_BYTES)
                .config("retention.bytes", TRIMMED_BYTES);
        }
        match create.await {
            Ok(_) => {
                shared.recorder.complete(id, Outcome::Ok(Answer::Done));
                return Some(topic);
            }
            Err(error) => {
                shared.recorder.complete(id, failed_write(&error));
                shared.pause(AGAIN).await;
            }
        }
    }
    None
}

/// Deletes a topic, as often as it takes: one that is gone is deleted. Whether it is.
pub async fn delete(shared: &Shared, client: &Client, worker: WorkerId, topic: &LiveTopic) -> bool {
    let process = shared.recorder.process();
    let mut maybe_before = false;
    while !shared.is_over() {
        let call = Call::DeleteTopic { key: topic.key(0) };
        let id = shared.recorder.invoke(worker, process, call);
        match client.admin().delete_topic(&topic.name).await {
            Ok(()) => {
                shared.recorder.complete(id, Outcome::Ok(Answer::Done));
                return true;
            }
            // An earlier attempt did it.
            Err(error) if error.kind() == ErrorKind::UnknownTopic && maybe_before => {
                shared.recorder.complete(id, Outcome::Ok(Answer::Done));
                return true;
            }
            Err(error) => {
                maybe_before |= error.outcome() != corduroy_client::Outcome::NotWritten;
                shared.recorder.complete(id, failed_write(&error));
                shared.pause(AGAIN).await;
            }
        }
    }
    false
}

/// Keeps every place filled; the topics of places from `trimmed_from` on have old records removed.
pub async fn keep_filled(
    shared: Shared,
    worker: WorkerId,
    prefix: Rc<str>,
    partitions: u32,
    trimmed_from: usize,
) {
    while !shared.is_over() {
        let Ok(client) = shared.client("jepsen-topics").await else {
            shared.pause(AGAIN).await;
            continue;
        };
        while !shared.is_over() {
            let Some(place) = shared.keys.vacant() else {
                shared.pause(AGAIN / 5).await;
                continue;
            };
            let topic = LiveTopic {
                name: shared.keys.next_name(&prefix),
                incarnation: 0,
                partitions: if place < trimmed_from { partitions } else { 1 },
                trims: place >= trimmed_from,
            };
            if let Some(topic) = create(&shared, &client, worker, topic).await {
                shared.keys.put(place, topic);
            }
        }
    }
}
