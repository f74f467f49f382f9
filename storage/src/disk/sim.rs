//! A disk in memory that keeps every promise of [`super`] and not one more.
//!
//! Bytes that were not flushed are apart from those that were. A crash keeps an arbitrary part
//! of them, sector by sector: lost, torn, reordered. Directory entries that were not flushed
//! survive as a prefix of their directory's changes. All of it is a function of the seed.

#![expect(
    clippy::disallowed_types,
    reason = "a disk is shared by its nature: this lock stands for the kernel's"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Disk, DiskFile, OpenMode};

/// A write is torn at multiples of this, never within.
const SECTOR_BYTES: usize = 512;

/// What a simulated disk is made of.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// Bytes that it takes before it is full.
    pub capacity_bytes: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: u64::MAX,
        }
    }
}

/// The disk. Clone = the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

type FileId = u64;

struct State {
    files: BTreeMap<FileId, FileBytes>,
    next_file: FileId,
    /// What a running process sees.
    current: Names,
    /// What a crash leaves at least.
    durable: Names,
    /// Changes of names that no directory flush has covered, oldest first.
    pending: Vec<NameChange>,
    /// Counts mutating operations; see [`SimDisk::crash_at_step`].
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
    /// Handles of an older generation are dead: the process that held them is.
    generation: u64,
    capacity_bytes: u64,
    failing_flushes: Option<FailingFlush>,
    flushes: u64,
    reads: Vec<ReadCount>,
    /// The place in `reads` of each path that was ever opened.
    read_places: BTreeMap<PathBuf, usize>,
}

#[derive(Clone, Copy, Default)]
struct ReadCount {
    calls: u64,
    bytes: u64,
}

struct FailingFlush {
    path_part: String,
    after: u64,
}

#[derive(Clone, Default)]
struct Names {
    files: BTreeMap<PathBuf, FileId>,
    dirs: BTreeSet<PathBuf>,
}

#[derive(Clone)]
enum NameChange {
    CreateDir(PathBuf),
    Create(PathBuf, FileId),
    Rename(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    RemoveFile(PathBuf),
    RemoveDir(PathBuf),
}

#[derive(Clone, Default)]
struct FileBytes {
    current: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Unsynced>,
}

#[derive(Clone)]
enum Unsynced {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Default for State {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            next_file: 1,
            current: Names::default(),
            durable: Names::default(),
            pending: Vec::new(),
            steps: 0,
            crash_at: None,
            crashed: false,
            generation: 0,
            capacity_bytes: u64::MAX,
            failing_flushes: None,
            flushes: 0,
            reads: Vec::new(),
            read_places: BTreeMap::new(),
        }
    }
}

