//! One partition's place in the log, and how a fetch moves it. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use corduroy_record::{Batch, BatchError, Record, parse_many};

use super::batch::{ReadBatch, ReadRecord, Told};
use crate::config::Isolation;
use crate::error::{Error, ErrorKind};

/// Most bytes into which one batch is decompressed.
const BATCH_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A transaction of a fetched range that was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub(crate) producer_id: i64,
    pub(crate) first_offset: i64,
}

/// What a fetch brought for one partition.
pub(crate) struct Fetched {
    pub(crate) records: Bytes,
    pub(crate) told: Told,
    pub(crate) aborted: Vec<Aborted>,
}

/// How to look at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) isolation: Isolation,
    pub(crate) check_crcs: bool,
}

/// Law: every record below `next_offset` (from the start on) has been given out, and none at or
/// above it.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    topic: Arc<str>,
    partition: i32,
    next_offset: i64,
    /// Reading ends here; `None` = it follows.
    end_offset: Option<i64>,
    /// The leader epoch of the last batch, -1 = none yet (KIP-320).
    last_epoch: i32,
}

impl Cursor {
    pub(crate) fn new(
        topic: Arc<str>,
        partition: i32,
        next_offset: i64,
        end_offset: Option<i64>,
    ) -> Cursor {
        Cursor {
            topic,
            partition,
            next_offset,
            end_offset,
            last_epoch: -1,
        }
    }

    /// The same, behind a record that was read before, of this leader epoch.
    pub(crate) fn behind(mut self, leader_epoch: i32) -> Cursor {
        self.last_epoch = leader_epoch;
        self
    }

    pub(crate) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    pub(crate) fn last_epoch(&self) -> i32 {
        self.last_epoch
    }

    /// Whether everything up to the end has been given out.
    pub(crate) fn is_done(&self) -> bool {
        self.end_offset.is_some_and(|end| self.next_offset >= end)
    }

    /// Goes on elsewhere, after the log has lost the place.
    pub(crate) fn reset(&mut self, offset: i64) {
        self.next_offset = offset;
        self.last_epoch = -1;
    }

    /// Takes the records of a fetch from `next_offset` on, and moves behind them. `None` if there
    /// are none to give out.
    ///
    /// # Errors
    /// Corrupt or Malformed; the cursor stays.
    pub(crate) fn take(
        &mut self,
        fetched: Fetched,
        view: View,
    ) -> Result<Option<ReadBatch>, Error> {
        let fetched_bytes = fetched.records.len();
        let mut aborted = AbortedFilter::new(fetched.aborted, view.isolation);
        let mut records = Vec::new();
        let (mut next_offset, mut last_epoch) = (self.next_offset, self.last_epoch);
        let mut is_whole = fetched_bytes == 0;
        for batch in parse_many(fetched.records) {
            let batch = batch.map_err(|error| self.damaged(next_offset, error))?;
            is_whole = true;
            let header = *batch.header();
            let behind = header.next_offset().get();
            if view.check_crcs {
                batch
                    .check_crc()
                    .map_err(|error| self.damaged(next_offset, error))?;
            }
            let is_visible = aborted.admits(&batch);
            if behind <= next_offset {
                continue;
            }
            if self.end_offset.is_some_and(|end| next_offset >= end) {
                break;
            }
            if is_visible {
                let timestamp_type = header.attributes.timestamp_type();
                let read = batch
                    .records(BATCH_BYTES_MAX)
                    .map_err(|e| self.damaged(next_offset, e))?;
                for record in read {
                    let record: Record = record.map_err(|e| self.damaged(next_offset, e))?;
                    let offset = record.offset.get();
                    let in_range =
                        offset >= next_offset && self.end_offset.is_none_or(|end| offset < end);
                    if in_range {
                        records.push(ReadRecord {
                            topic: self.topic.clone(),
                            partition: self.partition,
                            leader_epoch: header.leader_epoch.get(),
                            timestamp_type,
                            record,
                        });
                    }
                }
            }
            next_offset = behind;
            last_epoch = header.leader_epoch.get();
        }
        if !is_whole {
            let message = format!("no whole batch in {fetched_bytes} bytes");
            return Err(Error::new(ErrorKind::Malformed, message)
                .with_partition(&self.topic, self.partition));
        }
        self.next_offset = next_offset;
        self.last_epoch = last_epoch;
        if records.is_empty() {
            return Ok(None);
        }
        Ok(Some(ReadBatch {
            topic: self.topic.clone(),
            partition: self.partition,
            records,
            next_offset: self.next_offset,
            told: fetched.told,
            fetched_bytes,
            incarnation: 0,
        }))
    }

