//! Fetch: shared batches below the high watermark (kafka-semantics 1.9).

use std::rc::Rc;

use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_raft::ReplicaView;
use corduroy_record::{Batch, LeaderEpoch, Offset};
use tokio::sync::Notify;
use tracing::{trace, warn};

use super::{Partition, PartitionError, Watermarks};
use crate::walk::WALK;

/// What a consumer may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Everything below the high watermark.
    ReadUncommitted,
    /// Everything below the last stable offset.
    ReadCommitted,
}

/// One partition of a fetch request.
#[derive(Clone, Copy, Debug)]
pub struct FetchSpec {
    /// First offset that is wanted.
    pub from: Offset,
    /// The client's idea of the leader's epoch; below 0 is "no idea".
    pub leader_epoch: LeaderEpoch,
    /// Epoch of the last record that the client has; below 0 is "do not check" (KIP-320).
    pub last_fetched_epoch: LeaderEpoch,
    /// Bytes wanted of this partition; the first batch may exceed it (KIP-74).
    pub bytes_max: usize,
    /// What the consumer may see.
    pub isolation: Isolation,
}

/// What a fetch found.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The partition's offsets at the time of the read.
    pub watermarks: Watermarks,
    /// Whole batches; the first may begin before the offset that was asked for.
    pub batches: Vec<Batch>,
    /// Bytes in `batches`.
    pub bytes: usize,
    /// Where the client's log and this one part, if they do (KIP-320).
    pub diverging: Option<(LeaderEpoch, Offset)>,
    /// Whether the leader has confirmed its epoch. Before, its high watermark is the one that it
    /// knew as a follower, and may be behind what was acknowledged (safety law 14).
    pub confirmed: bool,
}

impl Fetched {
    /// Whether the answer must go out at once, however little it holds.
    pub fn is_urgent(&self) -> bool {
        self.diverging.is_some()
    }
}

impl Partition {
    /// Registers `waiter` for the partition's next change.
    pub fn wait_for_change(&self, waiter: &Rc<Notify>) {
        self.machine.borrow().changes().register(waiter);
    }

    /// Takes `waiter` off again.
    pub fn forget_waiter(&self, waiter: &Rc<Notify>) {
        self.machine.borrow().changes().forget(waiter);
    }

    /// Reads what there is now, at most `bytes_max` beyond the first batch. An empty answer means
    /// "nothing yet".
    pub async fn fetch(
        &self,
        spec: &FetchSpec,
        bytes_max: usize,
    ) -> Result<Fetched, PartitionError> {
        let view = self.replica.view();
        let ready = self.leading(&view)?;
        self.check_epoch(&view, spec.leader_epoch)?;
        let watermarks = self.watermarks();
        let (group, epoch) = (self.group(), view.epoch);
        trace!(target: WALK, room = 4, partition = %self.name, %group, %epoch, from = %spec.from, "a fetch is judged");
        let mut fetched = Fetched {
            watermarks,
            batches: Vec::new(),
            bytes: 0,
            diverging: None,
            confirmed: ready,
        };
        if !ready {
            // The fetch parks; if this lasts until its deadline, `settle` refuses it.
            return Ok(fetched);
        }
        if let Some(diverging) = self.diverging(spec) {
            fetched.diverging = Some(diverging);
            return Ok(fetched);
        }
        self.check_range(spec, &view, &watermarks)?;
        let upto = match spec.isolation {
            _ if planted::is(Bug::StaleLeaderServes) && !view.lease_valid => watermarks.log_end,
            Isolation::ReadUncommitted => watermarks.high_watermark,
            Isolation::ReadCommitted => watermarks.last_stable,
        };
        if spec.from >= upto || bytes_max == 0 {
            return Ok(fetched);
        }
        let bytes_max = bytes_max.min(spec.bytes_max);
        let log = self.replica.log();
        let batches = match log.read_offsets_cached(spec.from, upto, bytes_max) {
            Some(batches) => batches,
            None => log
                .read_offsets(spec.from, upto, bytes_max)
                .await
                .map_err(|error| {
                    warn!(parent: &self.span(), %error, "a read from the log failed");
                    PartitionError::new(ErrorCode::KafkaStorageError, error.to_string())
                })?,
        };
        trace!(target: WALK, room = 5, %group, batches = batches.len(), "batches are read");
        // Retention may have moved the start while the disk was read.
        let log_start = self.machine.borrow().log_start();
        if spec.from < log_start {
            return Err(self.out_of_range(spec.from, log_start, watermarks.log_end));
        }
        fetched.bytes = batches.iter().map(Batch::size_bytes).sum();
        fetched.batches = batches;
        Ok(fetched)
    }

