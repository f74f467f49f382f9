//! Replicas created and removed, files read while they are cut away, directories left behind.

mod support;

use std::rc::Rc;

use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Disk, Log, LogStart, NewEntry, Payload, SimDisk, StorageError, Vote,
};
use support::{batch, group, open_store, recover, root, saved, simulate, small_log, small_store};

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
        let payload = Payload::Batch(batch(1, 600, index as i64, index as u8));
        let (term, index) = (Term::new(1), LogIndex::new(index));
        let entry = NewEntry {
            term,
            index,
            base_offset: None,
            payload,
        };
        log.append(vec![entry], AppendDone::default()).unwrap();
    }
}

#[test]
fn an_interrupted_removal_is_finished_by_recovery() {
    // The power fails at each step of the removal in turn.
    for step in 0..60 {
        let disk = SimDisk::new();
        let removing = disk.clone();
        let was_removed = simulate(1, |env| async move {
            recover(&removing).unwrap();
            let store = open_store(&removing, small_store(0), &env).unwrap();
            let log = store
                .create_log(group(0), ReplicaId::new(1), small_log())
                .await
                .unwrap();
            append(&log, 20);
            log.flush().await.unwrap();
            removing.crash_at_step(removing.steps() + step);
            let removed = store.remove_log(group(0)).await.is_ok();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            removed
        });
        disk.crash(step);
        let report = recover(&disk).unwrap();
        assert!(report.damaged.is_empty(), "step {step}: {report:?}");
        let registered = corduroy_storage::list_groups(&disk, &root()).unwrap();
        if was_removed {
            assert!(
                registered.is_empty(),
                "step {step}: a removed replica came back"
            );
        }
        let segments = disk
            .files()
            .iter()
            .any(|path| path.to_string_lossy().ends_with(".log"));
        assert_eq!(
            segments,
            !registered.is_empty(),
            "step {step}: {:?}",
            disk.files()
        );
    }
}

#[test]
fn reads_that_cross_a_moved_start_or_a_reset_are_no_damage() {
    let disk = SimDisk::new();
    simulate(2, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(0), &env).unwrap();
        let log = store
            .create_log(group(0), ReplicaId::new(1), small_log())
            .await
            .unwrap();
        append(&log, 60);
        log.flush().await.unwrap();
        let prev = (Term::new(1), LogIndex::new(39));
        log.save_snapshot(saved(prev, Offset::new(40)))
            .await
            .unwrap();
        let start = LogStart {
            index: LogIndex::new(40),
            offset: Offset::new(40),
            prev: Some(prev),
        };
        log.set_log_start(start).await.unwrap();
        for from in 0..40 {
            let error = log
                .read(LogIndex::new(from), LogIndex::new(60), 100)
                .await
                .unwrap_err();
            assert!(matches!(error, StorageError::OutOfRange { .. }), "{error}");
        }
        assert!(!log.state().no_vote);
        let at = (Term::new(3), LogIndex::new(99));
        log.save_snapshot(saved(at, Offset::new(150)))
            .await
            .unwrap();
        let start = LogStart {
            index: LogIndex::new(100),
            offset: Offset::new(150),
            prev: Some(at),
        };
        log.set_log_start(start).await.unwrap();
        let state = log.state();
        assert_eq!(
            (state.last, state.next_offset),
            (Some(at), Offset::new(150))
        );
        assert_eq!(state.size_bytes, 0);
        assert_eq!(log.term_of(LogIndex::new(99)), Some(Term::new(3)));
        assert!(!state.no_vote && !state.damaged);
    });
}

#[test]
fn a_vote_is_durable_only_with_the_log_before_it() {
    // Law 1, with the entries flushed in their segment and with them in the journal.
    for inline_bytes_max in [0, usize::MAX] {
        let disk = SimDisk::new();
        simulate(3, |env| async move {
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(inline_bytes_max), &env).unwrap();
            let log = store
                .create_log(group(0), ReplicaId::new(1), small_log())
                .await
                .unwrap();
            append(&log, 5);
            let seen = Rc::new(std::cell::Cell::new(false));
            let done = {
                let seen = seen.clone();
                AppendDone::durable(move |result| seen.set(result.is_ok()))
            };
            log.append(Vec::new(), done).unwrap();
            let vote = Vote {
                term: Term::new(2),
                voted_for: None,
                committed: false,
            };
            log.save_vote(vote).await.unwrap();
            assert!(seen.get());
            assert_eq!(log.state().durable_last, Some(LogIndex::new(4)));
            drop((store, log));
            disk.crash(1);
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(0), &env).unwrap();
            let log = store.open_log(group(0), small_log()).unwrap();
            assert_eq!(log.state().last.unwrap().1, LogIndex::new(4));
        });
    }
}

