//! Entries out: from the cache without touching the disk, else from the segments on the read
//! pool. A read that crossed a truncation is repeated.

use corduroy_record::{Batch, LogIndex, Offset};

use super::Log;
use super::core::LogCore;
use crate::entry::{AppliedEntry, Entry, EntryHead, Payload};
use crate::error::StorageError;
use crate::index;
use crate::metrics::add;
use crate::paths;
use crate::scan::{self, ScanError, Span, Want};

/// Segments that one read looks into at first.
const SPANS_MAX: usize = 16;
/// Heads that one read returns at most.
const HEADS_MAX: usize = 4096;

impl Log {
    /// Reads entries `from..to` until their payloads reach `bytes_max`; at least one if the
    /// range holds any.
    ///
    /// # Errors
    /// A range outside of the log; damage (which also raises the no-vote flag); a closed store.
    pub async fn read(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, StorageError> {
        loop {
            if let Some(entries) = self.read_cached(from, to, bytes_max) {
                return Ok(entries);
            }
            self.check_range(from, to)?;
            let (spans, until, generation) = self.cold_spans(from, to).await?;
            let want = move |head: &EntryHead| want_range(head, from, until);
            let found = self
                .scan(spans, move |disk, spans| {
                    scan::read_entries(disk, spans, bytes_max, want)
                })
                .await;
            if self.shared.core.borrow().generation != generation {
                continue;
            }
            return self.not_empty(from, found.map_err(|error| self.scan_failed(error))?);
        }
    }

    /// Reads entries `from..to` if the cache holds them: no disk, no waiting. `None`: use
    /// [`Log::read`].
    pub fn read_cached(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Option<Vec<Entry>> {
        if from >= to {
            return Some(Vec::new());
        }
        let core = self.shared.core.borrow();
        if to > core.next_index() {
            return None;
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        for cached in core.cache.starting_at(from)? {
            if cached.entry.head.index >= to {
                break;
            }
            bytes += cached.entry.payload.size_bytes();
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(cached.entry.clone());
        }
        self.count_cached();
        Some(entries)
    }

    /// Reads what apply needs of entries `from..to`: of a batch the header alone. At most 4,096
    /// of them, and fewer where the cache begins; at least one if the range holds any.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn read_heads(
        &self,
        from: LogIndex,
        to: LogIndex,
    ) -> Result<Vec<AppliedEntry>, StorageError> {
        loop {
            if from >= to {
                return Ok(Vec::new());
            }
            self.check_range(from, to)?;
            {
                let core = self.shared.core.borrow();
                if let Some(cached) = core.cache.starting_at(from) {
                    return Ok(cached
                        .take_while(|cached| cached.entry.head.index < to)
                        .take(HEADS_MAX)
                        .map(|cached| AppliedEntry::of(&cached.entry))
                        .collect());
                }
            }
            let (spans, until, generation) = self.cold_spans(from, to).await?;
            let want = move |head: &EntryHead| want_range(head, from, until);
            let found = self
                .scan(spans, move |disk, spans| {
                    scan::read_applied(disk, spans, HEADS_MAX, want)
                })
                .await;
            if self.shared.core.borrow().generation != generation {
                continue;
            }
            return self.not_empty(from, found.map_err(|error| self.scan_failed(error))?);
        }
    }

    /// Reads whole batches for a consumer: from the one that holds `from` (which may begin
    /// before it) up to `upto`, which is a batch boundary, until they reach `bytes_max`; at
    /// least one if there is one.
    ///
    /// # Errors
    /// As [`Log::read`]. An offset below the log's start reads from the log's start.
    pub async fn read_offsets(
        &self,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Batch>, StorageError> {
        let from = from.max(self.shared.core.borrow().start.offset);
        let mut spans_max = SPANS_MAX;
        loop {
            if let Some(batches) = self.read_offsets_cached(from, upto, bytes_max) {
                return Ok(batches);
            }
            let from_index = self.load_index_for_offset(from).await?;
            let (spans, generation) = {
                let core = self.shared.core.borrow();
                let spans = spans_from_offset(&core, from, spans_max);
                (spans, core.generation)
            };
            let Some(spans) = spans else {
                return Ok(Vec::new());
            };
            let is_all = spans.len() < spans_max;
            if self.shared.core.borrow().segment_of_offset(from) != from_index {
                continue;
            }
            let want = move |head: &EntryHead| want_offsets(head, from, upto);
            let found = self
                .scan(spans, move |disk, spans| {
                    scan::read_entries(disk, spans, bytes_max, want)
                })
                .await;
            if self.shared.core.borrow().generation != generation {
                continue;
            }
            let found = found.map_err(|error| self.scan_failed(error))?;
            let batches: Vec<Batch> = found.into_iter().filter_map(batch_of).collect();
            if batches.is_empty() && !is_all {
                // Many segments without a single batch: look into all of them.
                spans_max = usize::MAX;
                continue;
            }
            return Ok(batches);
        }
    }

    /// [`Log::read_offsets`] if the cache holds the answer; `None`: use that.
    pub fn read_offsets_cached(
        &self,
        from: Offset,
        upto: Offset,
        bytes_max: usize,
    ) -> Option<Vec<Batch>> {
        let core = self.shared.core.borrow();
        if from >= upto || from >= core.next_offset {
            return Some(Vec::new());
        }
        let mut batches = Vec::new();
        let mut bytes = 0;
        for cached in core.cache.holding(from)? {
            match want_offsets(&cached.entry.head, from, upto) {
                Want::Stop => break,
                Want::Skip => continue,
                Want::Take => {}
            }
            let Payload::Batch(batch) = &cached.entry.payload else {
                continue;
            };
            bytes += batch.size_bytes();
            if !batches.is_empty() && bytes > bytes_max {
                break;
            }
            batches.push(batch.clone());
        }
        self.count_cached();
        Some(batches)
    }

    /// A range within the log holds entries, wherever they are.
    fn not_empty<T>(&self, from: LogIndex, found: Vec<T>) -> Result<Vec<T>, StorageError> {
        if found.is_empty() {
            let what = format!("entry {from} is nowhere");
            return Err(StorageError::damaged(self.shared.group, what));
        }
        Ok(found)
    }

    fn count_cached(&self) {
        if let Some(store) = self.shared.store.upgrade() {
            store.cached_reads.set(store.cached_reads.get() + 1);
        }
    }

    fn check_range(&self, from: LogIndex, to: LogIndex) -> Result<(), StorageError> {
        let core = self.shared.core.borrow();
        let (first, end) = (core.start.index, core.next_index());
        let asked = if from < first { from } else { to };
        if from < first || to > end {
            return Err(StorageError::OutOfRange { asked, first, end });
        }
        Ok(())
    }

    /// The parts of segments to read for `from..to`, as far as the cache does not have it.
    async fn cold_spans(
        &self,
        from: LogIndex,
        to: LogIndex,
    ) -> Result<(Vec<Span>, LogIndex, u64), StorageError> {
        self.load_index_for(from).await?;
        let core = self.shared.core.borrow();
        let until = core.cache.first_index().map_or(to, |first| first.min(to));
        let missing =
            || StorageError::damaged(self.shared.group, format!("no segment holds entry {from}"));
        let first = core.segment_of(from).ok_or_else(missing)?;
        let spans = core.spans(first, |row| row.index <= from, until, SPANS_MAX);
        Ok((spans, until, core.generation))
    }

    /// Runs a scan on the read pool. Its error is judged by [`Log::scan_failed`], and only if
    /// the log was not cut meanwhile: a cut takes files away.
    pub(super) async fn scan<T: Send + 'static>(
        &self,
        spans: Vec<Span>,
        run: impl FnOnce(&dyn crate::disk::Disk, &[Span]) -> Result<T, ScanError> + Send + 'static,
    ) -> Result<T, ScanError> {
        let store = self.store()?;
        add(&store.counters.cold_reads, 1);
        let disk = store.disk.clone();
        store.readers.call(move || run(&*disk, &spans)).await?
    }

    /// Takes note of damage that a reader met; gives the error to report.
    pub(super) fn scan_failed(
        &self,
        ScanError {
            error,
            damaged_from,
        }: ScanError,
    ) -> StorageError {
        let (first, end) = {
            let core = self.shared.core.borrow();
            (core.start.index, core.next_index())
        };
        match damaged_from {
            // The log's start has moved on, and the file is gone with the entries.
            Some(asked) if asked < first => StorageError::OutOfRange { asked, first, end },
            Some(from) => {
                self.note_damage(from, &error);
                error
            }
            None => error,
        }
    }

    /// Makes the index rows of the segment of `index` ready for a look-up.
    pub(super) async fn load_index_for(&self, index: LogIndex) -> Result<(), StorageError> {
        let at = self.shared.core.borrow().segment_of(index);
        match at {
            Some(at) => self.load_index(at).await,
            None => Ok(()),
        }
    }

    async fn load_index_for_offset(&self, from: Offset) -> Result<Option<usize>, StorageError> {
        let at = self.shared.core.borrow().segment_of_offset(from);
        if let Some(at) = at {
            self.load_index(at).await?;
        }
        Ok(at)
    }

    /// Loads the index rows of one segment; rebuilds them where their file is damaged.
    pub(super) async fn load_index(&self, at: usize) -> Result<(), StorageError> {
        let (span, stored, interval) = {
            let core = self.shared.core.borrow();
            let Some(segment) = core.segments.get(at) else {
                return Ok(());
            };
            if segment.index.is_loaded() {
                return Ok(());
            }
            let stored = segment.index.stored_count();
            let interval = core.config.index_interval_bytes;
            let Some(span) = core.span(at, |_| false) else {
                return Ok(());
            };
            (span, stored, interval)
        };
        let identity = span.segment.identity;
        let path = paths::index_file(&self.shared.dir, identity.base_offset.get(), identity.id);
        let store = self.store()?;
        let disk = store.disk.clone();
        let loaded = store.readers.call(move || {
            match index::load_rows(&*disk, &path, identity.salt, stored)? {
                Some(rows) => Ok(rows),
                None => {
                    tracing::warn!(index = %path.display(),
                        "an index is missing or damaged; it is rebuilt from its segment");
                    let rows = scan::rebuild_index(&*disk, &span, interval, stored as usize)?;
                    // What could not be stored again is rebuilt again next time.
                    index::store_rows(&*disk, &path, identity.salt, 0, &rows).ok();
                    Ok::<_, ScanError>(rows)
                }
            }
        });
        let rows = loaded.await?.map_err(|error| self.scan_failed(error))?;
        let loaded = rows.len();
        let mut core = self.shared.core.borrow_mut();
        if let Some(segment) = core
            .segments
            .iter_mut()
            .find(|segment| segment.id() == identity.id)
            && !segment.index.is_loaded()
        {
            segment.index.set_loaded(rows);
            drop(core);
            let budget_bytes = store.config.index_bytes;
            let mut indices = store.indices.borrow_mut();
            indices.note(&self.shared, identity.id, loaded, budget_bytes);
        }
        Ok(())
    }
}

fn want_range(head: &EntryHead, from: LogIndex, to: LogIndex) -> Want {
    if head.index < from {
        Want::Skip
    } else if head.index < to {
        Want::Take
    } else {
        Want::Stop
    }
}

/// A batch is never split: `upto` is the end of one.
fn want_offsets(head: &EntryHead, from: Offset, upto: Offset) -> Want {
    if head.base_offset >= upto || head.next_offset() > upto {
        Want::Stop
    } else if head.records == 0 || head.next_offset() <= from {
        Want::Skip
    } else {
        Want::Take
    }
}

fn batch_of(entry: Entry) -> Option<Batch> {
    match entry.payload {
        Payload::Batch(batch) => Some(batch),
        _ => None,
    }
}

fn spans_from_offset(core: &LogCore, from: Offset, spans_max: usize) -> Option<Vec<Span>> {
    let first = core.segment_of_offset(from)?;
    Some(core.spans(
        first,
        |row| row.offset <= from,
        core.next_index(),
        spans_max,
    ))
}