    /// Makes the last look at a partition the answer: what is not confirmed at the deadline is
    /// OFFSET_NOT_AVAILABLE, never an old high watermark without an error.
    pub fn settle(&self, result: &mut Result<Fetched, PartitionError>) {
        refuse_unconfirmed(result, || self.unconfirmed());
    }

    fn diverging(&self, spec: &FetchSpec) -> Option<(LeaderEpoch, Offset)> {
        if spec.last_fetched_epoch.get() < 0 {
            return None;
        }
        let end = self.epoch_end_of(spec.last_fetched_epoch);
        let parted = end.offset.get() >= 0
            && (end.offset < spec.from || end.epoch < spec.last_fetched_epoch);
        parted.then_some((end.epoch, end.offset))
    }

    fn check_range(
        &self,
        spec: &FetchSpec,
        view: &ReplicaView,
        watermarks: &Watermarks,
    ) -> Result<(), PartitionError> {
        // Above the high watermark but within the log the record exists and is not committed:
        // wait for it. OUT_OF_RANGE would make clients reset.
        if spec.from < watermarks.log_start || spec.from > watermarks.log_end {
            let mut error = self.out_of_range(spec.from, watermarks.log_start, watermarks.log_end);
            error.leader = view.leader.map(|(_, node)| (node, view.epoch));
            return Err(error);
        }
        Ok(())
    }

    fn out_of_range(&self, asked: Offset, start: Offset, end: Offset) -> PartitionError {
        PartitionError {
            log_start: Some(start),
            ..PartitionError::new(
                ErrorCode::OffsetOutOfRange,
                format!("offset {asked} of {} is outside {start}..{end}", self.name),
            )
        }
    }
}

fn refuse_unconfirmed(
    result: &mut Result<Fetched, PartitionError>,
    error: impl FnOnce() -> PartitionError,
) {
    if result.as_ref().is_ok_and(|fetched| !fetched.confirmed) {
        *result = Err(error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_that_the_leader_has_not_confirmed_is_shown_to_nobody() {
        let at = Offset::new;
        let look = |confirmed| Fetched {
            watermarks: Watermarks {
                log_start: at(0),
                last_stable: at(3),
                high_watermark: at(3),
                log_end: at(9),
            },
            batches: Vec::new(),
            bytes: 0,
            diverging: None,
            confirmed,
        };
        let unconfirmed = || PartitionError::code(ErrorCode::OffsetNotAvailable);
        let mut answer = Ok(look(false));
        refuse_unconfirmed(&mut answer, unconfirmed);
        assert_eq!(
            answer.expect_err("refused").code,
            ErrorCode::OffsetNotAvailable
        );
        let mut answer = Ok(look(true));
        refuse_unconfirmed(&mut answer, unconfirmed);
        assert_eq!(answer.expect("kept").watermarks.high_watermark, at(3));
        let mut answer = Err(PartitionError::code(ErrorCode::NotLeaderOrFollower));
        refuse_unconfirmed(&mut answer, unconfirmed);
        assert_eq!(
            answer.expect_err("as it was").code,
            ErrorCode::NotLeaderOrFollower
        );
    }
}
