//! Idempotent producers of one partition: the sequence windows and the verdict on a batch
//! (KIP-98, KIP-360; the window of five batches is Kafka's `max.in.flight.requests`).

use std::collections::{BTreeMap, VecDeque};

use corduroy_env::planted::{self, Bug};
use corduroy_record::{BatchHeader, LogIndex, Offset, ProducerEpoch, ProducerId};

/// Batches that a producer may have unacknowledged, and hence may repeat.
pub const WINDOW_BATCHES_MAX: usize = 5;

/// Producers remembered per partition; the one that has been silent longest goes first.
pub const PRODUCERS_MAX: usize = 20_000;

/// Who sent a batch, and where it stands in that producer's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIdentity {
    /// The producer.
    pub producer_id: ProducerId,
    /// Its incarnation.
    pub epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub first_sequence: i32,
    /// Sequence of the last record, wrapped past `i32::MAX` to 0.
    pub last_sequence: i32,
}

impl BatchIdentity {
    /// The identity in a batch header; `None` for a batch without a producer id.
    pub fn of(header: &BatchHeader) -> Option<BatchIdentity> {
        (header.producer_id.get() >= 0).then(|| BatchIdentity {
            producer_id: header.producer_id,
            epoch: header.producer_epoch,
            first_sequence: header.base_sequence,
            last_sequence: header.last_sequence(),
        })
    }

    fn follows(&self, last_sequence: i32) -> bool {
        if last_sequence == i32::MAX {
            self.first_sequence == 0
        } else {
            self.first_sequence == last_sequence + 1
        }
    }
}

/// A batch that was appended, as the window remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct WindowBatch {
    /// Sequence of the first record.
    pub first_sequence: i32,
    /// Sequence of the last record.
    pub last_sequence: i32,
    /// Where it was appended.
    pub base_offset: i64,
    /// Its place in the Raft log.
    pub index: u64,
    /// Its largest record timestamp, in milliseconds.
    pub max_timestamp: i64,
}

/// One producer's applied state.
///
/// Law: `batches` is in append order, of one epoch, at most [`WINDOW_BATCHES_MAX`] long; it is
/// derived from applied entries alone, so every replica holds the same.
#[derive(Clone, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct SequenceWindow {
    epoch: i16,
    batches: VecDeque<WindowBatch>,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Next in order, or the first that we see of this producer or epoch.
    Accept,
    /// Already in the log: answer with where it is.
    Duplicate(WindowBatch),
    /// A gap, or older than the window: OUT_OF_ORDER_SEQUENCE_NUMBER.
    OutOfOrder,
    /// Of an older epoch: INVALID_PRODUCER_EPOCH.
    Fenced,
    /// A sequence below zero or a batch that no producer could have made.
    Malformed,
}

/// Judges a batch against the newest state of its producer (kafka-semantics decision table,
/// KIP-360). `last` is the end of what has been appended or is in flight in this term; it
/// differs from the window's end while batches are in flight.
pub fn judge(
    window: Option<&SequenceWindow>,
    last: Option<(ProducerEpoch, i32)>,
    batch: &BatchIdentity,
) -> Verdict {
    if batch.first_sequence < 0 || batch.last_sequence < 0 || batch.epoch.get() < 0 {
        return Verdict::Malformed;
    }
    if let Some(found) = window.and_then(|w| w.find(batch)) {
        return Verdict::Duplicate(found);
    }
    let Some((epoch, last_sequence)) = last.or_else(|| window.and_then(SequenceWindow::last))
    else {
        // Never seen, or evicted: any first sequence starts a new window.
        return Verdict::Accept;
    };
    match batch.epoch.cmp(&epoch) {
        std::cmp::Ordering::Less if planted::is(Bug::OlderEpochAccepted) => Verdict::Accept,
        std::cmp::Ordering::Less => Verdict::Fenced,
        std::cmp::Ordering::Greater if batch.first_sequence == 0 => Verdict::Accept,
        std::cmp::Ordering::Greater => Verdict::OutOfOrder,
        std::cmp::Ordering::Equal if batch.follows(last_sequence) => Verdict::Accept,
        std::cmp::Ordering::Equal
            if planted::is(Bug::WindowOfOne) && batch.first_sequence <= last_sequence =>
        {
            Verdict::Accept
        }
        std::cmp::Ordering::Equal => Verdict::OutOfOrder,
    }
}

