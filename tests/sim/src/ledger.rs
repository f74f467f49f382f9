//! What clients were told and what they read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::group_ledger::GroupLedger;

/// A place in a topic: topic, partition, offset.
pub type Place = (String, i32, i64);

/// A record that a client was told is there.
#[derive(Clone, Debug)]
pub struct Ack {
    /// Where.
    pub place: Place,
    /// What.
    pub value: u64,
}

/// What became of a record, as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent; nothing heard.
    Open,
    /// Acknowledged.
    Acked,
    /// "It was not written, and will not be."
    Failed,
    /// Nobody knows.
    Unknown,
}

/// Clone = the same ledger.
#[derive(Clone, Default)]
pub struct Ledger {
    inner: Rc<RefCell<Inner>>,
    groups: GroupLedger,
}

#[derive(Default)]
struct Inner {
    next_value: u64,
    fates: BTreeMap<u64, Fate>,
    places: BTreeMap<Place, u64>,
    /// How far each partition is known to reach: the offset after what was acknowledged, read or
    /// told.
    ends: BTreeMap<(String, i32), i64>,
    latest: u64,
    acks: Vec<Ack>,
    fresh: usize,
    conflicts: Vec<String>,
    reads: u64,
    /// Values of a topic that comes and goes: in which life of it they were sent.
    lives: BTreeMap<u64, u64>,
    recreated: u64,
    fenced: u64,
}

impl Ledger {
    /// What members of consumer groups were told.
    pub fn groups(&self) -> GroupLedger {
        self.groups.clone()
    }

    /// A value that nobody has sent before.
    pub fn open(&self) -> u64 {
        let mut inner = self.inner.borrow_mut();
        let value = inner.next_value;
        inner.next_value += 1;
        inner.fates.insert(value, Fate::Open);
        value
    }

    /// A client was told that its value is at a place.
    pub fn acked(&self, value: u64, place: Option<Place>) {
        let mut inner = self.inner.borrow_mut();
        tracing::debug!(value, ?place, "acknowledged");
        inner.fates.insert(value, Fate::Acked);
        if let Some(place) = place {
            inner.put(place.clone(), value, "acknowledged");
            inner.acks.push(Ack { place, value });
        }
    }

    /// A client was told something else.
    pub fn settled(&self, value: u64, fate: Fate) {
        self.inner.borrow_mut().fates.insert(value, fate);
    }

    /// A client read a value.
    pub fn read(&self, place: Place, value: u64) {
        let mut inner = self.inner.borrow_mut();
        inner.reads += 1;
        if inner.fates.get(&value) == Some(&Fate::Failed) {
            let told = format!("{value} was read at {place:?}; its client was told that it failed");
            inner.conflicts.push(told);
        }
        inner.put(place, value, "read");
    }

    /// A value that nobody has sent before, for one life of a topic.
    pub fn open_in_life(&self, life: u64) -> u64 {
        let value = self.open();
        self.inner.borrow_mut().lives.insert(value, life);
        value
    }

    /// A client was told that its value is at a place of a topic that will be gone: nobody asks for
    /// it later.
    pub fn acked_in_life(&self, value: u64, place: Option<Place>) {
        let mut inner = self.inner.borrow_mut();
        inner.fates.insert(value, Fate::Acked);
        if let Some(place) = place {
            inner.put(place, value, "acknowledged");
        }
    }

    /// A value was read in some life of a topic. What was acknowledged in another is gone with it;
    /// a request of unknown outcome may have come late, and met the next one.
    pub fn read_in_life(&self, life: u64, place: Place, value: u64) {
        {
            let mut inner = self.inner.borrow_mut();
            let sent = inner.lives.get(&value).copied();
            let acked = inner.fates.get(&value) == Some(&Fate::Acked);
            if acked && sent != Some(life) {
                let told = format!("{value} of life {sent:?} of its topic was read at {place:?}");
                inner.conflicts.push(told);
            }
        }
        self.read(place, value);
    }

