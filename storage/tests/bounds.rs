//! What is bounded: the journal and with it recovery, the journal's files, reads, the disk reads
//! of a follower that keeps up.

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_record::{Batch, LogIndex, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Log, LogConfig, NewEntry, Payload, SimDisk, Store, StoreConfig,
};
use support::{batch, group, observe, open_store, recover, simulate, small_log, small_store};

const FILE_BYTES: u64 = 64 << 10;
const FILES_MAX: usize = 4;

fn config() -> StoreConfig {
    StoreConfig {
        journal_file_bytes: FILE_BYTES,
        journal_files_max: FILES_MAX,
        ..small_store(usize::MAX)
    }
}

async fn create_logs(store: &Store, count: u32, config: LogConfig) -> Vec<Log> {
    let mut logs = Vec::new();
    for number in 0..count {
        let log = store.create_log(group(number), ReplicaId::new(1), config);
        logs.push(log.await.unwrap());
    }
    logs
}

fn append(log: &Log, bytes: usize) {
    let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    let payload = Payload::Batch(batch(1, bytes, index as i64, index as u8));
    let (term, index) = (Term::new(1), LogIndex::new(index));
    let entry = NewEntry {
        term,
        index,
        base_offset: None,
        payload,
    };
    log.append(vec![entry], AppendDone::default()).unwrap();
}

fn journal_files(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let files = disk.files().into_iter();
    files
        .filter(|path| path.to_string_lossy().ends_with(".journal"))
        .map(|path| {
            let bytes = disk.bytes(&path).unwrap().len() as u64;
            (path, bytes)
        })
        .collect()
}

/// 30 partitions are written all the time, one was written once, one never: neither keeps the
/// journal from being used again. After a kill, recovery reads what the bound allows.
#[test]
fn the_journal_and_recovery_stay_within_their_bound_whatever_idles() {
    let disk = SimDisk::new();
    simulate(1, |env: Env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, config(), &env).unwrap();
        let logs = create_logs(&store, 32, small_log()).await;
        let (busy, idle) = logs.split_at(30);
        append(&idle[0], 100);
        for _ in 0..100 {
            for log in busy {
                append(log, 700);
            }
            logs[0].flush().await.unwrap();
            let bytes: u64 = journal_files(&disk).iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= FILE_BYTES * FILES_MAX as u64, "{bytes} bytes");
        }
        let written = store.metrics().journal_bytes;
        assert!(
            written > 5 * FILE_BYTES * FILES_MAX as u64,
            "the journal never came round: {written} bytes"
        );
        drop((store, logs));
        disk.kill_process();

        let before = disk.bytes_read(".journal");
        let report = recover(&disk).unwrap();
        let read = disk.bytes_read(".journal") - before;
        assert!(report.turns > 0 && report.damaged.is_empty(), "{report:?}");
        // The turns once, and a page head here and there where the last one is looked for.
        let bound = FILE_BYTES * FILES_MAX as u64;
        assert!(read <= bound + bound / 16, "{read} bytes read");
        let store = open_store(&disk, config(), &env).unwrap();
        for (number, expected) in [(0, 100), (29, 100), (30, 1), (31, 0)] {
            let log = store.open_log(group(number), small_log()).unwrap();
            assert_eq!(observe(&log).await.unwrap().entries.len(), expected);
        }
    });
}

/// Every journal file has its whole length before the first turn is in it, and the same few files
/// serve for ever: names ascend and are never given twice, so the highest tells how many were
/// made.
#[test]
fn journal_files_are_written_ahead_and_used_again() {
    let disk = SimDisk::new();
    simulate(2, |env: Env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, config(), &env).unwrap();
        let logs = create_logs(&store, 4, small_log()).await;
        let mut names = BTreeSet::new();
        for _ in 0..300 {
            for log in &logs {
                append(log, 1500);
            }
            logs[0].flush().await.unwrap();
            for (path, bytes) in journal_files(&disk) {
                assert_eq!(bytes, FILE_BYTES, "{} grows", path.display());
                names.insert(path);
            }
        }
        let rounds = store.metrics().journal_bytes / FILE_BYTES;
        assert!(rounds > 20, "{rounds} files' worth");
        assert!(names.len() <= FILES_MAX, "{names:?}");
        let highest = format!("{:04}.journal", names.len() - 1);
        assert!(
            names.last().unwrap().ends_with(&highest),
            "more were made than are there: {names:?}"
        );
    });
}

