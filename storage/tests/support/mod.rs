//! A workload on a simulated disk, and the model that says what must be left of it.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod recording;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use corduroy_env::{Env, Listener, Network, NetworkFuture, Simulation, Stream};
use corduroy_record::{
    Batch, BatchBuilder, BuilderOptions, GroupId, LogIndex, Offset, PartitionIndex, ReplicaId,
    Term, TopicId,
};
use corduroy_storage::{
    AppendDone, Disk, Entry, EntryKind, IoMode, Log, LogConfig, LogStart, NewEntry, Payload,
    SavedTables, SimDisk, StorageError, Store, StoreConfig, Vote,
};

struct NoNetwork;

impl Network for NoNetwork {
    fn listen(&self, _addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    fn connect(&self, _addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// Runs a test on a paused clock with seeded randomness.
pub fn simulate<T, F: Future<Output = T>>(seed: u64, run: impl FnOnce(Env) -> F) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let network = Box::new(NoNetwork);
        let simulation = Simulation {
            seed,
            unix_millis: 1_700_000_000_000,
            network,
        };
        run(Env::simulated(simulation)).await
    })
}

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub fn root() -> PathBuf {
    PathBuf::from("/data")
}

pub fn group(number: u32) -> GroupId {
    let mut bytes = [0; 16];
    bytes[0] = 1;
    GroupId {
        topic: TopicId::from_bytes(bytes),
        partition: PartitionIndex::new(i32::try_from(number).unwrap()),
    }
}

/// A store small enough for everything to happen often.
pub fn small_store(inline_bytes_max: usize) -> StoreConfig {
    StoreConfig {
        journal_file_bytes: 64 << 10,
        journal_files_max: 3,
        inline_bytes_max,
        cache_bytes: 4 << 10,
        reserve_bytes: 0,
        low_bytes: 0,
        critical_bytes: 0,
        io: IoMode::Inline,
        ..StoreConfig::new(root(), 0)
    }
}

pub fn small_log() -> LogConfig {
    LogConfig {
        segment_bytes: 6 << 10,
        segment_ms: i64::MAX / 4,
        index_interval_bytes: 512,
    }
}

pub fn open_store(disk: &SimDisk, config: StoreConfig, env: &Env) -> Result<Store, StorageError> {
    let store = Store::open(Arc::new(disk.clone()), config, env.clone())?;
    env.spawn_local(store.clone().run());
    Ok(store)
}

pub fn recover(disk: &SimDisk) -> Result<corduroy_storage::RecoveryReport, StorageError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    corduroy_storage::recover(&disk, &root())
}

/// A batch of `records` records with about `bytes` of value bytes each, all at `timestamp`.
pub fn batch(records: u32, bytes: usize, timestamp: i64, fill: u8) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions::default());
    for number in 0..records {
        let value = vec![fill.wrapping_add(number as u8); bytes];
        builder
            .push(timestamp, Some(b"key"), Some(&value), &[])
            .unwrap();
    }
    builder.finish()
}

/// What the model keeps of an entry.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelEntry {
    pub term: u64,
    pub index: u64,
    pub base_offset: i64,
    pub records: u32,
    pub kind: EntryKind,
    pub bytes: Bytes,
}

impl std::fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ModelEntry {
            term,
            index,
            base_offset,
            records,
            kind,
            bytes,
        } = self;
        let crc = corduroy_record::crc32c(bytes);
        let length = bytes.len();
        write!(
            f,
            "{index}@{term}:{base_offset}+{records} {kind:?} {length}B {crc:08x}"
        )
    }
}

impl ModelEntry {
    pub fn of(entry: &Entry) -> ModelEntry {
        let bytes = match &entry.payload {
            Payload::Batch(batch) => batch.to_bytes(),
            Payload::Internal(bytes) | Payload::Membership(bytes) => bytes.clone(),
            Payload::Blank => Bytes::new(),
        };
        ModelEntry {
            term: entry.head.term.get(),
            index: entry.head.index.get(),
            base_offset: entry.head.base_offset.get(),
            records: entry.head.records,
            kind: entry.head.kind,
            bytes,
        }
    }
}

