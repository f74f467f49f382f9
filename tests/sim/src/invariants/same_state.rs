//! Replicas that applied the same entries have the same tables (state machine safety).

use std::collections::BTreeMap;

use corduroy_record::{GroupId, LogIndex};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct SameState {
    tables: BTreeMap<(GroupId, LogIndex), u64>,
}

impl Invariant for SameState {
    fn name(&self) -> &'static str {
        "same_state"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let applied = replica.view.applied;
            // Index 0 also stands for "nothing yet".
            if applied == LogIndex::new(0) {
                continue;
            }
            let hash = replica.slow.tables;
            let first = *self.tables.entry((group, applied)).or_insert(hash);
            if first != hash {
                return Err(format!(
                    "the tables of {group} as of {applied} on node {host} differ from another's"
                ));
            }
        }
        Ok(())
    }
}
