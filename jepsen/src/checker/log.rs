//! What the log itself shows: values that are lost, double, moved, impossible or out of order.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{Call, FinalSource, TxnId};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, NONE, Stranger, Write};
use super::legal::{Allowed, Terms};

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    conflicts(index, terms, found);
    strangers(index, found);
    foreign(index, found);
    let torn = torn_transactions(index, terms, found);
    let commits = commits(index);
    let moved: HashSet<u32> = index.strangers.iter().map(|seen| seen.write).collect();
    let ends: Vec<Option<i64>> = index.logs.iter().map(|log| log.read_end()).collect();
    for (id, write) in index.writes.iter().enumerate() {
        if write.is_read() {
            read_write(index, terms, found, id as u32, write, &commits);
        } else if write.fate == Fate::Acked
            && !index.deleted[write.key as usize]
            && !moved.contains(&(id as u32))
            && !write.txn.is_some_and(|txn| torn.contains(&txn))
        {
            unread_write(index, terms, found, write, ends[write.key as usize]);
        }
    }
    order(index, terms, found);
}

fn anomaly<'i>(index: &'i Index<'_>, write: &Write, what: String, proof: Vec<u32>) -> Anomaly<'i> {
    Anomaly {
        key: Some(index.key(write.key)),
        what,
        offsets: write.offset().into_iter().collect(),
        values: vec![write.value],
        proof,
    }
}

/// Two values at one offset.
fn conflicts(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    for (key, log) in index.logs.iter().enumerate() {
        if index.deleted[key] {
            // Names outlive topics: what an acknowledgement to a deleted topic meant is open.
            continue;
        }
        for conflict in &log.conflicts {
            let [first, second] = [conflict.first, conflict.second]
                .map(|slot| (slot, &index.writes[slot.write as usize]));
            // Shown to consumers twice: no setting allows that. Promised only: as for a lost write.
            let shown = first.0.reader != NONE && second.0.reader != NONE;
            let allowed = match shown {
                true => terms.committed_may_vanish(),
                false => terms.acked_may_vanish(Some(false)),
            };
            found.add(Class::InconsistentOffsets, allowed, || {
                let proof = |(slot, write): (super::index::Slot, &Write)| match slot.reader {
                    NONE => write.op,
                    reader => reader,
                };
                let (a, b) = (first.1.value, second.1.value);
                Anomaly {
                    key: Some(&index.keys[key]),
                    what: format!("offset {} held {a} and {b}", conflict.offset),
                    offsets: vec![conflict.offset],
                    values: vec![a, b],
                    proof: vec![proof(first), proof(second), first.1.op, second.1.op],
                }
            });
        }
    }
}

/// Values in a partition that they were not sent to.
fn strangers(index: &Index<'_>, found: &mut Collector<'_>) {
    for seen in &index.strangers {
        let write = &index.writes[seen.write as usize];
        let (home, here) = (index.key(write.key), index.key(seen.key));
        let same_name = home.topic == here.topic && home.partition == here.partition;
        // Producers and consumers name a topic, not one creation of it. What was on its way while
        // the topic was made again may belong to either.
        let on_its_way = same_name
            && match home.incarnation < here.incarnation {
                true => overlaps_creation(index, seen.key, write.op),
                false => overlaps_creation(index, write.key, seen.op),
            };
        if on_its_way {
            continue;
        }
        let (class, what) = match same_name && home.incarnation < here.incarnation {
            true => (
                Class::OldIncarnation,
                format!(
                    "{} was written to {home} before {here} was created, and read in it",
                    write.value
                ),
            ),
            false => (
                Class::WrongPartition,
                format!("{} was sent to {home} and read in {here}", write.value),
            ),
        };
        found.add(class, None, || stranger(index, seen, what));
    }
}

fn stranger<'i>(index: &'i Index<'_>, seen: &Stranger, what: String) -> Anomaly<'i> {
    let write = &index.writes[seen.write as usize];
    Anomaly {
        key: Some(index.key(seen.key)),
        what,
        offsets: vec![seen.offset],
        values: vec![write.value],
        proof: vec![write.op, seen.op],
    }
}

/// Whether an operation had not ended when this incarnation's creation was asked for.
fn overlaps_creation(index: &Index<'_>, key: u32, op: u32) -> bool {
    let created = index.created[key as usize];
    op != NONE && created.is_some_and(|created| index.op(op).end() >= created)
}

