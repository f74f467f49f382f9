//! What was read or acknowledged at an offset is there for ever, and nothing that failed is read.

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct ReadsAgree;

impl Invariant for ReadsAgree {
    fn name(&self) -> &'static str {
        "reads_agree"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        match moment.ledger.first_conflict() {
            Some(conflict) => Err(conflict),
            None => Ok(()),
        }
    }
}