impl SimDisk {
    /// An empty disk without a size limit.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// An empty disk.
    pub fn with_options(options: SimOptions) -> SimDisk {
        let disk = SimDisk::default();
        disk.lock().capacity_bytes = options.capacity_bytes;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the simulated bytes wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mutating operations so far: writes, flushes, lengths, names.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Flushes of files so far.
    pub fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    /// Calls that read from files whose path contains `path_part`, so far.
    pub fn read_calls(&self, path_part: &str) -> u64 {
        self.count_reads(path_part, |count| count.calls)
    }

    /// Bytes that those calls gave.
    pub fn bytes_read(&self, path_part: &str) -> u64 {
        self.count_reads(path_part, |count| count.bytes)
    }

    fn count_reads(&self, path_part: &str, of: impl Fn(&ReadCount) -> u64) -> u64 {
        let state = self.lock();
        let matching = |path: &Path| path.to_string_lossy().contains(path_part);
        let places = state.read_places.iter().filter(|(path, _)| matching(path));
        let counts = places.filter_map(|(_, place)| state.reads.get(*place));
        counts.map(of).sum()
    }

    /// The power fails during operation number `step` (counted from 0 over the disk's life):
    /// it and all later ones fail. Then call [`SimDisk::crash`].
    pub fn crash_at_step(&self, step: u64) {
        self.lock().crash_at = Some(step);
    }

    /// Whether the step of [`SimDisk::crash_at_step`] was reached.
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// The machine comes back: of what was not flushed, an arbitrary part is there. Handles
    /// opened before are dead.
    pub fn crash(&self, seed: u64) {
        let mut random = Random(seed);
        let mut state = self.lock();
        state.generation += 1;
        state.crashed = false;
        state.crash_at = None;
        state.failing_flushes = None;
        let pending = std::mem::take(&mut state.pending);
        let mut names = state.durable.clone();
        // Each directory keeps a prefix of its changes; a rename across directories, which the
        // store never does, would count in both.
        let mut open: BTreeMap<PathBuf, bool> = BTreeMap::new();
        for change in &pending {
            let dir = change.dir();
            let keeps = open.entry(dir).or_insert(true);
            *keeps = *keeps && random.below(4) != 0;
            if *keeps {
                names.apply(change);
            }
        }
        names.drop_orphans();
        state.durable = names.clone();
        state.current = names;
        for file in state.files.values_mut() {
            file.crash(&mut random);
        }
        let live: BTreeSet<FileId> = state.current.files.values().copied().collect();
        state.files.retain(|id, _| live.contains(id));
    }

    /// Another disk with what a running process sees of this one, all of it durable there.
    pub fn copied(&self) -> SimDisk {
        let state = self.lock();
        let copy = |file: &FileBytes| FileBytes {
            current: file.current.clone(),
            durable: file.current.clone(),
            unsynced: Vec::new(),
        };
        let files = state.files.iter().map(|(id, file)| (*id, copy(file)));
        let copied = SimDisk::default();
        *copied.lock() = State {
            files: files.collect(),
            next_file: state.next_file,
            current: state.current.clone(),
            durable: state.current.clone(),
            ..State::default()
        };
        copied
    }

    /// The process dies, the machine lives: everything written is still there, but nothing
    /// more of it is durable than before. Handles opened before are dead.
    pub fn kill_process(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.crashed = false;
        state.crash_at = None;
    }

    /// Flushes of files whose path contains `path_part` fail after `after` more have passed.
    /// What they covered reads as before but is never made durable, as on a real kernel.
    pub fn fail_flush(&self, path_part: &str, after: u64) {
        self.lock().failing_flushes = Some(FailingFlush {
            path_part: path_part.to_owned(),
            after,
        });
    }

    /// Changes the size of the disk.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity_bytes = bytes;
    }

    /// Flips the bits of `mask` in one byte of a file, durably.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut state = self.lock();
        let id = *state
            .current
            .files
            .get(path)
            .ok_or(io::ErrorKind::NotFound)?;
        let file = state.files.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        for bytes in [&mut file.current, &mut file.durable] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
            }
        }
        Ok(())
    }

    /// Paths of all files, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        self.lock().current.files.keys().cloned().collect()
    }

    /// The bytes of a file as a process reads them.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.lock();
        let id = state.current.files.get(path)?;
        state.files.get(id).map(|file| file.current.clone())
    }

    fn change(&self, change: NameChange) -> io::Result<()> {
        let mut state = self.lock();
        let crashing = state.step()?;
        state.current.apply(&change);
        state.pending.push(change);
        if crashing {
            Err(power_failure())
        } else {
            Ok(())
        }
    }
}

impl State {
    /// Counts one mutating operation. `Ok(true)`: the power fails during it.
    fn step(&mut self) -> io::Result<bool> {
        if self.crashed {
            return Err(power_failure());
        }
        let step = self.steps;
        self.steps += 1;
        if self.crash_at.is_some_and(|at| step >= at) {
            self.crashed = true;
            return Ok(true);
        }
        Ok(false)
    }

