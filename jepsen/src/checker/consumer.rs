//! What one consumer was shown: within a read and from one poll to the next, nothing is left out
//! and nothing comes back.

use std::collections::{HashMap, HashSet};

use crate::history::{Call, Key, PartitionRead};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Index, is_replica_read};
use super::legal::Terms;

/// The last value that a process was shown of a partition.
struct Position {
    rank: u32,
    offset: i64,
    op: u32,
}

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    let mut positions: HashMap<(u32, u32), Position> = HashMap::new();
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
                    between(index, terms, found, op_position, read, &positions, process);
                    if let Some(end) = within(index, terms, found, op_position, read)
                        && let Some(key) = index.key_id(&read.key)
                    {
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
    const OFFSETS_SEARCHED: i64 = 1_000;
    let log = index.log(key);
    let end = before.min(after.saturating_add(OFFSETS_SEARCHED));
    (after.saturating_add(1)..end)
        .map(|offset| log.slot(offset).reader)
        .find(|&reader| reader != super::index::NONE)
        .unwrap_or(super::index::NONE)
}
