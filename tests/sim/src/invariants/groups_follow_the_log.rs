//! Every replica's groups, the new coordinator's after a failover first of all, are what the
//! committed log adds up to: the same members, generations and positions as before.

use std::rc::Rc;

use corduroy_group::table::GroupTable;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct GroupsFollowTheLog;

impl Invariant for GroupsFollowTheLog {
    fn name(&self) -> &'static str {
        "groups_follow_the_log"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let Some(table) = &replica.groups else {
                continue;
            };
            let before = moment
                .earlier(host, group)
                .and_then(|old| old.groups.as_ref());
            if before.is_some_and(|before| Rc::ptr_eq(before, table)) {
                continue;
            }
            let applied = replica.view.applied;
            let Some(expected) = moment.groups.version(group, applied) else {
                continue;
            };
            if let Some(what) = difference(expected, table) {
                return Err(format!("node {host} as of {applied} of {group}: {what}"));
            }
        }
        Ok(())
    }
}

fn difference(expected: &GroupTable, found: &GroupTable) -> Option<String> {
    if expected == found {
        return None;
    }
    for (name, state) in expected.groups() {
        let other = found.get(name);
        if other != Some(state) {
            return Some(format!("{name} is {other:?}, by the log {state:?}"));
        }
    }
    Some("it has a group that the log does not".to_owned())
}
