//! Reads a shard's journal back: turn by turn, telling a torn tail from damage (law 4).

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{
    FileHeader, HeaderState, PAGE_BYTES, Record, TURN_HEADER_BYTES, TURN_MAGIC, decode_header,
    page_up,
};
use crate::checksum::{Checksum, holds};
use crate::codec::Decode;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{IoContext, StorageError};
use crate::paths;

/// What is wrong with a journal, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalDamage {
    pub what: String,
}

/// How the turns of a shard ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalEnd {
    /// All files are free: a clean stop, or nothing ever written.
    Clean,
    /// The last turn is whole.
    Whole,
    /// Bytes of a turn that never became durable follow the last turn.
    Torn,
}

/// A shard's journal, opened for reading.
pub(crate) struct ShardJournal {
    dir: PathBuf,
    files: Vec<(PathBuf, FileHeader)>,
    /// Everything but the turns' own contents that is not as it was written.
    damage: Vec<JournalDamage>,
    file_paths: Vec<PathBuf>,
}

struct FoundTurn {
    turn: u64,
    body: Bytes,
    records: u32,
    padded_bytes: u64,
}

/// Opens a shard's journal: headers only.
pub(crate) fn read_shard(disk: &dyn Disk, dir: &Path) -> Result<ShardJournal, StorageError> {
    let mut files: Vec<(PathBuf, FileHeader)> = Vec::new();
    let mut invalid = Vec::new();
    let mut file_paths = Vec::new();
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.during("list", dir)?,
    };
    for name in names {
        if paths::parse_journal(&name).is_none() {
            continue;
        }
        let path = dir.join(name);
        let file = disk.open(&path, OpenMode::Existing).during("open", &path)?;
        // Recovered is not durable (law 3): after a kill of the process the page cache may hold
        // what the disk does not.
        file.flush().during("flush", &path)?;
        let mut header = [0; super::FILE_HEADER_BYTES];
        let got = file.read_at(0, &mut header).during("read", &path)?;
        match decode_header(&header[..got]) {
            HeaderState::InUse(header) => files.push((path.clone(), header)),
            HeaderState::Free => {}
            HeaderState::Invalid => invalid.push(path.clone()),
        }
        file_paths.push(path);
    }
    files.sort_by_key(|(_, header)| header.sequence);
    let mut damage: Vec<JournalDamage> = Vec::new();
    for path in invalid {
        damage.push(JournalDamage {
            what: format!("{}: bad header", path.display()),
        });
    }
    for pair in files.windows(2) {
        let ((_, before), (path, after)) = (&pair[0], &pair[1]);
        if before.session != after.session || before.sequence + 1 != after.sequence {
            let what = format!("{}: a file before it is missing", path.display());
            damage.push(JournalDamage { what });
        }
    }
    Ok(ShardJournal {
        dir: dir.to_owned(),
        files,
        damage,
        file_paths,
    })
}

impl ShardJournal {
    pub(crate) fn session(&self) -> Option<u64> {
        self.files.first().map(|(_, header)| header.session)
    }

    /// Feeds all whole turns in order to `visit`, and says how they ended and what was damaged.
    pub(crate) fn replay(
        &mut self,
        disk: &dyn Disk,
        mut visit: impl FnMut(u64, Vec<Record>) -> Result<(), StorageError>,
    ) -> Result<(JournalEnd, Vec<JournalDamage>, u64), StorageError> {
        let mut damage = std::mem::take(&mut self.damage);
        if self.files.is_empty() {
            return Ok((JournalEnd::Clean, damage, 0));
        }
        let mut expected = self.files[0].1.first_turn;
        let mut last = expected.saturating_sub(1);
        let mut end = JournalEnd::Whole;
        let count = self.files.len();
        for (number, (path, header)) in self.files.iter().enumerate() {
            let file = disk.open(path, OpenMode::Existing).during("open", path)?;
            let len = file.len().during("measure", path)?;
            let is_last = number + 1 == count;
            let mut position = PAGE_BYTES;
            if header.first_turn != expected {
                let what = format!(
                    "{}: begins with turn {}, expected {expected}",
                    path.display(),
                    header.first_turn
                );
                damage.push(JournalDamage { what });
                expected = header.first_turn;
            }
            while position + PAGE_BYTES <= len {
                let found = read_turn(&*file, path, position, len, header.incarnation)?;
                match found {
                    Some(found) if found.turn == expected => {
                        position += found.padded_bytes;
                        expected += 1;
                        last = found.turn;
                        match decode_records(&found) {
                            Some(records) => visit(found.turn, records)?,
                            None => {
                                let what =
                                    format!("{}: turn {}: records", path.display(), found.turn);
                                damage.push(JournalDamage { what });
                            }
                        }
                    }
                    found => {
                        // Not the turn that follows. A whole one further on proves that this
                        // one was durable once.
                        let later = match found {
                            Some(found) if found.turn > expected => Some(position),
                            _ => find_turn(
                                &*file,
                                path,
                                position,
                                len,
                                header.incarnation,
                                expected,
                            )?,
                        };
                        let garbage = is_begun(&*file, path, position, header.incarnation)?;
                        match later {
                            Some(later) => {
                                let what = format!(
                                    "{}: turn {expected} at {position} is not what was written",
                                    path.display()
                                );
                                damage.push(JournalDamage { what });
                                let found =
                                    read_turn(&*file, path, later, len, header.incarnation)?;
                                expected = found.map_or(expected, |found| found.turn);
                                position = later;
                            }
                            None => {
                                if is_last && garbage {
                                    end = JournalEnd::Torn;
                                }
                                break;
                            }
                        }
                    }
                }
            }
        }
        Ok((end, damage, last))
    }

