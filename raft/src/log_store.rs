//! openraft's log, kept by the storage crate.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::rc::Rc;

use corduroy_record::{LogIndex, Term};
use corduroy_storage::{
    AppendDone, AppendError, AppliedBody, AppliedEntry, Entry, EpochStart, LogStart, NewEntry,
    Payload, StorageError,
};
use futures::Stream;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, RaftLogReader};

use crate::door::{Ticket, void};
use crate::replica_core::Core;
use crate::state_machine::ReplicaEvent;
use crate::types::{
    Body, LogEntry, LogId, MembershipRecord, Proposed, RaftVote, TypeConfig, log_id, place,
    vote_from_storage, vote_to_storage,
};

/// Entries read at once for apply.
const APPLY_CHUNK_ENTRIES: u64 = 512;

/// The log of one replica; also the reader that replication and apply use.
#[derive(Clone)]
pub struct LogStore {
    core: Rc<Core>,
}

impl LogStore {
    pub(crate) fn new(core: Rc<Core>) -> LogStore {
        LogStore { core }
    }

    /// A storage error stops the group for good (law 3); a full disk only until there is room.
    fn failed(&self, error: StorageError) -> io::Error {
        match error {
            StorageError::DiskFull => self.core.disk_full.set(true),
            _ if self.is_gone(&error) => {}
            _ => self.keep(&error),
        }
        io::Error::other(error.to_string())
    }

    /// Whether a read met what is rightly not there: it was purged, cut or refused while the read was on
    /// its way, or openraft, which took for appended what a full disk refused, asks for it until the
    /// replica is rebuilt from what is durable. Any other entry that openraft counts on and the log does
    /// not hold has been lost.
    fn is_gone(&self, error: &StorageError) -> bool {
        let StorageError::OutOfRange { asked, first, .. } = error else {
            return false;
        };
        asked < first || *asked <= self.core.gone_end.get()
    }

    /// From now on this instance may be asked for entries below `end` that the log rightly does not hold.
    fn let_go(&self, end: LogIndex) {
        let gone_end = &self.core.gone_end;
        gone_end.set(gone_end.get().max(end));
    }

    fn keep(&self, error: &impl fmt::Display) {
        let mut first = self.core.storage_error.borrow_mut();
        first.get_or_insert_with(|| error.to_string());
    }

    /// Entries did not get into the log.
    fn append_failed(&self, error: AppendError) -> io::Error {
        match error {
            AppendError::Storage(error) => self.append_refused(error),
            // Behind the ones that a full disk has just refused: the rebuilt instance knows its end.
            error if self.core.gone_end.get() == LogIndex::new(u64::MAX) => {
                io::Error::other(error.to_string())
            }
            error => {
                self.keep(&error);
                io::Error::other(error.to_string())
            }
        }
    }

    fn append_refused(&self, error: StorageError) -> io::Error {
        if matches!(error, StorageError::DiskFull) {
            // With these went all that were appended behind them.
            self.let_go(LogIndex::new(u64::MAX));
        }
        self.failed(error)
    }

    /// The part of `range` that the log holds, as `[from, to)`.
    fn clamp<R: RangeBounds<u64>>(&self, range: &R) -> Option<(LogIndex, LogIndex)> {
        let state = self.core.log.state();
        let first = state.log_start.index.get();
        let end = state.last.map_or(first, |(_, index)| index.get() + 1);
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        let (from, to) = (from.max(first), to.min(end));
        (from < to).then_some((LogIndex::new(from), LogIndex::new(to)))
    }

    async fn heads(&self, from: LogIndex, to: LogIndex) -> Result<Vec<LogEntry>, io::Error> {
        let heads = self
            .core
            .log
            .read_heads(from, to)
            .await
            .map_err(|e| self.failed(e))?;
        heads.into_iter().map(applied_to_entry).collect()
    }

    /// What apply needs: headers, or whole batches for a machine that reads records.
    async fn to_apply(&self, from: LogIndex, to: LogIndex) -> Result<Vec<LogEntry>, io::Error> {
        if !self.core.machine.borrow().reads_records() {
            return self.heads(from, to).await;
        }
        let bytes_max = self.core.config.append_bytes_max;
        let entries = match self.core.log.read_cached(from, to, bytes_max) {
            Some(entries) => entries,
            None => self
                .core
                .log
                .read(from, to, bytes_max)
                .await
                .map_err(|e| self.failed(e))?,
        };
        entries.into_iter().map(entry_to_raft).collect()
    }
}

