//! Replicas that lost log, and perhaps their vote, and how their leader takes them back (law 8).

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{LogIndex, NodeId, ReplicaId, Term};
use futures::future::join_all;
use tokio::time::Instant;

use crate::failover::{NO_REPLICA, survey};
use crate::replica_core::Core;
use crate::types::RaftVote;
use crate::wire::{Message, RevertAllowed, Route, SurveyState};

/// First pause before a leader asks again whether it may take a follower back; doubles. A follower
/// reports with every beat, and the voter whose word is missing may be away for hours.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(250);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);

/// A follower that lost log it had acknowledged, and what it must hold before it votes (law 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revert {
    /// The log is what this replica says it is.
    None,
    /// No leader has been told yet.
    Unannounced,
    /// A leader knows; the replica votes again once it durably holds `end`.
    Until { end: (Term, LogIndex) },
    /// It holds that; the flag is being taken down.
    Falling,
}

/// A follower that has told this leader that it lost log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Returning {
    /// The leader's term.
    term: u64,
    /// When it said so first. It has granted no vote since.
    reported_at: Instant,
    /// The others are being asked about it.
    is_asking: bool,
    /// Not before then again.
    ask_at: Instant,
    pause: Duration,
    /// A line was written about its waiting.
    is_told: bool,
}

impl Returning {
    fn new(term: u64, now: Instant) -> Returning {
        Returning {
            term,
            reported_at: now,
            is_asking: false,
            ask_at: now,
            pause: ASK_AGAIN_MIN,
            is_told: false,
        }
    }
}

impl Core {
    /// Law 8. The log raises its flag by itself when a read meets damage, before anybody reopens it.
    pub(crate) fn no_vote(&self) -> bool {
        self.revert.get() != Revert::None || self.log.state().no_vote
    }

    /// A leader lets `replica` come back with a shorter log (law 8), and tells it so, once it knows
    /// that no later leader may have had its vote. It is asked for again while that is not known.
    pub(crate) fn allow_revert(self: &Rc<Self>, replica: u64, node: NodeId) {
        let (now, term) = (self.env.now(), self.term().get());
        let reported_at = {
            let mut returning = self.returning.borrow_mut();
            let entry = returning
                .entry(replica)
                .or_insert_with(|| Returning::new(term, now));
            if entry.is_asking {
                return;
            }
            if entry.term != term {
                *entry = Returning::new(term, now);
            }
            if now < entry.ask_at {
                return;
            }
            entry.is_asking = true;
            entry.reported_at
        };
        let core = self.clone();
        let env = self.env.clone();
        env.spawn_local(async move {
            if may_take_back(&core, ReplicaId::new(replica), node, reported_at).await {
                core.returning.borrow_mut().remove(&replica);
                core.take_back(replica, node).await;
            } else {
                core.put_off(replica);
            }
        });
    }

    /// The others have not said enough: asks them again after a pause, and says so once.
    fn put_off(&self, replica: u64) {
        let mut returning = self.returning.borrow_mut();
        let Some(entry) = returning.get_mut(&replica) else {
            return;
        };
        entry.is_asking = false;
        entry.ask_at = self.env.now() + entry.pause;
        entry.pause = (entry.pause * 2).min(ASK_AGAIN_MAX);
        if !std::mem::replace(&mut entry.is_told, true) {
            tracing::info!(parent: &self.span(), group = %self.group, replica,
                "a follower that lost log waits for other voters: they have to say that they know \
                 no later leader");
        }
    }

    /// A node is back whose word may have been missing: nobody waits a pause out for it.
    pub(crate) fn ask_again(&self) {
        let now = self.env.now();
        for entry in self.returning.borrow_mut().values_mut() {
            entry.ask_at = now;
            entry.pause = ASK_AGAIN_MIN;
        }
    }

    async fn take_back(&self, replica: u64, node: NodeId) {
        let Some(raft) = self.raft() else { return };
        if !matches!(
            raft.trigger().allow_next_revert(&replica, true).await,
            Ok(Ok(()))
        ) {
            return;
        }
        self.forget_follower(replica);
        let Some(end) = self.last_log_id() else {
            return;
        };
        tracing::warn!(parent: &self.span(), group = %self.group, replica,
            "a follower returned with a shorter log");
        let note = RevertAllowed {
            route: Route::new(self.group, self.id, ReplicaId::new(replica)),
            term: self.term().get(),
            end: (&end).into(),
        };
        let message = Message::RevertAllowed(note);
        let _ = self.board.send(node, &message, Vec::new());
    }

