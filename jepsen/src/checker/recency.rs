//! What an answer had to know: everything that had ended before it was asked for.
//!
//! One partition's log only grows, so its state is its end, and a sweep over time decides: the
//! highest end known when a call was made is the least that the call may answer. This makes
//! `register` and `list-append` on one key linearizable, in n log n for the sorting of times.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{Answer, Call, Key, Nanos, Outcome};
use crate::verdict::Class;

use super::calm::{CALM_SECONDS, Calm};
use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, is_replica_read};
use super::legal::{Allowed, Terms};

/// Something was known from `at` on, because `op` ended then.
#[derive(Clone, Copy)]
pub struct Known {
    pub at: Nanos,
    pub end: i64,
    pub op: u32,
}

/// `op`, made at `at`, answered `end`.
struct Asked {
    at: Nanos,
    end: i64,
    op: u32,
    class: Class,
}

#[derive(Default)]
struct Timeline {
    /// Ends of the log that consumers saw, or were told.
    committed: Vec<Known>,
    /// Ends of the log by acknowledged writes.
    acked: Vec<Known>,
    asked: Vec<Asked>,
    /// `(epoch, high watermark)`, as reads were told.
    watermarks: Vec<(Nanos, Known, i32)>,
    /// The same of the last stable offset.
    stable: Vec<(Nanos, Known, i32)>,
    starts: Vec<(Nanos, Known)>,
}

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    let mut timelines: Vec<Timeline> = (0..index.keys.len()).map(|_| Timeline::default()).collect();
    gather(index, &mut timelines);
    for (key, mut timeline) in timelines.into_iter().enumerate() {
        if index.deleted[key] {
            continue;
        }
        let key = key as u32;
        judge_ends(index, terms, found, key, &mut timeline);
        let class = Class::HighWatermarkRegression;
        judge_in_epochs(index, found, key, class, timeline.watermarks);
        let class = Class::StableRegression;
        judge_in_epochs(index, found, key, class, timeline.stable);
        judge_starts(index, found, key, timeline.starts);
    }
    leaders(index, found);
    named_epochs(index, found);
    epochs(index, found);
    stable_above(index, found);
}

fn gather(index: &Index<'_>, timelines: &mut [Timeline]) {
    for write in &index.writes {
        if write.op == super::index::NONE {
            continue;
        }
        let op = index.op(write.op);
        let timeline = &mut timelines[write.key as usize];
        // What was read before it was sent is impossible, and reported as that.
        if let Some(offset) = write.offset().filter(|_| write.read_at >= op.invoked) {
            timeline.asked.push(Asked {
                at: op.invoked,
                end: offset,
                op: write.op,
                class: Class::RealtimeOrder,
            });
        }
        if write.fate == Fate::Acked
            && let (Some(offset), Some(at)) = (write.acked_offset, op.completed)
        {
            timeline.acked.push(Known {
                at,
                end: offset.saturating_add(1),
                op: write.op,
            });
        }
    }
    for (position, op) in index.history.operations.iter().enumerate() {
        let position = position as u32;
        let end_of_call = op.end();
        if let (Call::LatestOffset { key }, Outcome::Ok(Answer::Latest { offset })) =
            (&op.call, &op.outcome)
            && let Some(key) = index.key_id(key)
        {
            let timeline = &mut timelines[key as usize];
            timeline.committed.push(Known {
                at: end_of_call,
                end: *offset,
                op: position,
            });
            timeline.asked.push(Asked {
                at: op.invoked,
                end: *offset,
                op: position,
                class: Class::StaleLatest,
            });
        }
        if is_replica_read(op) {
            continue;
        }
        for read in op.reads() {
            let Some(key) = index.key_id(&read.key) else {
                continue;
            };
            let timeline = &mut timelines[key as usize];
            let known = |end| Known {
                at: end_of_call,
                end,
                op: position,
            };
            if let Some(last) = read.values.iter().map(|(offset, _)| *offset).max() {
                timeline.committed.push(known(last.saturating_add(1)));
            }
            // What a final read lacks has names of its own.
            if let Call::ReadAll { .. } = op.call {
                timeline.asked.push(Asked {
                    at: op.invoked,
                    end: read.next,
                    op: position,
                    class: Class::StaleRead,
                });
            }
            let asked = read.asked.map_or(op.invoked, |asked| asked.min(op.invoked));
            if let Some(epoch) = read.leader_epoch {
                let told = |mark: Option<i64>| mark.map(|mark| (asked, known(mark), epoch));
                timeline.watermarks.extend(told(read.high_watermark));
                timeline.stable.extend(told(read.last_stable));
            }
            if let Some(start) = read.log_start {
                timeline.starts.push((asked, known(start)));
            }
        }
    }
}

