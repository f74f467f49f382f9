//! The flush turn: gathers what all partitions of a shard appended, writes it, makes it durable
//! with one flush, and reports in order. Runs on the flush thread, or inline.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use corduroy_env::Env;
use corduroy_env::planted::{self, Bug};
use corduroy_record::GroupId;
use tokio::sync::mpsc::UnboundedSender;

use crate::disk::Disk;
use crate::entry::Entry;
use crate::error::{IoContext, StorageError};
use crate::flusher::Inbox;
use crate::frame;
use crate::journal::{
    EntryRef, FreeFile, JournalWriter, PAGE_BYTES, RECORD_HEADER_BYTES, RecordBody, RecordHeader,
    RecordKind, page_up,
};
use crate::log::CheckpointDone;
use crate::metrics::{TurnCounters, add};
use crate::placement::{PlacementRules, place};
use crate::pool::Pool;
use crate::reserve::Reserve;
use crate::segment::SegmentFile;

/// Entries of one operation at most; appends are split.
pub(crate) const OP_ENTRIES_MAX: usize = 128;
/// Payload bytes after which a turn takes no more operations.
const TURN_BYTES_MAX: usize = 8 << 20;
/// Bytes of envelopes and records that are kept allocated between turns.
const ARENA_BYTES_KEPT: usize = 1 << 20;
/// Bytes that an inline or referenced record has beside its entries.
const RECORD_OVERHEAD_BYTES: usize = RECORD_HEADER_BYTES + 8;
/// No small record is longer.
const SMALL_RECORD_BYTES_MAX: usize = 128;

/// One thing that a partition does to its files, in the shard's one order.
pub(crate) struct Op {
    /// Ascends by one.
    pub seq: u64,
    pub group: GroupId,
    pub incarnation: u64,
    /// After a full disk, operations of the same attempt are skipped.
    pub attempt: u32,
    pub action: Action,
    /// Somebody waits for the moment between write and flush.
    pub wants_written: bool,
}

pub(crate) enum Action {
    Segment(Arc<SegmentFile>),
    Append(AppendOp),
    Record(RecordBody),
    /// Writes nothing; completes in its order.
    Barrier,
}

pub(crate) struct AppendOp {
    pub segment: Arc<SegmentFile>,
    pub position: u32,
    pub frame_bytes: usize,
    pub entries: Vec<Entry>,
}

/// What the flush thread is told.
pub(crate) enum Input {
    Ops(Vec<Op>),
    /// Turns below this one are in durable state files.
    Release(u64),
    /// A file came back, or could not be made.
    Free(Result<Option<FreeFile>, StorageError>),
    /// There is space again: take the reserve back.
    Refill,
    /// No checkpoint can help a full journal: take one more file.
    Overcommit,
    /// Everything is checkpointed: free the journal and end.
    Close,
}

/// What the shard is told, in order.
pub(crate) enum Output {
    Written {
        upto: u64,
    },
    Durable(TurnReport),
    /// The journal is full: checkpoints are needed before the next turn.
    Stalled {
        oldest_last_turn: Option<u64>,
    },
    Checkpointed {
        group: GroupId,
        incarnation: u64,
        result: Result<CheckpointDone, StorageError>,
    },
    FreeBytes(u64),
    Failed(StorageError),
    Closed,
}

pub(crate) struct TurnReport {
    pub upto: u64,
    pub turn: u64,
    /// Operations that found the disk full and did not happen.
    pub refused: Vec<u64>,
    pub oldest_last_turn: Option<u64>,
    pub files_used: usize,
}

/// How a call of [`TurnWorker::begin`] went.
pub(crate) enum Begun {
    Idle,
    Stalled,
    Written(WrittenTurn),
}

/// A turn that is written and not durable.
pub(crate) struct WrittenTurn {
    upto: u64,
    turn: Option<u64>,
    refused: Vec<u64>,
    referenced: Vec<Arc<SegmentFile>>,
    /// Synced before it is reported: every turn is, but for planted bugs.
    is_synced: bool,
    wants_written: bool,
}