/// One indivisible change of a log.
#[derive(Clone, Debug)]
pub enum Step {
    Entry(ModelEntry),
    /// Everything from this index on goes.
    Truncate(u64),
    Start(LogStart),
    Reset(LogStart),
    Vote(Vote),
}

/// A log as a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLog {
    pub start: LogStart,
    pub entries: Vec<ModelEntry>,
    pub vote: Option<Vote>,
}

impl Default for ModelLog {
    fn default() -> Self {
        ModelLog {
            start: LogStart::ZERO,
            entries: Vec::new(),
            vote: None,
        }
    }
}

impl ModelLog {
    pub fn next_index(&self) -> u64 {
        self.entries
            .last()
            .map_or(self.start.index.get(), |entry| entry.index + 1)
    }

    pub fn next_offset(&self) -> i64 {
        self.entries.last().map_or(self.start.offset.get(), |last| {
            last.base_offset + i64::from(last.records)
        })
    }

    pub fn last(&self) -> Option<(Term, LogIndex)> {
        self.entries
            .last()
            .map(|entry| (Term::new(entry.term), LogIndex::new(entry.index)))
            .or(self.start.prev)
    }

    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Entry(entry) => self.entries.push(entry.clone()),
            Step::Truncate(end) => self.entries.retain(|entry| entry.index < *end),
            Step::Start(start) => {
                self.start = *start;
                self.entries
                    .retain(|entry| entry.index >= start.index.get());
            }
            Step::Reset(start) => {
                self.start = *start;
                self.entries.clear();
            }
            Step::Vote(vote) => self.vote = Some(*vote),
        }
    }
}

/// One log under test: what was done to it, and how much of that is durable.
pub struct Subject {
    pub log: RefCell<Log>,
    pub group: GroupId,
    pub model: RefCell<ModelLog>,
    pub steps: RefCell<Vec<Step>>,
    pub durable_steps: Rc<Cell<usize>>,
    pub term: Cell<u64>,
}

/// What a workload does next.
#[derive(Clone, Debug)]
pub enum Action {
    Append {
        count: u32,
        records: u32,
        bytes: usize,
    },
    Internal {
        bytes: usize,
    },
    Vote,
    Truncate {
        back: u64,
    },
    Committed,
    Tables,
    Retain {
        back: u64,
    },
    Reset {
        ahead: u64,
    },
    Read {
        from: u64,
        count: u64,
    },
    Flush,
    Yield,
}

impl Action {
    pub fn random(random: &mut Random) -> Action {
        match random.below(40) {
            0..=13 => Action::Append {
                count: 1 + random.below(4) as u32,
                records: 1 + random.below(3) as u32,
                bytes: 20 + random.below(700) as usize,
            },
            14..=15 => Action::Append {
                count: 1,
                records: 1,
                bytes: 3000,
            },
            16..=17 => Action::Internal {
                bytes: random.below(200) as usize,
            },
            18..=20 => Action::Vote,
            21..=22 => Action::Truncate {
                back: random.below(6),
            },
            23 => Action::Committed,
            24..=25 => Action::Tables,
            26..=27 => Action::Retain {
                back: random.below(12),
            },
            28 => Action::Reset {
                ahead: random.below(5),
            },
            29..=32 => Action::Read {
                from: random.next(),
                count: 1 + random.below(8),
            },
            33..=34 => Action::Flush,
            _ => Action::Yield,
        }
    }
}

impl Subject {
    pub async fn create(store: &Store, number: u32) -> Result<Subject, StorageError> {
        let group = group(number);
        let log = store
            .create_log(group, ReplicaId::new(7), small_log())
            .await?;
        Ok(Subject {
            log: RefCell::new(log),
            group,
            model: RefCell::new(ModelLog::default()),
            steps: RefCell::new(Vec::new()),
            durable_steps: Rc::new(Cell::new(0)),
            term: Cell::new(1),
        })
    }

