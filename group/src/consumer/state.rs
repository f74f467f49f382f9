//! The committed state of one group of the consumer protocol (KIP-848): what its records add up to.
//!
//! Applied on every replica. Every decision about the group is made from this and from a request,
//! so a new coordinator decides exactly as the old one would have.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::{PartitionIndex, TopicId};

use super::reconcile::normalise;
use crate::records::{
    Assignment, ConsumerMemberValue, ConsumerValue, CurrentMemberValue, GroupRecord, MemberState,
    RegexValue, TargetAssignmentValue,
};

/// Member epoch of a request that joins, and of a member that has been given nothing yet.
pub const MEMBER_EPOCH_JOIN: i32 = 0;
/// Member epoch of a request that leaves for good.
pub const MEMBER_EPOCH_LEAVE: i32 = -1;
/// Member epoch of a static member that left and may come back within its session timeout.
pub const MEMBER_EPOCH_AWAY: i32 = -2;

/// One member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMember {
    /// What it told about itself.
    pub value: ConsumerMemberValue,
    /// Its part of the target assignment.
    pub target: Assignment,
    /// What it has now; `None` before its first answer.
    pub current: Option<CurrentMemberValue>,
}

impl ConsumerMember {
    /// The epoch that it has reached; [`MEMBER_EPOCH_JOIN`] before its first answer,
    /// [`MEMBER_EPOCH_AWAY`] while a static member is away.
    pub fn epoch(&self) -> i32 {
        self.current
            .as_ref()
            .map_or(MEMBER_EPOCH_JOIN, |current| current.member_epoch)
    }

    /// Whether it has all of the target assignment of `assignment_epoch`.
    pub fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.current.as_ref().is_some_and(|current| {
            current.state == MemberState::Stable && current.member_epoch == assignment_epoch
        })
    }
}

/// The group's state, as Kafka names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerGroupState {
    /// No members.
    Empty,
    /// The target assignment is older than the group epoch.
    Assigning,
    /// Some member does not have its target yet.
    Reconciling,
    /// Every member has its target.
    Stable,
    /// There is no such group.
    Dead,
}

impl ConsumerGroupState {
    /// Kafka's name, as in ListGroups and ConsumerGroupDescribe.
    pub const fn name(self) -> &'static str {
        match self {
            ConsumerGroupState::Empty => "Empty",
            ConsumerGroupState::Assigning => "Assigning",
            ConsumerGroupState::Reconciling => "Reconciling",
            ConsumerGroupState::Stable => "Stable",
            ConsumerGroupState::Dead => "Dead",
        }
    }
}

/// A group of the consumer protocol.
///
/// Law: `assignment_epoch <= epoch`. Law: a partition is held (assigned to, or to be revoked from)
/// by at most one member, whatever the order of heartbeats and failures. The private maps are
/// derived from the rest and never written anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerState {
    epoch: i32,
    metadata_hash: i64,
    assignment_epoch: i32,
    members: BTreeMap<String, ConsumerMember>,
    regexes: BTreeMap<String, RegexValue>,
    /// Targets and current assignments whose member has no record (any more): a log that was
    /// compacted may show them first.
    orphans: BTreeMap<String, Orphan>,
    /// How many members hold a partition: 1, unless records of another coordinator say otherwise.
    holders: BTreeMap<(TopicId, PartitionIndex), u32>,
    /// Which members say that they are this static instance; more than one only between two records
    /// of the same decision.
    instances: BTreeMap<String, BTreeSet<String>>,
    /// How many members subscribe to a topic by its name.
    topic_subscribers: BTreeMap<String, u32>,
    /// How many members subscribe with a regular expression.
    regex_subscribers: BTreeMap<String, u32>,
    /// How many members ask for an assignor.
    assignor_votes: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Orphan {
    target: Option<Assignment>,
    current: Option<CurrentMemberValue>,
}

impl ConsumerState {
    /// A group without members whose epochs go on from `epoch`.
    pub fn starting_at(epoch: i32) -> ConsumerState {
        ConsumerState {
            epoch,
            ..ConsumerState::default()
        }
    }

