//! The consumer protocol's member (KIP-848): one heartbeat, by which the coordinator hands
//! partitions out one by one, each after its last owner has given it back. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use tokio::time::Instant;
use uuid::Uuid;

use super::machine::{Act, Call, Identity, MemberConfig, Seat, retry_later};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The epoch of a member that wants to join.
pub(super) const JOIN_EPOCH: i32 = 0;

/// The epoch by which a member leaves for good.
const LEAVE_EPOCH: i32 = -1;

/// The epoch by which a static member says that it will be back.
const LEAVE_FOR_NOW_EPOCH: i32 = -2;

/// Partitions by topic id, as the coordinator names them.
pub(super) type ById = BTreeMap<Uuid, BTreeSet<i32>>;

/// One ConsumerGroupHeartbeat. What is `None` has not changed since the last answered one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Beat {
    pub(super) identity: Identity,
    /// Subscription, assignor and rebalance timeout are told again.
    pub(super) is_full: bool,
    pub(super) owned: Option<ById>,
}

/// The answer to a [`Beat`].
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub(super) identity: Identity,
    pub(super) heartbeat_interval: Duration,
    pub(super) assignment: Option<ById>,
}

#[derive(Debug, PartialEq)]
enum Phase {
    Joining,
    Stable,
    /// The user is asked to give these back.
    Releasing(BTreeSet<TopicPartition>),
    Away,
    Gone,
}

/// Law: `owned` is what the user may process; it changes only together with an act that says so.
/// Law: what the coordinator was told to be owned (`told`) holds all of `owned` that others could
/// want: it is told anew only once the user has given partitions back.
pub(super) struct Consumer {
    config: MemberConfig,
    identity: Identity,
    owned: BTreeSet<TopicPartition>,
    /// What the coordinator wants this member to have, once it has said so.
    target: Option<ById>,
    /// The topics' ids and names, as far as known.
    names: BTreeMap<Uuid, Arc<str>>,
    /// The owned partitions of the last heartbeat that was answered.
    told: Option<ById>,
    is_told_everything: bool,
    /// The owned partitions of the heartbeat that is on its way.
    telling: Option<ById>,
    phase: Phase,
    pub(super) seat: Seat,
    pub(super) failed: Option<Error>,
    is_calling: bool,
    heartbeat_at: Instant,
    has_assigned: bool,
    due: Vec<Act>,
}

impl Consumer {
    /// `member_id` is this process's own choice (version 1 of the API).
    pub(super) fn new(config: MemberConfig, member_id: String, now: Instant) -> Consumer {
        Consumer {
            identity: Identity {
                member_id,
                generation: JOIN_EPOCH,
            },
            owned: BTreeSet::new(),
            target: None,
            names: BTreeMap::new(),
            told: None,
            is_told_everything: false,
            telling: None,
            phase: Phase::Joining,
            seat: Seat::new(config.backoff),
            failed: None,
            is_calling: false,
            heartbeat_at: now,
            has_assigned: false,
            due: Vec::new(),
            config,
        }
    }

    /// As commits are signed: nobody commits before the first epoch.
    pub(super) fn identity(&self) -> Identity {
        let is_member = self.identity.generation > JOIN_EPOCH;
        Identity {
            member_id: self.identity.member_id.clone(),
            generation: if is_member {
                self.identity.generation
            } else {
                -1
            },
        }
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
        if self.is_calling || self.phase == Phase::Away {
            return None;
        }
        if !self.seat.is_known() {
            return self.seat.seek(now).then_some(Act::Find);
        }
        if self.seat.is_resting(now) || now < self.heartbeat_at {
            return None;
        }
        let is_joining = self.phase == Phase::Joining;
        let owned = if is_joining {
            ById::new()
        } else {
            self.owned_by_id()
        };
        let is_news = !self.is_told_everything || self.told.as_ref() != Some(&owned);
        let beat = Beat {
            identity: self.identity.clone(),
            is_full: is_joining || !self.is_told_everything,
            owned: is_news.then(|| owned.clone()),
        };
        self.telling = Some(owned);
        self.is_calling = true;
        Some(Act::Send(Call::ConsumerHeartbeat(beat)))
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        let is_idle = self.is_calling || matches!(self.phase, Phase::Away | Phase::Gone);
        let beat = (!is_idle).then_some(self.heartbeat_at);
        match (self.seat.rests_until(), beat) {
            (Some(rest), Some(beat)) => Some(rest.min(beat)),
            (rest, beat) => rest.or(beat),
        }
    }

