//! Bytes below the end that are not what was written: the replica keeps the flag that stops it
//! from voting and leading until it has fetched its log again (DESIGN 5.4, laws 4, 7, 8).

mod support;

use std::io::IoSlice;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Disk, Log, LogStart, NewEntry, OpenMode, Payload, SimDisk, StorageError, Store,
    Vote, dump,
};
use support::{
    batch, group, observe, open_store, recover, saved, simulate, small_log, small_store,
};

const VOTE: Vote = Vote {
    term: Term::new(5),
    voted_for: Some(ReplicaId::new(2)),
    committed: true,
};

async fn filled(disk: &SimDisk, env: &Env, count: u64) -> (Store, Log) {
    recover(disk).unwrap();
    let store = open_store(disk, small_store(1000), env).unwrap();
    let log = store
        .create_log(group(0), ReplicaId::new(7), small_log())
        .await
        .unwrap();
    append(&log, count);
    log.save_vote(VOTE).await.unwrap();
    (store, log)
}

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
        let payload = Payload::Batch(batch(2, 300, index as i64, index as u8));
        let entry = NewEntry {
            term: Term::new(5),
            index: LogIndex::new(index),
            base_offset: None,
            payload,
        };
        log.append(vec![entry], AppendDone::default()).unwrap();
    }
}

fn reopen(disk: &SimDisk, env: &Env) -> (Store, Log) {
    recover(disk).unwrap();
    let store = open_store(disk, small_store(1000), env).unwrap();
    let log = store.open_log(group(0), small_log()).unwrap();
    (store, log)
}

fn file(disk: &SimDisk, ending: &str) -> PathBuf {
    let files = disk.files();
    let found = files
        .iter()
        .find(|path| path.to_string_lossy().ends_with(ending));
    found
        .unwrap_or_else(|| panic!("no file {ending} in {files:?}"))
        .clone()
}

fn check_flags(log: &Log) {
    let state = log.state();
    assert!(state.damaged && state.no_vote, "{state:?}");
}

#[test]
fn a_flipped_byte_in_a_segment_stops_the_replica_until_it_has_refetched() {
    let disk = SimDisk::new();
    simulate(1, |env| async move {
        let (store, log) = filled(&disk, &env, 40).await;
        let whole = observe(&log).await.unwrap();
        store.close().await.unwrap();
        // In the first segment, well within an entry.
        disk.flip(&file(&disk, "-0.log"), 64 + 700 + 700 + 300, 0x10)
            .unwrap();

        let (store, log) = reopen(&disk, &env);
        assert!(!log.state().no_vote, "nobody has read it yet");
        let read = log
            .read(LogIndex::new(0), LogIndex::new(40), usize::MAX)
            .await
            .unwrap();
        assert!(read.len() < 4, "read over the damage");
        let error = log
            .read(LogIndex::new(2), LogIndex::new(40), usize::MAX)
            .await
            .unwrap_err();
        assert!(matches!(error, StorageError::Damaged { .. }), "{error}");
        check_flags(&log);
        log.flush().await.unwrap();
        drop((store, log));
        disk.crash(3);

        // The flags outlive the crash, the log ends before the damage, the vote is kept.
        let (store, log) = reopen(&disk, &env);
        check_flags(&log);
        let seen = observe(&log).await.unwrap();
        assert!(
            !seen.entries.is_empty() && seen.entries.len() < 4,
            "{seen:?}"
        );
        assert_eq!(seen.entries, whole.entries[..seen.entries.len()]);
        assert_eq!(log.state().vote, Some(VOTE));

        // Fetched again; another crash must not cut it again.
        let missing = 40 - seen.entries.len() as u64;
        append(&log, missing);
        log.flush().await.unwrap();
        drop((store, log));
        disk.crash(4);
        let (store, log) = reopen(&disk, &env);
        assert_eq!(observe(&log).await.unwrap().entries, whole.entries);
        check_flags(&log);
        log.set_no_vote(false).await.unwrap();
        drop((store, log));
        disk.crash(5);
        let (_store, log) = reopen(&disk, &env);
        assert!(!log.state().damaged && !log.state().no_vote);
    });
}

