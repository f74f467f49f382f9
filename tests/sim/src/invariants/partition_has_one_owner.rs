//! A generation gives a partition to one member at most: in what is durable, and in what members
//! read. (A static member is the same one in all its lives.)

use std::collections::BTreeMap;

use bytes::Buf;
use corduroy_group::records::ClassicValue;
use corduroy_group::table::{GroupKind, GroupState};

use super::{Invariant, Moment};
use crate::group_ledger::{At, Told};

/// See the file's head.
#[derive(Default)]
pub struct PartitionHasOneOwner {
    owners: BTreeMap<(&'static str, i32, At), String>,
}

impl Invariant for PartitionHasOneOwner {
    fn name(&self) -> &'static str {
        "partition_has_one_owner"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for step in moment.groups.steps() {
            for (name, state) in step.after.groups() {
                if step.before.get(name) != Some(state)
                    && let Some(what) = shared(state)
                {
                    return Err(format!("{name} as of {}: {what}", step.index));
                }
            }
        }
        for told in moment.told {
            let Told::Owns {
                group,
                who,
                at,
                instance,
            } = told
            else {
                continue;
            };
            let key = (*group, who.generation, at.clone());
            let name = instance.map_or_else(|| who.member.clone(), str::to_owned);
            let owner = self.owners.entry(key).or_insert_with(|| name.clone());
            if *owner != name {
                return Err(format!(
                    "{who:?} of {group} got records of {at:?}, which {owner} had in this generation"
                ));
            }
        }
        Ok(())
    }
}

/// A partition that two members have.
fn shared(state: &GroupState) -> Option<String> {
    match &state.kind {
        GroupKind::Simple => None,
        GroupKind::Classic(value) => shared_classic(value),
        GroupKind::Consumer(consumer) => {
            let mut owners = BTreeMap::new();
            for (id, member) in consumer.members() {
                let current = member.current.iter();
                let held = current.flat_map(|now| [&now.assigned, &now.pending_revocation]);
                for (topic, partitions) in held.flatten() {
                    for partition in partitions {
                        let before = owners.insert((*topic, *partition), id);
                        if let Some(other) = before.filter(|other| *other != id) {
                            return Some(format!("{other} and {id} have {topic}/{partition}"));
                        }
                    }
                }
            }
            None
        }
    }
}

fn shared_classic(value: &ClassicValue) -> Option<String> {
    let mut owners = BTreeMap::new();
    for member in &value.members {
        for at in assigned(&member.assignment) {
            let before = owners.insert(at.clone(), &member.member_id);
            if let Some(other) = before {
                return Some(format!("{other} and {} have {at:?}", member.member_id));
            }
        }
    }
    None
}

/// The partitions of a member's assignment, as clients encode it (`ConsumerProtocolAssignment`); of
/// garbage, those before it.
fn assigned(mut bytes: &[u8]) -> Vec<At> {
    let mut all = Vec::new();
    let mut read = || -> Option<()> {
        let _version = bytes.try_get_i16().ok()?;
        for _ in 0..bytes.try_get_i32().ok()? {
            let length = bytes.try_get_i16().ok()?;
            let (name, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
            bytes = rest;
            for _ in 0..bytes.try_get_i32().ok()? {
                let partition = bytes.try_get_i32().ok()?;
                all.push((String::from_utf8_lossy(name).into_owned(), partition));
            }
        }
        Some(())
    };
    // An empty assignment has no bytes at all.
    let _cut = read();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read() {
        let bytes = [
            &[0, 1, 0, 0, 0, 1, 0, 1][..],
            b"t",
            &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(assigned(&bytes), [("t".to_owned(), 0), ("t".to_owned(), 7)]);
        assert_eq!(assigned(&[]), []);
    }
}
