//! The bytes on disk, kept: a change of any format shows here and needs a new version.
//!
//! `UPDATE_GOLDEN=1 cargo test -p corduroy-storage --test golden` writes the files anew.

mod support;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use corduroy_record::{LogIndex, Offset, ReplicaId, Term};
use corduroy_storage::{AppendDone, Disk, NewEntry, OpenMode, Payload, SimDisk, Vote};
use support::{batch, group, observe, open_store, recover, root, saved, simulate, small_log};

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A fixed history on a disk whose randomness is seeded.
fn write_history(disk: &SimDisk, inline_bytes_max: usize, clean: bool) {
    simulate(42, |env| async move {
        recover(disk).unwrap();
        let store = open_store(disk, support::small_store(inline_bytes_max), &env).unwrap();
        let log = store
            .create_log(group(3), ReplicaId::new(77), small_log())
            .await
            .unwrap();
        let payloads = [
            Payload::Membership(Bytes::from_static(b"one, two, three")),
            Payload::Blank,
            Payload::Batch(batch(3, 40, 1_700_000_000_000, 65)),
            Payload::Internal(Bytes::from_static(b"tables")),
            Payload::Batch(batch(1, 600, 1_700_000_000_500, 97)),
        ];
        for (index, payload) in payloads.into_iter().enumerate() {
            let entry = NewEntry {
                term: Term::new(1 + index as u64 / 3),
                index: LogIndex::new(index as u64),
                base_offset: None,
                payload,
            };
            log.append(vec![entry], AppendDone::default()).unwrap();
            log.flush().await.unwrap();
        }
        let vote = Vote {
            term: Term::new(2),
            voted_for: Some(ReplicaId::new(5)),
            committed: true,
        };
        log.save_vote(vote).await.unwrap();
        log.save_committed((Term::new(2), LogIndex::new(3)));
        log.save_tables(
            (Term::new(2), LogIndex::new(3)),
            Offset::new(3),
            Bytes::from_static(b"members"),
            Bytes::from_static(b"tables of 3"),
        )
        .await
        .unwrap();
        log.save_snapshot(saved((Term::new(1), LogIndex::new(1)), Offset::ZERO))
            .await
            .unwrap();
        log.truncate_after(Some(LogIndex::new(3))).await.unwrap();
        if clean {
            store.close().await.unwrap();
        }
    });
}

/// Created times are the clock's and not part of any format's promise.
fn names(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    disk.files()
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .replace('/', "__");
            let mut bytes = disk.bytes(&path).unwrap();
            // The zeros that a journal file was pre-written with.
            let end = bytes
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            bytes.truncate(end);
            (name, bytes)
        })
        .filter(|(name, _)| !name.ends_with(".spare"))
        .collect()
}

fn check(case: &str, inline_bytes_max: usize, clean: bool) {
    let disk = SimDisk::new();
    write_history(&disk, inline_bytes_max, clean);
    let written = names(&disk);
    let dir = golden_dir().join(case);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&dir).unwrap();
        for (name, bytes) in &written {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in &written {
        let kept = std::fs::read(dir.join(name)).unwrap_or_default();
        let at = kept
            .iter()
            .zip(bytes)
            .position(|(kept, written)| kept != written);
        assert!(
            kept == *bytes,
            "{case}/{name}: {} bytes kept, {} written, first difference at {at:?}",
            kept.len(),
            bytes.len()
        );
    }

    // The kept files, put on a fresh disk, read as the history that they are.
    let disk = SimDisk::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().replace("__", "/");
        let path = root().join(name);
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        let file = disk.open(&path, OpenMode::Create).unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        file.write_at(0, &[std::io::IoSlice::new(&bytes)]).unwrap();
        if path.to_string_lossy().ends_with(".journal") {
            file.set_len(64 << 10).unwrap();
        }
    }
    simulate(1, |env| async move {
        let mut text = Vec::new();
        let shown = corduroy_storage::dump(&disk, &root(), true, &mut text).unwrap();
        assert_eq!(shown.problems, Vec::<String>::new());
        // Not checkpointed: four entries, and one that was cut off again.
        let told = if clean { (4, 0) } else { (0, 5) };
        assert_eq!((shown.entries, shown.entries_unsettled), told);
        let report = recover(&disk).unwrap();
        assert_eq!(
            (report.clean, report.damaged.len()),
            (clean, 0),
            "{report:?}"
        );
        let store = open_store(&disk, support::small_store(0), &env).unwrap();
        let log = store.open_log(group(3), small_log()).unwrap();
        let seen = observe(&log).await.unwrap();
        let kinds: Vec<String> = seen
            .entries
            .iter()
            .map(|entry| format!("{entry:?}"))
            .collect();
        assert_eq!(
            kinds,
            [
                "0@1:0+0 Membership 15B 2917de46",
                "1@1:0+0 Blank 0B 00000000",
                "2@1:0+3 Batch 211B 61df6853",
                "3@2:3+0 Internal 6B 46fd745b",
            ]
        );
        assert_eq!(log.state().next_offset, Offset::new(3));
        assert_eq!(log.state().vote.unwrap().voted_for, Some(ReplicaId::new(5)));
        assert_eq!(log.snapshot().await.unwrap().at.1, LogIndex::new(1));
        assert_eq!(
            log.tables().await.unwrap().tables,
            Bytes::from_static(b"tables of 3")
        );
    });
}

#[test]
fn a_clean_directory() {
    check("clean", usize::MAX, true);
}

#[test]
fn a_journal_that_holds_entries() {
    check("inline", usize::MAX, false);
}

#[test]
fn a_journal_that_refers_to_entries() {
    check("referenced", 0, false);
}