impl SequenceWindow {
    fn new(epoch: i16) -> Self {
        Self {
            epoch,
            batches: VecDeque::with_capacity(WINDOW_BATCHES_MAX),
        }
    }

    /// The finished batch with exactly these sequences, if it is one of the last five.
    fn find(&self, batch: &BatchIdentity) -> Option<WindowBatch> {
        if batch.epoch.get() != self.epoch {
            return None;
        }
        self.batches
            .iter()
            .find(|b| {
                b.first_sequence == batch.first_sequence && b.last_sequence == batch.last_sequence
            })
            .copied()
    }

    /// Epoch and sequence of the last applied record.
    pub fn last(&self) -> Option<(ProducerEpoch, i32)> {
        self.batches
            .back()
            .map(|b| (ProducerEpoch::new(self.epoch), b.last_sequence))
    }

    fn record(&mut self, batch: WindowBatch) {
        if self.batches.len() == WINDOW_BATCHES_MAX || planted::is(Bug::WindowOfOne) {
            self.batches.pop_front();
        }
        self.batches.push_back(batch);
    }

    fn last_index(&self) -> u64 {
        self.batches.back().map_or(0, |b| b.index)
    }

    fn last_timestamp(&self) -> i64 {
        self.batches.back().map_or(i64::MIN, |b| b.max_timestamp)
    }
}

/// All producers of a partition, as of the last applied entry.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize,
)]
pub struct ProducerTable {
    windows: BTreeMap<i64, SequenceWindow>,
}

impl ProducerTable {
    /// The window of one producer.
    pub fn window(&self, id: ProducerId) -> Option<&SequenceWindow> {
        self.windows.get(&id.get())
    }

    /// Number of producers remembered.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether no producer is remembered.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// The highest producer id ever seen here, so that ids are never handed out twice.
    pub fn highest_id(&self) -> Option<ProducerId> {
        self.windows
            .keys()
            .next_back()
            .map(|id| ProducerId::new(*id))
    }

    /// Takes an applied batch into the table. Deterministic: replicas apply the same entries.
    pub fn apply(&mut self, index: LogIndex, base_offset: Offset, header: &BatchHeader) {
        let Some(identity) = BatchIdentity::of(header) else {
            return;
        };
        let id = identity.producer_id.get();
        if !self.windows.contains_key(&id) && self.windows.len() >= PRODUCERS_MAX {
            self.evict_oldest();
        }
        let epoch = identity.epoch.get();
        let window = self
            .windows
            .entry(id)
            .or_insert_with(|| SequenceWindow::new(epoch));
        if window.epoch != epoch {
            *window = SequenceWindow::new(epoch);
        }
        window.record(WindowBatch {
            first_sequence: identity.first_sequence,
            last_sequence: identity.last_sequence,
            base_offset: base_offset.get(),
            index: index.get(),
            max_timestamp: header.max_timestamp,
        });
    }

    /// Forgets producers whose last batch is older than `horizon_ms` (record time, so that
    /// replicas agree). A replicated decision calls this, never a local clock.
    pub fn expire(&mut self, horizon_ms: i64) {
        self.windows
            .retain(|_, window| window.last_timestamp() >= horizon_ms);
    }

    /// Whether [`ProducerTable::expire`] would forget somebody.
    pub fn reaches_behind(&self, horizon_ms: i64) -> bool {
        let mut windows = self.windows.values();
        windows.any(|window| window.last_timestamp() < horizon_ms)
    }

