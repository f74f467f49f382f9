//! What the committed log of `__consumer_offsets` adds up to, index by index: what every replica and
//! every client is held against.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use corduroy_group::records::{GroupRecord, OffsetValue};
use corduroy_group::table::GroupTable;
use corduroy_raft::Replica;
use corduroy_record::{GroupId, LogIndex};
use corduroy_storage::{Entry, Payload};
use futures::FutureExt;
use tokio::time::Instant;

use crate::group_ledger::At;
use crate::observe::ReplicaSeen;

/// Bytes that are read of a log at once.
const READ_BYTES_MAX: usize = 1 << 20;
/// Uncompressed bytes of one batch.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// Versions of a partition's groups that are kept to compare replicas with.
const VERSIONS_MAX: usize = 4096;

/// One change of a committed position.
pub struct Write {
    /// When the checker first saw it committed.
    pub seen_at: Instant,
    /// The position and the text beside it; `None`: it was deleted.
    pub value: Option<(i64, String)>,
}

/// A committed position that changed, and the groups as they were just before.
pub struct Commit {
    /// The group.
    pub group: String,
    /// The text beside the position.
    pub text: String,
    /// The groups before it.
    pub before: GroupTable,
}

/// The groups after one entry.
pub struct Step {
    /// Where.
    pub index: LogIndex,
    /// What was before.
    pub before: Rc<GroupTable>,
    /// What is then.
    pub after: Rc<GroupTable>,
}

/// Group and partition of a committed position.
type Key = (String, At);

/// The groups of one partition.
#[derive(Default)]
struct GroupLog {
    next: Option<LogIndex>,
    table: Rc<GroupTable>,
    versions: BTreeMap<LogIndex, Rc<GroupTable>>,
}

/// All partitions of `__consumer_offsets`.
#[derive(Default)]
pub struct GroupLogs {
    logs: BTreeMap<GroupId, GroupLog>,
    writes: BTreeMap<Key, Vec<Write>>,
    steps: Vec<Step>,
    commits: Vec<Commit>,
    behind: BTreeSet<GroupId>,
}

impl GroupLogs {
    /// Takes what a replica has applied and nobody had before. `cached_only`: nothing of its disk is
    /// read.
    pub fn absorb(&mut self, handle: &Replica, seen: &ReplicaSeen, cached_only: bool) {
        let group = handle.group();
        let Some((_, last)) = seen.log.last else {
            return;
        };
        if seen.view.applied == LogIndex::new(0) {
            return;
        }
        let start = seen.log.log_start.index;
        let end = seen.view.applied.min(last).next();
        let log = self.logs.entry(group).or_default();
        let mut next = log.next.unwrap_or(start);
        if next < start {
            // Nobody who had these is left to be read: it goes on from what this one has.
            if let Some(table) = &seen.groups {
                let (index, table) = (seen.view.applied, table.clone());
                self.go_on_from(group, index, table);
            }
            return;
        }
        while next < end {
            let read = if cached_only {
                handle.log().read_cached(next, end, READ_BYTES_MAX)
            } else {
                let read = handle.log().read(next, end, READ_BYTES_MAX);
                read.now_or_never().and_then(Result::ok)
            };
            let Some(entries) = read.filter(|entries| !entries.is_empty()) else {
                break;
            };
            for entry in &entries {
                self.take(group, entry);
                next = entry.head.index.next();
            }
        }
    }

    fn go_on_from(&mut self, group: GroupId, index: LogIndex, table: Rc<GroupTable>) {
        let now = Instant::now();
        for (name, state) in table.groups() {
            for (at, value) in &state.offsets {
                let key = (name.to_owned(), (at.topic.clone(), at.partition.get()));
                self.writes.entry(key).or_default().push(Write {
                    seen_at: now,
                    value: Some((value.offset.get(), value.metadata.clone())),
                });
            }
        }
        let log = self.logs.entry(group).or_default();
        log.next = Some(index.next());
        log.table = table;
    }

