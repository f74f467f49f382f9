//! A leader holds everything that was committed in earlier terms (Raft paper, section 5.4.3).

use std::collections::BTreeSet;

use corduroy_raft::Role;
use corduroy_record::{GroupId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct LeaderIsComplete {
    looked: BTreeSet<(GroupId, Term)>,
}

impl Invariant for LeaderIsComplete {
    fn name(&self) -> &'static str {
        "leader_is_complete"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let (view, log) = (&replica.view, &replica.log);
            if view.role != Role::Leader || !self.looked.insert((group, view.term)) {
                continue;
            }
            let Some(history) = moment.history.group(group) else {
                continue;
            };
            let Some((index, entry)) = history.last() else {
                continue;
            };
            // Entries of its own term or a later one prove nothing about its election.
            if entry.term >= view.term || index < log.log_start.index {
                continue;
            }
            if replica.term_of(index) != Some(entry.term) {
                return Err(format!(
                    "node {host} leads {group} in term {} without {index} of term {}, which was \
                     committed; its log ends at {:?}",
                    view.term, entry.term, log.last
                ));
            }
        }
        Ok(())
    }
}
