//! One partition of the scripted cluster: a log in memory, and Kafka's idempotence table.

use std::collections::{HashMap, VecDeque};

use corduroy_protocol::ErrorCode;
use corduroy_record::{Batch, LeaderEpoch, Offset, sequence_after};

#[derive(Default)]
pub struct Partition {
    pub leader: i32,
    pub epoch: i32,
    pub log: Vec<Batch>,
    pub log_start: i64,
    pub next_offset: i64,
    pub producers: HashMap<i64, ProducerState>,
}

#[derive(Default)]
pub struct ProducerState {
    pub epoch: i16,
    /// (first sequence, last sequence, base offset), the newest last.
    pub window: VecDeque<(i32, i32, i64)>,
}

impl Partition {
    /// Kafka's decision table for idempotent batches, then the append.
    pub fn take_in(&mut self, mut batch: Batch) -> Result<i64, ErrorCode> {
        let header = *batch.header();
        if header.is_idempotent() {
            let (first, last) = (header.base_sequence, header.last_sequence());
            let epoch = header.producer_epoch.get();
            let known = self.producers.get(&header.producer_id.get());
            if let Some(known) = known {
                if epoch < known.epoch {
                    return Err(ErrorCode::InvalidProducerEpoch);
                }
                let in_window = known
                    .window
                    .iter()
                    .find(|(f, l, _)| (*f, *l) == (first, last));
                match in_window {
                    Some((_, _, base_offset)) if epoch == known.epoch => return Ok(*base_offset),
                    _ => {}
                }
                let expected = match known.window.back() {
                    Some((_, last, _)) if epoch == known.epoch => sequence_after(*last, 1),
                    _ => 0,
                };
                if first != expected {
                    return Err(ErrorCode::OutOfOrderSequenceNumber);
                }
            }
            let state = self.producers.entry(header.producer_id.get()).or_default();
            if epoch > state.epoch {
                *state = ProducerState {
                    epoch,
                    ..ProducerState::default()
                };
            }
            state.window.push_back((first, last, self.next_offset));
            if state.window.len() > 5 {
                state.window.pop_front();
            }
        }
        let base_offset = self.next_offset;
        batch.stamp(Offset::new(base_offset), LeaderEpoch::new(self.epoch));
        self.next_offset = batch.header().next_offset().get();
        self.log.push(batch);
        Ok(base_offset)
    }
}