    /// The group epoch: grows whenever the members, their subscriptions or their topics change.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// Hash of the topics at this epoch; 0 = never computed.
    pub fn metadata_hash(&self) -> i64 {
        self.metadata_hash
    }

    /// The group epoch for which the target assignment was computed.
    pub fn assignment_epoch(&self) -> i32 {
        self.assignment_epoch
    }

    /// The members by id.
    pub fn members(&self) -> &BTreeMap<String, ConsumerMember> {
        &self.members
    }

    /// What each regular expression stood for when it was last looked at.
    pub fn regexes(&self) -> &BTreeMap<String, RegexValue> {
        &self.regexes
    }

    /// The member that is this static instance.
    pub fn instance(&self, instance_id: &str) -> Option<(&str, &ConsumerMember)> {
        let id = self.instances.get(instance_id)?.last()?;
        self.members
            .get_key_value(id)
            .map(|(id, member)| (id.as_str(), member))
    }

    /// How many members hold the partition (it is assigned to them, or they have not given it up).
    pub fn holders(&self, topic: TopicId, partition: PartitionIndex) -> u32 {
        self.holders.get(&(topic, partition)).copied().unwrap_or(0)
    }

    /// How many members subscribe with this regular expression.
    pub(crate) fn regex_subscribers(&self, regex: &str) -> u32 {
        self.regex_subscribers.get(regex).copied().unwrap_or(0)
    }

    /// Topics to which some member subscribes by name, ascending.
    pub(crate) fn topics_by_name(&self) -> impl Iterator<Item = &str> {
        self.topic_subscribers.keys().map(String::as_str)
    }

    /// Regular expressions with which some member subscribes, ascending.
    pub(crate) fn regexes_in_use(&self) -> impl Iterator<Item = &str> {
        self.regex_subscribers.keys().map(String::as_str)
    }

    /// How many members ask for which assignor.
    pub(crate) fn assignor_votes(&self) -> &BTreeMap<String, u32> {
        &self.assignor_votes
    }

    /// Whether some member subscribes to the topic, by name or by a regular expression.
    pub fn subscribed(&self, topic: &str) -> bool {
        self.topic_subscribers.contains_key(topic)
            || self.regexes_in_use().any(|regex| {
                self.regexes.get(regex).is_some_and(|value| {
                    value
                        .topics
                        .binary_search_by(|name| name.as_str().cmp(topic))
                        .is_ok()
                })
            })
    }

    /// The group's state.
    pub fn state(&self) -> ConsumerGroupState {
        if self.members.is_empty() {
            ConsumerGroupState::Empty
        } else if self.epoch > self.assignment_epoch {
            ConsumerGroupState::Assigning
        } else if self
            .members
            .values()
            .all(|member| member.is_reconciled_to(self.assignment_epoch))
        {
            ConsumerGroupState::Stable
        } else {
            ConsumerGroupState::Reconciling
        }
    }

    /// Takes one record of this group over; records of other kinds are passed over.
    ///
    /// A tombstone of the group itself forgets everything: the owner then drops the state.
    pub fn apply(&mut self, record: &GroupRecord) {
        match record {
            GroupRecord::Offset { .. } | GroupRecord::Classic { .. } => {}
            GroupRecord::Consumer {
                value: Some(value), ..
            } => {
                self.epoch = value.epoch;
                self.metadata_hash = value.metadata_hash;
            }
            GroupRecord::Consumer { value: None, .. } => *self = ConsumerState::default(),
            GroupRecord::ConsumerMember { member, value, .. } => match value {
                Some(value) => self.put_member(member, value),
                None => self.remove_member(member),
            },
            GroupRecord::TargetAssignment { value, .. } => {
                self.assignment_epoch = value.as_ref().map_or(0, |value| value.assignment_epoch);
            }
            GroupRecord::TargetMember { member, value, .. } => self.put_target(member, value),
            GroupRecord::CurrentMember { member, value, .. } => self.put_current(member, value),
            GroupRecord::Regex { regex, value, .. } => match value {
                Some(value) => {
                    let mut value = value.clone();
                    value.topics.sort_unstable();
                    self.regexes.insert(regex.clone(), value);
                }
                None => {
                    self.regexes.remove(regex);
                }
            },
        }
    }