    fn evict_oldest(&mut self) {
        // By log index, not by time: the order of the log is the same on every replica.
        if let Some(id) = self
            .windows
            .iter()
            .min_by_key(|(_, window)| window.last_index())
            .map(|(id, _)| *id)
        {
            self.windows.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(epoch: i16, first: i32, count: i32) -> BatchIdentity {
        let last = (i64::from(first) + i64::from(count) - 1) % (i64::from(i32::MAX) + 1);
        BatchIdentity {
            producer_id: ProducerId::new(7),
            epoch: ProducerEpoch::new(epoch),
            first_sequence: first,
            last_sequence: i32::try_from(last).expect("wrapped below 2^31"),
        }
    }

    fn window(epoch: i16, batches: &[(i32, i32)]) -> SequenceWindow {
        let mut w = SequenceWindow::new(epoch);
        for (i, (first, count)) in batches.iter().enumerate() {
            let b = id(epoch, *first, *count);
            w.record(WindowBatch {
                first_sequence: b.first_sequence,
                last_sequence: b.last_sequence,
                base_offset: 100 * (i as i64 + 1),
                index: i as u64 + 1,
                max_timestamp: i as i64,
            });
        }
        w
    }

    fn offset(v: Verdict) -> Result<i64, Verdict> {
        match v {
            Verdict::Duplicate(b) => Ok(b.base_offset),
            other => Err(other),
        }
    }

    #[test]
    fn the_decision_table() {
        let w = window(
            3,
            &[(0, 10), (10, 10), (20, 10), (30, 10), (40, 10), (50, 10)],
        );
        let max = window(3, &[(i32::MAX - 9, 10)]);
        let wrapped = window(3, &[(i32::MAX - 4, 10)]);
        type Case<'a> = (
            &'static str,
            Option<&'a SequenceWindow>,
            BatchIdentity,
            Result<i64, Verdict>,
        );
        let cases: Vec<Case<'_>> = vec![
            (
                "unknown producer, first 0",
                None,
                id(0, 0, 5),
                Err(Verdict::Accept),
            ),
            (
                "unknown producer, any first",
                None,
                id(0, 77, 5),
                Err(Verdict::Accept),
            ),
            (
                "next in order",
                Some(&w),
                id(3, 60, 5),
                Err(Verdict::Accept),
            ),
            ("last batch again", Some(&w), id(3, 50, 10), Ok(600)),
            ("fifth last again", Some(&w), id(3, 10, 10), Ok(200)),
            (
                "older than the window",
                Some(&w),
                id(3, 0, 10),
                Err(Verdict::OutOfOrder),
            ),
            (
                "same first, other count",
                Some(&w),
                id(3, 50, 9),
                Err(Verdict::OutOfOrder),
            ),
            ("gap", Some(&w), id(3, 61, 5), Err(Verdict::OutOfOrder)),
            ("older epoch", Some(&w), id(2, 60, 5), Err(Verdict::Fenced)),
            (
                "newer epoch from 0",
                Some(&w),
                id(4, 0, 5),
                Err(Verdict::Accept),
            ),
            (
                "newer epoch, not from 0",
                Some(&w),
                id(4, 60, 5),
                Err(Verdict::OutOfOrder),
            ),
            (
                "wrap: after MAX comes 0",
                Some(&max),
                id(3, 0, 5),
                Err(Verdict::Accept),
            ),
            (
                "wrap inside a batch",
                Some(&wrapped),
                id(3, 5, 5),
                Err(Verdict::Accept),
            ),
            (
                "wrapped batch again",
                Some(&wrapped),
                id(3, i32::MAX - 4, 10),
                Ok(100),
            ),
            (
                "negative sequence",
                Some(&w),
                id(3, -1, 1),
                Err(Verdict::Malformed),
            ),
        ];
        for (name, window, batch, want) in cases {
            assert_eq!(
                offset(judge(window, None, &batch)),
                want,
                "{name}: {batch:?}"
            );
        }
    }

    #[test]
    fn what_is_in_flight_decides_what_comes_next() {
        let w = window(3, &[(0, 10)]);
        let last = Some((ProducerEpoch::new(3), 29));
        assert_eq!(judge(Some(&w), last, &id(3, 30, 1)), Verdict::Accept);
        assert_eq!(judge(Some(&w), last, &id(3, 10, 10)), Verdict::OutOfOrder);
        assert_eq!(offset(judge(Some(&w), last, &id(3, 0, 10))), Ok(100));
    }

    #[test]
    fn a_full_table_forgets_the_producer_that_was_silent_longest() {
        let mut table = ProducerTable::default();
        for i in 0..PRODUCERS_MAX as i64 {
            table.windows.insert(i, window(0, &[(0, 1)]));
        }
        table.windows.insert(3, window(0, &[]));
        let oldest = 3;
        table.evict_oldest();
        assert!(table.window(ProducerId::new(oldest)).is_none());
        assert_eq!(table.len(), PRODUCERS_MAX - 1);
    }

    #[test]
    fn expiry_goes_by_record_time() {
        let mut table = ProducerTable::default();
        table.windows.insert(1, window(0, &[(0, 1)]));
        table
            .windows
            .insert(2, window(0, &[(0, 1), (1, 1), (2, 1)]));
        table.expire(1);
        assert!(table.window(ProducerId::new(1)).is_none());
        assert!(table.window(ProducerId::new(2)).is_some());
    }
}