#[test]
fn a_store_refuses_a_directory_that_was_not_recovered() {
    let disk = SimDisk::new();
    simulate(4, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(0), &env).unwrap();
        let log = store
            .create_log(group(0), ReplicaId::new(1), small_log())
            .await
            .unwrap();
        append(&log, 1);
        log.flush().await.unwrap();
        drop((store, log));
        disk.kill_process();
        assert!(matches!(
            open_store(&disk, small_store(0), &env),
            Err(StorageError::NeedsRecovery { .. })
        ));
        recover(&disk).unwrap();
        open_store(&disk, small_store(0), &env).unwrap();
    });
}

#[test]
fn recovery_twice_is_recovery_once() {
    let disk = SimDisk::new();
    simulate(5, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(900), &env).unwrap();
        let log = store
            .create_log(group(0), ReplicaId::new(1), small_log())
            .await
            .unwrap();
        append(&log, 30);
        log.flush().await.unwrap();
        drop((store, log));
        disk.kill_process();
        assert_eq!(recover(&disk).unwrap().entries_replayed, 30);
        let files: Vec<_> = disk
            .files()
            .into_iter()
            .map(|path| (disk.bytes(&path), path))
            .collect();
        let again = recover(&disk).unwrap();
        assert!(again.clean && again.entries_replayed == 0, "{again:?}");
        let after: Vec<_> = disk
            .files()
            .into_iter()
            .map(|path| (disk.bytes(&path), path))
            .collect();
        assert!(files == after, "a second recovery changed files");
        assert!(disk.exists(&root()).unwrap());
    });
}

#[test]
fn appends_that_do_not_follow_are_refused_whole() {
    let disk = SimDisk::new();
    simulate(6, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(0), &env).unwrap();
        let log = store
            .create_log(group(0), ReplicaId::new(1), small_log())
            .await
            .unwrap();
        append(&log, 3);
        let entry = |term, index, base_offset: Option<i64>| NewEntry {
            term: Term::new(term),
            index: LogIndex::new(index),
            base_offset: base_offset.map(Offset::new),
            payload: Payload::Batch(batch(2, 10, 0, 0)),
        };
        for (entries, reason) in [
            (vec![entry(1, 4, None)], "does not follow"),
            (vec![entry(1, 3, Some(4))], "base offset"),
            (
                vec![entry(1, 3, Some(3)), entry(1, 4, Some(4))],
                "base offset",
            ),
            (vec![entry(2, 3, None), entry(1, 4, None)], "term"),
        ] {
            let before = log.state();
            let error = log
                .append(entries, AppendDone::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains(reason), "{error}");
            assert_eq!(log.state(), before);
        }
        let heads = log
            .append(
                vec![entry(1, 3, Some(3)), entry(2, 4, Some(5))],
                AppendDone::default(),
            )
            .unwrap();
        assert_eq!(heads[1].next_offset(), Offset::new(7));
    });
}

#[test]
fn a_deleted_log_gives_its_part_of_the_cache_back() {
    let disk = SimDisk::new();
    simulate(3, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(0), &env).unwrap();
        for number in 0..4 {
            let log = store
                .create_log(group(number), ReplicaId::new(1), small_log())
                .await
                .unwrap();
            // Entries of 600 bytes against a cache of 4 KiB.
            append(&log, 20);
            log.flush().await.unwrap();
            let last = LogIndex::new(19);
            assert!(
                log.read_cached(last, last.next(), 1).is_some(),
                "after {number} deletions nothing is cached any more"
            );
            drop(log);
            store.remove_log(group(number)).await.unwrap();
        }
        assert_eq!(store.metrics().cache_bytes, 0);
        store.close().await.unwrap();
    });
}
