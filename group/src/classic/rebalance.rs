//! The way from one generation to the next: the join phase, its end, the sync phase's end.

use std::time::Duration;

use bytes::Bytes;
use corduroy_protocol::ErrorCode;

use super::members::{MemberNumber, Standing};
use super::timers::Timer;
use super::{ClassicGroup, ClassicState, Effect};
use crate::{GroupError, Now};

/// The first join phase of an Empty group. It lasts until nobody new has come for
/// `group.initial.rebalance.delay.ms` (KIP-134), so that a group that starts settles once.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitialPhase {
    began: Now,
    /// The longest rebalance timeout of those that came: no longer than this in all.
    patience: Duration,
}

impl ClassicGroup {
    /// Empty -> PreparingRebalance: a first member is about to be added.
    pub(super) fn begin_initial(
        &mut self,
        now: Now,
        now_ms: i64,
        why: &str,
        out: &mut Vec<Effect>,
    ) {
        assert_eq!(
            self.state,
            ClassicState::Empty,
            "a first phase begins in Empty"
        );
        self.initial = Some(InitialPhase {
            began: now,
            patience: Duration::ZERO,
        });
        self.timers.clear(Timer::WriteAgain);
        self.enter(ClassicState::PreparingRebalance, now_ms);
        out.push(Effect::Note(format!(
            "rebalance after generation {}: {why}",
            self.generation
        )));
    }

    /// Somebody new has come: the first phase, if this is one, waits for more.
    pub(super) fn extend_initial(&mut self, now: Now, patience: Duration) {
        if let Some(initial) = &mut self.initial {
            initial.patience = initial.patience.max(patience);
            let quiet = now.saturating_add(self.limits.initial_rebalance_delay);
            let last = initial.began.saturating_add(initial.patience);
            self.timers.set(Timer::Join, quiet.min(last));
        }
    }

    /// CompletingRebalance or Stable -> PreparingRebalance: all members shall join again. The caller
    /// then says who has come, and lets the group [advance](ClassicGroup::advance).
    pub(super) fn begin_rebalance(
        &mut self,
        why: &str,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        assert!(
            matches!(
                self.state,
                ClassicState::CompletingRebalance | ClassicState::Stable
            ),
            "a rebalance begins in CompletingRebalance or Stable"
        );
        for number in self.members.numbers() {
            match self.members.get(number).map(|member| member.standing()) {
                Some(Standing::Synced(Some(ticket))) => {
                    self.members.stand(number, Standing::Away);
                    self.heard(number, now);
                    let error = GroupError::from(ErrorCode::RebalanceInProgress);
                    out.push(Effect::Sync(ticket, Err(error)));
                }
                // It asked to join, and now it may: with the others.
                Some(Standing::Replacing(ticket)) => {
                    self.members.stand(number, Standing::Joined(ticket));
                }
                Some(Standing::OwesSync | Standing::Synced(None)) => {
                    self.members.stand(number, Standing::Away);
                }
                Some(Standing::Away | Standing::Joined(_)) | None => {}
            }
        }
        self.timers.clear(Timer::Sync);
        self.assigned = false;
        self.enter(ClassicState::PreparingRebalance, now_ms);
        out.push(Effect::Note(format!(
            "rebalance after generation {}: {why}",
            self.generation
        )));
    }

    /// A group that has just been read from its record begins in PreparingRebalance.
    pub(super) fn owe_rebalance(&mut self, now: Now) {
        for number in self.members.numbers() {
            self.members.stand(number, Standing::Away);
        }
        self.assigned = false;
        self.state = ClassicState::PreparingRebalance;
        let end = now.saturating_add(self.members.rebalance_timeout());
        self.timers.set(Timer::Join, end);
    }

    /// Members were removed: what the group makes of it.
    pub(super) fn after_removal(
        &mut self,
        why: &str,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        if matches!(
            self.state,
            ClassicState::CompletingRebalance | ClassicState::Stable
        ) {
            self.begin_rebalance(why, now, now_ms, out);
        }
        self.advance(now, now_ms, out);
    }

    /// Ends the join phase if it has nothing to wait for, and otherwise sees to it that it ends.
    pub(super) fn advance(&mut self, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        if self.state != ClassicState::PreparingRebalance {
            return;
        }
        let deadline = self.timers.get(Timer::Join);
        if self.initial.is_some() {
            // Only time ends a first phase; with no delay it is over at once.
            if deadline.is_none_or(|deadline| deadline <= now) {
                self.complete_join(now, now_ms, out);
            }
        } else if self.members.counts().joined == self.members.len() && self.pending.is_empty() {
            self.complete_join(now, now_ms, out);
        } else if deadline.is_none() {
            let end = now.saturating_add(self.members.rebalance_timeout());
            self.timers.set(Timer::Join, end);
        }
    }

