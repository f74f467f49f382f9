//! A disk that fails flushes, and one that is full.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use corduroy_env::Env;
use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, AppendError, DiskLevel, Log, LogStart, NewEntry, Payload, SimDisk, StorageError,
    Store, StoreConfig, Vote,
};
use support::{
    batch, group, observe, open_store, recover, saved, simulate, small_log, small_store,
};

fn entry(log: &Log, bytes: usize) -> Vec<NewEntry> {
    let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    let payload = Payload::Batch(batch(1, bytes, 0, index as u8));
    let (term, index) = (Term::new(1), LogIndex::new(index));
    vec![NewEntry {
        term,
        index,
        base_offset: None,
        payload,
    }]
}

async fn store_and_logs(disk: &SimDisk, env: &Env, config: StoreConfig) -> (Store, Vec<Log>) {
    recover(disk).unwrap();
    let store = open_store(disk, config, env).unwrap();
    let mut logs = Vec::new();
    for number in 0..2 {
        let log = store
            .create_log(group(number), ReplicaId::new(1), small_log())
            .await;
        logs.push(log.unwrap());
    }
    (store, logs)
}

/// After a failed flush of files named `path_part`, nothing is accepted, nothing retried.
fn check_failed_flush(path_part: &'static str, inline_bytes_max: usize) {
    let disk = SimDisk::new();
    simulate(1, |env| async move {
        let (store, logs) = store_and_logs(&disk, &env, small_store(inline_bytes_max)).await;
        logs[0]
            .append(entry(&logs[0], 100), AppendDone::default())
            .unwrap();
        logs[0].flush().await.unwrap();

        disk.fail_flush(path_part, 0);
        let outcomes: Rc<RefCell<Vec<Result<(), StorageError>>>> = Rc::default();
        for log in &logs {
            for _ in 0..3 {
                let outcomes = outcomes.clone();
                let done = AppendDone::durable(move |result| outcomes.borrow_mut().push(result));
                log.append(entry(log, 100), done).unwrap();
            }
        }
        let vote = Vote {
            term: Term::new(2),
            voted_for: None,
            committed: false,
        };
        assert!(matches!(
            logs[1].save_vote(vote).await,
            Err(StorageError::Failed(_))
        ));
        assert_eq!(outcomes.borrow().len(), 6);
        assert!(outcomes.borrow().iter().all(Result::is_err));
        assert!(store.failed().is_some());

        let flushes = disk.flushes();
        assert!(matches!(
            logs[0].append(entry(&logs[0], 10), AppendDone::default()),
            Err(AppendError::Storage(StorageError::Failed(_)))
        ));
        assert!(logs[0].save_vote(vote).await.is_err());
        assert!(store.close().await.is_err());
        assert_eq!(disk.flushes(), flushes, "a failed flush was tried again");
        drop((store, logs));

        // The pages may read as clean; after a power failure only the truth is left.
        disk.crash(1);
        let (_store, logs) = reopen(&disk, &env);
        assert_eq!(observe(&logs[0]).await.unwrap().entries.len(), 1);
        assert_eq!(observe(&logs[1]).await.unwrap().entries.len(), 0);
        // A vote that was never answered may have reached the disk, or not.
        assert!(logs[1].state().vote.is_none_or(|found| found == vote));
    });
}

fn reopen(disk: &SimDisk, env: &Env) -> (Store, Vec<Log>) {
    let report = recover(disk).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
    let store = open_store(disk, small_store(1000), env).unwrap();
    let logs = (0..2)
        .map(|number| store.open_log(group(number), small_log()).unwrap())
        .collect();
    (store, logs)
}

#[test]
fn a_failed_journal_flush_is_final() {
    check_failed_flush(".journal", usize::MAX);
}

#[test]
fn a_failed_segment_flush_is_final() {
    check_failed_flush(".log", 0);
}

