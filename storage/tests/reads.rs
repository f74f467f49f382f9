//! Reads by offset and by timestamp, over many segments, with other entries between batches.

mod support;

use bytes::Bytes;
use corduroy_record::{Batch, LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{AppendDone, Log, LogStart, NewEntry, Payload, SimDisk, StorageError};
use support::{batch, group, open_store, recover, saved, simulate, small_log, small_store};

/// Appends batches of two records with these timestamps; an internal entry before every third.
fn fill(log: &Log, timestamps: &[i64]) {
    let append = |payload| {
        let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
        let (term, index) = (Term::new(1), LogIndex::new(index));
        let entry = NewEntry {
            term,
            index,
            base_offset: None,
            payload,
        };
        log.append(vec![entry], AppendDone::default()).unwrap();
    };
    for (number, timestamp) in timestamps.iter().enumerate() {
        if number % 3 == 0 {
            append(Payload::Internal(Bytes::from(vec![1; 400])));
        }
        append(Payload::Batch(batch(2, 250, *timestamp, number as u8)));
    }
}

fn with_log(timestamps: &'static [i64], run: impl AsyncFnOnce(Log)) {
    let disk = SimDisk::new();
    simulate(1, |env| async move {
        recover(&disk).unwrap();
        let store = open_store(&disk, small_store(700), &env).unwrap();
        let log = store
            .create_log(group(0), ReplicaId::new(1), small_log())
            .await
            .unwrap();
        fill(&log, timestamps);
        log.flush().await.unwrap();
        assert!(log.segment_boundaries().len() > 2);
        run(log).await;
    });
}

fn offsets(batches: &[Batch]) -> Vec<i64> {
    batches
        .iter()
        .map(|batch| batch.header().base_offset.get())
        .collect()
}

const RISING: [i64; 40] = {
    let mut timestamps = [0; 40];
    let mut number = 0;
    while number < 40 {
        timestamps[number] = 1000 + 10 * number as i64;
        number += 1;
    }
    timestamps
};

#[test]
fn offsets_are_read_in_whole_batches_within_the_limits() {
    with_log(&RISING, async |log| {
        let end = Offset::new(80);
        for from in 0..80 {
            for bytes_max in [0, 1500, usize::MAX] {
                let found = log
                    .read_offsets(Offset::new(from), end, bytes_max)
                    .await
                    .unwrap();
                let first = found[0].header().base_offset.get();
                assert_eq!(first, from / 2 * 2, "from {from}");
                let bytes: usize = found.iter().map(Batch::size_bytes).sum();
                assert!(found.len() == 1 || bytes <= bytes_max);
                let expected: Vec<i64> = (0..found.len() as i64).map(|n| first + 2 * n).collect();
                assert_eq!(offsets(&found), expected);
            }
        }
        // Nothing at or beyond the high watermark.
        let found = log
            .read_offsets(Offset::new(10), Offset::new(16), usize::MAX)
            .await
            .unwrap();
        assert_eq!(offsets(&found), [10, 12, 14]);
        assert!(
            log.read_offsets(Offset::new(16), Offset::new(16), 100)
                .await
                .unwrap()
                .is_empty()
        );
        assert!(log.read_offsets(end, end, 100).await.unwrap().is_empty());
        assert!(
            log.read_offsets_cached(Offset::ZERO, end, 100).is_none(),
            "nothing was evicted"
        );
        assert!(log.read_offsets_cached(Offset::new(78), end, 100).is_some());
    });
}

#[test]
fn a_timestamp_finds_the_first_batch_that_reaches_it() {
    with_log(&RISING, async |log| {
        let end = Offset::new(80);
        for target in (990..1400).step_by(5) {
            let expected = RISING.iter().position(|timestamp| *timestamp >= target);
            let found = log.find_timestamp(target, end).await.unwrap();
            let found = found.map(|batch| batch.header().base_offset.get());
            assert_eq!(
                found,
                expected.map(|number| 2 * number as i64),
                "target {target}"
            );
        }
        assert!(
            log.find_timestamp(1200, Offset::new(10))
                .await
                .unwrap()
                .is_none()
        );
        let highest = log.find_max_timestamp(end).await.unwrap().unwrap();
        assert_eq!(highest.header().base_offset, Offset::new(78));
        let highest = log
            .find_max_timestamp(Offset::new(20))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(highest.header().base_offset, Offset::new(18));
    });
}

#[test]
fn timestamps_out_of_order_are_found_as_well() {
    const JUMPING: [i64; 24] = [
        50, 10, 40, 20, 90, 30, 15, 12, 95, 11, 95, 60, 5, 5, 5, 5, 70, 5, 5, 5, 5, 5, 99, 1,
    ];
    with_log(&JUMPING, async |log| {
        let end = Offset::new(48);
        for target in 0..102 {
            let expected = JUMPING.iter().position(|timestamp| *timestamp >= target);
            let found = log.find_timestamp(target, end).await.unwrap();
            let found = found.map(|batch| batch.header().base_offset.get());
            assert_eq!(
                found,
                expected.map(|number| 2 * number as i64),
                "target {target}"
            );
        }
        let highest = log
            .find_max_timestamp(Offset::new(44))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            highest.header().base_offset,
            Offset::new(16),
            "the first of several"
        );
    });
}

#[test]
fn a_moved_log_start_hides_what_is_before_it() {
    with_log(&RISING, async |log| {
        let prev = (Term::new(1), LogIndex::new(19));
        let offset = log
            .read(LogIndex::new(20), LogIndex::new(21), 1)
            .await
            .unwrap()[0]
            .head
            .base_offset;
        let start = LogStart {
            index: LogIndex::new(20),
            offset,
            prev: Some(prev),
        };
        assert!(matches!(
            log.set_log_start(start).await,
            Err(StorageError::NotCovered { .. })
        ));
        log.save_snapshot(saved(prev, offset)).await.unwrap();
        let segments = log.segment_boundaries().len();
        log.set_log_start(start).await.unwrap();
        assert!(
            log.segment_boundaries().len() < segments,
            "no segment was dropped"
        );
        assert!(matches!(
            log.read(LogIndex::new(19), LogIndex::new(22), 10).await,
            Err(StorageError::OutOfRange { .. })
        ));
        assert_eq!(log.term_of(LogIndex::new(19)), Some(Term::new(1)));
        assert_eq!(log.term_of(LogIndex::new(18)), None);
        let found = log
            .read_offsets(Offset::ZERO, Offset::new(80), 10)
            .await
            .unwrap();
        assert!(found[0].header().base_offset >= offset.min(found[0].header().base_offset));
        let found = log
            .find_timestamp(0, Offset::new(80))
            .await
            .unwrap()
            .unwrap();
        assert!(
            found.header().base_offset >= offset,
            "a batch before the log's start"
        );
    });
}

#[test]
fn heads_are_read_without_bodies() {
    with_log(&RISING, async |log| {
        let end = log.state().last.unwrap().1.next();
        let mut next = LogIndex::new(0);
        let mut offset = Offset::ZERO;
        while next < end {
            for applied in log.read_heads(next, end).await.unwrap() {
                assert_eq!(applied.head.index, next);
                assert_eq!(applied.head.base_offset, offset);
                if let corduroy_storage::AppliedBody::Batch(header) = applied.body {
                    assert_eq!(header.base_offset, offset);
                }
                offset = applied.head.next_offset();
                next = next.next();
            }
        }
        assert_eq!(offset, Offset::new(80));
    });
}
