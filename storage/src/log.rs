//! One partition's log on its shard.
//!
//! | file | what |
//! |---|---|
//! | `core` | what the shard knows of a log, and its laws |
//! | `append` | entries in, stamped and placed |
//! | `cut` | the log made shorter: truncation, log start, reset, damage |
//! | `read` | entries out, by index and by offset |
//! | `seek` | entries found by timestamp |
//! | `saved` | tables and the snapshot |
//! | `undo` | a cut that a full disk refused, taken back |

mod append;
pub(crate) mod core;
mod cut;
mod read;
mod saved;
mod seek;
mod undo;

use std::rc::Rc;

use corduroy_record::{GroupId, LogIndex, Offset, ReplicaId, Term};
use tokio::sync::oneshot;

use crate::config::LogConfig;
use crate::entry::{LogState, Vote};
use crate::epochs::EpochTable;
use crate::error::StorageError;
use crate::journal::RecordBody;
use crate::segment::SEGMENT_HEADER_BYTES;
use crate::store::{Effect, StoreInner};
use crate::turn::Action;

pub(crate) use append::AppendEffect;
pub use append::{AppendDone, DoneCallback};
pub(crate) use core::{Checkpoint, CheckpointDone, LogCore, LogShared, clamp};
pub(crate) use saved::find_saved;

/// A segment's place in the log, for retention and for the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBoundary {
    /// Index of its first entry.
    pub first_index: LogIndex,
    /// Offset at its first entry.
    pub first_offset: Offset,
    /// Bytes of its entries.
    pub size_bytes: u64,
    /// Largest record timestamp in it (an upper bound after a truncation or a crash);
    /// `i64::MIN` without records.
    pub max_timestamp: i64,
    /// Wall clock at its creation, milliseconds.
    pub created_millis: i64,
}

/// One partition's log. Clone = another handle of the same log.
#[derive(Clone)]
pub struct Log {
    pub(crate) shared: Rc<LogShared>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({})", self.shared.group)
    }
}

impl Log {
    /// Whose log it is.
    pub fn group(&self) -> GroupId {
        self.shared.group
    }

    /// Which replica of the group keeps it.
    pub fn replica(&self) -> ReplicaId {
        self.shared.replica
    }

    /// Where the log begins and ends, and its flags.
    pub fn state(&self) -> LogState {
        self.shared.core.borrow().state()
    }

    /// Where each leader's entries begin.
    pub fn epochs(&self) -> EpochTable {
        self.shared.core.borrow().epochs.clone()
    }