    fn log(&self) -> Log {
        self.log.borrow().clone()
    }

    fn note(&self, step: Step) {
        self.model.borrow_mut().apply(&step);
        self.steps.borrow_mut().push(step);
    }

    /// Everything done so far is durable.
    fn note_durable(&self) {
        self.durable_steps.set(self.steps.borrow().len());
    }

    fn append(&self, payloads: Vec<Payload>) {
        let mut entries = Vec::new();
        let term = self.term.get();
        {
            let model = self.model.borrow();
            for (number, payload) in payloads.into_iter().enumerate() {
                let index = LogIndex::new(model.next_index() + number as u64);
                entries.push(NewEntry {
                    term: Term::new(term),
                    index,
                    base_offset: None,
                    payload,
                });
            }
        }
        let kept = entries.clone();
        let after = self.steps.borrow().len() + entries.len();
        let durable = self.durable_steps.clone();
        let heads = self
            .log()
            .append(
                entries,
                AppendDone::durable(move |result| {
                    if result.is_ok() {
                        assert!(durable.get() <= after, "callbacks out of order");
                        durable.set(after);
                    }
                }),
            )
            .unwrap();
        for (head, entry) in heads.into_iter().zip(kept) {
            assert_eq!(head.base_offset.get(), self.model.borrow().next_offset());
            let mut payload = entry.payload;
            if let Payload::Batch(batch) = &mut payload {
                batch.stamp(
                    head.base_offset,
                    corduroy_record::LeaderEpoch::from_term(head.term),
                );
            }
            self.note(Step::Entry(ModelEntry::of(&Entry { head, payload })));
        }
    }

