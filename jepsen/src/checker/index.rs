//! A history turned around: by value, by partition and offset.

use std::collections::{BTreeMap, HashMap};

use crate::coverage::FinalReads;
use crate::history::{
    Answer, Call, FinalSource, History, Key, Nanos, Operation, Outcome, PartitionRead, TxnId, Value,
};

use super::values::{KeyMap, ValueMap};

/// "No operation", "no write", "no place".
pub const NONE: u32 = u32::MAX;

/// A dense log may have this many empty slots for each seen value, and this many at all.
const DENSE_SPREAD: u64 = 4;
const DENSE_SLACK: u64 = 1 << 16;

/// What is known about a write, its transaction included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Acked,
    /// Certainly not in the log.
    Failed,
    /// Its transaction was aborted.
    Aborted,
    Unknown,
    /// Seen, but never sent.
    Stray,
}

/// One value's life.
pub struct Write {
    pub value: Value,
    pub fate: Fate,
    pub key: u32,
    /// The send, or [`NONE`] for a stray value.
    pub op: u32,
    pub acked_offset: Option<i64>,
    pub txn: Option<TxnId>,
    pub session: u64,
    /// Where it was read, in its own partition; `first_offset > last_offset` if nowhere.
    pub first_offset: i64,
    pub last_offset: i64,
    /// The first operation that read it.
    pub reader: u32,
    /// The earliest end of an operation that read it.
    pub read_at: Nanos,
    pub in_final: bool,
}

impl Write {
    pub fn is_read(&self) -> bool {
        self.first_offset <= self.last_offset
    }

    /// Where it lies, by readers or else by its acknowledgement.
    pub fn offset(&self) -> Option<i64> {
        match self.is_read() {
            true => Some(self.first_offset),
            false => self.acked_offset,
        }
    }
}

/// One offset of a log.
#[derive(Clone, Copy)]
pub struct Slot {
    /// [`NONE`]: nobody has seen anything here.
    pub write: u32,
    /// The first operation that read it; [`NONE`] if only an acknowledgement names it.
    pub reader: u32,
}

const EMPTY: Slot = Slot {
    write: NONE,
    reader: NONE,
};

/// A partition's log as clients saw it.
pub struct Log {
    /// Offset of the first slot.
    base: i64,
    slots: Vec<Slot>,
    /// Offsets of the slots, ascending, if they lie too far apart to be counted through.
    sparse: Option<Vec<i64>>,
    /// How many slots before each were read: the dense order of the seen values.
    rank: Vec<u32>,
    read_count: u32,
    /// Further values seen at an offset that already had one.
    pub conflicts: Vec<Conflict>,
}

/// Two values at one offset.
pub struct Conflict {
    pub offset: i64,
    pub first: Slot,
    pub second: Slot,
}

impl Log {
    fn position(&self, offset: i64) -> Option<usize> {
        match &self.sparse {
            Some(offsets) => offsets.binary_search(&offset).ok(),
            None => usize::try_from(offset.checked_sub(self.base)?)
                .ok()
                .filter(|&position| position < self.slots.len()),
        }
    }

    pub fn slot(&self, offset: i64) -> Slot {
        self.position(offset)
            .map_or(EMPTY, |position| self.slots[position])
    }

    /// How many read values lie before this offset; nothing for an offset that nobody read.
    pub fn rank(&self, offset: i64) -> Option<u32> {
        let position = self.position(offset)?;
        (self.slots[position].reader != NONE).then(|| self.rank[position])
    }

    /// How many read values lie below this offset, whether or not it was read itself.
    pub fn read_below(&self, offset: i64) -> u32 {
        let position = match &self.sparse {
            Some(offsets) => offsets.partition_point(|&slot| slot < offset),
            None => offset
                .saturating_sub(self.base)
                .clamp(0, self.slots.len() as i64) as usize,
        };
        match self.rank.get(position) {
            Some(&rank) => rank,
            None => self.read_count,
        }
    }

    /// The offset behind the last one that was read.
    pub fn read_end(&self) -> Option<i64> {
        let last = self.slots.iter().rposition(|slot| slot.reader != NONE)?;
        let offset = match &self.sparse {
            Some(offsets) => offsets[last],
            None => self.base + last as i64,
        };
        Some(offset.saturating_add(1))
    }
}