fn invalid(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// An entry as openraft needs it at start and for apply: without the batch's bytes.
fn applied_to_entry(entry: AppliedEntry) -> Result<LogEntry, io::Error> {
    let payload = match entry.body {
        AppliedBody::Blank => EntryPayload::Blank,
        AppliedBody::Membership(bytes) => EntryPayload::Membership(
            MembershipRecord::decode(&bytes)
                .and_then(|r| r.membership())
                .map_err(invalid)?,
        ),
        body => EntryPayload::Normal(Proposed {
            body: Body::Applied(body),
            ticket: None,
        }),
    };
    Ok(LogEntry {
        id: log_id(entry.head.term, entry.head.index),
        head: Some(entry.head),
        payload,
    })
}

/// An entry as a follower needs it.
pub(crate) fn entry_to_raft(entry: Entry) -> Result<LogEntry, io::Error> {
    let payload = match entry.payload {
        Payload::Blank => EntryPayload::Blank,
        Payload::Membership(bytes) => EntryPayload::Membership(
            MembershipRecord::decode(&bytes)
                .and_then(|r| r.membership())
                .map_err(invalid)?,
        ),
        Payload::Batch(batch) => EntryPayload::Normal(Proposed {
            body: Body::Batch(batch),
            ticket: None,
        }),
        Payload::Internal(bytes) => EntryPayload::Normal(Proposed {
            body: Body::Internal(bytes),
            ticket: None,
        }),
    };
    Ok(LogEntry {
        id: log_id(entry.head.term, entry.head.index),
        head: Some(entry.head),
        payload,
    })
}

impl RaftLogReader<TypeConfig> for LogStore {
    // openraft reads this way at start, where it applies again what lies behind the checkpoint, and
    // for single log ids.
    async fn try_get_log_entries<R>(&mut self, range: R) -> Result<Vec<LogEntry>, io::Error>
    where
        R: RangeBounds<u64> + Clone + fmt::Debug,
    {
        let Some((mut from, to)) = self.clamp(&range) else {
            return Ok(Vec::new());
        };
        // A read may end where the cache begins; openraft wants all of the range.
        let mut entries = Vec::new();
        while from < to {
            let read = self.to_apply(from, to).await?;
            if read.is_empty() {
                return Err(invalid("the log has a hole"));
            }
            from = LogIndex::new(from.get() + read.len() as u64);
            entries.extend(read);
        }
        Ok(entries)
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        let vote = self.core.log.state().vote;
        Ok(vote.map(|vote| vote_from_storage(&vote, self.core.id)))
    }

    // Replication. Bounded in bytes here, since openraft counts entries only.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, io::Error> {
        let (from, to) = (LogIndex::new(start), LogIndex::new(end));
        let bytes_max = self.core.config.append_bytes_max;
        let entries = match self.core.log.read_cached(from, to, bytes_max) {
            Some(entries) => entries,
            None => self
                .core
                .log
                .read(from, to, bytes_max)
                .await
                .map_err(|e| self.failed(e))?,
        };
        entries.into_iter().map(entry_to_raft).collect()
    }

    // Apply: headers (or records, where the machine reads them), in chunks.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<LogEntry, io::Error>>
    where
        R: RangeBounds<u64> + Clone + fmt::Debug,
    {
        struct Reading {
            store: LogStore,
            next: LogIndex,
            end: LogIndex,
            ready: std::vec::IntoIter<LogEntry>,
        }
        let (next, end) = self
            .clamp(&range)
            .unwrap_or((LogIndex::new(0), LogIndex::new(0)));
        let reading = Reading {
            store: self.clone(),
            next,
            end,
            ready: Vec::new().into_iter(),
        };
        Box::pin(futures::stream::unfold(reading, |mut reading| async move {
            loop {
                if let Some(entry) = reading.ready.next() {
                    return Some((Ok(entry), reading));
                }
                if reading.next >= reading.end {
                    return None;
                }
                let to = reading
                    .end
                    .min(LogIndex::new(reading.next.get() + APPLY_CHUNK_ENTRIES));
                match reading.store.to_apply(reading.next, to).await {
                    Ok(entries) if entries.is_empty() => {
                        reading.next = reading.end;
                        return Some((Err(invalid("the log has a hole")), reading));
                    }
                    Ok(entries) => {
                        reading.next = LogIndex::new(reading.next.get() + entries.len() as u64);
                        reading.ready = entries.into_iter();
                    }
                    Err(error) => {
                        reading.next = reading.end;
                        return Some((Err(error), reading));
                    }
                }
            }
        }))
    }

    async fn get_key_log_ids(
        &mut self,
        range: RangeInclusive<LogId>,
    ) -> Result<Vec<LogId>, io::Error> {
        let epochs = self.core.log.epochs();
        Ok(last_of_each_term(
            epochs.starts(),
            range.start(),
            range.end(),
        ))
    }
}