/// From the disk and from the cache.
#[test]
fn reads_by_index_are_bounded_in_bytes_and_always_give_one() {
    for cache_bytes in [4 << 10, 4 << 20] {
        let disk = SimDisk::new();
        simulate(3, |env: Env| async move {
            recover(&disk).unwrap();
            let config = StoreConfig {
                cache_bytes,
                ..config()
            };
            let store = open_store(&disk, config, &env).unwrap();
            let log = &create_logs(&store, 1, small_log()).await[0];
            // Every fourth entry is larger than what is asked for.
            for number in 0..40 {
                append(log, if number % 4 == 3 { 9000 } else { 500 });
            }
            log.flush().await.unwrap();
            let end = LogIndex::new(40);
            let mut lonely = 0;
            for bytes_max in [0, 2000, 5000] {
                let mut next = LogIndex::new(0);
                while next < end {
                    let read = log.read(next, end, bytes_max).await.unwrap();
                    let bytes: usize = read.iter().map(|entry| entry.payload.size_bytes()).sum();
                    assert!(!read.is_empty() && (read.len() == 1 || bytes <= bytes_max));
                    lonely += usize::from(read.len() == 1 && bytes > bytes_max);
                    assert_eq!(read[0].head.index, next);
                    next = LogIndex::new(next.get() + read.len() as u64);
                }
            }
            assert!(lonely >= 50, "{lonely} were larger than was asked for");
            let metrics = store.metrics();
            if cache_bytes == 4 << 10 {
                assert!(metrics.cold_reads > 40, "{metrics:?}");
            } else {
                assert_eq!(metrics.cold_reads, 0);
            }
        });
    }
}

/// What is read soon after it was appended comes from the cache: by entries for replication, by
/// heads for apply, by offsets for consumers.
#[test]
fn a_close_follower_costs_no_disk_read() {
    let disk = SimDisk::new();
    simulate(4, |env: Env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, config(), &env).unwrap();
        let log = &create_logs(&store, 1, LogConfig::default()).await[0];
        append(log, 300);
        log.flush().await.unwrap();
        let reads = disk.read_calls("");
        for _ in 0..100 {
            let from = log.state().last.unwrap().1;
            let offset = log.state().next_offset;
            append(log, 300);
            append(log, 300);
            log.flush().await.unwrap();
            let to = log.state().last.unwrap().1.next();
            let entries = log.read(from, to, usize::MAX).await.unwrap();
            assert_eq!(entries.len(), 3);
            assert_eq!(log.read_heads(from, to).await.unwrap().len(), 3);
            let batches = log.read_offsets(offset, log.state().next_offset, usize::MAX);
            assert_eq!(batches.await.unwrap().len(), 2);
        }
        assert_eq!(disk.read_calls(""), reads, "the disk was read");
        // And the count counts: the beginning is long gone from the cache of 4 KiB.
        log.read(LogIndex::new(0), LogIndex::new(1), 1)
            .await
            .unwrap();
        assert!(disk.read_calls(".log") > 0);
    });
}