    /// A topic is there again under its old name.
    pub fn recreated(&self) {
        self.inner.borrow_mut().recreated += 1;
    }

    /// How often a topic came back.
    pub fn times_recreated(&self) -> u64 {
        self.inner.borrow().recreated
    }

    /// A batch of an older producer epoch was refused.
    pub fn fenced(&self) {
        self.inner.borrow_mut().fenced += 1;
    }

    /// How often that was.
    pub fn times_fenced(&self) -> u64 {
        self.inner.borrow().fenced
    }

    /// How far a partition is known to reach.
    pub fn end(&self, topic: &str, partition: i32) -> i64 {
        let inner = self.inner.borrow();
        let end = inner.ends.get(&(topic.to_owned(), partition));
        end.copied().unwrap_or(0)
    }

    /// A node said that a partition ends at `end`; when it was asked, the partition was known to
    /// reach `known`.
    pub fn latest(&self, host: u16, (topic, partition): (&str, i32), known: i64, end: i64) {
        let mut inner = self.inner.borrow_mut();
        inner.latest += 1;
        if end < known {
            let told = format!(
                "node {host} named {end} as the latest offset of {topic}/{partition}, which was \
                 known to reach {known} when it was asked"
            );
            inner.conflicts.push(told);
        }
        inner.reaches(topic, partition, end);
    }

    /// How often a node said what the latest offset is.
    pub fn times_latest(&self) -> u64 {
        self.inner.borrow().latest
    }

    /// Bytes were read that no client sent.
    pub fn read_garbage(&self, place: &Place, bytes: &[u8]) {
        let found = format!(
            "{} bytes that nobody sent were read at {place:?}",
            bytes.len()
        );
        self.inner.borrow_mut().conflicts.push(found);
    }

    /// Acknowledgements since the last call.
    pub fn take_fresh(&self) -> Vec<Ack> {
        let mut inner = self.inner.borrow_mut();
        let all = inner.acks.len();
        let from = std::mem::replace(&mut inner.fresh, all);
        inner.acks[from..].to_vec()
    }

    /// All acknowledgements.
    pub fn acks(&self) -> Vec<Ack> {
        self.inner.borrow().acks.clone()
    }

    /// What contradicts what clients were told.
    pub fn first_conflict(&self) -> Option<String> {
        self.inner.borrow().conflicts.first().cloned()
    }

    /// Values by fate: acknowledged, failed, unknown, read.
    pub fn counts(&self) -> [u64; 4] {
        let inner = self.inner.borrow();
        let of = |fate| inner.fates.values().filter(|known| **known == fate).count() as u64;
        [
            of(Fate::Acked),
            of(Fate::Failed),
            of(Fate::Unknown),
            inner.reads,
        ]
    }

    /// Whether a value was refused for good.
    pub fn failed(&self, value: u64) -> bool {
        self.inner.borrow().fates.get(&value) == Some(&Fate::Failed)
    }

    /// Values that are at more than one place.
    pub fn doubles(&self) -> Vec<(u64, Place)> {
        let inner = self.inner.borrow();
        let mut seen = BTreeSet::new();
        let again = inner
            .places
            .iter()
            .filter(|(_, value)| !seen.insert(**value));
        again
            .map(|(place, value)| (*value, place.clone()))
            .collect()
    }
}

impl Inner {
    fn reaches(&mut self, topic: &str, partition: i32, end: i64) {
        let key = (topic.to_owned(), partition);
        let known = self.ends.entry(key).or_default();
        *known = end.max(*known);
    }

    fn put(&mut self, place: Place, value: u64, how: &str) {
        self.reaches(&place.0, place.1, place.2 + 1);
        match self.places.get(&place) {
            Some(known) if *known != value => {
                let told = format!("{value} was {how} at {place:?}, where {known} was before");
                self.conflicts.push(told);
            }
            Some(_) => {}
            None => {
                self.places.insert(place, value);
            }
        }
    }
}
