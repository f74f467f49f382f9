//! What groups promise: one owner of a partition in each generation, no commit of a generation that
//! is over, a position that only grows and never skips what nobody was handed.
//!
//! Only what is certain counts. A member learns of its generation after the coordinator has made
//! it, and of a commit's success after it took hold, so of two events the one counts as earlier
//! whose *end* lies before the other's *beginning*.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{Answer, Call, Key, Nanos, Operation, Outcome, Value};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, NONE};

/// The highest number that was known at each moment, and the operation that said so.
#[derive(Default)]
struct Highest {
    /// By time, ascending; the numbers ascend as well once it is sealed.
    points: Vec<(Nanos, i64, u32)>,
}

impl Highest {
    fn note(&mut self, at: Nanos, number: i64, op: u32) {
        self.points.push((at, number, op));
    }

    fn seal(&mut self) {
        self.points.sort_unstable();
        let mut highest = (i64::MIN, NONE);
        for (_, number, op) in &mut self.points {
            if *number > highest.0 {
                highest = (*number, *op);
            }
            (*number, *op) = highest;
        }
    }

    /// Before this moment.
    fn before(&self, at: Nanos) -> Option<(i64, u32)> {
        let behind = self.points.partition_point(|point| point.0 < at);
        let last = self.points.get(behind.checked_sub(1)?)?;
        Some((last.1, last.2))
    }
}

/// One partition, as one group reads it.
#[derive(Default)]
struct Line {
    /// Positions that are committed for certain, from when on.
    committed: Highest,
    /// Positions that somebody has begun to commit: the group can be nowhere else.
    tried: Highest,
    /// Generations in which a member has had it, or has committed.
    generations: Highest,
}

type Lines<'h> = HashMap<(&'h str, &'h Key), Line>;

pub fn check(index: &Index<'_>, found: &mut Collector<'_>) {
    let operations = &index.history.operations;
    if !operations.iter().any(|op| group_of(&op.call).is_some()) {
        return;
    }
    let (lines, joined) = gather(operations);
    owners(operations, found);
    commits(operations, &lines, found);
    joins(operations, &joined, found);
    starts(index, &lines, found);
    positions(index, &lines, found);
    consumed(index, found);
}

fn group_of(call: &Call) -> Option<&str> {
    match call {
        Call::GroupJoin { group }
        | Call::GroupAssigned { group, .. }
        | Call::GroupRevoked { group, .. }
        | Call::GroupCommit { group, .. }
        | Call::GroupPositions { group }
        | Call::GroupDrain { group, .. } => Some(group),
        _ => None,
    }
}

/// Partitions by group, and each group's generations.
fn gather(operations: &[Operation]) -> (Lines<'_>, HashMap<&str, Highest>) {
    let mut lines = Lines::new();
    let mut joined: HashMap<&str, Highest> = HashMap::new();
    for (position, op) in operations.iter().enumerate() {
        let number = position as u32;
        match &op.call {
            Call::GroupAssigned {
                group,
                generation: Some(generation),
                keys,
                ..
            } => {
                let generation = i64::from(*generation);
                let all = joined.entry(group).or_default();
                all.note(op.end(), generation, number);
                for key in keys {
                    let line = lines.entry((group, key)).or_default();
                    line.generations.note(op.end(), generation, number);
                }
            }
            Call::GroupCommit {
                group,
                generation,
                key,
                offset,
            } if !matches!(op.outcome, Outcome::Fail { .. }) => {
                let line = lines.entry((group, key)).or_default();
                line.tried.note(op.invoked, *offset, number);
                if op.is_ok() {
                    line.committed.note(op.end(), *offset, number);
                    if let Some(generation) = generation {
                        let generation = i64::from(*generation);
                        line.generations.note(op.end(), generation, number);
                    }
                }
            }
            Call::GroupPositions { group } => {
                for (key, offset) in answered(op) {
                    let line = lines.entry((group, key)).or_default();
                    line.committed.note(op.end(), *offset, number);
                }
            }
            _ => {}
        }
    }
    for line in lines.values_mut() {
        line.committed.seal();
        line.tried.seal();
        line.generations.seal();
    }
    joined.values_mut().for_each(Highest::seal);
    (lines, joined)
}

/// The positions that a question for them was answered with.
fn answered(op: &Operation) -> &[(Key, i64)] {
    match &op.outcome {
        Outcome::Ok(Answer::Positions(positions)) => positions,
        _ => &[],
    }
}

