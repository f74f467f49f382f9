//! The log made shorter: at its end (truncation, damage), at its start (retention), or both
//! (a snapshot was installed). Files that fall away are removed after the cut is durable.

use std::ops::ControlFlow;

use corduroy_env::planted::{self, Bug};
use corduroy_record::{LogIndex, Offset, Term};
use tokio::sync::oneshot;

use super::core::{LogCore, clamp};
use super::{AppendDone, Log};
use crate::entry::LogStart;
use crate::error::StorageError;
use crate::journal::RecordBody;
use crate::scan::{self, ScanError, Span};
use crate::segment::{SEGMENT_HEADER_BYTES, Segment};
use crate::store::Effect;
use crate::turn::Action;

/// Where the log is cut: the frame of the first entry that goes.
#[derive(Clone, Copy, Debug)]
struct CutPoint {
    segment: u32,
    position: u32,
    offset: Offset,
}

impl Log {
    /// Cuts everything after `last` (`None`: everything), durably, before anything is written
    /// in its place (law 1: and after everything appended before is durable).
    ///
    /// # Errors
    /// An entry before the log's start, a failed store, damage at the place of the cut.
    pub async fn truncate_after(&self, last: Option<LogIndex>) -> Result<(), StorageError> {
        loop {
            let (end, generation) = {
                let core = self.shared.core.borrow();
                let end = last.map_or(core.start.index, LogIndex::next);
                if end < core.start.index {
                    return Err(StorageError::OutOfRange {
                        asked: end,
                        first: core.start.index,
                        end: core.next_index(),
                    });
                }
                (end, core.generation)
            };
            if end >= self.shared.core.borrow().next_index() {
                return self.flush().await;
            }
            let point = self.cut_point(end).await?;
            // Reading the place may have taken time.
            if self.shared.core.borrow().generation != generation {
                continue;
            }
            let durable = self.cut_at(end, point)?;
            return durable.await.map_err(|_| StorageError::Closed)?;
        }
    }

    async fn cut_point(&self, end: LogIndex) -> Result<CutPoint, StorageError> {
        let store = self.store()?;
        if let Some(cached) = self.shared.core.borrow().cache.get(end) {
            return Ok(CutPoint {
                segment: cached.segment,
                position: cached.position,
                offset: cached.entry.head.base_offset,
            });
        }
        self.load_index_for(end).await?;
        let span = self.span_from(end).ok_or_else(|| self.no_segment(end))?;
        let disk = store.disk.clone();
        let found = store
            .readers
            .call(move || find_entry(&*disk, &span, end))
            .await?;
        found.map_err(|error| self.scan_failed(error))
    }

    fn no_segment(&self, index: LogIndex) -> StorageError {
        StorageError::damaged(self.shared.group, format!("no segment holds entry {index}"))
    }

    /// The part of the segment of `index` that begins at or before it.
    fn span_from(&self, index: LogIndex) -> Option<Span> {
        let core = self.shared.core.borrow();
        core.span(core.segment_of(index)?, |row| row.index <= index)
    }

    fn cut_at(
        &self,
        end: LogIndex,
        point: CutPoint,
    ) -> Result<oneshot::Receiver<Result<(), StorageError>>, StorageError> {
        let store = self.store()?;
        let mut core = self.shared.core.borrow_mut();
        let (freed, body, effect, dropped) = truncate_core(&mut core, end, point);
        drop(core);
        store.cache.borrow_mut().free(freed);
        let (sender, receiver) = oneshot::channel();
        let shared = self.shared.clone();
        let weak = self.shared.store.clone();
        let done = AppendDone::durable(move |result: Result<(), StorageError>| {
            if result.is_ok()
                && let Some(store) = weak.upgrade()
            {
                store.remove_segments(&shared, dropped);
            }
            sender.send(result).ok();
        });
        store.submit(&self.shared, Action::Record(body), effect, done);
        Ok(receiver)
    }

    /// Moves the log's start: entries before `start.index` go, with whole segments. Beyond the
    /// end, the log becomes empty there.
    ///
    /// # Errors
    /// [`StorageError::NotCovered`] unless a saved snapshot reaches the entry before (laws 6
    /// and 9); a start before the present one; a failed store.
    pub async fn set_log_start(&self, start: LogStart) -> Result<(), StorageError> {
        self.check_covered(&start)?;
        let store = self.store()?;
        let (first, end) = {
            let core = self.shared.core.borrow();
            (core.start.index, core.next_index())
        };
        if start.index < first {
            return Err(StorageError::OutOfRange {
                asked: start.index,
                first,
                end,
            });
        }
        if start.index > end {
            return self.reset(start).await;
        }
        let dropped = {
            let mut core = self.shared.core.borrow_mut();
            core.begin_cut();
            let dropped = move_start(&mut core, start);
            let freed = core.cache.cut_before(start.index);
            store.cache.borrow_mut().free(freed);
            dropped
        };
        let (action, effect) = (Action::Record(RecordBody::Start(start)), Effect::Start);
        self.submit_cut(action, effect, dropped).await
    }

