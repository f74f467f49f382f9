//! What the records of one partition of `__consumer_offsets` add up to: the same on every replica.

mod live;
mod size;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use corduroy_record::TopicPartition;

use crate::consumer::ConsumerState;
use crate::records::{ClassicValue, GroupRecord, OffsetValue, RecordError};

pub use live::LiveKey;

/// The groups of one partition of `__consumer_offsets`.
///
/// Law: a function of the applied records and noted generations alone, so all replicas agree.
/// Law: applied to an empty table, [`GroupTable::live_records`] makes the same groups again (all
/// but `last_generation`, which no record of Kafka's carries; [`GroupTable::encode`] does).
/// Law: a group that no live record names is not here (the epoch 0 is that of no group).
#[derive(Clone, Debug, Default)]
pub struct GroupTable {
    groups: BTreeMap<String, GroupState>,
    /// Law: the sum of what each group's parts take (`size`).
    size_bytes: usize,
    passed_over: u64,
}

/// What holds of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The committed offsets.
    pub offsets: BTreeMap<TopicPartition, OffsetValue>,
    /// Which protocol it speaks, and its durable state.
    pub kind: GroupKind,
    /// The highest generation ever given out; at least that of the classic value, 0 = none.
    pub last_generation: i32,
}

/// Which protocol a group speaks, and its durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GroupKind {
    /// None: somebody commits offsets without members.
    #[default]
    Simple,
    /// The classic protocol.
    Classic(ClassicValue),
    /// The consumer protocol (KIP-848).
    Consumer(ConsumerState),
}

impl PartialEq for GroupTable {
    /// Same groups. What was passed over is a count of events, not state.
    fn eq(&self, other: &GroupTable) -> bool {
        self.groups == other.groups
    }
}

impl Eq for GroupTable {}

impl GroupTable {
    /// An empty table.
    pub fn new() -> GroupTable {
        GroupTable::default()
    }

    /// Applies a record's bytes (`value` `None`: a tombstone). Keys of kinds that this program does
    /// not keep are passed over and counted.
    ///
    /// # Errors
    ///
    /// [`RecordError`] for bytes that are no record; the table is as before.
    pub fn apply(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), RecordError> {
        match GroupRecord::decode(key, value)? {
            Some(record) => self.apply_record(&record),
            None => self.passed_over = self.passed_over.saturating_add(1),
        }
        Ok(())
    }

    /// Applies a record. What it makes is what its written form makes: an offset with an expiry of
    /// its own has no leader epoch.
    ///
    /// A value of one protocol ends the state of the other, and the tombstone of a consumer
    /// group's epoch (key 3) ends all of it.
    pub fn apply_record(&mut self, record: &GroupRecord) {
        let name = record.group();
        if !self.groups.contains_key(name) {
            if record.is_tombstone() {
                return;
            }
            self.groups.insert(name.to_owned(), GroupState::default());
            self.size_bytes += size::empty_group_bytes(name);
        }
        let Some(state) = self.groups.get_mut(name) else {
            return;
        };
        let (freed_bytes, taken_bytes) = state.apply(record);
        self.size_bytes = (self.size_bytes + taken_bytes).saturating_sub(freed_bytes);
        if state.is_nothing() {
            self.groups.remove(name);
            self.size_bytes = self
                .size_bytes
                .saturating_sub(size::empty_group_bytes(name));
        }
    }

    /// Remembers a generation that none of the group's records says any more, as a snapshot carries
    /// it; nothing where the group is not here.
    fn note_generation(&mut self, group: &str, generation: i32) {
        if let Some(state) = self.groups.get_mut(group) {
            state.last_generation = state.last_generation.max(generation);
        }
    }

    /// A group.
    pub fn get(&self, group: &str) -> Option<&GroupState> {
        self.groups.get(group)
    }

