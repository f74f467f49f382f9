//! Gathers anomalies: all are counted, the first of each class are kept with their evidence.

use std::collections::BTreeMap;

use crate::history::{Answer, Call, FinalSource, History, Key, Operation, Outcome, Value};
use crate::verdict::{Class, EXAMPLES_MAX, Evidence, Example, Finding};

use super::index::NONE;

/// Values of one read that are spelled out in evidence.
const VALUES_SHOWN: usize = 6;

pub struct Collector<'h> {
    history: &'h History,
    findings: BTreeMap<(Class, Option<&'static str>), Finding>,
}

/// What was found, before its evidence is spelled out.
pub struct Anomaly<'a> {
    pub key: Option<&'a Key>,
    pub what: String,
    pub offsets: Vec<i64>,
    pub values: Vec<Value>,
    /// Positions of the operations that prove it, in any order; [`NONE`] is left out.
    pub proof: Vec<u32>,
}

impl<'h> Collector<'h> {
    pub fn new(history: &'h History) -> Collector<'h> {
        Collector {
            history,
            findings: BTreeMap::new(),
        }
    }

    /// Counts one anomaly. `describe` is called only if it becomes an example.
    pub fn add<'a>(
        &mut self,
        class: Class,
        allowed: Option<&'static str>,
        describe: impl FnOnce() -> Anomaly<'a>,
    ) {
        let finding = self
            .findings
            .entry((class, allowed))
            .or_insert_with(|| Finding {
                class,
                count: 0,
                examples: Vec::new(),
                allowed_because: allowed.map(str::to_owned),
            });
        finding.count += 1;
        if finding.examples.len() < EXAMPLES_MAX {
            let anomaly = describe();
            finding.examples.push(Example {
                key: anomaly.key.cloned(),
                what: anomaly.what,
                evidence: evidence(self.history, anomaly.proof, anomaly.key, &anomaly.offsets),
                offsets: anomaly.offsets,
                values: anomaly.values,
            });
        }
    }

    pub fn count(&self, class: Class) -> u64 {
        let of_class = self.findings.values().filter(|found| found.class == class);
        of_class.map(|found| found.count).sum()
    }

    /// Violations, and what is allowed.
    pub fn finish(self) -> (Vec<Finding>, Vec<Finding>) {
        let findings = self.findings.into_values();
        findings.partition(|found| found.allowed_because.is_none())
    }
}

fn evidence(
    history: &History,
    mut proof: Vec<u32>,
    key: Option<&Key>,
    offsets: &[i64],
) -> Vec<Evidence> {
    proof.retain(|&position| position != NONE);
    proof.sort_unstable();
    proof.dedup();
    proof
        .into_iter()
        .filter_map(|position| history.operations.get(position as usize))
        .map(|op| Evidence {
            call: op.id,
            at: op.invoked,
            text: describe(op, key, offsets),
        })
        .collect()
}

