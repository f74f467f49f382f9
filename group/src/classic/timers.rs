//! The deadlines of one group, earliest first.

use std::collections::{BTreeMap, BTreeSet};

use super::members::MemberNumber;
use super::pending::PendingNumber;
use crate::Now;

/// What a deadline ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The join phase.
    Join,
    /// The time in which members must have synced.
    Sync,
    /// The pause before an Empty group is written again.
    WriteAgain,
    /// A member's session; while a new member waits for its first join: that wait.
    Session(MemberNumber),
    /// The time in which a member that got an id must have come with it.
    Pending(PendingNumber),
}

/// At most one deadline per timer. Setting, clearing and taking cost O(log n).
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Invariant: `by_time` holds `(at, timer)` exactly for the pairs of `by_timer`.
    by_time: BTreeSet<(Now, Timer)>,
    by_timer: BTreeMap<Timer, Now>,
}

impl Timers {
    /// Sets or moves a deadline.
    pub(super) fn set(&mut self, timer: Timer, at: Now) {
        if let Some(before) = self.by_timer.insert(timer, at) {
            self.by_time.remove(&(before, timer));
        }
        self.by_time.insert((at, timer));
    }

    /// Forgets a deadline, if there is one.
    pub(super) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.by_timer.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    /// Forgets all.
    pub(super) fn clear_all(&mut self) {
        self.by_time.clear();
        self.by_timer.clear();
    }

    pub(super) fn get(&self, timer: Timer) -> Option<Now> {
        self.by_timer.get(&timer).copied()
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Now> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the earliest deadline that is not after `now`.
    pub(super) fn take_due(&mut self, now: Now) -> Option<Timer> {
        let (at, timer) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_timer.remove(&timer);
        Some(timer)
    }
}
