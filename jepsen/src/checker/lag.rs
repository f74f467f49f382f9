//! What a consumer is behind: with nothing in its way it is shown what was acknowledged long ago.

use std::collections::{HashMap, HashSet};

use crate::history::{Call, Nanos};
use crate::verdict::Class;

use super::calm::{CALM_SECONDS, Calm};
use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index};
use super::legal::Terms;
use super::recency::{Highest, Known};

/// A consumer of a partition.
struct Follower {
    /// Since when it has the partition.
    since: Nanos,
    next: i64,
    is_reported: bool,
}

pub fn check(index: &Index<'_>, terms: &Terms<'_>, found: &mut Collector<'_>) {
    if !terms.consumers_keep_up() {
        return;
    }
    let calm = Calm::of(index.history);
    let mut acked: Vec<Highest> = acknowledged(index).into_iter().map(Highest::new).collect();
    // Members of groups stand still on purpose, and nobody notes when.
    let mut members: HashSet<u32> = HashSet::new();
    let mut followers: HashMap<(u32, u32), Follower> = HashMap::new();
    for (position, op) in index.history.operations.iter().enumerate() {
        let process = op.process.0;
        match &op.call {
            Call::GroupJoin { .. } => {
                members.insert(process);
            }
            Call::Assign { keys } if op.is_ok() => {
                let keys: Vec<u32> = keys.iter().filter_map(|key| index.key_id(key)).collect();
                followers.retain(|(owner, key), _| *owner != process || keys.contains(key));
                for key in keys {
                    followers.entry((process, key)).or_insert(Follower {
                        since: op.end(),
                        next: 0,
                        is_reported: false,
                    });
                }
            }
            Call::Seek { key, offset } => {
                let key = index.key_id(key).map(|key| (process, key));
                if let Some(follower) = key.and_then(|at| followers.get_mut(&at)) {
                    (follower.since, follower.next) = (op.end(), *offset);
                }
            }
            Call::Poll { keys } if op.is_ok() && !members.contains(&process) => {
                for read in op.reads() {
                    let key = index.key_id(&read.key).map(|key| (process, key));
                    if let Some(follower) = key.and_then(|at| followers.get_mut(&at)) {
                        follower.next = read.next;
                    }
                }
                let Some(since) = calm.since(op.invoked, op.end()) else {
                    continue;
                };
                for key in keys.iter().filter_map(|key| index.key_id(key)) {
                    let known = acked[key as usize].before(since);
                    let Some(follower) = followers.get_mut(&(process, key)) else {
                        continue;
                    };
                    let is_late = known.filter(|known| {
                        follower.since <= since
                            && follower.next < known.end
                            && !follower.is_reported
                            && !index.deleted[key as usize]
                    });
                    let Some(known) = is_late else { continue };
                    follower.is_reported = true;
                    found.add(Class::RealtimeLag, None, || Anomaly {
                        key: Some(index.key(key)),
                        what: format!(
                            "process {process} was still at offset {}, although the log was known to \
                             reach {} for {CALM_SECONDS:.0} s without any disturbance",
                            follower.next, known.end
                        ),
                        offsets: vec![follower.next, known.end],
                        values: Vec::new(),
                        proof: vec![known.op, position as u32],
                    });
                }
            }
            _ => {}
        }
    }
}

/// By partition: the ends of the log by acknowledged writes.
fn acknowledged(index: &Index<'_>) -> Vec<Vec<Known>> {
    let mut acked: Vec<Vec<Known>> = (0..index.keys.len()).map(|_| Vec::new()).collect();
    for write in index.writes.iter().filter(|it| it.fate == Fate::Acked) {
        let at = index.op(write.op).completed;
        if let (Some(offset), Some(at)) = (write.acked_offset, at) {
            acked[write.key as usize].push(Known {
                at,
                end: offset.saturating_add(1),
                op: write.op,
            });
        }
    }
    acked
}
