//! A segment file: a header of 64 bytes, then entry frames one after another.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | `CRDYSEGM` |
//! | 8..12 | version, 1 |
//! | 12..16 | segment number, unique within the replica |
//! | 16..32 | topic id |
//! | 32..36 | partition |
//! | 36..44 | salt, random: begins every checksum in this file and its index |
//! | 44..52 | first index |
//! | 52..60 | first offset |
//! | 60..64 | CRC-32C of bytes 0..60 |
//!
//! Where a segment ends is never read from it: the state file and the journal say so. No byte
//! below an end that was durable is ever written again: a truncation seals the segment.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use corduroy_record::{GroupId, LogIndex, Offset};

use crate::checksum::checksum;
use crate::codec::{Decode, Encode, Short};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{IoContext, StorageError};
use crate::index::SparseIndex;
use crate::paths;

/// Where the first frame begins.
pub(crate) const SEGMENT_HEADER_BYTES: u32 = 64;

const MAGIC: &[u8; 8] = b"CRDYSEGM";
const VERSION: u32 = 1;

/// What a segment is, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentIdentity {
    pub id: u32,
    pub salt: u64,
    pub base_index: LogIndex,
    pub base_offset: Offset,
    /// Wall clock, milliseconds; rolling by age counts from here.
    pub created_millis: i64,
}

/// A segment's file, shared by the shard, the flush thread and readers. It is opened by whoever
/// needs it first.
pub(crate) struct SegmentFile {
    pub identity: SegmentIdentity,
    pub group: GroupId,
    pub path: PathBuf,
    file: OnceLock<Arc<dyn DiskFile>>,
    /// Whether the name is known to be durable.
    named: AtomicBool,
}

impl SegmentFile {
    pub(crate) fn new(group: GroupId, dir: &Path, identity: SegmentIdentity) -> SegmentFile {
        let path = paths::segment_file(dir, identity.base_offset.get(), identity.id);
        SegmentFile {
            identity,
            group,
            path,
            file: OnceLock::new(),
            named: AtomicBool::new(false),
        }
    }

    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
        bytes.bytes(MAGIC);
        bytes.u32(VERSION);
        bytes.u32(self.identity.id);
        bytes.bytes(&self.group.topic.bytes());
        bytes.i32(self.group.partition.get());
        bytes.u64(self.identity.salt);
        bytes.u64(self.identity.base_index.get());
        bytes.i64(self.identity.base_offset.get());
        bytes.u32(checksum(&bytes));
        bytes
    }

    /// Creates the file with its header. Neither its bytes nor its name are durable yet.
    pub(crate) fn create(&self, disk: &dyn Disk) -> Result<&Arc<dyn DiskFile>, StorageError> {
        let file = disk
            .open(&self.path, OpenMode::Create)
            .during("create", &self.path)?;
        let header = self.header();
        file.write_at(0, &[IoSlice::new(&header)])
            .during("write", &self.path)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Makes the file's name durable, once (law 11).
    pub(crate) fn flush_name(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        if self.named.load(Ordering::Relaxed) {
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new(""));
        disk.flush_dir(dir).during("flush", dir)?;
        self.named.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The open file; opens it and checks its header on first use.
    pub(crate) fn open(&self, disk: &dyn Disk) -> Result<&Arc<dyn DiskFile>, StorageError> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = match disk.open(&self.path, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.damage("the file is gone"));
            }
            file => file.during("open", &self.path)?,
        };
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let got = file.read_at(0, &mut header).during("read", &self.path)?;
        if got < header.len() || header[..] != self.header()[..] {
            return Err(self.damage("its header is not what was written"));
        }
        Ok(self.file.get_or_init(|| file))
    }

    /// Syncs the file's bytes, whatever they are: whether its header is what was written is for those to
    /// find out who read it, and a flush that did not fail is no failed flush.
    pub(crate) fn flush(&self, disk: &dyn Disk) -> Result<(), StorageError> {
        self.open_unchecked(disk)?
            .flush()
            .during("flush", &self.path)
    }

    /// Lets the system begin to write what a later [`flush`](SegmentFile::flush) waits for.
    pub(crate) fn start_flush(&self, disk: &dyn Disk) {
        if let Ok(file) = self.open_unchecked(disk) {
            file.start_flush();
        }
    }

    /// The file as it is; not kept, so that the first who reads or appends still checks its header.
    fn open_unchecked(&self, disk: &dyn Disk) -> Result<Arc<dyn DiskFile>, StorageError> {
        if let Some(file) = self.file.get() {
            return Ok(file.clone());
        }
        match disk.open(&self.path, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.damage("the file is gone"))
            }
            file => file.during("open", &self.path),
        }
    }

    pub(crate) fn damage(&self, what: &str) -> StorageError {
        StorageError::damaged(self.group, format!("{}: {what}", self.path.display()))
    }
}

/// Reads a segment header without knowing what it should say: for tools.
pub(crate) fn parse_header(bytes: &[u8]) -> Result<Option<(GroupId, SegmentIdentity)>, Short> {
    let Some((front, crc)) = bytes
        .get(..SEGMENT_HEADER_BYTES as usize)
        .ok_or(Short)?
        .split_last_chunk::<4>()
    else {
        return Ok(None);
    };
    if checksum(front) != u32::from_le_bytes(*crc) {
        return Ok(None);
    }
    let mut fields = Decode::new(front);
    if fields.take(8)? != MAGIC || fields.u32()? != VERSION {
        return Ok(None);
    }
    let id = fields.u32()?;
    let topic = corduroy_record::TopicId::from_bytes(fields.bytes16()?);
    let partition = corduroy_record::PartitionIndex::new(fields.i32()?);
    let identity = SegmentIdentity {
        id,
        salt: fields.u64()?,
        base_index: LogIndex::new(fields.u64()?),
        base_offset: Offset::new(fields.i64()?),
        created_millis: 0,
    };
    Ok(Some((GroupId { topic, partition }, identity)))
}

/// One segment of an open log, as its shard knows it.
///
/// Law: `SEGMENT_HEADER_BYTES <= end`; frames fill `SEGMENT_HEADER_BYTES..end` without a gap.
pub(crate) struct Segment {
    pub file: Arc<SegmentFile>,
    /// Where the next frame would begin.
    pub end: u32,
    /// Largest record timestamp; an upper bound after a truncation.
    pub max_timestamp: i64,
    pub index: SparseIndex,
    /// Takes no more frames.
    pub sealed: bool,
}

impl Segment {
    pub(crate) fn base_index(&self) -> LogIndex {
        self.file.identity.base_index
    }

    pub(crate) fn base_offset(&self) -> Offset {
        self.file.identity.base_offset
    }

    pub(crate) fn id(&self) -> u32 {
        self.file.identity.id
    }
}
