//! The sparse index of a segment: every few KiB, where a frame begins.
//!
//! One file serves all three ways in: by index, by offset, by timestamp. It is a row of 36
//! bytes after another, each with a checksum of its own; how many count is in the state file.
//! It holds nothing that the segment does not: a damaged index is rebuilt from the frames.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | index of the frame |
//! | 8..16 | base offset of the frame |
//! | 16..24 | largest record timestamp of all frames before it in the segment |
//! | 24..28 | position of the frame in the segment file |
//! | 28..32 | zero |
//! | 32..36 | CRC-32C of the segment's salt and bytes 0..32 |

use std::io::IoSlice;
use std::path::Path;

use corduroy_record::{LogIndex, Offset};

use crate::checksum::Checksum;
use crate::codec::{Decode, Encode, Short};
use crate::disk::{Disk, OpenMode};
use crate::error::{IoContext, StorageError};

pub(crate) const ROW_BYTES: usize = 36;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexRow {
    pub index: LogIndex,
    pub offset: Offset,
    pub max_timestamp_before: i64,
    pub position: u32,
}

impl IndexRow {
    pub(crate) fn encode(&self, salt: u64, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.u64(self.index.get());
        bytes.i64(self.offset.get());
        bytes.i64(self.max_timestamp_before);
        bytes.u32(self.position);
        bytes.u32(0);
        let mut crc = Checksum::salted(salt);
        crc.update(&bytes[start..]);
        bytes.u32(crc.finish());
    }

    fn decode(bytes: &[u8], salt: u64) -> Result<Option<IndexRow>, Short> {
        let mut fields = Decode::new(bytes);
        let row = IndexRow {
            index: LogIndex::new(fields.u64()?),
            offset: Offset::new(fields.i64()?),
            max_timestamp_before: fields.i64()?,
            position: fields.u32()?,
        };
        fields.u32()?;
        let mut crc = Checksum::salted(salt);
        crc.update(bytes.get(..ROW_BYTES - 4).ok_or(Short)?);
        Ok((fields.u32()? == crc.finish()).then_some(row))
    }
}

/// Law: rows ascend by position. `stored` rows are in the file; the rest is only here.
pub(crate) struct SparseIndex {
    stored: u32,
    /// The rows in the file, once somebody needed them.
    loaded: Option<Vec<IndexRow>>,
    tail: Vec<IndexRow>,
    /// Position of the last row, so that appends keep their distance without loading.
    last_position: Option<u32>,
    /// Position of the last row in the file.
    stored_last_position: Option<u32>,
}

impl SparseIndex {
    /// The index of a new segment.
    pub(crate) fn empty() -> SparseIndex {
        SparseIndex {
            stored: 0,
            loaded: Some(Vec::new()),
            tail: Vec::new(),
            last_position: None,
            stored_last_position: None,
        }
    }

    /// An index whose first `stored` rows are in the file.
    pub(crate) fn stored(stored: u32, last_position: Option<u32>) -> SparseIndex {
        let loaded = (stored == 0).then(Vec::new);
        SparseIndex {
            stored,
            loaded,
            tail: Vec::new(),
            last_position,
            stored_last_position: last_position,
        }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    /// Rows of the file that are in memory too.
    pub(crate) fn loaded_count(&self) -> usize {
        self.loaded.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn stored_last_position(&self) -> Option<u32> {
        self.stored_last_position
    }

    pub(crate) fn stored_count(&self) -> u32 {
        self.stored
    }

    /// Gives the rows of the file, for look-ups.
    pub(crate) fn set_loaded(&mut self, mut rows: Vec<IndexRow>) {
        rows.truncate(self.stored as usize);
        self.loaded = Some(rows);
    }

    /// Notes a frame if the last row is `interval` bytes behind.
    pub(crate) fn note(&mut self, row: IndexRow, interval: u32) {
        if self
            .last_position
            .is_none_or(|last| row.position >= last.saturating_add(interval))
        {
            self.last_position = Some(row.position);
            self.tail.push(row);
        }
    }

    /// Rows at or beyond `end` are forgotten.
    pub(crate) fn truncate(&mut self, end: u32) {
        self.tail.retain(|row| row.position < end);
        if let Some(rows) = &mut self.loaded {
            rows.retain(|row| row.position < end);
            self.stored = rows.len() as u32;
        }
        self.last_position = (self.tail.last())
            .or_else(|| self.loaded.as_ref().and_then(|rows| rows.last()))
            .map(|row| row.position);
    }

    /// Rows that are not in the file and begin below `end`.
    pub(crate) fn unstored(&self, end: u32) -> Vec<IndexRow> {
        self.tail
            .iter()
            .copied()
            .take_while(|row| row.position < end)
            .collect()
    }

    /// `stored` rows are in the file.
    pub(crate) fn set_stored(&mut self, stored: u32) {
        let Some(count) = stored.checked_sub(self.stored) else {
            return;
        };
        let count = (count as usize).min(self.tail.len());
        if let Some(last) = count.checked_sub(1) {
            self.stored_last_position = Some(self.tail[last].position);
        }
        let moved = self.tail.drain(..count);
        match &mut self.loaded {
            Some(rows) => rows.extend(moved),
            None => drop(moved),
        }
        self.stored = stored;
    }

    /// Drops the rows that the file holds too.
    pub(crate) fn unload(&mut self) {
        if self.stored > 0 {
            self.loaded = None;
        }
    }

    /// The last row for which `before` holds; `before` must hold for a prefix of the rows.
    /// `None` also if the file's rows were not loaded and the tail does not decide.
    pub(crate) fn floor(&self, before: impl Fn(&IndexRow) -> bool) -> Option<IndexRow> {
        let in_tail = self.tail.partition_point(&before);
        if let Some(last) = in_tail.checked_sub(1) {
            return Some(self.tail[last]);
        }
        let rows = self.loaded.as_ref()?;
        let at = rows.partition_point(&before).checked_sub(1)?;
        Some(rows[at])
    }
}

/// Adds rows to an index file from row number `first` on. Not durable.
pub(crate) fn store_rows(
    disk: &dyn Disk,
    path: &Path,
    salt: u64,
    first: u32,
    rows: &[IndexRow],
) -> Result<(), StorageError> {
    let mut bytes = Vec::with_capacity(rows.len() * ROW_BYTES);
    for row in rows {
        row.encode(salt, &mut bytes);
    }
    let file = disk.open(path, OpenMode::Create).during("open", path)?;
    let at = u64::from(first) * ROW_BYTES as u64;
    file.write_at(at, &[IoSlice::new(&bytes)])
        .during("write", path)
}

/// Reads the first `count` rows. `Ok(None)`: the file is missing, short or damaged, and has to
/// be rebuilt.
pub(crate) fn load_rows(
    disk: &dyn Disk,
    path: &Path,
    salt: u64,
    count: u32,
) -> Result<Option<Vec<IndexRow>>, StorageError> {
    let Ok(file) = disk.open(path, OpenMode::Existing) else {
        return Ok(None);
    };
    let mut bytes = vec![0; count as usize * ROW_BYTES];
    let got = file.read_at(0, &mut bytes).during("read", path)?;
    if got < bytes.len() {
        return Ok(None);
    }
    let mut rows: Vec<IndexRow> = Vec::with_capacity(count as usize);
    for chunk in bytes.chunks_exact(ROW_BYTES) {
        match IndexRow::decode(chunk, salt) {
            Ok(Some(row)) if rows.last().is_none_or(|last| last.position < row.position) => {
                rows.push(row);
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(rows))
}
