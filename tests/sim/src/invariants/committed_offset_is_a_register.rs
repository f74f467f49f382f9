//! A committed position is a linearizable register: an acknowledged commit is in the log, and a read
//! gives what the log says at some moment between its request and its answer.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::GroupId;
use tokio::time::Instant;

use super::{Invariant, Moment};
use crate::group_ledger::{At, Told};
use crate::group_log::{GroupLogs, Write};

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
            match &told {
                Told::Committed {
                    group,
                    at,
                    offset,
                    text,
                } => {
                    let found = was_written(moment.groups, group, at, *offset, text.as_deref());
                    match found {
                        Ok(()) => {}
                        Err(what) if is_led(moment) => return Err(what),
                        // Its coordinator applied it and was gone within the step: the next one
                        // tells.
                        Err(_) => self.waiting.push(told),
                    }
                }
                Told::Fetched {
                    group,
                    began,
                    offsets,
                } => match was_true(moment.groups, group, *began, offsets) {
                    Ok(()) => {}
                    Err(what) if is_led(moment) => return Err(what),
                    // As above: who answered may have applied more than anybody was seen to.
                    Err(_) => self.waiting.push(told),
                },
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether the newest leader of every partition of groups has applied what was committed before it.
fn is_led(moment: &Moment<'_>) -> bool {
    let of_groups = moment
        .seen
        .replicas()
        .filter(|(_, _, r)| r.groups.is_some());
    let partitions: BTreeSet<GroupId> = of_groups.map(|(_, group, _)| group).collect();
    partitions.into_iter().all(|group| {
        let terms = moment.seen.of_group(group).map(|(_, r)| r.view.term);
        let newest = terms.max();
        let mut replicas = moment.seen.of_group(group);
        replicas.any(|(_, r)| r.leads() && Some(r.view.term) == newest)
    })
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
        let (mut allowed, never) = values_since(writes, began);
        let is_true = (never && found.is_none()) || allowed.any(|value| value == found);
        if !is_true {
            let allowed: Vec<Option<i64>> = values_since(writes, began).0.collect();
            return Err(format!(
                "a read of {group} found {found:?} at {at:?}; since it began there were {allowed:?}"
            ));
        }
    }
    Ok(())
}

/// The values that a position had at some moment since then; and whether "never committed" is one.
fn values_since(
    writes: &[Write],
    began: Instant,
) -> (impl Iterator<Item = Option<i64>> + '_, bool) {
    // Seen before the request: surely to be seen by it.
    let sure = writes.partition_point(|write| write.seen_at < began);
    let since = &writes[sure.saturating_sub(1)..];
    let value = |write: &Write| write.value.as_ref().map(|(offset, _)| *offset);
    (since.iter().map(value), sure == 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_read_may_see_what_was_there_since_it_began() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let write = |millis, offset| Write {
            seen_at: at(millis),
            value: Some((offset, String::new())),
        };
        let writes = [write(10, 5), write(20, 7), write(30, 6)];
        let seen = |millis| {
            let (values, never) = values_since(&writes, at(millis));
            (values.flatten().collect::<Vec<_>>(), never)
        };
        assert_eq!(seen(5), (vec![5, 7, 6], true));
        assert_eq!(seen(15), (vec![5, 7, 6], false));
        assert_eq!(seen(25), (vec![7, 6], false), "5 is over");
        assert_eq!(seen(35), (vec![6], false));
        assert_eq!(values_since(&[], at(0)).0.count(), 0);
    }
}