    /// Empties the log, which then begins at `start`: a snapshot was installed, or a damaged
    /// replica begins anew ([`LogStart::ZERO`]).
    ///
    /// # Errors
    /// [`StorageError::NotCovered`] as for [`Log::set_log_start`]; a failed store.
    pub async fn reset(&self, start: LogStart) -> Result<(), StorageError> {
        self.check_covered(&start)?;
        let store = self.store()?;
        let dropped = {
            let mut core = self.shared.core.borrow_mut();
            core.begin_cut();
            let dropped: Vec<Segment> = core.segments.drain(..).collect();
            let next_index = core.next_index();
            let freed = core.cache.truncate(LogIndex::new(0));
            debug_assert!(core.cache.first_index().is_none(), "{next_index}");
            store.cache.borrow_mut().free(freed);
            reset_core(&mut core, start);
            core.generation += 1;
            dropped
        };
        let action = Action::Record(RecordBody::Reset(start));
        self.submit_cut(action, Effect::Reset(start), dropped).await
    }

    fn check_covered(&self, start: &LogStart) -> Result<(), StorageError> {
        let core = self.shared.core.borrow();
        let covered = core.snapshot.map(|(_, index)| index);
        match start.prev {
            None if start.index == LogIndex::new(0) => Ok(()),
            _ if covered.is_some_and(|covered| covered.next() >= start.index) => Ok(()),
            _ => Err(StorageError::NotCovered {
                asked: start.index,
                covered,
            }),
        }
    }

    async fn submit_cut(
        &self,
        action: Action,
        effect: Effect,
        dropped: Vec<Segment>,
    ) -> Result<(), StorageError> {
        let store = self.store()?;
        let (sender, receiver) = oneshot::channel();
        let done = AppendDone::durable(move |result| drop(sender.send(result)));
        store.submit(&self.shared, action, effect, done);
        receiver.await.map_err(|_| StorageError::Closed)??;
        store.remove_segments(&self.shared, dropped);
        Ok(())
    }

    /// Cuts what was found damaged, so that the log can be used again up to there. The flags
    /// stay. Blocks on the disk; damage is rare.
    pub(crate) fn discard_damaged(&self) -> Result<(), StorageError> {
        let store = self.store()?;
        let Some(from) = self.shared.core.borrow().damaged_from else {
            return Ok(());
        };
        let end = from.max(self.shared.core.borrow().start.index);
        if end < self.shared.core.borrow().next_index() {
            let (end, point) = self.last_good_before(&*store.disk, end)?;
            drop(self.cut_at(end, point)?);
        }
        self.shared.core.borrow_mut().damaged_from = None;
        Ok(())
    }

    /// What opening this log would throw away, if anything: the file, the place in it, the entry.
    /// Blocks on the disk; damage is rare.
    pub(crate) fn describe_loss(&self) -> Result<Option<String>, StorageError> {
        let store = self.store()?;
        let core = self.shared.core.borrow();
        let is_emptied = core.damaged && core.segments.is_empty() && core.next_segment > 0;
        if is_emptied {
            let dir = self.shared.dir.display();
            let what = "the state file or the snapshot is damaged or gone, so that nothing says \
                        what its segments hold";
            return Ok(Some(format!("{dir}: {what}")));
        }
        let from = core.damaged_from.map(|from| from.max(core.start.index));
        let Some(from) = from.filter(|from| *from < core.next_index()) else {
            return Ok(None);
        };
        let at = core.segment_of(from).ok_or_else(|| self.no_segment(from))?;
        let segment = &core.segments[at];
        let span = Span {
            segment: segment.file.clone(),
            from: SEGMENT_HEADER_BYTES,
            first: segment.base_index(),
            end: segment.end,
        };
        let mut offset = segment.base_offset();
        let walked = scan::verify(&*store.disk, &span, |_, entry| {
            offset = entry.head.next_offset();
        });
        match walked {
            Ok(_) => Ok(Some(format!(
                "{}: entry {from} was not what was written when it was last read",
                segment.file.path.display()
            ))),
            Err(ScanError {
                error: StorageError::Damaged { what, .. },
                ..
            }) => Ok(Some(format!("{what} (entry {from}, offset {offset})"))),
            Err(error) => Err(error.error),
        }
    }

