//! The classic protocol's member: joins, syncs, shows that it lives, and rejoins. Pure.
//!
//! Rules: Kafka's protocol guide, KIP-62 (background heartbeats), KIP-345 (static members), KIP-394
//! (member ids), KIP-429 (cooperative rebalances).
//!
//! | phase | leaves it by |
//! |---|---|
//! | Joining | accepted: Dividing (leads) or Syncing |
//! | Dividing | divided: Syncing |
//! | Syncing | assigned: Stable, or Releasing what it has to give up (cooperative) |
//! | Stable | the coordinator or the topics ask for a rebalance: Releasing (eager) or Joining |
//! | Releasing | released: Joining; heartbeats go on meanwhile |
//! | Away | the user asks for records again: Joining |

use std::collections::BTreeSet;
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use tokio::time::Instant;

use super::assignor::{Assignments, PartitionCounts};
use super::embedded::Previous;
use super::machine::{
    Act, Call, Identity, JoinRefusal, Joined, MemberConfig, Seat, Wish, retry_later,
};
use crate::config::Strategy;
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;

/// The generation of somebody who is no member.
const NO_GENERATION: i32 = -1;

#[derive(Debug, PartialEq)]
enum Phase {
    Joining,
    /// The driver divides; nothing is on its way.
    Dividing,
    Syncing(Assignments),
    Stable,
    Releasing(BTreeSet<TopicPartition>),
    /// It left because its user took too long.
    Away,
    Gone,
}

/// Law: `owned` is what the user may process; it changes only together with an act that says so.
pub(super) struct Classic {
    config: MemberConfig,
    /// All strategies can hand over partition by partition: nothing is given up before a rejoin.
    is_cooperative: bool,
    identity: Identity,
    strategy: Option<Strategy>,
    /// What this member wants to read; `None` until somebody has looked what a pattern matches.
    topics: Option<BTreeSet<Arc<str>>>,
    /// What it said last that it wants.
    asked: BTreeSet<Arc<str>>,
    owned: BTreeSet<TopicPartition>,
    previous: Previous,
    phase: Phase,
    pub(super) seat: Seat,
    pub(super) failed: Option<Error>,
    is_calling: bool,
    heartbeat_at: Instant,
    /// Acts that are due before anything else.
    due: Vec<Act>,
    /// As the leader: what the last division was made for.
    divided_for: Option<PartitionCounts>,
}

