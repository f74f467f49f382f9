//! Operations gathered for the next turn, and what each of them means once it is durable.

use std::rc::Rc;

use corduroy_record::{LogIndex, Offset, Term};
use tokio::time::Instant;

use super::StoreInner;
use crate::entry::{LogStart, Vote};
use crate::error::StorageError;
use crate::journal::RecordBody;
use crate::log::{AppendDone, AppendEffect, LogShared, flags_operation};
use crate::turn::{Action, Op};

/// What an operation changes about the durable end of its log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Append(AppendEffect),
    Segment {
        id: u32,
    },
    Vote(Vote),
    Committed((Term, LogIndex)),
    Truncate {
        last: Option<(Term, LogIndex)>,
        next_offset: Offset,
        cut: Option<(u32, u32)>,
    },
    Start,
    Reset(LogStart),
    Flags,
    Barrier,
}

impl Effect {
    /// Whether it holds checkpoints of its log back until it is durable.
    fn is_barrier(&self) -> bool {
        matches!(
            self,
            Effect::Truncate { .. } | Effect::Start | Effect::Reset(_) | Effect::Flags
        )
    }

    fn writes(&self) -> bool {
        !matches!(self, Effect::Barrier)
    }
}

/// An operation that is not durable yet.
pub(super) struct Pending {
    pub seq: u64,
    pub log: Rc<LogShared>,
    pub effect: Effect,
    pub frame_bytes: usize,
    pub attempt: u32,
    /// When an append was submitted.
    pub appended_at: Option<Instant>,
    pub done: AppendDone,
}

/// A record that rides with the next turn.
pub(super) struct Lazy {
    log: Rc<LogShared>,
    body: RecordBody,
    effect: Effect,
}

impl StoreInner {
    /// Takes one operation.
    pub(crate) fn submit(
        &self,
        log: &Rc<LogShared>,
        action: Action,
        effect: Effect,
        done: AppendDone,
    ) {
        self.enqueue(log, action, effect, done);
        self.wake.notify_one();
    }

    /// Takes the operations of one append; the last one carries the callbacks.
    pub(crate) fn submit_appends(
        &self,
        log: &Rc<LogShared>,
        operations: Vec<(Action, Effect)>,
        done: AppendDone,
    ) {
        let count = operations.len();
        let mut done = Some(done);
        for (number, (action, effect)) in operations.into_iter().enumerate() {
            let done = if number + 1 == count {
                done.take()
            } else {
                None
            };
            self.enqueue(log, action, effect, done.unwrap_or_default());
        }
        if let Some(done) = done {
            // An empty append completes after what came before it.
            self.enqueue(log, Action::Barrier, Effect::Barrier, done);
        }
        self.wake.notify_one();
    }

    /// Takes a record that waits for a turn that somebody needs. A later one replaces it.
    pub(crate) fn submit_lazily(
        &self,
        log: &Rc<LogShared>,
        body: RecordBody,
        committed: (Term, LogIndex),
    ) {
        let lazy = Lazy {
            log: log.clone(),
            body,
            effect: Effect::Committed(committed),
        };
        self.queue.borrow_mut().lazy.insert(log.group, lazy);
    }

    /// Moves lazy records into the gathered operations, if there are any to ride with or the
    /// store closes.
    pub(super) fn board_lazy(&self) {
        let lazy = {
            let mut queue = self.queue.borrow_mut();
            if queue.gathered.is_empty() && !self.closing.get() {
                return;
            }
            std::mem::take(&mut queue.lazy)
        };
        for Lazy { log, body, effect } in lazy.into_values() {
            if !log.removed.get() {
                self.enqueue(&log, Action::Record(body), effect, AppendDone::default());
            }
        }
    }

    fn enqueue(&self, log: &Rc<LogShared>, action: Action, effect: Effect, done: AppendDone) {
        let mut queue = self.queue.borrow_mut();
        queue.next_seq += 1;
        let seq = queue.next_seq;
        let frame_bytes = match &action {
            Action::Append(append) => append.frame_bytes,
            _ => 0,
        };
        queue.unflushed_bytes += frame_bytes as u64;
        self.appended_bytes
            .set(self.appended_bytes.get() + frame_bytes as u64);
        let attempt = log.core.borrow().attempt;
        queue.gathered.push(Op {
            seq,
            group: log.group,
            incarnation: log.incarnation,
            attempt,
            action,
            wants_written: done.written.is_some(),
        });
        queue.pending.push_back(Pending {
            seq,
            log: log.clone(),
            effect,
            frame_bytes,
            attempt,
            appended_at: matches!(effect, Effect::Append(_)).then(|| self.env.now()),
            done,
        });
    }

    /// Everything up to `upto` has been written: tells those who wanted to know.
    pub(super) fn on_written(&self, upto: u64) {
        let mut callbacks = Vec::new();
        {
            let mut queue = self.queue.borrow_mut();
            let from = queue
                .pending
                .partition_point(|pending| pending.seq <= queue.written);
            let to = queue.pending.partition_point(|pending| pending.seq <= upto);
            for pending in queue.pending.range_mut(from..to.max(from)) {
                callbacks.extend(pending.done.written.take());
            }
            queue.written = queue.written.max(upto);
        }
        for callback in callbacks {
            callback(Ok(()));
        }
    }

