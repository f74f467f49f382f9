//! Writes turns: which file, where in it, and which files may be used again.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    FileHeader, HeaderState, PAGE_BYTES, TURN_HEADER_BYTES, TURN_MAGIC, decode_header,
    encode_header, page_up,
};
use crate::checksum::Checksum;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{IoContext, StorageError};
use crate::paths;

/// Files that stand ready when a journal is opened.
const FILES_READY: usize = 2;
/// Zeros are written in pieces of this size.
const ZEROS_BYTES: usize = 1 << 20;
static PADDING: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A journal file without turns, pre-written, marked free durably.
pub(crate) struct FreeFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

struct UsedFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    incarnation: u64,
    last_turn: u64,
}

/// Law: files in use carry ascending sequences and consecutive turns; only the last is written.
pub(crate) struct JournalWriter {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    files_max: usize,
    session: u64,
    /// In use, oldest first; the last is written.
    used: VecDeque<UsedFile>,
    free: Vec<FreeFile>,
    /// Handed out to be marked free.
    recycling: usize,
    next_number: u32,
    next_sequence: u64,
    next_turn: u64,
    /// Where the next turn begins in the last file.
    position: u64,
}

impl JournalWriter {
    /// Opens a recovered journal: all its files must be free.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        file_bytes: u64,
        files_max: usize,
        session: u64,
    ) -> Result<JournalWriter, StorageError> {
        let mut free = Vec::new();
        let mut next_number = 0;
        for name in disk.list(&dir).during("list", &dir)? {
            let Some(number) = paths::parse_journal(&name) else {
                continue;
            };
            next_number = next_number.max(number + 1);
            let path = dir.join(&name);
            let file = disk.open(&path, OpenMode::Existing).during("open", &path)?;
            let mut header = [0; super::FILE_HEADER_BYTES];
            let got = file.read_at(0, &mut header).during("read", &path)?;
            if decode_header(&header[..got]) != HeaderState::Free {
                return Err(StorageError::NeedsRecovery { path: dir });
            }
            if file.len().during("measure", &path)? == file_bytes {
                free.push(FreeFile { path, file });
            } else {
                // Of another size, or its creation was cut short.
                disk.remove_file(&path).during("remove", &path)?;
            }
        }
        // Ascending numbers are used first.
        free.reverse();
        let mut journal = JournalWriter {
            disk,
            dir,
            file_bytes,
            files_max,
            session,
            used: VecDeque::new(),
            free,
            recycling: 0,
            next_number,
            next_sequence: 1,
            next_turn: 1,
            position: 0,
        };
        // A vote must never wait for space: one file to write, one to go on with meanwhile.
        while journal.free.len() < FILES_READY {
            let file = journal.create_file()?;
            journal.free.insert(0, file);
        }
        Ok(journal)
    }

    /// Bytes of records that fit into one turn.
    pub(crate) fn capacity_bytes(file_bytes: u64) -> usize {
        usize::try_from(file_bytes - PAGE_BYTES).unwrap_or(usize::MAX) - TURN_HEADER_BYTES
    }

    pub(crate) fn files_used(&self) -> usize {
        self.used.len()
    }

    /// The last turn of the oldest file, unless that file is still written.
    pub(crate) fn oldest_last_turn(&self) -> Option<u64> {
        (self.used.len() > 1).then(|| self.used[0].last_turn)
    }

    fn fits(&self, body_bytes: usize) -> bool {
        let turn_bytes = page_up((TURN_HEADER_BYTES + body_bytes) as u64);
        !self.used.is_empty() && self.position + turn_bytes <= self.file_bytes
    }

    /// Makes sure that a turn of this size can be written, with a new file if need be.
    /// `Ok(false)`: only a checkpoint frees one.
    pub(crate) fn make_room(
        &mut self,
        body_bytes: usize,
        overcommit: bool,
    ) -> Result<bool, StorageError> {
        if self.has_room(body_bytes) {
            return Ok(true);
        }
        if self.total_files() >= self.files_max && !overcommit {
            return Ok(false);
        }
        let file = self.create_file()?;
        self.free.push(file);
        Ok(true)
    }

    /// Whether a turn of this size needs no new file.
    pub(crate) fn has_room(&self, body_bytes: usize) -> bool {
        self.fits(body_bytes) || !self.free.is_empty()
    }

    fn total_files(&self) -> usize {
        self.used.len() + self.free.len() + self.recycling
    }

    /// Writes one turn; it is durable only after [`JournalWriter::flush`]. Returns its number.
    pub(crate) fn write_turn(
        &mut self,
        body: &[IoSlice<'_>],
        body_bytes: usize,
        records: u32,
        random: impl FnOnce() -> u64,
    ) -> Result<u64, StorageError> {
        if !self.fits(body_bytes) {
            self.next_file(random())?;
        }
        let turn = self.next_turn;
        let position = self.position;
        let Some(used) = self.used.back_mut() else {
            return Err(StorageError::Failed("the journal has no file".into()));
        };
        let mut header = [0; TURN_HEADER_BYTES];
        header[0..4].copy_from_slice(TURN_MAGIC);
        header[8..16].copy_from_slice(&used.incarnation.to_le_bytes());
        header[16..24].copy_from_slice(&turn.to_le_bytes());
        header[24..28].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        header[28..32].copy_from_slice(&records.to_le_bytes());
        let mut crc = Checksum::salted(used.incarnation);
        crc.update(&header[8..]);
        for chunk in body {
            crc.update(chunk);
        }
        header[4..8].copy_from_slice(&crc.finish().to_le_bytes());

        let turn_bytes = (TURN_HEADER_BYTES + body_bytes) as u64;
        let padded = page_up(turn_bytes);
        let padding = usize::try_from(padded - turn_bytes).unwrap_or(0);
        let mut chunks = Vec::with_capacity(body.len() + 2);
        chunks.push(IoSlice::new(&header));
        chunks.extend(body.iter().map(|chunk| IoSlice::new(chunk)));
        chunks.push(IoSlice::new(&PADDING[..padding]));
        used.file
            .write_at(position, &chunks)
            .during("write", &used.path)?;
        used.last_turn = turn;
        self.next_turn += 1;
        self.position = position + padded;
        Ok(turn)
    }

    /// The file that the last turn was written to: flush it to make the turn durable.
    pub(crate) fn current(&self) -> Option<(&Arc<dyn DiskFile>, &Path)> {
        self.used
            .back()
            .map(|used| (&used.file, used.path.as_path()))
    }

    /// Begins the next file: its header rides with its first turn, in one flush. Should the
    /// crash keep the turn and lose the header, the file still reads as free.
    fn next_file(&mut self, incarnation: u64) -> Result<(), StorageError> {
        let Some(FreeFile { path, file }) = self.free.pop() else {
            return Err(StorageError::Failed(
                "a turn has no room in the journal".into(),
            ));
        };
        let header = FileHeader {
            session: self.session,
            sequence: self.next_sequence,
            incarnation,
            first_turn: self.next_turn,
        };
        let bytes = encode_header(Some(&header));
        file.write_at(0, &[IoSlice::new(&bytes)])
            .during("write", &path)?;
        self.next_sequence += 1;
        self.used.push_back(UsedFile {
            path,
            file,
            incarnation,
            last_turn: self.next_turn,
        });
        self.position = PAGE_BYTES;
        Ok(())
    }

    /// Creates a file now. The slow way: [`JournalWriter::plan_file`] prepares them ahead.
    fn create_file(&mut self) -> Result<FreeFile, StorageError> {
        let path = self.next_path();
        write_free_file(&*self.disk, &path, self.file_bytes)
    }

    fn next_path(&mut self) -> PathBuf {
        let path = paths::journal_file(&self.dir, self.next_number);
        self.next_number += 1;
        path
    }

    /// If one more file should stand ready: the work that prepares it, for another thread.
    pub(crate) fn plan_file(
        &mut self,
    ) -> Option<impl FnOnce() -> Result<Option<FreeFile>, StorageError> + Send + 'static> {
        let half_full = self.used.is_empty() || self.position * 2 > self.file_bytes;
        let spare = self.free.len() + self.recycling;
        if !half_full || spare > 0 || self.total_files() >= self.files_max {
            return None;
        }
        self.recycling += 1;
        let path = self.next_path();
        let (disk, file_bytes) = (self.disk.clone(), self.file_bytes);
        Some(move || write_free_file(&*disk, &path, file_bytes).map(Some))
    }

    /// Files that another thread prepares or frees.
    pub(crate) fn handed_out(&self) -> usize {
        self.recycling
    }

    /// Takes back what [`JournalWriter::plan_file`] or [`JournalWriter::release`] handed out;
    /// `None`: the file was one too many and is gone.
    pub(crate) fn add_free(&mut self, file: Option<FreeFile>) {
        self.recycling -= 1;
        self.free.extend(file);
    }

    /// A planned file could not be made (the disk is full); it may be planned again.
    pub(crate) fn forget_planned(&mut self) {
        self.recycling -= 1;
    }

    /// Every turn below `before` is in durable state files. Returns the work that frees the
    /// files that held nothing else, oldest first (law 5), for another thread. A file that was
    /// made beyond the limit is removed once it is free: the journal's bound is back.
    pub(crate) fn release(
        &mut self,
        before: u64,
        with_current: bool,
    ) -> Vec<impl FnOnce() -> Result<Option<FreeFile>, StorageError> + Send + 'static> {
        let mut beyond = self.total_files().saturating_sub(self.files_max);
        let mut work = Vec::new();
        let keep = usize::from(!with_current);
        while self.used.len() > keep && self.used[0].last_turn < before {
            let Some(used) = self.used.pop_front() else {
                break;
            };
            self.recycling += 1;
            let is_beyond = beyond > 0;
            beyond = beyond.saturating_sub(1);
            let disk = self.disk.clone();
            work.push(move || {
                let free = free_file(used.path, used.file)?;
                if is_beyond {
                    disk.remove_file(&free.path).during("remove", &free.path)?;
                    return Ok(None);
                }
                Ok(Some(free))
            });
        }
        work
    }
}

