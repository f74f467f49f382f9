//! The loop of a store: hands operations to the flush thread, fires callbacks in order.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::{Store, StoreInner};
use crate::error::StorageError;
use crate::metrics::DiskLevel;
use crate::turn::{Action, Begun, Input, Op, Output, TurnWorker};

/// How long to wait before a full journal is asked again for checkpoints.
const STALL_RETRY: Duration = Duration::from_millis(20);
/// How long a look at the disk's free space counts.
const SPACE_CHECK: Duration = Duration::from_secs(1);

/// Bytes that are not durable up to which the shard may flush them itself.
const QUICK_TURN_BYTES_MAX: u64 = 32 << 10;
/// A disk that usually flushes in this time is quicker than handing a turn to another thread and
/// hearing of its end, which is two wake-ups; a slower one would hold the shard up.
const QUICK_FLUSH_MICROS_MAX: u64 = 250;

/// What the loop owns.
pub(super) struct Runner {
    pub outputs: UnboundedReceiver<Output>,
    pub sender: UnboundedSender<Output>,
    /// The worker itself, where it has no thread of its own.
    pub inline: Option<(Box<TurnWorker>, Receiver<Input>)>,
}

/// What was laid out for the next turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handed {
    Nothing,
    /// Writes to files that are there.
    Small,
    /// Files to be made too.
    Large,
}

impl Store {
    /// The flush loop. The shard spawns it once; it ends after [`Store::close`], or after a
    /// failed flush once everyone has been told.
    pub async fn run(self) {
        let Some(mut runner) = self.inner.runner.borrow_mut().take() else {
            return;
        };
        let inner = self.inner;
        loop {
            let handed = inner.hand_over(&runner.sender);
            if let Some(flusher) = &inner.flusher
                && handed != Handed::Nothing
            {
                if handed == Handed::Small && inner.is_quick() {
                    // What is ready runs first: appends leave for the followers, and join in.
                    tokio::task::yield_now().await;
                    let joined = inner.hand_over(&runner.sender);
                    if joined == Handed::Large
                        || !inner.is_quick()
                        || !flusher.turn_here(QUICK_TURN_BYTES_MAX as usize * 2)
                    {
                        inner.inbox.signal();
                    }
                } else {
                    inner.inbox.signal();
                }
            }
            if let Some((worker, inbox)) = &mut runner.inline {
                let round = run_inline(&inner, worker, inbox, &mut runner.outputs, &runner.sender);
                if !round.await {
                    break;
                }
                if inner.is_idle() {
                    tokio::select! {
                        () = inner.wake.notified() => {}
                        () = inner.env.sleep(SPACE_CHECK), if inner.is_short_of_space() => {
                            inner.check_space(&runner.sender);
                        }
                    }
                } else if inner.stalled_at.get().is_some() && !inner.keeper.has_jobs() {
                    inner.env.sleep(STALL_RETRY).await;
                    inner.retry_stalled(&runner.sender);
                } else {
                    // Callbacks may have woken others: let them run between turns.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            tokio::select! {
                biased;
                output = runner.outputs.recv() => {
                    let Some(output) = output else { break };
                    if !inner.handle(output, &runner.sender) {
                        break;
                    }
                }
                () = inner.wake.notified() => {}
                () = inner.env.sleep(STALL_RETRY), if inner.stalled_at.get().is_some() => {
                    inner.retry_stalled(&runner.sender);
                }
                () = inner.env.sleep(SPACE_CHECK), if inner.is_short_of_space() => {
                    inner.check_space(&runner.sender);
                }
            }
        }
        inner.closed.set(true);
    }
}

/// One round of the inline mode. `false`: the end.
async fn run_inline(
    inner: &Rc<StoreInner>,
    worker: &mut TurnWorker,
    inbox: &Receiver<Input>,
    outputs: &mut UnboundedReceiver<Output>,
    sender: &UnboundedSender<Output>,
) -> bool {
    while let Ok(input) = inbox.try_recv() {
        if !worker.take(input) {
            break;
        }
    }
    let result = match worker.begin() {
        Ok(Begun::Idle) => Ok(()),
        Ok(Begun::Stalled) => {
            worker.stall();
            Ok(())
        }
        Ok(Begun::Written(written)) => {
            worker.report_written(&written);
            while let Ok(output) = outputs.try_recv() {
                if !inner.handle(output, sender) {
                    return false;
                }
            }
            let delay = inner.disk.flush_delay();
            if !delay.is_zero() {
                inner.env.sleep(delay).await;
            }
            worker.finish(written).map(|report| {
                sender.send(Output::Durable(report)).ok();
                worker.prepare();
            })
        }
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        sender.send(Output::Failed(error)).ok();
    }
    while let Ok(output) = outputs.try_recv() {
        if !inner.handle(output, sender) {
            return false;
        }
    }
    while let Ok(input) = inbox.try_recv() {
        if !worker.take(input) {
            break;
        }
    }
    inner.backlog.set(worker.backlog.len());
    inner.keeper.step();
    while let Ok(output) = outputs.try_recv() {
        if !inner.handle(output, sender) {
            return false;
        }
    }
    true
}

impl StoreInner {
    /// Lays everything gathered out for the next turn.
    fn hand_over(&self, sender: &UnboundedSender<Output>) -> Handed {
        self.board_lazy();
        let gathered = std::mem::take(&mut self.queue.borrow_mut().gathered);
        let mut handed = Handed::Nothing;
        if !gathered.is_empty() {
            let makes_files = |op: &Op| matches!(op.action, Action::Segment(_));
            handed = if gathered.iter().any(makes_files) {
                Handed::Large
            } else {
                Handed::Small
            };
            self.check_space(sender);
            self.inbox.queue(Input::Ops(gathered)).ok();
        }
        if self.closing.get() && !self.closed.get() {
            self.advance_closing(sender);
        }
        handed
    }