    fn read_place(&mut self, path: &Path) -> usize {
        if let Some(place) = self.read_places.get(path) {
            return *place;
        }
        let place = self.reads.len();
        self.reads.push(ReadCount::default());
        self.read_places.insert(path.to_owned(), place);
        place
    }

    /// Whether so many bytes more have a place. A disk without a size is not measured.
    fn takes(&self, growth: u64) -> bool {
        growth == 0
            || self.capacity_bytes == u64::MAX
            || self.used_bytes().saturating_add(growth) <= self.capacity_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.current
            .files
            .values()
            .filter_map(|id| self.files.get(id))
            .map(|file| file.current.len() as u64)
            .sum()
    }
}

impl NameChange {
    fn dir(&self) -> PathBuf {
        let path = match self {
            NameChange::CreateDir(path)
            | NameChange::Create(path, _)
            | NameChange::Rename(_, path)
            | NameChange::Exchange(_, path)
            | NameChange::RemoveFile(path)
            | NameChange::RemoveDir(path) => path,
        };
        path.parent().unwrap_or(Path::new("")).to_owned()
    }
}

impl Names {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::CreateDir(path) => {
                self.dirs.insert(path.clone());
            }
            NameChange::Create(path, id) => {
                self.files.insert(path.clone(), *id);
            }
            NameChange::Rename(from, to) => {
                if let Some(id) = self.files.remove(from) {
                    self.files.insert(to.clone(), id);
                }
            }
            NameChange::Exchange(from, to) => {
                let (first, second) = (self.files.remove(from), self.files.remove(to));
                self.files.extend(first.map(|id| (to.clone(), id)));
                self.files.extend(second.map(|id| (from.clone(), id)));
            }
            NameChange::RemoveFile(path) => {
                self.files.remove(path);
            }
            NameChange::RemoveDir(path) => {
                self.files.retain(|file, _| !file.starts_with(path));
                self.dirs.retain(|dir| !dir.starts_with(path));
            }
        }
    }

    /// Drops what lies in directories that did not survive themselves.
    fn drop_orphans(&mut self) {
        let exists = |path: &Path, dirs: &BTreeSet<PathBuf>| {
            path.ancestors()
                .skip(1)
                .all(|up| up.parent().is_none() || dirs.contains(up))
        };
        let dirs = self.dirs.clone();
        self.dirs.retain(|dir| exists(dir, &dirs));
        let dirs = self.dirs.clone();
        self.files.retain(|file, _| exists(file, &dirs));
    }
}

