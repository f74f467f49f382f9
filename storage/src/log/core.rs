//! What a shard knows of one log.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use corduroy_record::{GroupId, LogIndex, Offset, ReplicaId, Term};

use tokio::sync::Semaphore;

use super::undo::Undo;
use crate::cache::EntryCache;
use crate::config::LogConfig;
use crate::entry::{LogStart, LogState, Vote};
use crate::epochs::EpochTable;
use crate::index::{IndexRow, SparseIndex};
use crate::scan::Span;
use crate::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentFile};
use crate::state::{JournalPlace, SegmentImage, StateImage};
use crate::store::StoreInner;

/// Index rows of a segment that is still written stay in memory up to this many.
const OPEN_ROWS_MAX: usize = 512;

/// A log as all its handles share it.
pub(crate) struct LogShared {
    pub this: Weak<LogShared>,
    pub group: GroupId,
    pub replica: ReplicaId,
    pub incarnation: u64,
    pub dir: PathBuf,
    pub store: Weak<StoreInner>,
    pub core: RefCell<LogCore>,
    /// No operation is taken any more.
    pub removed: Cell<bool>,
    /// One permit: held while a snapshot is replaced.
    pub snapshot_turn: Semaphore,
    /// What all logs of the shard cache, in bytes.
    pub cache_used: Rc<Cell<usize>>,
}

/// A deleted log's entries count no more; else the shard's cache would shrink with each deletion.
impl Drop for LogShared {
    fn drop(&mut self) {
        let freed = self.core.get_mut().cache.truncate(LogIndex::new(0));
        let used = self.cache_used.get();
        self.cache_used.set(used.saturating_sub(freed));
    }
}

/// How far the log is durable: where a checkpoint may say that it ends.
#[derive(Clone, Debug)]
pub(crate) struct DurableView {
    pub last: Option<(Term, LogIndex)>,
    pub next_offset: Offset,
    /// The segment of the durable end, and that end.
    pub segment: Option<(u32, u32)>,
    pub vote: Option<Vote>,
    pub committed: Option<(Term, LogIndex)>,
}

/// Laws: indices are consecutive from `start.index` to `last`; offsets follow from them; terms
/// do not fall; `durable.last <= last`; segments ascend without a gap.
pub(crate) struct LogCore {
    pub config: LogConfig,
    pub start: LogStart,
    pub last: Option<(Term, LogIndex)>,
    pub next_offset: Offset,
    pub epochs: EpochTable,
    pub segments: VecDeque<Segment>,
    pub next_segment: u32,
    pub cache: EntryCache,
    pub vote: Option<Vote>,
    pub committed: Option<(Term, LogIndex)>,
    pub no_vote: bool,
    pub damaged: bool,
    pub damaged_from: Option<LogIndex>,
    pub durable: DurableView,
    /// The log before each operation under way that changes more than its end, oldest first. No
    /// checkpoint meanwhile.
    pub undos: VecDeque<Undo>,
    /// Counts truncations, so that a read that crossed one is repeated.
    pub generation: u64,
    /// Operations after a full disk belong to a new attempt.
    pub attempt: u32,
    /// The first turn whose records are in no state file.
    pub pin: Option<u64>,
    /// The turn of the checkpoint under way.
    pub checkpoint: Option<u64>,
    /// The first turn after that checkpoint with records of this log.
    pub pin_after: Option<u64>,
    /// Segments below this number are flushed and will not be written again.
    pub clean_segment: u32,
    /// Indices of saved tables, ascending.
    pub tables: Vec<LogIndex>,
    pub snapshot: Option<(Term, LogIndex)>,
}

impl LogCore {
    /// A log as its state file says it is. All of it is durable.
    pub(crate) fn from_image(
        image: StateImage,
        dir: &std::path::Path,
        config: LogConfig,
    ) -> LogCore {
        let group = image.group;
        let segments: VecDeque<Segment> = image
            .segments
            .into_iter()
            .map(|segment| Segment {
                file: Arc::new(SegmentFile::new(group, dir, segment.identity)),
                end: segment.end,
                max_timestamp: segment.max_timestamp,
                index: SparseIndex::stored(segment.index_rows, segment.index_last_position),
                sealed: segment.sealed,
            })
            .collect();
        let durable = DurableView {
            last: image.last,
            next_offset: image.next_offset,
            segment: segments.back().map(|segment| (segment.id(), segment.end)),
            vote: image.vote,
            committed: image.committed,
        };
        LogCore {
            config,
            start: image.start,
            last: image.last,
            next_offset: image.next_offset,
            epochs: image.epochs,
            clean_segment: segments.back().map_or(0, Segment::id),
            segments,
            next_segment: image.next_segment,
            cache: EntryCache::default(),
            vote: image.vote,
            committed: image.committed,
            no_vote: image.no_vote,
            damaged: image.damaged,
            damaged_from: image.damaged_from,
            durable,
            undos: VecDeque::new(),
            generation: 0,
            attempt: 1,
            pin: None,
            checkpoint: None,
            pin_after: None,
            tables: Vec::new(),
            snapshot: None,
        }
    }

