//! A cut that a full disk refused is taken back.
//!
//! A log is cut in memory at once, and on the disk in its turn. If entries that were appended
//! before or after it in the same turn find no room, the cut is refused with them, and the log has
//! to be again what the disk has. What a cut drops is therefore kept until it is durable.

use std::sync::Arc;

use corduroy_record::{LogIndex, Offset, Term};

use super::LogCore;
use crate::entry::LogStart;
use crate::epochs::EpochTable;
use crate::index::SparseIndex;
use crate::segment::{Segment, SegmentFile};

/// A log as it was before one cut (or change of flags).
pub(crate) struct Undo {
    start: LogStart,
    last: Option<(Term, LogIndex)>,
    next_offset: Offset,
    epochs: EpochTable,
    segments: Vec<SegmentBefore>,
    flags: Flags,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Flags {
    no_vote: bool,
    damaged: bool,
    damaged_from: Option<LogIndex>,
}

/// Without index rows that were not stored: a look-up begins at an earlier row instead.
struct SegmentBefore {
    file: Arc<SegmentFile>,
    end: u32,
    max_timestamp: i64,
    rows_stored: u32,
    last_row_stored: Option<u32>,
    sealed: bool,
}

/// What [`LogCore::undo_cuts`] did.
#[derive(Default)]
pub(crate) struct Undone {
    /// Bytes that the cache gave up.
    pub freed_bytes: usize,
    /// Flags were raised, and the record that says so was refused with the rest: it has to be
    /// written again.
    pub raises_flags: bool,
}

impl LogCore {
    /// Before a change of anything but the log's end: keeps what is needed to take it back.
    pub(crate) fn begin_cut(&mut self) {
        let segments = self.segments.iter().map(|segment| SegmentBefore {
            file: segment.file.clone(),
            end: segment.end,
            max_timestamp: segment.max_timestamp,
            rows_stored: segment.index.stored_count(),
            last_row_stored: segment.index.stored_last_position(),
            sealed: segment.sealed,
        });
        let undo = Undo {
            start: self.start,
            last: self.last,
            next_offset: self.next_offset,
            epochs: self.epochs.clone(),
            segments: segments.collect(),
            flags: self.flags(),
        };
        self.undos.push_back(undo);
    }

    fn flags(&self) -> Flags {
        Flags {
            no_vote: self.no_vote,
            damaged: self.damaged,
            damaged_from: self.damaged_from,
        }
    }

    /// Takes all cuts back that are not durable; the log is as it was before the first of them.
    /// Flags that were raised meanwhile stay (law 8).
    pub(crate) fn undo_cuts(&mut self) -> Undone {
        let Some(undo) = self.undos.pop_front() else {
            return Undone::default();
        };
        self.undos.clear();
        let raised = self.flags();
        self.start = undo.start;
        self.last = undo.last;
        self.next_offset = undo.next_offset;
        self.epochs = undo.epochs;
        self.segments = (undo.segments.into_iter())
            .map(|before| Segment {
                file: before.file,
                end: before.end,
                max_timestamp: before.max_timestamp,
                index: SparseIndex::stored(before.rows_stored, before.last_row_stored),
                sealed: before.sealed,
            })
            .collect();
        self.no_vote = undo.flags.no_vote || raised.no_vote;
        self.damaged = undo.flags.damaged || raised.damaged;
        self.damaged_from = match (undo.flags.damaged_from, raised.damaged_from) {
            (Some(before), Some(after)) => Some(before.min(after)),
            (before, after) => before.or(after),
        };
        Undone {
            // What was cut out of the cache is on the disk, and the rest would not follow it.
            freed_bytes: self.cache.truncate(LogIndex::new(0)),
            raises_flags: self.flags() != undo.flags,
        }
    }
}
