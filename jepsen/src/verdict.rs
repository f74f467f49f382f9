//! What a run proved: violations, what was seen but is legal, whether enough was seen, and how
//! available the cluster was. One line for people, exit codes for scripts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::coverage::{Availability, Coverage};
use crate::history::{Key, Nanos, Value};

/// Everything was as promised, and enough was seen.
pub const EXIT_PASS: u8 = 0;
/// At least one violation.
pub const EXIT_VIOLATION: u8 = 1;
/// No violation, but too little happened for that to mean anything; or what was asked for is not to be
/// had here: a fault, the build with planted bugs, one with librdkafka.
pub const EXIT_COVERAGE: u8 = 2;
/// The harness itself failed, or was called wrongly.
pub const EXIT_HARNESS: u8 = 3;

/// Examples kept of each class; all are counted.
pub const EXAMPLES_MAX: usize = 20;

/// The kinds of anomaly, by the names that the verdict prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A node ended by itself, stopped a replica, did not come back, or left files that are not as they
    /// were written.
    Breakdown,
    /// An acknowledged write is absent although later ones were read.
    LostWrite,
    /// An acknowledged write is absent from the log as a fresh client reads it after the heal.
    FinalLost,
    /// An acknowledged write was read by nobody up to the end, or by no consumer in the time that
    /// they had to read on.
    Unseen,
    /// A value was read that the final log does not hold, and was never acknowledged.
    DirtyRead,
    /// One offset held two different values.
    InconsistentOffsets,
    /// An acknowledgement named another offset than the one where the value lies.
    OffsetMismatch,
    /// One value lies at two offsets.
    Duplicate,
    /// Writes of one producer lie in another order than they were made.
    Reordered,
    /// A value was read whose write has certainly failed, or was aborted.
    AbortedRead,
    /// A transaction's own values were read before its commit.
    PrecommittedRead,
    /// A transaction is visible in part.
    TornTxn,
    /// A record that nobody wrote, or with changed bytes.
    ImpossibleValue,
    /// A value lies in another partition than it was sent to.
    WrongPartition,
    /// A recreated topic shows a record of the topic before it.
    OldIncarnation,
    /// One read jumps over a value that lies between two that it returned.
    IntPollSkip,
    /// One read returns values that go back or repeat.
    IntNonmonotonicPoll,
    /// A consumer's next read jumps over values.
    PollSkip,
    /// A consumer's next read goes back.
    NonmonotonicPoll,
    /// A consumer was shown a part of a transaction, and then what lies behind it.
    IntermediateRead,
    /// A consumer was not shown what was acknowledged long ago, with nothing in the way.
    RealtimeLag,
    /// The latest offset lies below what was acknowledged or read before it was asked for.
    StaleLatest,
    /// A whole read lacks what was acknowledged or read before it began.
    StaleRead,
    /// A write that began after another was acknowledged lies before it.
    RealtimeOrder,
    /// The high watermark of a partition went down within one leader epoch.
    HighWatermarkRegression,
    /// The last stable offset lay above the high watermark.
    StableAboveWatermark,
    /// The last stable offset went down within one leader epoch.
    StableRegression,
    /// The log's start went down.
    LogStartRegression,
    /// A record has a lower leader epoch than the records before it.
    EpochRegression,
    /// An older leader epoch was named long after a newer one, with nothing in the way.
    LeaderEpochRegression,
    /// Two nodes were named the leader of one epoch.
    TwoLeaders,
    /// A write of an older producer epoch was accepted after one of a newer epoch.
    FencedAppend,
    /// A write was acknowledged while fewer nodes were alive than `min.insync.replicas`.
    UnderReplicatedAck,
    /// After everything was healed, no write to a partition was acknowledged.
    Stuck,
    /// Two replicas hold different records at one offset.
    ReplicaDivergence,
    /// A replica's log has a hole, or ends before the leader's although everything is healed.
    ReplicaIncomplete,
    /// One partition was given to two members in one generation.
    DoubleOwnership,
    /// A commit of an older generation was acknowledged after a member had the partition in a newer
    /// one.
    StaleCommit,
    /// The group went on below a position whose commit was acknowledged before.
    LostPosition,
    /// The group went on above every position that anybody committed.
    PositionAhead,
    /// A member that joined got a lower generation than was given out before.
    GenerationGoesBack,
    /// An acknowledged write was handed to no member of a group that read to the end.
    Unconsumed,
}

