//! What a member of a group does next, whichever protocol it speaks. Pure.
//!
//! A machine is told what happened and when; [`Machine::step`] says what to do, one act at a time,
//! until there is nothing left to do before [`Machine::wake_at`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::assignor::{Assignments, PartitionCounts, Subscriber};
use super::classic::Classic;
use super::consumer::Consumer;
use super::embedded::Previous;
use super::pattern::Pattern;
use crate::backoff::Backoff;
use crate::config::Strategy;
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;
use corduroy_protocol::ErrorCode;

/// What stays the same for a member's whole life.
#[derive(Clone, Debug)]
pub(super) struct MemberConfig {
    pub(super) group: Arc<str>,
    pub(super) topics: BTreeSet<Arc<str>>,
    /// Topics that have no name yet.
    pub(super) pattern: Option<Pattern>,
    /// Set for a static member (KIP-345).
    pub(super) instance_id: Option<String>,
    pub(super) session_timeout: Duration,
    /// How long the others wait for this member in a rebalance.
    pub(super) rebalance_timeout: Duration,
    pub(super) heartbeat_interval: Duration,
    pub(super) strategies: Vec<Strategy>,
    /// The coordinator's assignor, `None` = its default (consumer protocol).
    pub(super) remote_assignor: Option<String>,
    pub(super) backoff: Backoff,
}

/// Who a member is, as it signs commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(super) member_id: String,
    /// The generation, or the member epoch of the consumer protocol; -1 = no member.
    pub(super) generation: i32,
}

/// What a member of the classic protocol joins with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    pub(super) identity: Identity,
    pub(super) topics: BTreeSet<Arc<str>>,
    /// What this member has and may keep: nothing under an eager protocol.
    pub(super) owned: BTreeSet<TopicPartition>,
    /// What it had last and would like to have again (the sticky strategy).
    pub(super) previous: Previous,
}

/// A request to the coordinator. At most one is on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    Join(Wish),
    Sync {
        identity: Identity,
        strategy: Strategy,
        /// The leader's answer to everybody; empty for the others.
        assignments: Assignments,
    },
    Heartbeat {
        identity: Identity,
    },
    /// The one request of the consumer protocol (KIP-848).
    ConsumerHeartbeat(super::consumer::Beat),
}

/// What to do.
#[derive(Debug)]
pub(super) enum Act {
    /// Find the coordinator, then tell [`Machine::found`].
    Find,
    /// Send this, then tell the answer.
    Send(Call),
    /// This member leads: divide the partitions, then tell [`Machine::divided`].
    Divide {
        strategy: Strategy,
        members: Vec<Subscriber>,
    },
    /// The user gets these. Told once in each generation, also with none.
    Assign(BTreeSet<TopicPartition>),
    /// The user gives these back, then tell [`Machine::released`].
    Revoke(BTreeSet<TopicPartition>),
    /// These belong to somebody else by now.
    Lose(BTreeSet<TopicPartition>),
    /// It is over.
    Fail(Error),
}

/// The coordinator accepted a member.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) identity: Identity,
    /// The protocol's name, as the coordinator chose it.
    pub(super) protocol: String,
    /// All members, for the one that leads and has to divide.
    pub(super) lead: Option<Vec<Subscriber>>,
}

/// Why a join was not accepted.
#[derive(Clone, Debug)]
pub(super) enum JoinRefusal {
    /// Join again under this id (KIP-394).
    MemberIdRequired(String),
    Error(Error),
}

pub(super) enum Machine {
    Classic(Classic),
    Consumer(Consumer),
}

impl Machine {
    pub(super) fn step(&mut self, now: Instant) -> Option<Act> {
        match self {
            Machine::Classic(machine) => machine.step(now),
            Machine::Consumer(machine) => machine.step(now),
        }
    }