    /// Whether a turn of what waits is over sooner than another thread could hear of it.
    fn is_quick(&self) -> bool {
        let usual = &self.counters.usual_flush_micros;
        self.queue.borrow().unflushed_bytes <= QUICK_TURN_BYTES_MAX
            && (1..=QUICK_FLUSH_MICROS_MAX).contains(&usual.load(Ordering::Relaxed))
    }

    /// Nothing to do in the inline mode until somebody submits.
    fn is_idle(&self) -> bool {
        self.queue.borrow().gathered.is_empty()
            && self.backlog.get() == 0
            && !self.keeper.has_jobs()
            && (!self.closing.get() || self.closed.get())
    }

    /// One step of a clean stop: first nothing pending, then everything checkpointed, then the
    /// journal empty.
    fn advance_closing(&self, sender: &UnboundedSender<Output>) {
        if !self.queue.borrow().pending.is_empty() {
            return;
        }
        if !self.pins_are_clear() {
            self.want_all_checkpoints(sender);
            return;
        }
        if !self.close_sent.replace(true) {
            self.inbox.send(Input::Close).ok();
        }
    }

    /// Takes one message of the flush thread. `false`: the end.
    fn handle(&self, output: Output, sender: &UnboundedSender<Output>) -> bool {
        match output {
            Output::Written { upto } => self.on_written(upto),
            Output::Durable(report) => {
                self.stalled_at.set(None);
                self.note_durable_turn(report.turn);
                self.on_durable(report.turn, report.upto, &report.refused);
                if !report.refused.is_empty() {
                    self.set_level(DiskLevel::Critical);
                    self.space_checked.set(None);
                }
                self.want_checkpoints(sender, report.files_used, report.oldest_last_turn);
            }
            Output::Stalled { oldest_last_turn } => {
                self.hurry_checkpoints(sender, oldest_last_turn);
            }
            Output::Checkpointed {
                group,
                incarnation,
                result,
            } => {
                match self.on_checkpointed(sender, group, incarnation, result) {
                    Ok(()) => {}
                    Err(StorageError::DiskFull) if !self.closing.get() => {}
                    Err(error @ StorageError::DiskFull) => {
                        // The journal keeps what the state files lack: not a clean stop, and
                        // nothing is lost.
                        for closer in std::mem::take(&mut *self.closers.borrow_mut()) {
                            closer.send(Err(error.clone())).ok();
                        }
                        return false;
                    }
                    // A failed background flush is a failed flush (law 11).
                    Err(error) => {
                        self.on_failed(&error);
                        return false;
                    }
                }
            }
            Output::FreeBytes(bytes) => {
                self.free_bytes.set(bytes);
                self.set_level(if bytes < self.config.critical_bytes {
                    DiskLevel::Critical
                } else if bytes < self.config.low_bytes {
                    DiskLevel::Low
                } else {
                    DiskLevel::Plenty
                });
            }
            Output::Failed(error) => {
                self.on_failed(&error);
                return false;
            }
            Output::Closed => {
                self.closed.set(true);
                for closer in std::mem::take(&mut *self.closers.borrow_mut()) {
                    closer.send(Ok(())).ok();
                }
                return false;
            }
        }
        true
    }

    /// A checkpoint that a full disk refused may succeed now.
    fn retry_stalled(&self, sender: &UnboundedSender<Output>) {
        let due = self
            .stalled_at
            .get()
            .is_some_and(|at| self.env.now().saturating_duration_since(at) >= STALL_RETRY);
        if due {
            self.help_stalled(sender);
        }
    }

    fn set_level(&self, level: DiskLevel) {
        let before = self.disk_level.replace(level);
        if level == DiskLevel::Plenty && before != level {
            self.inbox.send(Input::Refill).ok();
        }
        if level > before {
            tracing::warn!(root = %self.config.root.display(), %level,
                free_bytes = self.free_bytes.get(), "the disk is getting full");
        }
    }

    /// While produce is refused there may be no turn that would notice that there is room again.
    fn is_short_of_space(&self) -> bool {
        self.disk_level.get() != DiskLevel::Plenty && !self.closing.get()
    }

    /// Looks at the free space about once a second, elsewhere.
    fn check_space(&self, sender: &UnboundedSender<Output>) {
        let now = self.env.now();
        let fresh = self
            .space_checked
            .get()
            .is_some_and(|at| now.saturating_duration_since(at) < SPACE_CHECK);
        if fresh {
            return;
        }
        self.space_checked.set(Some(now));
        let (disk, root) = (self.disk.clone(), self.config.root.clone());
        let sender = sender.clone();
        self.keeper.run(move || {
            if let Ok(bytes) = disk.free_bytes(&root) {
                sender.send(Output::FreeBytes(bytes)).ok();
            }
        });
    }

    /// Begins a clean stop and tells when it is over.
    pub(super) async fn close(&self) -> Result<(), StorageError> {
        if self.closed.get() {
            return match &*self.failure.borrow() {
                Some(reason) => Err(StorageError::Failed(reason.clone())),
                None => Ok(()),
            };
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.closers.borrow_mut().push(sender);
        self.closing.set(true);
        self.wake.notify_one();
        let result = receiver.await.map_err(|_| StorageError::Closed)?;
        // State machines and Raft hold handles of the logs; the store's own go now.
        self.logs.borrow_mut().clear();
        result
    }
}
