//! What one consumer was shown: within a read and from one poll to the next, nothing is left out
//! and nothing comes back.

use std::collections::{HashMap, HashSet};

use crate::history::{Call, Key, PartitionRead, TxnId};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, NONE, is_replica_read};
use super::legal::Terms;

/// Offsets between two that are looked through.
const OFFSETS_SEARCHED: i64 = 1_000;

/// The last value that a process was shown of a partition.
struct Position {
    rank: u32,
    offset: i64,
    op: u32,
}

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    let mut positions: HashMap<(u32, u32), Position> = HashMap::new();
    // By process, partition and transaction: what it was shown a part of.
    let mut shown: Shown = HashSet::new();
    for (op_position, op) in index.history.operations.iter().enumerate() {
        let op_position = op_position as u32;
        let process = op.process.0;
        match &op.call {
            Call::Assign { keys } => {
                let kept: HashSet<&Key> = keys.iter().collect();
                positions
                    .retain(|&(owner, key), _| owner != process || kept.contains(index.key(key)));
            }
            Call::Seek { key, .. } => {
                if let Some(key) = index.key_id(key) {
                    positions.remove(&(process, key));
                }
            }
            Call::Poll { .. } => {
                for read in op.reads() {
                    let Some(key) = index.key_id(&read.key) else {
                        continue;
                    };
                    let terms = &terms.of(index.trims[key as usize]);
                    between(index, terms, found, op_position, read, &positions, process);
                    let last = positions.get(&(process, key));
                    let mut last = last.map(|position| position.offset);
                    for &(offset, value) in &read.values {
                        let skipped = last.map(|last| (last, offset));
                        parted(
                            index,
                            terms,
                            found,
                            op_position,
                            (process, key),
                            skipped,
                            &shown,
                        );
                        if let Some(txn) = index.txn_of(value) {
                            shown.insert((process, key, txn));
                        }
                        last = Some(offset);
                    }
                    if let Some(end) = within(index, terms, found, op_position, read) {
                        positions.insert((process, key), end);
                    }
                }
            }
            Call::ReadAll { .. } | Call::FinalRead { .. } if !is_replica_read(op) => {
                for read in op.reads() {
                    within(index, terms, found, op_position, read);
                    if let Call::ReadAll { .. } = op.call {
                        whole(index, terms, found, op_position, read);
                    }
                }
            }
            _ => {}
        }
    }
}

/// By process, partition and transaction.
type Shown = HashSet<(u32, u32, TxnId)>;

/// A consumer that was shown a part of a transaction and is shown what lies behind it has missed
/// the rest (G1b).
fn parted(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    op: u32,
    (process, key): (u32, u32),
    skipped: Option<(i64, i64)>,
    shown: &Shown,
) {
    let Some((after, before)) = skipped.filter(|_| !shown.is_empty()) else {
        return;
    };
    let log = index.log(key);
    let end = before.min(after.saturating_add(OFFSETS_SEARCHED));
    for offset in after.saturating_add(1)..end {
        let slot = log.slot(offset);
        if slot.write == NONE || slot.reader == NONE {
            continue;
        }
        let write = &index.writes[slot.write as usize];
        let Some(txn) = write
            .txn
            .filter(|txn| shown.contains(&(process, key, *txn)))
        else {
            continue;
        };
        if write.fate != Fate::Acked {
            continue;
        }
        let allowed = terms.uncommitted_read().or(terms.skip_between_polls());
        found.add(Class::IntermediateRead, allowed, || Anomaly {
            key: Some(index.key(key)),
            what: format!(
                "process {process} was shown a part of txn {}, and then offset {before} without {} at \
                 offset {offset}, which is of it too",
                txn.0, write.value
            ),
            offsets: vec![offset, before],
            values: vec![write.value],
            proof: vec![op, write.op, slot.reader],
        });
        return;
    }
}

/// One poll against the one before.
fn between(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    op: u32,
    read: &PartitionRead,
    positions: &HashMap<(u32, u32), Position>,
    process: u32,
) {
    let Some(&(offset, value)) = read.values.first() else {
        return;
    };
    let Some(key) = index.key_id(&read.key) else {
        return;
    };
    let Some(last) = positions.get(&(process, key)) else {
        return;
    };
    let Some(rank) = index.log(key).rank(offset) else {
        return;
    };
    if rank == last.rank + 1 {
        return;
    }
    let (class, allowed, how) = match rank > last.rank {
        true => {
            let left_out = rank - last.rank - 1;
            let how = format!("leaving out {left_out} values that exist");
            (Class::PollSkip, terms.skip_between_polls(), how)
        }
        false => (
            Class::NonmonotonicPoll,
            terms.back_between_polls(),
            "going back".to_owned(),
        ),
    };
    found.add(class, allowed, || Anomaly {
        key: Some(&read.key),
        what: format!(
            "process {process} was at offset {} and was then shown offset {offset}, {how}",
            last.offset
        ),
        offsets: vec![last.offset, offset],
        values: vec![value],
        proof: vec![last.op, op, witness(index, key, last.offset, offset)],
    });
}

/// The values of one read against each other; returns where it ends.
fn within(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    op: u32,
    read: &PartitionRead,
) -> Option<Position> {
    let key = index.key_id(&read.key)?;
    let log = index.log(key);
    let mut last: Option<(u32, i64)> = None;
    for &(offset, value) in &read.values {
        let Some(rank) = log.rank(offset) else {
            continue;
        };
        if let Some((last_rank, last_offset)) = last
            && rank != last_rank + 1
        {
            let (class, allowed) = match rank > last_rank {
                true => (Class::IntPollSkip, terms.skip_within_read()),
                false => (Class::IntNonmonotonicPoll, None),
            };
            found.add(class, allowed, || Anomaly {
                key: Some(&read.key),
                what: format!("one read went from offset {last_offset} to offset {offset}"),
                offsets: vec![last_offset, offset],
                values: vec![value],
                proof: vec![op, witness(index, key, last_offset, offset)],
            });
        }
        last = Some((rank, offset));
    }
    last.map(|(rank, offset)| Position { rank, offset, op })
}

/// A read of a whole log leaves nothing out at either end.
fn whole(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    op: u32,
    read: &PartitionRead,
) {
    let Some(key) = index.key_id(&read.key) else {
        return;
    };
    let log = index.log(key);
    let (from, next) = match (read.values.first(), read.values.last()) {
        (Some(&(first, _)), Some(&(last, _))) => (first, last.saturating_add(1)),
        _ => (read.next, read.next),
    };
    let before = log.read_below(from) - log.read_below(read.from.min(from));
    let behind = log.read_below(read.next.max(next)) - log.read_below(next);
    if before == 0 && behind == 0 {
        return;
    }
    found.add(Class::IntPollSkip, terms.skip_within_read(), || Anomaly {
        key: Some(&read.key),
        what: format!(
            "a whole read from {} to before {} leaves out {before} values at its start and {behind} at its end",
            read.from, read.next
        ),
        offsets: vec![from, next],
        values: Vec::new(),
        proof: vec![op, witness(index, key, read.from.saturating_sub(1), from)],
    });
}

/// An operation that read something between two offsets.
fn witness(index: &Index<'_>, key: u32, after: i64, before: i64) -> u32 {
    let log = index.log(key);
    let end = before.min(after.saturating_add(OFFSETS_SEARCHED));
    (after.saturating_add(1)..end)
        .map(|offset| log.slot(offset).reader)
        .find(|&reader| reader != NONE)
        .unwrap_or(NONE)
}
