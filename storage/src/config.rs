//! What a store and a log are told from outside.

use std::path::PathBuf;

/// How a store does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// One flush thread per store, one for checkpoints and files, and a small read pool.
    Threads,
    /// All of it on the caller's task, in one order: for the simulator and for tests.
    Inline,
}

/// A shard's store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The node's data directory.
    pub root: PathBuf,
    /// Which shard: names its journal.
    pub shard: usize,
    /// Size of a journal file in bytes, a multiple of 4096.
    pub journal_file_bytes: u64,
    /// Journal files at most: with their size, the bound of the journal and of recovery.
    pub journal_files_max: usize,
    /// Bytes of one partition in one turn up to which its entries are written into the journal
    /// itself; above, the journal refers to the segment, which is then flushed in the turn (the
    /// few largest of a turn, that is: of many, the rest is inline too while there is room).
    /// 0 forces references, `usize::MAX` forces inline.
    pub inline_bytes_max: usize,
    /// Budget of the recent-entries cache of the whole shard, in bytes. Entries that are not
    /// written yet stay beyond it. Small bodies are copied into it, larger ones share the buffer
    /// that they came in, which may be up to twice as large.
    pub cache_bytes: usize,
    /// Budget of the index rows that reads of cold segments load, for the whole shard, in bytes.
    /// The index that was loaded last stays, whatever its size (10 MiB for a segment of 1 GiB).
    pub index_bytes: usize,
    /// A pre-written file of this size is given up when the disk is full, so that what was
    /// accepted can still be written and votes and metadata go on. 0 = none.
    pub reserve_bytes: u64,
    /// Below this many free bytes the disk counts as low: time for an alert.
    pub low_bytes: u64,
    /// Below this many free bytes the disk counts as critical: produce must be refused.
    pub critical_bytes: u64,
    /// Threads or inline.
    pub io: IoMode,
}

impl StoreConfig {
    /// The defaults for a shard of a data directory.
    pub fn new(root: PathBuf, shard: usize) -> StoreConfig {
        StoreConfig {
            root,
            shard,
            journal_file_bytes: 16 << 20,
            journal_files_max: 16,
            inline_bytes_max: 128 << 10,
            cache_bytes: 64 << 20,
            index_bytes: 4 << 20,
            reserve_bytes: 4 << 20,
            low_bytes: 1 << 30,
            critical_bytes: 64 << 20,
            io: IoMode::Threads,
        }
    }
}

/// The smallest journal file that a store accepts, in bytes.
pub const JOURNAL_FILE_BYTES_MIN: u64 = 64 << 10;

/// How one log keeps its segments; the names are Kafka's topic configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3600 * 1000,
            index_interval_bytes: 4096,
        }
    }
}
