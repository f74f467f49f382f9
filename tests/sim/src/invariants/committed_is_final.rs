//! What was committed at an index stays there and is the same on every replica (log matching,
//! Raft paper, figure 3).

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct CommittedIsFinal;

impl Invariant for CommittedIsFinal {
    fn name(&self) -> &'static str {
        "committed_is_final"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        match moment.history.conflicts().first() {
            Some(conflict) => Err(conflict.clone()),
            None => Ok(()),
        }
    }
}
