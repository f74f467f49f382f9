//! Where a log can be read from never falls, also across a change of leaders.

use std::collections::BTreeMap;

use corduroy_record::{GroupId, Offset};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct LogStartAscends {
    served: BTreeMap<GroupId, Offset>,
}

impl Invariant for LogStartAscends {
    fn name(&self) -> &'static str {
        "log_start_ascends"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // A crash may forget a purge; what may be read follows from the log and comes back.
            let start = replica.log.log_start;
            let before = moment.earlier(host, group).map(|old| old.log.log_start);
            if before.is_some_and(|old| start.index < old.index || start.offset < old.offset) {
                return Err(format!(
                    "the log of {group} on node {host} starts at {start:?} after {before:?}"
                ));
            }
            let Some([readable, ..]) = replica.marks.filter(|_| replica.leads()) else {
                continue;
            };
            let served = self.served.entry(group).or_default();
            if readable < *served && is_newest(moment, group, replica.view.term) {
                return Err(format!(
                    "node {host} leads {group} and reads it from {readable}; before, it was read \
                     from {served}"
                ));
            }
            *served = readable.max(*served);
        }
        Ok(())
    }
}

/// Whether no other replica has heard of a later term: an old leader that nobody has told may
/// still be behind.
fn is_newest(moment: &Moment<'_>, group: GroupId, term: corduroy_record::Term) -> bool {
    let replicas = moment.seen.of_group(group);
    replicas
        .into_iter()
        .all(|(_, other)| other.view.term <= term)
}