/// No two members have one partition in one generation.
fn owners(operations: &[Operation], found: &mut Collector<'_>) {
    let mut owners: HashMap<(&str, &Key, i32), (u32, u32)> = HashMap::new();
    for (position, op) in operations.iter().enumerate() {
        let Call::GroupAssigned {
            group,
            generation: Some(generation),
            keys,
            ..
        } = &op.call
        else {
            continue;
        };
        for key in keys {
            let mine = (op.process.0, position as u32);
            let first = *owners.entry((group, key, *generation)).or_insert(mine);
            if first.0 == mine.0 {
                continue;
            }
            found.add(Class::DoubleOwnership, None, || Anomaly {
                key: Some(key),
                what: format!(
                    "{group} gave {key} to the processes {} and {} in generation {generation}",
                    first.0, mine.0
                ),
                offsets: Vec::new(),
                values: Vec::new(),
                proof: vec![first.1, mine.1],
            });
        }
    }
}

/// No commit of a generation is taken once the partition was had in a newer one.
fn commits(operations: &[Operation], lines: &Lines<'_>, found: &mut Collector<'_>) {
    for (position, op) in operations.iter().enumerate() {
        let Call::GroupCommit {
            group,
            generation: Some(generation),
            key,
            offset,
        } = &op.call
        else {
            continue;
        };
        let newest = lines
            .get(&(group.as_str(), key))
            .and_then(|line| line.generations.before(op.invoked));
        let Some((newest, witness)) = newest else {
            continue;
        };
        if op.is_ok() && newest > i64::from(*generation) {
            found.add(Class::StaleCommit, None, || Anomaly {
                key: Some(key),
                what: format!(
                    "{group} took the commit of {offset} in {key} from generation {generation}, \
                     although generation {newest} had it before"
                ),
                offsets: vec![*offset],
                values: Vec::new(),
                proof: vec![witness, position as u32],
            });
        }
    }
}

/// Who joins gets no generation below what was given out before.
fn joins(operations: &[Operation], joined: &HashMap<&str, Highest>, found: &mut Collector<'_>) {
    // By process: the join whose first assignment is still to come.
    let mut joining: HashMap<u32, u32> = HashMap::new();
    for (position, op) in operations.iter().enumerate() {
        match &op.call {
            Call::GroupJoin { .. } => {
                joining.insert(op.process.0, position as u32);
            }
            Call::GroupAssigned {
                group, generation, ..
            } => {
                let Some(join) = joining.remove(&op.process.0) else {
                    continue;
                };
                let began = operations[join as usize].invoked;
                let before = joined.get(group.as_str()).and_then(|all| all.before(began));
                if let (Some(generation), Some((newest, witness))) = (generation, before)
                    && i64::from(*generation) < newest
                {
                    found.add(Class::GenerationGoesBack, None, || Anomaly {
                        key: None,
                        what: format!(
                            "who joined {group} after generation {newest} was there got \
                             generation {generation}"
                        ),
                        offsets: Vec::new(),
                        values: Vec::new(),
                        proof: vec![witness, join, position as u32],
                    });
                }
            }
            _ => {}
        }
    }
}

/// A member begins where the group was: at what was committed before it got the partition, or at
/// something newer that somebody has tried to commit.
fn starts(index: &Index<'_>, lines: &Lines<'_>, found: &mut Collector<'_>) {
    struct Start<'h> {
        group: &'h str,
        since: Nanos,
        op: u32,
    }
    // By process and partition: assignments of which nothing was read yet.
    let mut starts: HashMap<(u32, &Key), Start<'_>> = HashMap::new();
    for (position, op) in index.history.operations.iter().enumerate() {
        let process = op.process.0;
        match &op.call {
            Call::GroupAssigned {
                group, keys, since, ..
            } => {
                for key in keys {
                    let start = Start {
                        group,
                        since: *since,
                        op: position as u32,
                    };
                    starts.insert((process, key), start);
                }
            }
            Call::GroupRevoked { keys, .. } => {
                for key in keys {
                    starts.remove(&(process, key));
                }
            }
            Call::Poll { .. } => {
                for read in op.reads() {
                    let Some(&(first, _)) = read.values.first() else {
                        continue;
                    };
                    let Some(start) = starts.remove(&(process, &read.key)) else {
                        continue;
                    };
                    let line = lines.get(&(start.group, &read.key));
                    let place = Place {
                        group: start.group,
                        key: &read.key,
                        offset: first,
                        line,
                        proof: vec![start.op, position as u32],
                    };
                    place.check_lost(start.since, found);
                    place.check_ahead(op.end(), index, found);
                }
            }
            _ => {}
        }
    }
}

