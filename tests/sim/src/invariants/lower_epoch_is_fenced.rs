//! Once a producer has written with an epoch, nothing of a lower one follows (fencing).

use std::collections::BTreeMap;

use corduroy_record::GroupId;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct LowerEpochIsFenced {
    epochs: BTreeMap<(GroupId, i64), i16>,
}

impl Invariant for LowerEpochIsFenced {
    fn name(&self) -> &'static str {
        "lower_epoch_is_fenced"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (group, index) in moment.fresh {
            let entry = moment.history.group(*group).and_then(|h| h.get(*index));
            let Some((producer, epoch, ..)) = entry.and_then(|entry| entry.producer) else {
                continue;
            };
            let newest = self.epochs.entry((*group, producer)).or_insert(epoch);
            if epoch < *newest {
                return Err(format!(
                    "{index} of {group} is of producer {producer}, epoch {epoch}; epoch {newest} \
                     has written before"
                ));
            }
            *newest = epoch;
        }
        Ok(())
    }
}
