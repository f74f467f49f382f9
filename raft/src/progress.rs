//! How far each replica has come, as the leader sees it: the ISR and who holds what.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use corduroy_record::LogIndex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// One follower.
#[derive(Clone, Copy, Debug)]
struct Follower {
    /// Durable there, as its last reply said.
    matched: Option<LogIndex>,
    /// The last moment at which it is known to have held the whole log of that moment; `None`
    /// since it said that it takes nothing.
    caught_up_at: Option<Instant>,
    /// The leader's end and the time at the last reply: a follower that reaches that end has
    /// been caught up then (Kafka's rule for `replica.lag.time.max.ms`).
    end_at_reply: Option<LogIndex>,
    replied_at: Instant,
}

/// The leader's view of its followers. Empty while this replica does not lead.
#[derive(Default)]
pub(crate) struct Progress {
    followers: RefCell<HashMap<u64, Follower>>,
    led_since: Cell<Option<Instant>>,
    changed: Notify,
}

impl Progress {
    /// This replica begins to lead: every voter starts as caught up and has
    /// `replica.lag.time.max.ms` to prove it.
    pub(crate) fn lead(&self, now: Instant) {
        self.followers.borrow_mut().clear();
        self.led_since.set(Some(now));
        self.changed.notify_waiters();
    }

    /// This replica leads no more.
    pub(crate) fn follow(&self) {
        self.followers.borrow_mut().clear();
        self.led_since.set(None);
        self.changed.notify_waiters();
    }

    /// A follower has said that it durably holds everything up to `matched`.
    pub(crate) fn note(
        &self,
        replica: u64,
        matched: Option<LogIndex>,
        end: Option<LogIndex>,
        now: Instant,
    ) {
        let Some(led_since) = self.led_since.get() else {
            return;
        };
        let mut followers = self.followers.borrow_mut();
        let follower = followers.entry(replica).or_insert(Follower {
            matched: None,
            caught_up_at: Some(led_since),
            end_at_reply: end,
            replied_at: now,
        });
        follower.matched = matched.max(follower.matched);
        if follower.matched >= end {
            follower.caught_up_at = Some(now);
        } else if follower.matched >= follower.end_at_reply {
            follower.caught_up_at = follower.caught_up_at.max(Some(follower.replied_at));
        }
        follower.end_at_reply = end;
        follower.replied_at = now;
        drop(followers);
        self.changed.notify_waiters();
    }

    /// A follower takes nothing (it is not there, or has stopped), or its log has become shorter
    /// (law 8): it is out of sync until it reaches the end again, however short `lag_max` of
    /// silence it is.
    pub(crate) fn forget(&self, replica: u64, end: Option<LogIndex>, now: Instant) {
        if self.led_since.get().is_none() {
            return;
        }
        let forgotten = Follower {
            matched: None,
            caught_up_at: None,
            end_at_reply: end,
            replied_at: now,
        };
        self.followers.borrow_mut().insert(replica, forgotten);
        self.changed.notify_waiters();
    }

    /// Something of this replica's own became durable.
    pub(crate) fn own_changed(&self) {
        self.changed.notify_waiters();
    }

    /// What a follower durably holds.
    pub(crate) fn matched(&self, replica: u64) -> Option<LogIndex> {
        self.followers.borrow().get(&replica)?.matched
    }

    /// Whether a follower is in sync: at the end, or there within `lag_max`.
    pub(crate) fn is_in_sync(
        &self,
        replica: u64,
        end: Option<LogIndex>,
        lag_max: Duration,
        now: Instant,
    ) -> bool {
        let Some(led_since) = self.led_since.get() else {
            return false;
        };
        match self.followers.borrow().get(&replica) {
            Some(follower) => {
                follower.matched >= end
                    || follower
                        .caught_up_at
                        .is_some_and(|at| now.duration_since(at) <= lag_max)
            }
            None => now.duration_since(led_since) <= lag_max,
        }
    }

    /// Waits for any change.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(n: u64) -> Option<LogIndex> {
        Some(LogIndex::new(n))
    }

    #[test]
    fn a_follower_that_trails_a_busy_leader_stays_in_sync() {
        let progress = Progress::default();
        let start = Instant::now();
        let lag = Duration::from_secs(10);
        progress.lead(start);
        // Every second it reaches what the end was a second ago.
        for second in 1..100u64 {
            let now = start + Duration::from_secs(second);
            progress.note(2, index((second - 1) * 10), index(second * 10), now);
            assert!(
                progress.is_in_sync(2, index(second * 10), lag, now),
                "second {second}"
            );
        }
    }

    #[test]
    fn a_follower_that_stops_leaves_after_the_lag_and_returns_at_the_end() {
        let progress = Progress::default();
        let start = Instant::now();
        let lag = Duration::from_secs(10);
        progress.lead(start);
        progress.note(2, index(5), index(5), start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            progress.is_in_sync(2, index(5), lag, at(1000)),
            "an idle log has no lag"
        );
        assert!(progress.is_in_sync(2, index(6), lag, at(10)));
        assert!(!progress.is_in_sync(2, index(6), lag, at(11)));
        progress.note(2, index(6), index(6), at(20));
        assert!(progress.is_in_sync(2, index(6), lag, at(20)));
    }

    #[test]
    fn a_follower_that_takes_nothing_is_out_at_once_until_it_reaches_the_end() {
        let progress = Progress::default();
        let start = Instant::now();
        let lag = Duration::from_secs(10);
        progress.lead(start);
        progress.note(2, index(5), index(5), start);
        for replica in [2, 3] {
            assert!(progress.is_in_sync(replica, index(5), lag, start));
            // One that was heard of before, and one that was not.
            progress.forget(replica, index(5), start);
            assert!(!progress.is_in_sync(replica, index(5), lag, start));
            assert_eq!(progress.matched(replica), None);
            progress.note(replica, index(3), index(5), start);
            assert!(!progress.is_in_sync(replica, index(5), lag, start));
            progress.note(replica, index(5), index(5), start);
            assert!(progress.is_in_sync(replica, index(5), lag, start));
        }
        progress.follow();
        progress.forget(2, index(5), start);
        progress.lead(start);
        assert!(
            progress.is_in_sync(2, index(5), lag, start),
            "what it said to an earlier leadership does not count in this one"
        );
    }

    #[test]
    fn a_new_leader_gives_every_voter_time_to_prove_itself() {
        let progress = Progress::default();
        let start = Instant::now();
        let lag = Duration::from_secs(10);
        assert!(
            !progress.is_in_sync(2, index(1), lag, start),
            "who does not lead knows nothing"
        );
        progress.lead(start);
        assert!(progress.is_in_sync(2, index(1), lag, start + Duration::from_secs(9)));
        assert!(!progress.is_in_sync(2, index(1), lag, start + Duration::from_secs(11)));
    }
}