    /// The index that the next entry takes.
    pub(crate) fn next_index(&self) -> LogIndex {
        self.last
            .map_or(self.start.index, |(_, index)| index.next())
    }

    /// The index after the last durable entry.
    pub(crate) fn durable_next(&self) -> LogIndex {
        self.durable
            .last
            .map_or(self.start.index, |(_, index)| index.next())
    }

    /// Whether the entry at `index` is on disk: the one that this log has there, and not one that a
    /// cut takes away which is not durable yet.
    pub(crate) fn is_durable(&self, index: LogIndex) -> bool {
        index < self.durable_next() && self.undos.is_empty()
    }

    pub(crate) fn state(&self) -> LogState {
        let size_bytes = self
            .segments
            .iter()
            .map(|segment| u64::from(segment.end - SEGMENT_HEADER_BYTES))
            .sum();
        LogState {
            log_start: self.start,
            last: self.last,
            next_offset: self.next_offset,
            durable_last: self.durable.last.map(|(_, index)| index),
            vote: self.vote,
            committed: self.committed,
            damaged: self.damaged,
            no_vote: self.no_vote,
            size_bytes,
        }
    }

    pub(crate) fn term_of(&self, index: LogIndex) -> Option<Term> {
        if let Some((term, prev)) = self.start.prev
            && prev == index
        {
            return Some(term);
        }
        if index < self.start.index || index >= self.next_index() {
            return None;
        }
        self.epochs.term_of(index)
    }

    /// The segment that holds `index`, by its place in the list.
    pub(crate) fn segment_of(&self, index: LogIndex) -> Option<usize> {
        self.segments
            .partition_point(|segment| segment.base_index() <= index)
            .checked_sub(1)
    }

    /// The segment that holds `offset`: the last that begins at or below it.
    pub(crate) fn segment_of_offset(&self, offset: Offset) -> Option<usize> {
        self.segments
            .partition_point(|segment| segment.base_offset() <= offset)
            .checked_sub(1)
    }

    /// The state file's contents as of the last durable turn, and what has to be flushed before
    /// it may be written: segments, and index rows with their segment.
    pub(crate) fn checkpoint(&self, shared: &LogShared, place: JournalPlace) -> Checkpoint {
        let mut segments = Vec::new();
        let mut flush = Vec::new();
        let mut rows = Vec::new();
        if let Some((durable_id, durable_end)) = self.durable.segment {
            for segment in self
                .segments
                .iter()
                .take_while(|segment| segment.id() <= durable_id)
            {
                let is_last = segment.id() == durable_id;
                let end = if is_last { durable_end } else { segment.end };
                let unstored = segment.index.unstored(end);
                let index_rows = segment.index.stored_count() + unstored.len() as u32;
                segments.push(SegmentImage {
                    identity: segment.file.identity,
                    end,
                    max_timestamp: segment.max_timestamp,
                    index_rows,
                    index_last_position: unstored
                        .last()
                        .map(|row| row.position)
                        .or(segment.index.stored_last_position()),
                    sealed: segment.sealed,
                });
                if segment.id() >= self.clean_segment {
                    flush.push(segment.file.clone());
                }
                if !unstored.is_empty() {
                    rows.push(UnstoredRows {
                        segment: segment.file.clone(),
                        first: segment.index.stored_count(),
                        rows: unstored,
                        stored_last_position: segment.index.stored_last_position(),
                        sealed: segment.sealed,
                    });
                }
            }
        }
        let mut epochs = self.epochs.clone();
        epochs.truncate(self.durable_next());
        let image = StateImage {
            group: shared.group,
            replica: shared.replica,
            incarnation: shared.incarnation,
            place,
            start: self.start,
            last: self.durable.last,
            next_offset: self.durable.next_offset,
            vote: self.durable.vote,
            committed: clamp(self.durable.committed, self.durable.last),
            no_vote: self.no_vote,
            damaged: self.damaged,
            damaged_from: self.damaged_from,
            next_segment: self.next_segment,
            epochs,
            segments,
        };
        Checkpoint { image, flush, rows }
    }

