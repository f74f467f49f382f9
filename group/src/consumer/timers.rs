//! The deadlines of a group's members: volatile, made anew by each coordinator.
//!
//! A member must speak within its session timeout, and give up partitions within its rebalance
//! timeout; else it is removed. A new coordinator gives everybody the full time again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::state::{ConsumerMember, ConsumerState};
use crate::Now;
use crate::records::{GroupRecord, MemberState};

/// Why a member is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// It was silent for its session timeout.
    Session,
    /// It did not give up its partitions within its rebalance timeout.
    Revocation,
    /// A classic member that was told to join again did not, within its rebalance timeout.
    Join,
    /// A classic member joined and did not sync, within its rebalance timeout.
    Sync,
}

/// The deadlines of one group.
///
/// Law: `deadlines` holds exactly the deadlines of `members`.
#[derive(Clone, Debug)]
pub struct Timers {
    session_timeout: Duration,
    members: BTreeMap<String, Entry>,
    deadlines: BTreeSet<(Now, Expiry, String)>,
}

#[derive(Clone, Debug)]
struct Entry {
    session_timeout: Duration,
    session: Now,
    revocation: Option<Revocation>,
    /// A classic member has to do this until then.
    owes: Option<(Expiry, Now)>,
}

#[derive(Clone, Copy, Debug)]
struct Revocation {
    member_epoch: i32,
    deadline: Now,
}

impl Timers {
    /// Without members; `session_timeout` is that of members of this protocol.
    pub fn new(session_timeout: Duration) -> Timers {
        Timers {
            session_timeout,
            members: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    /// Another session timeout: counts from what is heard next.
    pub fn set_session_timeout(&mut self, session_timeout: Duration) {
        self.session_timeout = session_timeout;
    }

    /// The member spoke. Unknown members are passed over: [`Timers::observe`] makes them known.
    pub fn heard(&mut self, member: &str, now: Now) {
        let Some(entry) = self.members.get_mut(member) else {
            return;
        };
        let before = entry.session;
        entry.session = now.saturating_add(entry.session_timeout);
        if entry.session != before {
            let key = (before, Expiry::Session, member.to_owned());
            self.deadlines.remove(&key);
            self.deadlines
                .insert((entry.session, Expiry::Session, member.to_owned()));
        }
    }

    /// Makes the deadlines fit the whole state: at the beginning of a coordinator's term, and after
    /// removals.
    pub fn observe(&mut self, state: &ConsumerState, now: Now) {
        let gone: Vec<String> = self
            .members
            .keys()
            .filter(|id| !state.members().contains_key(*id))
            .cloned()
            .collect();
        for id in gone {
            self.forget(&id);
        }
        for (id, member) in state.members() {
            self.put(id, member, now);
        }
    }

    /// As [`Timers::observe`], for the members of these records only, which have just been applied.
    pub fn observe_records(&mut self, state: &ConsumerState, records: &[GroupRecord], now: Now) {
        for record in records {
            if let GroupRecord::ConsumerMember { member, .. }
            | GroupRecord::CurrentMember { member, .. } = record
            {
                match state.members().get(member) {
                    Some(value) => self.put(member, value, now),
                    None => self.forget(member),
                }
            }
        }
    }

    /// A classic member was told to join again: it has its rebalance timeout for that, from when it
    /// was told first.
    pub fn owes_join(&mut self, id: &str, member: &ConsumerMember, now: Now) {
        let told = self.members.get(id).and_then(|entry| entry.owes);
        if told.is_none_or(|(what, _)| what != Expiry::Join) {
            self.owe(id, Expiry::Join, member, now);
        }
    }

    /// A classic member joined: it has its rebalance timeout to sync.
    pub fn owes_sync(&mut self, id: &str, member: &ConsumerMember, now: Now) {
        self.owe(id, Expiry::Sync, member, now);
    }

    /// A classic member synced: it owes nothing.
    pub fn synced(&mut self, id: &str) {
        if let Some(entry) = self.members.get_mut(id)
            && let Some((what, deadline)) = entry.owes.take()
        {
            self.deadlines.remove(&(deadline, what, id.to_owned()));
        }
    }

    fn owe(&mut self, id: &str, what: Expiry, member: &ConsumerMember, now: Now) {
        self.synced(id);
        if let Some(entry) = self.members.get_mut(id) {
            let deadline = now.saturating_add(millis(member.value.rebalance_timeout_ms));
            entry.owes = Some((what, deadline));
            self.deadlines.insert((deadline, what, id.to_owned()));
        }
    }

    /// When to call [`Timers::expired`] next; `None`: not before something else happens.
    pub fn next_deadline(&self) -> Option<Now> {
        self.deadlines.first().map(|(deadline, _, _)| *deadline)
    }

    /// Members whose time is over, each once, to be removed by
    /// [`remove_members`](super::remove_members). They are forgotten here: where their removal
    /// fails, the next [`Timers::observe`] gives them the full time again.
    pub fn expired(&mut self, now: Now) -> Vec<(String, Expiry)> {
        let mut expired = Vec::new();
        while let Some((deadline, why, _)) = self.deadlines.first() {
            if *deadline > now {
                break;
            }
            let why = *why;
            if let Some((_, _, member)) = self.deadlines.pop_first() {
                self.forget(&member);
                expired.push((member, why));
            }
        }
        expired
    }

    fn put(&mut self, id: &str, member: &ConsumerMember, now: Now) {
        let session_timeout = member
            .value
            .classic
            .as_ref()
            .map_or(self.session_timeout, |classic| {
                millis(classic.session_timeout_ms)
            });
        let waits = member.current.as_ref().and_then(|current| {
            (current.state == MemberState::UnrevokedPartitions).then_some(current.member_epoch)
        });
        let entry = self.members.entry(id.to_owned()).or_insert_with(|| {
            let session = now.saturating_add(session_timeout);
            self.deadlines
                .insert((session, Expiry::Session, id.to_owned()));
            Entry {
                session_timeout,
                session,
                revocation: None,
                owes: None,
            }
        });
        if member.value.classic.is_none()
            && let Some((what, deadline)) = entry.owes.take()
        {
            self.deadlines.remove(&(deadline, what, id.to_owned()));
        }
        entry.session_timeout = session_timeout;
        if entry.revocation.map(|revocation| revocation.member_epoch) == waits {
            return;
        }
        if let Some(before) = entry.revocation.take() {
            self.deadlines
                .remove(&(before.deadline, Expiry::Revocation, id.to_owned()));
        }
        if let Some(member_epoch) = waits {
            let deadline = now.saturating_add(millis(member.value.rebalance_timeout_ms));
            entry.revocation = Some(Revocation {
                member_epoch,
                deadline,
            });
            self.deadlines
                .insert((deadline, Expiry::Revocation, id.to_owned()));
        }
    }

    fn forget(&mut self, id: &str) {
        if let Some(entry) = self.members.remove(id) {
            self.deadlines
                .remove(&(entry.session, Expiry::Session, id.to_owned()));
            if let Some(revocation) = entry.revocation {
                self.deadlines
                    .remove(&(revocation.deadline, Expiry::Revocation, id.to_owned()));
            }
            if let Some((what, deadline)) = entry.owes {
                self.deadlines.remove(&(deadline, what, id.to_owned()));
            }
        }
    }
}

/// Milliseconds of the protocol; negative ones count as none.
pub(super) fn millis(millis: i32) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
