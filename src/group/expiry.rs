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
use super::portion::Portion;
use super::topics::{Standing, standing};

/// Groups that are looked at in one go, while commits wait a moment.
const GROUPS_AT_ONCE: usize = 64;

/// What a look for offsets of deleted topics has found.
struct Found {
    /// Their tombstones, as many as there was room for.
    dead: Portion,
    /// Whether there are offsets of topics that this node does not know yet; complete only where
    /// the look reached its end.
    some_are_ahead: bool,
}

impl Coordinator {
    /// Forgets what has expired, as often as `offsets.retention.check.interval.ms` says, beside
    /// everything else.
    pub(super) fn check_expiry(self: &Rc<Self>) {
        let now = self.moment().now;
        if self.next_expiry().is_none_or(|next| now < next) {
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
            let looked_at: Vec<String> = names.drain(..names.len().min(GROUPS_AT_ONCE)).collect();
            let mut unfinished = Vec::new();
            let decide = || {
                let waiting = self.writer.waiting_groups();
                let mut portion = Portion::default();
                for name in looked_at {
                    let before = portion.len();
                    // The group's own tombstone is the last, and so among what finds no room.
                    if !portion.fill(self.expired_of(&name, &waiting)) {
                        unfinished.push(name.clone());
                    }
                    let records = portion.len() - before;
                    if records > 0 {
                        info!(group = name, records, "offsets expire");
                    }
                }
                portion.into_records()
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
            let found = self.find_dead(Portion::of_one());
            if found.dead.len() == 0 {
                return Ok(found.some_are_ahead);
            }
            let mut count = 0;
            let decide = || {
                let records = self.find_dead(Portion::default()).dead.into_records();
                count = records.len();
                records
            };
            self.writer.write_alone(term, decide).await?;
            info!(offsets = count, "offsets of deleted topics are forgotten");
        }
    }

    /// Tombstones of offsets whose topic has ended, as many as `dead` has room for.
    fn find_dead(&self, mut dead: Portion) -> Found {
        let image = self.metadata.image();
        let machine = self.partition.machine();
        let mut some_are_ahead = false;
        'groups: for (name, state) in machine.groups().into_iter().flat_map(|t| t.groups()) {
            for (partition, value) in &state.offsets {
                match standing(&image, partition, value) {
                    Standing::Lives => {}
                    Standing::Ahead => some_are_ahead = true,
                    Standing::Dead => {
                        let has_gone_in = dead.push(GroupRecord::Offset {
                            group: name.to_owned(),
                            partition: partition.clone(),
                            value: None,
                        });
                        if !has_gone_in || dead.is_full() {
                            break 'groups;
                        }
                    }
                }
            }
        }
        Found {
            dead,
            some_are_ahead,
        }
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
