//! One batch through its life: it gathers records, is sent, perhaps more than once, and is settled.

use std::ops::Range;
use std::sync::Arc;

use corduroy_record::{Batch, BatchBuilder, BuilderOptions};
use tokio::time::Instant;

use super::seal::Stamp;
use super::ticket::{Completion, Resolution};
use crate::error::{Error, Outcome};

/// A batch that gathers records, or is full and waits for its turn.
pub(super) struct Draft {
    pub(super) builder: BatchBuilder,
    pub(super) completion: Arc<Completion>,
    pub(super) reserved_bytes: usize,
    pub(super) created_at: Instant,
    pub(super) closed: bool,
}

/// A batch that has been sent once at least, and is not settled.
pub(super) struct Slot {
    /// Its name within this queue.
    pub(super) order: u64,
    pub(super) completion: Arc<Completion>,
    pub(super) range: Range<u32>,
    pub(super) reserved_bytes: usize,
    pub(super) created_at: Instant,
    pub(super) stamp: Option<Stamp>,
    pub(super) attempts: u32,
    pub(super) maybe_written: bool,
    pub(super) last_error: Option<Error>,
    pub(super) state: SlotState,
}

pub(super) enum SlotState {
    /// `expired`: its records have been given up, but the broker may still take them, so its place
    /// in the order stays occupied until the answer.
    InFlight {
        led: bool,
        expired: bool,
    },
    Waiting(Batch),
}

/// A batch to send.
pub(crate) struct Parcel {
    pub(crate) order: u64,
    pub(crate) content: Content,
    /// Where it stands in its producer's order; `None` without idempotence.
    pub(crate) stamp: Option<Stamp>,
}

/// A batch before or after its sealing, which takes time and happens outside of the lock.
pub(crate) enum Content {
    Gathered(BatchBuilder),
    Sealed(Batch),
}

/// Records whose fate is known, and the buffer space that they free.
pub(crate) struct Settled {
    pub(crate) completion: Arc<Completion>,
    pub(crate) range: Range<u32>,
    pub(crate) resolution: Resolution,
    pub(crate) freed_bytes: usize,
}

impl Settled {
    /// Tells who waits.
    pub(crate) fn tell(self) {
        self.completion.resolve(self.range, self.resolution);
    }
}

impl Content {
    /// Upper bound of its bytes on the wire.
    pub(crate) fn size_estimate(&self) -> usize {
        match self {
            Content::Gathered(builder) => builder.size_estimate(),
            Content::Sealed(batch) => batch.size_bytes(),
        }
    }
}

impl Draft {
    /// Takes no more records.
    pub(super) fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.completion.close(self.builder.record_count() as u32);
        }
    }

    /// Gives it up: nothing of it was ever sent.
    pub(super) fn fail(self, error: Error) -> Settled {
        let error = error
            .with_api("Produce")
            .with_partition(self.completion.topic(), self.completion.partition())
            .with_outcome(Outcome::NotWritten);
        Settled {
            range: 0..self.builder.record_count() as u32,
            completion: self.completion,
            resolution: Resolution::Failed(error),
            freed_bytes: self.reserved_bytes,
        }
    }
}

impl Slot {
    /// `error` with the place of the batch.
    pub(super) fn located(&self, error: Error, outcome: Outcome) -> Error {
        error
            .with_api("Produce")
            .with_partition(self.completion.topic(), self.completion.partition())
            .with_attempts(self.attempts)
            .with_outcome(outcome)
    }

    pub(super) fn fail(self, error: Error, outcome: Outcome) -> Settled {
        let error = self.located(error, outcome);
        self.settle(Resolution::Failed(error))
    }

    pub(super) fn settle(self, resolution: Resolution) -> Settled {
        Settled {
            completion: self.completion,
            range: self.range,
            resolution,
            freed_bytes: self.reserved_bytes,
        }
    }
}

/// Bytes that the records of one of our own batches take uncompressed: a record is bounded by
/// `max.request.size`, a batch by the larger of that and `batch.size`.
const OWN_BATCH_BYTES_MAX: usize = 1 << 30;

/// Two batches with the records of one. `None` where it cannot be halved.
pub(super) fn halves(batch: &Batch) -> Option<[Batch; 2]> {
    let count = batch.header().record_count;
    let compression = batch.header().attributes.compression().ok()?;
    let new = || {
        BatchBuilder::new(BuilderOptions {
            compression,
            ..BuilderOptions::default()
        })
    };
    let mut builders = [new(), new()];
    for (index, record) in batch.records(OWN_BATCH_BYTES_MAX).ok()?.enumerate() {
        let record = record.ok()?;
        let half = usize::from(index >= count as usize / 2);
        builders[half]
            .push_owned(
                record.timestamp,
                record.key.as_deref(),
                record.value.as_deref(),
                &record.headers,
            )
            .ok()?;
    }
    if builders.iter().any(BatchBuilder::is_empty) {
        return None;
    }
    Some(builders.map(BatchBuilder::finish))
}