/// An operation in a line: who, when, what, and how it ended. Of a read, what it returned of `about`.
fn describe(op: &Operation, about: Option<&Key>, offsets: &[i64]) -> String {
    let end = match op.completed {
        Some(at) => format!("{:.3}", at.seconds()),
        None => "never".to_owned(),
    };
    let who = format!(
        "{:.3}..{end} s, worker {}, process {}",
        op.invoked.seconds(),
        op.worker.0,
        op.process.0
    );
    let call = match &op.call {
        Call::Send(send) => match send.txn {
            Some(txn) => format!("send {} to {} in txn {}", send.value, send.key, txn.0),
            None => format!("send {} to {}", send.value, send.key),
        },
        Call::Poll { .. } => "poll".to_owned(),
        Call::ReadAll { key } => format!("read all of {key}"),
        Call::FinalRead { key, source } => match source {
            FinalSource::Client => format!("final read of {key} by a fresh client"),
            FinalSource::Replica(node) => format!("final read of {key} from node {node}"),
        },
        Call::LatestOffset { key } => format!("latest offset of {key}"),
        Call::Leadership { key } => format!("leader of {key}"),
        Call::CreateTopic { key, .. } => {
            format!("create {}, number {}", key.topic, key.incarnation)
        }
        Call::DeleteTopic { key } => format!("delete {}, number {}", key.topic, key.incarnation),
        Call::Assign { keys } => format!("assign {} partitions", keys.len()),
        Call::Seek { key, offset } => format!("seek {key} to {offset}"),
        Call::EndTxn { txn, commit } => match commit {
            true => format!("commit txn {}", txn.0),
            false => format!("abort txn {}", txn.0),
        },
        Call::Crash => "crash".to_owned(),
        Call::GroupJoin { group } => format!("join {group}"),
        Call::GroupAssigned {
            group,
            generation,
            keys,
            ..
        } => format!(
            "{group} gives it {} in {}",
            about.map_or(format!("{} partitions", keys.len()), Key::to_string),
            generation.map_or("some generation".to_owned(), |number| format!(
                "generation {number}"
            ))
        ),
        Call::GroupRevoked { group, keys } => {
            format!("gives {} partitions of {group} up", keys.len())
        }
        Call::GroupCommit {
            group,
            generation,
            key,
            offset,
        } => {
            let from = generation.map_or("some generation".to_owned(), |number| {
                format!("generation {number}")
            });
            format!("commit {offset} of {key} to {group}, assigned in {from}")
        }
        Call::GroupPositions { group } => format!("positions of {group}"),
        Call::GroupDrain { group, key } => format!("read {key} to the end as {group}"),
        Call::Admin { what } => what.clone(),
    };
    let outcome = match &op.outcome {
        Outcome::Fail { error } => format!("failed: {error}"),
        Outcome::Unknown { error } => format!("unknown: {error}"),
        Outcome::Ok(Answer::Sent { offset: Some(at) }) => format!("acknowledged at offset {at}"),
        Outcome::Ok(Answer::Sent { offset: None }) => "acknowledged without an offset".to_owned(),
        Outcome::Ok(Answer::Latest { offset }) => format!("answered {offset}"),
        Outcome::Ok(Answer::Leadership { node, epoch }) => {
            let node = node.map_or("no node".to_owned(), |node| format!("node {node}"));
            format!("answered {node} in epoch {epoch}")
        }
        Outcome::Ok(Answer::Done) => "ok".to_owned(),
        Outcome::Ok(Answer::Positions(positions)) => {
            let about = |key: &Key| about.is_none_or(|about| about == key);
            let shown: Vec<String> = positions
                .iter()
                .filter(|(key, _)| about(key))
                .map(|(key, offset)| format!("{key} at {offset}"))
                .collect();
            format!("answered {}", shown.join(" "))
        }
        Outcome::Ok(Answer::Read(reads)) => {
            let reads: Vec<String> = reads
                .iter()
                .filter(|read| about.is_none_or(|about| *about == read.key))
                .map(|read| {
                    let around = offsets.first().copied();
                    format!(
                        "{} from {} to before {}: {}",
                        read.key,
                        read.from,
                        read.next,
                        values_near(&read.values, around)
                    )
                })
                .collect();
            match reads.is_empty() {
                true => "nothing".to_owned(),
                false => reads.join("; "),
            }
        }
    };
    format!("{who}: {call} -> {outcome}")
}

/// Some values of a read, those near an offset first of all.
fn values_near(values: &[(i64, Value)], around: Option<i64>) -> String {
    let middle = around
        .and_then(|around| values.iter().position(|(offset, _)| *offset >= around))
        .unwrap_or(values.len().saturating_sub(1));
    let from = middle.saturating_sub(VALUES_SHOWN / 2);
    let shown: Vec<String> = values
        .iter()
        .skip(from)
        .take(VALUES_SHOWN)
        .map(|(offset, value)| format!("{offset}={value}"))
        .collect();
    let more = values.len() - shown.len();
    match more {
        0 => shown.join(" "),
        more => format!("{} ({more} others)", shown.join(" ")),
    }
}