    fn damaged(&self, offset: i64, error: BatchError) -> Error {
        let message = format!("a damaged batch at or behind offset {offset}: {error}");
        Error::new(ErrorKind::Corrupt, message)
            .with_source(error)
            .with_partition(&self.topic, self.partition)
    }
}

/// Leaves aborted transactions out (KIP-98): a transaction begins at its first offset and ends at
/// its producer's next marker.
struct AbortedFilter {
    /// Not begun yet, the first one last.
    upcoming: Vec<Aborted>,
    /// Producers inside of an aborted transaction.
    inside: HashSet<i64>,
    isolation: Isolation,
}

impl AbortedFilter {
    fn new(mut upcoming: Vec<Aborted>, isolation: Isolation) -> AbortedFilter {
        upcoming.sort_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
        AbortedFilter {
            upcoming,
            inside: HashSet::new(),
            isolation,
        }
    }

    /// Whether a reader may see the batch. Called for each batch in order.
    fn admits(&mut self, batch: &Batch) -> bool {
        let header = batch.header();
        let producer_id = header.producer_id.get();
        if header.attributes.is_control() {
            // Commit or abort: the producer's transaction is over.
            self.inside.remove(&producer_id);
            return false;
        }
        if self.isolation == Isolation::ReadUncommitted || !header.attributes.is_transactional() {
            return true;
        }
        let last_offset = header.last_offset().get();
        while let Some(next) = self.upcoming.last() {
            if next.first_offset > last_offset {
                break;
            }
            self.inside.insert(next.producer_id);
            self.upcoming.pop();
        }
        !self.inside.contains(&producer_id)
    }
}

#[cfg(test)]
mod tests {
    use corduroy_record::{
        BatchBuilder, BuilderOptions, Compression, LeaderEpoch, Offset, ProducerEpoch, ProducerId,
    };

    use super::*;

    #[derive(Clone, Copy, Default)]
    struct Kind {
        producer: Option<i64>,
        control: bool,
        lz4: bool,
    }

    fn batch(base: i64, count: usize, kind: Kind) -> Bytes {
        let mut builder = BatchBuilder::new(BuilderOptions {
            compression: if kind.lz4 {
                Compression::Lz4
            } else {
                Compression::None
            },
            producer_id: ProducerId::new(kind.producer.unwrap_or(-1)),
            producer_epoch: ProducerEpoch::new(if kind.producer.is_some() { 0 } else { -1 }),
            base_sequence: if kind.producer.is_some() { 0 } else { -1 },
            transactional: kind.producer.is_some(),
            control: kind.control,
            base_offset: Offset::new(base),
            leader_epoch: LeaderEpoch::new(3),
        });
        for index in 0..count {
            let value = format!("v{}", base + index as i64);
            builder
                .push(1, None, Some(value.as_bytes()), &[])
                .expect("fits");
        }
        builder.finish().to_bytes()
    }

    fn fetched(batches: &[Bytes], aborted: &[(i64, i64)]) -> Fetched {
        Fetched {
            records: batches.concat().into(),
            told: Told {
                asked_at: corduroy_env::Env::real().now(),
                leader_epoch: 1,
                log_start: 0,
                last_stable: 100,
                high_watermark: 100,
            },
            aborted: aborted
                .iter()
                .map(|&(producer_id, first_offset)| Aborted {
                    producer_id,
                    first_offset,
                })
                .collect(),
        }
    }

