//! Everything that was ever committed, as the replicas applied it.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_raft::{Replica, voter_sets};
use corduroy_record::{GroupId, LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{AppliedBody, AppliedEntry, EntryKind};
use futures::FutureExt;

use crate::network::Host;
use crate::observe::ReplicaSeen;
use crate::trace::mix_bytes;

/// A committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The term of its leader.
    pub term: Term,
    /// What it is.
    pub kind: EntryKind,
    /// Its first offset; without records, the next one.
    pub base_offset: Offset,
    /// Offsets that it takes.
    pub records: u32,
    /// Checksum of its content.
    pub content: u64,
    /// Producer, its epoch, first and last sequence, of a batch of an idempotent producer.
    pub producer: Option<(i64, i16, i32, i32)>,
}

impl Committed {
    fn of(entry: &AppliedEntry) -> Committed {
        let header = entry.body.batch_header();
        let producer = header
            .filter(|header| header.producer_id.get() >= 0)
            .map(|header| {
                (
                    header.producer_id.get(),
                    header.producer_epoch.get(),
                    header.base_sequence,
                    header.last_sequence(),
                )
            });
        let content = match &entry.body {
            AppliedBody::Internal(bytes) | AppliedBody::Membership(bytes) => mix_bytes(0, bytes),
            AppliedBody::Batch(_) | AppliedBody::Records(_) | AppliedBody::Blank => {
                header.map_or(0, |header| u64::from(header.crc))
            }
        };
        Committed {
            term: entry.head.term,
            kind: entry.head.kind,
            base_offset: entry.head.base_offset,
            records: entry.head.records,
            content,
            producer,
        }
    }
}

/// Voter sets of which each has to agree: one, or two during a joint change.
pub type VoterSets = Vec<BTreeSet<ReplicaId>>;

/// The committed log of one group.
#[derive(Default)]
pub struct GroupHistory {
    entries: BTreeMap<LogIndex, Committed>,
    by_offset: BTreeMap<Offset, LogIndex>,
    memberships: BTreeMap<LogIndex, VoterSets>,
}

impl GroupHistory {
    /// An entry.
    pub fn get(&self, index: LogIndex) -> Option<&Committed> {
        self.entries.get(&index)
    }

    /// The last committed entry.
    pub fn last(&self) -> Option<(LogIndex, &Committed)> {
        self.entries
            .last_key_value()
            .map(|(at, entry)| (*at, entry))
    }

    /// The entry before.
    pub fn before(&self, index: LogIndex) -> Option<(LogIndex, &Committed)> {
        let earlier = self.entries.range(..index).next_back();
        earlier.map(|(at, entry)| (*at, entry))
    }

    /// The entry that holds an offset.
    pub fn at_offset(&self, offset: Offset) -> Option<(LogIndex, &Committed)> {
        let (_, index) = self.by_offset.range(..=offset).next_back()?;
        let entry = self.entries.get(index)?;
        let end = entry.base_offset.get() + i64::from(entry.records);
        (offset.get() < end).then_some((*index, entry))
    }

    /// The voters as of an entry, and all later ones that were committed, each with the place where
    /// they were logged. Those that nobody was seen to apply are missing.
    pub fn voters_from(&self, index: LogIndex) -> impl Iterator<Item = (LogIndex, &VoterSets)> {
        let then = self.memberships.range(..=index).next_back();
        let later = self.memberships.range(index.next()..);
        then.into_iter().chain(later).map(|(at, sets)| (*at, sets))
    }

    /// The offset after the last committed record.
    pub fn end(&self) -> Offset {
        let last = self.by_offset.values().next_back();
        let last = last.and_then(|index| self.entries.get(index));
        last.map_or(Offset::ZERO, |entry| {
            Offset::new(entry.base_offset.get() + i64::from(entry.records))
        })
    }
}

/// How far a replica's log has been compared.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Compared {
    incarnation: u64,
    replica: ReplicaId,
    next: LogIndex,
}

/// All groups.
#[derive(Default)]
pub struct History {
    groups: BTreeMap<GroupId, GroupHistory>,
    compared: BTreeMap<(Host, GroupId), Compared>,
    conflicts: Vec<String>,
}

impl History {
    /// One group.
    pub fn group(&self, group: GroupId) -> Option<&GroupHistory> {
        self.groups.get(&group)
    }

    /// Entries that two replicas, or one replica at two times, applied differently.
    pub fn conflicts(&self) -> &[String] {
        &self.conflicts
    }

    /// Takes what a replica has applied since the last look, and after a restart its whole log
    /// again. Entries that nobody had applied before are pushed to `fresh`.
    pub fn absorb(
        &mut self,
        (host, incarnation): (Host, u64),
        handle: &Replica,
        seen: &ReplicaSeen,
        fresh: &mut Vec<(GroupId, LogIndex)>,
    ) {
        let group = handle.group();
        let Some((_, last)) = seen.log.last else {
            return;
        };
        let start = seen.log.log_start.index;
        let key = (host, group);
        let known = self.compared.get(&key).copied();
        let same =
            known.filter(|known| known.incarnation == incarnation && known.replica == handle.id());
        let mut next = same.map_or(start, |known| known.next).max(start);
        // Index 0 also stands for "nothing applied": that entry is taken with the next one.
        if seen.view.applied == LogIndex::new(0) {
            return;
        }
        let end = seen.view.applied.min(last).next();
        while next < end {
            // The simulated disk answers at once; whatever does not is looked at the next time.
            let Some(Ok(entries)) = handle.log().read_heads(next, end).now_or_never() else {
                break;
            };
            if entries.is_empty() {
                break;
            }
            for entry in &entries {
                self.take(group, host, entry, fresh);
                next = entry.head.index.next();
            }
        }
        let compared = Compared {
            incarnation,
            replica: handle.id(),
            next,
        };
        self.compared.insert(key, compared);
    }

    fn take(
        &mut self,
        group: GroupId,
        host: Host,
        entry: &AppliedEntry,
        fresh: &mut Vec<(GroupId, LogIndex)>,
    ) {
        let index = entry.head.index;
        let found = Committed::of(entry);
        let history = self.groups.entry(group).or_default();
        match history.entries.get(&index) {
            Some(known) if *known != found => self.conflicts.push(format!(
                "node {host} applied {found:?} at {index} of {group}, where {known:?} was committed"
            )),
            Some(_) => {}
            None => {
                tracing::debug!(%group, %index, ?found, "committed");
                history.entries.insert(index, found);
                if let AppliedBody::Membership(bytes) = &entry.body
                    && let Some(sets) = voter_sets(bytes)
                {
                    history.memberships.insert(index, sets);
                }
                if found.records > 0 {
                    history.by_offset.insert(found.base_offset, index);
                }
                fresh.push((group, index));
            }
        }
    }
}
