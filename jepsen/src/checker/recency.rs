//! What an answer had to know: everything that had ended before it was asked for.
//!
//! One partition's log only grows, so its state is its end, and a sweep over time decides: the
//! highest end known when a call was made is the least that the call may answer. This makes
//! `register` and `list-append` on one key linearizable, in n log n for the sorting of times.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Call, Nanos, Outcome};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, is_replica_read};
use super::legal::{Allowed, Terms};

/// Something was known from `at` on, because `op` ended then.
#[derive(Clone, Copy)]
struct Known {
    at: Nanos,
    end: i64,
    op: u32,
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
        judge_watermarks(index, found, key, timeline.watermarks);
        judge_starts(index, found, key, timeline.starts);
    }
    leaders(index, found);
    epochs(index, found);
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
            if let (Some(mark), Some(epoch)) = (read.high_watermark, read.leader_epoch) {
                timeline.watermarks.push((op.invoked, known(mark), epoch));
            }
            if let Some(start) = read.log_start {
                timeline.starts.push((op.invoked, known(start)));
            }
        }
    }
}

/// A growing maximum of what is known.
struct Highest {
    known: Vec<Known>,
    taken: usize,
    highest: Option<Known>,
}

impl Highest {
    fn new(mut known: Vec<Known>) -> Highest {
        known.sort_unstable_by_key(|known| known.at);
        Highest {
            known,
            taken: 0,
            highest: None,
        }
    }

    /// The highest end known strictly before `at`, which must not go back.
    fn before(&mut self, at: Nanos) -> Option<Known> {
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

fn judge_watermarks(
    index: &Index<'_>,
    found: &mut Collector<'_>,
    key: u32,
    watermarks: Vec<(Nanos, Known, i32)>,
) {
    let mut by_epoch: BTreeMap<i32, Vec<(Nanos, Known)>> = BTreeMap::new();
    for (asked, known, epoch) in watermarks {
        by_epoch.entry(epoch).or_default().push((asked, known));
    }
    for (epoch, reads) in by_epoch {
        let class = Class::HighWatermarkRegression;
        let name = format!("the high watermark of epoch {epoch}");
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