impl Class {
    pub const ALL: &[Class] = &[
        Class::Breakdown,
        Class::LostWrite,
        Class::FinalLost,
        Class::Unseen,
        Class::DirtyRead,
        Class::InconsistentOffsets,
        Class::OffsetMismatch,
        Class::Duplicate,
        Class::Reordered,
        Class::AbortedRead,
        Class::PrecommittedRead,
        Class::TornTxn,
        Class::ImpossibleValue,
        Class::WrongPartition,
        Class::OldIncarnation,
        Class::IntPollSkip,
        Class::IntNonmonotonicPoll,
        Class::PollSkip,
        Class::NonmonotonicPoll,
        Class::IntermediateRead,
        Class::RealtimeLag,
        Class::StaleLatest,
        Class::StaleRead,
        Class::RealtimeOrder,
        Class::HighWatermarkRegression,
        Class::StableAboveWatermark,
        Class::StableRegression,
        Class::LogStartRegression,
        Class::EpochRegression,
        Class::LeaderEpochRegression,
        Class::TwoLeaders,
        Class::FencedAppend,
        Class::UnderReplicatedAck,
        Class::Stuck,
        Class::ReplicaDivergence,
        Class::ReplicaIncomplete,
        Class::DoubleOwnership,
        Class::StaleCommit,
        Class::LostPosition,
        Class::PositionAhead,
        Class::GenerationGoesBack,
        Class::Unconsumed,
    ];

    /// The name in verdicts, `results.json` and the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Class::Breakdown => "breakdown",
            Class::LostWrite => "lost-write",
            Class::FinalLost => "final-lost",
            Class::Unseen => "unseen",
            Class::DirtyRead => "dirty-read",
            Class::InconsistentOffsets => "inconsistent-offsets",
            Class::OffsetMismatch => "offset-mismatch",
            Class::Duplicate => "duplicate",
            Class::Reordered => "reordered",
            Class::AbortedRead => "aborted-read",
            Class::PrecommittedRead => "precommitted-read",
            Class::TornTxn => "torn-txn",
            Class::ImpossibleValue => "impossible-value",
            Class::WrongPartition => "wrong-partition",
            Class::OldIncarnation => "old-incarnation",
            Class::IntPollSkip => "int-poll-skip",
            Class::IntNonmonotonicPoll => "int-nonmonotonic-poll",
            Class::PollSkip => "poll-skip",
            Class::NonmonotonicPoll => "nonmonotonic-poll",
            Class::IntermediateRead => "intermediate-read",
            Class::RealtimeLag => "realtime-lag",
            Class::StaleLatest => "stale-latest",
            Class::StaleRead => "stale-read",
            Class::RealtimeOrder => "realtime-order",
            Class::HighWatermarkRegression => "high-watermark-regression",
            Class::StableAboveWatermark => "stable-above-watermark",
            Class::StableRegression => "stable-regression",
            Class::LogStartRegression => "log-start-regression",
            Class::EpochRegression => "epoch-regression",
            Class::LeaderEpochRegression => "leader-epoch-regression",
            Class::TwoLeaders => "two-leaders",
            Class::FencedAppend => "fenced-append",
            Class::UnderReplicatedAck => "under-replicated-ack",
            Class::Stuck => "stuck",
            Class::ReplicaDivergence => "replica-divergence",
            Class::ReplicaIncomplete => "replica-incomplete",
            Class::DoubleOwnership => "double-ownership",
            Class::StaleCommit => "stale-commit",
            Class::LostPosition => "lost-position",
            Class::PositionAhead => "position-ahead",
            Class::GenerationGoesBack => "generation-goes-back",
            Class::Unconsumed => "unconsumed",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// All anomalies of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub class: Class,
    pub count: u64,
    /// The first [`EXAMPLES_MAX`] of them.
    pub examples: Vec<Example>,
    /// Why the settings allow it; absent for a violation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_because: Option<String>,
}