#[test]
fn damage_found_while_running_is_cut_when_the_log_is_opened_again() {
    let disk = SimDisk::new();
    simulate(2, |env| async move {
        let (store, log) = filled(&disk, &env, 40).await;
        disk.flip(&file(&disk, "-0.log"), 64 + 30, 0x01).unwrap();
        log.read(LogIndex::new(0), LogIndex::new(9), 10)
            .await
            .unwrap_err();
        check_flags(&log);
        let log = store.open_log(group(0), small_log()).unwrap();
        check_flags(&log);
        assert_eq!(log.state().last, None);
        assert_eq!(log.state().next_offset, Offset::ZERO);
        append(&log, 3);
        log.flush().await.unwrap();
        assert_eq!(observe(&log).await.unwrap().entries.len(), 3);
    });
}

#[test]
fn a_damaged_index_is_rebuilt() {
    let disk = SimDisk::new();
    simulate(3, |env| async move {
        let (store, log) = filled(&disk, &env, 40).await;
        let whole = observe(&log).await.unwrap();
        store.close().await.unwrap();
        disk.flip(&file(&disk, "-0.index"), 5, 0xff).unwrap();
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(observe(&log).await.unwrap(), whole);
        let found = log
            .read_offsets(Offset::new(11), Offset::new(80), 1)
            .await
            .unwrap();
        assert_eq!(found[0].header().base_offset, Offset::new(10));
        let found = log
            .find_timestamp(7, Offset::new(80))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.header().base_offset, Offset::new(14));
        assert!(!log.state().damaged);
    });
}

#[test]
fn a_damaged_journal_flags_every_partition_of_the_shard() {
    let disk = SimDisk::new();
    simulate(4, |env| async move {
        let (store, log) = filled(&disk, &env, 3).await;
        let other = store
            .create_log(group(1), ReplicaId::new(8), small_log())
            .await
            .unwrap();
        for term in 1..6 {
            let vote = Vote {
                term: Term::new(term),
                ..VOTE
            };
            other.save_vote(vote).await.unwrap();
        }
        drop((store, log, other));
        disk.kill_process();
        // A turn in the middle: whole ones follow it.
        disk.flip(&file(&disk, "0000.journal"), 4096 * 3 + 40, 0x04)
            .unwrap();
        let report = recover(&disk).unwrap();
        assert_eq!(report.damaged.len(), 2, "{report:?}");
        let store = open_store(&disk, small_store(1000), &env).unwrap();
        for number in 0..2 {
            check_flags(&store.open_log(group(number), small_log()).unwrap());
        }
    });
}

#[test]
fn a_damaged_last_turn_is_a_torn_tail() {
    let disk = SimDisk::new();
    simulate(5, |env| async move {
        let (store, log) = filled(&disk, &env, 1).await;
        let later = Vote {
            term: Term::new(6),
            ..VOTE
        };
        log.save_vote(later).await.unwrap();
        drop((store, log));
        disk.kill_process();
        let journal = file(&disk, "0000.journal");
        let bytes = disk.bytes(&journal).unwrap();
        let last = (1..bytes.len() / 4096)
            .rev()
            .find(|page| bytes[page * 4096..page * 4096 + 4] == *b"TURN")
            .unwrap();
        disk.flip(&journal, last as u64 * 4096 + 50, 0x04).unwrap();
        let report = recover(&disk).unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        assert_eq!(report.torn_journals, 1);
        let store = open_store(&disk, small_store(1000), &env).unwrap();
        let log = store.open_log(group(0), small_log()).unwrap();
        assert_eq!(log.state().vote, Some(VOTE));
    });
}

#[test]
fn a_damaged_snapshot_empties_and_flags() {
    let disk = SimDisk::new();
    simulate(6, |env| async move {
        let (store, log) = filled(&disk, &env, 20).await;
        let at = (Term::new(5), LogIndex::new(9));
        log.save_snapshot(saved(at, Offset::new(20))).await.unwrap();
        let start = LogStart {
            index: LogIndex::new(10),
            offset: Offset::new(20),
            prev: Some(at),
        };
        log.set_log_start(start).await.unwrap();
        store.close().await.unwrap();
        disk.flip(&file(&disk, "snapshot"), 30, 0x01).unwrap();
        let (_store, log) = reopen(&disk, &env);
        check_flags(&log);
        assert_eq!(log.state().log_start, LogStart::ZERO);
        assert_eq!(log.state().last, None);
        assert_eq!(
            log.state().vote,
            Some(VOTE),
            "the vote is not in the snapshot"
        );
    });
}