    /// The records that make this state: the group first, then members, targets, what they have.
    pub fn records(&self, group: &str, out: &mut Vec<GroupRecord>) {
        let group = || group.to_owned();
        out.push(GroupRecord::Consumer {
            group: group(),
            value: Some(ConsumerValue {
                epoch: self.epoch,
                metadata_hash: self.metadata_hash,
            }),
        });
        for (regex, value) in &self.regexes {
            out.push(GroupRecord::Regex {
                group: group(),
                regex: regex.clone(),
                value: Some(value.clone()),
            });
        }
        for (id, member) in &self.members {
            out.push(GroupRecord::ConsumerMember {
                group: group(),
                member: id.clone(),
                value: Some(member.value.clone()),
            });
        }
        let targets = self
            .members
            .iter()
            .filter(|(_, member)| !member.target.is_empty())
            .map(|(id, member)| (id, &member.target))
            .chain(
                self.orphans
                    .iter()
                    .filter_map(|(id, orphan)| orphan.target.as_ref().map(|target| (id, target))),
            );
        for (id, target) in targets {
            out.push(GroupRecord::TargetMember {
                group: group(),
                member: id.clone(),
                value: Some(target.clone()),
            });
        }
        if self.assignment_epoch != 0 {
            out.push(GroupRecord::TargetAssignment {
                group: group(),
                value: Some(TargetAssignmentValue {
                    assignment_epoch: self.assignment_epoch,
                }),
            });
        }
        let currents =
            self.members
                .iter()
                .filter_map(|(id, member)| member.current.as_ref().map(|current| (id, current)))
                .chain(self.orphans.iter().filter_map(|(id, orphan)| {
                    orphan.current.as_ref().map(|current| (id, current))
                }));
        for (id, current) in currents {
            out.push(GroupRecord::CurrentMember {
                group: group(),
                member: id.clone(),
                value: Some(current.clone()),
            });
        }
    }

    /// The tombstones that end this group; the group's own comes last.
    pub fn tombstones(&self, group: &str, out: &mut Vec<GroupRecord>) {
        let group = || group.to_owned();
        let ids = self.members.keys().chain(self.orphans.keys());
        for id in ids {
            push_member_tombstones(&group(), id, out);
        }
        for regex in self.regexes.keys() {
            out.push(GroupRecord::Regex {
                group: group(),
                regex: regex.clone(),
                value: None,
            });
        }
        out.push(GroupRecord::TargetAssignment {
            group: group(),
            value: None,
        });
        out.push(GroupRecord::Consumer {
            group: group(),
            value: None,
        });
    }

    fn put_member(&mut self, id: &str, value: &ConsumerMemberValue) {
        let mut value = value.clone();
        value.subscribed_topics.sort_unstable();
        value.subscribed_topics.dedup();
        self.count_value(id, &value);
        if let Some(member) = self.members.get_mut(id) {
            let before = std::mem::replace(&mut member.value, value);
            self.discount_value(id, &before);
        } else {
            let orphan = self.orphans.remove(id).unwrap_or_default();
            if let Some(current) = &orphan.current {
                self.count_current(current);
            }
            self.members.insert(
                id.to_owned(),
                ConsumerMember {
                    value,
                    target: orphan.target.unwrap_or_default(),
                    current: orphan.current,
                },
            );
        }
    }

