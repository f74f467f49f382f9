//! The epoch table ascends, and says the same of a committed epoch on every replica.

use std::collections::BTreeMap;

use corduroy_record::{GroupId, LogIndex, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct EpochsAscend {
    starts: BTreeMap<(GroupId, Term), LogIndex>,
}

impl Invariant for EpochsAscend {
    fn name(&self) -> &'static str {
        "epochs_ascend"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let epochs = &replica.slow.epochs;
            let ascends = epochs.windows(2).all(|pair| {
                pair[0].term < pair[1].term
                    && pair[0].first_index < pair[1].first_index
                    && pair[0].first_offset <= pair[1].first_offset
            });
            if !ascends {
                return Err(format!("the epochs of {group} on node {host}: {epochs:?}"));
            }
            for start in epochs {
                let inside = start.first_index > replica.log.log_start.index
                    && start.first_index <= replica.view.applied;
                if !inside {
                    continue;
                }
                let key = (group, start.term);
                let first = *self.starts.entry(key).or_insert(start.first_index);
                if first != start.first_index {
                    return Err(format!(
                        "epoch {} of {group} begins at {} on node {host}, elsewhere at {first}",
                        start.term, start.first_index
                    ));
                }
            }
        }
        Ok(())
    }
}
