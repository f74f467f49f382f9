//! The live keys in an order, so that they can be written again portion by portion.
//!
//! Law: a walk in this order that goes on behind the last key it saw passes every key that lives
//! from its beginning to its end, whatever comes and goes meanwhile.

use std::ops::Bound;

use corduroy_record::TopicPartition;

use super::{GroupKind, GroupState, GroupTable};
use crate::records::GroupRecord;

/// What a record is about: its key, in the order of [`GroupTable::live_records`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveKey {
    group: String,
    part: Part,
}

/// Which part of a group; what the group is comes first, its offsets last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Classic,
    Consumer,
    Regex(String),
    Member(String),
    TargetMember(String),
    TargetAssignment,
    CurrentMember(String),
    Offset(TopicPartition),
}

impl GroupRecord {
    /// Its key.
    pub fn live_key(&self) -> LiveKey {
        LiveKey {
            group: self.group().to_owned(),
            part: part(self),
        }
    }
}

impl GroupTable {
    /// Every live key behind `after` with its value, in the order of the keys.
    pub fn live_records_after(
        &self,
        after: Option<&LiveKey>,
    ) -> impl Iterator<Item = GroupRecord> + use<'_> {
        let after = after.cloned();
        let from = match &after {
            Some(after) => Bound::Included(after.group.as_str()),
            None => Bound::Unbounded,
        };
        let groups = self.groups.range::<str, _>((from, Bound::Unbounded));
        groups.flat_map(move |(name, state)| {
            let after = after.as_ref().filter(|after| after.group == *name);
            state.records_after(name, after.map(|after| &after.part))
        })
    }
}

impl GroupState {
    /// The records that make this state, in the order of their keys: the group first, then its
    /// offsets.
    pub fn records(&self, group: &str) -> impl Iterator<Item = GroupRecord> {
        self.records_after(group, None)
    }

    fn records_after(
        &self,
        group: &str,
        after: Option<&Part>,
    ) -> impl Iterator<Item = GroupRecord> + use<'_> {
        let (mut records, from) = match after {
            Some(Part::Offset(partition)) => (Vec::new(), Bound::Excluded(partition)),
            _ => (self.kind_records(group), Bound::Unbounded),
        };
        if let Some(after) = after {
            records.retain(|record| part(record) > *after);
        }
        records.sort_by_cached_key(part);
        let offsets = self.offsets.range((from, Bound::Unbounded));
        let group = group.to_owned();
        records
            .into_iter()
            .chain(offsets.map(move |(partition, value)| GroupRecord::Offset {
                group: group.clone(),
                partition: partition.clone(),
                value: Some(value.clone()),
            }))
    }

    fn kind_records(&self, group: &str) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        match &self.kind {
            GroupKind::Simple => {}
            GroupKind::Classic(value) => records.push(GroupRecord::Classic {
                group: group.to_owned(),
                value: Some(value.clone()),
            }),
            GroupKind::Consumer(state) => state.records(group, &mut records),
        }
        records
    }
}

fn part(record: &GroupRecord) -> Part {
    match record {
        GroupRecord::Classic { .. } => Part::Classic,
        GroupRecord::Consumer { .. } => Part::Consumer,
        GroupRecord::Regex { regex, .. } => Part::Regex(regex.clone()),
        GroupRecord::ConsumerMember { member, .. } => Part::Member(member.clone()),
        GroupRecord::TargetMember { member, .. } => Part::TargetMember(member.clone()),
        GroupRecord::TargetAssignment { .. } => Part::TargetAssignment,
        GroupRecord::CurrentMember { member, .. } => Part::CurrentMember(member.clone()),
        GroupRecord::Offset { partition, .. } => Part::Offset(partition.clone()),
    }
}
