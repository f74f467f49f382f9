//! The worker of a store as its flush thread and its shard share it.
//!
//! A turn normally runs on the flush thread. Where a flush is as quick as the two wake-ups that
//! handing it over costs, the shard runs a small turn itself: see [`Flusher::turn_here`].

#![expect(
    clippy::disallowed_types,
    reason = "the shard only ever tries the lock; the flush thread may wait for it"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crate::error::StorageError;
use crate::turn::{Input, TurnWorker};

/// The way in: messages in one order, and a signal that the thread should look at them.
#[derive(Clone)]
pub(crate) struct Inbox {
    inputs: Sender<Input>,
    signals: Sender<()>,
}

/// The other end of an [`Inbox`].
pub(crate) struct Inputs {
    pub inputs: Receiver<Input>,
    signals: Receiver<()>,
}

impl Inbox {
    pub(crate) fn new() -> (Inbox, Inputs) {
        let (inputs, input_receiver) = channel();
        let (signals, signal_receiver) = channel();
        let receiver = Inputs {
            inputs: input_receiver,
            signals: signal_receiver,
        };
        (Inbox { inputs, signals }, receiver)
    }

    /// Sends a message to the flush thread.
    pub(crate) fn send(&self, input: Input) -> Result<(), SendError<Input>> {
        self.queue(input)?;
        self.signal();
        Ok(())
    }

    /// Leaves a message for whoever runs the next turn.
    pub(crate) fn queue(&self, input: Input) -> Result<(), SendError<Input>> {
        self.inputs.send(input)
    }

    /// Has the flush thread look. Without a thread, nobody listens.
    pub(crate) fn signal(&self) {
        self.signals.send(()).ok();
    }
}

struct Side {
    worker: TurnWorker,
    inputs: Receiver<Input>,
    /// The store has failed or is closed: no more turns.
    ended: bool,
}

impl Side {
    fn round(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let (worker, inputs) = (&mut self.worker, &self.inputs);
        // What a panic has taken out of the queue is lost: nothing after it may count as durable.
        let went = catch_unwind(AssertUnwindSafe(|| worker.round(inputs)));
        self.ended = !went.unwrap_or_else(|_| {
            self.worker
                .fail(StorageError::Failed("a flush turn panicked".into()));
            false
        });
        !self.ended
    }
}

/// A worker with a thread of its own. Clone = the same worker.
#[derive(Clone)]
pub(crate) struct Flusher(Arc<Mutex<Side>>);

impl Flusher {
    /// The shared worker, and what its thread does.
    pub(crate) fn new(
        worker: TurnWorker,
        inputs: Inputs,
    ) -> (Flusher, impl FnOnce() + Send + 'static) {
        let Inputs { inputs, signals } = inputs;
        let flusher = Flusher(Arc::new(Mutex::new(Side {
            worker,
            inputs,
            ended: false,
        })));
        let side = flusher.0.clone();
        let serve = move || {
            while signals.recv().is_ok() {
                while signals.try_recv().is_ok() {}
                if !side.lock().unwrap_or_else(PoisonError::into_inner).round() {
                    return;
                }
            }
        };
        (flusher, serve)
    }

    /// Runs the turns that are due on the caller's thread. `false`: the flush thread is at work, or
    /// a journal file has to be made first; it has to be signalled.
    pub(crate) fn turn_here(&self, bytes_max: usize) -> bool {
        let mut side = match self.0.try_lock() {
            Ok(side) => side,
            Err(TryLockError::Poisoned(side)) => side.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        side.worker.journal.has_room(bytes_max) && side.round()
    }
}
