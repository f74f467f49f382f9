//! The ordered door: proposals of one replica are appended in the order of the calls, or fail.
//!
//! openraft refuses a write at once when the leader's lease has expired, and takes the next one
//! when it is back: pipelined proposals would swap. So each proposal carries a number, counted per
//! term, which is checked inside the log store's `append`, the only place that sees the log's
//! order. An entry that comes before its predecessor is written as a void; the proposal itself
//! waits here with the predecessor and both are proposed again once a majority has confirmed the
//! leader, or both fail.

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
use tokio::time::Instant;

use crate::proposal::{Proposal, ProposalObserver, ProposalOutcome, ProposalPayload, RefuseReason};
use crate::replica_core::Core;
use crate::types::{Body, CallbackResponder, Proposed, TypeConfig, committed_leader};

/// One attempt to have one proposal appended.
pub struct Ticket {
    /// The number that `append` checks; a new one for each attempt.
    seq: u64,
    term: Term,
    proposal: RefCell<Option<Waiting>>,
    head: Cell<Option<EntryHead>>,
    /// Counted in the door's `in_flight`.
    counted: Cell<bool>,
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

/// Law: entries with tickets enter the log with `seq` rising by one within a term; `expected`
/// moves only in `admit` and, with nothing in flight, in `resync`.
#[derive(Default)]
struct State {
    term: Term,
    next_order: u64,
    next_seq: u64,
    expected: u64,
    /// Handed to openraft, neither appended nor refused yet.
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
    /// A ticket was appended, refused or dropped.
    fn landed(&mut self, ticket: &Ticket) {
        if ticket.counted.replace(false) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }
}

/// The door of one replica.
pub(crate) struct Door {
    state: RefCell<State>,
    core: RefCell<Weak<Core>>,
}

impl Door {
    pub(crate) fn new() -> Door {
        Door {
            state: RefCell::default(),
            core: RefCell::new(Weak::new()),
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
        let waiting = {
            let mut state = self.state.borrow_mut();
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
            } else if state.held.is_empty()
                && !state.broken
                && state.in_flight < core.config.propose_window
            {
                Ok(Some(waiting))
            } else {
                state.held.push_back(waiting);
                Ok(None)
            }
        };
        match waiting {
            Ok(Some(waiting)) => self.send(&core, waiting),
            Ok(None) => self.flow(&core),
            Err((waiting, reason)) => waiting.refuse(reason),
        }
    }

    /// Hands one proposal to openraft.
    fn send(&self, core: &Rc<Core>, waiting: Waiting) {
        let Some(raft) = core.raft() else {
            waiting.refuse(RefuseReason::Stopped);
            return;
        };
        let seq = {
            let mut state = self.state.borrow_mut();
            if waiting.term > state.term {
                // What an older term left in flight can only be refused.
                state.term = waiting.term;
                state.next_seq = 0;
                state.expected = 0;
                state.broken = false;
            }
            let seq = state.next_seq;
            state.next_seq += 1;
            state.in_flight += 1;
            seq
        };
        let term = waiting.term;
        tracing::trace!(target: "corduroy::walk", room = 5, group = %core.group, replica = %core.id, %term, seq, "a proposal goes through the door");
        let body = match &waiting.payload {
            ProposalPayload::Batch(batch) => Body::Batch(batch.clone()),
            ProposalPayload::Internal(bytes) => Body::Internal(bytes.clone()),
        };
        let ticket = Rc::new(Ticket {
            seq,
            term,
            proposal: RefCell::new(Some(waiting)),
            head: Cell::new(None),
            counted: Cell::new(true),
            written: Cell::new(false),
            announced: Cell::new(false),
        });
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
            state.landed(ticket);
            if ticket.term == state.term && ticket.seq == state.expected {
                state.expected += 1;
                return true;
            }
            state.broken || ticket.term != state.term
        };
        if let Some(waiting) = ticket.proposal.borrow_mut().take() {
            if broken {
                self.later(core, waiting, RefuseReason::Predecessor);
            } else {
                self.hold(core, waiting);
            }
        }
        self.flow_later(core);
        false
    }

    /// Refuses after the log store has returned: an observer may call back into the replica.
    fn later(&self, core: &Rc<Core>, waiting: Waiting, reason: RefuseReason) {
        core.env.spawn_local(async move { waiting.refuse(reason) });
    }