    /// Marks all files free, oldest first. Every record must be in durable state files.
    pub(crate) fn free_all(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        for (path, _) in &self.files {
            super::writer::free_by_path(disk, path)?;
        }
        let in_use: Vec<&PathBuf> = self.files.iter().map(|(path, _)| path).collect();
        for path in self.file_paths.iter().filter(|path| !in_use.contains(path)) {
            let file = disk.open(path, OpenMode::Existing).during("open", path)?;
            let mut header = [0; super::FILE_HEADER_BYTES];
            let got = file.read_at(0, &mut header).during("read", path)?;
            if decode_header(&header[..got]) == HeaderState::Invalid {
                super::writer::free_by_path(disk, path)?;
            }
        }
        disk.flush_dir(&self.dir).during("flush", &self.dir)
    }
}

fn decode_records(turn: &FoundTurn) -> Option<Vec<Record>> {
    let mut at = 0;
    let mut records = Vec::with_capacity(turn.records as usize);
    for _ in 0..turn.records {
        records.push(Record::decode(&turn.body, &mut at).ok()?);
    }
    (at == turn.body.len()).then_some(records)
}

/// The turn at `position`, if its checksum holds.
fn read_turn(
    file: &dyn DiskFile,
    path: &Path,
    position: u64,
    len: u64,
    incarnation: u64,
) -> Result<Option<FoundTurn>, StorageError> {
    let mut header = [0; TURN_HEADER_BYTES];
    let got = file.read_at(position, &mut header).during("read", path)?;
    if got < header.len() || header[..4] != TURN_MAGIC[..] {
        return Ok(None);
    }
    let mut fields = Decode::new(&header[4..]);
    let Ok((crc, of, turn, body_bytes, records)) = (|| {
        Ok::<_, crate::codec::Short>((
            fields.u32()?,
            fields.u64()?,
            fields.u64()?,
            fields.u32()?,
            fields.u32()?,
        ))
    })() else {
        return Ok(None);
    };
    let turn_bytes = TURN_HEADER_BYTES as u64 + u64::from(body_bytes);
    if of != incarnation || position + turn_bytes > len {
        return Ok(None);
    }
    let mut body = vec![0; body_bytes as usize];
    let at = position + TURN_HEADER_BYTES as u64;
    let got = file.read_at(at, &mut body).during("read", path)?;
    let mut found = Checksum::salted(incarnation);
    found.update(&header[8..]);
    found.update(&body);
    if got < body.len() || !holds(found.finish(), crc) {
        return Ok(None);
    }
    let padded_bytes = page_up(turn_bytes);
    Ok(Some(FoundTurn {
        turn,
        body: Bytes::from(body),
        records,
        padded_bytes,
    }))
}

/// The first page after `position` where a whole turn numbered `expected` or later begins.
fn find_turn(
    file: &dyn DiskFile,
    path: &Path,
    position: u64,
    len: u64,
    incarnation: u64,
    expected: u64,
) -> Result<Option<u64>, StorageError> {
    let mut at = position + PAGE_BYTES;
    while at + PAGE_BYTES <= len {
        if let Some(found) = read_turn(file, path, at, len, incarnation)?
            && found.turn >= expected
        {
            return Ok(Some(at));
        }
        at += PAGE_BYTES;
    }
    Ok(None)
}

/// Whether a turn of this incarnation was begun at `position`.
fn is_begun(
    file: &dyn DiskFile,
    path: &Path,
    position: u64,
    incarnation: u64,
) -> Result<bool, StorageError> {
    let mut header = [0; TURN_HEADER_BYTES];
    file.read_at(position, &mut header).during("read", path)?;
    Ok(header[..4] == TURN_MAGIC[..] && header[8..16] == incarnation.to_le_bytes())
}