impl FileBytes {
    fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        put(&mut self.current, offset, &bytes);
        self.unsynced.push(Unsynced::Write { offset, bytes });
    }

    fn crash(&mut self, random: &mut Random) {
        // One mood per file, so that "all of it" and "none of it" are as likely as a mixture.
        let mood = random.below(4);
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Unsynced::SetLen(len) => {
                    if mood == 0 || (mood != 1 && random.below(2) == 0) {
                        self.durable.resize(len, 0);
                    }
                }
                Unsynced::Write { offset, bytes } => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let boundary = SECTOR_BYTES - (offset + at) % SECTOR_BYTES;
                        let end = bytes.len().min(at + boundary);
                        if mood == 0 || (mood != 1 && random.below(2) == 0) {
                            put(&mut self.durable, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
        self.current = self.durable.clone();
    }
}

fn put(target: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if target.len() < end {
        target.resize(end, 0);
    }
    target[offset..end].copy_from_slice(bytes);
}

fn power_failure() -> io::Error {
    io::Error::other("the simulated power failed")
}

struct SimFile {
    disk: SimDisk,
    id: FileId,
    path: PathBuf,
    read_place: usize,
    generation: u64,
}

impl SimFile {
    fn with<T>(&self, run: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock();
        if state.generation != self.generation {
            return Err(io::Error::other(
                "the process that opened this file has died",
            ));
        }
        run(&mut state)
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let existing = self.lock().current.files.get(path).copied();
        let id = match (existing, mode) {
            (Some(id), OpenMode::Truncate) => {
                let mut state = self.lock();
                let crashing = state.step()?;
                if let Some(file) = state.files.get_mut(&id) {
                    file.current.clear();
                    file.unsynced.push(Unsynced::SetLen(0));
                }
                if crashing {
                    return Err(power_failure());
                }
                id
            }
            (Some(id), _) => id,
            (None, OpenMode::Existing) => return Err(io::ErrorKind::NotFound.into()),
            (None, _) => {
                let parent = path.parent().unwrap_or(Path::new(""));
                let id = {
                    let mut state = self.lock();
                    if parent.parent().is_some() && !state.current.dirs.contains(parent) {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    let id = state.next_file;
                    state.next_file += 1;
                    state.files.insert(id, FileBytes::default());
                    id
                };
                self.change(NameChange::Create(path.to_owned(), id))?;
                id
            }
        };
        let mut state = self.lock();
        let read_place = state.read_place(path);
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            id,
            path: path.to_owned(),
            read_place,
            generation: state.generation,
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<PathBuf> = Vec::new();
        for up in path.ancestors() {
            if up.parent().is_none() || self.lock().current.dirs.contains(up) {
                break;
            }
            missing.push(up.to_owned());
        }
        for dir in missing.into_iter().rev() {
            self.change(NameChange::CreateDir(dir))?;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.lock().current.files.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()> {
        let both = [from, to]
            .iter()
            .all(|path| self.lock().current.files.contains_key(*path));
        if !both {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(NameChange::Exchange(from.to_owned(), to.to_owned()))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        if !self.lock().current.files.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(NameChange::RemoveFile(path.to_owned()))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        if !self.lock().current.dirs.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(NameChange::RemoveDir(path.to_owned()))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.lock();
        if dir.parent().is_some() && !state.current.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let names: BTreeSet<String> = (state.current.files.keys())
            .chain(state.current.dirs.iter())
            .filter(|path| path.parent() == Some(dir))
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect();
        Ok(names.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.lock();
        Ok(state.current.files.contains_key(path)
            || state.current.dirs.contains(path)
            || path.parent().is_none())
    }

    fn flush_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock();
        if state.step()? {
            return Err(power_failure());
        }
        let pending = std::mem::take(&mut state.pending);
        for change in pending {
            if change.dir() == dir {
                state.durable.apply(&change);
            } else {
                state.pending.push(change);
            }
        }
        Ok(())
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let state = self.lock();
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes()))
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.len()).sum());
        for chunk in chunks {
            bytes.extend_from_slice(chunk);
        }
        self.with(|state| {
            let crashing = state.step()?;
            let file = state.files.get(&self.id).ok_or(io::ErrorKind::NotFound)?;
            let growth = (offset + bytes.len()).saturating_sub(file.current.len()) as u64;
            if !state.takes(growth) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(file) = state.files.get_mut(&self.id) {
                file.write(offset, bytes);
            }
            if crashing {
                Err(power_failure())
            } else {
                Ok(())
            }
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.with(|state| {
            let file = state.files.get(&self.id).ok_or(io::ErrorKind::NotFound)?;
            let rest = file.current.get(offset..).unwrap_or(&[]);
            let count = rest.len().min(buf.len());
            buf[..count].copy_from_slice(&rest[..count]);
            if let Some(total) = state.reads.get_mut(self.read_place) {
                total.calls += 1;
                total.bytes += count as u64;
            }
            Ok(count)
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|state| {
            if state.step()? {
                return Err(power_failure());
            }
            state.flushes += 1;
            let fails = match &mut state.failing_flushes {
                Some(failing) if self.path.to_string_lossy().contains(&failing.path_part) => {
                    let now = failing.after == 0;
                    failing.after = failing.after.saturating_sub(1);
                    now
                }
                _ => false,
            };
            let file = state
                .files
                .get_mut(&self.id)
                .ok_or(io::ErrorKind::NotFound)?;
            if fails {
                // The kernel marks the pages clean: they read back, and no later flush knows
                // of them.
                file.unsynced.clear();
                return Err(io::Error::other("the simulated disk failed a flush"));
            }
            for change in std::mem::take(&mut file.unsynced) {
                match change {
                    Unsynced::SetLen(len) => file.durable.resize(len, 0),
                    Unsynced::Write { offset, bytes } => put(&mut file.durable, offset, &bytes),
                }
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| {
            let file = state.files.get(&self.id).ok_or(io::ErrorKind::NotFound)?;
            Ok(file.current.len() as u64)
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.with(|state| {
            let crashing = state.step()?;
            let file = state.files.get(&self.id).ok_or(io::ErrorKind::NotFound)?;
            let growth = len.saturating_sub(file.current.len()) as u64;
            if !state.takes(growth) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(file) = state.files.get_mut(&self.id) {
                file.current.resize(len, 0);
                file.unsynced.push(Unsynced::SetLen(len));
            }
            if crashing {
                Err(power_failure())
            } else {
                Ok(())
            }
        })
    }
}

/// splitmix64: small, seeded, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
        file.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    }

    #[test]
    fn what_was_flushed_survives_and_what_was_not_may_not() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..64 {
            let disk = SimDisk::new();
            disk.create_dir_all(Path::new("/d")).unwrap();
            let file = disk.open(Path::new("/d/f"), OpenMode::Create).unwrap();
            write(&file, 0, &[1; 4096]);
            file.flush().unwrap();
            disk.flush_dir(Path::new("/d")).unwrap();
            disk.flush_dir(Path::new("/")).unwrap();
            write(&file, 4096, &[2; 4096]);
            disk.crash(seed);
            assert!(file.flush().is_err(), "a dead process's handle works");
            let bytes = disk.bytes(Path::new("/d/f")).unwrap();
            assert_eq!(bytes[..4096], [1; 4096]);
            let twos = bytes[4096..].iter().filter(|byte| **byte == 2).count();
            match twos {
                0 => lost += 1,
                4096 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(
            lost > 0 && kept > 0 && torn > 0,
            "{lost} lost, {kept} kept, {torn} torn"
        );
    }

    #[test]
    fn names_need_a_directory_flush() {
        let survivors = (0..32)
            .filter(|seed| {
                let disk = SimDisk::new();
                disk.create_dir_all(Path::new("/d")).unwrap();
                disk.flush_dir(Path::new("/")).unwrap();
                let file = disk.open(Path::new("/d/f"), OpenMode::Create).unwrap();
                write(&file, 0, b"bytes");
                file.flush().unwrap();
                disk.crash(*seed);
                disk.exists(Path::new("/d/f")).unwrap()
            })
            .count();
        assert!(survivors > 0 && survivors < 32, "{survivors}");
    }

    #[test]
    fn a_failed_flush_leaves_clean_pages_that_are_not_durable() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
        disk.flush_dir(Path::new("")).unwrap();
        write(&file, 0, b"old");
        file.flush().unwrap();
        write(&file, 0, b"new");
        disk.fail_flush("f", 0);
        assert!(file.flush().is_err());
        let mut seen = [0; 3];
        file.read_at(0, &mut seen).unwrap();
        assert_eq!(&seen, b"new");
        disk.crash(1);
        assert_eq!(disk.bytes(Path::new("f")).unwrap(), b"old");
    }

    #[test]
    fn a_full_disk_refuses_growth_and_takes_overwrites() {
        let disk = SimDisk::with_options(SimOptions { capacity_bytes: 8 });
        let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
        write(&file, 0, b"12345678");
        let error = file.write_at(8, &[IoSlice::new(b"9")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        write(&file, 0, b"87654321");
    }
}
