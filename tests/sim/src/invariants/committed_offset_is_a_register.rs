//! A committed position is a linearizable register: an acknowledged commit is in the log, and a read
//! gives what the log says at some moment between its request and its answer.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Invariant, Moment};
use crate::group_ledger::{At, Told};
use crate::group_log::GroupLogs;

/// See the file's head.
#[derive(Default)]
pub struct CommittedOffsetIsARegister {
    /// What could not be judged yet: not all that is committed is known.
    waiting: Vec<Told>,
}

impl Invariant for CommittedOffsetIsARegister {
    fn name(&self) -> &'static str {
        "committed_offset_is_a_register"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        self.waiting.extend(moment.told.iter().cloned());
        if !moment.groups.is_complete() {
            return Ok(());
        }
        for told in std::mem::take(&mut self.waiting) {
            match told {
                Told::Committed {
                    group,
                    at,
                    offset,
                    text,
                } => was_written(moment.groups, group, &at, offset, text.as_deref())?,
                Told::Fetched {
                    group,
                    began,
                    offsets,
                } => was_true(moment.groups, group, began, &offsets)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn was_written(
    groups: &GroupLogs,
    group: &str,
    at: &At,
    offset: i64,
    text: Option<&str>,
) -> Result<(), String> {
    let mut values = groups.writes(group, at).iter();
    let is_there = values.any(|write| match (&write.value, text) {
        // The client leaves out what a later commit of the same member has overtaken.
        (Some((written, _)), None) => *written >= offset,
        (Some((written, beside)), Some(text)) => *written == offset && beside == text,
        (None, _) => false,
    });
    if is_there {
        return Ok(());
    }
    Err(format!(
        "{offset} ({text:?}) was acknowledged as committed at {at:?} of {group}; the log has never \
         had it"
    ))
}

fn was_true(
    groups: &GroupLogs,
    group: &str,
    began: Instant,
    offsets: &BTreeMap<At, i64>,
) -> Result<(), String> {
    let places: BTreeSet<&At> = groups.places(group).chain(offsets.keys()).collect();
    for at in places {
        let found = offsets.get(at).copied();
        let writes = groups.writes(group, at);
        // Seen before the request: surely to be seen by it.
        let sure = writes.partition_point(|write| write.seen_at < began);
        let from = sure.saturating_sub(1);
        let value = |write: &crate::group_log::Write| write.value.as_ref().map(|(offset, _)| *offset);
        let is_true = (sure == 0 && found.is_none())
            || writes[from..].iter().any(|write| value(write) == found);
        if !is_true {
            let allowed: Vec<Option<i64>> = writes[from..].iter().map(value).collect();
            return Err(format!(
                "a read of {group} found {found:?} at {at:?}; since it began there were {allowed:?}"
            ));
        }
    }
    Ok(())
}