/// What the coordinator names as committed is between what was acknowledged and what was tried.
fn positions(index: &Index<'_>, lines: &Lines<'_>, found: &mut Collector<'_>) {
    for (position, op) in index.history.operations.iter().enumerate() {
        let Call::GroupPositions { group } = &op.call else {
            continue;
        };
        for (key, offset) in answered(op) {
            let place = Place {
                group,
                key,
                offset: *offset,
                line: lines.get(&(group.as_str(), key)),
                proof: vec![position as u32],
            };
            place.check_lost(op.invoked, found);
            place.check_ahead(op.end(), index, found);
        }
    }
}

/// Where a group goes on in a partition.
struct Place<'h, 'l> {
    group: &'h str,
    key: &'h Key,
    offset: i64,
    line: Option<&'l Line>,
    proof: Vec<u32>,
}

impl Place<'_, '_> {
    /// It was asked for after `asked`.
    fn check_lost(&self, asked: Nanos, found: &mut Collector<'_>) {
        let known = self.line.and_then(|line| line.committed.before(asked));
        let Some((committed, witness)) = known else {
            return;
        };
        if self.offset >= committed {
            return;
        }
        found.add(Class::LostPosition, None, || Anomaly {
            key: Some(self.key),
            what: format!(
                "{} went on at {} in {}, although {committed} was committed before",
                self.group, self.offset, self.key
            ),
            offsets: vec![self.offset, committed],
            values: Vec::new(),
            proof: [self.proof.clone(), vec![witness]].concat(),
        });
    }

    /// It was known at `known`.
    fn check_ahead(&self, known: Nanos, index: &Index<'_>, found: &mut Collector<'_>) {
        let tried = self.line.and_then(|line| line.tried.before(known));
        let (tried, witness) = tried.unwrap_or((0, NONE));
        let Some(log) = index.key_id(self.key).map(|key| index.log(key)) else {
            return;
        };
        let left_out = log.read_below(self.offset) - log.read_below(tried.min(self.offset));
        if left_out == 0 {
            return;
        }
        found.add(Class::PositionAhead, None, || Anomaly {
            key: Some(self.key),
            what: format!(
                "{} went on at {} in {}, although nobody committed more than {tried}: \
                 {left_out} values left out",
                self.group, self.offset, self.key
            ),
            offsets: vec![tried, self.offset],
            values: Vec::new(),
            proof: [self.proof.clone(), vec![witness]].concat(),
        });
    }
}

/// Every acknowledged value was handed to some member of each group that has read to the end.
fn consumed(index: &Index<'_>, found: &mut Collector<'_>) {
    let operations = &index.history.operations;
    let mut groups: HashMap<u32, &str> = HashMap::new();
    let mut handed: HashMap<&str, HashSet<Value>> = HashMap::new();
    // By group and partition: its end, and who has read up to there.
    let mut drained: BTreeMap<(&str, u32), (i64, u32)> = BTreeMap::new();
    for (position, op) in operations.iter().enumerate() {
        match (&op.call, &op.outcome) {
            (Call::GroupJoin { group }, _) => {
                groups.insert(op.process.0, group);
            }
            (Call::Poll { .. }, _) => {
                let Some(group) = groups.get(&op.process.0) else {
                    continue;
                };
                let values = op.reads().iter().flat_map(|read| &read.values);
                let handed = handed.entry(group).or_default();
                handed.extend(values.map(|(_, value)| *value));
            }
            (Call::GroupDrain { group, key }, Outcome::Ok(Answer::Latest { offset })) => {
                if let Some(key) = index.key_id(key) {
                    drained.insert((group, key), (*offset, position as u32));
                }
            }
            _ => {}
        }
    }
    let mut by_key: HashMap<u32, Vec<(&str, i64, u32)>> = HashMap::new();
    for ((group, key), (end, op)) in drained {
        by_key.entry(key).or_default().push((group, end, op));
    }
    for write in &index.writes {
        // What nobody can read is another finding.
        if write.fate != Fate::Acked || !write.is_read() {
            continue;
        }
        for (group, end, op) in by_key.get(&write.key).into_iter().flatten() {
            let is_handed = handed
                .get(group)
                .is_some_and(|handed| handed.contains(&write.value));
            if write.first_offset >= *end || is_handed {
                continue;
            }
            let key = index.key(write.key);
            found.add(Class::Unconsumed, None, || Anomaly {
                key: Some(key),
                what: format!(
                    "{group} has read {key} to {end}, and no member was handed {} at {}",
                    write.value, write.first_offset
                ),
                offsets: vec![write.first_offset],
                values: vec![write.value],
                proof: vec![write.op, write.reader, *op],
            });
        }
    }
}
