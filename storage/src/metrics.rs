//! What a store counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets of flushes and appends, in microseconds; the last bucket
/// has none.
pub const FLUSH_BUCKET_MICROS: [u64; 12] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 102_400, 409_600,
];

/// How much room the disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    /// Enough.
    #[default]
    Plenty,
    /// Below `low_bytes`: time for an alert.
    Low,
    /// Below `critical_bytes`, or a write found no space: produce must be refused.
    Critical,
}

impl fmt::Display for DiskLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskLevel::Plenty => "plenty",
            DiskLevel::Low => "low",
            DiskLevel::Critical => "critical",
        })
    }
}

/// A store's counters at one moment. All but the gauges only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMetrics {
    /// Flush turns made durable.
    pub turns: u64,
    /// Flushes of files within turns: journal and segments.
    pub flushes: u64,
    /// Payload bytes appended.
    pub appended_bytes: u64,
    /// Bytes written to the journal, padding included.
    pub journal_bytes: u64,
    /// Bytes written to segments.
    pub segment_bytes: u64,
    /// Entries whose journal record held them.
    pub inline_entries: u64,
    /// Entries whose journal record referred to their segment.
    pub referenced_entries: u64,
    /// State files written.
    pub checkpoints: u64,
    /// Turns that had to wait for a journal file: checkpoints did not keep up.
    pub stalls: u64,
    /// Turns by the time of their flush; see [`FLUSH_BUCKET_MICROS`].
    pub flush_buckets: [u64; FLUSH_BUCKET_MICROS.len() + 1],
    /// Time of all flushes together, in microseconds.
    pub flush_micros: u64,
    /// Appends by the time until they were durable; see [`FLUSH_BUCKET_MICROS`].
    pub append_buckets: [u64; FLUSH_BUCKET_MICROS.len() + 1],
    /// That time of all appends together, in microseconds.
    pub append_micros: u64,
    /// Reads that went to the disk.
    pub cold_reads: u64,
    /// Reads that the cache served.
    pub cached_reads: u64,
    /// Gauge: bytes in the recent-entries cache.
    pub cache_bytes: u64,
    /// Gauge: bytes of index rows that cold reads loaded.
    pub index_bytes: u64,
    /// Gauge: journal files in use.
    pub journal_files: u64,
    /// Gauge: bytes appended and not yet durable.
    pub unflushed_bytes: u64,
    /// Gauge: free bytes on the disk, as last looked.
    pub free_bytes: u64,
    /// Gauge: what that means.
    pub disk_level: DiskLevel,
}

/// Counted by the flush thread, read by the shard.
#[derive(Default)]
pub(crate) struct TurnCounters {
    pub turns: AtomicU64,
    pub flushes: AtomicU64,
    pub journal_bytes: AtomicU64,
    pub segment_bytes: AtomicU64,
    pub inline_entries: AtomicU64,
    pub referenced_entries: AtomicU64,
    pub checkpoints: AtomicU64,
    pub stalls: AtomicU64,
    pub cold_reads: AtomicU64,
    pub flush_micros: AtomicU64,
    /// Moving average over the last turns; 0 before the first.
    pub usual_flush_micros: AtomicU64,
    pub journal_files: AtomicU64,
    pub flush_buckets: [AtomicU64; FLUSH_BUCKET_MICROS.len() + 1],
}

/// Adds to a counter that nobody orders anything by.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// The bucket of [`FLUSH_BUCKET_MICROS`] that a time belongs to.
fn bucket_of(micros: u64) -> usize {
    FLUSH_BUCKET_MICROS.partition_point(|bound| *bound < micros)
}

/// How long appends took to become durable; kept by the shard itself.
#[derive(Default)]
pub(crate) struct AppendTimes {
    buckets: [u64; FLUSH_BUCKET_MICROS.len() + 1],
    micros: u64,
}

impl AppendTimes {
    pub(crate) fn note(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros = self.micros.saturating_add(micros);
        self.buckets[bucket_of(micros)] += 1;
    }

    pub(crate) fn fill(&self, metrics: &mut StoreMetrics) {
        metrics.append_buckets = self.buckets;
        metrics.append_micros = self.micros;
    }
}

impl TurnCounters {
    pub(crate) fn note_flush(&self, micros: u64) {
        add(&self.flush_micros, micros);
        let usual = self.usual_flush_micros.load(Ordering::Relaxed);
        let usual = (usual * 7 + micros) / 8;
        self.usual_flush_micros.store(usual, Ordering::Relaxed);
        add(&self.flush_buckets[bucket_of(micros)], 1);
    }

    pub(crate) fn fill(&self, metrics: &mut StoreMetrics) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        metrics.turns = get(&self.turns);
        metrics.flushes = get(&self.flushes);
        metrics.journal_bytes = get(&self.journal_bytes);
        metrics.segment_bytes = get(&self.segment_bytes);
        metrics.inline_entries = get(&self.inline_entries);
        metrics.referenced_entries = get(&self.referenced_entries);
        metrics.checkpoints = get(&self.checkpoints);
        metrics.stalls = get(&self.stalls);
        metrics.cold_reads = get(&self.cold_reads);
        metrics.flush_micros = get(&self.flush_micros);
        metrics.journal_files = get(&self.journal_files);
        for (bucket, counter) in metrics.flush_buckets.iter_mut().zip(&self.flush_buckets) {
            *bucket = get(counter);
        }
    }
}
