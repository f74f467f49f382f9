//! Whether a run has seen enough for its silence to mean something, and how long the cluster was
//! unavailable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::Minima;

/// A run at least this long has to reach the full minima.
pub const FULL_RUN_SECONDS: u64 = 300;
const TIMES_EACH_FAULT: u64 = 3;
const OPERATIONS_IN_FAULTS: u64 = 1_000;
const OPERATIONS_IN_FAULTS_LEAST: u64 = 100;
/// From this length on, a run has to do the full number of operations.
const FULL_OPERATIONS_SECONDS: u64 = 60;

impl Minima {
    /// What a run of this length has to reach.
    ///
    /// From [`FULL_RUN_SECONDS`] on: each fault three times, 1,000 acknowledged writes and as many
    /// reads while a fault was active, a complete final read. A shorter run has less time for
    /// faults: each once per 100 seconds begun, and operations in proportion below a minute, but
    /// never fewer than 100.
    pub fn for_run(load_seconds: u64) -> Minima {
        let times = load_seconds
            .div_ceil(FULL_RUN_SECONDS / TIMES_EACH_FAULT)
            .clamp(1, TIMES_EACH_FAULT);
        let operations = (OPERATIONS_IN_FAULTS * load_seconds / FULL_OPERATIONS_SECONDS)
            .clamp(OPERATIONS_IN_FAULTS_LEAST, OPERATIONS_IN_FAULTS);
        Minima {
            times_each_fault: times as u32,
            writes_in_faults: operations,
            reads_in_faults: operations,
            final_read: true,
        }
    }

    /// Whether these are the minima of a full run.
    pub fn are_full(&self) -> bool {
        *self == Minima::for_run(FULL_RUN_SECONDS)
    }
}

/// What a run has covered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub minima: Minima,
    /// How often each fault took hold, those asked for and others.
    pub faults: BTreeMap<String, u32>,
    /// Seconds during which at least one fault was active.
    pub fault_seconds: f64,
    pub writes_in_faults: u64,
    pub reads_in_faults: u64,
    /// Partitions with acknowledged writes, and how many of them were read to their end by a fresh
    /// client and by every node.
    pub partitions: u64,
    pub partitions_final_read: u64,
    pub partitions_compared: u64,
    /// What is missing for a pass, a sentence each.
    pub missing: Vec<String>,
}

/// How long clients had to wait.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Availability {
    /// By fault name; `none` is for times without a fault.
    pub after_fault: BTreeMap<String, Gap>,
    /// Calls that ended ok, of all that ended, during faults and outside of them.
    pub ok_share_in_faults: Option<f64>,
    pub ok_share_outside: Option<f64>,
}

impl Availability {
    /// The longest gap of the run, in seconds.
    pub fn longest_gap_seconds(&self) -> f64 {
        let gaps = self.after_fault.values().map(|gap| gap.longest_seconds);
        gaps.fold(0.0, f64::max)
    }
}

/// The longest time in which no write to one partition was acknowledged although some were tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    pub longest_seconds: f64,
    /// The partition that it struck, and when it began, in seconds of the run.
    pub partition: String,
    pub began_seconds: f64,
    /// How often this fault took hold.
    pub times: u32,
}
