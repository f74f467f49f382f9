//! The ordered door: proposals of one replica are appended in the order of the calls, or fail.
//!
//! openraft refuses a write at once when the leader's lease has expired, and takes the next one
//! when it is back: pipelined proposals would swap. So each proposal carries a number, counted per
//! term, which is checked inside the log store's `append`, the only place that sees the log's
//! order. An entry that comes before its predecessor is written as a void; the proposal itself
//! waits here with the predecessor and both are proposed again once a majority has confirmed the
//! leader, or both fail.
//!
//! A refusal for good breaks the door until everything behind it has heard its own refusal: who
//! judged a proposal before that judged it against a past that will not be.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use corduroy_record::{NodeId, Term};
use corduroy_storage::EntryHead;
use futures::FutureExt;
use openraft::errors::ForwardReason;
use openraft::errors::{ClientWriteError, ForwardToLeader};
use openraft::raft::ClientWriteResult;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::proposal::{Proposal, ProposalObserver, ProposalOutcome, ProposalPayload, RefuseReason};
use crate::replica_core::Core;
use crate::types::{Body, CallbackResponder, Proposed, TypeConfig, committed_leader};

/// One attempt to have one proposal appended.
pub struct Ticket {
    /// The number that `append` checks; a new one for each attempt.
    seq: u64,
    term: Term,
    /// The era of the door in which it is counted as in flight; `None` once it has landed.
    era: Cell<Option<u64>>,
    proposal: RefCell<Option<Waiting>>,
    head: Cell<Option<EntryHead>>,
    written: Cell<bool>,
    announced: Cell<bool>,
}

/// A proposal whose outcome is open.
struct Waiting {
    order: u64,
    term: Term,
    payload: ProposalPayload,
    observer: Box<dyn ProposalObserver>,
    proposed_at: Instant,
    deadline: Instant,
}

impl Waiting {
    fn refuse(self, reason: RefuseReason) {
        self.observer.finished(ProposalOutcome::NotAppended(reason));
    }
}

/// Laws: entries with tickets enter the log with `seq` rising by one within a term. `expected`
/// moves only in `admit` and, with nothing in flight, in `land`. What is held or in flight is of
/// `term`; while `broken`, nothing is held and nothing is taken.
#[derive(Default)]
struct State {
    term: Term,
    /// A new one with each term and each instance: what an older one left in flight counts no
    /// more, and can only be refused.
    era: u64,
    next_order: u64,
    next_seq: u64,
    expected: u64,
    /// Handed to openraft, and neither appended nor told of its refusal yet.
    in_flight: usize,
    /// Waiting at the door, in the order of the calls.
    held: VecDeque<Waiting>,
    /// A proposal was refused for good: what is in flight behind it fails too.
    broken: bool,
    /// The lease is being won back.
    recovering: bool,
    stopped: bool,
}

impl State {
    /// Nothing of the time before counts any more. Returns what was held.
    fn begin(&mut self, term: Term) -> VecDeque<Waiting> {
        self.term = term;
        self.era += 1;
        self.next_seq = 0;
        self.expected = 0;
        self.in_flight = 0;
        self.broken = false;
        std::mem::take(&mut self.held)
    }

    /// With nothing in flight the numbers may start anew without swapping anything.
    fn settle(&mut self) {
        if self.in_flight == 0 {
            self.expected = self.next_seq;
            self.broken = false;
        }
    }

    fn hold(&mut self, waiting: Waiting) {
        let at = self.held.partition_point(|held| held.order < waiting.order);
        self.held.insert(at, waiting);
    }
}

/// The door of one replica.
pub(crate) struct Door {
    state: RefCell<State>,
    core: RefCell<Weak<Core>>,
    /// Nothing is in flight any more, or the replica stops.
    emptied: Notify,
}

