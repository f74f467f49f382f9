//! ListOffsets and OffsetForLeaderEpoch: positions by time, by end, by epoch.

use std::ops::ControlFlow;

use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_record::{Batch, BatchError, LeaderEpoch, LogIndex, Offset};

use super::{Isolation, Partition, PartitionError};

/// Records of one batch are unpacked within this budget when a timestamp is looked up.
pub const LOOKUP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Which offset a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetTarget {
    /// -2: the first that can be read; also -4, "earliest local": all our data is local.
    Earliest,
    /// -1: the end of what the client may see.
    Latest,
    /// -5: the end of what is in tiered storage; there is none (KIP-1005).
    LatestTiered,
    /// -3: the record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The first record at or after this time in milliseconds.
    Timestamp(i64),
}

/// An offset with the timestamp and epoch that go with it; -1 where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// The offset, -1 for "none".
    pub offset: Offset,
    /// The record's timestamp in milliseconds, -1 where it was not looked up.
    pub timestamp: i64,
    /// The epoch of the record's leader.
    pub epoch: LeaderEpoch,
}

impl FoundOffset {
    const NONE: FoundOffset = FoundOffset {
        offset: Offset::new(-1),
        timestamp: -1,
        epoch: LeaderEpoch::NONE,
    };
}

/// The end of a leader epoch (KIP-101, KIP-320).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch that is not larger than the one asked for, -1 for "unknown".
    pub epoch: LeaderEpoch,
    /// Where the next epoch starts, or the log's end; -1 for "unknown".
    pub offset: Offset,
}

impl Partition {
    /// Looks an offset up. The answer is never older than what was acknowledged before the
    /// question: a ReadIndex comes first.
    pub async fn find_offset(
        &self,
        target: OffsetTarget,
        asked_epoch: LeaderEpoch,
        isolation: Isolation,
    ) -> Result<FoundOffset, PartitionError> {
        let view = self.replica.view();
        let ready = self.leading(&view)?;
        self.check_epoch(&view, asked_epoch)?;
        if !ready {
            return Err(self.unconfirmed());
        }
        let asks_nobody =
            planted::is(Bug::StaleLeaderServes) || planted::is(Bug::LeaseRead) && view.lease_valid;
        if !asks_nobody && self.replica.read_barrier().await.is_err() {
            return Err(self.not_leader(&self.replica.view()));
        }
        let watermarks = self.watermarks();
        let upto = match isolation {
            Isolation::ReadUncommitted => watermarks.high_watermark,
            Isolation::ReadCommitted => watermarks.last_stable,
        };
        let log = self.replica.log();
        let epoch = self.replica.view().epoch;
        match target {
            OffsetTarget::Earliest => Ok(FoundOffset {
                offset: watermarks.log_start,
                timestamp: -1,
                epoch,
            }),
            OffsetTarget::Latest => Ok(FoundOffset {
                offset: upto,
                timestamp: -1,
                epoch,
            }),
            OffsetTarget::LatestTiered => Ok(FoundOffset::NONE),
            OffsetTarget::MaxTimestamp => {
                let batch = log.find_max_timestamp(upto).await.map_err(storage)?;
                let Some(batch) = batch else {
                    return Ok(FoundOffset::NONE);
                };
                let found = highest_inside(&batch, watermarks.log_start)?;
                Ok(found.unwrap_or(FoundOffset::NONE))
            }
            OffsetTarget::Timestamp(target) => {
                let mut from = LogIndex::new(0);
                loop {
                    let found = log.find_timestamp_from(from, target, upto).await;
                    let Some((index, batch)) = found.map_err(storage)? else {
                        return Ok(FoundOffset::NONE);
                    };
                    if let Some(found) = first_inside(&batch, target, watermarks.log_start)? {
                        return Ok(found);
                    }
                    // Its header promises more than its records keep, or what keeps it lies below
                    // the log's start: a later batch may.
                    from = index.next();
                }
            }
        }
    }

    /// The error of a leader before the first entry of its own term is applied (KIP-207).
    pub(super) fn unconfirmed(&self) -> PartitionError {
        PartitionError::new(
            ErrorCode::OffsetNotAvailable,
            format!(
                "the new leader of {} has not confirmed its epoch yet",
                self.name
            ),
        )
    }

    /// The end of `asked`, by Kafka's table (kafka-semantics 1.8). Only the leader answers.
    pub fn epoch_end(
        &self,
        asked: LeaderEpoch,
        current: LeaderEpoch,
    ) -> Result<EpochEnd, PartitionError> {
        let view = self.replica.view();
        let ready = self.leading(&view)?;
        self.check_epoch(&view, current)?;
        if !ready {
            return Err(self.not_leader(&view));
        }
        Ok(self.epoch_end_of(asked))
    }

    pub(super) fn epoch_end_of(&self, asked: LeaderEpoch) -> EpochEnd {
        let log = self.replica.log();
        let (epoch, offset) = log
            .epochs()
            .end_offset_for(asked.get(), log.state().next_offset);
        EpochEnd {
            epoch: LeaderEpoch::new(epoch),
            offset: Offset::new(offset),
        }
    }
}

fn storage(error: corduroy_storage::StorageError) -> PartitionError {
    PartitionError::new(ErrorCode::KafkaStorageError, error.to_string())
}

/// The first record of `batch` at or after `target`: clients count by record, not by batch.
fn first_inside(
    batch: &Batch,
    target: i64,
    log_start: Offset,
) -> Result<Option<FoundOffset>, PartitionError> {
    let mut found = None;
    visit(batch, log_start, |record| {
        if record.timestamp < target {
            return ControlFlow::Continue(());
        }
        found = Some(record);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// The first record of `batch` with the largest timestamp that a record of it has, whatever its
/// header says.
fn highest_inside(batch: &Batch, log_start: Offset) -> Result<Option<FoundOffset>, PartitionError> {
    let mut found: Option<FoundOffset> = None;
    visit(batch, log_start, |record| {
        if found.is_none_or(|found| record.timestamp > found.timestamp) {
            found = Some(record);
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn visit(
    batch: &Batch,
    log_start: Offset,
    mut look: impl FnMut(FoundOffset) -> ControlFlow<()>,
) -> Result<(), PartitionError> {
    let corrupt =
        |error: BatchError| PartitionError::new(ErrorCode::CorruptMessage, error.to_string());
    let epoch = batch.header().leader_epoch;
    for record in batch.records(LOOKUP_BYTES_MAX).map_err(corrupt)? {
        let record = record.map_err(corrupt)?;
        if record.offset < log_start {
            continue;
        }
        let found = FoundOffset {
            offset: record.offset,
            timestamp: record.timestamp,
            epoch,
        };
        if look(found).is_break() {
            break;
        }
    }
    Ok(())
}
