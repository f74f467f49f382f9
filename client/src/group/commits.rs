//! Which commits wait, which goes next, and what its answer means. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_protocol::ErrorCode;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ledger::{Ledger, Position, Standing};
use super::machine::Identity;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;

/// A commit that somebody waits for.
pub(super) struct Waiting {
    pub(super) at: TopicPartition,
    pub(super) incarnation: u64,
    pub(super) position: Position,
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

/// Positions of one request, each with its ownership.
pub(super) type Positions = BTreeMap<TopicPartition, (u64, Position)>;

/// What an answer means for the membership.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// The coordinator is elsewhere.
    pub(super) is_coordinator_lost: bool,
    /// Another instance has taken over.
    pub(super) fenced: Option<Error>,
}

/// What to do about an error of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Committed,
    /// Ask again, after a while.
    Later,
    /// Ask again, once the coordinator is found.
    Elsewhere,
    /// Ask again under the next generation: the coordinator does not know this one (any more). If
    /// the partition is lost meanwhile, the commit is stale.
    NextGeneration,
    Fenced,
    Refused,
}

fn judge(code: ErrorCode) -> Verdict {
    match code {
        ErrorCode::None => Verdict::Committed,
        ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable => Verdict::Elsewhere,
        ErrorCode::RebalanceInProgress
        | ErrorCode::IllegalGeneration
        | ErrorCode::UnknownMemberId
        | ErrorCode::FencedMemberEpoch
        | ErrorCode::StaleMemberEpoch => Verdict::NextGeneration,
        ErrorCode::FencedInstanceId => Verdict::Fenced,
        code if code.is_retriable() => Verdict::Later,
        _ => Verdict::Refused,
    }
}

/// Law: at most one request is on its way, so that commits keep their order.
pub(super) struct Commits {
    waiting: Vec<Waiting>,
    in_flight: Option<Positions>,
    /// What was processed is to be committed as well.
    is_flushing: bool,
    backoff: Backoff,
    failures: u32,
    not_before: Option<Instant>,
    /// What stood in the way last, for those that run out of time.
    last_error: Option<Error>,
}

impl Commits {
    pub(super) fn new(backoff: Backoff) -> Commits {
        Commits {
            waiting: Vec::new(),
            in_flight: None,
            is_flushing: false,
            backoff,
            failures: 0,
            not_before: None,
            last_error: None,
        }
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    pub(super) fn flush(&mut self) {
        self.is_flushing = true;
    }

    /// Whether anything of these partitions is still to be committed.
    pub(super) fn owes(&self, ledger: &Ledger, partitions: &BTreeSet<TopicPartition>) -> bool {
        let owed = self.is_flushing && ledger.owed().keys().any(|at| partitions.contains(at));
        owed || self
            .waiting
            .iter()
            .any(|waiting| partitions.contains(&waiting.at))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.waiting.is_empty() && !self.is_flushing
    }

    /// Answers those that can be answered, then says what to send now.
    pub(super) fn next(
        &mut self,
        ledger: &Ledger,
        now: Instant,
        identity: &Identity,
    ) -> Option<Positions> {
        self.settle(ledger, now);
        let is_resting = self.not_before.is_some_and(|until| now < until);
        if self.in_flight.is_some() || is_resting || identity.generation < 0 {
            return None;
        }
        let mut positions = Positions::new();
        if self.is_flushing {
            positions = ledger.owed();
            self.is_flushing = !positions.is_empty();
        }
        for waiting in &self.waiting {
            let entry = (waiting.incarnation, waiting.position);
            let known = positions.entry(waiting.at.clone()).or_insert(entry);
            if known.1.offset < waiting.position.offset {
                *known = entry;
            }
        }
        if positions.is_empty() {
            return None;
        }
        self.in_flight = Some(positions.clone());
        Some(positions)
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        let deadlines = self.waiting.iter().map(|waiting| waiting.deadline);
        let rests = self.not_before.filter(|_| !self.is_idle());
        deadlines.chain(rests).min()
    }

    /// The request that was on its way has ended.
    pub(super) fn answered(
        &mut self,
        ledger: &mut Ledger,
        now: Instant,
        answer: Result<BTreeMap<TopicPartition, ErrorCode>, Error>,
    ) -> Consequences {
        let mut consequences = Consequences::default();
        let sent = self.in_flight.take().unwrap_or_default();
        let codes = match answer {
            Ok(codes) => codes,
            Err(error) => {
                if error.is_retriable() || error.kind() == ErrorKind::Closed {
                    consequences.is_coordinator_lost = true;
                    self.rest(now, error);
                } else {
                    self.refuse(&sent.into_keys().collect(), &error);
                }
                return consequences;
            }
        };
        let mut rest = None;
        for (at, (incarnation, position)) in sent {
            let code = codes
                .get(&at)
                .copied()
                .unwrap_or(ErrorCode::UnknownServerError);
            let error = || Error::broker(code, None).with_partition(&at.topic, at.partition);
            match judge(code) {
                Verdict::Committed => ledger.committed(&at, incarnation, position.offset),
                Verdict::Later | Verdict::NextGeneration => rest = Some(error()),
                Verdict::Elsewhere => {
                    consequences.is_coordinator_lost = true;
                    rest = Some(error());
                }
                Verdict::Fenced => {
                    consequences.fenced = Some(error());
                    self.refuse(&[at.clone()].into(), &error());
                }
                Verdict::Refused => self.refuse(&[at.clone()].into(), &error()),
            }
        }
        match rest {
            Some(error) => self.rest(now, error),
            None => {
                self.failures = 0;
                self.not_before = None;
                self.is_flushing = false;
            }
        }
        self.settle(ledger, now);
        consequences
    }

    /// Everybody who waits is told.
    pub(super) fn fail(&mut self, error: &Error) {
        self.is_flushing = false;
        for waiting in self.waiting.drain(..) {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    fn rest(&mut self, now: Instant, error: Error) {
        self.failures += 1;
        self.not_before = Some(now + self.backoff.wait_by(self.failures, 50));
        tracing::debug!(%error, "a commit is tried again");
        self.last_error = Some(error);
    }

    fn refuse(&mut self, partitions: &BTreeSet<TopicPartition>, error: &Error) {
        if self.is_flushing {
            tracing::error!(%error, "positions could not be committed");
            self.is_flushing = false;
        }
        let (refused, kept): (Vec<Waiting>, Vec<Waiting>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| partitions.contains(&waiting.at));
        self.waiting = kept;
        for waiting in refused {
            // Who gave up waiting needs no answer.
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    fn settle(&mut self, ledger: &Ledger, now: Instant) {
        let last_error = &self.last_error;
        let mut kept = Vec::with_capacity(self.waiting.len());
        for waiting in self.waiting.drain(..) {
            let Waiting {
                at,
                incarnation,
                position,
                deadline,
                ..
            } = &waiting;
            let result = if ledger.standing(at, *incarnation) == Standing::Stale {
                Err(stale(at))
            } else if !ledger.advances(at, position.offset) {
                Ok(())
            } else if now >= *deadline {
                let late = || Error::new(ErrorKind::ApiTimeout, "not committed in time");
                Err(last_error.clone().unwrap_or_else(late))
            } else {
                kept.push(waiting);
                continue;
            };
            let _ = waiting.reply.send(result);
        }
        self.waiting = kept;
    }
}

/// The partition was given up after the batch was handed out.
pub(super) fn stale(at: &TopicPartition) -> Error {
    let message = "the partition has been taken from this member since it got the batch; \
                   whoever has it now reads the batch again";
    Error::new(ErrorKind::StaleGeneration, message).with_partition(&at.topic, at.partition)
}
