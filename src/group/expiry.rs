//! Offsets that go by themselves: those that nobody commits any more, and those of deleted topics.
//!
//! Law: what goes is decided on the applied state while nothing is under way, and its tombstones are
//! the next records of the log. What waits meanwhile was decided before and comes behind them. So a
//! key needs no regard: whatever waits for it, a fresh commit above all, has the last word. A group
//! does: while its members or its state are changing, nothing of it goes, and while anything of it
//! waits, its own record stays ([`OnItsWay`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use corduroy_group::classic::{ClassicGroup, ClassicState};
use corduroy_group::commits::{OnItsWay, Retention, Subscribed, expired, has_expired};
use corduroy_group::records::{GroupRecord, OffsetValue};
use corduroy_protocol::ErrorCode;
use corduroy_record::{Term, TopicPartition};
use tracing::{info, warn};

use super::coordinator::Coordinator;

/// Groups that are looked at in one go, while commits wait a moment.
const GROUPS_AT_ONCE: usize = 64;

/// Tombstones that are written in one go.
const RECORDS_AT_ONCE: usize = 4096;

/// Topics that have gone, each with the time at which its end was seen.
type Gone = [(String, i64)];

impl Coordinator {
    /// Forgets what has expired, as often as `offsets.retention.check.interval.ms` says, beside
    /// everything else.
    pub fn check_expiry(self: &Rc<Self>) {
        let now = self.moment().now;
        if now < self.expiry_looked_at() + self.configs().offsets_retention_check {
            return;
        }
        let Ok(term) = self.serving() else { return };
        if !self.begin_expiry() {
            return;
        }
        self.look_at_expiry(now);
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            if let Err(code) = coordinator.expire(term).await {
                let partition = coordinator.partition.name();
                warn!(%partition, code = code.name(), "offsets could not be expired yet");
            }
            coordinator.end_expiry();
        });
    }

    /// Forgets offsets that are older than `offsets.retention.minutes` by Kafka's rules, and groups
    /// of which nothing is left. The decision is replicated like everything else.
    async fn expire(self: &Rc<Self>, term: Term) -> Result<(), ErrorCode> {
        let mut names = self.look_for_expired();
        while !names.is_empty() {
            let portion: Vec<String> = names.drain(..names.len().min(GROUPS_AT_ONCE)).collect();
            let mut unfinished = Vec::new();
            let decide = || {
                let waiting = self.writer.waiting_groups();
                let mut records = Vec::new();
                for name in portion {
                    let mut found = self.expired_of(&name, &waiting);
                    let room = RECORDS_AT_ONCE - records.len();
                    let is_cut = found.len() > room;
                    // The group's own tombstone is the last, and so among what is cut off.
                    found.truncate(room);
                    if !found.is_empty() {
                        info!(group = name, records = found.len(), "offsets expire");
                    }
                    records.append(&mut found);
                    if is_cut {
                        unfinished.push(name);
                    }
                }
                records
            };
            self.writer.write_alone(term, decide).await?;
            names.extend(unfinished);
        }
        Ok(())
    }

    /// The groups of which something may have expired, without stopping anybody and without building
    /// anything for the many of which nothing has.
    fn look_for_expired(&self) -> VecDeque<String> {
        let retention = self.retention();
        let machine = self.partition.machine();
        let groups = machine
            .groups()
            .into_iter()
            .flat_map(|table| table.groups());
        let expired = groups.filter(|(name, state)| {
            let subscribed = || self.subscribed(name, Joining::KnowNothing);
            has_expired(state, subscribed, retention)
        });
        expired.map(|(name, _)| name.to_owned()).collect()
    }

    fn retention(&self) -> Retention {
        Retention {
            now_ms: self.moment().now_ms,
            retention_ms: self.configs().offsets_retention_ms,
        }
    }

    /// The tombstones of what has expired in a group. `waiting`: groups of which records wait.
    fn expired_of(&self, name: &str, waiting: &HashSet<String>) -> Vec<GroupRecord> {
        let retention = self.retention();
        let subscribed = self.subscribed(name, Joining::KnowNothing);
        let machine = self.partition.machine();
        let Some(state) = machine.groups().and_then(|table| table.get(name)) else {
            return Vec::new();
        };
        let classic = self.running(name, |group| (group.is_writing(), group.is_empty()));
        let is_changing = match classic {
            // Its last member has left, and the record that says so is still to be written.
            Some((is_writing, is_empty)) => is_writing || (is_empty && state.has_members()),
            None => false,
        };
        let on_its_way = if is_changing || self.consumers.is_deciding(name) {
            OnItsWay::Group
        } else if waiting.contains(name) {
            OnItsWay::Offsets
        } else {
            OnItsWay::Nothing
        };
        expired(name, state, &subscribed, retention, on_its_way)
    }

    /// Forgets the offsets of deleted topics, as Kafka does: a topic that gets the same name later
    /// shares nothing with its ancestor.
    pub(super) fn forget_gone_topics(self: &Rc<Self>) {
        let Some(gone) = self.gone_topics.begin() else {
            return;
        };
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            match coordinator.forget_offsets_of(&gone).await {
                Ok(()) => {
                    coordinator.gone_topics.end(&gone);
                    // More may have ended meanwhile.
                    coordinator.wake();
                }
                Err(code) => {
                    warn!(code = code.name(), "offsets of deleted topics stay for now");
                    coordinator.gone_topics.end(&[]);
                }
            }
        });
    }

    async fn forget_offsets_of(self: &Rc<Self>, gone: &Gone) -> Result<(), ErrorCode> {
        // Everything that was committed before the end of a topic was seen is applied then.
        self.writer.settled().await;
        let term = self.serving()?;
        loop {
            if self.offsets_of_the_dead(gone, 1).is_empty() {
                return Ok(());
            }
            let mut count = 0;
            let decide = || {
                let records = self.offsets_of_the_dead(gone, RECORDS_AT_ONCE);
                count = records.len();
                records
            };
            self.writer.write_alone(term, decide).await?;
            info!(offsets = count, "offsets of deleted topics are forgotten");
        }
    }

    /// Tombstones of offsets that were committed before their topic's end was seen, at most `most`.
    fn offsets_of_the_dead(&self, gone: &Gone, most: usize) -> Vec<GroupRecord> {
        let mut seen: HashMap<&str, i64> = HashMap::new();
        for (topic, ms) in gone {
            let last = seen.entry(topic).or_insert(*ms);
            *last = (*last).max(*ms);
        }
        let is_dead = |partition: &TopicPartition, value: &OffsetValue| {
            let seen_ms = seen.get(&*partition.topic);
            seen_ms.is_some_and(|seen_ms| value.commit_timestamp_ms <= *seen_ms)
        };
        let machine = self.partition.machine();
        let groups = machine
            .groups()
            .into_iter()
            .flat_map(|table| table.groups());
        let offsets = groups.flat_map(|(name, state)| {
            let offsets = state.offsets.iter();
            offsets.map(move |(partition, value)| (name, partition, value))
        });
        let dead = offsets.filter(|(_, partition, value)| is_dead(partition, value));
        dead.take(most)
            .map(|(name, partition, _)| GroupRecord::Offset {
                group: name.to_owned(),
                partition: partition.clone(),
                value: None,
            })
            .collect()
    }

    /// What the running members of a group subscribe to.
    pub(super) fn subscribed(&self, name: &str, joining: Joining) -> Subscribed {
        let look = |group: &ClassicGroup| {
            if group.is_empty() {
                return Subscribed::Nothing;
            }
            if !group.is_of_consumers() {
                return Subscribed::Foreign;
            }
            let between = joining == Joining::KnowNothing && group.state() != ClassicState::Stable;
            match group.subscribed_topics().filter(|_| !between) {
                Some(topics) => Subscribed::Topics(topics),
                None => Subscribed::Everything,
            }
        };
        self.running(name, look).unwrap_or_else(|| {
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(name));
            match state {
                // Members that do not run: their group is just changing its protocol.
                Some(state) if state.has_classic_members() => Subscribed::Everything,
                _ => Subscribed::Nothing,
            }
        })
    }
}

/// What is known of members that join again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Joining {
    /// What they subscribed to before.
    KnowBefore,
    /// Nothing yet.
    KnowNothing,
}
