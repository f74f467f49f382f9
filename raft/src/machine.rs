//! openraft's state machine: drives the partition's own, keeps its checkpoints and its snapshot.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use corduroy_record::{LogIndex, Offset, Term};
use corduroy_storage::{AppliedEntry, SavedTables, StorageError};
use futures::{Stream, StreamExt};
use openraft::RaftSnapshotBuilder;
use openraft::Snapshot;
use openraft::entry::RaftEntry;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use tokio::sync::Notify;

use crate::replica_core::Core;
use crate::types::{
    LogId, MembershipRecord, SnapshotMeta, StoredMembership, TypeConfig, applied_entry, log_id,
    place,
};

/// Entries that the machine gets at once.
const APPLY_ENTRIES_MAX: usize = 512;

type RaftSnapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SavedTables>;

/// Sits between openraft and the partition's state machine.
pub struct MachineDriver {
    core: Rc<Core>,
    life: Rc<DriverLife>,
}

/// Whether a driver still exists. openraft does not notice by itself that its state machine's task
/// has panicked: an idle leader would beat on with a dead machine.
#[derive(Default)]
pub(crate) struct DriverLife {
    gone: Cell<bool>,
    changed: Notify,
}

impl DriverLife {
    /// Ends with the driver.
    pub(crate) async fn until_gone(&self) {
        let changed = self.changed.notified();
        if !self.gone.get() {
            changed.await;
        }
    }
}

impl Drop for MachineDriver {
    fn drop(&mut self) {
        self.life.gone.set(true);
        self.life.changed.notify_waiters();
    }
}

/// Reads the snapshot that retention saved. It builds nothing: law 9.
pub struct SnapshotReader {
    core: Rc<Core>,
}

/// Why a replica's tables could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("the saved membership cannot be read: {0}")]
    Membership(String),
    #[error("the saved tables cannot be read: {0}")]
    Tables(String),
}

impl MachineDriver {
    pub(crate) fn new(core: Rc<Core>) -> MachineDriver {
        let life = Rc::new(DriverLife::default());
        *core.driver.borrow_mut() = life.clone();
        MachineDriver { core, life }
    }

    fn flush(
        &self,
        entries: &mut Vec<AppliedEntry>,
        responders: &mut Vec<ApplyResponder<TypeConfig>>,
        membership: Option<StoredMembership>,
    ) {
        let Some(last) = entries.last().map(|entry| entry.head) else {
            return;
        };
        let core = &self.core;
        core.machine.borrow_mut().apply(entries);
        core.applied.set(Some((last.term, last.index)));
        core.high_watermark.set(last.next_offset());
        if let Some(membership) = membership {
            *core.applied_membership.borrow_mut() = membership;
        }
        entries.clear();
        core.applied_changed.notify_waiters();
        // The leader's own entry opens the door to clients before its observers hear of it.
        core.announce_ready();
        for responder in responders.drain(..) {
            responder.send(());
        }
    }

    /// Saves the tables as of the last applied entry if a segment begins right behind it
    /// (DESIGN.md 6): the restart's checkpoint, and what retention turns into the snapshot.
    ///
    /// Called before an entry is applied: by then that entry is in the log, so the segment that
    /// it may have begun is known.
    fn checkpoint(&self) {
        let core = &self.core;
        let Some((term, index)) = core.applied.get() else {
            return;
        };
        if core.boundary.get() != Some(index) || core.checkpointed.get() >= Some(index) {
            return;
        }
        core.checkpointed.set(Some(index));
        let offset = core.high_watermark.get();
        let tables = core.machine.borrow().tables();
        let membership = MembershipRecord::of_stored(&core.applied_membership.borrow()).encode();
        let core = core.clone();
        let env = core.env.clone();
        env.spawn_local(async move {
            // The log waits until the entry is durable here (law 6).
            let saved = core
                .log
                .save_tables((term, index), offset, membership, tables)
                .await;
            if let Err(error) = saved {
                tracing::warn!(parent: &core.span(), group = %core.group, %error, "a checkpoint was not saved");
            }
        });
    }

    /// The last entry before the next segment that begins behind `applied`.
    fn next_boundary(&self, applied: Option<LogIndex>) -> Option<LogIndex> {
        self.core
            .log
            .segment_boundaries()
            .iter()
            .filter_map(|boundary| boundary.first_index.get().checked_sub(1).map(LogIndex::new))
            .find(|before| applied.is_none_or(|applied| *before >= applied))
    }
}

/// Loads the newest of checkpoint and snapshot into the machine; called before openraft starts.
pub(crate) async fn restore(core: &Core) -> Result<(), RestoreError> {
    let saved = match (core.log.tables().await, core.log.snapshot().await) {
        (Some(tables), Some(snapshot)) if snapshot.at.1 > tables.at.1 => Some(snapshot),
        (None, snapshot) => snapshot,
        (tables, _) => tables,
    };
    load(core, saved)
}