pub(crate) struct TurnWorker {
    pub disk: Arc<dyn Disk>,
    pub env: Env,
    pub journal: JournalWriter,
    pub inline_bytes_max: usize,
    pub file_bytes: u64,
    pub outputs: UnboundedSender<Output>,
    pub inbox: Inbox,
    /// Prepares and frees journal files.
    pub keeper: Pool,
    /// Flushes segments beside the journal.
    pub flushers: Pool,
    pub reserve: Reserve,
    pub counters: Arc<TurnCounters>,
    pub backlog: VecDeque<Op>,
    /// Attempts that met a full disk, by group.
    pub refused: HashMap<GroupId, u32>,
    pub overcommit: bool,
    pub stalled: bool,
    pub closing: bool,
    pub arena: Vec<u8>,
}

/// A part of a frame or record: bytes of the arena or an entry's shared body.
#[derive(Clone)]
enum Piece<'a> {
    Arena(Range<usize>),
    Body(&'a [u8]),
}

struct Run<'a> {
    segment: &'a Arc<SegmentFile>,
    position: u32,
    end: u32,
    ops: Vec<usize>,
}

struct EncodedOp<'a> {
    pieces: Vec<Piece<'a>>,
    crcs: Vec<u32>,
}

impl TurnWorker {
    /// Takes one message. `false`: the end.
    pub(crate) fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Ops(ops) => self.backlog.extend(ops),
            Input::Release(before) => {
                for work in self.journal.release(before, false) {
                    let inbox = self.inbox.clone();
                    self.keeper
                        .run(move || drop(inbox.send(Input::Free(work()))));
                }
            }
            Input::Free(Ok(file)) => {
                self.journal.add_free(file);
                self.stalled = false;
            }
            Input::Free(Err(StorageError::DiskFull)) => self.journal.forget_planned(),
            Input::Free(Err(error)) => {
                self.journal.forget_planned();
                self.fail(error);
            }
            Input::Refill => self.reserve.refill(&*self.disk),
            Input::Overcommit => {
                self.overcommit = true;
                self.stalled = false;
            }
            Input::Close => self.closing = true,
        }
        // Files that are being freed elsewhere count as in use until they are.
        if self.closing && self.journal.handed_out() == 0 {
            for work in self.journal.release(u64::MAX, true) {
                if let Err(error) = work() {
                    self.fail(error);
                    return false;
                }
            }
            self.report(Output::Closed);
            return false;
        }
        true
    }

    fn report(&self, output: Output) {
        // The shard may be gone; then nobody waits.
        self.outputs.send(output).ok();
    }

    pub(crate) fn fail(&mut self, error: StorageError) {
        self.backlog.clear();
        self.report(Output::Failed(error));
    }

    /// Takes what has come in and runs turns until nothing is left to do. `false`: the end.
    pub(crate) fn round(&mut self, inputs: &Receiver<Input>) -> bool {
        loop {
            // Everything that has gathered goes into the same turn.
            while let Ok(input) = inputs.try_recv() {
                if !self.take(input) {
                    return false;
                }
            }
            if self.stalled || self.backlog.is_empty() {
                return true;
            }
            if !self.turn() {
                return false;
            }
        }
    }

    /// One whole turn. `false`: the store failed.
    fn turn(&mut self) -> bool {
        let result = match self.begin() {
            Ok(Begun::Idle) => return true,
            Ok(Begun::Stalled) => {
                self.stall();
                return true;
            }
            Ok(Begun::Written(written)) => {
                self.report_written(&written);
                self.finish(written)
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(report) => {
                self.report(Output::Durable(report));
                self.prepare();
                true
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    pub(crate) fn stall(&mut self) {
        if !self.stalled {
            self.stalled = true;
            add(&self.counters.stalls, 1);
            let oldest_last_turn = self.journal.oldest_last_turn();
            self.report(Output::Stalled { oldest_last_turn });
        }
    }

    pub(crate) fn report_written(&self, written: &WrittenTurn) {
        if written.wants_written && written.refused.is_empty() {
            self.report(Output::Written { upto: written.upto });
        }
    }

    /// Has the next journal file made ready while there is time.
    pub(crate) fn prepare(&mut self) {
        if let Some(work) = self.journal.plan_file() {
            let inbox = self.inbox.clone();
            self.keeper
                .run(move || drop(inbox.send(Input::Free(work()))));
        }
    }

    /// How many operations of the backlog fit into one turn, which groups' entries the journal
    /// itself holds, and the most that its records can come to.
    fn plan(&self) -> (usize, HashMap<GroupId, bool>, usize) {
        let capacity = JournalWriter::capacity_bytes(self.file_bytes);
        let ops_max = capacity / 8 / SMALL_RECORD_BYTES_MAX;
        let references_max = capacity / 4 / 64;
        let mut groups: Vec<(GroupId, usize)> = Vec::new();
        let mut places: HashMap<GroupId, usize> = HashMap::new();
        let (mut count, mut bytes, mut entries) = (0, 0, 0);
        for op in &self.backlog {
            if let Action::Append(append) = &op.action {
                let too_many = entries + append.entries.len() > references_max;
                if count > 0 && (bytes >= TURN_BYTES_MAX || too_many) {
                    break;
                }
                bytes += append.frame_bytes;
                entries += append.entries.len();
                let place = *places.entry(op.group).or_insert(groups.len());
                if place == groups.len() {
                    groups.push((op.group, 0));
                }
                groups[place].1 += append.frame_bytes;
            }
            count += 1;
            if count >= ops_max.max(1) {
                break;
            }
        }
        let rules = PlacementRules {
            // That bug is one of referenced entries; so that it meets small ones, all of them are.
            inline_bytes_max: if planted::is(Bug::ZeroTailIsBatch) {
                0
            } else {
                self.inline_bytes_max
            },
            budget_bytes: capacity / 2,
        };
        let placement = place(groups, rules);
        let body_max = placement.inline_bytes + entries * 64 + count * SMALL_RECORD_BYTES_MAX;
        (count, placement.inline, body_max)
    }

    /// Writes the next turn: segments first, then the journal. Nothing is durable yet.
    pub(crate) fn begin(&mut self) -> Result<Begun, StorageError> {
        if self.backlog.is_empty() {
            return Ok(Begun::Idle);
        }
        let (count, inline, body_max) = self.plan();
        if !self.make_room(body_max)? {
            return Ok(Begun::Stalled);
        }
        self.overcommit = false;
        if planted::is(Bug::CallbackBeforeSync) {
            self.sync_journal()?;
        }
        let ops: Vec<Op> = self.backlog.drain(..count).collect();
        let mut arena = std::mem::take(&mut self.arena);
        let written = self.write(&ops, &inline, &mut arena);
        arena.clear();
        // One turn of very many small entries must not keep its memory for ever.
        arena.shrink_to(ARENA_BYTES_KEPT);
        self.arena = arena;
        written.map(Begun::Written)
    }

    /// Whether the journal takes a turn of this size. A full disk counts as a full journal: a
    /// checkpoint frees files without needing space.
    fn make_room(&mut self, body_max: usize) -> Result<bool, StorageError> {
        let mut room = self.journal.make_room(body_max, self.overcommit);
        if matches!(room, Err(StorageError::DiskFull)) && self.reserve.give_up(&*self.disk) {
            room = self.journal.make_room(body_max, self.overcommit);
        }
        match room {
            Err(StorageError::DiskFull) => Ok(false),
            room => room,
        }
    }

    fn write(
        &mut self,
        ops: &[Op],
        inline: &HashMap<GroupId, bool>,
        arena: &mut Vec<u8>,
    ) -> Result<WrittenTurn, StorageError> {
        let encoded = encode_ops(ops, arena);
        let refused = self.write_segments(ops, &encoded, arena)?;

        let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(ops.len() * 4);
        let mut body_bytes = 0;
        let mut records = 0;
        let mut referenced: Vec<Arc<SegmentFile>> = Vec::new();
        let mut refused_seqs = Vec::new();
        for (op, encoded) in ops.iter().zip(&encoded) {
            if refused
                .get(&op.group)
                .is_some_and(|attempt| op.attempt <= *attempt)
            {
                refused_seqs.push(op.seq);
                continue;
            }
            let header = |kind, entries| RecordHeader {
                kind,
                group: op.group,
                incarnation: op.incarnation,
                entries,
            };
            let start = arena.len();
            match &op.action {
                Action::Barrier => continue,
                Action::Segment(segment) => {
                    write_small(&header, &RecordBody::Segment(segment.identity), arena);
                }
                Action::Record(body) => write_small(&header, body, arena),
                Action::Append(append) => {
                    let count = append.entries.len() as u32;
                    let place = (append.segment.identity.id, append.position);
                    tracing::trace!(target: "corduroy::walk", room = 8, group = %op.group, entries = count, file = %append.segment.path.display(), "entries join a turn");
                    if inline.get(&op.group) == Some(&true) {
                        let body = 8 + append.frame_bytes;
                        header(RecordKind::Inline, count).encode(body, arena);
                        put_place(place, arena);
                        push(&mut pieces, Piece::Arena(start..arena.len()));
                        body_bytes += RECORD_OVERHEAD_BYTES + append.frame_bytes;
                        pieces.extend(encoded.pieces.iter().cloned());
                        records += 1;
                        add(&self.counters.inline_entries, u64::from(count));
                        continue;
                    }
                    let body = 8 + append.entries.len() * crate::journal::ENTRY_REF_BYTES;
                    header(RecordKind::Referenced, count).encode(body, arena);
                    put_place(place, arena);
                    for (entry, crc) in append.entries.iter().zip(&encoded.crcs) {
                        let length = entry.payload.size_bytes() as u32;
                        let max_timestamp = entry.payload.max_timestamp();
                        EntryRef {
                            crc: *crc,
                            length,
                            head: entry.head,
                            max_timestamp,
                        }
                        .encode(arena);
                    }
                    if !referenced
                        .iter()
                        .any(|known| Arc::ptr_eq(known, &append.segment))
                    {
                        referenced.push(append.segment.clone());
                    }
                    add(&self.counters.referenced_entries, u64::from(count));
                }
            }
            body_bytes += arena.len() - start;
            push(&mut pieces, Piece::Arena(start..arena.len()));
            records += 1;
        }

        if planted::is(Bug::AckBeforeFlush) {
            referenced.clear();
        }
        // A turn of barriers and refusals alone needs no record.
        let turn = if records == 0 {
            None
        } else {
            let chunks = slices(pieces.iter(), arena);
            let env = &self.env;
            let turn = self
                .journal
                .write_turn(&chunks, body_bytes, records, || env.random_u64())?;
            add(
                &self.counters.journal_bytes,
                page_up(body_bytes as u64 + 32),
            );
            Some(turn)
        };
        Ok(WrittenTurn {
            upto: ops.last().map_or(0, |op| op.seq),
            turn,
            refused: refused_seqs,
            is_synced: is_synced(ops),
            referenced,
            wants_written: ops.iter().any(|op| op.wants_written),
        })
    }

    /// Writes all frames to their segments. A full disk refuses the partition that met it, for
    /// this attempt; any other error ends the store.
    fn write_segments(
        &mut self,
        ops: &[Op],
        encoded: &[EncodedOp<'_>],
        arena: &[u8],
    ) -> Result<HashMap<GroupId, u32>, StorageError> {
        let mut runs: Vec<Run<'_>> = Vec::new();
        let mut last_run: HashMap<GroupId, usize> = HashMap::new();
        for (number, op) in ops.iter().enumerate() {
            if self.is_refused(op) {
                continue;
            }
            match &op.action {
                Action::Segment(segment) => {
                    let mut result = segment.create(&*self.disk).map(drop);
                    if matches!(result, Err(StorageError::DiskFull))
                        && self.reserve.give_up(&*self.disk)
                    {
                        result = segment.create(&*self.disk).map(drop);
                    }
                    self.refuse_if_full(op, result)?;
                }
                Action::Append(append) => {
                    let end = append.position + append.frame_bytes as u32;
                    if let Some(run) = last_run.get(&op.group).map(|run| &mut runs[*run])
                        && Arc::ptr_eq(run.segment, &append.segment)
                        && run.end == append.position
                    {
                        run.end = end;
                        run.ops.push(number);
                        continue;
                    }
                    last_run.insert(op.group, runs.len());
                    let (segment, position) = (&append.segment, append.position);
                    runs.push(Run {
                        segment,
                        position,
                        end,
                        ops: vec![number],
                    });
                }
                Action::Record(_) | Action::Barrier => {}
            }
        }
        for run in &runs {
            let op = &ops[run.ops[0]];
            if self.is_refused(op) {
                continue;
            }
            let pieces = run
                .ops
                .iter()
                .flat_map(|number| encoded[*number].pieces.iter());
            let chunks = slices(pieces, arena);
            let write = |disk: &dyn Disk| {
                let file = run.segment.open(disk)?;
                file.write_at(u64::from(run.position), &chunks)
                    .during("write", &run.segment.path)
            };
            let mut result = write(&*self.disk);
            if matches!(result, Err(StorageError::DiskFull)) && self.reserve.give_up(&*self.disk) {
                result = write(&*self.disk);
            }
            add(
                &self.counters.segment_bytes,
                u64::from(run.end - run.position),
            );
            self.refuse_if_full(op, result)?;
        }
        Ok(self.refused.clone())
    }

    fn is_refused(&self, op: &Op) -> bool {
        self.refused
            .get(&op.group)
            .is_some_and(|attempt| op.attempt <= *attempt)
    }

    fn refuse_if_full(
        &mut self,
        op: &Op,
        result: Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        match result {
            Err(StorageError::DiskFull) => {
                self.refused.insert(op.group, op.attempt);
                Ok(())
            }
            result => result,
        }
    }

    fn sync_journal(&self) -> Result<(), StorageError> {
        if let Some((file, path)) = self.journal.current() {
            file.flush().during("flush", path)?;
            add(&self.counters.flushes, 1);
        }
        Ok(())
    }

    /// Makes a written turn durable: the journal and every segment that it refers to, side by
    /// side. A failure here is final.
    pub(crate) fn finish(&mut self, written: WrittenTurn) -> Result<TurnReport, StorageError> {
        let started = self.env.now();
        let (sender, results) = channel();
        for segment in &written.referenced {
            let (segment, disk, sender) = (segment.clone(), self.disk.clone(), sender.clone());
            self.flushers.run(move || {
                let flush = || {
                    segment
                        .open(&*disk)?
                        .flush()
                        .during("flush", &segment.path)?;
                    segment.flush_name(&*disk)
                };
                sender.send(flush()).ok();
            });
        }
        drop(sender);
        if written.turn.is_some() && written.is_synced {
            self.sync_journal()?;
        }
        let mut flushed = 0;
        for result in results.iter() {
            result?;
            flushed += 1;
        }
        if flushed < written.referenced.len() {
            return Err(StorageError::Failed("a flush thread ended".into()));
        }
        add(&self.counters.flushes, flushed as u64);
        tracing::trace!(target: "corduroy::walk", room = "flush", turn = written.turn, syncs = flushed + usize::from(written.turn.is_some()), "a turn is durable");
        add(&self.counters.turns, 1);
        let micros = self
            .env
            .now()
            .saturating_duration_since(started)
            .as_micros();
        self.counters
            .note_flush(u64::try_from(micros).unwrap_or(u64::MAX));
        let files_used = self.journal.files_used();
        self.counters
            .journal_files
            .store(files_used as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(TurnReport {
            upto: written.upto,
            turn: written.turn.unwrap_or(0),
            refused: written.refused,
            oldest_last_turn: self.journal.oldest_last_turn(),
            files_used,
        })
    }
}

/// Whether the turn of these operations is synced before it is reported.
fn is_synced(ops: &[Op]) -> bool {
    let votes = || {
        let is_vote = |op: &Op| matches!(&op.action, Action::Record(RecordBody::Vote(_)));
        ops.iter().any(is_vote)
    };
    let appends = || ops.iter().any(|op| matches!(op.action, Action::Append(_)));
    let late = planted::is(Bug::CallbackBeforeSync)
        || planted::is(Bug::AckBeforeFlush) && appends() && !votes()
        || planted::is(Bug::VoteNotFlushed) && votes() && !appends();
    !late
}

fn put_place((segment, position): (u32, u32), arena: &mut Vec<u8>) {
    arena.extend_from_slice(&segment.to_le_bytes());
    arena.extend_from_slice(&position.to_le_bytes());
}

fn write_small(
    header: &impl Fn(RecordKind, u32) -> RecordHeader,
    body: &RecordBody,
    arena: &mut Vec<u8>,
) {
    let mut bytes = Vec::with_capacity(SMALL_RECORD_BYTES_MAX);
    body.encode_small(&mut bytes);
    header(body.kind(), 0).encode(bytes.len(), arena);
    arena.extend_from_slice(&bytes);
}

/// Encodes every entry's envelope into the arena; bodies stay where they are.
fn encode_ops<'a>(ops: &'a [Op], arena: &mut Vec<u8>) -> Vec<EncodedOp<'a>> {
    let mut encoded = Vec::with_capacity(ops.len());
    for op in ops {
        let mut this = EncodedOp {
            pieces: Vec::new(),
            crcs: Vec::new(),
        };
        if let Action::Append(append) = &op.action {
            arena.reserve(append.entries.len() * frame::STAMP_BYTES_MAX);
            this.pieces.reserve(append.entries.len() * 2);
            for entry in &append.entries {
                let start = arena.len();
                let crc = frame::encode(entry, append.segment.identity.salt, arena);
                this.crcs.push(crc);
                push(&mut this.pieces, Piece::Arena(start..arena.len()));
                if let Some(body) = frame::body(&entry.payload)
                    && !body.is_empty()
                {
                    this.pieces.push(Piece::Body(body));
                }
            }
        }
        encoded.push(this);
    }
    encoded
}

/// Adds a piece; neighbours in the arena become one.
fn push<'a>(pieces: &mut Vec<Piece<'a>>, piece: Piece<'a>) {
    if let (Some(Piece::Arena(last)), Piece::Arena(next)) = (pieces.last_mut(), &piece)
        && last.end == next.start
    {
        last.end = next.end;
        return;
    }
    pieces.push(piece);
}

fn slices<'a>(pieces: impl Iterator<Item = &'a Piece<'a>>, arena: &'a [u8]) -> Vec<IoSlice<'a>> {
    pieces
        .map(|piece| match piece {
            Piece::Arena(range) => IoSlice::new(&arena[range.clone()]),
            Piece::Body(bytes) => IoSlice::new(bytes),
        })
        .collect()
}

// Law: a turn's records fit into a file (see `plan`).
const _: () = assert!(PAGE_BYTES as usize > RECORD_OVERHEAD_BYTES);