impl Door {
    pub(crate) fn new() -> Door {
        Door {
            state: RefCell::default(),
            core: RefCell::new(Weak::new()),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn bind(&self, core: &Rc<Core>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
    }

    fn core(&self) -> Option<Rc<Core>> {
        self.core.borrow().upgrade()
    }

    /// Takes a proposal.
    pub(crate) fn propose(&self, proposal: Proposal, observer: Box<dyn ProposalObserver>) {
        let Some(core) = self.core() else {
            observer.finished(ProposalOutcome::NotAppended(RefuseReason::Stopped));
            return;
        };
        core.touch();
        let now = core.env.now();
        let leads = core.is_leader() && core.term() == proposal.term;
        let mut outdated = VecDeque::new();
        let waiting = {
            let mut state = self.state.borrow_mut();
            if leads && proposal.term > state.term {
                outdated = state.begin(proposal.term);
            }
            let order = state.next_order;
            state.next_order += 1;
            let waiting = Waiting {
                order,
                term: proposal.term,
                payload: proposal.payload,
                observer,
                proposed_at: now,
                deadline: now + core.config.propose_hold_max,
            };
            if state.stopped {
                Err((waiting, RefuseReason::Stopped))
            } else if !leads || proposal.term < state.term {
                Err((
                    waiting,
                    RefuseReason::NotLeader {
                        leader: core.leader_node(),
                    },
                ))
            } else if !core.speaks() {
                // Refused before anything behind it was judged: nothing is to be held back.
                Err((waiting, RefuseReason::LeaseLost))
            } else if state.broken {
                // Whoever proposes this may not have heard of the refusal before it.
                Err((waiting, RefuseReason::Predecessor))
            } else if state.held.is_empty()
                && !state.recovering
                && state.in_flight < core.config.propose_window
            {
                Ok(Some(waiting))
            } else {
                state.held.push_back(waiting);
                Ok(None)
            }
        };
        for old in outdated {
            // Its term is over, and this replica leads again in a later one.
            let leader = core.leader_node();
            old.refuse(RefuseReason::NotLeader { leader });
        }
        match waiting {
            Ok(Some(waiting)) => self.send(&core, waiting),
            Ok(None) => self.flow(&core),
            Err((waiting, reason)) => waiting.refuse(reason),
        }
    }

    /// Numbers one attempt and counts it as in flight.
    fn depart(&self, waiting: Waiting) -> Rc<Ticket> {
        let mut state = self.state.borrow_mut();
        let seq = state.next_seq;
        state.next_seq += 1;
        state.in_flight += 1;
        Rc::new(Ticket {
            seq,
            term: waiting.term,
            era: Cell::new(Some(state.era)),
            proposal: RefCell::new(Some(waiting)),
            head: Cell::new(None),
            written: Cell::new(false),
            announced: Cell::new(false),
        })
    }

    /// A ticket is no longer in flight: appended, or refused and told so.
    fn land(&self, ticket: &Ticket) {
        let mut state = self.state.borrow_mut();
        if ticket.era.take() != Some(state.era) {
            return;
        }
        state.in_flight = state.in_flight.saturating_sub(1);
        state.settle();
        if state.in_flight == 0 {
            self.emptied.notify_waiters();
        }
    }

    /// Hands one proposal to openraft.
    fn send(&self, core: &Rc<Core>, waiting: Waiting) {
        let Some(raft) = core.raft() else {
            waiting.refuse(RefuseReason::Stopped);
            return;
        };
        let body = match &waiting.payload {
            ProposalPayload::Batch(batch) => Body::Batch(batch.clone()),
            ProposalPayload::Internal(bytes) => Body::Internal(bytes.clone()),
        };
        let ticket = self.depart(waiting);
        let (term, seq) = (ticket.term, ticket.seq);
        tracing::trace!(target: "corduroy::walk", room = 5, group = %core.group, replica = %core.id, %term, seq, "a proposal goes through the door");
        let answered = {
            let (core, ticket) = (Rc::downgrade(core), ticket.clone());
            CallbackResponder::new(Box::new(move |result| match core.upgrade() {
                Some(core) => core.door.completed(&core, &ticket, result),
                None => ticket.finish_stopped(),
            }))
        };
        let write = raft
            .write(Proposed {
                body,
                ticket: Some(ticket),
            })
            .responder(answered)
            .with_leader(committed_leader(term));
        // Our channel takes a message without waiting; a core that has stopped answers through
        // the dropped responder, whether or not this future ever ends.
        let _ = write.into_future().now_or_never();
    }

    /// Called by the log store for each entry with a ticket, in log order: whether its payload
    /// goes into the log, or a void in its place.
    pub(crate) fn admit(&self, core: &Rc<Core>, ticket: &Rc<Ticket>) -> bool {
        let broken = {
            let mut state = self.state.borrow_mut();
            let current = ticket.era.get() == Some(state.era);
            if current && ticket.seq == state.expected {
                state.expected += 1;
                drop(state);
                self.land(ticket);
                return true;
            }
            state.broken || !current
        };
        let waiting = ticket.proposal.borrow_mut().take();
        match waiting {
            Some(waiting) if broken => self.refuse_later(core, ticket, waiting),
            Some(waiting) => {
                self.hold(core, waiting);
                self.land(ticket);
            }
            None => self.land(ticket),
        }
        self.flow_later(core);
        false
    }

    /// Refuses after the log store has returned: an observer may call back into the replica.
    fn refuse_later(&self, core: &Rc<Core>, ticket: &Rc<Ticket>, waiting: Waiting) {
        let (core, ticket) = (core.clone(), ticket.clone());
        let env = core.env.clone();
        env.spawn_local(async move {
            waiting.refuse(RefuseReason::Predecessor);
            core.door.land(&ticket);
        });
    }

    fn hold(&self, core: &Rc<Core>, waiting: Waiting) {
        self.state.borrow_mut().hold(waiting);
        self.recover(core);
    }

    /// openraft has answered a proposal; `None`: dropped unanswered.
    fn completed(
        &self,
        core: &Rc<Core>,
        ticket: &Rc<Ticket>,
        result: Option<ClientWriteResult<TypeConfig>>,
    ) {
        // A void's proposal was taken out of its ticket and waits, or is refused, elsewhere.
        let Some(waiting) = ticket.proposal.borrow_mut().take() else {
            return;
        };
        let Some(head) = ticket.head.get() else {
            let dropped = result.is_none();
            self.refused(core, ticket, waiting, result);
            // Only now: what its refusal takes with it has been told.
            self.land(ticket);
            if !dropped {
                self.flow(core);
            }
            return;
        };
        if matches!(result, Some(Ok(_))) {
            tracing::trace!(target: "corduroy::walk", room = "applied", group = %core.group, replica = %core.id, index = %head.index, "an entry is applied");
        }
        let outcome = match result {
            Some(Ok(_)) => {
                let took = core.env.now().duration_since(waiting.proposed_at);
                core.board.counts.committed(took);
                ProposalOutcome::Applied(head)
            }
            Some(Err(_)) | None => ProposalOutcome::Discarded,
        };
        waiting.observer.finished(outcome);
        self.flow(core);
    }

    fn refused(
        &self,
        core: &Rc<Core>,
        ticket: &Ticket,
        waiting: Waiting,
        result: Option<ClientWriteResult<TypeConfig>>,
    ) {
        let forward = match result {
            Some(Err(ClientWriteError::ForwardToLeader(forward))) => forward,
            Some(Err(ClientWriteError::LogEntryDiscarded(forward))) => forward,
            Some(Ok(_)) | Some(Err(_)) => ForwardToLeader::empty(),
            None => {
                waiting.refuse(RefuseReason::Stopped);
                return;
            }
        };
        let (current, broken) = {
            let state = self.state.borrow();
            (ticket.era.get() == Some(state.era), state.broken)
        };
        let is_early = core.env.now() < waiting.deadline;
        let reason = match forward.reason {
            ForwardReason::LeaseExpired if current && broken => RefuseReason::Predecessor,
            ForwardReason::LeaseExpired if current && is_early => {
                self.hold(core, waiting);
                return;
            }
            ForwardReason::LeaseExpired => RefuseReason::LeaseLost,
            ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
                RefuseReason::NotLeader {
                    leader: leader_node(&forward),
                }
            }
        };
        if current {
            self.break_off(Some(waiting), reason);
        } else {
            waiting.refuse(reason);
        }
    }

    /// A refusal for good: with `refused`, whatever waits at the door fails, in the order of the
    /// calls; whatever is in flight behind it will be voided. The caller then lands what it has.
    fn break_off(&self, refused: Option<Waiting>, reason: RefuseReason) {
        let all = {
            let mut state = self.state.borrow_mut();
            state.broken = true;
            if let Some(refused) = refused {
                state.hold(refused);
            }
            std::mem::take(&mut state.held)
        };
        let mut reason = reason;
        for waiting in all {
            waiting.refuse(reason);
            if reason == RefuseReason::LeaseLost {
                reason = RefuseReason::Predecessor;
            }
        }
    }

    /// Lets held proposals through, as far as order and window allow.
    fn flow(&self, core: &Rc<Core>) {
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                if state.recovering || state.held.is_empty() {
                    return;
                }
                if state.in_flight >= core.config.propose_window {
                    return;
                }
                state.held.pop_front()
            };
            match next {
                Some(waiting) => self.send(core, waiting),
                None => return,
            }
        }
    }

    fn flow_later(&self, core: &Rc<Core>) {
        let state = self.state.borrow();
        if state.held.is_empty() || state.recovering {
            return;
        }
        drop(state);
        let core = core.clone();
        let env = core.env.clone();
        env.spawn_local(async move { core.door.flow(&core) });
    }

    /// Wins the lease back, then proposes again what is held.
    fn recover(&self, core: &Rc<Core>) {
        if std::mem::replace(&mut self.state.borrow_mut().recovering, true) {
            return;
        }
        let core = core.clone();
        let env = core.env.clone();
        env.spawn_local(async move {
            let verdict = core.door.confirm(&core).await;
            core.door.state.borrow_mut().recovering = false;
            if let Err(reason) = verdict {
                core.door.break_off(None, reason);
                core.door.state.borrow_mut().settle();
            }
            core.door.flow(&core);
        });
    }

    /// Waits until nothing is in flight and a majority has confirmed this leader. Nothing goes
    /// through the door meanwhile.
    async fn confirm(&self, core: &Rc<Core>) -> Result<(), RefuseReason> {
        self.until_empty().await;
        loop {
            let (term, deadline) = {
                let state = self.state.borrow();
                if state.stopped {
                    return Err(RefuseReason::Stopped);
                }
                match state.held.front() {
                    Some(first) => (first.term, first.deadline),
                    None => return Ok(()),
                }
            };
            let verdict = core.confirm_leadership(term).await;
            if self.state.borrow().term != term {
                continue;
            }
            match verdict {
                Ok(()) => return Ok(()),
                Err(Some(reason)) => return Err(reason),
                Err(None) if core.env.now() >= deadline => return Err(RefuseReason::LeaseLost),
                Err(None) => core.env.sleep(core.config.reconnect_min).await,
            }
        }
    }

    /// Ends when nothing is in flight, or the replica stops. openraft may take as long as a slow
    /// disk to answer.
    async fn until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            {
                let state = self.state.borrow();
                if state.in_flight == 0 || state.stopped {
                    return;
                }
            }
            emptied.await;
        }
    }

    /// The replica stops: nothing is taken any more.
    pub(crate) fn stop(&self) {
        let held = {
            let mut state = self.state.borrow_mut();
            state.stopped = true;
            std::mem::take(&mut state.held)
        };
        self.emptied.notify_waiters();
        for waiting in held {
            waiting.refuse(RefuseReason::Stopped);
        }
    }

    /// A restarted instance begins a new order: nothing of the old one is in flight.
    pub(crate) fn restart(&self) {
        let held = {
            let mut state = self.state.borrow_mut();
            state.stopped = false;
            let term = state.term;
            state.begin(term)
        };
        self.emptied.notify_waiters();
        for waiting in held {
            // It leads again only in a new term (law 2).
            waiting.refuse(RefuseReason::NotLeader { leader: None });
        }
    }
}

impl Ticket {
    /// The log gave the entry its place.
    pub(crate) fn placed(&self, head: EntryHead) {
        self.head.set(Some(head));
        self.announce();
    }

    /// The entry's write has returned.
    pub(crate) fn written(&self) {
        self.written.set(true);
        self.announce();
    }

    fn announce(&self) {
        let Some(head) = self.head.get() else { return };
        if !self.written.get() || self.announced.replace(true) {
            return;
        }
        if let Some(waiting) = self.proposal.borrow_mut().as_mut() {
            waiting.observer.appended(head);
        }
    }

    fn finish_stopped(&self) {
        let Some(waiting) = self.proposal.borrow_mut().take() else {
            return;
        };
        match self.head.get() {
            Some(_) => waiting.observer.finished(ProposalOutcome::Discarded),
            None => waiting.refuse(RefuseReason::Stopped),
        }
    }
}

/// An empty internal payload marks a void.
pub(crate) fn void() -> Bytes {
    Bytes::new()
}

fn leader_node(forward: &ForwardToLeader<TypeConfig>) -> Option<NodeId> {
    forward.leader_node.map(|leader| leader.node)
}

#[cfg(test)]
mod tests;
