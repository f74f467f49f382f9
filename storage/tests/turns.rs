//! What a flush turn asks of the disk, and which thread asks it (DESIGN section 11).

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Disk, IoMode, Log, LogConfig, LogStart, NewEntry, Payload, RealDisk, SimDisk,
    Store, StoreConfig,
};
use support::recording::{Call, RecordingDisk};
use support::{batch, group, root, saved, simulate};

fn config(root: PathBuf, inline_bytes_max: usize, io: IoMode) -> StoreConfig {
    StoreConfig {
        journal_file_bytes: 1 << 20,
        journal_files_max: 4,
        inline_bytes_max,
        reserve_bytes: 0,
        low_bytes: 0,
        critical_bytes: 0,
        io,
        ..StoreConfig::new(root, 0)
    }
}

fn append(log: &Log, bytes: usize, done: AppendDone) {
    let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    let term = log.state().last.map_or(1, |(term, _)| term.get());
    let payload = Payload::Batch(batch(1, bytes, index as i64, index as u8));
    let entry = NewEntry {
        term: Term::new(term),
        index: LogIndex::new(index),
        base_offset: None,
        payload,
    };
    log.append(vec![entry], done).unwrap();
}

fn open(disk: &RecordingDisk, config: StoreConfig, env: &Env) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    corduroy_storage::recover(&disk, &config.root).unwrap();
    let store = Store::open(disk, config, env.clone()).unwrap();
    env.spawn_local(store.clone().run());
    store
}

async fn create(store: &Store, count: u32, config: LogConfig) -> Vec<Log> {
    let mut logs = Vec::new();
    for number in 0..count {
        let log = store.create_log(group(number), ReplicaId::new(1), config);
        logs.push(log.await.unwrap());
    }
    logs
}

const ROUNDS: usize = 40;
const LOGS: usize = 16;

/// A turn writes the journal once and flushes it once, whatever the number of partitions; what it
/// holds is told after that flush and before the next turn's write. Inline, nothing else is
/// flushed; by reference, each segment once beside the journal.
#[test]
fn a_turn_is_one_sync_and_is_told_before_the_next_is_written() {
    for inline_bytes_max in [usize::MAX, 0] {
        let disk = RecordingDisk::new(Arc::new(SimDisk::new()));
        simulate(1, |env| async move {
            let config = config(root(), inline_bytes_max, IoMode::Inline);
            let store = open(&disk, config, &env);
            let logs = create(&store, LOGS as u32, LogConfig::default()).await;
            for log in &logs {
                append(log, 300, AppendDone::default());
            }
            logs[0].flush().await.unwrap();
            let turns_before = store.metrics().turns;
            disk.take();
            for _ in 0..ROUNDS {
                for log in &logs {
                    let marking = disk.clone();
                    let told = AppendDone::durable(move |result| {
                        result.unwrap();
                        marking.mark();
                    });
                    append(log, 300, told);
                }
                logs[0].flush().await.unwrap();
            }
            let events = disk.take();
            let turns = usize::try_from(store.metrics().turns - turns_before).unwrap();
            let (mut writes, mut flushes, mut segment_flushes, mut told) = (0, 0, 0, 0);
            for event in &events {
                match event.call {
                    Call::Write if event.is_journal() => {
                        assert_eq!(told, writes * LOGS, "a turn was written too early");
                        writes += 1;
                    }
                    Call::Flush if event.is_journal() => {
                        flushes += 1;
                        assert_eq!(flushes, writes, "a turn was flushed twice or never");
                    }
                    Call::Flush if event.is_segment() => segment_flushes += 1,
                    Call::Mark => {
                        assert!(segment_flushes == 0 || segment_flushes == writes * LOGS);
                        assert_eq!(flushes, writes, "told before its turn was durable");
                        told += 1;
                    }
                    _ => {}
                }
            }
            assert_eq!((writes, flushes), (ROUNDS, ROUNDS));
            assert!(turns >= ROUNDS, "{turns} turns");
            assert_eq!(told, ROUNDS * LOGS);
            let referenced = if inline_bytes_max == 0 { LOGS } else { 0 };
            assert_eq!(segment_flushes, ROUNDS * referenced);
        });
    }
}

fn on_shard<F: Future<Output = ()>>(run: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, run(Env::real()));
}

