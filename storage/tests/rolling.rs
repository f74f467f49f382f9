//! When a log begins a new segment, and that no two begin at the same entry.

mod support;

use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::{LogIndex, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Log, LogConfig, NewEntry, Payload, SimDisk, Store, StoreConfig,
};
use support::{batch, group, observe, open_store, recover, simulate, small_store};

fn entries(log: &Log, count: u64, bytes: usize) -> Vec<NewEntry> {
    let next = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    (next..next + count)
        .map(|index| NewEntry {
            term: Term::new(1),
            index: LogIndex::new(index),
            base_offset: None,
            payload: Payload::Batch(batch(1, bytes, 0, index as u8)),
        })
        .collect()
}

fn append(log: &Log, count: u64, bytes: usize) {
    let appended = log.append(entries(log, count, bytes), AppendDone::default());
    appended.unwrap();
}

/// The first entries of the segments; all of them differ.
fn firsts(log: &Log) -> Vec<u64> {
    let boundaries = log.segment_boundaries();
    let firsts: Vec<u64> = boundaries.iter().map(|b| b.first_index.get()).collect();
    assert!(
        firsts.windows(2).all(|pair| pair[0] < pair[1]),
        "two segments begin at the same entry: {firsts:?}"
    );
    firsts
}

/// `segment.ms`: what is appended once the last segment is too old begins a new one, however
/// little is in it. Age alone rolls nothing, and an age below the limit does not either.
#[test]
fn a_segment_is_rolled_by_age() {
    let disk = SimDisk::new();
    simulate(1, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(usize::MAX), &env).unwrap();
        let config = LogConfig {
            segment_ms: 10_000,
            ..LogConfig::default()
        };
        let log = store.create_log(group(0), ReplicaId::new(1), config);
        let log = log.await.unwrap();
        append(&log, 1, 100);
        let began = env.unix_millis();
        // Up to 5 % earlier than configured, so that partitions do not roll together.
        env.sleep(Duration::from_millis(9_400)).await;
        append(&log, 1, 100);
        assert_eq!(firsts(&log), [0], "rolled after 9.4 of 10 seconds");
        env.sleep(Duration::from_millis(700)).await;
        assert_eq!(firsts(&log), [0], "rolled without an entry");
        append(&log, 1, 100);
        assert_eq!(firsts(&log), [0, 2]);
        let created: Vec<i64> = log
            .segment_boundaries()
            .iter()
            .map(|segment| segment.created_millis)
            .collect();
        assert_eq!(created, [began, began + 10_100]);
        // The age counts across a restart.
        log.flush().await.unwrap();
        drop((store, log));
        disk.kill_process();
        recover(&disk).unwrap();
        env.sleep(Duration::from_millis(5_000)).await;
        let store = open_store(&disk, small_store(usize::MAX), &env).unwrap();
        let log = store.open_log(group(0), config).unwrap();
        let before = firsts(&log);
        env.sleep(Duration::from_millis(5_100)).await;
        append(&log, 1, 100);
        assert_eq!(firsts(&log).len(), before.len() + 1);
        assert_eq!(observe(&log).await.unwrap().entries.len(), 4);
    });
}

/// Large enough for a turn to end between a new segment's file and its first entry.
const LARGE: usize = 1 << 20;

async fn full_between_segment_and_entry(disk: &SimDisk, env: &Env) -> (Store, Log, LogConfig) {
    recover(disk).unwrap();
    let config = StoreConfig {
        journal_file_bytes: 1 << 20,
        ..small_store(0)
    };
    let store = open_store(disk, config, env).unwrap();
    let log_config = LogConfig {
        segment_bytes: 8_900_000,
        ..LogConfig::default()
    };
    let log = store.create_log(group(0), ReplicaId::new(1), log_config);
    let log = log.await.unwrap();
    append(&log, 1, 100);
    log.flush().await.unwrap();
    let used: usize = disk
        .files()
        .iter()
        .map(|path| disk.bytes(path).unwrap().len())
        .sum();
    // Eight large entries fit, the ninth does not; it would begin the next segment.
    disk.set_capacity(used as u64 + 8 * LARGE as u64 + LARGE as u64 / 2);
    append(&log, 9, LARGE);
    assert_eq!(firsts(&log), [0, 9]);
    log.flush().await.unwrap_err();
    (store, log, log_config)
}

/// The file of a segment is durable, its first entry found the disk full: the log goes on in that
/// segment, and does not begin another at the same entry.
#[test]
fn a_segment_without_an_entry_goes_on_after_a_full_disk() {
    let disk = SimDisk::new();
    simulate(2, |env| async move {
        let (store, log, log_config) = full_between_segment_and_entry(&disk, &env).await;
        assert_eq!(
            log.state().last.unwrap().1,
            LogIndex::new(8),
            "refused alone"
        );
        disk.set_capacity(u64::MAX);
        append(&log, 1, 200);
        assert_eq!(firsts(&log), [0, 9]);
        log.flush().await.unwrap();
        append(&log, 1, 200);
        log.truncate_after(Some(LogIndex::new(9))).await.unwrap();
        append(&log, 1, 200);
        firsts(&log);
        log.flush().await.unwrap();
        let seen = observe(&log).await.unwrap();
        assert_eq!(seen.entries.len(), 11);
        drop((store, log));
        disk.crash(1);
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(0), &env).unwrap();
        let log = store.open_log(group(0), log_config).unwrap();
        firsts(&log);
        assert_eq!(observe(&log).await.unwrap(), seen);
    });
}

/// The same, and the node restarts before it appends again.
#[test]
fn a_segment_without_an_entry_goes_on_after_a_restart() {
    for seed in 0..4 {
        let disk = SimDisk::new();
        simulate(seed, |env| async move {
            let (store, log, log_config) = full_between_segment_and_entry(&disk, &env).await;
            drop((store, log));
            match seed {
                0 => disk.kill_process(),
                _ => disk.crash(seed),
            }
            disk.set_capacity(u64::MAX);
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(0), &env).unwrap();
            let log = store.open_log(group(0), log_config).unwrap();
            assert_eq!(log.state().last.unwrap().1, LogIndex::new(8));
            append(&log, 2, 200);
            firsts(&log);
            log.flush().await.unwrap();
            let seen = observe(&log).await.unwrap();
            assert_eq!(seen.entries.len(), 11);
            // What was appended is read back from the disk as well.
            store.close().await.unwrap();
            drop((store, log));
            recover(&disk).unwrap();
            let store = open_store(&disk, small_store(0), &env).unwrap();
            let log = store.open_log(group(0), log_config).unwrap();
            assert_eq!(observe(&log).await.unwrap(), seen);
        });
    }
}
