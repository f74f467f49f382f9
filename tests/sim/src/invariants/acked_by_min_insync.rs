//! A record that was acknowledged with `acks=all` is on as many disks as `min.insync.replicas` asks
//! for (DESIGN section 5): here, on all three.

use corduroy_record::{Offset, PartitionIndex};

use crate::ledger::Ack;
use crate::workload::STRICT;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct AckedByMinInsync {
    waiting: Vec<Ack>,
}

/// `min.insync.replicas` of the topic.
const COPIES: usize = 3;

impl Invariant for AckedByMinInsync {
    fn name(&self) -> &'static str {
        "acked_by_min_insync"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let fresh = moment.acks.iter().filter(|ack| ack.place.0 == STRICT);
        self.waiting.extend(fresh.cloned());
        let waiting = std::mem::take(&mut self.waiting);
        for ack in waiting {
            let (name, partition, offset) = &ack.place;
            let image = moment.seen.image();
            let topic = image.and_then(|image| image.topics.get(name));
            let group = topic.map(|topic| topic.group(PartitionIndex::new(*partition)));
            let found = group.and_then(|group| {
                let history = moment.history.group(group)?;
                let (index, entry) = history.at_offset(Offset::new(*offset))?;
                Some((group, index, entry.term))
            });
            // Applied by a leader that died within the step: the next one tells where it is.
            let Some((group, index, term)) = found else {
                self.waiting.push(ack);
                continue;
            };
            let copies = moment.seen.durable_copies(group, index, term);
            if copies < COPIES {
                return Err(format!(
                    "{} was acknowledged at {:?} and is on {copies} disks, not {COPIES}",
                    ack.value, ack.place
                ));
            }
        }
        Ok(())
    }
}
