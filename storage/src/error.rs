//! What can go wrong: one enum for the store, one for `append`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corduroy_record::{GroupId, LogIndex, Offset, Term};

/// Why an operation of the store failed. Cheap to clone: one failure reaches many callbacks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused an operation. `what` is the verb, `path` the file.
    #[error("cannot {what} {}: {message}", path.display())]
    Io {
        /// The verb: "read", "write", "flush" and the like.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// For branching.
        kind: io::ErrorKind,
        /// The operating system's own words.
        message: Arc<str>,
    },
    /// A flush failed earlier (or a write that cannot be told from one). Nothing is retried and
    /// nothing is accepted until the process has been restarted.
    #[error("the store on this disk stopped: {0}")]
    Failed(Arc<str>),
    /// No space is left for this partition's data. Nothing was lost; it may be tried again.
    #[error("the disk is full")]
    DiskFull,
    /// Bytes below the end of the log, or the files beside it, are not what was written.
    #[error("partition {group} is damaged: {what}")]
    Damaged {
        /// Whose data.
        group: GroupId,
        /// What was found, and where.
        what: Arc<str>,
    },
    /// Neither a replica's registration nor its state file says any more which replica it is.
    /// Whoever placed it here knows: [`crate::Store::open_placed_log`].
    #[error("partition {group} is damaged: {what}: nothing here says which replica it is")]
    Unidentified {
        /// Whose data.
        group: GroupId,
        /// What was found, and where.
        what: Arc<str>,
    },
    /// The partition was never created in this data directory.
    #[error("no log of partition {group} is registered in this data directory")]
    NotFound {
        /// Who was asked for.
        group: GroupId,
    },
    /// The partition is registered already.
    #[error("a log of partition {group} exists already")]
    AlreadyExists {
        /// Who was asked for.
        group: GroupId,
    },
    /// The log was removed while the operation was under way.
    #[error("the log of partition {group} was removed")]
    Removed {
        /// Whose log.
        group: GroupId,
    },
    /// The store is closing or closed.
    #[error("the store is closed")]
    Closed,
    /// A read below the start or beyond the end of the log.
    #[error("index {asked} is outside of the log ({first}..{end})")]
    OutOfRange {
        /// The index asked for.
        asked: LogIndex,
        /// The first index kept.
        first: LogIndex,
        /// One past the last.
        end: LogIndex,
    },
    /// A log start may only move to where a durable snapshot reaches (laws 6 and 9).
    #[error("log start {asked} is not covered by a saved snapshot (which reaches {covered:?})")]
    NotCovered {
        /// The start asked for.
        asked: LogIndex,
        /// The last index of the saved snapshot.
        covered: Option<LogIndex>,
    },
    /// The directory's journal was not recovered before the store was opened.
    #[error("{} holds turns that were not recovered; run recovery first", path.display())]
    NeedsRecovery {
        /// The journal directory.
        path: PathBuf,
    },
    /// A file's version or identity is not one that this program reads.
    #[error("{}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: Arc<str>,
    },
}

impl StorageError {
    /// Wraps an operating system error with what was tried on what.
    pub(crate) fn io(what: &'static str, path: &Path, error: &io::Error) -> StorageError {
        if error.kind() == io::ErrorKind::StorageFull {
            return StorageError::DiskFull;
        }
        StorageError::Io {
            what,
            path: path.to_owned(),
            kind: error.kind(),
            message: error.to_string().into(),
        }
    }

    pub(crate) fn damaged(group: GroupId, what: impl Into<Arc<str>>) -> StorageError {
        StorageError::Damaged {
            group,
            what: what.into(),
        }
    }
}

/// Adds what was tried, on what, to an `io::Result`.
pub(crate) trait IoContext<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, StorageError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, StorageError> {
        self.map_err(|error| StorageError::io(what, path, &error))
    }
}

/// Why `append` took nothing. The log is as it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The store or the log takes nothing any more, or the disk is full.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An entry does not follow the one before it.
    #[error("entry {found} does not follow the log's end: expected {expected}")]
    IndexGap {
        /// The index that the log takes next.
        expected: LogIndex,
        /// The index that came.
        found: LogIndex,
    },
    /// Terms never fall along a log (Raft paper, section 5.3).
    #[error("entry {index} has term {found}, below term {last} of the entry before it")]
    TermRegression {
        /// The entry.
        index: LogIndex,
        /// Term of the entry before it.
        last: Term,
        /// Its own term.
        found: Term,
    },
    /// A leader's entry carries another offset than this log gives it: the logs differ below
    /// it. The replica must stop.
    #[error("entry {index} has base offset {found}, but this log ends at {expected}")]
    OffsetMismatch {
        /// The entry.
        index: LogIndex,
        /// The offset at this log's end.
        expected: Offset,
        /// The offset that came.
        found: Offset,
    },
    /// An entry is larger than [`crate::ENTRY_BYTES_MAX`].
    #[error("entry {index} of {bytes} bytes is larger than {max} bytes")]
    TooLarge {
        /// The entry.
        index: LogIndex,
        /// Its payload.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}
