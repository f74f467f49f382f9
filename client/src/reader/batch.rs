//! What a reader gives: records, in the batches in which they came.

use std::sync::Arc;

use bytes::Bytes;
use corduroy_record::{Record, TimestampType};
use tokio::time::Instant;

/// A record as it was read.
#[derive(Clone, Debug)]
pub struct ReadRecord {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) leader_epoch: i32,
    pub(crate) timestamp_type: TimestampType,
    pub(crate) record: Record,
}

impl ReadRecord {
    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Its partition.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> i64 {
        self.record.offset.get()
    }

    /// Its time in milliseconds since the Unix epoch, -1 = none.
    pub fn timestamp(&self) -> i64 {
        self.record.timestamp
    }

    /// Whose time that is.
    pub fn timestamp_type(&self) -> TimestampType {
        self.timestamp_type
    }

    /// The epoch of the leader that took it in, -1 = unknown.
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.record.key.as_deref()
    }

    /// Its value; `None` is a null, in a compacted topic a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.record.value.as_deref()
    }

    /// Its key, shared.
    pub fn key_bytes(&self) -> Option<&Bytes> {
        self.record.key.as_ref()
    }

    /// Its value, shared.
    pub fn value_bytes(&self) -> Option<&Bytes> {
        self.record.value.as_ref()
    }

    /// Its headers, in their order; names may repeat.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, Option<&[u8]>)> {
        self.record
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
    }
}

/// What the leader said of a partition in the answer to one fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// When it was asked. Batches are fetched ahead: it may be long before they are taken.
    pub asked_at: Instant,
    /// The epoch in which it was asked as the leader, and answered as it; -1 if that is not known.
    pub leader_epoch: i32,
    /// Where its log starts.
    pub log_start: i64,
    /// Below it every transaction has ended; -1 if it does not say.
    pub last_stable: i64,
    /// Below it records are committed.
    pub high_watermark: i64,
}

/// Consecutive records of one partition, as one fetch brought them. Never empty.
#[derive(Clone, Debug)]
pub struct ReadBatch {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) records: Vec<ReadRecord>,
    pub(crate) next_offset: i64,
    pub(crate) told: Told,
    /// What it takes of the prefetch budget.
    pub(crate) fetched_bytes: usize,
    /// Which ownership of the partition it was fetched under; 0 without a group.
    pub(crate) incarnation: u64,
}

impl ReadBatch {
    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Its partition.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// The records.
    pub fn records(&self) -> &[ReadRecord] {
        &self.records
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Never: a fetch without records gives no batch.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Where reading goes on behind this batch. It may lie above the last record's offset + 1: the
    /// offsets of markers and compacted records are skipped.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// The high watermark at the time of the fetch.
    pub fn high_watermark(&self) -> i64 {
        self.told.high_watermark
    }

    /// What else the leader said in the answer to that fetch.
    pub fn told(&self) -> Told {
        self.told
    }
}

impl<'a> IntoIterator for &'a ReadBatch {
    type Item = &'a ReadRecord;
    type IntoIter = std::slice::Iter<'a, ReadRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.iter()
    }
}

impl IntoIterator for ReadBatch {
    type Item = ReadRecord;
    type IntoIter = std::vec::IntoIter<ReadRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.into_iter()
    }
}
