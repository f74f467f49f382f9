//! What is legal under which settings. One function per promise; it returns why the promise does
//! not hold, or nothing where it holds.
//!
//! | anomaly | illegal | legal |
//! |---|---|---|
//! | breakdown, inconsistent-offsets between reads, offset-mismatch, impossible-value, wrong-partition, replica-divergence, two-leaders, epoch and log start going back | always | never |
//! | lost-write, final-lost, stale-latest, stale-read, realtime-order, inconsistent-offsets against an acknowledgement | `acks=all` | `acks=0`; `acks=1` once a fault took hold; power loss of a relaxed flush; unclean election; bit rot of the only copy; removed by retention or compaction |
//! | dirty-read | whatever `acks` says | power loss of a relaxed flush; unclean election; bit rot of the only copy; retention, compaction |
//! | unseen | after the heal | as lost-write |
//! | duplicate | idempotent, within one producer session | without idempotence where the client repeats requests |
//! | reordered | idempotent, within one producer session | without idempotence |
//! | int-poll-skip, int-nonmonotonic-poll | always | skips: compaction, retention |
//! | poll-skip, nonmonotonic-poll | partitions assigned by hand | partitions given out by a group |
//! | stable-above-watermark, stable-regression and high-watermark-regression within an epoch | always | never |
//! | leader-epoch-regression | nothing has disturbed the cluster for 10 s | while a fault holds or is felt, the harness starves, and 10 s after it |
//! | realtime-lag | partitions assigned by hand, `acks=all`, nothing has disturbed the cluster for 10 s | partitions given out by a group; `acks` below all; as above |
//! | intermediate-read | partitions assigned by hand, `read_committed` | `read_uncommitted`; as poll-skip |
//! | aborted-read of a transaction, precommitted-read, torn-txn | `read_committed` | `read_uncommitted`; torn: the old transaction protocol |
//! | aborted-read of a refused send | always | never |

use crate::history::{
    Acks, Assignment, ClientSettings, FaultPhase, Flush, History, Isolation, Transactions,
};

/// Why something is allowed, or nothing: it is a violation.
pub type Allowed = Option<&'static str>;

/// The settings of a run, with what of its faults matters to them.
#[derive(Clone, Copy)]
pub struct Terms<'s> {
    settings: &'s ClientSettings,
    /// Whether old records are removed: of all partitions, or of the one that is judged.
    retention: bool,
    any_fault: bool,
    power_loss: bool,
    bit_rot: bool,
}

impl<'s> Terms<'s> {
    pub fn new(settings: &'s ClientSettings, history: &History) -> Terms<'s> {
        let begun = history
            .faults
            .iter()
            .filter(|fault| fault.phase == FaultPhase::Begin);
        let mut terms = Terms {
            settings,
            retention: settings.retention,
            any_fault: false,
            power_loss: false,
            bit_rot: false,
        };
        for fault in begun {
            terms.any_fault = true;
            terms.power_loss |= fault.fault.starts_with("power");
            terms.bit_rot |= fault.fault.starts_with("bit");
        }
        terms
    }

    /// The terms of a partition whose old records are removed, or not.
    pub fn of(&self, trims: bool) -> Terms<'s> {
        Terms {
            retention: self.retention || trims,
            ..*self
        }
    }

    /// Whether consumers see within seconds what was acknowledged, if nothing is in their way.
    pub fn consumers_keep_up(&self) -> bool {
        self.ack_means_committed() && self.settings.assignment == Assignment::Assign
    }

    /// May what consumers have read vanish?
    pub fn committed_may_vanish(&self) -> Allowed {
        let settings = self.settings;
        if settings.flush == Flush::Relaxed && self.power_loss {
            return Some("flush.policy=relaxed, and power was lost");
        }
        if settings.unclean_election && self.any_fault {
            return Some("a replica without the newest records may be made leader");
        }
        if settings.replication_factor == 1 && self.bit_rot {
            return Some("the only copy was damaged on purpose");
        }
        None
    }

    /// May an acknowledged write be gone? `removed`: whether it lies below the log's start, if
    /// that can be said.
    pub fn acked_may_vanish(&self, removed: Option<bool>) -> Allowed {
        let settings = self.settings;
        match settings.acks {
            Acks::None => return Some("acks=0 promises nothing"),
            Acks::Leader if self.any_fault => return Some("acks=1, and a fault took hold"),
            _ => {}
        }
        if self.retention && removed != Some(false) {
            return Some("removed by retention");
        }
        if settings.compaction {
            return Some("removed by compaction");
        }
        self.committed_may_vanish()
    }

    /// May a value that was read, but not acknowledged, be gone?
    pub fn read_may_vanish(&self, removed: bool) -> Allowed {
        if self.retention && removed {
            return Some("removed by retention");
        }
        if self.settings.compaction {
            return Some("removed by compaction");
        }
        self.committed_may_vanish()
    }

    pub fn duplicate(&self) -> Allowed {
        let repeats = self.settings.retries && !self.settings.idempotence;
        repeats.then_some("without idempotence a repeated request appends again")
    }

    pub fn reordered(&self) -> Allowed {
        let loose = !self.settings.idempotence;
        loose.then_some("without idempotence a repeated request may overtake")
    }

    pub fn skip_within_read(&self) -> Allowed {
        let thinned = self.settings.compaction || self.retention;
        thinned.then_some("compaction or retention may have removed what lay between")
    }

    pub fn skip_between_polls(&self) -> Allowed {
        match self.settings.assignment {
            Assignment::Subscribe => Some("a group may have moved the partition between the polls"),
            Assignment::Assign => self.skip_within_read(),
        }
    }

    pub fn back_between_polls(&self) -> Allowed {
        let moved = self.settings.assignment == Assignment::Subscribe;
        moved.then_some("a group may have moved the partition between the polls")
    }

    pub fn uncommitted_read(&self) -> Allowed {
        let loose = self.settings.isolation == Isolation::ReadUncommitted;
        loose.then_some("read_uncommitted shows open and aborted transactions")
    }

    pub fn torn_txn(&self) -> Allowed {
        match self.settings.transactions {
            Transactions::V1 => Some("protocol-v1: a late EndTxn may meet the next transaction"),
            _ => self.uncommitted_read(),
        }
    }

    /// Whether an acknowledgement says that the record is committed.
    pub fn ack_means_committed(&self) -> bool {
        self.settings.acks == Acks::All && self.settings.transactions == Transactions::None
    }
}