    pub(super) fn beaten(&mut self, now: Instant, answer: Result<Pulse, Error>) {
        self.is_calling = false;
        let told = self.telling.take();
        if matches!(self.phase, Phase::Away | Phase::Gone) {
            return;
        }
        match answer {
            Ok(pulse) => {
                self.seat.served();
                self.identity = pulse.identity;
                self.told = told;
                self.is_told_everything = true;
                self.heartbeat_at = now + pulse.heartbeat_interval;
                if self.phase == Phase::Joining {
                    self.phase = Phase::Stable;
                }
                if let Some(target) = pulse.assignment {
                    self.target = Some(target);
                }
                self.reconcile(now);
            }
            Err(error) => match error.code() {
                Some(ErrorCode::UnknownMemberId | ErrorCode::FencedMemberEpoch) => {
                    self.lose();
                    self.phase = Phase::Joining;
                    self.heartbeat_at = now;
                }
                _ => {
                    // Whether the coordinator has heard it is not known: it is told again.
                    self.is_told_everything = false;
                    if self.seat.is_known() && !retry_later(&mut self.seat, now, &error) {
                        self.failed = Some(error);
                    }
                    self.heartbeat_at = now;
                }
            },
        }
    }

    /// Names for topic ids, as the metadata has them.
    pub(super) fn topics_changed(
        &mut self,
        now: Instant,
        topics: impl Iterator<Item = (Uuid, Arc<str>)>,
    ) {
        let before = self.names.len();
        self.names.extend(topics);
        if self.names.len() > before && self.phase == Phase::Stable {
            self.reconcile(now);
        }
    }

    /// Whether the coordinator assigned a topic whose name is not known yet.
    pub(super) fn lacks_names(&self) -> bool {
        self.target
            .as_ref()
            .is_some_and(|target| target.keys().any(|id| !self.names.contains_key(id)))
    }

    pub(super) fn released(&mut self, now: Instant) {
        if let Phase::Releasing(released) = &self.phase {
            self.owned = &self.owned - released;
            self.phase = Phase::Stable;
            self.heartbeat_at = now;
            self.reconcile(now);
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

    fn sign_off(&self) -> Option<Identity> {
        // A join that is on its way makes it a member as well.
        let is_member = self.identity.generation > JOIN_EPOCH || self.is_calling;
        is_member.then(|| Identity {
            member_id: self.identity.member_id.clone(),
            generation: if self.config.instance_id.is_some() {
                LEAVE_FOR_NOW_EPOCH
            } else {
                LEAVE_EPOCH
            },
        })
    }

    /// One step from what is owned to what the coordinator wants: first give back, then take.
    fn reconcile(&mut self, now: Instant) {
        let Some(target) = &self.target else { return };
        if self.phase != Phase::Stable {
            return;
        }
        let mut wanted = BTreeSet::new();
        for (id, partitions) in target {
            // Those without a name wait for the metadata.
            if let Some(name) = self.names.get(id) {
                let named = partitions
                    .iter()
                    .map(|partition| TopicPartition::new(name.clone(), *partition));
                wanted.extend(named);
            }
        }
        let revoked = &self.owned - &wanted;
        if !revoked.is_empty() {
            self.due.push(Act::Revoke(revoked.clone()));
            self.phase = Phase::Releasing(revoked);
            return;
        }
        let added = &wanted - &self.owned;
        if !added.is_empty() || !self.has_assigned {
            self.has_assigned = true;
            self.owned = wanted;
            self.due.push(Act::Assign(added));
        }
        if self.told.as_ref() != Some(&self.owned_by_id()) {
            // The coordinator waits for this before it gives what was given back to others.
            self.heartbeat_at = now;
        }
    }

    fn lose(&mut self) {
        let lost = std::mem::take(&mut self.owned);
        self.identity.generation = JOIN_EPOCH;
        self.target = None;
        self.told = None;
        self.is_told_everything = false;
        self.has_assigned = false;
        self.due.clear();
        if !lost.is_empty() {
            self.due.push(Act::Lose(lost));
        }
    }

    fn owned_by_id(&self) -> ById {
        let ids: BTreeMap<&Arc<str>, Uuid> =
            self.names.iter().map(|(id, name)| (name, *id)).collect();
        let mut owned = ById::new();
        for at in &self.owned {
            if let Some(id) = ids.get(&at.topic) {
                owned.entry(*id).or_default().insert(at.partition);
            }
        }
        owned
    }
}
