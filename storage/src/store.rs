//! A shard's store: all its logs, one journal, one flush per turn.
//!
//! | file | what |
//! |---|---|
//! | `open` | the store and its logs: opened, created, removed, closed |
//! | `submit` | operations gathered for the next turn |
//! | `run` | the loop that hands turns over and fires callbacks |
//! | `indices` | index rows that cold reads loaded, within a budget |
//! | `checkpoint`, `checkpoint_batch` | state files, and journal files free again |

mod checkpoint;
mod checkpoint_batch;
mod indices;
mod open;
mod run;
mod submit;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::{GroupId, LogIndex};
use tokio::sync::{Notify, oneshot};

use crate::cache::Cached;
use crate::config::StoreConfig;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::flusher::{Flusher, Inbox};
use crate::log::LogShared;
use crate::metrics::{AppendTimes, DiskLevel, StoreMetrics, TurnCounters};
use crate::pool::Pool;
use crate::turn::Op;

use indices::LoadedIndices;
pub(crate) use open::load_replica;
pub(crate) use submit::Effect;
use submit::Pending;

/// A shard's store. Clone = the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub disk: Arc<dyn Disk>,
    pub config: StoreConfig,
    pub env: Env,
    pub session: u64,
    /// Cold reads.
    pub readers: Pool,
    /// Checkpoints and files: never in the way of a flush.
    pub keeper: Pool,
    pub counters: Arc<TurnCounters>,
    pub cached_reads: Cell<u64>,
    pub appended_bytes: Cell<u64>,
    append_times: RefCell<AppendTimes>,
    pub cache: RefCell<CacheBudget>,
    pub indices: RefCell<LoadedIndices>,
    logs: RefCell<BTreeMap<GroupId, Rc<LogShared>>>,
    queue: RefCell<Queue>,
    pins: RefCell<Pins>,
    failure: RefCell<Option<Arc<str>>>,
    closing: Cell<bool>,
    closed: Cell<bool>,
    close_sent: Cell<bool>,
    /// When the flush thread last said that it waits for journal space.
    stalled_at: Cell<Option<tokio::time::Instant>>,
    /// Operations that the inline worker has not written yet.
    backlog: Cell<usize>,
    closers: RefCell<Vec<oneshot::Sender<Result<(), StorageError>>>>,
    wake: Notify,
    inbox: Inbox,
    /// Flushes small turns here; `None`: all I/O is inline anyway.
    flusher: Option<Flusher>,
    runner: RefCell<Option<run::Runner>>,
    free_bytes: Cell<u64>,
    disk_level: Cell<DiskLevel>,
    space_checked: Cell<Option<tokio::time::Instant>>,
}

/// Operations on their way to the disk, in the shard's one order.
#[derive(Default)]
struct Queue {
    next_seq: u64,
    /// Not handed to the flush thread yet.
    gathered: Vec<Op>,
    /// Lazy records: they wait for an operation that needs a turn.
    lazy: BTreeMap<GroupId, submit::Lazy>,
    /// Not durable yet, by ascending sequence.
    pending: VecDeque<Pending>,
    /// Operations up to this one have been written.
    written: u64,
    unflushed_bytes: u64,
}

/// Which logs keep journal files from being used again.
#[derive(Default)]
struct Pins {
    /// By the first turn that is in no state file of that log.
    by_turn: BTreeSet<(u64, GroupId)>,
    in_flight: usize,
    durable_turn: u64,
    /// Logs with a first turn up to this one are to be checkpointed.
    wanted: u64,
    pace: checkpoint::Pace,
    released: u64,
}

/// The recent-entries cache of the whole shard.
#[derive(Default)]
pub(crate) struct CacheBudget {
    /// Shared, since a log that goes away gives its part back wherever it is dropped.
    used_bytes: Rc<Cell<usize>>,
    /// Oldest first; a place that is gone already is skipped.
    order: VecDeque<(Weak<LogShared>, LogIndex)>,
}

impl CacheBudget {
    pub(crate) fn note(&mut self, log: &LogShared, cached: &Cached) {
        let used = self.used_bytes.get();
        self.used_bytes.set(used + cached.cost_bytes());
        self.order
            .push_back((log.this.clone(), cached.entry.head.index));
    }

