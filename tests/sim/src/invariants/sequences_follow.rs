//! The committed batches of a producer follow each other: none twice, none missing (KIP-98).

use std::collections::BTreeMap;

use corduroy_record::GroupId;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct SequencesFollow {
    last: BTreeMap<(GroupId, i64, i16), i32>,
}

impl Invariant for SequencesFollow {
    fn name(&self) -> &'static str {
        "sequences_follow"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (group, index) in moment.fresh {
            let entry = moment.history.group(*group).and_then(|h| h.get(*index));
            let Some((producer, epoch, first, last)) = entry.and_then(|entry| entry.producer)
            else {
                continue;
            };
            let key = (*group, producer, epoch);
            let expected = match self.last.insert(key, last) {
                None => 0,
                Some(i32::MAX) => 0,
                Some(before) => before + 1,
            };
            if first != expected {
                return Err(format!(
                    "{index} of {group} is of producer {producer}, epoch {epoch}, and begins with \
                     sequence {first}, not {expected}"
                ));
            }
        }
        Ok(())
    }
}
