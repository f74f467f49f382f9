//! A group's generation (under the consumer protocol its epoch) never falls, whoever coordinates it;
//! neither does what a member is told, and who joins gets more than what was durable before. (A static
//! member that comes back may get as much: its return is no rebalance.)

use std::collections::BTreeMap;

use super::{Invariant, Moment};
use crate::group_ledger::{Told, generation_of};

/// See the file's head.
#[derive(Default)]
pub struct GenerationsAscend {
    told: BTreeMap<(&'static str, String), i32>,
}

impl Invariant for GenerationsAscend {
    fn name(&self) -> &'static str {
        "generations_ascend"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for step in moment.groups.steps() {
            for (name, before) in step.before.groups() {
                let Some(after) = step.after.get(name) else {
                    continue;
                };
                let (before, after) = (generation_of(before), generation_of(after));
                if after < before {
                    return Err(format!(
                        "the generation of {name} falls from {before} to {after} at {}",
                        step.index
                    ));
                }
            }
        }
        for told in moment.told {
            let Told::Member {
                group,
                who,
                above,
                instance,
            } = told
            else {
                continue;
            };
            let is_too_low = |above: &i32| match instance {
                Some(_) => who.generation < *above,
                None => who.generation <= *above,
            };
            if let Some(above) = above.filter(is_too_low) {
                return Err(format!(
                    "{who:?} of {group} began to join when generation {above} was durable"
                ));
            }
            let key = (*group, who.member.clone());
            let known = self.told.entry(key).or_insert(who.generation);
            if who.generation < *known {
                return Err(format!(
                    "{who:?} of {group} was in generation {known} before"
                ));
            }
            *known = who.generation;
        }
        Ok(())
    }
}
