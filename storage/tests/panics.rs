//! A panic below the store, wherever it strikes, is a failed disk: everybody who waits is told, and
//! nothing is accepted after it (law 3). Nobody waits for ever.

mod support;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use corduroy_env::Env;
use corduroy_record::{LogIndex, ReplicaId, Term};
use corduroy_storage::{
    AppendDone, AppendError, Disk, DiskFile, IoMode, Log, LogConfig, NewEntry, OpenMode, Payload,
    RealDisk, StorageError, Store, StoreConfig, Vote,
};
use support::{batch, group};
use tokio::sync::mpsc;

/// Where a panic strikes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Write,
    Flush,
}

/// A real disk that panics at one kind of call on files of one kind of name, once it is armed.
#[derive(Clone)]
struct PanickingDisk {
    call: Call,
    name_end: &'static str,
    armed: Arc<AtomicBool>,
}

impl PanickingDisk {
    fn strike(&self, call: Call, path: &Path) {
        let named = path.to_string_lossy().ends_with(self.name_end);
        assert!(
            self.call != call || !named || !self.armed.load(Ordering::SeqCst),
            "a panic on purpose"
        );
    }
}

struct PanickingFile {
    file: Arc<dyn DiskFile>,
    disk: PanickingDisk,
    path: std::path::PathBuf,
}

impl DiskFile for PanickingFile {
    fn write_at(&self, offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()> {
        self.disk.strike(Call::Write, &self.path);
        self.file.write_at(offset, chunks)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.disk.strike(Call::Flush, &self.path);
        self.file.flush()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

impl Disk for PanickingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.strike(Call::Open, path);
        Ok(Arc::new(PanickingFile {
            file: RealDisk.open(path, mode)?,
            disk: self.clone(),
            path: path.to_owned(),
        }))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.exchange(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir_all(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }
    fn flush_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.flush_dir(dir)
    }
    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }
}

fn append(log: &Log, bytes: usize, done: AppendDone) -> Result<(), AppendError> {
    let index = log.state().last.map_or(0, |(_, index)| index.get() + 1);
    let entry = NewEntry {
        term: Term::new(1),
        index: LogIndex::new(index),
        base_offset: None,
        payload: Payload::Batch(batch(1, bytes, index as i64, index as u8)),
    };
    log.append(vec![entry], done).map(drop)
}

/// Arms the disk in the middle of the work of two partitions and works on until the store refuses.
/// Every callback must have been called by then, and everything after the first failure refused.
fn check(call: Call, name_end: &'static str, inline_bytes_max: usize) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let env = Env::real();
        let armed = Arc::new(AtomicBool::new(false));
        let panicking = PanickingDisk {
            call,
            name_end,
            armed: armed.clone(),
        };
        let disk: Arc<dyn Disk> = Arc::new(panicking);
        corduroy_storage::recover(&disk, &root).unwrap();
        let config = StoreConfig {
            journal_file_bytes: 64 << 10,
            journal_files_max: 4,
            inline_bytes_max,
            reserve_bytes: 64 << 10,
            low_bytes: 0,
            critical_bytes: 0,
            io: IoMode::Threads,
            ..StoreConfig::new(root, 0)
        };
        let store = Store::open(disk, config, env.clone()).unwrap();
        let loop_ended = env.spawn_local(store.clone().run());
        let mut logs = Vec::new();
        for number in 0..2 {
            let config = LogConfig {
                segment_bytes: 64 << 10,
                ..LogConfig::default()
            };
            let log = store.create_log(group(number), ReplicaId::new(1), config);
            logs.push(log.await.unwrap());
        }
        for log in &logs {
            append(log, 1000, AppendDone::default()).unwrap();
            log.flush().await.unwrap();
        }

        armed.store(true, Ordering::SeqCst);
        let (sender, mut told) = mpsc::unbounded_channel();
        let mut asked = 0;
        // Enough to fill the journal many times: what only strikes when a file is made comes too.
        'work: for _ in 0..500 {
            for log in &logs {
                let sender = sender.clone();
                let done = AppendDone::durable(move |result| drop(sender.send(result)));
                match append(log, 4000, done) {
                    Ok(()) => asked += 1,
                    // The callback of what is refused at once is not called.
                    Err(AppendError::Storage(StorageError::Failed(_))) => break 'work,
                    Err(error) => panic!("{error}"),
                }
            }
            if logs[1].flush().await.is_err() {
                break;
            }
        }
        drop(sender);
        let mut failed = false;
        let mut answers = 0;
        while let Some(result) = told.recv().await {
            answers += 1;
            assert!(
                result.is_err() || !failed,
                "something counts as durable after the panic"
            );
            failed |= result.is_err();
        }
        assert_eq!(answers, asked, "somebody was not told");
        assert!(store.failed().is_some(), "the panic was not noticed");
        let vote = Vote {
            term: Term::new(2),
            voted_for: None,
            committed: false,
        };
        assert!(logs[0].save_vote(vote).await.is_err());
        assert!(append(&logs[1], 10, AppendDone::default()).is_err());
        assert!(store.close().await.is_err());
        loop_ended.await.unwrap();
    });
}

#[test]
fn a_panic_while_the_journal_is_flushed_fails_everybody_who_waits() {
    check(Call::Flush, ".journal", usize::MAX);
}

#[test]
fn a_panic_while_the_journal_is_written_fails_everybody_who_waits() {
    check(Call::Write, ".journal", usize::MAX);
}

#[test]
fn a_panic_while_a_segment_is_flushed_beside_the_journal_fails_everybody_who_waits() {
    check(Call::Flush, ".log", 0);
}

#[test]
fn a_panic_while_a_journal_file_is_made_ready_fails_everybody_who_waits() {
    check(Call::Open, ".journal", usize::MAX);
}

#[test]
fn a_panic_in_a_checkpoint_fails_everybody_who_waits() {
    check(Call::Open, ".spare", usize::MAX);
}