#[test]
fn a_replica_without_its_state_is_damaged_and_not_new() {
    for how in ["flipped", "gone"] {
        let disk = SimDisk::new();
        simulate(7, |env| async move {
            let (store, _log) = filled(&disk, &env, 20).await;
            store.close().await.unwrap();
            let state = file(&disk, "/state");
            if how == "flipped" {
                disk.flip(&state, 40, 0x01).unwrap();
            } else {
                disk.remove_dir_all(state.parent().unwrap()).unwrap();
            }
            let (store, log) = reopen(&disk, &env);
            check_flags(&log);
            assert_eq!(log.replica(), ReplicaId::new(7));
            assert_eq!(log.state().last, None);
            assert!(matches!(
                store
                    .create_log(group(0), ReplicaId::new(9), small_log())
                    .await,
                Err(StorageError::AlreadyExists { .. })
            ));
            // Usable again: it refetches from the leader's log.
            append(&log, 5);
            log.flush().await.unwrap();
            drop((store, log));
            disk.crash(1);
            let (_store, log) = reopen(&disk, &env);
            assert_eq!(observe(&log).await.unwrap().entries.len(), 5);
            check_flags(&log);
        });
    }
}

#[test]
fn a_damaged_registration_is_restored_from_the_state_file() {
    let disk = SimDisk::new();
    simulate(8, |env| async move {
        let (store, log) = filled(&disk, &env, 4).await;
        let whole = observe(&log).await.unwrap();
        store.close().await.unwrap();
        let name = format!("{}-0", group(0).topic);
        disk.flip(&file(&disk, &name), 20, 0x01).unwrap();
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(observe(&log).await.unwrap(), whole);
        assert_eq!(
            corduroy_storage::list_groups(&disk, &support::root()).unwrap(),
            vec![(group(0), ReplicaId::new(7))]
        );
    });
}

/// Neither file says which replica it is: whoever placed it knows, and it is damaged, not new.
#[test]
fn a_replica_that_its_files_do_not_identify_is_registered_again_as_damaged() {
    let disk = SimDisk::new();
    simulate(15, |env| async move {
        let (store, log) = filled(&disk, &env, 20).await;
        let other = store
            .create_log(group(1), ReplicaId::new(8), small_log())
            .await
            .unwrap();
        other.flush().await.unwrap();
        drop((store, log, other));
        disk.kill_process();
        let registration = file(&disk, &format!("registry/{}-0", group(0).topic));
        disk.flip(&registration, 20, 0x01).unwrap();
        disk.flip(&file(&disk, "/0/state"), 40, 0x01).unwrap();
        let segment = disk.bytes(&file(&disk, "-0.log")).unwrap();

        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(1000), &env).unwrap();
        store.open_log(group(1), small_log()).unwrap();
        let error = store.open_log(group(0), small_log()).unwrap_err();
        assert!(matches!(error, StorageError::Unidentified { .. }));
        let error = store.open_only_copy(group(0), small_log()).unwrap_err();
        let text = error.to_string();
        for part in [
            registration.to_str().unwrap(),
            "/state: bad",
            "no other copy",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(disk.bytes(&file(&disk, "-0.log")).unwrap(), segment);

        let log = store
            .open_placed_log(group(0), ReplicaId::new(7), small_log())
            .unwrap();
        assert_eq!(log.replica(), ReplicaId::new(7));
        check_flags(&log);
        assert_eq!((log.state().last, log.state().vote), (None, None));
        // It fetches its log again, and from here on it is known again.
        append(&log, 5);
        log.flush().await.unwrap();
        drop((store, log));
        disk.crash(1);
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(log.replica(), ReplicaId::new(7));
        assert_eq!(observe(&log).await.unwrap().entries.len(), 5);
        check_flags(&log);
    });
}