/// A growing maximum of what is known.
pub struct Highest {
    known: Vec<Known>,
    taken: usize,
    highest: Option<Known>,
}

impl Highest {
    pub fn new(mut known: Vec<Known>) -> Highest {
        known.sort_unstable_by_key(|known| known.at);
        Highest {
            known,
            taken: 0,
            highest: None,
        }
    }

    /// The highest end known strictly before `at`, which must not go back.
    pub fn before(&mut self, at: Nanos) -> Option<Known> {
        while let Some(next) = self.known.get(self.taken)
            && next.at < at
        {
            self.taken += 1;
            if self.highest.is_none_or(|highest| next.end > highest.end) {
                self.highest = Some(*next);
            }
        }
        self.highest
    }
}

fn judge_ends(
    index: &Index<'_>,
    terms: &Terms<'_>,
    found: &mut Collector<'_>,
    key: u32,
    timeline: &mut Timeline,
) {
    let mut committed = Highest::new(std::mem::take(&mut timeline.committed));
    let mut acked = Highest::new(std::mem::take(&mut timeline.acked));
    timeline.asked.sort_unstable_by_key(|asked| asked.at);
    for asked in &timeline.asked {
        let seen = committed.before(asked.at);
        let promised = acked.before(asked.at);
        let judge_promise = asked.class == Class::RealtimeOrder || terms.ack_means_committed();
        let late = |known: Option<Known>| known.filter(|known| asked.end < known.end);
        let (known, allowed): (Known, Allowed) = match (late(seen), late(promised)) {
            (Some(known), _) => (known, terms.read_may_vanish(false)),
            (None, Some(known)) if judge_promise => (known, terms.acked_may_vanish(Some(false))),
            _ => continue,
        };
        found.add(asked.class, allowed, || {
            let what = match asked.class {
                Class::RealtimeOrder => format!(
                    "a write took offset {}, although the log was known to reach {} before it was sent",
                    asked.end, known.end
                ),
                Class::StaleLatest => format!(
                    "the latest offset was {}, although the log was known to reach {} before",
                    asked.end, known.end
                ),
                _ => format!(
                    "a whole read ended at {}, although the log was known to reach {} before",
                    asked.end, known.end
                ),
            };
            Anomaly {
                key: Some(index.key(key)),
                what,
                offsets: vec![asked.end, known.end],
                values: Vec::new(),
                proof: vec![known.op, asked.op],
            }
        });
    }
}

fn judge_in_epochs(
    index: &Index<'_>,
    found: &mut Collector<'_>,
    key: u32,
    class: Class,
    watermarks: Vec<(Nanos, Known, i32)>,
) {
    let mut by_epoch: BTreeMap<i32, Vec<(Nanos, Known)>> = BTreeMap::new();
    for (asked, known, epoch) in watermarks {
        by_epoch.entry(epoch).or_default().push((asked, known));
    }
    for (epoch, reads) in by_epoch {
        let what = match class {
            Class::StableRegression => "last stable offset",
            _ => "high watermark",
        };
        let name = format!("the {what} of epoch {epoch}");
        judge_growth(index, found, key, class, &name, reads);
    }
}

fn judge_starts(
    index: &Index<'_>,
    found: &mut Collector<'_>,
    key: u32,
    starts: Vec<(Nanos, Known)>,
) {
    judge_growth(
        index,
        found,
        key,
        Class::LogStartRegression,
        "the log's start",
        starts,
    );
}

/// Something that reads are told never goes down from one read to a later one.
fn judge_growth(
    index: &Index<'_>,
    found: &mut Collector<'_>,
    key: u32,
    class: Class,
    name: &str,
    mut reads: Vec<(Nanos, Known)>,
) {
    let mut highest = Highest::new(reads.iter().map(|(_, known)| *known).collect());
    reads.sort_unstable_by_key(|(asked, _)| *asked);
    for (asked, told) in reads {
        let Some(known) = highest.before(asked).filter(|known| told.end < known.end) else {
            continue;
        };
        found.add(class, None, || Anomaly {
            key: Some(index.key(key)),
            what: format!("{name} went from {} down to {}", known.end, told.end),
            offsets: vec![known.end, told.end],
            values: Vec::new(),
            proof: vec![known.op, told.op],
        });
    }
}