/// Everything that the checks look up.
pub struct Index<'h> {
    pub history: &'h History,
    pub keys: Vec<Key>,
    key_ids: KeyMap<u32>,
    pub writes: Vec<Write>,
    by_value: ValueMap<u32>,
    pub logs: Vec<Log>,
    /// By partition: the complete final read of a fresh client.
    pub client_finals: Vec<u32>,
    /// By partition and node: the complete final read of that node's replica.
    pub replica_finals: Vec<BTreeMap<u32, u32>>,
    /// By partition: whether a deletion of its topic was asked for.
    pub deleted: Vec<bool>,
    /// By partition: when a creation of this incarnation of its topic was first asked for.
    pub created: Vec<Option<Nanos>>,
    /// By partition: whether old records of its topic are removed while it is in use.
    pub trims: Vec<bool>,
    /// By partition: the highest log start that anybody was told.
    pub log_starts: Vec<i64>,
    /// Values read in a partition that they were not sent to.
    pub strangers: Vec<Stranger>,
}

/// A value in a partition that is not its own.
pub struct Stranger {
    pub op: u32,
    pub key: u32,
    pub offset: i64,
    pub write: u32,
}

impl<'h> Index<'h> {
    pub fn build(history: &'h History) -> Index<'h> {
        let mut index = Index {
            history,
            keys: Vec::new(),
            key_ids: KeyMap::default(),
            writes: Vec::new(),
            by_value: ValueMap::default(),
            logs: Vec::new(),
            client_finals: Vec::new(),
            replica_finals: Vec::new(),
            deleted: Vec::new(),
            created: Vec::new(),
            trims: Vec::new(),
            log_starts: Vec::new(),
            strangers: Vec::new(),
        };
        let sends = history.operations.iter();
        let sends = sends.filter(|op| matches!(op.call, Call::Send(_))).count();
        index.writes.reserve(sends);
        index.by_value.reserve(sends);
        let ends = index.register();
        index.settle_transactions(&ends);
        index.lay_out();
        index.fill_reads();
        index.fill_acks();
        for log in &mut index.logs {
            let mut seen = 0;
            log.rank = Vec::with_capacity(log.slots.len());
            for slot in &log.slots {
                log.rank.push(seen);
                seen += u32::from(slot.reader != NONE);
            }
            log.read_count = seen;
        }
        index
    }

    pub fn op(&self, position: u32) -> &'h Operation {
        &self.history.operations[position as usize]
    }

    pub fn key_id(&self, key: &Key) -> Option<u32> {
        self.key_ids.get(key).copied()
    }

    pub fn key(&self, id: u32) -> &Key {
        &self.keys[id as usize]
    }

    pub fn log(&self, id: u32) -> &Log {
        &self.logs[id as usize]
    }