/// Law 7: without its registration it would be created anew, and vote with an empty log.
#[test]
fn a_lost_registration_is_restored_with_all_that_the_journal_holds() {
    let disk = SimDisk::new();
    simulate(16, |env| async move {
        let (store, log) = filled(&disk, &env, 20).await;
        log.flush().await.unwrap();
        let whole = observe(&log).await.unwrap();
        drop((store, log));
        disk.kill_process();
        disk.remove_file(&file(&disk, &format!("registry/{}-0", group(0).topic)))
            .unwrap();
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(observe(&log).await.unwrap(), whole);
        assert_eq!(log.state().vote, Some(VOTE));
        assert!(!log.state().damaged && !log.state().no_vote);
    });
}

/// Law 7: neither file says which replica it is, and one of them is gone. It is not created anew.
#[test]
fn a_lost_registration_beside_a_damaged_state_is_no_new_replica() {
    let disk = SimDisk::new();
    simulate(18, |env| async move {
        let (store, log) = filled(&disk, &env, 20).await;
        log.flush().await.unwrap();
        drop((store, log));
        disk.kill_process();
        disk.remove_file(&file(&disk, &format!("registry/{}-0", group(0).topic)))
            .unwrap();
        disk.flip(&file(&disk, "/0/state"), 40, 0x01).unwrap();
        let segment = disk.bytes(&file(&disk, "-0.log")).unwrap();

        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(1000), &env).unwrap();
        assert!(store.contains(group(0)));
        let error = store.open_log(group(0), small_log()).unwrap_err();
        assert!(matches!(error, StorageError::Unidentified { .. }));
        assert_eq!(disk.bytes(&file(&disk, "-0.log")).unwrap(), segment);
        let log = store
            .open_placed_log(group(0), ReplicaId::new(7), small_log())
            .unwrap();
        check_flags(&log);
        assert_eq!((log.state().last, log.state().vote), (None, None));
    });
}

/// The same while the store runs: a directory that holds a replica is not made room of.
#[test]
fn no_replica_is_created_over_the_files_of_another() {
    for is_readable in [true, false] {
        let disk = SimDisk::new();
        simulate(19, |env| async move {
            let (store, log) = filled(&disk, &env, 20).await;
            let whole = observe(&log).await.unwrap();
            store.close().await.unwrap();
            drop((store, log));
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            disk.remove_file(&file(&disk, &format!("registry/{}-0", group(0).topic)))
                .unwrap();
            if !is_readable {
                disk.flip(&file(&disk, "/0/state"), 40, 0x01).unwrap();
            }
            let created = store
                .create_log(group(0), ReplicaId::new(9), small_log())
                .await;
            let error = created.err().unwrap();
            assert!(
                matches!(error, StorageError::Unidentified { .. }),
                "{error}"
            );
            drop(store);
            // The next start finds it.
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            let log = store
                .open_placed_log(group(0), ReplicaId::new(7), small_log())
                .unwrap();
            if is_readable {
                assert_eq!(observe(&log).await.unwrap(), whole);
            } else {
                check_flags(&log);
            }
        });
    }
}

/// What was removed does not come back for want of its registration, wherever the power failed.
#[test]
fn a_removed_replica_stays_removed_at_every_step() {
    let mut removed = 0;
    for step in 0..40 {
        let disk = SimDisk::new();
        removed += simulate(17, |env| async move {
            let (store, log) = filled(&disk, &env, 4).await;
            log.flush().await.unwrap();
            let whole = observe(&log).await.unwrap();
            disk.crash_at_step(disk.steps() + step);
            let result = store.remove_log(group(0)).await;
            drop((store, log));
            disk.crash(step);
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            if store.contains(group(0)) {
                assert!(result.is_err(), "step {step}: it is back");
                let log = store.open_log(group(0), small_log()).unwrap();
                assert_eq!(observe(&log).await.unwrap(), whole, "step {step}");
                0
            } else {
                let dir = support::root().join(format!("partitions/{}", group(0).topic));
                assert!(!disk.exists(&dir).unwrap(), "step {step}: its data stays");
                1
            }
        });
    }
    assert!(removed > 5, "{removed}");
}