    fn hold(&self, core: &Rc<Core>, waiting: Waiting) {
        let mut state = self.state.borrow_mut();
        let at = state
            .held
            .partition_point(|held| held.order < waiting.order);
        state.held.insert(at, waiting);
        drop(state);
        self.recover(core);
    }

    /// openraft has answered a proposal; `None`: dropped unanswered.
    fn completed(
        &self,
        core: &Rc<Core>,
        ticket: &Rc<Ticket>,
        result: Option<ClientWriteResult<TypeConfig>>,
    ) {
        self.state.borrow_mut().landed(ticket);
        // A void's proposal was taken out of its ticket and waits elsewhere.
        let Some(waiting) = ticket.proposal.borrow_mut().take() else {
            return;
        };
        let Some(head) = ticket.head.get() else {
            self.refused(core, waiting, result);
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
        let same_term = waiting.term == self.state.borrow().term;
        if forward.reason == ForwardReason::LeaseExpired
            && same_term
            && core.env.now() < waiting.deadline
        {
            self.hold(core, waiting);
            return;
        }
        let reason = match forward.reason {
            ForwardReason::LeaseExpired => RefuseReason::LeaseLost,
            ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
                RefuseReason::NotLeader {
                    leader: leader_node(&forward),
                }
            }
        };
        if same_term {
            self.break_off(waiting, reason);
        } else {
            waiting.refuse(reason);
        }
        self.flow(core);
    }

    /// A refusal for good: whatever waits behind it at the door fails, whatever is in flight
    /// behind it will be voided.
    fn break_off(&self, first: Waiting, reason: RefuseReason) {
        let behind = {
            let mut state = self.state.borrow_mut();
            state.broken = true;
            std::mem::take(&mut state.held)
        };
        let follow = match reason {
            RefuseReason::LeaseLost => RefuseReason::Predecessor,
            other => other,
        };
        first.refuse(reason);
        for waiting in behind {
            waiting.refuse(follow);
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
                if state.broken {
                    if state.in_flight > 0 {
                        return;
                    }
                    // Nothing is in flight: the numbers may start anew without swapping anything.
                    state.broken = false;
                    state.expected = state.next_seq;
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
            let held = {
                let mut state = core.door.state.borrow_mut();
                state.recovering = false;
                match verdict {
                    Ok(()) => {
                        // `confirm` saw nothing in flight: see `flow`.
                        state.expected = state.next_seq;
                        VecDeque::new()
                    }
                    Err(_) => {
                        state.broken = true;
                        std::mem::take(&mut state.held)
                    }
                }
            };
            if let Err(reason) = verdict {
                let mut reason = reason;
                for waiting in held {
                    waiting.refuse(reason);
                    if reason == RefuseReason::LeaseLost {
                        reason = RefuseReason::Predecessor;
                    }
                }
            }
            core.door.flow(&core);
        });
    }

    /// Waits until nothing is in flight and a majority has confirmed this leader.
    async fn confirm(&self, core: &Rc<Core>) -> Result<(), RefuseReason> {
        let deadline = {
            let state = self.state.borrow();
            state
                .held
                .front()
                .map_or_else(|| core.env.now(), |first| first.deadline)
        };
        while self.state.borrow().in_flight > 0 {
            if self.state.borrow().stopped {
                return Err(RefuseReason::Stopped);
            }
            tokio::task::yield_now().await;
        }
        loop {
            let Some(term) = self.state.borrow().held.front().map(|first| first.term) else {
                return Ok(());
            };
            match core.confirm_leadership(term).await {
                Ok(()) => return Ok(()),
                Err(Some(reason)) => return Err(reason),
                Err(None) if core.env.now() >= deadline => return Err(RefuseReason::LeaseLost),
                Err(None) => core.env.sleep(core.config.reconnect_min).await,
            }
        }
    }

    /// The replica stops: nothing is taken any more.
    pub(crate) fn stop(&self) {
        let held = {
            let mut state = self.state.borrow_mut();
            state.stopped = true;
            std::mem::take(&mut state.held)
        };
        for waiting in held {
            waiting.refuse(RefuseReason::Stopped);
        }
    }

    /// A restarted instance begins a new order: nothing of the old one is in flight.
    pub(crate) fn restart(&self) {
        let mut state = self.state.borrow_mut();
        state.stopped = false;
        state.broken = false;
        state.in_flight = 0;
        state.expected = state.next_seq;
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