fn load(core: &Core, saved: Option<SavedTables>) -> Result<(), RestoreError> {
    let membership = match &saved {
        Some(saved) => MembershipRecord::decode(&saved.membership)
            .and_then(|record| record.stored())
            .map_err(|error| RestoreError::Membership(error.to_string()))?,
        None => StoredMembership::default(),
    };
    let tables = saved.as_ref().map(|saved| saved.tables.clone());
    core.machine
        .borrow_mut()
        .restore(tables)
        .map_err(RestoreError::Tables)?;
    core.applied.set(saved.as_ref().map(|saved| saved.at));
    core.high_watermark
        .set(saved.map_or(core.log.state().log_start.offset, |saved| saved.offset));
    *core.applied_membership.borrow_mut() = membership;
    core.boundary.set(None);
    core.checkpointed
        .set(core.applied.get().map(|(_, index)| index));
    core.applied_changed.notify_waiters();
    Ok(())
}

fn storage_failed(core: &Core, error: &StorageError) -> io::Error {
    if !matches!(error, StorageError::DiskFull) {
        core.storage_error
            .borrow_mut()
            .get_or_insert_with(|| error.to_string());
    }
    io::Error::other(error.to_string())
}

fn to_raft(saved: SavedTables) -> Result<RaftSnapshot, io::Error> {
    let membership = MembershipRecord::decode(&saved.membership)
        .and_then(|record| record.stored())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(saved.at.0, saved.at.1)),
        last_membership: membership,
    };
    Ok(Snapshot {
        meta,
        snapshot: saved,
    })
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotReader {
    type SnapshotData = SavedTables;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        match self.core.log.snapshot().await {
            Some(saved) => to_raft(saved),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "no snapshot has been saved",
            )),
        }
    }
}

impl RaftStateMachine<TypeConfig> for MachineDriver {
    type SnapshotData = SavedTables;
    type SnapshotBuilder = SnapshotReader;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let applied = self
            .core
            .applied
            .get()
            .map(|(term, index)| log_id(term, index));
        Ok((applied, self.core.applied_membership.borrow().clone()))
    }

    async fn apply<S>(&mut self, mut stream: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin,
    {
        let mut entries = Vec::new();
        let mut responders = Vec::new();
        let mut membership = None;
        let reads_records = self.core.machine.borrow().reads_records();
        self.core
            .boundary
            .set(self.next_boundary(self.core.applied.get().map(|(_, at)| at)));
        self.checkpoint();
        while let Some(next) = stream.next().await {
            let (entry, responder) = next?;
            let applied = applied_entry(&entry, reads_records).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "an entry without its place")
            })?;
            if let Some(members) = entry.get_membership() {
                membership = Some(StoredMembership::new(Some(entry.id), members));
            }
            let index = applied.head.index;
            entries.push(applied);
            responders.extend(responder);
            if self.core.boundary.get() == Some(index) {
                // Tables are saved exactly as of the entry before the segment.
                self.flush(&mut entries, &mut responders, membership.take());
                self.checkpoint();
                self.core
                    .boundary
                    .set(self.next_boundary(Some(index.next())));
            } else if entries.len() >= APPLY_ENTRIES_MAX {
                self.flush(&mut entries, &mut responders, membership.take());
            }
        }
        self.flush(&mut entries, &mut responders, membership.take());
        Ok(())
    }

    // "Not now" is the answer unless retention has saved one: a snapshot is never made on demand.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotReader> {
        (force || self.core.log.snapshot_at().is_some()).then(|| SnapshotReader {
            core: self.core.clone(),
        })
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotReader {
        SnapshotReader {
            core: self.core.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SavedTables,
    ) -> Result<(), io::Error> {
        let core = &self.core;
        let at = meta.last_log_id.as_ref().map(place);
        if at != Some(snapshot.at) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a snapshot that is not where it says",
            ));
        }
        tracing::info!(parent: &core.span(), group = %core.group, index = %snapshot.at.1, "a snapshot is installed");
        if core.log.snapshot().await.as_ref() != Some(&snapshot) {
            core.log
                .save_snapshot(snapshot.clone())
                .await
                .map_err(|error| storage_failed(core, &error))?;
        }
        load(core, Some(snapshot))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        self.core.log.snapshot().await.map(to_raft).transpose()
    }
}

/// A snapshot as one run of bytes: the membership, then the tables.
pub(crate) fn snapshot_parts(saved: &SavedTables) -> [Bytes; 2] {
    [saved.membership.clone(), saved.tables.clone()]
}

/// A received snapshot put together.
pub(crate) fn snapshot_from_parts(
    at: (Term, LogIndex),
    offset: Offset,
    membership: Bytes,
    tables: Bytes,
) -> Result<RaftSnapshot, io::Error> {
    to_raft(SavedTables {
        at,
        offset,
        membership,
        tables,
    })
}