#[test]
fn damaged_tables_are_passed_over() {
    let disk = SimDisk::new();
    simulate(9, |env| async move {
        let (store, log) = filled(&disk, &env, 9).await;
        for index in [3, 6] {
            let at = (Term::new(5), LogIndex::new(index));
            let tables = Bytes::from(format!("tables {index}"));
            let offset = Offset::new(2 * index as i64 + 2);
            log.save_tables(at, offset, Bytes::new(), tables)
                .await
                .unwrap();
        }
        assert_eq!(log.tables().await.unwrap().at.1, LogIndex::new(6));
        store.close().await.unwrap();
        disk.flip(&file(&disk, "6.tables"), 60, 0x80).unwrap();
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(
            log.tables().await.unwrap().tables,
            Bytes::from_static(b"tables 3")
        );
        assert!(!log.state().no_vote);
    });
}

/// What a cut takes away is no checkpoint any more, durable or not.
#[test]
fn tables_beyond_what_was_damaged_are_passed_over() {
    let disk = SimDisk::new();
    simulate(10, |env| async move {
        let (store, log) = filled(&disk, &env, 9).await;
        let at = (Term::new(5), LogIndex::new(6));
        log.save_tables(at, Offset::new(14), Bytes::new(), Bytes::new())
            .await
            .unwrap();
        store.close().await.unwrap();
        disk.flip(&file(&disk, "-0.log"), 64 + 30, 0x01).unwrap();
        let (store, log) = reopen(&disk, &env);
        log.read(LogIndex::new(0), LogIndex::new(9), 10)
            .await
            .unwrap_err();
        let log = store.open_log(group(0), small_log()).unwrap();
        assert_eq!(log.state().last, None);
        // The cut is under way; the tables speak of entries that will not be there.
        assert!(log.tables().await.is_none());
    });
}

/// A flipped bit is one replica's trouble: no flush has failed.
#[test]
fn a_damaged_header_stops_no_other_replica_of_the_shard() {
    let disk = SimDisk::new();
    simulate(11, |env| async move {
        let (store, _log) = filled(&disk, &env, 2).await;
        store.close().await.unwrap();
        disk.flip(&file(&disk, "-0.log"), 25, 0x02).unwrap();
        let (store, log) = reopen(&disk, &env);
        let error = log
            .read(LogIndex::new(0), LogIndex::new(2), usize::MAX)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("its header"), "{error}");
        check_flags(&log);
        // Closing writes every log's checkpoint.
        store.close().await.unwrap();
        let (_store, log) = reopen(&disk, &env);
        check_flags(&log);
        assert_eq!(log.state().last, None);
    });
}

/// Laws 4 and 8: a shard's journal may have held the newest vote of any partition.
#[test]
fn a_lost_journal_flags_every_partition() {
    for (how, was_closed) in [("directory", false), ("directory", true), ("files", false)] {
        let disk = SimDisk::new();
        simulate(10, |env| async move {
            let (store, log) = filled(&disk, &env, 20).await;
            let other = store
                .create_log(group(1), ReplicaId::new(8), small_log())
                .await
                .unwrap();
            log.flush().await.unwrap();
            if was_closed {
                store.close().await.unwrap();
            }
            drop((store, log, other));
            disk.kill_process();
            let dir = support::root().join("journal/0");
            if how == "directory" {
                disk.remove_dir_all(&dir).unwrap();
            } else {
                for name in disk.list(&dir).unwrap() {
                    disk.remove_file(&dir.join(name)).unwrap();
                }
            }
            let mut shown = Vec::new();
            let problems = dump(&disk, &support::root(), false, &mut shown).unwrap();
            assert!(!problems.problems.is_empty() || how == "files");

            let report = recover(&disk).unwrap();
            assert!(!report.clean);
            assert_eq!(report.damaged.len(), 2, "{report:?}");
            assert!(
                report.damaged[0]
                    .1
                    .contains("journal/0: the journal is gone")
            );
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            for number in 0..2 {
                check_flags(&store.open_log(group(number), small_log()).unwrap());
            }
            // From here on it has a journal again, and is as it says.
            store.close().await.unwrap();
            assert!(recover(&disk).unwrap().clean);
        });
    }
}

