//! ListOffsets and OffsetForLeaderEpoch: positions by time, by end, by epoch.

use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_record::{Batch, LeaderEpoch, Offset};

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
            return Err(PartitionError::new(
                ErrorCode::OffsetNotAvailable,
                format!(
                    "the new leader of {} has not confirmed its epoch yet",
                    self.name
                ),
            ));
        }
        if !planted::is(Bug::StaleLeaderServes) && self.replica.read_barrier().await.is_err() {
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
            OffsetTarget::MaxTimestamp => {
                let batch = log.find_max_timestamp(upto).await.map_err(storage)?;
                batch.map_or(Ok(FoundOffset::NONE), |batch| {
                    look_inside(&batch, batch.header().max_timestamp, watermarks.log_start)
                })
            }
            OffsetTarget::Timestamp(target) => {
                let batch = log.find_timestamp(target, upto).await.map_err(storage)?;
                batch.map_or(Ok(FoundOffset::NONE), |batch| {
                    look_inside(&batch, target, watermarks.log_start)
                })
            }
        }
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
fn look_inside(
    batch: &Batch,
    target: i64,
    log_start: Offset,
) -> Result<FoundOffset, PartitionError> {
    let epoch = batch.header().leader_epoch;
    let records = batch
        .records(LOOKUP_BYTES_MAX)
        .map_err(|e| PartitionError::new(ErrorCode::CorruptMessage, e.to_string()))?;
    for record in records {
        let record =
            record.map_err(|e| PartitionError::new(ErrorCode::CorruptMessage, e.to_string()))?;
        if record.timestamp >= target && record.offset >= log_start {
            return Ok(FoundOffset {
                offset: record.offset,
                timestamp: record.timestamp,
                epoch,
            });
        }
    }
    Ok(FoundOffset::NONE)
}