    /// All groups, by name.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&str, &GroupState)> {
        self.groups
            .iter()
            .map(|(name, state)| (name.as_str(), state))
    }

    /// How many groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// An estimate of the memory that the groups take, in bytes; kept, not counted.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// How many records of unknown kinds were passed over since this table was made.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Every live key with its value, group by group: what to append again before a purge.
    pub fn live_records(&self) -> impl Iterator<Item = GroupRecord> {
        self.live_records_after(None)
    }
}

impl GroupState {
    /// Whether it has members, by either protocol.
    pub fn has_members(&self) -> bool {
        match &self.kind {
            GroupKind::Simple => false,
            GroupKind::Classic(value) => !value.members.is_empty(),
            GroupKind::Consumer(state) => !state.members().is_empty(),
        }
    }

    /// Whether it has members, by the classic protocol.
    pub fn has_classic_members(&self) -> bool {
        matches!(&self.kind, GroupKind::Classic(value) if !value.members.is_empty())
    }

    fn is_nothing(&self) -> bool {
        self.offsets.is_empty() && self.kind == GroupKind::Simple
    }

    /// Applies a record of this group; answers the bytes freed and taken.
    fn apply(&mut self, record: &GroupRecord) -> (usize, usize) {
        match record {
            GroupRecord::Offset {
                partition, value, ..
            } => self.apply_offset(partition, value.as_ref()),
            GroupRecord::Classic { value, .. } => self.apply_classic(value.as_ref()),
            _ => self.apply_consumer(record),
        }
    }

    fn apply_offset(
        &mut self,
        partition: &TopicPartition,
        value: Option<&OffsetValue>,
    ) -> (usize, usize) {
        let cost = |value: &OffsetValue| size::offset_bytes(partition, value);
        match value {
            None => {
                let before = self.offsets.remove(partition);
                (before.as_ref().map_or(0, cost), 0)
            }
            Some(value) => {
                let value = value.clone().into_written();
                let taken_bytes = cost(&value);
                // Most commits overwrite: the key is not made again for them.
                let freed_bytes = if let Some(place) = self.offsets.get_mut(partition) {
                    cost(&std::mem::replace(place, value))
                } else {
                    self.offsets.insert(partition.clone(), value);
                    0
                };
                (freed_bytes, taken_bytes)
            }
        }
    }

    fn apply_classic(&mut self, value: Option<&ClassicValue>) -> (usize, usize) {
        let kind = match value {
            Some(value) => {
                self.last_generation = self.last_generation.max(value.generation);
                GroupKind::Classic(value.clone())
            }
            None if matches!(self.kind, GroupKind::Classic(_)) => GroupKind::Simple,
            None => return (0, 0),
        };
        let taken_bytes = size::kind_bytes(&kind);
        let before = std::mem::replace(&mut self.kind, kind);
        (size::kind_bytes(&before), taken_bytes)
    }

    fn apply_consumer(&mut self, record: &GroupRecord) -> (usize, usize) {
        let mut freed_bytes = 0;
        if !matches!(self.kind, GroupKind::Consumer(_)) {
            if record.is_tombstone() {
                return (0, 0);
            }
            freed_bytes += size::kind_bytes(&self.kind);
            self.kind = GroupKind::Consumer(ConsumerState::default());
        }
        if matches!(record, GroupRecord::Consumer { value: None, .. }) {
            let before = std::mem::take(&mut self.kind);
            return (freed_bytes + size::kind_bytes(&before), 0);
        }
        let GroupKind::Consumer(state) = &mut self.kind else {
            return (freed_bytes, 0);
        };
        // Only what the record touches is measured: a group of 1,000 members has 1,000 heartbeats.
        freed_bytes += size::touched_bytes(state, record);
        state.apply(record);
        let taken_bytes = size::touched_bytes(state, record);
        // Only tombstones came after the first record: no key is live any more.
        if *state == ConsumerState::default() {
            self.kind = GroupKind::Simple;
        }
        (freed_bytes, taken_bytes)
    }
}