/// Records that nobody wrote.
fn foreign(index: &Index<'_>, found: &mut Collector<'_>) {
    for (position, op) in index.history.operations.iter().enumerate() {
        for read in op.reads() {
            for record in &read.foreign {
                found.add(Class::ImpossibleValue, None, || {
                    let place = match op.call {
                        Call::FinalRead {
                            source: FinalSource::Replica(node),
                            ..
                        } => format!(" on node {node}"),
                        _ => String::new(),
                    };
                    Anomaly {
                        key: Some(&read.key),
                        what: format!(
                            "offset {}{place} holds a record that nobody wrote: {} ({})",
                            record.offset, record.reason, record.bytes
                        ),
                        offsets: vec![record.offset],
                        values: Vec::new(),
                        proof: vec![position as u32],
                    }
                });
            }
        }
    }
}

/// A value that was read: was it right that it was, is it where it should be, is it still there?
fn read_write(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    id: u32,
    write: &Write,
    commits: &HashMap<TxnId, u32>,
) {
    let proof = vec![write.op, write.reader];
    let value = write.value;
    let mut report = |class: Class, allowed: Allowed, what: &dyn Fn() -> String| {
        found.add(class, allowed, || {
            anomaly(index, write, what(), proof.clone())
        });
    };
    match write.fate {
        Fate::Stray => {
            report(Class::ImpossibleValue, None, &|| {
                format!("{value} was read, but never sent")
            });
            return;
        }
        Fate::Failed => report(Class::AbortedRead, None, &|| {
            format!("{value} was read, but its send has certainly failed")
        }),
        Fate::Aborted => report(Class::AbortedRead, terms.uncommitted_read(), &|| {
            format!("{value} was read, but its transaction was aborted")
        }),
        Fate::Acked | Fate::Unknown => {}
    }
    if write.read_at < index.op(write.op).invoked {
        report(Class::ImpossibleValue, None, &|| {
            format!("{value} was read before it was sent")
        });
    }
    if write.first_offset < write.last_offset {
        report(Class::Duplicate, terms.duplicate(), &|| {
            format!(
                "{value} lies at offset {} and again at offset {}",
                write.first_offset, write.last_offset
            )
        });
    }
    if let Some(acked) = write.acked_offset
        && !lies_at(index, write, id, acked)
    {
        report(Class::OffsetMismatch, None, &|| {
            format!(
                "{value} was acknowledged at offset {acked}, but lies at offset {}",
                write.first_offset
            )
        });
    }
    if let Some(txn) = write.txn
        && write.fate != Fate::Aborted
    {
        let commit = commits.get(&txn).copied();
        let early = commit.is_none_or(|commit| write.read_at < index.op(commit).invoked);
        if early {
            report(Class::PrecommittedRead, terms.uncommitted_read(), &|| {
                format!("{value} was read before txn {} was committed", txn.0)
            });
        }
    }
    let final_read = index.client_finals[write.key as usize];
    if final_read == NONE || write.in_final || index.deleted[write.key as usize] {
        return;
    }
    let removed = write.last_offset < index.log_starts[write.key as usize];
    let trims = index.trims[write.key as usize];
    if trims && removed {
        // Removed on purpose.
        return;
    }
    let terms = &terms.of(trims);
    let proof = vec![write.op, write.reader, final_read];
    match write.fate {
        Fate::Acked => {
            let allowed = match terms.acked_may_vanish(Some(removed)) {
                // It was shown to a consumer: more was promised than by the acknowledgement.
                Some(_) => terms.read_may_vanish(removed),
                None => None,
            };
            found.add(Class::FinalLost, allowed, || {
                let what = format!("{value} was acknowledged and read, and is gone after the heal");
                anomaly(index, write, what, proof)
            });
        }
        Fate::Unknown => found.add(Class::DirtyRead, terms.read_may_vanish(removed), || {
            let what = format!("{value} was read, but the final log does not hold it");
            anomaly(index, write, what, proof)
        }),
        // What should never have been read is not missed.
        Fate::Failed | Fate::Aborted | Fate::Stray => {}
    }
}

fn lies_at(index: &Index<'_>, write: &Write, id: u32, offset: i64) -> bool {
    let log = index.log(write.key);
    // Most values lie at one offset only.
    if write.first_offset == offset || log.slot(offset).write == id {
        return true;
    }
    let mut conflicts = log.conflicts.iter();
    conflicts.any(|seen| seen.offset == offset && seen.second.write == id)
}