impl Classic {
    pub(super) fn new(config: MemberConfig, now: Instant) -> Classic {
        Classic {
            is_cooperative: config
                .strategies
                .iter()
                .all(|strategy| *strategy == Strategy::CooperativeSticky),
            identity: Identity {
                member_id: String::new(),
                generation: NO_GENERATION,
            },
            strategy: None,
            topics: config.pattern.is_none().then(|| config.topics.clone()),
            asked: BTreeSet::new(),
            owned: BTreeSet::new(),
            previous: Previous::default(),
            phase: Phase::Joining,
            seat: Seat::new(config.backoff),
            failed: None,
            is_calling: false,
            heartbeat_at: now,
            due: Vec::new(),
            divided_for: None,
            config,
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn step(&mut self, now: Instant) -> Option<Act> {
        if !self.due.is_empty() {
            return Some(self.due.remove(0));
        }
        if self.phase == Phase::Gone {
            return None;
        }
        if let Some(error) = self.failed.take() {
            self.phase = Phase::Gone;
            return Some(Act::Fail(error));
        }
        if self.is_calling || matches!(self.phase, Phase::Dividing | Phase::Away) {
            return None;
        }
        if !self.seat.is_known() {
            return self.seat.seek(now).then_some(Act::Find);
        }
        if self.seat.is_resting(now) {
            return None;
        }
        let identity = self.identity.clone();
        let call = match &self.phase {
            Phase::Joining => {
                self.asked = self.topics.clone()?;
                Call::Join(Wish {
                    identity,
                    topics: self.asked.clone(),
                    owned: if self.is_cooperative {
                        self.owned.clone()
                    } else {
                        BTreeSet::new()
                    },
                    previous: self.previous.clone(),
                })
            }
            Phase::Syncing(assignments) => Call::Sync {
                identity,
                strategy: self.strategy?,
                assignments: assignments.clone(),
            },
            Phase::Stable | Phase::Releasing(_) if now >= self.heartbeat_at => {
                Call::Heartbeat { identity }
            }
            _ => return None,
        };
        self.is_calling = true;
        Some(Act::Send(call))
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        let beats = matches!(self.phase, Phase::Stable | Phase::Releasing(_)) && !self.is_calling;
        let beat = beats.then_some(self.heartbeat_at);
        match (self.seat.rests_until(), beat) {
            (Some(rest), Some(beat)) => Some(rest.min(beat)),
            (rest, beat) => rest.or(beat),
        }
    }

    pub(super) fn joined(&mut self, now: Instant, answer: Result<Joined, JoinRefusal>) {
        self.is_calling = false;
        if self.phase != Phase::Joining {
            return;
        }
        match answer {
            Ok(joined) => {
                self.seat.served();
                self.identity = joined.identity;
                self.strategy = Strategy::from_name(&joined.protocol);
                let Some(strategy) = self.strategy else {
                    let message = format!(
                        "the group chose `{}`, which this member did not offer",
                        joined.protocol
                    );
                    self.failed = Some(Error::new(ErrorKind::Malformed, message));
                    return;
                };
                self.divided_for = None;
                match joined.lead {
                    Some(members) => {
                        self.phase = Phase::Dividing;
                        self.due.push(Act::Divide { strategy, members });
                    }
                    None => self.phase = Phase::Syncing(Assignments::new()),
                }
            }
            Err(JoinRefusal::MemberIdRequired(member_id)) => self.identity.member_id = member_id,
            Err(JoinRefusal::Error(error)) => self.refused(now, error),
        }
    }

    pub(super) fn divided(&mut self, assignments: Assignments, counts: PartitionCounts) {
        if self.phase == Phase::Dividing {
            self.divided_for = Some(counts);
            self.phase = Phase::Syncing(assignments);
        }
    }

    pub(super) fn synced(&mut self, now: Instant, answer: Result<BTreeSet<TopicPartition>, Error>) {
        self.is_calling = false;
        if !matches!(self.phase, Phase::Syncing(_)) {
            return;
        }
        match answer {
            Ok(assigned) => {
                self.seat.served();
                self.heartbeat_at = now + self.config.heartbeat_interval;
                self.previous = Previous {
                    partitions: assigned.clone(),
                    generation: self.identity.generation,
                };
                let added = &assigned - &self.owned;
                let revoked = &self.owned - &assigned;
                self.owned.extend(added.iter().cloned());
                self.due.push(Act::Assign(added));
                self.phase = Phase::Stable;
                if !revoked.is_empty() {
                    self.release(revoked);
                } else if self.topics.as_ref() != Some(&self.asked) {
                    // What the pattern matches has changed while the group joined.
                    self.rejoin();
                }
            }
            // Another rebalance, or another coordinator that does not know of this one: the
            // assignment that was waited for will not come.
            Err(error) => {
                self.phase = Phase::Joining;
                if error.code() != Some(ErrorCode::RebalanceInProgress) {
                    self.refused(now, error);
                }
            }
        }
    }

    pub(super) fn beaten(&mut self, now: Instant, answer: Result<(), Error>) {
        self.is_calling = false;
        if !matches!(self.phase, Phase::Stable | Phase::Releasing(_)) {
            return;
        }
        self.heartbeat_at = now + self.config.heartbeat_interval;
        match answer {
            Ok(()) => self.seat.served(),
            Err(error) if error.code() == Some(ErrorCode::RebalanceInProgress) => {
                self.seat.served();
                self.rejoin();
            }
            Err(error) => {
                // A silent coordinator: the next one is told at once, and knows this generation.
                if !self.seat.is_known() || retry_later(&mut self.seat, now, &error) {
                    self.heartbeat_at = now;
                    return;
                }
                self.refused(now, error);
            }
        }
    }

    /// The number of partitions of what the group reads, as far as known.
    pub(super) fn topics_changed(&mut self, counts: &PartitionCounts) {
        let is_news = self.divided_for.as_ref().is_some_and(|for_| for_ != counts);
        if is_news && self.phase == Phase::Stable {
            self.rejoin();
        }
    }

    /// These topics are wanted from now on: the group is told by a rebalance. `false` if they were
    /// wanted before.
    pub(super) fn subscribe(&mut self, topics: BTreeSet<Arc<str>>) -> bool {
        if self.topics.as_ref() == Some(&topics) {
            return false;
        }
        self.topics = Some(topics);
        if self.phase == Phase::Stable {
            self.rejoin();
        }
        true
    }

    pub(super) fn released(&mut self) {
        if let Phase::Releasing(released) = &self.phase {
            self.owned = &self.owned - released;
            self.phase = Phase::Joining;
        }
    }

    pub(super) fn stuck(&mut self) -> Option<Identity> {
        if matches!(self.phase, Phase::Away | Phase::Gone) {
            return None;
        }
        let leaving = self.sign_off();
        self.lose();
        self.phase = Phase::Away;
        leaving
    }

    pub(super) fn polled(&mut self) {
        if self.phase == Phase::Away {
            self.phase = Phase::Joining;
        }
    }

    pub(super) fn leave(&mut self) -> Option<Identity> {
        let leaving = match self.phase {
            Phase::Away | Phase::Gone => None,
            _ => self.sign_off(),
        };
        self.phase = Phase::Gone;
        self.due.clear();
        leaving
    }

    /// Static members do not leave: their place is kept for the session timeout (KIP-345).
    fn sign_off(&mut self) -> Option<Identity> {
        let identity = std::mem::replace(
            &mut self.identity,
            Identity {
                member_id: String::new(),
                generation: NO_GENERATION,
            },
        );
        let leaves = self.config.instance_id.is_none() && !identity.member_id.is_empty();
        leaves.then_some(identity)
    }

    fn rejoin(&mut self) {
        // Releasing ends in Joining anyway.
        if self.phase == Phase::Stable {
            if self.is_cooperative || self.owned.is_empty() {
                self.phase = Phase::Joining;
            } else {
                self.release(self.owned.clone());
            }
        }
    }

    fn release(&mut self, partitions: BTreeSet<TopicPartition>) {
        self.due.push(Act::Revoke(partitions.clone()));
        self.phase = Phase::Releasing(partitions);
    }

    fn lose(&mut self) {
        let lost = std::mem::take(&mut self.owned);
        self.divided_for = None;
        // Whatever was to be handed out or back: it is out of this member's hands.
        self.due.clear();
        if !lost.is_empty() {
            self.due.push(Act::Lose(lost));
        }
    }

    /// What any request may be answered with, by Kafka's client.
    fn refused(&mut self, now: Instant, error: Error) {
        match error.code() {
            Some(ErrorCode::UnknownMemberId) => {
                self.lose();
                self.identity.member_id.clear();
                self.identity.generation = NO_GENERATION;
                self.phase = Phase::Joining;
            }
            Some(ErrorCode::IllegalGeneration) => {
                self.lose();
                self.identity.generation = NO_GENERATION;
                self.phase = Phase::Joining;
            }
            Some(ErrorCode::RebalanceInProgress) => self.seat.rest(now),
            _ if retry_later(&mut self.seat, now, &error) => {}
            _ => self.failed = Some(error),
        }
    }
}
