//! A commit is accepted of who is a member in the present generation, and from outside only of a
//! group without members.
//!
//! Under the consumer protocol the coordinator judges by what it has applied: a commit may stand
//! behind a change of its member that was on its way at the same time.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use corduroy_group::table::{GroupKind, GroupState, GroupTable};
use tokio::time::Instant;

use super::{Invariant, Moment};
use crate::group_ledger::{Identity, Told};
use crate::members::OUTSIDE;

/// How long a change of a group may be on its way: as long as a coordinator's write may take.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(5);

/// See the file's head.
#[derive(Default)]
pub struct CommitsAreCurrent {
    /// What groups were a moment ago, oldest first, and until when.
    lately: VecDeque<(Instant, Rc<GroupTable>)>,
}

impl CommitsAreCurrent {
    fn remember(&mut self, moment: &Moment<'_>) {
        let now = Instant::now();
        while self
            .lately
            .front()
            .is_some_and(|(until, _)| *until + ON_ITS_WAY_MAX < now)
        {
            self.lately.pop_front();
        }
        let changed = moment.groups.steps().iter();
        let changed = changed.filter(|step| !Rc::ptr_eq(&step.before, &step.after));
        self.lately
            .extend(changed.map(|step| (now, step.before.clone())));
    }

    /// Whether a group that speaks the consumer protocol now had no members a moment ago.
    fn was_empty(&self, group: &str, now: &GroupState) -> bool {
        let mut lately = self.lately.iter();
        matches!(now.kind, GroupKind::Consumer(_))
            && lately.any(|(_, table)| table.get(group).is_none_or(|state| !state.has_members()))
    }

    fn was_current(&self, group: &str, who: &Identity) -> bool {
        self.lately.iter().any(|(_, table)| {
            let state = table.get(group);
            let state = state.filter(|state| matches!(state.kind, GroupKind::Consumer(_)));
            state.is_some_and(|state| who.is_current(state))
        })
    }
}

impl Invariant for CommitsAreCurrent {
    fn name(&self) -> &'static str {
        "commits_are_current"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        self.remember(moment);
        for commit in moment.groups.commits() {
            let state = commit.before.get(&commit.group);
            if let Some(who) = Identity::of_signature(&commit.text) {
                let is_current = state.is_some_and(|state| who.is_current(state));
                if !is_current && !self.was_current(&commit.group, &who) {
                    return Err(format!(
                        "a commit of {who:?} was accepted in {}, which was {:?}",
                        commit.group,
                        state.map(|state| &state.kind)
                    ));
                }
            } else if commit.text == OUTSIDE
                && state.is_some_and(|state| {
                    state.has_members() && !self.was_empty(&commit.group, state)
                })
            {
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
