//! The journal of a shard: the one order of its disk.
//!
//! A row of pre-written files of one size, `NNNN.journal`. A file begins with a header page;
//! after it, flush turns, each at a multiple of 4096 bytes. Turn n+1 is written only after turn
//! n is durable, so only the last turn can be torn (law 4).
//!
//! File header (64 bytes of the first page):
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | `CRDYJRNL` |
//! | 8..12 | version, 1 |
//! | 12..16 | 1 in use, 2 free |
//! | 16..24 | session: random, new each time the shard opens its journal |
//! | 24..32 | sequence: the place of the file among those in use, ascending |
//! | 32..40 | incarnation: random, begins every turn's checksum |
//! | 40..48 | number of the first turn |
//! | 48..60 | zero |
//! | 60..64 | CRC-32C of bytes 0..60 |
//!
//! Turn header (32 bytes), then the records, then zeros up to the next multiple of 4096:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `TURN` |
//! | 4..8 | CRC-32C of the file's incarnation, bytes 8..32 and the records |
//! | 8..16 | incarnation of the file |
//! | 16..24 | number of the turn, consecutive over a session |
//! | 24..28 | bytes of the records |
//! | 28..32 | number of records |

mod reader;
mod record;
mod writer;

pub(crate) use reader::{JournalEnd, read_shard};
pub(crate) use record::{
    ENTRY_REF_BYTES, EntryRef, RECORD_HEADER_BYTES, Record, RecordBody, RecordHeader, RecordKind,
};
pub(crate) use writer::{FreeFile, JournalWriter};

use crate::checksum::checksum;
use crate::codec::{Decode, Encode, Short};

/// Turns begin at multiples of this, so that no write touches a page of an earlier turn.
pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const TURN_HEADER_BYTES: usize = 32;
pub(crate) const TURN_MAGIC: &[u8; 4] = b"TURN";

const FILE_MAGIC: &[u8; 8] = b"CRDYJRNL";
const FILE_HEADER_BYTES: usize = 64;
const VERSION: u32 = 1;
const IN_USE: u32 = 1;
const FREE: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub session: u64,
    pub sequence: u64,
    pub incarnation: u64,
    pub first_turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderState {
    InUse(FileHeader),
    /// Marked free, or never used.
    Free,
    /// Neither: only damage leaves this, because a header is one sector.
    Invalid,
}

fn encode_header(header: Option<&FileHeader>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
    bytes.bytes(FILE_MAGIC);
    bytes.u32(VERSION);
    bytes.u32(if header.is_some() { IN_USE } else { FREE });
    bytes.u64(header.map_or(0, |header| header.session));
    bytes.u64(header.map_or(0, |header| header.sequence));
    bytes.u64(header.map_or(0, |header| header.incarnation));
    bytes.u64(header.map_or(0, |header| header.first_turn));
    bytes.bytes(&[0; 12]);
    bytes.u32(checksum(&bytes));
    bytes
}

fn decode_header(bytes: &[u8]) -> HeaderState {
    let Some(bytes) = bytes.get(..FILE_HEADER_BYTES) else {
        // Shorter than a header: created, never used.
        return HeaderState::Free;
    };
    if bytes.iter().all(|byte| *byte == 0) {
        return HeaderState::Free;
    }
    let parse = || -> Result<HeaderState, Short> {
        let (front, crc) = bytes.split_last_chunk::<4>().ok_or(Short)?;
        let mut fields = Decode::new(front);
        if checksum(front) != u32::from_le_bytes(*crc)
            || fields.take(8)? != FILE_MAGIC
            || fields.u32()? != VERSION
        {
            return Ok(HeaderState::Invalid);
        }
        let state = fields.u32()?;
        let header = FileHeader {
            session: fields.u64()?,
            sequence: fields.u64()?,
            incarnation: fields.u64()?,
            first_turn: fields.u64()?,
        };
        Ok(match state {
            IN_USE => HeaderState::InUse(header),
            FREE => HeaderState::Free,
            _ => HeaderState::Invalid,
        })
    };
    parse().unwrap_or(HeaderState::Invalid)
}

/// The next multiple of the page size.
pub(crate) fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}