/// An acknowledged value that nobody read has exactly one name.
fn unread_write(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    write: &Write,
    read_end: Option<i64>,
) {
    let key = write.key as usize;
    let start = index.log_starts[key];
    let removed = write.acked_offset.map(|offset| offset < start);
    if index.trims[key] && removed == Some(true) {
        return;
    }
    let terms = &terms.of(index.trims[key]);
    let allowed = terms.acked_may_vanish(removed);
    let final_read = index.client_finals[key];
    let value = write.value;
    let passed = write.acked_offset.filter(|&offset| Some(offset) < read_end);
    if let Some(offset) = passed {
        found.add(Class::LostWrite, allowed, || {
            let holder = index.logs[key].slot(offset);
            let what = match holder.reader {
                NONE => format!("{value} was acknowledged at offset {offset}; later ones were read, it never was"),
                _ => {
                    let other = index.writes[holder.write as usize].value;
                    format!("{value} was acknowledged at offset {offset}, where {other} lies")
                }
            };
            anomaly(index, write, what, vec![write.op, holder.reader, final_read])
        });
    } else if final_read != NONE {
        found.add(Class::FinalLost, allowed, || {
            let end = index.client_final(write.key).map_or(0, |read| read.next);
            let what = format!("{value} was acknowledged, but the log that ends at {end} lacks it");
            anomaly(index, write, what, vec![write.op, final_read])
        });
    } else {
        // Consumers lag; only after the heal is everybody expected to have seen everything.
        let cut_off = index.history.healed().is_none();
        let cut_off = cut_off.then_some("the history ends before everything was healed and read");
        let starved = index.history.starved_after_heal();
        let starved = starved.then_some("the harness did not get the processor to read to the end");
        found.add(Class::Unseen, allowed.or(cut_off).or(starved), || {
            let what = format!("{value} was acknowledged and never read; nobody read to the end");
            anomaly(index, write, what, vec![write.op])
        });
    }
}

/// Which operation committed each transaction.
fn commits(index: &Index<'_>) -> HashMap<TxnId, u32> {
    let operations = index.history.operations.iter().enumerate();
    operations
        .filter_map(|(position, op)| match op.call {
            Call::EndTxn { txn, commit: true } => Some((txn, position as u32)),
            _ => None,
        })
        .collect()
}

/// Transactions of which a part is visible and another is not.
fn torn_transactions(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
) -> HashSet<TxnId> {
    #[derive(Default)]
    struct Parts {
        visible: Option<u32>,
        missing: Option<u32>,
    }
    let mut parts: BTreeMap<TxnId, Parts> = BTreeMap::new();
    for (id, write) in index.writes.iter().enumerate() {
        let Some(txn) = write.txn else { continue };
        let whole = index.client_finals[write.key as usize] != NONE;
        if matches!(write.fate, Fate::Aborted | Fate::Failed) || !whole {
            continue;
        }
        let parts = parts.entry(txn).or_default();
        if write.in_final {
            parts.visible.get_or_insert(id as u32);
        } else if index.op(write.op).is_ok() {
            parts.missing.get_or_insert(id as u32);
        }
    }
    let mut torn = HashSet::new();
    for (txn, parts) in parts {
        let (Some(visible), Some(missing)) = (parts.visible, parts.missing) else {
            continue;
        };
        torn.insert(txn);
        let [visible, missing] = [visible, missing].map(|id| &index.writes[id as usize]);
        found.add(Class::TornTxn, terms.torn_txn(), || {
            let what = format!(
                "txn {}: {} is in the final log, {} is not",
                txn.0, visible.value, missing.value
            );
            let final_read = index.client_finals[missing.key as usize];
            anomaly(
                index,
                missing,
                what,
                vec![visible.op, missing.op, final_read],
            )
        });
    }
    torn
}

/// Values of one producer session lie in the order in which they were sent.
fn order(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    let mut last: HashMap<(u32, u64, u32), u32> = HashMap::new();
    for (id, write) in index.writes.iter().enumerate() {
        if write.op == NONE || !write.is_read() {
            continue;
        }
        let process = index.op(write.op).process.0;
        let before = last.insert((process, write.session, write.key), id as u32);
        let Some(before) = before.map(|before| &index.writes[before as usize]) else {
            continue;
        };
        // The same offset twice is an inconsistency, and reported as one.
        if write.first_offset < before.first_offset {
            found.add(Class::Reordered, terms.reordered(), || Anomaly {
                key: Some(index.key(write.key)),
                what: format!(
                    "{} was sent before {}, but lies at offset {} behind {}",
                    before.value, write.value, before.first_offset, write.first_offset
                ),
                offsets: vec![write.first_offset, before.first_offset],
                values: vec![before.value, write.value],
                proof: vec![before.op, write.op, before.reader],
            });
        }
    }
}