/// The last entry of each term within `first..=last`.
///
/// openraft's documentation speaks of the first entry of each leader; its code (alpha.37,
/// `LogIdList::ref_at`) wants the last, and takes any other for a log with other terms.
fn last_of_each_term(starts: &[EpochStart], first: &LogId, last: &LogId) -> Vec<LogId> {
    let ends = starts.iter().skip(1).map(|next| next.first_index.get());
    let mut ids: Vec<LogId> = starts
        .iter()
        .zip(ends.chain([u64::MAX]))
        .filter(|(start, end)| start.first_index.get() <= last.index && *end > first.index)
        .map(|(start, end)| log_id(start.term, LogIndex::new((end - 1).min(last.index))))
        .collect();
    if ids.last() != Some(last) {
        ids.push(*last);
    }
    ids
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.core.log.state();
        let id = |(term, index): (Term, LogIndex)| log_id(term, index);
        let purged = state.log_start.prev.map(id);
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: state.last.map(id).or(purged),
        })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        self.core
            .log
            .save_vote(vote_to_storage(vote))
            .await
            .map_err(|e| self.failed(e))
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            tracing::trace!(target: "corduroy::walk", room = "committed", group = %self.core.group, replica = %self.core.id, index = committed.index, "entries are committed");
            self.core.log.save_committed(place(&committed));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let state = self.core.log.state();
        // Law 6: never beyond the recovered end.
        let committed = state.committed.min(state.last);
        Ok(committed.map(|(term, index)| log_id(term, index)))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = LogEntry>,
        I::IntoIter:,
    {
        let core = &self.core;
        let mut new = Vec::new();
        let mut tickets: Vec<(usize, Rc<Ticket>)> = Vec::new();
        for entry in entries {
            let (term, index) = place(&entry.id);
            let payload = match entry.payload {
                EntryPayload::Blank => Payload::Blank,
                EntryPayload::Membership(members) => {
                    Payload::Membership(MembershipRecord::of(&members, None).encode())
                }
                EntryPayload::Normal(Proposed { body, ticket }) => {
                    let admitted = match ticket {
                        None => true,
                        Some(ticket) => {
                            let admitted = core.door.admit(core, &ticket);
                            if admitted {
                                tickets.push((new.len(), ticket));
                            }
                            admitted
                        }
                    };
                    match body {
                        _ if !admitted => Payload::Internal(void()),
                        Body::Batch(batch) => Payload::Batch(batch),
                        Body::Internal(bytes) => Payload::Internal(bytes),
                        Body::Applied(_) => {
                            return Err(invalid("an entry without its bytes cannot be appended"));
                        }
                    }
                }
            };
            let base_offset = entry.head.map(|head| head.base_offset);
            new.push(NewEntry {
                term,
                index,
                base_offset,
                payload,
            });
        }

        let last = new.last().map_or(0, |entry| entry.index.get());
        tracing::trace!(target: "corduroy::walk", room = 6, group = %core.group, replica = %core.id, index = last, "entries are handed to storage");
        let tickets = Rc::new(RefCell::new(tickets));
        let written = (!tickets.borrow().is_empty()).then(|| {
            let tickets = tickets.clone();
            let written: Box<dyn FnOnce(Result<(), StorageError>)> = Box::new(move |result| {
                if result.is_ok() {
                    for (_, ticket) in tickets.borrow().iter() {
                        ticket.written();
                    }
                }
            });
            written
        });
        // No sync here: the shard's store flushes once a turn for all its partitions. openraft
        // counts these entries only when this callback has fired.
        let durable: Box<dyn FnOnce(Result<(), StorageError>)> = {
            let store = self.clone();
            Box::new(move |result| {
                tracing::trace!(target: "corduroy::walk", room = "durable", group = %store.core.group, replica = %store.core.id, index = last, "entries are durable");
                callback.io_completed(result.map_err(|error| store.append_refused(error)));
                store.core.progress.own_changed();
                store.core.check_revert();
            })
        };
        let heads = core
            .log
            .append(
                new,
                AppendDone {
                    written,
                    durable: Some(durable),
                },
            )
            .map_err(|error| self.append_failed(error))?;
        for (at, ticket) in tickets.borrow().iter() {
            if let Some(head) = heads.get(*at) {
                ticket.placed(*head);
            }
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let last = last.map(|id| LogIndex::new(id.index));
        // Streams of a leadership that is over may be reading there.
        if let Some((_, end)) = self.core.log.state().last {
            self.let_go(LogIndex::new(end.get().saturating_add(1)));
        }
        tracing::info!(parent: &self.core.span(), group = %self.core.group, ?last, "a conflicting end of the log is cut");
        self.core
            .log
            .truncate_after(last)
            .await
            .map_err(|e| self.failed(e))?;
        self.core.event(&ReplicaEvent::Truncated { last });
        Ok(())
    }

    // Law 6: only up to the durable snapshot; beyond the end, a reset to it (law 9).
    async fn purge(&mut self, id: LogId) -> Result<(), io::Error> {
        let upto = place(&id);
        let log = &self.core.log;
        let Some(snapshot) = log.snapshot().await else {
            return Err(invalid(format!("purge to {id} without a snapshot")));
        };
        if snapshot.at.1 < upto.1 {
            return Err(invalid(format!(
                "purge to {id} beyond the snapshot at {}",
                snapshot.at.1
            )));
        }
        let offset = if snapshot.at.1 == upto.1 {
            Some(snapshot.offset)
        } else {
            log.offset_at_index(upto.1.next())
        };
        let Some(offset) = offset else {
            return Err(invalid(format!("purge to {id}, whose offset is not known")));
        };
        let start = LogStart {
            index: upto.1.next(),
            offset,
            prev: Some(upto),
        };
        let holds = log.state().last.is_some_and(|(_, last)| last >= upto.1)
            && log.term_of(upto.1).is_none_or(|term| term == upto.0);
        let moved = if holds {
            log.set_log_start(start).await
        } else {
            log.reset(start).await
        };
        moved.map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corduroy_record::Offset;

    fn check(starts: &[(u64, u64)], first: (u64, u64), last: (u64, u64), expected: &[(u64, u64)]) {
        let starts: Vec<EpochStart> = starts
            .iter()
            .map(|(term, index)| EpochStart {
                term: Term::new(*term),
                first_index: LogIndex::new(*index),
                first_offset: Offset::ZERO,
            })
            .collect();
        let id = |(term, index): (u64, u64)| log_id(Term::new(term), LogIndex::new(index));
        let found = last_of_each_term(&starts, &id(first), &id(last));
        let expected: Vec<LogId> = expected.iter().map(|at| id(*at)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn key_entries_are_the_last_of_each_term() {
        let starts = [(0, 0), (1, 1), (2, 25), (3, 33)];
        check(
            &starts,
            (0, 0),
            (3, 40),
            &[(0, 0), (1, 24), (2, 32), (3, 40)],
        );
        check(&starts, (1, 23), (3, 40), &[(1, 24), (2, 32), (3, 40)]);
        check(&starts, (2, 25), (3, 33), &[(2, 32), (3, 33)]);
        check(&starts, (1, 5), (1, 9), &[(1, 9)]);
        check(&[(4, 7)], (4, 7), (4, 7), &[(4, 7)]);
    }
}