    /// When to step again although nothing happened.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match self {
            Machine::Classic(machine) => machine.wake_at(),
            Machine::Consumer(machine) => machine.wake_at(),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        match self {
            Machine::Classic(machine) => machine.identity().clone(),
            Machine::Consumer(machine) => machine.identity(),
        }
    }

    /// The coordinator was found, or was not.
    pub(super) fn found(&mut self, now: Instant, found: Result<(), Error>) {
        let (seat, failed) = match self {
            Machine::Classic(machine) => (&mut machine.seat, &mut machine.failed),
            Machine::Consumer(machine) => (&mut machine.seat, &mut machine.failed),
        };
        if let Err(error) = seat.found(now, found) {
            failed.get_or_insert(error);
        }
    }

    pub(super) fn has_coordinator(&self) -> bool {
        match self {
            Machine::Classic(machine) => machine.seat.is_known(),
            Machine::Consumer(machine) => machine.seat.is_known(),
        }
    }

    /// Somebody else, a commit for example, was told that the coordinator is not there.
    pub(super) fn coordinator_lost(&mut self) {
        match self {
            Machine::Classic(machine) => machine.seat.lost(),
            Machine::Consumer(machine) => machine.seat.lost(),
        }
    }

    pub(super) fn divided(&mut self, assignments: Assignments, counts: PartitionCounts) {
        if let Machine::Classic(machine) = self {
            machine.divided(assignments, counts);
        }
    }

    /// The user has given back what it was asked for.
    pub(super) fn released(&mut self, now: Instant) {
        match self {
            Machine::Classic(machine) => machine.released(),
            Machine::Consumer(machine) => machine.released(now),
        }
    }

    /// The user takes longer than `max.poll.interval.ms`. Returns whom to sign off.
    pub(super) fn stuck(&mut self) -> Option<Identity> {
        match self {
            Machine::Classic(machine) => machine.stuck(),
            Machine::Consumer(machine) => machine.stuck(),
        }
    }

    /// The user asks for records.
    pub(super) fn polled(&mut self) {
        match self {
            Machine::Classic(machine) => machine.polled(),
            Machine::Consumer(machine) => machine.polled(),
        }
    }

    /// The member goes. Returns whom to sign off.
    pub(super) fn leave(&mut self) -> Option<Identity> {
        match self {
            Machine::Classic(machine) => machine.leave(),
            Machine::Consumer(machine) => machine.leave(),
        }
    }
}

/// Where the coordinator is, as far as decisions go: its death is no rebalance, the same request
/// goes to the next one.
#[derive(Debug)]
pub(super) struct Seat {
    state: SeatState,
    backoff: Backoff,
    failures: u32,
    not_before: Option<Instant>,
    /// 0 to 99: how this member's waits differ from those of others.
    spread: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeatState {
    Unknown,
    Finding,
    Known,
}

impl Seat {
    pub(super) fn new(backoff: Backoff) -> Seat {
        Seat {
            state: SeatState::Unknown,
            backoff,
            failures: 0,
            not_before: None,
            spread: 50,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.state == SeatState::Known
    }

    pub(super) fn lost(&mut self) {
        if self.state == SeatState::Known {
            self.state = SeatState::Unknown;
        }
    }

    fn found(&mut self, now: Instant, found: Result<(), Error>) -> Result<(), Error> {
        match found {
            Ok(()) => {
                self.state = SeatState::Known;
                Ok(())
            }
            Err(error) => {
                self.state = SeatState::Unknown;
                if !error.is_retriable() {
                    return Err(error);
                }
                self.rest(now);
                Ok(())
            }
        }
    }

    /// The next request waits, longer after each failure in a row.
    pub(super) fn rest(&mut self, now: Instant) {
        self.failures += 1;
        self.not_before = Some(now + self.backoff.wait_by(self.failures, self.spread));
        self.spread = (self.spread * 37 + 11) % 100;
    }

    /// The coordinator did what it was asked for.
    pub(super) fn served(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| now < until)
    }

    pub(super) fn rests_until(&self) -> Option<Instant> {
        self.not_before
    }

    /// Whether to look for the coordinator now.
    pub(super) fn seek(&mut self, now: Instant) -> bool {
        let seek = self.state == SeatState::Unknown && !self.is_resting(now);
        if seek {
            self.state = SeatState::Finding;
        }
        seek
    }
}

/// What an error of the coordinator means to the seat: `true` if the same may be asked again later.
pub(super) fn retry_later(seat: &mut Seat, now: Instant, error: &Error) -> bool {
    let is_away = matches!(
        error.kind(),
        ErrorKind::Disconnected
            | ErrorKind::NotServing
            | ErrorKind::RequestTimeout
            | ErrorKind::Closed
            | ErrorKind::Broker(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable)
    );
    if is_away {
        seat.lost();
    }
    let again = is_away || error.is_retriable();
    if again {
        seat.rest(now);
    }
    again
}
