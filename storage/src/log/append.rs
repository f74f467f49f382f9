//! Entries in: each gets its offset from the end of the one before it, and its place.

use std::sync::Arc;

use corduroy_env::planted::{self, Bug};
use corduroy_record::{GroupId, LeaderEpoch, LogIndex, Offset, Term};

use super::core::LogCore;
use super::{Log, LogShared};
use crate::cache::{Cached, detach};
use crate::config::LogConfig;
use crate::entry::{ENTRY_BYTES_MAX, Entry, EntryHead, EntryKind, NewEntry, Payload};
use crate::error::{AppendError, StorageError};
use crate::frame::frame_bytes;
use crate::index::{IndexRow, SparseIndex};
use crate::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentFile, SegmentIdentity};
use crate::store::{Effect, StoreInner};
use crate::turn::{Action, AppendOp, OP_ENTRIES_MAX};

/// Called once, on the shard, in log order.
pub type DoneCallback = Box<dyn FnOnce(Result<(), StorageError>)>;

/// What to call when appended entries have gone their way. Neither may block, and neither is
/// called from within `append`.
#[derive(Default)]
pub struct AppendDone {
    /// After write(2) has returned.
    pub written: Option<DoneCallback>,
    /// After the flush.
    pub durable: Option<DoneCallback>,
}

impl AppendDone {
    /// Calls `durable` alone.
    pub fn durable(callback: impl FnOnce(Result<(), StorageError>) + 'static) -> AppendDone {
        AppendDone {
            written: None,
            durable: Some(Box::new(callback)),
        }
    }
}

impl Log {
    /// Appends entries in log order. They are readable when this returns; `done` tells when
    /// they were written and when they were durable. All or nothing is taken.
    ///
    /// A batch's base offset and leader epoch are stamped here (DESIGN section 4), never
    /// earlier: a refused proposal burns no offset.
    ///
    /// # Errors
    /// Entries that do not follow the log, and a store that takes nothing.
    pub fn append(
        &self,
        entries: Vec<NewEntry>,
        done: AppendDone,
    ) -> Result<Vec<EntryHead>, AppendError> {
        let store = self.store()?;
        let mut core = self.shared.core.borrow_mut();
        let stamped = stamp(&core, entries)?;
        let heads = stamped.iter().map(|entry| entry.head).collect();
        tracing::trace!(target: "corduroy::walk", room = 7, group = %self.shared.group, replica = %self.shared.replica, entries = stamped.len(), offset = %core.next_offset, "entries are stamped");
        let mut placing = Placing {
            shared: &self.shared,
            store: &store,
            now_millis: store.env.unix_millis(),
            operations: Vec::new(),
        };
        for entry in stamped {
            placing.place(&mut core, entry);
        }
        let operations = placing.operations;
        drop(core);
        store.submit_appends(&self.shared, operations, done);
        Ok(heads)
    }
}

/// Gives each entry its offset, or verifies it. Changes nothing on refusal.
fn stamp(core: &LogCore, entries: Vec<NewEntry>) -> Result<Vec<Entry>, AppendError> {
    let mut next_index = core.next_index();
    let mut next_offset = core.next_offset;
    let mut last_term = core.last.map(|(term, _)| term);
    let mut stamped = Vec::with_capacity(entries.len());
    for NewEntry {
        term,
        index,
        base_offset,
        mut payload,
    } in entries
    {
        if index != next_index {
            return Err(AppendError::IndexGap {
                expected: next_index,
                found: index,
            });
        }
        if let Some(last) = last_term
            && term < last
        {
            return Err(AppendError::TermRegression {
                index,
                last,
                found: term,
            });
        }
        let bytes = payload.size_bytes();
        if bytes > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge {
                index,
                bytes,
                max: ENTRY_BYTES_MAX,
            });
        }
        if let Some(found) = base_offset
            && found != next_offset
            && !planted::is(Bug::TruncationKeepsOffset)
        {
            return Err(AppendError::OffsetMismatch {
                index,
                expected: next_offset,
                found,
            });
        }
        payload = detach(payload);
        if let Payload::Batch(batch) = &mut payload {
            let proposed = planted::is(Bug::OffsetAtPropose).then(|| batch.header().base_offset);
            batch.stamp(
                proposed.unwrap_or(next_offset),
                LeaderEpoch::from_term(term),
            );
        }
        let head = EntryHead {
            term,
            index,
            base_offset: next_offset,
            records: payload.records(),
            kind: payload.kind(),
        };
        next_offset = head.next_offset();
        next_index = index.next();
        last_term = Some(term);
        stamped.push(Entry { head, payload });
    }
    Ok(stamped)
}

/// One operation in the making, with what it means for the durable end.
struct Placing<'a> {
    shared: &'a LogShared,
    store: &'a StoreInner,
    now_millis: i64,
    operations: Vec<(Action, Effect)>,
}