    const COMMITTED: View = View {
        isolation: Isolation::ReadCommitted,
        check_crcs: true,
    };

    fn offsets(batch: Option<ReadBatch>) -> Vec<i64> {
        batch.iter().flatten().map(ReadRecord::offset).collect()
    }

    fn cursor(next: i64, end: Option<i64>) -> Cursor {
        Cursor::new("t".into(), 0, next, end)
    }

    #[test]
    fn a_fetch_that_begins_inside_of_a_batch_gives_what_was_asked_for() {
        for lz4 in [false, true] {
            let kind = Kind {
                lz4,
                ..Kind::default()
            };
            let mut cursor = cursor(12, None);
            let taken = cursor.take(
                fetched(&[batch(10, 5, kind), batch(15, 2, kind)], &[]),
                COMMITTED,
            );
            let taken = taken.expect("whole").expect("records");
            assert_eq!(taken.records()[0].value(), Some(&b"v12"[..]));
            assert_eq!(taken.next_offset(), 17);
            assert_eq!(offsets(Some(taken)), [12, 13, 14, 15, 16]);
            assert_eq!((cursor.next_offset(), cursor.last_epoch()), (17, 3));
        }
    }

    #[test]
    fn reading_ends_at_its_end_in_the_middle_of_a_batch() {
        let mut cursor = cursor(0, Some(3));
        let taken = cursor.take(fetched(&[batch(0, 5, Kind::default())], &[]), COMMITTED);
        assert_eq!(offsets(taken.expect("whole")), [0, 1, 2]);
        assert!(cursor.is_done());
    }

    #[test]
    fn a_partial_batch_at_the_end_waits_for_the_next_fetch() {
        let mut cursor = cursor(0, None);
        let second = batch(2, 2, Kind::default());
        let cut = second.slice(..second.len() - 1);
        let taken = cursor.take(
            fetched(&[batch(0, 2, Kind::default()), cut.clone()], &[]),
            COMMITTED,
        );
        assert_eq!(offsets(taken.expect("whole")), [0, 1]);
        let error = cursor
            .take(fetched(&[cut], &[]), COMMITTED)
            .expect_err("never whole");
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert_eq!(cursor.next_offset(), 2);
    }

    #[test]
    fn a_flipped_byte_is_found_and_nothing_is_skipped() {
        let mut bytes = batch(0, 2, Kind::default()).to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let mut cursor = cursor(0, None);
        let error = cursor
            .take(fetched(&[bytes.into()], &[]), COMMITTED)
            .expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(cursor.next_offset(), 0);
    }

    #[test]
    fn aborted_transactions_and_markers_are_left_out_but_passed() {
        let of = |producer| Kind {
            producer: Some(producer),
            ..Kind::default()
        };
        let marker = |producer| Kind {
            control: true,
            ..of(producer)
        };
        let batches = [
            batch(0, 2, of(7)),
            batch(2, 1, of(8)),
            batch(3, 1, marker(7)),
            batch(4, 1, of(7)),
            batch(5, 1, marker(8)),
            batch(6, 1, marker(7)),
        ];
        let aborted = [(7, 0)];
        let mut committed = cursor(0, Some(7));
        let taken = committed
            .take(fetched(&batches, &aborted), COMMITTED)
            .expect("whole");
        assert_eq!(offsets(taken), [2, 4]);
        assert!(
            committed.is_done(),
            "markers at the end do not hold a reader up"
        );
        let uncommitted = View {
            isolation: Isolation::ReadUncommitted,
            check_crcs: true,
        };
        let taken = cursor(0, None)
            .take(fetched(&batches, &[]), uncommitted)
            .expect("whole");
        assert_eq!(offsets(taken), [0, 1, 2, 4]);
    }
}
