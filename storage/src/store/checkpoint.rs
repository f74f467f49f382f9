//! Checkpoints: a log's state file moves past its journal records, so that journal files can be
//! used again, oldest first (law 5). In the background, and spread out: from a third of the journal
//! on, each turn starts at most one batch, of as many logs as it takes to be done when two thirds
//! are used. Beyond that, batches are large and follow each other.

use std::rc::Rc;

use corduroy_record::GroupId;
use tokio::sync::mpsc::UnboundedSender;

use super::checkpoint_batch::{CheckpointJob, write_checkpoints};
use super::{Pins, StoreInner};
use crate::error::StorageError;
use crate::log::{CheckpointDone, LogCore, LogShared};
use crate::metrics::add;
use crate::state::JournalPlace;
use crate::turn::{Input, Output};

/// Checkpoints of one batch at least, if so many are wanted: they share commits of the file system.
const SPREAD_MIN: usize = 16;
/// And at most; also when a turn waits for them.
const HURRY_MAX: usize = 128;

/// Whether checkpoints follow each other, or turns start them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    #[default]
    Calm,
    Hurried,
}

/// Logs of the next batch, so that `wanted` of them are done in `turns_left` turns.
fn spread(wanted: usize, turns_left: u64) -> usize {
    let turns_left = usize::try_from(turns_left).unwrap_or(usize::MAX).max(1);
    wanted.div_ceil(turns_left).clamp(SPREAD_MIN, HURRY_MAX)
}

impl Pins {
    fn wanted_count(&self) -> usize {
        let pinned = self.by_turn.iter();
        pinned.take_while(|(turn, _)| *turn <= self.wanted).count()
    }
}

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
        let third = self.config.journal_files_max / 3;
        let (Some(oldest), true) = (oldest_last_turn, files_used >= third.max(2)) else {
            self.pins.borrow_mut().pace = Pace::Calm;
            return;
        };
        let batch_max = {
            let mut pins = self.pins.borrow_mut();
            // Not the highest ever: what a stalled turn asked for ends with its stall.
            pins.wanted = oldest;
            let files_left = (2 * third).saturating_sub(files_used);
            pins.pace = if files_left == 0 {
                Pace::Hurried
            } else {
                Pace::Calm
            };
            if pins.in_flight > 0 {
                return;
            }
            // The files after the oldest tell how many turns fill one.
            let turns = pins.durable_turn.saturating_sub(oldest);
            let turns_left = turns * files_left as u64 / (files_used as u64 - 1).max(1);
            spread(pins.wanted_count(), turns_left)
        };
        self.start_checkpoints(outputs, batch_max);
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

    /// One batch at a time: the keeper works through it between other work.
    fn start_checkpoints(&self, outputs: &UnboundedSender<Output>, batch_max: usize) {
        let batch: Vec<Rc<LogShared>> = {
            let pins = self.pins.borrow();
            if pins.in_flight > 0 {
                return;
            }
            pins.by_turn
                .iter()
                .take_while(|(turn, _)| *turn <= pins.wanted)
                .filter_map(|(_, group)| self.log(*group))
                .filter(|log| {
                    let core = log.core.borrow();
                    core.checkpoint.is_none() && core.undos.is_empty()
                })
                .take(batch_max)
                .collect()
        };
        if batch.is_empty() {
            return;
        }
        let turn = self.pins.borrow().durable_turn;
        let mut jobs: Vec<CheckpointJob> = batch
            .iter()
            .map(|log| self.begin_checkpoint(log, turn))
            .collect();
        self.pins.borrow_mut().in_flight += jobs.len();
        let (disk, outputs, counters) = (self.disk.clone(), outputs.clone(), self.counters.clone());
        self.keeper.run(move || {
            write_checkpoints(&*disk, &mut jobs);
            add(&counters.checkpoints, jobs.len() as u64);
            for job in jobs {
                let (group, incarnation) = (job.group, job.incarnation);
                let result = job.outcome();
                outputs
                    .send(Output::Checkpointed {
                        group,
                        incarnation,
                        result,
                    })
                    .ok();
            }
        });
    }

    fn begin_checkpoint(&self, log: &Rc<LogShared>, turn: u64) -> CheckpointJob {
        let mut core = log.core.borrow_mut();
        core.checkpoint = Some(turn);
        core.pin_after = None;
        let place = JournalPlace {
            session: self.session,
            turn,
        };
        CheckpointJob {
            group: log.group,
            incarnation: log.incarnation,
            dir: log.dir.clone(),
            checkpoint: core.checkpoint(log, place),
            result: Ok(()),
        }
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
        if self.closing.get() || self.stalled_at.get().is_some() || self.is_hurried() {
            self.start_checkpoints(outputs, HURRY_MAX);
        }
        self.release();
        Ok(())
    }

    fn is_hurried(&self) -> bool {
        self.pins.borrow().pace == Pace::Hurried
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_as_large_as_the_turns_left_ask_for() {
        for (wanted, turns_left, expected) in [
            (1000, 75, 16),
            (1000, 20, 50),
            (1000, 0, 128),
            (3, 1, 16),
            (usize::MAX, u64::MAX, 16),
        ] {
            assert_eq!(
                spread(wanted, turns_left),
                expected,
                "{wanted} in {turns_left}"
            );
        }
    }
}