    /// A state file is durable: its index rows are stored, its sealed segments clean.
    pub(crate) fn checkpointed(&mut self, done: &CheckpointDone) {
        for (id, rows) in &done.index_rows {
            let Some(segment) = self.segments.iter_mut().find(|segment| segment.id() == *id) else {
                continue;
            };
            segment.index.set_stored(*rows);
            // Reads of what is still written are served by the cache: its rows may go as well.
            if segment.sealed || segment.index.loaded_count() > OPEN_ROWS_MAX {
                segment.index.unload();
            }
        }
        self.clean_segment = self.clean_segment.max(done.clean_segment);
    }

    /// Where reading from the disk has to stop in a segment: nothing behind the durable end is
    /// known to be written.
    fn end_on_disk(&self, segment: &Segment) -> u32 {
        match self.durable.segment {
            Some((id, _)) if segment.id() < id => segment.end,
            Some((id, end)) if segment.id() == id => segment.end.min(end),
            _ => SEGMENT_HEADER_BYTES,
        }
    }

    /// The part of a segment that begins at the last index row for which `before` holds.
    pub(crate) fn span(&self, at: usize, before: impl Fn(&IndexRow) -> bool) -> Option<Span> {
        let segment = self.segments.get(at)?;
        let end = self.end_on_disk(segment);
        let row = segment.index.floor(|row| before(row) && row.position < end);
        Some(Span {
            segment: segment.file.clone(),
            from: row.map_or(SEGMENT_HEADER_BYTES, |row| row.position),
            first: row.map_or(segment.base_index(), |row| row.index),
            end,
        })
    }

    /// That part, and whole segments after it as far as they hold entries below `to`.
    pub(crate) fn spans(
        &self,
        at: usize,
        before: impl Fn(&IndexRow) -> bool,
        to: LogIndex,
        spans_max: usize,
    ) -> Vec<Span> {
        let first = self.span(at, before);
        let rest = self
            .segments
            .iter()
            .skip(at + 1)
            .take_while(|segment| segment.base_index() < to)
            .map(|segment| Span {
                segment: segment.file.clone(),
                from: SEGMENT_HEADER_BYTES,
                first: segment.base_index(),
                end: self.end_on_disk(segment),
            });
        first
            .into_iter()
            .chain(rest)
            .filter(|span| span.from < span.end)
            .take(spans_max)
            .collect()
    }
}

/// Law 6: the applied checkpoint never exceeds what is durable here.
pub(crate) fn clamp(
    committed: Option<(Term, LogIndex)>,
    last: Option<(Term, LogIndex)>,
) -> Option<(Term, LogIndex)> {
    match (committed, last) {
        (Some(committed), Some(last)) if committed.1 > last.1 => Some(last),
        (Some(committed), Some(_)) => Some(committed),
        _ => None,
    }
}

pub(crate) struct UnstoredRows {
    pub segment: Arc<SegmentFile>,
    pub first: u32,
    pub rows: Vec<IndexRow>,
    /// Position of the last row before these.
    pub stored_last_position: Option<u32>,
    pub sealed: bool,
}

/// A checkpoint ready to be written by another thread.
pub(crate) struct Checkpoint {
    pub image: StateImage,
    pub flush: Vec<Arc<SegmentFile>>,
    pub rows: Vec<UnstoredRows>,
}

/// What a durable state file means for the log in memory.
pub(crate) struct CheckpointDone {
    /// Index rows in the file, by segment.
    pub index_rows: Vec<(u32, u32)>,
    pub clean_segment: u32,
}

impl Checkpoint {
    /// The state will not speak of these segments' new index rows.
    pub(crate) fn leave_out(&mut self, segments: &[u32]) {
        for rows in self
            .rows
            .extract_if(.., |rows| segments.contains(&rows.segment.identity.id))
        {
            let id = rows.segment.identity.id;
            let image = self
                .image
                .segments
                .iter_mut()
                .find(|image| image.identity.id == id);
            if let Some(image) = image {
                image.index_rows = rows.first;
                image.index_last_position = rows.stored_last_position;
            }
        }
    }

    pub(crate) fn done(&self) -> CheckpointDone {
        CheckpointDone {
            index_rows: self
                .rows
                .iter()
                .map(|rows| {
                    (
                        rows.segment.identity.id,
                        rows.first + rows.rows.len() as u32,
                    )
                })
                .collect(),
            clean_segment: self
                .image
                .segments
                .last()
                .map_or(0, |segment| segment.identity.id),
        }
    }
}
