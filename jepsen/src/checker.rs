//! Judges a history: what clients saw, against what was promised to them.
//!
//! Linear in the number of values seen, but for a few sorts of times. The parts, in the order in
//! which they run:
//!
//! - [`index`]: every value's write, every partition's log as it was seen;
//! - [`breakdown`]: nodes that ended, did not come back, or left damaged files;
//! - [`log`]: what the log itself shows: lost, double, moved, impossible, reordered values;
//! - [`consumer`]: what one consumer was shown, poll after poll;
//! - [`delivery`]: what no consumer was shown up to the end, and how long it took;
//! - [`lag`]: what a consumer was not shown in time, with nothing in its way;
//! - [`recency`]: what an answer had to know because of what ended before it was asked for;
//! - [`replica`]: the final reads of all replicas against each other;
//! - [`contract`]: writes that had to be refused;
//! - [`group`]: who had which partitions of a group, and where the group went on;
//! - [`progress`]: whether every partition takes writes again after the heal;
//! - [`legal`]: the table of what is allowed under which settings.
//!
//! Not inferred: cycles between transactions (G0, G1c). Write interleaving is legal in Kafka, and a
//! cycle of reads only needs transactions that read and write; see `docs/fault-tests.md`.

mod breakdown;
mod calm;
mod collect;
mod consumer;
mod contract;
mod delivery;
mod group;
mod index;
mod lag;
mod legal;
mod log;
pub mod progress;
mod recency;
mod replica;
mod values;

use crate::coverage;
use crate::history::{Call, ClientSettings, History, Outcome};
use crate::verdict::{Class, Counts, Verdict};

use collect::Collector;
use index::Index;
use legal::Terms;

/// Judges `history` under `settings` (those of its header, unless one wants to know what other
/// settings would make of it).
pub fn check(history: &History, settings: &ClientSettings) -> Verdict {
    let index = Index::build(history);
    let terms = Terms::new(settings, history);
    let mut collector = Collector::new(history);
    breakdown::check(&index, &mut collector);
    log::check(&index, &terms, &mut collector);
    consumer::check(&index, &terms, &mut collector);
    delivery::check(&index, &mut collector);
    lag::check(&index, &terms, &mut collector);
    recency::check(&index, &terms, &mut collector);
    replica::check(&index, &terms, &mut collector);
    contract::check(&index, settings, &mut collector);
    group::check(&index, &mut collector);
    progress::check(&index, &mut collector);

    let mut counts = count(history, &index);
    let found = |class: Class| collector.count(class);
    counts.lost = found(Class::LostWrite) + found(Class::FinalLost);
    counts.duplicated = found(Class::Duplicate);
    counts.unseen = found(Class::Unseen);
    let (violations, tolerated) = collector.finish();
    Verdict {
        violations,
        tolerated,
        counts,
        coverage: coverage::measure(history, &index.final_reads()),
        availability: coverage::availability(history),
        delivery: delivery::measure(&index),
    }
}

fn count(history: &History, index: &Index<'_>) -> Counts {
    let mut counts = Counts {
        operations: history.operations.len() as u64,
        partitions: index.keys.len() as u64,
        ..Counts::default()
    };
    for operation in &history.operations {
        if let Call::Send(_) = operation.call {
            match operation.outcome {
                Outcome::Ok(_) => counts.writes_ok += 1,
                Outcome::Fail { .. } => counts.writes_failed += 1,
                Outcome::Unknown { .. } => counts.writes_unknown += 1,
            }
        }
        let reads = operation.reads();
        if !reads.is_empty() {
            counts.reads_ok += 1;
            let values = reads.iter().map(|read| read.values.len() as u64);
            counts.values_read += values.sum::<u64>();
        }
    }
    counts.writes_recovered = index
        .writes
        .iter()
        .filter(|write| write.is_read() && write.fate == index::Fate::Unknown)
        .count() as u64;
    counts
}