impl Placing<'_> {
    fn place(&mut self, core: &mut LogCore, entry: Entry) {
        let bytes = frame_bytes(&entry.payload) as u32;
        if !has_room(core, self.shared.group, bytes, self.now_millis) {
            self.roll(core, &entry.head);
        }
        let interval = core.config.index_interval_bytes;
        let head = entry.head;
        // Law: has_room or roll left an open segment.
        let Some(segment) = core.segments.back_mut() else {
            return;
        };
        let position = segment.end;
        let row = IndexRow {
            index: head.index,
            offset: head.base_offset,
            max_timestamp_before: segment.max_timestamp,
            position,
        };
        segment.index.note(row, interval);
        segment.end += bytes;
        segment.max_timestamp = segment.max_timestamp.max(entry.payload.max_timestamp());
        let (id, end, file) = (segment.id(), segment.end, segment.file.clone());

        core.epochs.note(head.term, head.index, head.base_offset);
        core.last = Some((head.term, head.index));
        core.next_offset = head.next_offset();
        let cached = Cached {
            entry: entry.clone(),
            segment: id,
            position,
        };
        self.store.cache.borrow_mut().note(self.shared, &cached);
        core.cache.push(cached);

        let after = AppendEffect {
            last: (head.term, head.index),
            next_offset: core.next_offset,
            segment: (id, end),
        };
        match self.operations.last_mut() {
            Some((Action::Append(append), Effect::Append(effect)))
                if Arc::ptr_eq(&append.segment, &file) && append.entries.len() < OP_ENTRIES_MAX =>
            {
                append.frame_bytes += bytes as usize;
                append.entries.push(entry);
                *effect = after;
            }
            _ => {
                let append = AppendOp {
                    segment: file,
                    position,
                    frame_bytes: bytes as usize,
                    entries: vec![entry],
                };
                self.operations
                    .push((Action::Append(append), Effect::Append(after)));
            }
        }
    }

    /// Begins a segment at `head`. Its file is made by the flush thread.
    fn roll(&mut self, core: &mut LogCore, head: &EntryHead) {
        if let Some(segment) = core.segments.back_mut() {
            segment.sealed = true;
        }
        let identity = SegmentIdentity {
            id: core.next_segment,
            salt: self.store.env.random_u64(),
            base_index: head.index,
            base_offset: head.base_offset,
            created_millis: self.now_millis,
        };
        core.next_segment += 1;
        let file = Arc::new(SegmentFile::new(
            self.shared.group,
            &self.shared.dir,
            identity,
        ));
        core.segments.push_back(Segment {
            file: file.clone(),
            end: SEGMENT_HEADER_BYTES,
            max_timestamp: i64::MIN,
            index: SparseIndex::empty(),
            sealed: false,
        });
        let effect = Effect::Segment { id: identity.id };
        self.operations.push((Action::Segment(file), effect));
    }
}

/// What an append means for the durable end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendEffect {
    pub last: (Term, LogIndex),
    pub next_offset: Offset,
    pub segment: (u32, u32),
}

/// Whether the last segment takes a frame: open, neither full nor too old.
fn has_room(core: &LogCore, group: GroupId, bytes: u32, now_millis: i64) -> bool {
    let Some(segment) = core.segments.back() else {
        return false;
    };
    if segment.sealed {
        return false;
    }
    if segment.end == SEGMENT_HEADER_BYTES {
        return true;
    }
    let (bytes_max, age_max) = limits(&core.config, group);
    let fits = segment
        .end
        .checked_add(bytes)
        .is_some_and(|end| end <= bytes_max);
    let age = now_millis.saturating_sub(segment.file.identity.created_millis);
    fits && age <= age_max
}

/// A log's own limits: up to 5 % less than configured, so that partitions that began together
/// do not roll together. A function of the group, so that a restart changes nothing.
fn limits(config: &LogConfig, group: GroupId) -> (u32, i64) {
    let hash = crate::checksum::checksum(
        &[
            &group.topic.bytes()[..],
            &group.partition.get().to_le_bytes(),
        ]
        .concat(),
    );
    // Parts in 2^16: at most 5 %.
    let part = u64::from(hash & 0xffff) * 5 / 100;
    let bytes_less = (u64::from(config.segment_bytes) * part) >> 16;
    let millis_less = (i128::from(config.segment_ms) * i128::from(part)) >> 16;
    let bytes_max = config.segment_bytes - u32::try_from(bytes_less).unwrap_or(0);
    let millis_max = config.segment_ms - i64::try_from(millis_less).unwrap_or(0);
    (bytes_max, millis_max)
}

// Kinds without offsets take none: the frame's reader refuses others.
const _: () = assert!(EntryKind::Batch as u8 == 1);