    fn remove_member(&mut self, id: &str) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        self.discount_value(id, &member.value);
        if let Some(current) = &member.current {
            self.discount_current(current);
        }
        if !member.target.is_empty() || member.current.is_some() {
            self.orphans.insert(
                id.to_owned(),
                Orphan {
                    target: (!member.target.is_empty()).then_some(member.target),
                    current: member.current,
                },
            );
        }
    }

    fn put_target(&mut self, id: &str, value: &Option<Assignment>) {
        let mut target = value.clone().unwrap_or_default();
        normalise(&mut target);
        if let Some(member) = self.members.get_mut(id) {
            member.target = target;
        } else {
            self.change_orphan(id, |orphan| {
                orphan.target = Some(target).filter(|target| !target.is_empty());
            });
        }
    }

    fn put_current(&mut self, id: &str, value: &Option<CurrentMemberValue>) {
        let mut value = value.clone();
        if let Some(current) = &mut value {
            normalise(&mut current.assigned);
            normalise(&mut current.pending_revocation);
        }
        if let Some(member) = self.members.get_mut(id) {
            let before = std::mem::replace(&mut member.current, value.clone());
            if let Some(current) = &value {
                self.count_current(current);
            }
            if let Some(before) = &before {
                self.discount_current(before);
            }
        } else {
            self.change_orphan(id, |orphan| orphan.current = value);
        }
    }

    fn change_orphan(&mut self, id: &str, change: impl FnOnce(&mut Orphan)) {
        let mut orphan = self.orphans.remove(id).unwrap_or_default();
        change(&mut orphan);
        if orphan != Orphan::default() {
            self.orphans.insert(id.to_owned(), orphan);
        }
    }

    fn count_current(&mut self, current: &CurrentMemberValue) {
        for key in held(current) {
            *self.holders.entry(key).or_insert(0) += 1;
        }
    }

    fn discount_current(&mut self, current: &CurrentMemberValue) {
        for key in held(current) {
            discount(&mut self.holders, &key);
        }
    }

    fn count_value(&mut self, id: &str, value: &ConsumerMemberValue) {
        if let Some(instance) = &value.instance_id {
            self.instances
                .entry(instance.clone())
                .or_default()
                .insert(id.to_owned());
        }
        for topic in &value.subscribed_topics {
            count(&mut self.topic_subscribers, topic);
        }
        if let Some(regex) = &value.subscribed_regex {
            count(&mut self.regex_subscribers, regex);
        }
        if let Some(assignor) = &value.server_assignor {
            count(&mut self.assignor_votes, assignor);
        }
    }

    fn discount_value(&mut self, id: &str, value: &ConsumerMemberValue) {
        if let Some(instance) = &value.instance_id {
            // The same member with the same instance id was counted again just before.
            let still = self
                .members
                .get(id)
                .is_some_and(|member| member.value.instance_id.as_ref() == Some(instance));
            if !still && let Some(ids) = self.instances.get_mut(instance) {
                ids.remove(id);
                if ids.is_empty() {
                    self.instances.remove(instance);
                }
            }
        }
        for topic in &value.subscribed_topics {
            discount(&mut self.topic_subscribers, topic);
        }
        if let Some(regex) = &value.subscribed_regex {
            discount(&mut self.regex_subscribers, regex);
        }
        if let Some(assignor) = &value.server_assignor {
            discount(&mut self.assignor_votes, assignor);
        }
    }
}

/// The tombstones of a member; what it has goes before the member itself.
pub(crate) fn push_member_tombstones(group: &str, member: &str, out: &mut Vec<GroupRecord>) {
    out.push(GroupRecord::CurrentMember {
        group: group.to_owned(),
        member: member.to_owned(),
        value: None,
    });
    out.push(GroupRecord::TargetMember {
        group: group.to_owned(),
        member: member.to_owned(),
        value: None,
    });
    out.push(GroupRecord::ConsumerMember {
        group: group.to_owned(),
        member: member.to_owned(),
        value: None,
    });
}

fn held(current: &CurrentMemberValue) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    current
        .assigned
        .iter()
        .chain(&current.pending_revocation)
        .flat_map(|(topic, partitions)| {
            partitions.iter().map(move |partition| (*topic, *partition))
        })
}

fn count(counts: &mut BTreeMap<String, u32>, key: &str) {
    if let Some(count) = counts.get_mut(key) {
        *count += 1;
    } else {
        counts.insert(key.to_owned(), 1);
    }
}

fn discount<K, Q>(counts: &mut BTreeMap<K, u32>, key: &Q)
where
    K: Ord + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