/// An epoch has one leader.
fn leaders(index: &Index<'_>, found: &mut Collector<'_>) {
    let mut named = HashMap::new();
    for (position, op) in index.history.operations.iter().enumerate() {
        let Call::Leadership { key } = &op.call else {
            continue;
        };
        let Outcome::Ok(Answer::Leadership {
            node: Some(node),
            epoch,
        }) = op.outcome
        else {
            continue;
        };
        if epoch < 0 {
            // Named by hearsay: whoever answered does not know of which epoch.
            continue;
        }
        let first = *named.entry((key, epoch)).or_insert((node, position));
        if first.0 != node {
            found.add(Class::TwoLeaders, None, || Anomaly {
                key: Some(key),
                what: format!(
                    "epoch {epoch} was led by node {} and by node {node}",
                    first.0
                ),
                offsets: Vec::new(),
                values: Vec::new(),
                proof: vec![first.1 as u32, position as u32],
            });
        }
    }
}

/// Nodes learn of a new leader from each other, so an answer may be old; but not for long.
fn named_epochs(index: &Index<'_>, found: &mut Collector<'_>) {
    let operations = index.history.operations.iter();
    // A name that goes on to another topic says nothing about epochs.
    let deleted: HashSet<&str> = operations
        .filter_map(|op| match &op.call {
            Call::DeleteTopic { key } => Some(&*key.topic),
            _ => None,
        })
        .collect();
    type Named = (Vec<Known>, Vec<Asked>);
    let mut by_key: HashMap<&Key, Named> = HashMap::new();
    for (position, op) in index.history.operations.iter().enumerate() {
        let (Call::Leadership { key }, Outcome::Ok(Answer::Leadership { epoch, .. })) =
            (&op.call, &op.outcome)
        else {
            continue;
        };
        if deleted.contains(&*key.topic) {
            continue;
        }
        let (end, op_position) = (i64::from(*epoch), position as u32);
        let (known, asked) = by_key.entry(key).or_default();
        known.push(Known {
            at: op.end(),
            end,
            op: op_position,
        });
        asked.push(Asked {
            at: op.invoked,
            end,
            op: op_position,
            class: Class::LeaderEpochRegression,
        });
    }
    let calm = Calm::of(index.history);
    for (key, (known, asked)) in by_key {
        let mut highest = Highest::new(known);
        // In the order of their invocations, as the history has them.
        for asked in asked {
            let end = index.op(asked.op).end();
            let Some(since) = calm.since(asked.at, end) else {
                continue;
            };
            let Some(known) = highest.before(since).filter(|known| asked.end < known.end) else {
                continue;
            };
            found.add(asked.class, None, || Anomaly {
                key: Some(key),
                what: format!(
                    "epoch {} was named {CALM_SECONDS:.0} s and more after epoch {}, without any \
                     disturbance",
                    asked.end, known.end
                ),
                offsets: Vec::new(),
                values: Vec::new(),
                proof: vec![known.op, asked.op],
            });
        }
    }
}

/// What is stable is committed.
fn stable_above(index: &Index<'_>, found: &mut Collector<'_>) {
    for (position, op) in index.history.operations.iter().enumerate() {
        for read in op.reads() {
            let (Some(stable), Some(mark)) = (read.last_stable, read.high_watermark) else {
                continue;
            };
            if stable <= mark {
                continue;
            }
            found.add(Class::StableAboveWatermark, None, || Anomaly {
                key: Some(&read.key),
                what: format!("the last stable offset was {stable}, the high watermark {mark}"),
                offsets: vec![mark, stable],
                values: Vec::new(),
                proof: vec![position as u32],
            });
        }
    }
}

/// Leader epochs never go down along a log.
fn epochs(index: &Index<'_>, found: &mut Collector<'_>) {
    for (position, op) in index.history.operations.iter().enumerate() {
        for read in op.reads() {
            for pair in read.epochs.windows(2) {
                let [(before, high), (offset, low)] = [pair[0], pair[1]];
                if offset > before && low >= high {
                    continue;
                }
                found.add(Class::EpochRegression, None, || Anomaly {
                    key: Some(&read.key),
                    what: format!(
                        "epoch {low} begins at offset {offset}, behind epoch {high} at {before}"
                    ),
                    offsets: vec![before, offset],
                    values: Vec::new(),
                    proof: vec![position as u32],
                });
            }
        }
    }
}