    fn take(&mut self, group: GroupId, entry: &Entry) {
        let now = Instant::now();
        let log = self.logs.entry(group).or_default();
        let before = log.table.clone();
        if let Payload::Batch(batch) = &entry.payload {
            let mut table = (*before).clone();
            let records = batch.records(BATCH_BYTES_MAX).into_iter().flatten();
            for record in records.flatten() {
                let Some(key) = &record.key else { continue };
                let Ok(Some(record)) = GroupRecord::decode(key, record.value.as_deref()) else {
                    continue;
                };
                if let GroupRecord::Offset {
                    group,
                    partition,
                    value,
                } = &record
                    && is_news(&table, group, partition, value.as_ref())
                {
                    let at = (partition.topic.clone(), partition.partition.get());
                    let value = value.as_ref();
                    let write = Write {
                        seen_at: now,
                        value: value.map(|value| (value.offset.get(), value.metadata.clone())),
                    };
                    let key = (group.clone(), at);
                    self.writes.entry(key).or_default().push(write);
                    if let Some(value) = value.filter(|value| !value.metadata.is_empty()) {
                        self.commits.push(Commit {
                            group: group.clone(),
                            text: value.metadata.clone(),
                            before: table.clone(),
                        });
                    }
                }
                table.apply_record(&record);
            }
            log.table = Rc::new(table);
        }
        log.next = Some(entry.head.index.next());
        log.versions.insert(entry.head.index, log.table.clone());
        if log.versions.len() > VERSIONS_MAX {
            log.versions.pop_first();
        }
        self.steps.push(Step {
            index: entry.head.index,
            before,
            after: log.table.clone(),
        });
    }

    /// Whether a partition's log is known up to this index.
    pub fn note_applied(&mut self, group: GroupId, applied: LogIndex) {
        let next = self.logs.get(&group).and_then(|log| log.next);
        if applied > LogIndex::new(0) && next.is_none_or(|next| next <= applied) {
            self.behind.insert(group);
        }
    }

    /// Another look begins.
    pub fn begin_look(&mut self) {
        self.behind.clear();
        self.steps.clear();
        self.commits.clear();
    }

    /// Whether everything that any replica has applied is known.
    pub fn is_complete(&self) -> bool {
        self.behind.is_empty()
    }

    /// What was committed since the look before, entry by entry.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Positions with a text beside them that were committed since the look before.
    pub fn commits(&self) -> &[Commit] {
        &self.commits
    }

    /// Every change of a committed position, in the order of the log.
    pub fn writes(&self, group: &str, at: &At) -> &[Write] {
        let writes = self.writes.get(&(group.to_owned(), at.clone()));
        writes.map_or(&[], Vec::as_slice)
    }

    /// Positions of a group that were ever committed.
    pub fn places(&self, group: &str) -> impl Iterator<Item = &At> {
        let of_group = move |(name, at)| (name == group).then_some(at);
        self.writes
            .keys()
            .map(|(name, at)| (name, at))
            .filter_map(of_group)
    }

    /// The groups of a partition as of an index, if that is known (still).
    pub fn version(&self, group: GroupId, index: LogIndex) -> Option<&Rc<GroupTable>> {
        self.logs.get(&group)?.versions.get(&index)
    }

    /// The newest groups, partition by partition.
    pub fn newest(&self) -> impl Iterator<Item = (GroupId, &Rc<GroupTable>)> {
        self.logs.iter().map(|(group, log)| (*group, &log.table))
    }
}

/// Whether a record says something that does not hold already: live records are written again from
/// time to time.
fn is_news(
    table: &GroupTable,
    group: &str,
    partition: &corduroy_record::TopicPartition,
    value: Option<&OffsetValue>,
) -> bool {
    let state = table.get(group);
    state.and_then(|state| state.offsets.get(partition)) != value
}