    /// The place of `end`, or of an earlier entry if the way there is damaged too.
    fn last_good_before(
        &self,
        disk: &dyn crate::disk::Disk,
        end: LogIndex,
    ) -> Result<(LogIndex, CutPoint), StorageError> {
        let core = self.shared.core.borrow();
        let Some(at) = core.segment_of(end) else {
            return Err(self.no_segment(end));
        };
        let segment = &core.segments[at];
        let mut next = (
            segment.base_index(),
            SEGMENT_HEADER_BYTES,
            segment.base_offset(),
        );
        let span = Span {
            segment: segment.file.clone(),
            from: SEGMENT_HEADER_BYTES,
            first: segment.base_index(),
            end: segment.end,
        };
        // The whole way from the segment's start, in full: an index row could be wrong as well.
        let mut last = next;
        let walked = scan::verify(disk, &span, |position, entry| {
            if entry.head.index < end {
                let after = position + crate::frame::frame_bytes(&entry.payload) as u32;
                last = (entry.head.index.next(), after, entry.head.next_offset());
            }
        });
        match walked {
            Ok(_)
            | Err(ScanError {
                error: StorageError::Damaged { .. },
                ..
            }) => next = last,
            Err(error) => return Err(error.error),
        }
        let (index, position, offset) = next;
        // The log may begin in the middle of this segment.
        let (index, offset) = if index < core.start.index {
            (core.start.index, core.start.offset)
        } else {
            (index, offset)
        };
        Ok((
            index,
            CutPoint {
                segment: segment.id(),
                position,
                offset,
            },
        ))
    }
}

fn find_entry(
    disk: &dyn crate::disk::Disk,
    span: &Span,
    index: LogIndex,
) -> Result<CutPoint, ScanError> {
    let mut found = None;
    let _reached = scan::visit_heads(disk, span, |position, head, _| {
        if head.index == index {
            let segment = span.segment.identity.id;
            found = Some(CutPoint {
                segment,
                position,
                offset: head.base_offset,
            });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    found.ok_or_else(|| ScanError {
        error: span.segment.damage(&format!("entry {index} is not in it")),
        damaged_from: None,
    })
}

/// Cuts the in-memory log; the record and the effect make it durable.
fn truncate_core(
    core: &mut LogCore,
    end: LogIndex,
    point: CutPoint,
) -> (usize, RecordBody, Effect, Vec<Segment>) {
    core.begin_cut();
    let mut dropped = Vec::new();
    while let Some(segment) = core
        .segments
        .pop_back_if(|segment| segment.id() > point.segment)
    {
        dropped.push(segment);
    }
    if let Some(segment) = core.segments.back_mut()
        && segment.id() == point.segment
    {
        if point.position == SEGMENT_HEADER_BYTES {
            dropped.extend(core.segments.pop_back());
        } else {
            // Sealed: no byte that was durable is written again.
            segment.end = point.position;
            segment.sealed = true;
            segment.index.truncate(point.position);
        }
    }
    let freed = core.cache.truncate(end);
    core.epochs.truncate(end);
    core.last = last_before(core, end);
    if !planted::is(Bug::TruncationKeepsOffset) {
        core.next_offset = point.offset;
    }
    core.committed = clamp(core.committed, core.last);
    if core.damaged_from.is_some_and(|from| from >= end) {
        // What was damaged is gone; the flags stay until the log was fetched again.
        core.damaged_from = None;
    }
    core.generation += 1;
    let last = core.last;
    let cut = core
        .segments
        .back()
        .map(|segment| (segment.id(), segment.end));
    let next_offset = core.next_offset;
    let body = RecordBody::Truncate {
        last,
        next_offset,
        cut,
    };
    (
        freed,
        body,
        Effect::Truncate {
            last,
            next_offset,
            cut,
        },
        dropped,
    )
}

/// The id of the entry before `end`.
fn last_before(core: &LogCore, end: LogIndex) -> Option<(Term, LogIndex)> {
    if end <= core.start.index {
        return core.start.prev;
    }
    let index = LogIndex::new(end.get() - 1);
    core.epochs.term_of(index).map(|term| (term, index))
}

/// Drops whole segments before `start` and remembers it.
fn move_start(core: &mut LogCore, start: LogStart) -> Vec<Segment> {
    let mut dropped = Vec::new();
    while core
        .segments
        .get(1)
        .is_some_and(|next| next.base_index() <= start.index)
    {
        dropped.extend(core.segments.pop_front());
    }
    core.epochs.cut_before(&start);
    core.start = start;
    if core.last.is_none() {
        core.last = start.prev;
    }
    dropped
}

pub(crate) fn reset_core(core: &mut LogCore, start: LogStart) {
    core.start = start;
    core.last = start.prev;
    core.next_offset = start.offset;
    core.epochs.clear();
    core.committed = None;
    core.damaged_from = None;
    core.damaged = false;
}
