//! Checkpoints: a log's state file moves past its journal records, so that journal files can be
//! used again, oldest first (law 5). In the background, a few at a time.

use std::rc::Rc;
use std::sync::Arc;

use corduroy_record::GroupId;
use tokio::sync::mpsc::UnboundedSender;

use super::StoreInner;
use crate::disk::Disk;
use crate::error::{IoContext, StorageError};
use crate::index;
use crate::log::{Checkpoint, CheckpointDone, LogCore, LogShared};
use crate::metrics::add;
use crate::paths;
use crate::state::JournalPlace;
use crate::turn::{Input, Output};

/// Checkpoints under way at once in the course of things.
const SPREAD_MAX: usize = 2;
/// And when a turn waits for them.
const HURRY_MAX: usize = 16;

impl StoreInner {
    /// A turn with records of this log is durable.
    pub(super) fn pin(&self, log: &LogShared, core: &mut LogCore, turn: u64) {
        if core.checkpoint.is_some() {
            core.pin_after.get_or_insert(turn);
        } else if core.pin.is_none() {
            core.pin = Some(turn);
            self.pins.borrow_mut().by_turn.insert((turn, log.group));
        }
    }

    /// After each turn: asks for checkpoints once the journal has filled a third of its files.
    pub(super) fn want_checkpoints(
        &self,
        outputs: &UnboundedSender<Output>,
        files_used: usize,
        oldest_last_turn: Option<u64>,
    ) {
        let many = (self.config.journal_files_max / 3).max(2);
        if files_used >= many
            && let Some(turn) = oldest_last_turn
        {
            let mut pins = self.pins.borrow_mut();
            pins.wanted = pins.wanted.max(turn);
        }
        self.start_checkpoints(outputs, SPREAD_MAX);
    }

    /// A turn waits for journal space.
    pub(super) fn hurry_checkpoints(
        &self,
        outputs: &UnboundedSender<Output>,
        oldest_last_turn: Option<u64>,
    ) {
        {
            let mut pins = self.pins.borrow_mut();
            pins.wanted = pins.wanted.max(oldest_last_turn.unwrap_or(u64::MAX));
        }
        self.stalled_at.set(Some(self.env.now()));
        self.start_checkpoints(outputs, HURRY_MAX);
        self.release();
    }

    /// A turn has waited for journal space for a while.
    pub(super) fn help_stalled(&self, outputs: &UnboundedSender<Output>) {
        self.hurry_checkpoints(outputs, None);
        // A cut that waits for this very turn keeps its log from being checkpointed: only more
        // journal helps.
        if self.pins.borrow().in_flight == 0 {
            self.inbox.send(Input::Overcommit).ok();
        }
    }

    /// For a clean stop: everything.
    pub(super) fn want_all_checkpoints(&self, outputs: &UnboundedSender<Output>) {
        self.pins.borrow_mut().wanted = u64::MAX;
        self.start_checkpoints(outputs, HURRY_MAX);
    }

    pub(super) fn pins_are_clear(&self) -> bool {
        let pins = self.pins.borrow();
        pins.by_turn.is_empty() && pins.in_flight == 0
    }

    fn start_checkpoints(&self, outputs: &UnboundedSender<Output>, in_flight_max: usize) {
        loop {
            let next = {
                let pins = self.pins.borrow();
                if pins.in_flight >= in_flight_max {
                    return;
                }
                let wanted = pins.wanted;
                pins.by_turn
                    .iter()
                    .take_while(|(turn, _)| *turn <= wanted)
                    .filter_map(|(_, group)| self.log(*group))
                    .find(|log| {
                        let core = log.core.borrow();
                        core.checkpoint.is_none() && core.barriers == 0
                    })
            };
            let Some(log) = next else { return };
            self.start_checkpoint(&log, outputs.clone());
        }
    }