/// With a flush thread of its own the order of the disk is the same: the journal is written and
/// flushed in turns, and nobody but a checkpoint flushes a segment whose entries are inline.
#[test]
fn a_turn_is_written_only_after_the_one_before_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let disk = RecordingDisk::new(Arc::new(RealDisk));
    on_shard(|env| async move {
        let store = open(&disk, config(root, usize::MAX, IoMode::Threads), &env);
        let logs = create(&store, LOGS as u32, LogConfig::default()).await;
        for log in &logs {
            append(log, 300, AppendDone::default());
        }
        logs[0].flush().await.unwrap();
        disk.take();
        for _ in 0..ROUNDS {
            for log in &logs {
                append(log, 300, AppendDone::default());
            }
            tokio::task::yield_now().await;
        }
        logs[0].flush().await.unwrap();
        let mut is_written = false;
        let mut turns = 0;
        // Files that are being prepared are the keeper's.
        for event in disk.take() {
            if !event.is_journal() || event.thread_name.starts_with("keep") {
                continue;
            }
            match event.call {
                Call::Write => {
                    assert!(
                        !is_written,
                        "a turn was written before the last was flushed"
                    );
                    is_written = true;
                }
                Call::Flush => {
                    assert!(is_written, "flushed twice");
                    is_written = false;
                    turns += 1;
                }
                _ => {}
            }
        }
        assert!(!is_written, "the last turn was told before it was flushed");
        assert!((1..=ROUNDS).contains(&turns), "{turns} turns");
        store.close().await.unwrap();
    });
}

/// Retention, truncation, a reset, checkpoints, a removed replica: whatever they remove, cut or
/// close, they do elsewhere. A shard's thread writes and flushes small turns (decision 0010), and
/// no more.
#[test]
fn a_shards_thread_removes_cuts_and_closes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let disk = RecordingDisk::new(Arc::new(RealDisk));
    on_shard(|env| async move {
        let config = StoreConfig {
            journal_file_bytes: 64 << 10,
            ..config(root.clone(), 1000, IoMode::Threads)
        };
        let store = open(&disk, config, &env);
        let small = LogConfig {
            segment_bytes: 8 << 10,
            ..LogConfig::default()
        };
        let logs = create(&store, 4, small).await;
        disk.take();
        for round in 0..60 {
            for log in &logs {
                append(
                    log,
                    if round % 3 == 0 { 3000 } else { 300 },
                    AppendDone::default(),
                );
            }
            logs[0].flush().await.unwrap();
        }
        retain(&logs[0], 40).await;
        logs[1]
            .truncate_after(Some(LogIndex::new(9)))
            .await
            .unwrap();
        let at = (Term::new(1), LogIndex::new(100));
        logs[2]
            .save_snapshot(saved(at, Offset::new(100)))
            .await
            .unwrap();
        let start = LogStart {
            index: LogIndex::new(101),
            offset: Offset::new(100),
            prev: Some(at),
        };
        logs[2].reset(start).await.unwrap();
        for log in &logs[..3] {
            append(log, 300, AppendDone::default());
        }
        store.remove_log(group(3)).await.unwrap();
        drop(logs);
        // The keeper works in order: once this is done, so is what was asked of it before.
        create_one_more(&store).await;
        let events = disk.take();
        let segments = |call| {
            let matching = events.iter().filter(|e| e.call == call && e.is_segment());
            matching.count()
        };
        assert!(segments(Call::Remove) > 10, "little was removed");
        assert!(segments(Call::Close) > 10, "little was closed");
        let here = std::thread::current().id();
        let forbidden: Vec<_> = (events.iter())
            .filter(|event| event.thread == here)
            .filter(|event| !matches!(event.call, Call::Write | Call::Flush | Call::Open))
            .collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
        store.close().await.unwrap();
        check_dir(&root);
    });
}

async fn create_one_more(store: &Store) {
    let log = store.create_log(group(99), ReplicaId::new(1), LogConfig::default());
    log.await.unwrap();
}

/// What was removed is gone.
fn check_dir(root: &Path) {
    let groups = corduroy_storage::list_groups(&RealDisk, root).unwrap();
    let numbers: Vec<_> = groups.iter().map(|(known, _)| *known).collect();
    assert!(!numbers.contains(&group(3)), "{numbers:?}");
}

async fn retain(log: &Log, before: u64) {
    let prev = (Term::new(1), LogIndex::new(before - 1));
    let offset = Offset::new(i64::try_from(before).unwrap());
    log.save_snapshot(saved(prev, offset)).await.unwrap();
    let start = LogStart {
        index: LogIndex::new(before),
        offset,
        prev: Some(prev),
    };
    log.set_log_start(start).await.unwrap();
}