/// A body from a socket is a slice of the buffer that was read into. The cache keeps the body, and
/// not the megabyte around it.
#[test]
fn small_bodies_do_not_keep_their_read_buffer_alive() {
    let disk = SimDisk::new();
    simulate(5, |env: Env| async move {
        recover(&disk).unwrap();
        let config = StoreConfig {
            cache_bytes: 1 << 20,
            ..config()
        };
        let store = open_store(&disk, config, &env).unwrap();
        let log = &create_logs(&store, 1, LogConfig::default()).await[0];
        for (bytes, is_shared) in [(900, false), (30_000, false), (40_000, true)] {
            let sent = batch(1, bytes, 0, 7).to_bytes();
            let mut buffer = vec![0; 1 << 20];
            buffer[5000..5000 + sent.len()].copy_from_slice(&sent);
            let buffer = Bytes::from(buffer);
            let body = buffer.slice(5000..5000 + sent.len());
            let before = store.metrics().cache_bytes;
            let index = LogIndex::new(log.state().last.map_or(0, |(_, index)| index.get() + 1));
            for (number, payload) in [
                Payload::Batch(Batch::parse(body.clone()).unwrap()),
                Payload::Internal(body.clone()),
                Payload::Membership(body),
            ]
            .into_iter()
            .enumerate()
            {
                let entry = NewEntry {
                    term: Term::new(1),
                    index: LogIndex::new(index.get() + number as u64),
                    base_offset: None,
                    payload,
                };
                log.append(vec![entry], AppendDone::default()).unwrap();
            }
            log.flush().await.unwrap();
            assert_eq!(buffer.is_unique(), !is_shared, "bodies of {bytes} bytes");
            let grown = store.metrics().cache_bytes - before;
            assert!((3 * sent.len() as u64..4 * sent.len() as u64 + 1000).contains(&grown));
            let end = LogIndex::new(index.get() + 3);
            let read = log.read_cached(index, end, usize::MAX).unwrap();
            let Payload::Batch(first) = &read[0].payload else {
                panic!("not a batch");
            };
            assert_eq!(first.body()[..], sent[16..]);
            first.check_crc().unwrap();
        }
    });
}

/// Every append is counted with the time until it was durable.
#[test]
fn appends_are_timed_until_they_are_durable() {
    let disk = SimDisk::new();
    simulate(6, |env: Env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, config(), &env).unwrap();
        let log = &create_logs(&store, 1, LogConfig::default()).await[0];
        append(log, 100);
        append(log, 100);
        assert_eq!(store.metrics().append_buckets.iter().sum::<u64>(), 0);
        tokio::time::advance(Duration::from_millis(3)).await;
        log.flush().await.unwrap();
        let metrics = store.metrics();
        assert_eq!(metrics.append_buckets.iter().sum::<u64>(), 2);
        assert_eq!(metrics.append_micros, 2 * 3000);
    });
}

/// Cold reads load index rows, segment by segment; what they keep of them has a budget. What was
/// given up is loaded again, and reads stay right.
#[test]
fn loaded_index_rows_stay_within_their_budget() {
    let disk = SimDisk::new();
    simulate(7, |env: Env| async move {
        recover(&disk).unwrap();
        let log_config = LogConfig {
            index_interval_bytes: 64,
            ..small_log()
        };
        let store = open_store(&disk, config(), &env).unwrap();
        let log = create_logs(&store, 1, log_config).await.remove(0);
        for _ in 0..400 {
            append(&log, 200);
        }
        log.flush().await.unwrap();
        drop(log);
        store.close().await.unwrap();
        recover(&disk).unwrap();
        let config = StoreConfig {
            index_bytes: 4 << 10,
            ..config()
        };
        let store = open_store(&disk, config, &env).unwrap();
        let log = store.open_log(group(0), log_config).unwrap();
        assert!(log.segment_boundaries().len() > 15);
        for _ in 0..2 {
            let loads = disk.read_calls(".index");
            for index in (0..400).step_by(7) {
                let (from, to) = (LogIndex::new(index), LogIndex::new(index + 1));
                let read = log.read(from, to, 1).await.unwrap();
                assert_eq!(read[0].head.index, from);
                assert!(store.metrics().index_bytes <= 4 << 10);
            }
            let loads = disk.read_calls(".index") - loads;
            assert!((15..30).contains(&loads), "{loads} indices loaded");
        }
    });
}
