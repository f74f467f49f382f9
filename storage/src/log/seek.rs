//! Entries found by timestamp, for ListOffsets.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use corduroy_record::{Batch, LogIndex, Offset};

use super::{Log, LogCore};
use crate::entry::{EntryKind, Payload};
use crate::error::StorageError;
use crate::scan::{self, Span};

/// A batch that a search has found.
#[derive(Clone, Copy, Debug)]
struct Found {
    index: LogIndex,
    max_timestamp: i64,
}

impl Found {
    /// The later timestamp wins, of equal ones the earlier entry.
    fn order(&self) -> (i64, Reverse<LogIndex>) {
        (self.max_timestamp, Reverse(self.index))
    }
}

impl Log {
    /// The first batch at or above the log's start, below `upto`, whose largest timestamp is
    /// at least `target_millis`. The caller looks for the record inside.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn find_timestamp(
        &self,
        target_millis: i64,
        upto: Offset,
    ) -> Result<Option<Batch>, StorageError> {
        let from = LogIndex::new(0);
        let found = self.find_timestamp_from(from, target_millis, upto).await?;
        Ok(found.map(|(_, batch)| batch))
    }

    /// [`Log::find_timestamp`] among the entries from `from` on; with the batch's index, behind
    /// which the caller may look on when no record inside keeps what the header promises.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn find_timestamp_from(
        &self,
        from: LogIndex,
        target_millis: i64,
        upto: Offset,
    ) -> Result<Option<(LogIndex, Batch)>, StorageError> {
        'again: loop {
            self.flush_written().await?;
            let generation = self.shared.core.borrow().generation;
            let mut at = 0;
            while let Some((id, base, highest)) = self.segment_brief(at) {
                if base >= upto && at > 0 {
                    break;
                }
                if highest >= target_millis {
                    self.load_index(at).await?;
                    if self.shared.core.borrow().generation != generation
                        || self.segment_brief(at).is_none_or(|(now, ..)| now != id)
                    {
                        continue 'again;
                    }
                    let Some(span) = self.span_before_timestamp(at, target_millis) else {
                        break;
                    };
                    let start = self.shared.core.borrow().start.index.max(from);
                    let found = self
                        .scan(vec![span], move |disk, spans| {
                            first_reaching(disk, spans, start, target_millis, upto)
                        })
                        .await;
                    if self.shared.core.borrow().generation != generation {
                        continue 'again;
                    }
                    let found = found.map_err(|error| self.scan_failed(error))?;
                    if let Some(found) = found {
                        let batch = self.batch_at(found.index).await?;
                        return Ok(batch.map(|batch| (found.index, batch)));
                    }
                }
                at += 1;
            }
            return Ok(None);
        }
    }

    /// The batch with the largest timestamp at or above the log's start and below `upto`; the
    /// first one of several.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn find_max_timestamp(&self, upto: Offset) -> Result<Option<Batch>, StorageError> {
        'again: loop {
            self.flush_written().await?;
            let (segments, start, generation) = {
                let core = self.shared.core.borrow();
                (spans_by_timestamp(&core), core.start, core.generation)
            };
            let mut best: Option<Found> = None;
            for (bound, span) in segments {
                if best.is_some_and(|best| best.max_timestamp >= bound) {
                    break;
                }
                let found = self
                    .scan(vec![span], move |disk, spans| {
                        highest(disk, spans, start.index, upto)
                    })
                    .await;
                if self.shared.core.borrow().generation != generation {
                    continue 'again;
                }
                if let Some(found) = found.map_err(|error| self.scan_failed(error))?
                    && best.is_none_or(|best| best.order() < found.order())
                {
                    best = Some(found);
                }
            }
            return match best {
                Some(best) => self.batch_at(best.index).await,
                None => Ok(None),
            };
        }
    }

    /// Entries that are only in the cache cannot be scanned on disk: waits for the turn that
    /// writes them.
    async fn flush_written(&self) -> Result<(), StorageError> {
        let unwritten = {
            let core = self.shared.core.borrow();
            core.durable_next() < core.next_index()
        };
        if unwritten {
            self.flush().await
        } else {
            Ok(())
        }
    }

    fn segment_brief(&self, at: usize) -> Option<(u32, Offset, i64)> {
        let core = self.shared.core.borrow();
        let segment = core.segments.get(at)?;
        Some((segment.id(), segment.base_offset(), segment.max_timestamp))
    }

    /// The part of a segment before which no batch reaches the timestamp, as far as it is
    /// durable.
    fn span_before_timestamp(&self, at: usize, target_millis: i64) -> Option<Span> {
        let core = self.shared.core.borrow();
        core.span(at, |row| row.max_timestamp_before < target_millis)
    }

    async fn batch_at(&self, index: LogIndex) -> Result<Option<Batch>, StorageError> {
        let entries = self.read(index, index.next(), 0).await?;
        Ok(entries.into_iter().find_map(|entry| match entry.payload {
            Payload::Batch(batch) => Some(batch),
            _ => None,
        }))
    }
}

/// Whole segments with a bound of their timestamps, the highest bound first; among equals the
/// older segment.
fn spans_by_timestamp(core: &LogCore) -> Vec<(i64, Span)> {
    let mut spans: Vec<(i64, Span)> = (0..core.segments.len())
        .filter_map(|at| Some((core.segments[at].max_timestamp, core.span(at, |_| false)?)))
        .filter(|(_, span)| span.from < span.end)
        .collect();
    spans.sort_by_key(|(bound, _)| Reverse(*bound));
    spans
}

fn first_reaching(
    disk: &dyn crate::disk::Disk,
    spans: &[Span],
    start: LogIndex,
    target_millis: i64,
    upto: Offset,
) -> Result<Option<Found>, scan::ScanError> {
    let mut found = None;
    for span in spans {
        let walked = scan::visit_heads(disk, span, |_, head, max_timestamp| {
            if head.base_offset >= upto {
                return ControlFlow::Break(());
            }
            if head.kind == EntryKind::Batch
                && head.index >= start
                && max_timestamp >= target_millis
            {
                found = Some(Found {
                    index: head.index,
                    max_timestamp,
                });
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if walked.is_break() {
            break;
        }
    }
    Ok(found)
}

fn highest(
    disk: &dyn crate::disk::Disk,
    spans: &[Span],
    start: LogIndex,
    upto: Offset,
) -> Result<Option<Found>, scan::ScanError> {
    let mut best: Option<Found> = None;
    for span in spans {
        let _end = scan::visit_heads(disk, span, |_, head, max_timestamp| {
            if head.base_offset >= upto {
                return ControlFlow::Break(());
            }
            let is_higher = best.is_none_or(|best| max_timestamp > best.max_timestamp);
            if head.kind == EntryKind::Batch && head.index >= start && is_higher {
                best = Some(Found {
                    index: head.index,
                    max_timestamp,
                });
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(best)
}
