//! A disk that notes what is asked of it: in which order, and by which thread.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(
    clippy::disallowed_types,
    reason = "a disk is shared by its nature: this lock stands for the kernel's"
)]

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use corduroy_storage::{Disk, DiskFile, OpenMode};

/// One call, or a mark of the test between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    Write,
    Flush,
    SetLen,
    Close,
    Rename,
    Remove,
    Mark,
}

/// A call and where it came from.
#[derive(Clone, Debug)]
pub struct Event {
    pub call: Call,
    pub path: PathBuf,
    pub thread: ThreadId,
    pub thread_name: String,
}

impl Event {
    pub fn is_journal(&self) -> bool {
        self.path.extension().is_some_and(|end| end == "journal")
    }

    pub fn is_segment(&self) -> bool {
        self.path.extension().is_some_and(|end| end == "log")
    }
}

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        // A failed assertion elsewhere does not make the list wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, call: Call, path: &Path) {
        let thread = std::thread::current();
        self.lock().push(Event {
            call,
            path: path.to_owned(),
            thread: thread.id(),
            thread_name: thread.name().unwrap_or_default().to_owned(),
        });
    }
}

/// Notes each call before it is made. Clone = the same list.
#[derive(Clone)]
pub struct RecordingDisk {
    inner: Arc<dyn Disk>,
    events: Events,
}

impl RecordingDisk {
    pub fn new(inner: Arc<dyn Disk>) -> RecordingDisk {
        RecordingDisk {
            inner,
            events: Events::default(),
        }
    }

    /// Enters a mark.
    pub fn mark(&self) {
        self.events.note(Call::Mark, Path::new(""));
    }

    /// What was noted since the last time.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

impl Disk for RecordingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.events.note(Call::Open, path);
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(RecordingFile {
            inner: Some(inner),
            path: path.to_owned(),
            events: self.events.clone(),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.events.note(Call::Rename, to);
        self.inner.rename(from, to)
    }

    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.events.note(Call::Rename, to);
        self.inner.exchange(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.events.note(Call::Remove, path);
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.events.note(Call::Remove, path);
        self.inner.remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn flush_dir(&self, dir: &Path) -> io::Result<()> {
        self.events.note(Call::Flush, dir);
        self.inner.flush_dir(dir)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.inner.free_bytes(path)
    }

    fn flush_delay(&self) -> Duration {
        self.inner.flush_delay()
    }
}

struct RecordingFile {
    /// `None` only while it is dropped.
    inner: Option<Arc<dyn DiskFile>>,
    path: PathBuf,
    events: Events,
}

impl RecordingFile {
    fn inner(&self) -> io::Result<&Arc<dyn DiskFile>> {
        self.inner.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        self.events.note(Call::Close, &self.path);
        self.inner = None;
    }
}

impl DiskFile for RecordingFile {
    fn write_at(&self, offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()> {
        self.events.note(Call::Write, &self.path);
        self.inner()?.write_at(offset, chunks)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner()?.read_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.events.note(Call::Flush, &self.path);
        self.inner()?.flush()
    }

    fn start_flush(&self) {
        if let Some(inner) = &self.inner {
            inner.start_flush();
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.inner()?.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.events.note(Call::SetLen, &self.path);
        self.inner()?.set_len(len)
    }
}
