//! Each planted bug of this crate does what its name says, and a build without a chosen one does
//! not: otherwise a fault test that misses it would prove nothing.

mod support;

use std::io::IoSlice;
use std::path::PathBuf;

use corduroy_env::Env;
use corduroy_env::planted::{Bug, with};
use corduroy_record::{Batch, LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, Disk, Log, NewEntry, OpenMode, Payload, RecoveryReport, SimDisk, Store, Vote,
};
use support::{batch, group, observe, open_store, recover, simulate, small_log, small_store};

const VOTE: Vote = Vote {
    term: Term::new(5),
    voted_for: Some(ReplicaId::new(2)),
    committed: false,
};
/// Power failures of which at least one keeps nothing that was not synced, and one keeps all.
const POWER_FAILURES: u64 = 40;
/// All entries inline, or all of them by reference.
const PLACES: [usize; 2] = [usize::MAX, 0];

async fn create(disk: &SimDisk, env: &Env, inline_bytes_max: usize) -> (Store, Log) {
    recover(disk).unwrap();
    let store = open_store(disk, small_store(inline_bytes_max), env).unwrap();
    let log = store
        .create_log(group(0), ReplicaId::new(7), small_log())
        .await
        .unwrap();
    (store, log)
}

fn reopen(disk: &SimDisk, env: &Env, inline_bytes_max: usize) -> (Store, Log, RecoveryReport) {
    let report = recover(disk).unwrap();
    let store = open_store(disk, small_store(inline_bytes_max), env).unwrap();
    let log = store.open_log(group(0), small_log()).unwrap();
    (store, log, report)
}

/// Appends a batch of two records, and waits until it is said to be durable.
async fn append(log: &Log) {
    append_batch(log, batch(2, 300, 1, 7)).await;
}

async fn append_batch(log: &Log, batch: Batch) {
    let entry = NewEntry {
        term: VOTE.term,
        index: LogIndex::new(next_index(log)),
        base_offset: None,
        payload: Payload::Batch(batch),
    };
    log.append(vec![entry], AppendDone::default()).unwrap();
    log.flush().await.unwrap();
}

fn next_index(log: &Log) -> u64 {
    log.state().last.map_or(0, |(_, index)| index.get() + 1)
}

fn file(disk: &SimDisk, ending: &str) -> PathBuf {
    let files = disk.files();
    let found = files
        .iter()
        .find(|path| path.to_string_lossy().ends_with(ending));
    found.expect("a file of that name").clone()
}

/// How many of three durable entries each power failure leaves.
fn survivors(bug: Option<Bug>, inline_bytes_max: usize) -> Vec<u64> {
    let one = |seed| {
        let disk = SimDisk::new();
        simulate(seed, |env| async move {
            let (store, log) = create(&disk, &env, inline_bytes_max).await;
            for _ in 0..3 {
                append(&log).await;
            }
            drop((store, log));
            disk.crash(seed);
            let (_store, log, _) = reopen(&disk, &env, inline_bytes_max);
            next_index(&log)
        })
    };
    with(bug, || (0..POWER_FAILURES).map(one).collect())
}

#[test]
fn ack_before_flush_loses_what_was_durable() {
    for place in PLACES {
        assert!(survivors(None, place).iter().all(|left| *left == 3));
        let left = survivors(Some(Bug::AckBeforeFlush), place);
        assert!(left.contains(&0), "nothing was ever synced: {left:?}");
        assert!(left.contains(&3), "it was written: {left:?}");
    }
}

#[test]
fn callback_before_sync_loses_the_last_turn_alone() {
    let left = survivors(Some(Bug::CallbackBeforeSync), usize::MAX);
    assert!(
        left.contains(&2) && left.contains(&3) && left.iter().all(|left| *left >= 2),
        "{left:?}"
    );
}

/// The votes that power failures leave of one that was answered; `entry`: an entry came after it.
fn votes_left(bug: Option<Bug>, entry: bool) -> Vec<Option<Vote>> {
    let one = |seed| {
        let disk = SimDisk::new();
        simulate(seed, |env| async move {
            let (store, log) = create(&disk, &env, usize::MAX).await;
            log.save_vote(VOTE).await.unwrap();
            if entry {
                append(&log).await;
            }
            drop((store, log));
            disk.crash(seed);
            reopen(&disk, &env, usize::MAX).1.state().vote
        })
    };
    with(bug, || (0..POWER_FAILURES).map(one).collect())
}

#[test]
fn vote_not_flushed_forgets_an_answered_vote_until_an_entry_comes() {
    let kept = |votes: Vec<Option<Vote>>| votes.iter().all(|vote| *vote == Some(VOTE));
    assert!(kept(votes_left(None, false)));
    let left = votes_left(Some(Bug::VoteNotFlushed), false);
    assert!(left.contains(&None) && left.contains(&Some(VOTE)));
    assert!(kept(votes_left(Some(Bug::VoteNotFlushed), true)));
}

