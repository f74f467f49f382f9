//! Tables and the snapshot: what a state machine saves beside its log.

use std::path::PathBuf;

use bytes::Bytes;
use corduroy_record::{LogIndex, Offset, Term};

use super::Log;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::paths;
use crate::tables::SavedTables;

impl Log {
    /// Saves the state machine's tables exactly as of `at`, in a file of their own, durably:
    /// the restart's applied checkpoint. Waits until the entry itself is durable here (law 6).
    ///
    /// # Errors
    /// A failed or closed store, a full disk.
    pub async fn save_tables(
        &self,
        at: (Term, LogIndex),
        offset: Offset,
        membership: Bytes,
        tables: Bytes,
    ) -> Result<(), StorageError> {
        if !self.shared.core.borrow().is_durable(at.1) {
            self.flush().await?;
        }
        let saved = SavedTables {
            at,
            offset,
            membership,
            tables,
        };
        let path = paths::tables_file(&self.shared.dir, at.1.get());
        let group = self.shared.group;
        let store = self.store()?;
        let disk = store.disk.clone();
        store
            .keeper
            .call(move || saved.save(&*disk, &path, group))
            .await??;
        let mut core = self.shared.core.borrow_mut();
        if let Err(place) = core.tables.binary_search(&at.1) {
            core.tables.insert(place, at.1);
        }
        Ok(())
    }

    /// The newest saved tables whose entry is durable here. A damaged file is passed over for
    /// the one before it. Reads a file, on the read pool: for starts, not for every request.
    pub async fn tables(&self) -> Option<SavedTables> {
        let (candidates, end) = {
            let core = self.shared.core.borrow();
            // What a cut that is not durable yet takes away is still durable, and gone all the same.
            (
                core.tables.clone(),
                core.durable_next().min(core.next_index()),
            )
        };
        for index in candidates.into_iter().rev().filter(|index| *index < end) {
            if let Some(saved) = self.load_tables(index).await {
                return Some(saved);
            }
        }
        None
    }

    /// The tables saved as of exactly `index`, if they were. Reads a file, on the read pool.
    pub async fn tables_at(&self, index: LogIndex) -> Option<SavedTables> {
        let known = self
            .shared
            .core
            .borrow()
            .tables
            .binary_search(&index)
            .is_ok();
        if !known {
            return None;
        }
        self.load_tables(index).await
    }

    /// The entries as of which tables are saved, ascending.
    pub fn tables_indices(&self) -> Vec<LogIndex> {
        self.shared.core.borrow().tables.clone()
    }

    async fn load_tables(&self, index: LogIndex) -> Option<SavedTables> {
        match self
            .load(paths::tables_file(&self.shared.dir, index.get()))
            .await
        {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(%error, "saved tables cannot be read; older ones are used");
                None
            }
        }
    }

    /// Reads a file of tables on the read pool: they may be large, and the disk slow.
    async fn load(&self, path: PathBuf) -> Result<Option<SavedTables>, StorageError> {
        let store = self.store()?;
        let (disk, group) = (store.disk.clone(), self.shared.group);
        let load = move || SavedTables::load(&*disk, &path, group);
        store.readers.call(load).await?
    }

    /// Replaces the snapshot, durably when it returns (law 9). Tables at or below it are
    /// removed.
    ///
    /// # Errors
    /// A snapshot older than the present one; a failed or closed store, a full disk.
    pub async fn save_snapshot(&self, snapshot: SavedTables) -> Result<(), StorageError> {
        let at = snapshot.at;
        // One at a time: an older one that passed the check must not be written last.
        let _turn = self.shared.snapshot_turn.acquire().await;
        let present = self.shared.core.borrow().snapshot;
        if let Some((_, covered)) = present
            && at.1 < covered
        {
            return Err(StorageError::NotCovered {
                asked: at.1,
                covered: Some(covered),
            });
        }
        let path = paths::snapshot_file(&self.shared.dir);
        let group = self.shared.group;
        let store = self.store()?;
        let disk = store.disk.clone();
        store
            .keeper
            .call(move || snapshot.save(&*disk, &path, group))
            .await??;
        let mut core = self.shared.core.borrow_mut();
        core.snapshot = Some(at);
        let kept = core.tables.partition_point(|index| *index <= at.1);
        let removed: Vec<LogIndex> = core.tables.drain(..kept).collect();
        drop(core);
        let (disk, dir) = (store.disk.clone(), self.shared.dir.clone());
        store.keeper.run(move || {
            for index in removed {
                // What stays by accident is found and removed when the log is next opened.
                disk.remove_file(&paths::tables_file(&dir, index.get()))
                    .ok();
            }
        });
        Ok(())
    }

    /// The last entry that the snapshot at the log's start holds, if there is one. Reads nothing.
    pub fn snapshot_at(&self) -> Option<(Term, LogIndex)> {
        self.shared.core.borrow().snapshot
    }

    /// The snapshot at the log's start. Reads a file, on the read pool.
    pub async fn snapshot(&self) -> Option<SavedTables> {
        let known = self.snapshot_at()?;
        match self.load(paths::snapshot_file(&self.shared.dir)).await {
            Ok(snapshot) => snapshot,
            // Replaced, or the log was closed, while it was read: no damage.
            Err(error) if self.snapshot_at() != Some(known) => {
                tracing::debug!(group = %self.shared.group, %error, "the snapshot was replaced");
                None
            }
            Err(error @ StorageError::Damaged { .. }) => {
                let start = self.shared.core.borrow().start.index;
                self.note_damage(start, &error);
                None
            }
            Err(error) => {
                tracing::warn!(group = %self.shared.group, %error, "the snapshot cannot be read");
                None
            }
        }
    }
}

/// What is saved in a partition's directory: indices of tables, and the snapshot's entry.
pub(crate) struct SavedFiles {
    pub tables: Vec<LogIndex>,
    pub snapshot: Option<(Term, LogIndex)>,
    /// The snapshot is there and is not what was written.
    pub snapshot_damage: Option<StorageError>,
}

/// Lists a partition's saved files.
pub(crate) fn find_saved(
    disk: &dyn Disk,
    dir: &std::path::Path,
    group: corduroy_record::GroupId,
) -> Result<SavedFiles, StorageError> {
    let mut saved = SavedFiles {
        tables: Vec::new(),
        snapshot: None,
        snapshot_damage: None,
    };
    match SavedTables::load(disk, &paths::snapshot_file(dir), group) {
        Ok(snapshot) => saved.snapshot = snapshot.map(|snapshot| snapshot.at),
        Err(error @ StorageError::Damaged { .. }) => saved.snapshot_damage = Some(error),
        Err(error) => return Err(error),
    }
    // No directory: a replica whose files are gone.
    let names = disk.list(dir).unwrap_or_default();
    saved.tables = names
        .iter()
        .filter_map(|name| paths::parse_tables(name))
        .map(LogIndex::new)
        .collect();
    saved.tables.sort_unstable();
    Ok(saved)
}