    /// What all logs of the shard cache, in bytes.
    pub(crate) fn used(&self) -> Rc<Cell<usize>> {
        self.used_bytes.clone()
    }

    /// `bytes` were dropped by a cut.
    pub(crate) fn free(&self, bytes: usize) {
        let used = self.used_bytes.get();
        self.used_bytes.set(used.saturating_sub(bytes));
    }

    /// Drops the oldest entries that are durable until the budget holds. Entries that are not
    /// stay: reads of them have no other place.
    fn evict(&mut self, budget_bytes: usize) {
        while self.used_bytes.get() > budget_bytes {
            let Some((log, index)) = self.order.front() else {
                return;
            };
            if let Some(log) = log.upgrade() {
                let mut core = log.core.borrow_mut();
                if *index >= core.durable_next() {
                    return;
                }
                while core
                    .cache
                    .first_index()
                    .is_some_and(|first| first <= *index)
                {
                    if let Some(evicted) = core.cache.pop_front() {
                        self.free(evicted.cost_bytes());
                    }
                }
            }
            self.order.pop_front();
        }
        self.forget_places();
    }

    /// Cuts leave places without entries; they must not add up where the budget never fills.
    fn forget_places(&mut self) {
        const PLACES_MIN: usize = 4096;
        if self.order.len() < PLACES_MIN || self.order.len() * 128 < self.used_bytes.get() {
            return;
        }
        self.order.retain(|(log, index)| {
            log.upgrade()
                .is_some_and(|log| log.core.borrow().cache.get(*index).is_some())
        });
    }
}

impl Store {
    /// Why nothing is accepted any more, if a flush failed.
    pub fn failed(&self) -> Option<String> {
        self.inner.failure.borrow().as_deref().map(str::to_owned)
    }

    /// How much room the disk has, as last looked: about once a second while there are turns or the
    /// disk is short of space.
    pub fn disk_level(&self) -> DiskLevel {
        self.inner.disk_level.get()
    }

    /// The counters.
    pub fn metrics(&self) -> StoreMetrics {
        let inner = &self.inner;
        let mut metrics = StoreMetrics {
            appended_bytes: inner.appended_bytes.get(),
            cached_reads: inner.cached_reads.get(),
            cache_bytes: inner.cache.borrow().used_bytes.get() as u64,
            index_bytes: inner.indices.borrow().used_bytes() as u64,
            unflushed_bytes: inner.queue.borrow().unflushed_bytes,
            free_bytes: inner.free_bytes.get(),
            disk_level: inner.disk_level.get(),
            ..StoreMetrics::default()
        };
        inner.append_times.borrow().fill(&mut metrics);
        inner.counters.fill(&mut metrics);
        metrics
    }
}

impl StoreInner {
    /// Refuses once the store has failed or is closing.
    pub(crate) fn accepts(&self) -> Result<(), StorageError> {
        if let Some(reason) = &*self.failure.borrow() {
            return Err(StorageError::Failed(reason.clone()));
        }
        if self.closing.get() || self.closed.get() {
            return Err(StorageError::Closed);
        }
        Ok(())
    }

    fn log(&self, group: GroupId) -> Option<Rc<LogShared>> {
        self.logs.borrow().get(&group).cloned()
    }

    /// Removes files that no durable state names any more, in the background.
    pub(crate) fn remove_segments(&self, log: &LogShared, dropped: Vec<crate::segment::Segment>) {
        let paths: Vec<PathBuf> = dropped
            .iter()
            .flat_map(|segment| {
                let identity = segment.file.identity;
                let index =
                    crate::paths::index_file(&log.dir, identity.base_offset.get(), identity.id);
                [segment.file.path.clone(), index]
            })
            .collect();
        let disk = self.disk.clone();
        self.keeper.run(move || {
            for path in paths {
                // What stays by accident is removed when the log is next recovered.
                disk.remove_file(&path).ok();
            }
            drop(dropped);
        });
        self.wake.notify_one();
    }
}
