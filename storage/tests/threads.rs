//! The store as a node runs it: real files, a flush thread, many partitions in one turn.

mod support;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Disk, IoMode, Log, LogConfig, NewEntry, Payload, RealDisk, Store, StoreConfig, Vote,
};
use support::{batch, group, saved};

fn config(root: &Path) -> StoreConfig {
    StoreConfig {
        journal_file_bytes: 256 << 10,
        journal_files_max: 4,
        cache_bytes: 64 << 10,
        reserve_bytes: 64 << 10,
        low_bytes: 0,
        critical_bytes: 0,
        io: IoMode::Threads,
        ..StoreConfig::new(root.to_owned(), 0)
    }
}

fn log_config() -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        ..LogConfig::default()
    }
}

fn on_shard<F: Future<Output = ()>>(run: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, run(Env::real()));
}

fn open(root: &Path, env: &Env) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    corduroy_storage::recover(&disk, root).unwrap();
    let store = Store::open(disk, config(root), env.clone()).unwrap();
    env.spawn_local(store.clone().run());
    store
}

fn append(log: &Log, bytes: usize, done: AppendDone) {
    let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    let payload = Payload::Batch(batch(1, bytes, index as i64, index as u8));
    let entry = NewEntry {
        term: Term::new(1),
        index: LogIndex::new(index),
        base_offset: None,
        payload,
    };
    log.append(vec![entry], done).unwrap();
}

#[test]
fn many_partitions_share_turns_and_callbacks_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    on_shard(|env| async move {
        let store = open(&root, &env);
        let mut logs = Vec::new();
        for number in 0..16 {
            let log = store
                .create_log(group(number), ReplicaId::new(1), log_config())
                .await;
            logs.push(log.unwrap());
        }
        let finished: Rc<RefCell<Vec<(u32, u32)>>> = Rc::default();
        let written = Rc::new(Cell::new(0));
        for round in 0..50 {
            for (number, log) in logs.iter().enumerate() {
                let (finished, written) = (finished.clone(), written.clone());
                let number = number as u32;
                let done = AppendDone {
                    written: Some(Box::new(move |result| {
                        result.unwrap();
                        written.set(written.get() + 1);
                    })),
                    durable: Some(Box::new(move |result| {
                        result.unwrap();
                        finished.borrow_mut().push((round, number));
                    })),
                };
                // Small and large ones: inline and by reference in the same turns.
                append(
                    log,
                    if number.is_multiple_of(4) {
                        40_000
                    } else {
                        300
                    },
                    done,
                );
            }
            tokio::task::yield_now().await;
        }
        logs[15].flush().await.unwrap();
        let finished = finished.take();
        assert_eq!(finished.len(), 800);
        assert!(finished.is_sorted(), "callbacks fired out of order");
        assert_eq!(written.get(), 800);
        let metrics = store.metrics();
        assert!(
            metrics.inline_entries > 0 && metrics.referenced_entries > 0,
            "{metrics:?}"
        );
        assert!(
            metrics.turns < 400,
            "{} turns for 800 appends",
            metrics.turns
        );
        for log in &logs {
            let mut next = Offset::ZERO;
            while next < Offset::new(50) {
                for found in log
                    .read_offsets(next, Offset::new(50), usize::MAX)
                    .await
                    .unwrap()
                {
                    assert_eq!(found.header().base_offset, next);
                    next = found.header().next_offset();
                }
            }
        }
        store.close().await.unwrap();
    });
}

#[test]
fn what_was_durable_is_there_after_the_process_died() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let vote = Vote {
        term: Term::new(9),
        voted_for: Some(ReplicaId::new(3)),
        committed: true,
    };
    on_shard(|env| {
        let root = root.clone();
        async move {
            let store = open(&root, &env);
            for number in 0..8 {
                let log = store
                    .create_log(group(number), ReplicaId::new(1), log_config())
                    .await
                    .unwrap();
                for round in 0..100 {
                    append(&log, 200 + 40 * round, AppendDone::default());
                }
                log.save_vote(vote).await.unwrap();
            }
            // No close: the journal is all there is.
        }
    });
    on_shard(|env| async move {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let report = corduroy_storage::recover(&disk, &root).unwrap();
        assert!(!report.clean && report.damaged.is_empty(), "{report:?}");
        let store = open(&root, &env);
        for number in 0..8 {
            let log = store.open_log(group(number), log_config()).unwrap();
            assert_eq!(log.state().vote, Some(vote));
            assert_eq!(log.state().next_offset, Offset::new(100));
            let end = LogIndex::new(100);
            let mut next = LogIndex::new(0);
            while next < end {
                for entry in log.read(next, end, 10_000).await.unwrap() {
                    assert_eq!(entry.head.index, next);
                    let Payload::Batch(found) = entry.payload else {
                        panic!("not a batch")
                    };
                    found.check_crc().unwrap();
                    next = next.next();
                }
            }
        }
        store.close().await.unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        assert!(corduroy_storage::recover(&disk, &root).unwrap().clean);
    });
}

#[test]
fn a_removed_replica_leaves_nothing_and_its_name_can_be_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    on_shard(|env| async move {
        let store = open(&root, &env);
        for round in 1..20 {
            let log = store
                .create_log(group(0), ReplicaId::new(round), log_config())
                .await
                .unwrap();
            assert!(log.state().last.is_none(), "old data in round {round}");
            for _ in 0..round {
                append(&log, 1000, AppendDone::default());
            }
            store.remove_log(group(0)).await.unwrap();
            assert!(
                log.save_vote(Vote {
                    term: Term::new(1),
                    voted_for: None,
                    committed: false
                })
                .await
                .is_err()
            );
            assert!(!store.contains(group(0)));
        }
        let log = store
            .create_log(group(0), ReplicaId::new(99), log_config())
            .await
            .unwrap();
        append(&log, 10, AppendDone::default());
        log.flush().await.unwrap();
        drop(store);
        // The journal still holds records of the removed incarnations.
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let root = root.clone();
        corduroy_storage::recover(&disk, &root).unwrap();
        let groups = corduroy_storage::list_groups(&*disk, &root).unwrap();
        assert_eq!(groups, vec![(group(0), ReplicaId::new(99))]);
    });
    let root = dir.path().to_owned();
    on_shard(|env| async move {
        let store = open(&root, &env);
        let log = store.open_log(group(0), log_config()).unwrap();
        assert_eq!(log.state().next_offset, Offset::new(1));
        assert_eq!(log.replica(), ReplicaId::new(99));
    });
}

#[test]
fn of_two_snapshots_at_once_the_later_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    on_shard(|env| async move {
        let store = open(&root, &env);
        let log = store
            .create_log(group(0), ReplicaId::new(1), log_config())
            .await
            .unwrap();
        for _ in 0..10 {
            append(&log, 100, AppendDone::default());
        }
        log.flush().await.unwrap();
        let at = |index: u64| {
            saved(
                (Term::new(1), LogIndex::new(index)),
                Offset::new(index as i64 + 1),
            )
        };
        // Both are begun before either is written.
        let (later, earlier) = tokio::join!(log.save_snapshot(at(8)), log.save_snapshot(at(4)));
        later.unwrap();
        assert!(earlier.is_err(), "an older snapshot replaced a newer one");
        assert_eq!(log.snapshot_at(), Some((Term::new(1), LogIndex::new(8))));
        assert_eq!(log.snapshot().await.unwrap().at.1, LogIndex::new(8));
        store.close().await.unwrap();
    });
}