/// Marks a file free, durably: only then may its bytes be overwritten.
fn free_file(path: PathBuf, file: Arc<dyn DiskFile>) -> Result<FreeFile, StorageError> {
    let bytes = encode_header(None);
    file.write_at(0, &[IoSlice::new(&bytes)])
        .during("write", &path)?;
    file.flush().during("flush", &path)?;
    Ok(FreeFile { path, file })
}

/// Marks a file free by name, for recovery.
pub(super) fn free_by_path(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let file = disk.open(path, OpenMode::Existing).during("open", path)?;
    free_file(path.to_owned(), file).map(drop)
}

/// Writes a new file full of zeros, so that a turn in it changes no file size and allocates
/// nothing: such a flush is nearly twice as fast, and needs no space on a full disk.
fn write_free_file(
    disk: &dyn Disk,
    path: &Path,
    file_bytes: u64,
) -> Result<FreeFile, StorageError> {
    let write = || -> io::Result<Arc<dyn DiskFile>> {
        let file = disk.open(path, OpenMode::Truncate)?;
        let zeros = vec![0; file_bytes.min(ZEROS_BYTES as u64) as usize];
        let mut at = 0;
        while at < file_bytes {
            let count = (file_bytes - at).min(ZEROS_BYTES as u64);
            file.write_at(at, &[IoSlice::new(&zeros[..count as usize])])?;
            at += count;
        }
        file.write_at(0, &[IoSlice::new(&encode_header(None))])?;
        file.flush()?;
        disk.flush_dir(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        Ok(file)
    };
    match write() {
        Ok(file) => Ok(FreeFile {
            path: path.to_owned(),
            file,
        }),
        Err(error) => {
            // Half a file would keep space that a full disk needs.
            if error.kind() == io::ErrorKind::StorageFull {
                disk.remove_file(path).ok();
            }
            Err(StorageError::io("create", path, &error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    const FILE_BYTES: u64 = 64 << 10;

    fn names(disk: &SimDisk) -> Vec<String> {
        disk.list(Path::new("/j")).unwrap_or_default()
    }

    /// Writes turns of nearly a whole file each until `make_room` refuses.
    fn fill(journal: &mut JournalWriter) -> u64 {
        let body = vec![7; 60 << 10];
        let mut last = 0;
        while journal.make_room(body.len(), false).unwrap() {
            let chunks = [IoSlice::new(&body)];
            last = journal.write_turn(&chunks, body.len(), 0, || 1).unwrap();
        }
        last
    }

    #[test]
    fn a_file_beyond_the_limit_goes_when_it_is_free_and_the_others_are_used_again() {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("/j")).unwrap();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let dir = PathBuf::from("/j");
        let mut journal = JournalWriter::open(shared, dir, FILE_BYTES, 3, 1).unwrap();
        let last = fill(&mut journal);
        assert_eq!((journal.files_used(), names(&disk).len()), (3, 3));
        assert!(journal.make_room(1000, true).unwrap());
        assert_eq!(names(&disk).len(), 4, "nothing but more journal helped");
        let body = [1; 1000];
        let chunks = [IoSlice::new(&body)];
        journal.write_turn(&chunks, body.len(), 0, || 2).unwrap();
        for work in journal.release(last + 1, false) {
            journal.add_free(work().unwrap());
        }
        assert_eq!(names(&disk).len(), 3, "the bound is not back");
        assert_eq!((journal.files_used(), journal.handed_out()), (1, 0));
        fill(&mut journal);
        assert_eq!(names(&disk).len(), 3);
        assert_eq!(
            names(&disk).last().map(String::as_str),
            Some("0003.journal")
        );
    }
}