/// A directory of before journals were registered: only the loss of all of them is seen.
#[test]
fn all_journals_lost_is_seen_without_their_registration() {
    let disk = SimDisk::new();
    simulate(11, |env| async move {
        let (store, _log) = filled(&disk, &env, 3).await;
        store.close().await.unwrap();
        let mark = support::root().join("registry/journal-0");
        disk.remove_file(&mark).unwrap();
        assert!(recover(&disk).unwrap().clean);
        disk.remove_dir_all(&support::root().join("journal"))
            .unwrap();
        assert_eq!(recover(&disk).unwrap().damaged.len(), 1);
    });
}

/// DESIGN 5.4: nothing acknowledged is "repaired" away. Of the only copy nothing is cut; the error
/// says what is wrong, where, and how to look at it.
#[test]
fn the_only_copy_refuses_to_open_over_damage_and_keeps_its_bytes() {
    let disk = SimDisk::new();
    simulate(12, |env| async move {
        let (store, log) = filled(&disk, &env, 40).await;
        let segment = file(&disk, "-0.log");
        disk.flip(&segment, 64 + 700 + 700 + 300, 0x10).unwrap();
        let read = log.read(LogIndex::new(2), LogIndex::new(40), usize::MAX);
        read.await.unwrap_err();
        check_flags(&log);
        log.flush().await.unwrap();
        let segments = |disk: &SimDisk| -> Vec<_> {
            let files = disk.files().into_iter();
            let ours = files.filter(|path| path.to_string_lossy().ends_with(".log"));
            ours.map(|path| (disk.bytes(&path), path)).collect()
        };
        let before = segments(&disk);
        drop((store, log));
        disk.kill_process();

        for _ in 0..2 {
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            let error = store.open_only_copy(group(0), small_log()).unwrap_err();
            let text = error.to_string();
            for part in [
                segment.to_str().unwrap(),
                "frame at 1",
                "entry 2, offset 4",
                "corduroy debug log-dump /data/partitions/",
                "--verify",
            ] {
                assert!(text.contains(part), "{text}");
            }
            store.close().await.unwrap();
            assert!(segments(&disk) == before, "bytes were cut");
        }
        // A copy of a log that others have as well is cut and fetched again.
        let (_store, log) = reopen(&disk, &env);
        assert_eq!(log.state().next_offset, Offset::new(4));
    });
}

#[test]
fn the_only_copy_without_its_state_is_not_taken_for_an_empty_log() {
    let disk = SimDisk::new();
    simulate(13, |env| async move {
        let (store, log) = filled(&disk, &env, 20).await;
        store.close().await.unwrap();
        drop(log);
        disk.flip(&file(&disk, "/state"), 40, 0x01).unwrap();
        for _ in 0..2 {
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(1000), &env).unwrap();
            let error = store.open_only_copy(group(0), small_log()).unwrap_err();
            assert!(error.to_string().contains("state file"), "{error}");
            store.close().await.unwrap();
        }
        assert!(disk.bytes(&file(&disk, "-0.log")).unwrap().len() > 1000);
    });
}

#[test]
fn only_directories_of_ours_are_dumped() {
    let disk = SimDisk::new();
    simulate(14, |env| async move {
        let (store, _log) = filled(&disk, &env, 3).await;
        store.close().await.unwrap();
        let show = |dir: &str| {
            let mut shown = Vec::new();
            dump(&disk, Path::new(dir), true, &mut shown).map(|report| report.entries)
        };
        let partition = format!("/data/partitions/{}/0", group(0).topic);
        assert_eq!(show("/data").unwrap(), 3);
        assert_eq!(show(&partition).unwrap(), 3);
        assert_eq!(show("/data/journal/0").unwrap(), 0);
        for name in ["/var/log/system.log", "/var/log/state", "/var/log/1-2.log"] {
            disk.create_dir_all(Path::new("/var/log")).unwrap();
            let found = disk.open(Path::new(name), OpenMode::Create).unwrap();
            found.write_at(0, &[IoSlice::new(b"hello, world")]).unwrap();
            let error = show("/var/log").unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("partitions/TOPIC-ID/PARTITION"));
        }
    });
}
