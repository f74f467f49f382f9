//! Corduroy's storage: one log per partition, one journal per shard, on a [`Disk`].
//!
//! It knows no Raft library and none of Kafka's APIs. An entry is appended with a term and an
//! index, gets its offset from the end of the log, and is durable when its shard's flush turn
//! is. `docs/design/log-format.md` specifies every byte.
//!
//! | module | what |
//! |---|---|
//! | `store`, `turn` | a shard's logs, its flush turns, checkpoints |
//! | `log`, `cache`, `scan` | one partition's log: append, cut, read |
//! | `journal`, `recovery` | the one order of a shard's disk, and the way back from it |
//! | `segment`, `frame`, `index`, `state`, `tables`, `registry` | the files |
//! | `disk` | the file system, real or simulated |

mod cache;
mod checksum;
mod codec;
mod config;
mod disk;
mod dump;
mod entry;
mod epochs;
mod error;
mod flusher;
mod frame;
mod index;
mod journal;
mod log;
mod metrics;
mod paths;
mod placement;
mod pool;
mod recovery;
mod registry;
mod reserve;
mod scan;
mod segment;
mod state;
mod store;
mod tables;
mod turn;

pub use config::{IoMode, JOURNAL_FILE_BYTES_MIN, LogConfig, StoreConfig};
pub use disk::{Disk, DiskFile, OpenMode, RealDisk, SimDisk, SimOptions};
pub use dump::{DumpReport, dump};
pub use entry::{
    AppliedBody, AppliedEntry, ENTRY_BYTES_MAX, Entry, EntryHead, EntryKind, LogStart, LogState,
    NewEntry, Payload, Vote,
};
pub use epochs::{EpochStart, EpochTable};
pub use error::{AppendError, StorageError};
pub use log::{AppendDone, DoneCallback, Log, SegmentBoundary};
pub use metrics::{DiskLevel, FLUSH_BUCKET_MICROS, StoreMetrics};
pub use recovery::{RecoveryReport, recover};
pub use registry::list_groups;
pub use store::Store;
pub use tables::{SavedTables, TABLES_BYTES_MAX};