    /// A read met damage, and what was damaged went before the log was opened again: it was purged,
    /// or cut with a conflicting end. The flag has stayed, and no leader knows of it yet (law 8).
    pub(crate) fn notice_flag(&self) {
        let log = self.log.state();
        if self.revert.get() != Revert::None || !log.no_vote || self.log.must_reopen() {
            return;
        }
        let revert = match log.last.filter(|_| self.is_leader()) {
            // Its own log is the one that the others follow.
            Some(end) => Revert::Until { end },
            None => Revert::Unannounced,
        };
        self.revert.set(revert);
    }

    /// Lets a flagged replica vote again once it holds what its leader named (law 8). Not while
    /// there is damage in its log that a read has met: the log is reopened first, without it, and
    /// has an end of its own to reach then.
    pub(crate) fn check_revert(self: &Rc<Self>) {
        let Revert::Until { end: (term, index) } = self.revert.get() else {
            return;
        };
        let durable = self.log.state().durable_last;
        if self.log.must_reopen()
            || durable < Some(index)
            || self.log.term_of(index).is_none_or(|found| found < term)
        {
            return;
        }
        self.revert.set(Revert::Falling);
        let core = self.clone();
        let env = self.env.clone();
        env.spawn_local(async move {
            match core.log.set_no_vote(false).await {
                Ok(()) => {
                    if core.revert.get() == Revert::Falling {
                        core.revert.set(Revert::None);
                    }
                    tracing::info!(parent: &core.span(), group = %core.group, "this replica may vote again");
                    if let Some(raft) = core.raft() {
                        raft.runtime_config().elect(!core.no_vote());
                    }
                }
                Err(error) => {
                    core.revert.set(Revert::Until { end: (term, index) });
                    tracing::error!(parent: &core.span(), group = %core.group, %error, "the no-vote flag stays");
                }
            }
        });
    }
}

/// Whether this leader may take `returned` back, which lost log and perhaps its vote (law 8).
///
/// A replica that forgot its vote may have helped to elect a leader of a later term. It would take
/// this one for its leader, and help it to commit what the later one does not hold. So the others are
/// asked first: none knows of a later term, and every majority that `returned` could have been part
/// of has one among those that answered and forgot nothing.
///
/// That says that no later leader has been elected so far. A candidate that still holds the forgotten
/// vote could be: it waits for its other votes. But it counts none that come after its deadline, and
/// `returned` has granted none since `reported_at`. So the word of a majority counts once that time
/// has passed, and at once if all others answered: the candidate is one of them. (A machine that
/// stood still for so long in the middle of its campaign is not covered.)
///
/// If all answered whose nodes have not left the cluster for good, that is all that can ever be
/// known. A replica that still has its vote, for this leader, refuses older ones by itself.
async fn may_take_back(
    core: &Rc<Core>,
    returned: ReplicaId,
    node: NodeId,
    reported_at: Instant,
) -> bool {
    let Some(vote) = core.vote().filter(|_| core.is_leader()) else {
        return false;
    };
    let patience = core.config.transfer_max;
    let ask = |id, node| survey(core, id, node, (NO_REPLICA, 0), patience);
    let own_word = ask(returned, node).await;
    if own_word.is_some_and(|(_, state)| RaftVote::from(state.vote) == vote) {
        return true;
    }
    let others: Vec<(ReplicaId, NodeId)> = core
        .members()
        .into_iter()
        .filter(|(id, _, voter)| *voter && *id != core.id && *id != returned)
        .map(|(id, node, _)| (id, node))
        .filter(|(_, node)| !core.board.book.has_left(*node))
        .collect();
    let asked_at = core.env.now();
    let asks = others
        .iter()
        .filter(|(_, node)| !core.nodes.is_down(*node))
        .map(|(id, node)| ask(*id, *node));
    let answers: Vec<(u64, SurveyState)> = join_all(asks).await.into_iter().flatten().collect();
    if core.vote() != Some(vote) || !core.is_leader() {
        return false;
    }
    if answers
        .iter()
        .any(|(_, state)| state.vote.term > vote.leader_id.term)
    {
        return false;
    }
    let mut sound: BTreeSet<u64> = answers
        .iter()
        .filter(|(_, state)| !state.no_vote)
        .map(|(id, _)| *id)
        .collect();
    sound.insert(core.id.get());
    // A vote request's deadline is openraft's shortest election timeout.
    let settled_at = reported_at + core.config.election_max + core.config.election_min;
    answers.len() == others.len()
        || (asked_at >= settled_at && core.meets_every_quorum_of(returned.get(), &sound))
}