    /// Does one thing to the log and to the model. An error is the disk's.
    pub async fn perform(&self, action: &Action) -> Result<(), StorageError> {
        let log = self.log();
        match action {
            Action::Append {
                count,
                records,
                bytes,
            } => {
                let fill = self.steps.borrow().len() as u8;
                let timestamp = 1000 + 10 * self.steps.borrow().len() as i64;
                if log.flush_failed() {
                    return Err(StorageError::Closed);
                }
                self.append(
                    (0..*count)
                        .map(|_| Payload::Batch(batch(*records, *bytes, timestamp, fill)))
                        .collect(),
                );
            }
            Action::Internal { bytes } => {
                if log.flush_failed() {
                    return Err(StorageError::Closed);
                }
                self.append(vec![
                    Payload::Blank,
                    Payload::Internal(Bytes::from(vec![9; *bytes])),
                    Payload::Membership(Bytes::from_static(b"members")),
                ]);
            }
            Action::Vote => {
                self.term.set(self.term.get() + 1);
                let vote = Vote {
                    term: Term::new(self.term.get()),
                    voted_for: Some(ReplicaId::new(self.term.get() % 3)),
                    committed: self.term.get().is_multiple_of(2),
                };
                self.note(Step::Vote(vote));
                let after = self.steps.borrow().len();
                log.save_vote(vote).await?;
                // Law 1: everything before it is durable.
                assert!(
                    self.durable_steps.get() + 1 >= after,
                    "a vote overtook its log"
                );
                self.note_durable();
            }
            Action::Truncate { back } => {
                let (start, next) = {
                    let model = self.model.borrow();
                    (model.start, model.next_index())
                };
                let end = next.saturating_sub(*back).max(start.index.get());
                self.note(Step::Truncate(end));
                let last = if end == start.index.get() {
                    None
                } else {
                    Some(LogIndex::new(end - 1))
                };
                log.truncate_after(last).await?;
                self.note_durable();
                self.term.set(self.term.get() + 1);
            }
            Action::Committed => {
                if let Some(last) = self.model.borrow().last() {
                    log.save_committed(last);
                }
            }
            Action::Tables => {
                let (last, offset) = {
                    let model = self.model.borrow();
                    (model.last(), model.next_offset())
                };
                if let Some(at) = last {
                    let tables = Bytes::from(format!("tables of {}", at.1));
                    log.save_tables(at, Offset::new(offset), Bytes::new(), tables)
                        .await?;
                }
            }
            Action::Retain { back } => {
                let start = {
                    let model = self.model.borrow();
                    let Some((_, last)) = model.last() else {
                        return Ok(());
                    };
                    let index = (last.get() + 1)
                        .saturating_sub(*back)
                        .max(model.start.index.get());
                    let at = model.entries.iter().find(|entry| entry.index == index);
                    let prev = model
                        .entries
                        .iter()
                        .rev()
                        .find(|entry| entry.index < index)
                        .map(|entry| (Term::new(entry.term), LogIndex::new(entry.index)))
                        .or(model.start.prev);
                    let offset = at.map_or(model.next_offset(), |entry| entry.base_offset);
                    LogStart {
                        index: LogIndex::new(index),
                        offset: Offset::new(offset),
                        prev,
                    }
                };
                let Some(at) = start.prev else { return Ok(()) };
                if log.snapshot_at().is_some_and(|known| known.1 > at.1) {
                    return Ok(());
                }
                log.save_snapshot(saved(at, start.offset)).await?;
                self.note(Step::Start(start));
                log.set_log_start(start).await?;
                self.note_durable();
            }
            Action::Reset { ahead } => {
                let start = {
                    let model = self.model.borrow();
                    let index = model.next_index() + ahead;
                    let at = (Term::new(self.term.get()), LogIndex::new(index));
                    LogStart {
                        index: LogIndex::new(index + 1),
                        offset: Offset::new(
                            model.next_offset() + 3 * i64::try_from(*ahead).unwrap(),
                        ),
                        prev: Some(at),
                    }
                };
                log.save_snapshot(saved(start.prev.unwrap(), start.offset))
                    .await?;
                self.note(Step::Reset(start));
                log.reset(start).await?;
                self.note_durable();
            }
            Action::Read { from, count } => {
                let (expected, from, to) = {
                    let model = self.model.borrow();
                    let (first, next) = (model.start.index.get(), model.next_index());
                    let from = first + from % (next - first + 1);
                    let to = (from + count).min(next);
                    let expected: Vec<ModelEntry> = model
                        .entries
                        .iter()
                        .filter(|entry| entry.index >= from && entry.index < to)
                        .cloned()
                        .collect();
                    (expected, from, to)
                };
                let found = read_range(&log, from, to).await?;
                assert_eq!(found, expected, "read {from}..{to}");
            }
            Action::Flush => {
                log.flush().await?;
                self.note_durable();
            }
            Action::Yield => tokio::task::yield_now().await,
        }
        Ok(())
    }
}

pub fn saved(at: (Term, LogIndex), offset: Offset) -> SavedTables {
    SavedTables {
        at,
        offset,
        membership: Bytes::from_static(b"members"),
        tables: Bytes::from(format!("snapshot of {}", at.1)),
    }
}

/// Reads `from..to` by several calls with a small limit, as a catching-up follower does.
pub async fn read_range(log: &Log, from: u64, to: u64) -> Result<Vec<ModelEntry>, StorageError> {
    let mut found = Vec::new();
    let mut next = from;
    while next < to {
        let read = log
            .read(LogIndex::new(next), LogIndex::new(to), 2000)
            .await?;
        assert!(
            !read.is_empty(),
            "a range that is not empty read as nothing at {next}"
        );
        for entry in &read {
            assert_eq!(entry.head.index.get(), next, "a hole");
            next += 1;
        }
        found.extend(read.iter().map(ModelEntry::of));
    }
    Ok(found)
}

/// The log as reads show it.
pub async fn observe(log: &Log) -> Result<ModelLog, StorageError> {
    let state = log.state();
    let next = state
        .last
        .map_or(state.log_start.index.get(), |(_, index)| index.get() + 1);
    let entries = read_range(log, state.log_start.index.get(), next).await?;
    Ok(ModelLog {
        start: state.log_start,
        entries,
        vote: state.vote,
    })
}

