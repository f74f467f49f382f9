//! A record that was acknowledged with `acks=all` is on a majority of the disks, then and for ever
//! after (DESIGN section 5).

use std::collections::BTreeMap;

use corduroy_record::{GroupId, LogIndex, Offset, PartitionIndex, Term};

use crate::ledger::Ack;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct AckedIsDurable {
    waiting: Vec<Ack>,
    newest: BTreeMap<GroupId, (LogIndex, Term)>,
}

impl Invariant for AckedIsDurable {
    fn name(&self) -> &'static str {
        "acked_is_durable"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        self.waiting.extend_from_slice(moment.acks);
        let waiting = std::mem::take(&mut self.waiting);
        for ack in waiting {
            let (name, partition, offset) = &ack.place;
            let image = moment.seen.image();
            let topic = image.and_then(|image| image.topics.get(name));
            let Some(topic) = topic else {
                self.waiting.push(ack);
                continue;
            };
            let group = topic.group(PartitionIndex::new(*partition));
            let found = moment
                .history
                .group(group)
                .and_then(|history| history.at_offset(Offset::new(*offset)));
            // Its leader may have died within the step; the read after healing finds it or not.
            let Some((index, entry)) = found else {
                self.waiting.push(ack);
                continue;
            };
            let newest = self.newest.entry(group).or_insert((index, entry.term));
            *newest = (index, entry.term).max(*newest);
        }
        for (group, (index, term)) in &self.newest {
            let copies = moment.seen.durable_copies(*group, *index, *term);
            let all = moment.seen.of_group(*group).count().max(3);
            if 2 * copies <= all {
                return Err(format!(
                    "{index} of {group} was acknowledged and is on {copies} disks of {all}"
                ));
            }
        }
        Ok(())
    }
}
