//! A batch on its way: proposed, appended, finished. Everyone who waits for it shares one record.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use corduroy_raft::{ProposalObserver, ProposalOutcome};
use corduroy_storage::EntryHead;

use super::producers::BatchIdentity;

/// The end of a proposal.
#[derive(Clone, Debug)]
pub enum Fate {
    /// Committed and applied.
    Applied(EntryHead),
    /// Surely not in the log. `leader` changed or the lease ran out before it was appended.
    NotAppended,
    /// Appended here, and its fate is another leader's to decide.
    Unknown,
    /// The replica stopped (shutdown, failed disk) before the end was known.
    Stopped,
}

/// One batch between its proposal and its end.
///
/// Law: moves forward only, proposed -> appended -> finished (or proposed -> finished).
pub struct Pending {
    /// Its producer's identity; `None` without idempotence.
    pub identity: Option<BatchIdentity>,
    /// Bytes that it holds of the partition's pipeline.
    pub size_bytes: usize,
    appended: Cell<Option<EntryHead>>,
    fate: RefCell<Option<Fate>>,
    wakers: RefCell<Vec<Waker>>,
}

impl Pending {
    /// A batch that is about to be proposed.
    pub fn new(identity: Option<BatchIdentity>, size_bytes: usize) -> Rc<Pending> {
        Rc::new(Pending {
            identity,
            size_bytes,
            appended: Cell::new(None),
            fate: RefCell::new(None),
            wakers: RefCell::new(Vec::new()),
        })
    }

    /// Resolves when the leader's log holds the batch (after `write` returned), or at its end.
    pub async fn appended(&self) -> Result<EntryHead, Fate> {
        poll_fn(|cx| {
            if let Some(head) = self.appended.get() {
                return Poll::Ready(Ok(head));
            }
            if let Some(fate) = self.fate.borrow().as_ref() {
                return Poll::Ready(match fate {
                    Fate::Applied(head) => Ok(*head),
                    other => Err(other.clone()),
                });
            }
            self.register(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Resolves at its end.
    pub async fn finished(&self) -> Fate {
        poll_fn(|cx| {
            if let Some(fate) = self.fate.borrow().as_ref() {
                return Poll::Ready(fate.clone());
            }
            self.register(cx.waker());
            Poll::Pending
        })
        .await
    }

    fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|w| w.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }
}

/// What a proposal's end means for the partition: frees its place in the overlay.
pub type OnFinished = Box<dyn FnOnce(&Rc<Pending>)>;

/// Carries the log's word about a proposal to its [`Pending`].
pub struct PendingObserver {
    pending: Rc<Pending>,
    on_finished: OnFinished,
}

impl PendingObserver {
    /// An observer for `pending`; `on_finished` runs once, before the waiters are woken.
    pub fn new(pending: Rc<Pending>, on_finished: OnFinished) -> Self {
        Self {
            pending,
            on_finished,
        }
    }
}

impl ProposalObserver for PendingObserver {
    fn appended(&mut self, head: EntryHead) {
        self.pending.appended.set(Some(head));
        self.pending.wake();
    }

    fn finished(self: Box<Self>, outcome: ProposalOutcome) {
        let fate = match outcome {
            ProposalOutcome::Applied(head) => Fate::Applied(head),
            ProposalOutcome::NotAppended(corduroy_raft::RefuseReason::Stopped) => Fate::Stopped,
            ProposalOutcome::NotAppended(_) => Fate::NotAppended,
            ProposalOutcome::Discarded => Fate::Unknown,
        };
        let Self {
            pending,
            on_finished,
        } = *self;
        *pending.fate.borrow_mut() = Some(fate);
        on_finished(&pending);
        pending.wake();
    }
}
