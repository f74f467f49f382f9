//! Writes the files of several checkpoints together, stage by stage: what one flush makes the
//! file system commit, the next finds done. Runs on the keeper's thread.

use std::path::PathBuf;
use std::sync::Arc;

use corduroy_record::GroupId;

use crate::disk::{Disk, DiskFile, OpenMode, swap_spare, write_spare};
use crate::error::{IoContext, StorageError};
use crate::index;
use crate::log::{Checkpoint, CheckpointDone};
use crate::paths;

/// One log's checkpoint on its way to the disk.
pub(super) struct CheckpointJob {
    pub group: GroupId,
    pub incarnation: u64,
    pub dir: PathBuf,
    pub checkpoint: Checkpoint,
    /// How it went so far; a stage passes over what has failed.
    pub result: Result<(), StorageError>,
}

impl CheckpointJob {
    fn then(&mut self, stage: impl FnOnce(&mut Self) -> Result<(), StorageError>) {
        if self.result.is_ok() {
            self.result = stage(self);
        }
    }

    pub(super) fn outcome(self) -> Result<CheckpointDone, StorageError> {
        self.result.map(|()| self.checkpoint.done())
    }
}

/// Segments first, then index rows, then the state files that speak of them.
pub(super) fn write_checkpoints(disk: &dyn Disk, jobs: &mut [CheckpointJob]) {
    for job in &*jobs {
        for segment in &job.checkpoint.flush {
            segment.start_flush(disk);
        }
    }
    for job in &mut *jobs {
        job.then(|job| {
            for segment in &job.checkpoint.flush {
                segment.flush(disk)?;
            }
            Ok(())
        });
        job.then(|job| store_rows(disk, job));
    }
    let mut spares: Vec<Option<Arc<dyn DiskFile>>> = Vec::with_capacity(jobs.len());
    for job in &mut *jobs {
        let mut spare = None;
        job.then(|job| {
            let path = paths::state_file(&job.dir);
            let bytes = job.checkpoint.image.encode();
            spare = Some(write_spare(disk, &path, &bytes).during("write", &path)?);
            Ok(())
        });
        spares.push(spare);
    }
    for (job, spare) in jobs.iter_mut().zip(spares) {
        job.then(|job| {
            let path = paths::state_file(&job.dir);
            match spare {
                Some(spare) => spare.flush().during("flush", &path),
                None => Ok(()),
            }
        });
    }
    for job in &mut *jobs {
        job.then(|job| {
            let path = paths::state_file(&job.dir);
            swap_spare(disk, &path).during("replace", &path)
        });
    }
    // The names of new segments and index files become durable with that of the state file.
    for job in &mut *jobs {
        job.then(|job| disk.flush_dir(&job.dir).during("flush", &job.dir));
    }
}

/// Appends index rows. What a full disk does not take stays in memory for the next checkpoint.
fn store_rows(disk: &dyn Disk, job: &mut CheckpointJob) -> Result<(), StorageError> {
    let mut left_out = Vec::new();
    for rows in &job.checkpoint.rows {
        let identity = rows.segment.identity;
        let path = paths::index_file(&job.dir, identity.base_offset.get(), identity.id);
        match index::store_rows(disk, &path, identity.salt, rows.first, &rows.rows) {
            Err(StorageError::DiskFull) => {
                left_out.push(identity.id);
                continue;
            }
            stored => stored?,
        }
        if rows.sealed {
            // Of an open segment's index, a lost row costs one rebuilding; of a sealed one it
            // would cost it on every start.
            let file = disk.open(&path, OpenMode::Existing).during("open", &path)?;
            file.flush().during("flush", &path)?;
        }
    }
    job.checkpoint.leave_out(&left_out);
    Ok(())
}
