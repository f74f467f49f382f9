//! Files that hold a state machine's tables as of one index: checkpoints and the snapshot.
//!
//! Layout: `CRDYTABL`, version, kind of nothing else: then topic id, partition, term, index,
//! offset, length of the membership, length of the tables, both, and CRC-32C of all before it.

use std::io;
use std::path::Path;

use bytes::Bytes;
use corduroy_record::{GroupId, LogIndex, Offset, Term};

use crate::checksum::checksum;
use crate::codec::{Decode, Encode, Short};
use crate::disk::{Disk, read_file, replace_file};
use crate::error::{IoContext, StorageError};

const MAGIC: &[u8; 8] = b"CRDYTABL";
const VERSION: u32 = 1;

/// The largest tables file, in bytes.
pub const TABLES_BYTES_MAX: u64 = 1 << 30;

/// A state machine's tables exactly as of one entry, with the membership in force there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTables {
    /// The last entry that they include.
    pub at: (Term, LogIndex),
    /// The offset after that entry.
    pub offset: Offset,
    /// The group's members as of that entry, in the Raft crate's encoding.
    pub membership: Bytes,
    /// The tables, in the state machine's encoding.
    pub tables: Bytes,
}

impl SavedTables {
    pub(crate) fn encode(&self, group: GroupId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(80 + self.membership.len() + self.tables.len());
        bytes.bytes(MAGIC);
        bytes.u32(VERSION);
        bytes.bytes(&group.topic.bytes());
        bytes.i32(group.partition.get());
        bytes.u64(self.at.0.get());
        bytes.u64(self.at.1.get());
        bytes.i64(self.offset.get());
        bytes.u32(self.membership.len() as u32);
        bytes.u32(self.tables.len() as u32);
        bytes.bytes(&self.membership);
        bytes.bytes(&self.tables);
        bytes.u32(checksum(&bytes));
        bytes
    }

    pub(crate) fn decode(bytes: Vec<u8>, group: GroupId) -> Result<Option<SavedTables>, Short> {
        let bytes = Bytes::from(bytes);
        let Some((front, crc)) = bytes.split_last_chunk::<4>() else {
            return Ok(None);
        };
        if checksum(front) != u32::from_le_bytes(*crc) {
            return Ok(None);
        }
        let mut fields = Decode::new(front);
        if fields.take(8)? != MAGIC
            || fields.u32()? != VERSION
            || fields.bytes16()? != group.topic.bytes()
            || fields.i32()? != group.partition.get()
        {
            return Ok(None);
        }
        let at = (Term::new(fields.u64()?), LogIndex::new(fields.u64()?));
        let offset = Offset::new(fields.i64()?);
        let membership = fields.u32()? as usize;
        let tables = fields.u32()? as usize;
        let membership = bytes.slice_ref(fields.take(membership)?);
        let tables = bytes.slice_ref(fields.take(tables)?);
        Ok(fields.rest().is_empty().then_some(SavedTables {
            at,
            offset,
            membership,
            tables,
        }))
    }

    /// Writes the file; durable when it returns.
    pub(crate) fn save(
        &self,
        disk: &dyn Disk,
        path: &Path,
        group: GroupId,
    ) -> Result<(), StorageError> {
        replace_file(disk, path, &[&self.encode(group)]).during("write", path)
    }

    /// Reads a file. `Ok(None)`: there is none.
    pub(crate) fn load(
        disk: &dyn Disk,
        path: &Path,
        group: GroupId,
    ) -> Result<Option<SavedTables>, StorageError> {
        match read_file(disk, path, TABLES_BYTES_MAX + 4096) {
            Ok(bytes) => match SavedTables::decode(bytes, group) {
                Ok(Some(tables)) => Ok(Some(tables)),
                _ => Err(StorageError::damaged(
                    group,
                    format!("{}: bad checksum", path.display()),
                )),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io("read", path, &error)),
        }
    }
}
