//! The high watermark never falls while its replica lives, never passes what is committed, and a
//! leader begins no lower than any leader before it has served.

use std::collections::BTreeMap;

use corduroy_record::{GroupId, Offset, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct HighWatermarkAscends {
    served: BTreeMap<GroupId, (Term, Offset)>,
}

impl Invariant for HighWatermarkAscends {
    fn name(&self) -> &'static str {
        "high_watermark_ascends"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let Some([_, _, high, end]) = replica.marks else {
                continue;
            };
            let old = moment.earlier(host, group);
            // What is led is held against what was served, below, whatever happened to the disk.
            let old = old
                .filter(|old| old.replica == replica.replica && !moment.seen.may_begin_anew(host));
            if let Some([_, _, before, _]) = old.and_then(|old| old.marks)
                && high < before
            {
                return Err(format!(
                    "the high watermark of {group} on node {host} fell from {before} to {high}"
                ));
            }
            let committed = moment.history.group(group).map(|history| history.end());
            if high > end || committed.is_some_and(|committed| high > committed) {
                return Err(format!(
                    "the high watermark of {group} on node {host} is {high}; committed is \
                     {committed:?}, the log ends at {end}"
                ));
            }
            if replica.leads() {
                let (term, served) = self.served.entry(group).or_default();
                if replica.view.term > *term && high < *served {
                    return Err(format!(
                        "node {host} leads {group} in term {} with the high watermark {high}; \
                         {served} was served in term {term}",
                        replica.view.term
                    ));
                }
                if replica.view.term >= *term {
                    *term = replica.view.term;
                    *served = high.max(*served);
                }
            }
        }
        Ok(())
    }
}
