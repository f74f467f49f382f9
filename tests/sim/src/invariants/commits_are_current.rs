//! A commit is accepted of who is a member in the present generation, and from outside only of a
//! group without members.

use corduroy_group::table::GroupState;

use super::{Invariant, Moment};
use crate::group_ledger::{Identity, Told};
use crate::members::OUTSIDE;

/// See the file's head.
#[derive(Default)]
pub struct CommitsAreCurrent;

impl Invariant for CommitsAreCurrent {
    fn name(&self) -> &'static str {
        "commits_are_current"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for commit in moment.groups.commits() {
            let state = commit.before.get(&commit.group);
            if let Some(who) = Identity::of_signature(&commit.text) {
                let is_current = state.is_some_and(|state| who.is_current(state));
                if !is_current {
                    return Err(format!(
                        "a commit of {who:?} was accepted in {}, which was {:?}",
                        commit.group,
                        state.map(|state| &state.kind)
                    ));
                }
            } else if commit.text == OUTSIDE && state.is_some_and(GroupState::has_members) {
                return Err(format!(
                    "a commit from outside was accepted in {}, which has members",
                    commit.group
                ));
            }
        }
        for told in moment.told {
            if let Told::StaleAccepted { group, who } = told {
                return Err(format!(
                    "a commit of {who:?} was accepted in {group} when its generation was over"
                ));
            }
        }
        Ok(())
    }
}