    /// The term of an entry, from the epoch table; `None` outside of the log. The entry before
    /// the log's start is still known.
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        self.shared.core.borrow().term_of(index)
    }

    /// Takes another configuration; it counts from the next segment on.
    pub fn set_config(&self, config: LogConfig) {
        self.shared.core.borrow_mut().config = config;
    }

    /// The segments, oldest first.
    pub fn segment_boundaries(&self) -> Vec<SegmentBoundary> {
        let core = self.shared.core.borrow();
        core.segments
            .iter()
            .map(|segment| SegmentBoundary {
                first_index: segment.base_index(),
                first_offset: segment.base_offset(),
                size_bytes: u64::from(segment.end - SEGMENT_HEADER_BYTES),
                max_timestamp: segment.max_timestamp,
                created_millis: segment.file.identity.created_millis,
            })
            .collect()
    }

    /// The offset at an entry, where it is known without reading: the log's start and end,
    /// the first entry of each segment, and cached entries.
    pub fn offset_at_index(&self, index: LogIndex) -> Option<Offset> {
        let core = self.shared.core.borrow();
        if index == core.start.index {
            return Some(core.start.offset);
        }
        if index == core.next_index() {
            return Some(core.next_offset);
        }
        if let Some(cached) = core.cache.get(index) {
            return Some(cached.entry.head.base_offset);
        }
        let segment = &core.segments[core.segment_of(index)?];
        (segment.base_index() == index).then(|| segment.base_offset())
    }

    /// Makes a vote durable, and with it everything appended before (law 1).
    ///
    /// # Errors
    /// A failed or closed store, a removed log.
    pub async fn save_vote(&self, vote: Vote) -> Result<(), StorageError> {
        let durable = self.submit_waiting(|core| {
            core.vote = Some(vote);
            (Action::Record(RecordBody::Vote(vote)), Effect::Vote(vote))
        })?;
        durable.await.map_err(|_| StorageError::Closed)?
    }

    /// Notes how far the group has committed. Rides with the next turn and is never flushed for
    /// its own sake; after a restart it may be older. Beyond the end of the log it counts as
    /// the end (law 6).
    pub fn save_committed(&self, committed: (Term, LogIndex)) {
        let Ok(store) = self.store() else { return };
        let mut core = self.shared.core.borrow_mut();
        core.committed = core::clamp(Some(committed), core.last);
        let Some(committed) = core.committed else {
            return;
        };
        drop(core);
        store.submit_lazily(&self.shared, RecordBody::Committed(committed), committed);
    }

    /// Sets or clears the durable flag that keeps this replica from voting and leading (law 8).
    /// Clearing it also says that the damage has been made good.
    ///
    /// # Errors
    /// A failed or closed store, a removed log. [`StorageError::Damaged`]: it cannot be cleared while
    /// [`Log::must_reopen`].
    pub async fn set_no_vote(&self, on: bool) -> Result<(), StorageError> {
        if !on && self.must_reopen() {
            let what = "a read met damage that is still in the log; it has to be opened again";
            return Err(StorageError::damaged(self.shared.group, what.to_owned()));
        }
        let durable = self.submit_waiting(|core| {
            core.begin_cut();
            core.no_vote = on;
            if !on {
                core.damaged = false;
                core.damaged_from = None;
            }
            flags_operation(core)
        })?;
        durable.await.map_err(|_| StorageError::Closed)?
    }

    /// Waits until everything appended so far is durable.
    ///
    /// # Errors
    /// A failed or closed store, a removed log.
    pub async fn flush(&self) -> Result<(), StorageError> {
        let durable = self.submit_waiting(|_| (Action::Barrier, Effect::Barrier))?;
        durable.await.map_err(|_| StorageError::Closed)?
    }

    /// The store, if this log may still be used.
    pub(crate) fn store(&self) -> Result<Rc<StoreInner>, StorageError> {
        if self.shared.removed.get() {
            return Err(StorageError::Removed {
                group: self.shared.group,
            });
        }
        let store = self.shared.store.upgrade().ok_or(StorageError::Closed)?;
        store.accepts()?;
        Ok(store)
    }

    /// Submits one operation and gives what tells of its durability.
    fn submit_waiting(
        &self,
        change: impl FnOnce(&mut LogCore) -> (Action, Effect),
    ) -> Result<oneshot::Receiver<Result<(), StorageError>>, StorageError> {
        let store = self.store()?;
        let (sender, receiver) = oneshot::channel();
        let (action, effect) = change(&mut self.shared.core.borrow_mut());
        let done = AppendDone {
            written: None,
            durable: Some(Box::new(move |result| drop(sender.send(result)))),
        };
        store.submit(&self.shared, action, effect, done);
        Ok(receiver)
    }

    /// Whether a reader has met damage that is still in the log. The replica has to stop, flush
    /// and open its log again, which drops everything from the damage on.
    pub fn must_reopen(&self) -> bool {
        self.shared.core.borrow().damaged_from.is_some()
    }

    /// Damage was met below the end: durable no-vote from here on (laws 4 and 8).
    pub(crate) fn note_damage(&self, from: LogIndex, error: &StorageError) {
        let Ok(store) = self.store() else { return };
        let mut core = self.shared.core.borrow_mut();
        let from = from.max(core.start.index);
        if from >= core.next_index() || core.damaged_from.is_some_and(|known| known <= from) {
            return;
        }
        tracing::error!(group = %self.shared.group, index = %from, %error,
            "damage below the end of a log: this replica neither votes nor leads until it has \
             fetched the log from its leader again");
        core.begin_cut();
        core.damaged = true;
        core.no_vote = true;
        core.damaged_from = Some(from);
        let (action, effect) = flags_operation(&core);
        drop(core);
        store.submit(&self.shared, action, effect, AppendDone::default());
    }
}

/// The flags as they are now. After [`LogCore::begin_cut`].
pub(crate) fn flags_operation(core: &LogCore) -> (Action, Effect) {
    let (no_vote, damaged, damaged_from) = (core.no_vote, core.damaged, core.damaged_from);
    (
        Action::Record(RecordBody::Flags {
            no_vote,
            damaged,
            damaged_from,
        }),
        Effect::Flags,
    )
}