    fn start_checkpoint(&self, log: &Rc<LogShared>, outputs: UnboundedSender<Output>) {
        let turn = self.pins.borrow().durable_turn;
        let mut core = log.core.borrow_mut();
        core.checkpoint = Some(turn);
        core.pin_after = None;
        let place = JournalPlace {
            session: self.session,
            turn,
        };
        let mut checkpoint = core.checkpoint(log, place);
        drop(core);
        self.pins.borrow_mut().in_flight += 1;
        let (disk, dir) = (self.disk.clone(), log.dir.clone());
        let (group, incarnation) = (log.group, log.incarnation);
        let counters = self.counters.clone();
        self.keeper.run(move || {
            let result = write_checkpoint(&disk, &dir, &mut checkpoint).map(|()| checkpoint.done());
            add(&counters.checkpoints, 1);
            outputs
                .send(Output::Checkpointed {
                    group,
                    incarnation,
                    result,
                })
                .ok();
        });
    }

    /// A state file is durable: its log pins only what came after.
    pub(super) fn on_checkpointed(
        &self,
        outputs: &UnboundedSender<Output>,
        group: GroupId,
        incarnation: u64,
        result: Result<CheckpointDone, StorageError>,
    ) -> Result<(), StorageError> {
        self.pins.borrow_mut().in_flight -= 1;
        let log = self.log(group).filter(|log| log.incarnation == incarnation);
        if let Some(log) = log {
            let mut core = log.core.borrow_mut();
            core.checkpoint = None;
            match result {
                Ok(done) => {
                    let after = core.pin_after.take();
                    let before = std::mem::replace(&mut core.pin, after);
                    let mut pins = self.pins.borrow_mut();
                    if let Some(before) = before {
                        pins.by_turn.remove(&(before, group));
                    }
                    if let Some(after) = after {
                        pins.by_turn.insert((after, group));
                    }
                    drop(pins);
                    core.checkpointed(&done);
                }
                Err(StorageError::DiskFull) => {
                    // The pin stays; the journal keeps what the state file lacks.
                    core.pin_after = None;
                    tracing::error!(%group, "the disk is full: a checkpoint has to wait");
                    return Err(StorageError::DiskFull);
                }
                Err(error) => return Err(error),
            }
        }
        // A log that was removed meanwhile takes its directory with it: no failure of the disk.
        self.start_checkpoints(
            outputs,
            if self.closing.get() {
                HURRY_MAX
            } else {
                SPREAD_MAX
            },
        );
        self.release();
        Ok(())
    }

    /// A removed log pins nothing.
    pub(super) fn unpin(&self, log: &LogShared) {
        let mut core = log.core.borrow_mut();
        if let Some(turn) = core.pin.take() {
            self.pins.borrow_mut().by_turn.remove(&(turn, log.group));
        }
    }

    /// Tells the flush thread which turns no log needs any more.
    fn release(&self) {
        let mut pins = self.pins.borrow_mut();
        let before = pins
            .by_turn
            .first()
            .map_or(pins.durable_turn + 1, |(turn, _)| *turn);
        if before > pins.released {
            pins.released = before;
            self.inbox.send(Input::Release(before)).ok();
        }
    }

    pub(super) fn note_durable_turn(&self, turn: u64) {
        if turn > 0 {
            self.pins.borrow_mut().durable_turn = turn;
        }
    }
}

/// Segments first, then index rows, then the state file that speaks of them.
fn write_checkpoint(
    disk: &Arc<dyn Disk>,
    dir: &std::path::Path,
    checkpoint: &mut Checkpoint,
) -> Result<(), StorageError> {
    for segment in &checkpoint.flush {
        segment
            .open(&**disk)?
            .flush()
            .during("flush", &segment.path)?;
    }
    let mut left_out = Vec::new();
    for rows in &checkpoint.rows {
        let identity = rows.segment.identity;
        let path = paths::index_file(dir, identity.base_offset.get(), identity.id);
        match index::store_rows(&**disk, &path, identity.salt, rows.first, &rows.rows) {
            Err(StorageError::DiskFull) => {
                left_out.push(identity.id);
                continue;
            }
            stored => stored?,
        }
        if rows.sealed {
            // Of an open segment's index, a lost row costs one rebuilding; of a sealed one it
            // would cost it on every start.
            let file = disk
                .open(&path, crate::disk::OpenMode::Existing)
                .during("open", &path)?;
            file.flush().during("flush", &path)?;
        }
    }
    // Rows that a full disk did not take stay in memory for the next checkpoint.
    checkpoint.leave_out(&left_out);
    // The state file's directory flush makes the names of all of them durable.
    checkpoint.image.save(&**disk, dir)
}