    /// The reads of a partition's final read by a fresh client.
    pub fn client_final(&self, key: u32) -> Option<&'h PartitionRead> {
        match self.client_finals[key as usize] {
            NONE => None,
            op => self.op(op).reads().first(),
        }
    }

    /// Which partitions with acknowledged writes were read to their end, for the coverage.
    pub fn final_reads(&self) -> FinalReads {
        let mut written = vec![false; self.keys.len()];
        for write in &self.writes {
            written[write.key as usize] |= write.fate == Fate::Acked;
        }
        let mut finals = FinalReads::default();
        let in_the_end = self.history.replicas_in_the_end();
        for (key, _) in written.iter().enumerate().filter(|(_, written)| **written) {
            if self.deleted[key] {
                continue;
            }
            finals.partitions += 1;
            finals.by_client += u64::from(self.client_finals[key] != NONE);
            let read = &self.replica_finals[key];
            let Key {
                topic, partition, ..
            } = &self.keys[key];
            let is_compared = match in_the_end.get(&(&**topic, *partition)) {
                Some(nodes) => nodes.iter().all(|node| read.contains_key(node)),
                // As far as the history knows, members stay.
                None => {
                    let all = self.history.header.nodes.len();
                    let copies = self.history.header.settings.replication_factor as usize;
                    read.len() >= all.min(copies)
                }
            };
            finals.by_every_replica += u64::from(is_compared);
        }
        finals
    }

    /// The transaction that a value was sent in.
    pub fn txn_of(&self, value: Value) -> Option<TxnId> {
        let id = self.by_value.get(&value.0)?;
        self.writes[*id as usize].txn
    }

    fn intern(&mut self, key: &Key) -> u32 {
        if let Some(&id) = self.key_ids.get(key) {
            return id;
        }
        let id = self.keys.len() as u32;
        self.keys.push(key.clone());
        self.key_ids.insert(key.clone(), id);
        self.client_finals.push(NONE);
        self.replica_finals.push(BTreeMap::new());
        self.deleted.push(false);
        self.created.push(None);
        self.trims.push(false);
        self.log_starts.push(0);
        id
    }

    /// Every send, every partition; returns how each transaction ended.
    fn register(&mut self) -> HashMap<TxnId, Fate> {
        let mut ends = HashMap::new();
        let mut topics = Vec::new();
        for (position, op) in self.history.operations.iter().enumerate() {
            let position = position as u32;
            match &op.call {
                Call::Send(send) => {
                    let key = self.intern(&send.key);
                    let (fate, acked_offset) = match &op.outcome {
                        Outcome::Ok(Answer::Sent { offset }) => (Fate::Acked, *offset),
                        Outcome::Ok(_) => (Fate::Acked, None),
                        Outcome::Fail { .. } => (Fate::Failed, None),
                        Outcome::Unknown { .. } => (Fate::Unknown, None),
                    };
                    self.insert(Write {
                        value: send.value,
                        fate,
                        key,
                        op: position,
                        acked_offset,
                        txn: send.txn,
                        session: send.session,
                        first_offset: i64::MAX,
                        last_offset: i64::MIN,
                        reader: NONE,
                        read_at: Nanos(u64::MAX),
                        in_final: false,
                    });
                }
                Call::EndTxn { txn, commit } => {
                    let fate = match (&op.outcome, commit) {
                        (Outcome::Ok(_), true) => Fate::Acked,
                        (Outcome::Ok(_), false) => Fate::Aborted,
                        _ => Fate::Unknown,
                    };
                    ends.insert(*txn, fate);
                }
                Call::CreateTopic { key, trims, .. } => {
                    topics.push((key, Some((op.invoked, *trims))));
                }
                // One that has certainly not happened deletes nothing.
                Call::DeleteTopic { key } if !matches!(op.outcome, Outcome::Fail { .. }) => {
                    topics.push((key, None));
                }
                _ => {}
            }
            for read in op.reads() {
                let key = self.intern(&read.key);
                if let Some(start) = read.log_start {
                    let known = &mut self.log_starts[key as usize];
                    *known = start.max(*known);
                }
                if let Call::FinalRead { source, .. } = op.call
                    && read.high_watermark.is_none_or(|end| read.next >= end)
                {
                    match source {
                        FinalSource::Client => self.client_finals[key as usize] = position,
                        FinalSource::Replica(node) => {
                            self.replica_finals[key as usize].insert(node, position);
                        }
                    }
                }
            }
        }
        // Partitions are known by now; a topic's own operations name no partition.
        for (topic, created) in topics {
            for (id, key) in self.keys.iter().enumerate() {
                if key.topic != topic.topic || key.incarnation != topic.incarnation {
                    continue;
                }
                match created {
                    Some((at, trims)) => {
                        self.trims[id] |= trims;
                        let first = self.created[id].get_or_insert(at);
                        *first = at.min(*first);
                    }
                    None => self.deleted[id] = true,
                }
            }
        }
        ends
    }

    fn insert(&mut self, write: Write) -> u32 {
        let id = self.writes.len() as u32;
        self.by_value.insert(write.value.0, id);
        self.writes.push(write);
        id
    }

    /// A write of a transaction is what its transaction is.
    fn settle_transactions(&mut self, ends: &HashMap<TxnId, Fate>) {
        for write in &mut self.writes {
            let Some(txn) = write.txn else { continue };
            let end = ends.get(&txn).copied().unwrap_or(Fate::Unknown);
            write.fate = match (write.fate, end) {
                (Fate::Failed, _) => Fate::Failed,
                (_, Fate::Aborted) => Fate::Aborted,
                (Fate::Acked, Fate::Acked) => Fate::Acked,
                _ => Fate::Unknown,
            };
        }
    }

    /// Makes room for every offset that was seen.
    fn lay_out(&mut self) {
        struct Span {
            first: i64,
            last: i64,
            seen: u64,
        }
        let mut spans: Vec<Span> = (0..self.keys.len())
            .map(|_| Span {
                first: i64::MAX,
                last: i64::MIN,
                seen: 0,
            })
            .collect();
        self.each_offset(&mut |key, offset| {
            let span = &mut spans[key as usize];
            span.first = span.first.min(offset);
            span.last = span.last.max(offset);
            span.seen += 1;
        });
        let dense = |span: &Span| {
            let width = span.last.checked_sub(span.first).map(i64::unsigned_abs);
            width.is_some_and(|width| width <= span.seen * DENSE_SPREAD + DENSE_SLACK)
        };
        let mut sparse: Vec<Option<Vec<i64>>> = spans
            .iter()
            .map(|span| (span.seen > 0 && !dense(span)).then(Vec::new))
            .collect();
        if sparse.iter().any(Option::is_some) {
            self.each_offset(&mut |key, offset| {
                if let Some(offsets) = &mut sparse[key as usize] {
                    offsets.push(offset);
                }
            });
        }
        for (span, mut sparse) in spans.into_iter().zip(sparse) {
            let slots = match &mut sparse {
                _ if span.seen == 0 => 0,
                None => (span.last - span.first) as usize + 1,
                Some(offsets) => {
                    offsets.sort_unstable();
                    offsets.dedup();
                    offsets.len()
                }
            };
            self.logs.push(Log {
                base: span.first,
                slots: vec![EMPTY; slots],
                sparse,
                rank: Vec::new(),
                read_count: 0,
                conflicts: Vec::new(),
            });
        }
    }

    fn each_offset(&self, visit: &mut impl FnMut(u32, i64)) {
        for op in &self.history.operations {
            if is_replica_read(op) {
                continue;
            }
            for read in op.reads() {
                let Some(key) = self.key_id(&read.key) else {
                    continue;
                };
                for (offset, _) in &read.values {
                    visit(key, *offset);
                }
            }
        }
        for write in &self.writes {
            if let Some(offset) = write.acked_offset {
                visit(write.key, offset);
            }
        }
    }

    fn fill_reads(&mut self) {
        let history = self.history;
        for (position, op) in history.operations.iter().enumerate() {
            if is_replica_read(op) {
                continue;
            }
            let position = position as u32;
            let end = op.end();
            for read in op.reads() {
                let Some(key) = self.key_id(&read.key) else {
                    continue;
                };
                let is_final = self.client_finals[key as usize] == position;
                for &(offset, value) in &read.values {
                    self.fill_read(position, end, key, offset, value, is_final);
                }
            }
        }
    }

    fn fill_read(
        &mut self,
        op: u32,
        end: Nanos,
        key: u32,
        offset: i64,
        value: Value,
        is_final: bool,
    ) {
        let log = &mut self.logs[key as usize];
        let Some(position) = log.position(offset) else {
            return;
        };
        let seen = log.slots[position];
        // Most values are read several times, at the same place.
        if seen.write != NONE && self.writes[seen.write as usize].value == value {
            let write = &mut self.writes[seen.write as usize];
            if end < write.read_at {
                write.read_at = end;
                write.reader = op;
            }
            write.in_final |= is_final && write.key == key;
            return;
        }
        let id = match self.by_value.get(&value.0) {
            Some(&id) => id,
            None => self.insert(Write {
                value,
                fate: Fate::Stray,
                key,
                op: NONE,
                acked_offset: None,
                txn: None,
                session: 0,
                first_offset: i64::MAX,
                last_offset: i64::MIN,
                reader: NONE,
                read_at: Nanos(u64::MAX),
                in_final: false,
            }),
        };
        let write = &mut self.writes[id as usize];
        if write.key == key {
            write.first_offset = write.first_offset.min(offset);
            write.last_offset = write.last_offset.max(offset);
            if end < write.read_at || write.reader == NONE {
                write.read_at = end;
                write.reader = op;
            }
            write.in_final |= is_final;
        } else {
            self.strangers.push(Stranger {
                op,
                key,
                offset,
                write: id,
            });
        }
        let log = &mut self.logs[key as usize];
        let slot = Slot {
            write: id,
            reader: op,
        };
        log.put(position, offset, slot);
    }

    /// Acknowledgements come after the reads, so that a slot that is read is never blamed on one
    /// that was only promised.
    fn fill_acks(&mut self) {
        for (id, write) in self.writes.iter().enumerate() {
            // Where a value was read elsewhere, its promise is a matter of that value alone.
            let Some(offset) = write.acked_offset.filter(|_| !write.is_read()) else {
                continue;
            };
            let log = &mut self.logs[write.key as usize];
            if let Some(position) = log.position(offset) {
                let slot = Slot {
                    write: id as u32,
                    reader: NONE,
                };
                log.put(position, offset, slot);
            }
        }
    }
}

impl Log {
    fn put(&mut self, position: usize, offset: i64, slot: Slot) {
        let seen = &mut self.slots[position];
        if seen.write == NONE {
            *seen = slot;
        } else if seen.write != slot.write {
            let known = self
                .conflicts
                .iter()
                .rev()
                .take(8)
                .any(|known| known.offset == offset && known.second.write == slot.write);
            if !known {
                self.conflicts.push(Conflict {
                    offset,
                    first: *seen,
                    second: slot,
                });
            }
        }
    }
}

/// Replicas are compared with each other; what they hold was not shown to any consumer.
pub fn is_replica_read(op: &Operation) -> bool {
    matches!(
        op.call,
        Call::FinalRead {
            source: FinalSource::Replica(_),
            ..
        }
    )
}
