//! Offsets that go by themselves: those that nobody commits any more, and those of deleted topics.
//!
//! Law: what goes is decided on the applied state while nothing is under way, and its tombstones are
//! the next records of the log. What waits meanwhile was decided before and comes behind them. So a
//! key needs no regard: whatever waits for it, a fresh commit above all, has the last word. A group
//! does: while its members or its state are changing, nothing of it goes, and while anything of it
//! waits, its own record stays ([`OnItsWay`]).

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use corduroy_group::classic::{ClassicGroup, ClassicState};
use corduroy_group::commits::{OnItsWay, Retention, Subscribed, expired, has_expired};
use corduroy_group::records::GroupRecord;
use corduroy_protocol::ErrorCode;
use corduroy_record::Term;
use tracing::{info, warn};

use super::coordinator::Coordinator;
use super::topics::{Standing, standing};

/// Groups that are looked at in one go, while commits wait a moment.
const GROUPS_AT_ONCE: usize = 64;

/// Tombstones that are written in one go.
const RECORDS_AT_ONCE: usize = 4096;

/// What a look for offsets of deleted topics has found.
#[derive(Default)]
struct Found {
    /// Their tombstones.
    dead: Vec<GroupRecord>,
    /// Whether there are offsets of topics that this node does not know yet; complete only where
    /// the look reached its end.
    some_are_ahead: bool,
}

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
        if !self.dead_offsets.begin() {
            return;
        }
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            match coordinator.forget_dead_offsets().await {
                Ok(some_are_ahead) => {
                    coordinator.dead_offsets.end(Some(some_are_ahead));
                    // More may have ended meanwhile.
                    coordinator.wake();
                }
                Err(code) => {
                    warn!(code = code.name(), "offsets of deleted topics stay for now");
                    coordinator.dead_offsets.end(None);
                }
            }
        });
    }

    /// Says whether offsets are left that are ahead of this node's image.
    async fn forget_dead_offsets(self: &Rc<Self>) -> Result<bool, ErrorCode> {
        // What was decided by an older image is applied then.
        self.writer.settled().await;
        let term = self.serving()?;
        loop {
            let found = self.find_dead(1);
            if found.dead.is_empty() {
                return Ok(found.some_are_ahead);
            }
            let mut count = 0;
            let decide = || {
                let records = self.find_dead(RECORDS_AT_ONCE).dead;
                count = records.len();
                records
            };
            self.writer.write_alone(term, decide).await?;
            info!(offsets = count, "offsets of deleted topics are forgotten");
        }
    }

    /// Tombstones of offsets whose topic has ended, at most `most`.
    fn find_dead(&self, most: usize) -> Found {
        let image = self.metadata.image();
        let machine = self.partition.machine();
        let mut found = Found::default();
        for (name, state) in machine.groups().into_iter().flat_map(|t| t.groups()) {
            for (partition, value) in &state.offsets {
                match standing(&image, partition, value) {
                    Standing::Lives => {}
                    Standing::Ahead => found.some_are_ahead = true,
                    Standing::Dead => found.dead.push(GroupRecord::Offset {
                        group: name.to_owned(),
                        partition: partition.clone(),
                        value: None,
                    }),
                }
                if found.dead.len() >= most {
                    return found;
                }
            }
        }
        found
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
