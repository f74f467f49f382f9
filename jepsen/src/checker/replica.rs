//! The final reads of all replicas: once everything is healed, they hold the same.

use std::cmp::Ordering;

use crate::history::PartitionRead;
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Index, NONE};
use super::legal::Terms;

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    for key in 0..index.keys.len() as u32 {
        if index.deleted[key as usize] {
            continue;
        }
        let replicas = &index.replica_finals[key as usize];
        let client = index.client_finals[key as usize];
        // The leader's log as a client reads it is the measure; without it, the first replica's.
        let client = (client != NONE).then_some((None, client));
        let replicas = replicas.iter().map(|(node, op)| (Some(*node), *op));
        let sources: Vec<Source> = client.into_iter().chain(replicas).collect();
        let Some((measure, others)) = sources.split_first() else {
            continue;
        };
        for other in others {
            compare(index, terms, found, key, *measure, *other);
        }
        compare_epochs(index, found, key, &sources);
    }
}

/// A final read: of which node, if of one, and the operation.
type Source = (Option<u32>, u32);

fn compare(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    key: u32,
    measure: Source,
    other: Source,
) {
    let [Some(left), Some(right)] = [measure, other].map(|(_, op)| index.op(op).reads().first())
    else {
        return;
    };
    let mut report = |class: Class, offset: i64, what: String| {
        let allowed = match class {
            Class::ReplicaIncomplete => terms.skip_within_read(),
            _ => None,
        };
        found.add(class, allowed, || Anomaly {
            key: Some(index.key(key)),
            what,
            offsets: vec![offset],
            values: Vec::new(),
            proof: vec![measure.1, other.1],
        });
    };
    if right.next < left.next {
        let what = format!(
            "{} ends at {}, {} at {}",
            name(other),
            right.next,
            name(measure),
            left.next
        );
        report(Class::ReplicaIncomplete, right.next, what);
    }
    // Both were read from their start; where that differs, only the common part is compared.
    let from = start(left).max(start(right));
    let end = left.next.min(right.next);
    let part = |read: &PartitionRead| {
        let values = read.values.iter().copied();
        let mut part: Vec<_> = values
            .filter(|(offset, _)| (from..end).contains(offset))
            .collect();
        // As delivered is the consumer checks' matter.
        part.sort_unstable();
        part
    };
    let (left_part, right_part) = (part(left), part(right));
    let (mut l, mut r) = (0, 0);
    loop {
        let pair = (left_part.get(l), right_part.get(r));
        let order = match pair {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.0.cmp(&right.0),
        };
        match (order, pair) {
            (Ordering::Less, (Some((offset, value)), _)) => {
                let what = format!("{} lacks {value} at offset {offset}", name(other));
                report(Class::ReplicaIncomplete, *offset, what);
                l += 1;
            }
            (Ordering::Greater, (_, Some((offset, value)))) => {
                let what = format!(
                    "{} holds {value} at offset {offset}, {} holds nothing there",
                    name(other),
                    name(measure)
                );
                report(Class::ReplicaDivergence, *offset, what);
                r += 1;
            }
            (_, (Some((offset, ours)), Some((_, theirs)))) => {
                if ours != theirs {
                    let what = format!(
                        "offset {offset}: {} holds {ours}, {} holds {theirs}",
                        name(measure),
                        name(other)
                    );
                    report(Class::ReplicaDivergence, *offset, what);
                }
                l += 1;
                r += 1;
            }
            _ => break,
        }
    }
}

/// Who says at which offset which leader epoch begins: whoever says it first is the measure.
fn compare_epochs(index: &Index<'_>, found: &mut Collector<'_>, key: u32, sources: &[Source]) {
    let read = |source: Source| index.op(source.1).reads().first();
    let mut told = sources
        .iter()
        .filter_map(|source| Some((*source, read(*source)?)))
        .filter(|(_, read)| !read.epochs.is_empty());
    let Some((measure, left)) = told.next() else {
        return;
    };
    for (other, right) in told {
        let from = start(left).max(start(right));
        let end = left.next.min(right.next);
        let Some((offset, ours, theirs)) = epoch_difference(left, right, from, end) else {
            continue;
        };
        found.add(Class::ReplicaDivergence, None, || Anomaly {
            key: Some(index.key(key)),
            what: format!(
                "offset {offset} is of epoch {ours} for {} and of epoch {theirs} for {}",
                name(measure),
                name(other)
            ),
            offsets: vec![offset],
            values: Vec::new(),
            proof: vec![measure.1, other.1],
        });
    }
}

fn name(source: Source) -> String {
    match source.0 {
        Some(node) => format!("node {node}"),
        None => "the leader".to_owned(),
    }
}

fn start(read: &PartitionRead) -> i64 {
    read.log_start.unwrap_or(read.from)
}

/// The first offset of a common range to which two replicas give different leader epochs.
fn epoch_difference(
    left: &PartitionRead,
    right: &PartitionRead,
    from: i64,
    end: i64,
) -> Option<(i64, i32, i32)> {
    let epoch_at = |read: &PartitionRead, offset: i64| {
        let begun = read.epochs.iter().take_while(|(first, _)| *first <= offset);
        begun.last().map(|(_, epoch)| *epoch)
    };
    let begins = left.epochs.iter().chain(&right.epochs);
    begins
        .map(|(offset, _)| *offset.max(&from))
        .filter(|offset| *offset < end)
        .find_map(|offset| {
            let ours = epoch_at(left, offset)?;
            let theirs = epoch_at(right, offset)?;
            (ours != theirs).then_some((offset, ours, theirs))
        })
}