/// Checks a reopened log against what was done to it. Returns the model it matches.
pub async fn check_survivor(log: &Log, steps: &[Step], durable: usize) -> ModelLog {
    let seen = observe(log).await.unwrap();
    check_laws(log, &seen).await;
    let mut model = ModelLog::default();
    for step in &steps[..durable] {
        model.apply(step);
    }
    let mut matches = None;
    let mut votes = vec![model.vote];
    let same = |model: &ModelLog| model.start == seen.start && model.entries == seen.entries;
    for (number, next) in steps[durable..].iter().map(Some).chain([None]).enumerate() {
        // A log start of a torn turn stands for itself: its snapshot is durable.
        let mut started = model.clone();
        if matches.is_none() && !same(&model) {
            for step in &steps[durable + number..] {
                if let Step::Start(start) = step {
                    started.apply(&Step::Start(*start));
                }
            }
        }
        if matches.is_none() && same(&started) {
            matches = Some(started);
        }
        if let Some(step) = next {
            model.apply(step);
            votes.push(model.vote);
        }
    }
    assert!(
        votes.contains(&seen.vote),
        "vote {:?} is none of those from the last durable one on: {votes:?}",
        seen.vote
    );
    let Some(mut matched) = matches else {
        let mut least = ModelLog::default();
        for step in &steps[..durable] {
            least.apply(step);
        }
        panic!(
            "the log is no prefix of what was done to it that holds all that was durable:\n\
             found {}..{} start {:?}\ndurable {}..{} start {:?}\nsteps after it: {:?}",
            seen.start.index,
            seen.next_index(),
            seen.start,
            least.start.index,
            least.next_index(),
            least.start,
            steps[durable..].iter().map(brief).collect::<Vec<_>>()
        );
    };
    matched.vote = seen.vote;
    matched
}

fn brief(step: &Step) -> String {
    match step {
        Step::Entry(entry) => format!("entry {}@{}", entry.index, entry.term),
        other => format!("{other:?}"),
    }
}

/// The laws that hold for every log at every moment.
pub async fn check_laws(log: &Log, seen: &ModelLog) {
    let state = log.state();
    assert!(
        !state.damaged && !state.no_vote,
        "a crash looks like damage"
    );
    let mut offset = state.log_start.offset.get();
    let mut term = state.log_start.prev.map_or(0, |(term, _)| term.get());
    for entry in &seen.entries {
        assert_eq!(
            entry.base_offset, offset,
            "offsets do not follow at {}",
            entry.index
        );
        assert!(entry.term >= term, "terms fall at {}", entry.index);
        let known = log.term_of(LogIndex::new(entry.index)).map(Term::get);
        assert_eq!(known, Some(entry.term), "epoch table at {}", entry.index);
        offset += i64::from(entry.records);
        term = entry.term;
    }
    assert_eq!(state.next_offset.get(), offset);
    assert_eq!(state.last, seen.last());
    if let Some((_, committed)) = state.committed {
        assert!(
            Some(committed) <= state.durable_last,
            "law 6: committed beyond durable"
        );
    }
    if let Some(tables) = log.tables().await {
        assert!(
            Some(tables.at.1) <= state.durable_last,
            "law 6: tables beyond durable"
        );
        assert_eq!(
            tables.tables,
            Bytes::from(format!("tables of {}", tables.at.1))
        );
    }
    if let Some(prev) = state.log_start.prev {
        let snapshot = log
            .snapshot()
            .await
            .expect("law 9: a log start without its snapshot");
        assert!(
            snapshot.at.1 >= prev.1,
            "law 9: a snapshot behind the log's start"
        );
    }
}

/// Whether the store behind a log has stopped.
pub trait FlushFailed {
    fn flush_failed(&self) -> bool;
}

impl FlushFailed for Log {
    fn flush_failed(&self) -> bool {
        self.append(Vec::new(), AppendDone::default()).is_err()
    }
}