#[test]
fn a_failed_checkpoint_flush_is_final() {
    let disk = SimDisk::new();
    simulate(2, |env| async move {
        let (store, logs) = store_and_logs(&disk, &env, small_store(usize::MAX)).await;
        disk.fail_flush(".log", 0);
        // Inline entries: only checkpoints flush segments.
        let mut failed = false;
        for _ in 0..200 {
            match logs[0].append(entry(&logs[0], 2000), AppendDone::default()) {
                Ok(_) => {}
                Err(_) => {
                    failed = true;
                    break;
                }
            }
            if logs[0].flush().await.is_err() {
                failed = true;
                break;
            }
        }
        assert!(failed && store.failed().is_some());
    });
}

#[test]
fn a_full_disk_refuses_the_partition_and_takes_votes_and_recovers() {
    for inline_bytes_max in [0, usize::MAX] {
        let disk = SimDisk::new();
        simulate(3, |env| async move {
            let config = StoreConfig {
                reserve_bytes: 8 << 10,
                critical_bytes: 16 << 10,
                ..small_store(inline_bytes_max)
            };
            let (store, logs) = store_and_logs(&disk, &env, config).await;
            logs[0]
                .append(entry(&logs[0], 1000), AppendDone::default())
                .unwrap();
            logs[0].flush().await.unwrap();
            let used = disk
                .files()
                .iter()
                .map(|path| disk.bytes(path).unwrap().len())
                .sum::<usize>();
            disk.set_capacity(used as u64 + 3000);

            let mut durable = 1;
            let error = loop {
                if let Err(error) = logs[0].append(entry(&logs[0], 1000), AppendDone::default()) {
                    break error.to_string();
                }
                match logs[0].flush().await {
                    Ok(()) => durable += 1,
                    Err(error) => break error.to_string(),
                }
                assert!(durable < 100, "the disk never fills");
            };
            assert!(error.contains("full"), "{error}");
            assert!(durable > 3, "the reserve was not used: {durable}");
            assert_eq!(store.failed(), None, "a full disk is not a failed flush");
            assert_eq!(store.disk_level(), DiskLevel::Critical);

            // Votes of both partitions go on, and what was durable reads back.
            for term in 2..20 {
                let vote = Vote {
                    term: Term::new(term),
                    voted_for: None,
                    committed: false,
                };
                for log in &logs {
                    log.save_vote(vote).await.unwrap();
                }
            }
            assert_eq!(observe(&logs[0]).await.unwrap().entries.len(), durable);

            // Space comes back: no restart.
            disk.set_capacity(u64::MAX);
            for log in &logs {
                log.append(entry_in(log, 19, 1000), AppendDone::default())
                    .unwrap();
                log.flush().await.unwrap();
            }
            assert_eq!(observe(&logs[0]).await.unwrap().entries.len(), durable + 1);
            drop((store, logs));
            disk.crash(1);
            let (_store, logs) = reopen(&disk, &env);
            assert_eq!(observe(&logs[0]).await.unwrap().entries.len(), durable + 1);
            assert_eq!(logs[1].state().vote.unwrap().term, Term::new(19));
        });
    }
}

fn entry_in(log: &Log, term: u64, bytes: usize) -> Vec<NewEntry> {
    let mut entries = entry(log, bytes);
    entries[0].term = Term::new(term);
    entries
}

