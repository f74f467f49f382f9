//! Offsets are a pure function of the log: each entry begins where the one before it ends
//! (DESIGN section 4).

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct OffsetsAreDense;

impl Invariant for OffsetsAreDense {
    fn name(&self) -> &'static str {
        "offsets_are_dense"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (group, index) in moment.fresh {
            let Some(history) = moment.history.group(*group) else {
                continue;
            };
            let (Some(entry), Some((at, before))) = (history.get(*index), history.before(*index))
            else {
                continue;
            };
            let end = before.base_offset.get() + i64::from(before.records);
            if at.next() != *index || end != entry.base_offset.get() {
                return Err(format!(
                    "{index} of {group} begins at offset {}; {at} before it ends at {end}",
                    entry.base_offset
                ));
            }
        }
        Ok(())
    }
}