/// Damages the last turn of the journal inside its last entry; what is left, and how it was found.
fn torn_journal(bug: Option<Bug>) -> (u64, usize, Option<bool>) {
    let disk = SimDisk::new();
    let run = |env: Env| async move {
        let (store, log) = create(&disk, &env, usize::MAX).await;
        append(&log).await;
        append(&log).await;
        drop((store, log));
        disk.kill_process();
        let journal = file(&disk, "0000.journal");
        let bytes = disk.bytes(&journal).unwrap();
        let last = (1..bytes.len() / 4096)
            .rev()
            .find(|page| bytes[page * 4096..page * 4096 + 4] == *b"TURN")
            .unwrap();
        disk.flip(&journal, last as u64 * 4096 + 500, 0x04).unwrap();
        let (_store, log, report) = reopen(&disk, &env, usize::MAX);
        let last = log.read(LogIndex::new(1), LogIndex::new(2), usize::MAX);
        let intact = last
            .await
            .ok()
            .and_then(|read| match &read.first()?.payload {
                Payload::Batch(batch) => Some(batch.check_crc().is_ok()),
                _ => None,
            });
        assert!(!log.state().damaged);
        (next_index(&log), report.torn_journals, intact)
    };
    with(bug, || simulate(1, run))
}

#[test]
fn torn_tail_accepted_serves_bytes_that_nobody_wrote() {
    assert_eq!(torn_journal(None), (1, 1, None));
    let accepted = torn_journal(Some(Bug::TornTailAccepted));
    assert_eq!(accepted, (2, 0, Some(false)));
}

/// Zeroes the last entry in its segment, as a power failure between the two syncs of its turn
/// does. What is left: entries, the next offset, records of each batch.
fn zero_tail(bug: Option<Bug>) -> (u64, Offset, Vec<i32>) {
    let disk = SimDisk::new();
    let run = |env: Env| async move {
        let (store, log) = create(&disk, &env, 0).await;
        append(&log).await;
        let from = disk.bytes(&file(&disk, "-0.log")).unwrap().len();
        append(&log).await;
        drop((store, log));
        disk.kill_process();
        let path = file(&disk, "-0.log");
        let zeros = vec![0; disk.bytes(&path).unwrap().len() - from];
        let segment = disk.open(&path, OpenMode::Existing).unwrap();
        segment
            .write_at(from as u64, &[IoSlice::new(&zeros)])
            .unwrap();
        let (store, log, _) = reopen(&disk, &env, 0);
        let records = |entries: Vec<corduroy_storage::Entry>| -> Vec<i32> {
            let batch = |entry: &corduroy_storage::Entry| match &entry.payload {
                Payload::Batch(batch) => {
                    batch.check_crc().unwrap();
                    Some(batch.header().record_count)
                }
                _ => None,
            };
            entries.iter().filter_map(batch).collect()
        };
        let end = LogIndex::new(next_index(&log));
        let read = log.read(LogIndex::new(0), end, usize::MAX).await.unwrap();
        // It goes on, and is as it was found after a clean stop.
        append(&log).await;
        store.close().await.unwrap();
        let (_store, log, _) = reopen(&disk, &env, 0);
        assert_eq!(
            observe(&log).await.unwrap().entries.len() as u64,
            end.get() + 1
        );
        let next_offset = log.state().next_offset;
        (end.get(), next_offset, records(read))
    };
    with(bug, || simulate(1, run))
}

#[test]
fn zero_tail_is_batch_keeps_the_place_of_a_lost_entry() {
    assert_eq!(zero_tail(None), (1, Offset::new(4), vec![2]));
    let kept = zero_tail(Some(Bug::ZeroTailIsBatch));
    assert_eq!(kept, (2, Offset::new(6), vec![2, 0]));
}

/// The next offset after four records of which two were cut, now and after a crash.
fn after_a_cut(bug: Option<Bug>) -> [Offset; 2] {
    let disk = SimDisk::new();
    let run = |env: Env| async move {
        let (store, log) = create(&disk, &env, usize::MAX).await;
        append(&log).await;
        append(&log).await;
        log.truncate_after(Some(LogIndex::new(0))).await.unwrap();
        let now = log.state().next_offset;
        drop((store, log));
        disk.crash(1);
        let (_store, log, _) = reopen(&disk, &env, usize::MAX);
        assert_eq!(next_index(&log), 1);
        [now, log.state().next_offset]
    };
    with(bug, || simulate(1, run))
}

#[test]
fn truncation_keeps_offset_goes_on_behind_what_was_cut() {
    assert_eq!(after_a_cut(None), [Offset::new(2); 2]);
    let kept = after_a_cut(Some(Bug::TruncationKeepsOffset));
    assert_eq!(kept, [Offset::new(4); 2]);
}

/// The base offsets that two batches carry which were both proposed at the log's start.
fn stamped(bug: Option<Bug>) -> Vec<i64> {
    let run = |env: Env| async move {
        let (_store, log) = create(&SimDisk::new(), &env, usize::MAX).await;
        append(&log).await;
        append(&log).await;
        let batches = log.read_offsets(Offset::ZERO, Offset::new(4), usize::MAX);
        let batches = batches.await.unwrap();
        let offset = |batch: &Batch| batch.header().base_offset.get();
        batches.iter().map(offset).collect()
    };
    with(bug, || simulate(1, run))
}

#[test]
fn offset_at_propose_is_not_corrected_by_the_log() {
    assert_eq!(stamped(None), [0, 2]);
    assert_eq!(stamped(Some(Bug::OffsetAtPropose)), [0, 0]);
}