    /// A turn is durable: moves the durable ends on, then tells everyone, in order.
    pub(super) fn on_durable(&self, turn: u64, upto: u64, refused: &[u64]) {
        let mut finished = Vec::new();
        {
            let mut queue = self.queue.borrow_mut();
            while let Some(pending) = queue.pending.pop_front_if(|next| next.seq <= upto) {
                queue.unflushed_bytes -= pending.frame_bytes as u64;
                finished.push(pending);
            }
            queue.written = queue.written.max(upto);
        }
        let is_refused = |pending: &Pending| refused.binary_search(&pending.seq).is_ok();
        for pending in finished.iter().filter(|pending| !is_refused(pending)) {
            self.apply_effect(pending, turn);
        }
        self.note_append_times(finished.iter().filter(|pending| !is_refused(pending)));
        let mut met_full: Vec<Rc<LogShared>> = Vec::new();
        for pending in finished.iter().filter(|pending| is_refused(pending)) {
            // Those of an attempt that was rolled back already change nothing more.
            if pending.attempt == pending.log.core.borrow().attempt
                && !met_full.iter().any(|known| Rc::ptr_eq(known, &pending.log))
            {
                met_full.push(pending.log.clone());
            }
        }
        for log in met_full {
            self.roll_back(&log);
        }
        self.cache.borrow_mut().evict(self.config.cache_bytes);
        for pending in finished {
            let result = if is_refused(&pending) {
                Err(StorageError::DiskFull)
            } else {
                Ok(())
            };
            if let Some(callback) = pending.done.written {
                callback(result.clone());
            }
            if let Some(callback) = pending.done.durable {
                callback(result);
            }
        }
    }

    fn note_append_times<'a>(&self, finished: impl Iterator<Item = &'a Pending>) {
        let now = self.env.now();
        let mut times = self.append_times.borrow_mut();
        for appended_at in finished.filter_map(|pending| pending.appended_at) {
            times.note(now.saturating_duration_since(appended_at));
        }
    }

    fn apply_effect(&self, pending: &Pending, turn: u64) {
        let log = &pending.log;
        let mut core = log.core.borrow_mut();
        if pending.effect.is_barrier() {
            core.undos.pop_front();
        }
        if pending.effect.writes() && turn > 0 && !log.removed.get() {
            self.pin(log, &mut core, turn);
        }
        let durable = &mut core.durable;
        match pending.effect {
            Effect::Append(after) => {
                durable.last = Some(after.last);
                durable.next_offset = after.next_offset;
                durable.segment = Some(after.segment);
            }
            Effect::Segment { id } => {
                durable.segment = Some((id, crate::segment::SEGMENT_HEADER_BYTES));
            }
            Effect::Vote(vote) => durable.vote = Some(vote),
            Effect::Committed(committed) => durable.committed = Some(committed),
            Effect::Truncate {
                last,
                next_offset,
                cut,
            } => {
                durable.last = last;
                durable.next_offset = next_offset;
                durable.segment = cut;
            }
            Effect::Reset(start) => {
                durable.last = start.prev;
                durable.next_offset = start.offset;
                durable.segment = None;
                durable.committed = None;
            }
            Effect::Start | Effect::Flags | Effect::Barrier => {}
        }
    }

    /// The disk was full for this log: it is again what the disk has, and what was under way
    /// fails, cuts included. It may be tried again.
    fn roll_back(&self, log: &Rc<LogShared>) {
        let mut core = log.core.borrow_mut();
        core.attempt += 1;
        core.generation += 1;
        let undone = core.undo_cuts();
        let end = core.durable_next();
        let freed = undone.freed_bytes + core.cache.truncate(end);
        core.last = core.durable.last;
        core.next_offset = core.durable.next_offset;
        core.vote = core.durable.vote;
        core.committed = core.durable.committed;
        core.epochs.truncate(end);
        let durable = core.durable.segment;
        core.segments
            .retain(|segment| durable.is_some_and(|(id, _)| segment.id() <= id));
        if let (Some((_, durable_end)), Some(segment)) = (durable, core.segments.back_mut()) {
            segment.end = durable_end;
            segment.index.truncate(durable_end);
            // One without an entry goes on: the next one would begin at the same entry.
            segment.sealed = durable_end > crate::segment::SEGMENT_HEADER_BYTES;
        }
        let flags = undone.raises_flags.then(|| {
            core.begin_cut();
            flags_operation(&core)
        });
        drop(core);
        self.cache.borrow_mut().free(freed);
        tracing::error!(group = %log.group, "the disk is full: what was appended is refused");
        if let Some((action, effect)) = flags {
            self.submit(log, action, effect, AppendDone::default());
        }
    }

    /// A flush failed: nothing is retried, everything under way fails, nothing more is taken.
    pub(super) fn on_failed(&self, error: &StorageError) {
        let reason: std::sync::Arc<str> = error.to_string().into();
        if self.failure.borrow().is_none() {
            tracing::error!(%error, "a write or flush failed: this shard's replicas stop");
            *self.failure.borrow_mut() = Some(reason.clone());
        }
        let pending = {
            let mut queue = self.queue.borrow_mut();
            queue.gathered.clear();
            queue.lazy.clear();
            queue.unflushed_bytes = 0;
            std::mem::take(&mut queue.pending)
        };
        for pending in pending {
            let result = Err(StorageError::Failed(reason.clone()));
            if let Some(callback) = pending.done.written {
                callback(result.clone());
            }
            if let Some(callback) = pending.done.durable {
                callback(result);
            }
        }
        let closers = std::mem::take(&mut *self.closers.borrow_mut());
        for closer in closers {
            closer.send(Err(StorageError::Failed(reason.clone()))).ok();
        }
    }
}