/// A cut that shares its turn with an append for which there is no room is refused with it. The log
/// is then again what the disk has, and takes everything once there is space, without a restart.
#[test]
fn a_cut_that_a_full_disk_refused_is_taken_back_and_works_when_there_is_space() {
    for inline_bytes_max in [0, usize::MAX] {
        for cut in ["truncate", "reset", "log start"] {
            let disk = SimDisk::new();
            simulate(4, |env| async move {
                let config = small_store(inline_bytes_max);
                let (store, logs) = store_and_logs(&disk, &env, config).await;
                let log = &logs[0];
                for _ in 0..20 {
                    log.append(entry(log, 1000), AppendDone::default()).unwrap();
                }
                log.flush().await.unwrap();
                let at = (Term::new(1), LogIndex::new(9));
                log.save_snapshot(saved(at, Offset::new(10))).await.unwrap();
                let before = (log.state(), log.segment_boundaries());
                let whole = observe(log).await.unwrap();

                disk.set_capacity(0);
                // More than the rest of the segment: a new one has no room.
                for _ in 0..8 {
                    log.append(entry(log, 1000), AppendDone::default()).unwrap();
                }
                let start = LogStart {
                    index: LogIndex::new(10),
                    offset: Offset::new(10),
                    prev: Some(at),
                };
                let result = match cut {
                    "truncate" => log.truncate_after(Some(LogIndex::new(3))).await,
                    "reset" => log.reset(LogStart::ZERO).await,
                    _ => log.set_log_start(start).await,
                };
                assert!(matches!(result, Err(StorageError::DiskFull)), "{result:?}");
                assert_eq!(store.failed(), None);
                assert_eq!(log.state(), before.0, "{cut}");
                assert_eq!(log.segment_boundaries(), before.1, "{cut}");
                assert_eq!(observe(log).await.unwrap().entries, whole.entries);

                disk.set_capacity(u64::MAX);
                let kept = match cut {
                    "truncate" => {
                        log.truncate_after(Some(LogIndex::new(3))).await.unwrap();
                        0..4
                    }
                    "reset" => {
                        log.reset(LogStart::ZERO).await.unwrap();
                        0..0
                    }
                    _ => {
                        log.set_log_start(start).await.unwrap();
                        10..20
                    }
                };
                log.append(entry(log, 1000), AppendDone::default()).unwrap();
                log.flush().await.unwrap();
                let seen = observe(log).await.unwrap().entries;
                assert_eq!(seen[..seen.len() - 1], whole.entries[kept]);
                drop((store, logs));
                disk.crash(1);
                let (_store, logs) = reopen(&disk, &env);
                assert_eq!(observe(&logs[0]).await.unwrap().entries, seen, "{cut}");
            });
        }
    }
}

/// Law 8: flags that a reader raised are not taken back with what a full disk refused.
#[test]
fn flags_outlive_a_full_disk() {
    let disk = SimDisk::new();
    simulate(5, |env| async move {
        let (store, logs) = store_and_logs(&disk, &env, small_store(usize::MAX)).await;
        let log = &logs[0];
        for _ in 0..20 {
            log.append(entry(log, 1000), AppendDone::default()).unwrap();
        }
        log.flush().await.unwrap();
        disk.set_capacity(0);
        for _ in 0..8 {
            log.append(entry(log, 1000), AppendDone::default()).unwrap();
        }
        let first = disk.files().into_iter();
        let first = first.filter(|path| path.to_string_lossy().ends_with("0-0.log"));
        disk.flip(&first.min().unwrap(), 64 + 500, 1).unwrap();
        let read = log.read(LogIndex::new(0), LogIndex::new(1), 1).await;
        assert!(matches!(read, Err(StorageError::Damaged { .. })));
        while log.flush().await.is_err() {}
        assert!(log.state().no_vote && log.must_reopen());
        drop((store, logs));
        disk.set_capacity(u64::MAX);
        disk.crash(1);
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(1000), &env).unwrap();
        let log = store.open_log(group(0), small_log()).unwrap();
        assert!(log.state().no_vote, "the flag was refused with the appends");
    });
}

#[test]
fn a_node_starts_on_a_disk_without_a_free_byte() {
    let disk = SimDisk::new();
    let config = StoreConfig {
        reserve_bytes: 256 << 10,
        ..small_store(usize::MAX)
    };
    let appending = disk.clone();
    let before = config.clone();
    simulate(5, |env| async move {
        let (_store, logs) = store_and_logs(&appending, &env, before).await;
        for _ in 0..10 {
            let entry = entry(&logs[0], 1000);
            logs[0].append(entry, AppendDone::default()).unwrap();
        }
        logs[0].flush().await.unwrap();
    });
    disk.crash(7);
    let used: usize = disk
        .files()
        .iter()
        .map(|path| disk.bytes(path).unwrap().len())
        .sum();
    disk.set_capacity(used as u64);
    recover(&disk).expect("what was accepted is recorded in the space of the reserve");
    simulate(6, |env| async move {
        let store = open_store(&disk, config, &env).unwrap();
        let log = store.open_log(group(0), small_log()).unwrap();
        assert_eq!(
            log.state().last,
            Some((Term::new(1), LogIndex::new(9))),
            "nothing acknowledged is lost"
        );
    });
}