/// One anomaly, with what proves it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Example {
    pub key: Option<Key>,
    /// One sentence.
    pub what: String,
    pub offsets: Vec<i64>,
    pub values: Vec<Value>,
    /// The events that prove it, earliest first.
    pub evidence: Vec<Evidence>,
}

/// An event as a line of text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The call in the history.
    pub call: u64,
    pub at: Nanos,
    pub text: String,
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub operations: u64,
    /// Sends by outcome.
    pub writes_ok: u64,
    pub writes_failed: u64,
    pub writes_unknown: u64,
    /// Sends of unknown outcome whose value was read all the same.
    pub writes_recovered: u64,
    pub reads_ok: u64,
    pub values_read: u64,
    /// Acknowledged and gone; of either class.
    pub lost: u64,
    pub duplicated: u64,
    pub unseen: u64,
    pub partitions: u64,
}

/// How long it took from an acknowledgement until a consumer was shown the record, the consumers'
/// own crashes included.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The longest of the run.
    pub longest: Option<Late>,
    /// The longest of what was acknowledged after the heal.
    pub longest_after_heal: Option<Late>,
}

/// A record that was shown late.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Late {
    pub seconds: f64,
    pub partition: String,
    /// When it was acknowledged, in seconds of the run.
    pub acked_seconds: f64,
}

impl Delivery {
    /// In words; nothing if no consumer was shown anything.
    pub fn line(&self) -> Option<String> {
        let Late {
            seconds,
            partition,
            acked_seconds,
        } = self.longest.as_ref()?;
        let after = match &self.longest_after_heal {
            None => String::new(),
            Some(late) => format!("; after the heal {:.2} s", late.seconds),
        };
        Some(format!(
            "longest from an acknowledgement to a consumer: {seconds:.2} s ({partition} from \
             {acked_seconds:.1} s){after}"
        ))
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    Pass,
    Violation,
    TooLittleCoverage,
}

/// Everything that was concluded from a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What must not happen under the settings of this run.
    pub violations: Vec<Finding>,
    /// What was seen and is legal under them.
    pub tolerated: Vec<Finding>,
    pub counts: Counts,
    pub coverage: Coverage,
    pub availability: Availability,
    #[serde(default)]
    pub delivery: Delivery,
}

impl Verdict {
    pub fn judgement(&self) -> Judgement {
        if !self.violations.is_empty() {
            Judgement::Violation
        } else if !self.coverage.missing.is_empty() {
            Judgement::TooLittleCoverage
        } else {
            Judgement::Pass
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self.judgement() {
            Judgement::Pass => EXIT_PASS,
            Judgement::Violation => EXIT_VIOLATION,
            Judgement::TooLittleCoverage => EXIT_COVERAGE,
        }
    }

    /// The classes violated.
    pub fn classes(&self) -> Vec<Class> {
        self.violations.iter().map(|found| found.class).collect()
    }

    /// The run in one line.
    pub fn line(&self) -> String {
        let counts = &self.counts;
        let numbers = format!(
            "{} acked, {} lost, {} duplicated, {} unseen, {} reads",
            counts.writes_ok, counts.lost, counts.duplicated, counts.unseen, counts.reads_ok
        );
        let numbers = match &self.coverage.group {
            Some(group) => format!(
                "{numbers}, {} rebalances, {} commits, {} coordinator changes",
                group.rebalances, group.commits, group.coordinator_changes
            ),
            None => numbers,
        };
        let numbers = match self.coverage.skipped.len() {
            0 => numbers,
            1 => format!("{numbers}, 1 fault not possible here"),
            many => format!("{numbers}, {many} faults not possible here"),
        };
        match self.judgement() {
            Judgement::Pass => {
                let longest = self.availability.longest_gap_seconds();
                format!("PASS: {numbers}; longest unavailability {longest:.2} s")
            }
            Judgement::Violation => {
                let classes: Vec<String> = self
                    .violations
                    .iter()
                    .map(|found| format!("{} x{}", found.class, found.count))
                    .collect();
                format!("VIOLATION: {}; {numbers}", classes.join(", "))
            }
            Judgement::TooLittleCoverage => format!(
                "UNKNOWN: no violation, but too little coverage: {}; {numbers}",
                self.coverage.missing.join("; ")
            ),
        }
    }
}