    /// PreparingRebalance -> CompletingRebalance with those who came, or -> Empty.
    pub(super) fn complete_join(&mut self, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        assert_eq!(
            self.state,
            ClassicState::PreparingRebalance,
            "a join phase ends in PreparingRebalance"
        );
        self.timers.clear(Timer::Join);
        self.initial = None;
        self.remove_missing(out);
        if self.members.is_empty() {
            self.become_empty(now_ms, out);
            return;
        }
        let Some(leader) = self.elect() else {
            // Static members alone are left, and none came. Their sessions decide: one comes, and
            // the phase has a deadline again, or all go, and the group is Empty.
            out.push(Effect::Note(
                "nobody has joined yet; static members have time".to_owned(),
            ));
            return;
        };
        self.leader = Some(leader);
        self.next_generation();
        self.protocol = self.members.vote();
        assert!(
            self.protocol.is_some(),
            "members share a protocol: each was admitted by that"
        );
        self.enter(ClassicState::CompletingRebalance, now_ms);
        for number in self.members.numbers() {
            self.members.set_assignment(number, Bytes::new());
            let Some(Standing::Joined(ticket)) =
                self.members.get(number).map(|member| member.standing())
            else {
                // A static member that did not come: kept, and not waited for.
                continue;
            };
            self.members.stand(number, Standing::OwesSync);
            self.heard(number, now);
            if let (Some(ticket), Some(answer)) = (ticket, self.answer_joined(number)) {
                out.push(Effect::Join(ticket, answer));
            }
        }
        self.restart_sync_timer(now);
        out.push(Effect::Note(format!(
            "generation {} has {} members, leader {}, protocol {}",
            self.generation,
            self.members.len(),
            self.leader().unwrap_or_default(),
            self.protocol().unwrap_or_default(),
        )));
    }

    /// Removes the dynamic members that did not come.
    fn remove_missing(&mut self, out: &mut Vec<Effect>) {
        let missing: Vec<MemberNumber> = self
            .members
            .iter()
            .filter(|(_, member)| member.standing() == Standing::Away && !member.is_static())
            .map(|(number, _)| number)
            .collect();
        for number in missing {
            if let Some(member) = self.remove_member(number, out) {
                let id = member.id();
                out.push(Effect::Note(format!("member {id} did not rejoin in time")));
            }
        }
    }

    /// The leader of the next generation: the one before if it came, else the eldest that did.
    /// Somebody whose client has gone away leads only if there is nobody else.
    fn elect(&self) -> Option<MemberNumber> {
        let waits = |standing| matches!(standing, Standing::Joined(Some(_)));
        let came = |standing| matches!(standing, Standing::Joined(_));
        let choose = |fits: fn(Standing) -> bool| {
            let fits_number = |number: &MemberNumber| {
                self.members
                    .get(*number)
                    .is_some_and(|member| fits(member.standing()))
            };
            self.leader.filter(fits_number).or_else(|| {
                self.members
                    .iter()
                    .find(|(_, member)| fits(member.standing()))
                    .map(|(number, _)| number)
            })
        };
        choose(waits).or_else(|| choose(came))
    }

    /// PreparingRebalance -> Empty: a generation of its own, without members.
    fn become_empty(&mut self, now_ms: i64, out: &mut Vec<Effect>) {
        self.next_generation();
        self.protocol = None;
        self.enter(ClassicState::Empty, now_ms);
        out.push(Effect::Note(format!(
            "generation {} is empty",
            self.generation
        )));
        self.write_empty(out);
    }

    fn next_generation(&mut self) {
        // Two thousand million rebalances: the end of the protocol's integer, not ours.
        let next = self.generation_last.saturating_add(1);
        assert!(
            next > self.generation || next == i32::MAX,
            "the generation only grows"
        );
        self.generation = next;
        self.generation_last = next;
        self.assigned = false;
    }

    /// A member was told the generation and has to sync.
    pub(super) fn owe_sync(&mut self, number: MemberNumber, now: Now) {
        self.members.stand(number, Standing::OwesSync);
        self.heard(number, now);
        self.restart_sync_timer(now);
    }

    fn restart_sync_timer(&mut self, now: Now) {
        let end = now.saturating_add(self.members.rebalance_timeout());
        self.timers.set(Timer::Sync, end);
    }

    /// The time to sync is over: who has not is removed. Also in Stable: a member that heartbeats and
    /// never fetches its assignment holds partitions that nobody reads.
    pub(super) fn remove_unsynced(&mut self, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        let late: Vec<MemberNumber> = self
            .members
            .iter()
            .filter(|(_, member)| member.standing() == Standing::OwesSync)
            .map(|(number, _)| number)
            .collect();
        if late.is_empty() {
            return;
        }
        for number in late {
            if let Some(member) = self.remove_member(number, out) {
                out.push(Effect::Note(format!(
                    "member {} did not sync in time",
                    member.id()
                )));
            }
        }
        self.after_removal("members did not sync in time", now, now_ms, out);
    }

    pub(super) fn enter(&mut self, state: ClassicState, now_ms: i64) {
        self.state = state;
        self.state_since_ms = now_ms;
    }
}
