//! The state file of a partition: its checkpoint. Together with the journal records after it,
//! it says where the log begins and ends; nothing is ever found by scanning.

use std::io;
use std::path::Path;

use corduroy_record::{GroupId, LogIndex, Offset, ReplicaId, Term};

use crate::checksum::checksum;
use crate::codec::{Decode, Encode, Short};
use crate::disk::{Disk, read_file, swap_file};
use crate::entry::{LogStart, Vote};
use crate::epochs::{EpochStart, EpochTable};
use crate::error::{IoContext, StorageError};
use crate::paths;
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentIdentity};

pub(crate) const MAGIC: &[u8; 8] = b"CRDYSTAT";
const VERSION: u32 = 1;
/// A state file is small; more than this is damage.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// State files are padded with zeros to a multiple of this.
const STATE_BLOCK_BYTES: usize = 4096;

const FLAG_NO_VOTE: u32 = 1;
const FLAG_DAMAGED: u32 = 2;

/// A place in a journal: everything of this partition up to and including this turn of this
/// session is in the state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPlace {
    /// The journal's session: random, new each time a shard opens its journal.
    pub session: u64,
    pub turn: u64,
}

/// A segment as the state file lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentImage {
    pub identity: SegmentIdentity,
    pub end: u32,
    pub max_timestamp: i64,
    pub index_rows: u32,
    pub index_last_position: Option<u32>,
    pub sealed: bool,
}

/// All that a state file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateImage {
    pub group: GroupId,
    pub replica: ReplicaId,
    pub incarnation: u64,
    pub place: JournalPlace,
    pub start: LogStart,
    pub last: Option<(Term, LogIndex)>,
    pub next_offset: Offset,
    pub vote: Option<Vote>,
    pub committed: Option<(Term, LogIndex)>,
    pub no_vote: bool,
    pub damaged: bool,
    /// The first damaged entry that a reader met: the log ends before it once it is reopened.
    pub damaged_from: Option<LogIndex>,
    pub next_segment: u32,
    pub epochs: EpochTable,
    pub segments: Vec<SegmentImage>,
}

impl StateImage {
    /// An empty log.
    pub(crate) fn new(group: GroupId, replica: ReplicaId, incarnation: u64) -> StateImage {
        StateImage {
            group,
            replica,
            incarnation,
            place: JournalPlace {
                session: 0,
                turn: 0,
            },
            start: LogStart::ZERO,
            last: None,
            next_offset: Offset::ZERO,
            vote: None,
            committed: None,
            no_vote: false,
            damaged: false,
            damaged_from: None,
            next_segment: 0,
            epochs: EpochTable::default(),
            segments: Vec::new(),
        }
    }

    pub(crate) fn next_index(&self) -> LogIndex {
        self.last
            .map_or(self.start.index, |(_, index)| index.next())
    }

    /// Empties the log, which then begins at `start`.
    pub(crate) fn empty_at(&mut self, start: LogStart) {
        self.start = start;
        self.last = start.prev;
        self.next_offset = start.offset;
        self.committed = None;
        self.damaged = false;
        self.damaged_from = None;
        self.epochs = EpochTable::default();
        self.segments.clear();
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256 + self.segments.len() * 64);
        bytes.bytes(MAGIC);
        bytes.u32(VERSION);
        // The length, known at the end.
        bytes.u32(0);
        let flags = if self.no_vote { FLAG_NO_VOTE } else { 0 }
            | if self.damaged { FLAG_DAMAGED } else { 0 };
        bytes.u32(flags);
        bytes.bytes(&self.group.topic.bytes());
        bytes.i32(self.group.partition.get());
        bytes.u64(self.replica.get());
        bytes.u64(self.incarnation);
        bytes.u64(self.place.session);
        bytes.u64(self.place.turn);
        encode_start(&self.start, &mut bytes);
        encode_id(self.last, &mut bytes);
        bytes.i64(self.next_offset.get());
        bytes.u8(u8::from(self.vote.is_some()));
        encode_vote(&self.vote.unwrap_or(NO_VOTE), &mut bytes);
        encode_id(self.committed, &mut bytes);
        encode_option(self.damaged_from.map(LogIndex::get), &mut bytes);
        bytes.u32(self.next_segment);
        bytes.u32(self.epochs.starts().len() as u32);
        for row in self.epochs.starts() {
            bytes.u64(row.term.get());
            bytes.u64(row.first_index.get());
            bytes.i64(row.first_offset.get());
        }
        bytes.u32(self.segments.len() as u32);
        for segment in &self.segments {
            encode_identity(&segment.identity, &mut bytes);
            bytes.u32(segment.end);
            bytes.i64(segment.max_timestamp);
            bytes.u32(segment.index_rows);
            encode_option(segment.index_last_position.map(u64::from), &mut bytes);
            bytes.u8(u8::from(segment.sealed));
        }
        let length = (bytes.len() + 4) as u32;
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        bytes.u32(checksum(&bytes));
        // Whole blocks: a state that grows a little needs no more of them.
        bytes.resize(bytes.len().next_multiple_of(STATE_BLOCK_BYTES), 0);
        bytes
    }

    /// `Ok(None)`: the checksum, the version or a law does not hold.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<StateImage>, Short> {
        let mut length = Decode::new(bytes.get(12..16).ok_or(Short)?);
        let bytes = bytes.get(..length.u32()? as usize).ok_or(Short)?;
        let Some((front, crc)) = bytes.split_last_chunk::<4>() else {
            return Ok(None);
        };
        if checksum(front) != u32::from_le_bytes(*crc) {
            return Ok(None);
        }
        let mut fields = Decode::new(front);
        if fields.take(8)? != MAGIC || fields.u32()? != VERSION {
            return Ok(None);
        }
        fields.u32()?;
        let flags = fields.u32()?;
        let group = GroupId {
            topic: corduroy_record::TopicId::from_bytes(fields.bytes16()?),
            partition: corduroy_record::PartitionIndex::new(fields.i32()?),
        };
        let replica = ReplicaId::new(fields.u64()?);
        let incarnation = fields.u64()?;
        let place = JournalPlace {
            session: fields.u64()?,
            turn: fields.u64()?,
        };
        let start = decode_start(&mut fields)?;
        let last = decode_id(&mut fields)?;
        let next_offset = Offset::new(fields.i64()?);
        let has_vote = fields.u8()? != 0;
        let vote = decode_vote(&mut fields)?;
        let committed = decode_id(&mut fields)?;
        let damaged_from = decode_option(&mut fields)?.map(LogIndex::new);
        let next_segment = fields.u32()?;
        let mut starts = Vec::new();
        for _ in 0..fields.u32()? {
            starts.push(EpochStart {
                term: Term::new(fields.u64()?),
                first_index: LogIndex::new(fields.u64()?),
                first_offset: Offset::new(fields.i64()?),
            });
        }
        let Some(epochs) = EpochTable::from_rows(starts) else {
            return Ok(None);
        };
        let mut segments: Vec<SegmentImage> = Vec::new();
        for _ in 0..fields.u32()? {
            let segment = SegmentImage {
                identity: decode_identity(&mut fields)?,
                end: fields.u32()?,
                max_timestamp: fields.i64()?,
                index_rows: fields.u32()?,
                index_last_position: decode_option(&mut fields)?
                    .and_then(|position| u32::try_from(position).ok()),
                sealed: fields.u8()? != 0,
            };
            let lawful = segment.end >= SEGMENT_HEADER_BYTES
                && segments.last().is_none_or(|last| {
                    last.identity.base_index <= segment.identity.base_index
                        && last.identity.id < segment.identity.id
                });
            if !lawful {
                return Ok(None);
            }
            segments.push(segment);
        }
        if !fields.rest().is_empty() {
            return Ok(None);
        }
        Ok(Some(StateImage {
            group,
            replica,
            incarnation,
            place,
            start,
            last,
            next_offset,
            vote: has_vote.then_some(vote),
            committed,
            no_vote: flags & FLAG_NO_VOTE != 0,
            damaged: flags & FLAG_DAMAGED != 0,
            damaged_from,
            next_segment,
            epochs,
            segments,
        }))
    }

    /// Writes the state file of a partition's directory; durable when it returns.
    pub(crate) fn save(&self, disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
        let path = paths::state_file(dir);
        // An exchange of names that a killed process did not get to make durable: the spare may
        // still be the file that the disk knows as the state, and must not be written over.
        disk.flush_dir(dir).during("flush", dir)?;
        swap_file(disk, &path, &self.encode()).during("write", &path)
    }

    /// Reads the state file. `Ok(None)`: it is missing or damaged; the text says which.
    pub(crate) fn load(
        disk: &dyn Disk,
        dir: &Path,
        group: GroupId,
    ) -> Result<Result<StateImage, String>, StorageError> {
        let path = paths::state_file(dir);
        match read_file(disk, &path, STATE_BYTES_MAX) {
            Ok(bytes) => match StateImage::decode(&bytes) {
                Ok(Some(image)) if image.group == group => Ok(Ok(image)),
                Ok(Some(_)) => Ok(Err(format!("{}: of another partition", path.display()))),
                _ => Ok(Err(format!("{}: bad checksum", path.display()))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Err(format!("{}: missing", path.display())))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(Err(format!("{}: {error}", path.display())))
            }
            Err(error) => Err(StorageError::io("read", &path, &error)),
        }
    }
}

const NO_VOTE: Vote = Vote {
    term: Term::new(0),
    voted_for: None,
    committed: false,
};

pub(crate) fn encode_id(id: Option<(Term, LogIndex)>, bytes: &mut Vec<u8>) {
    bytes.u8(u8::from(id.is_some()));
    let (term, index) = id.unwrap_or_default();
    bytes.u64(term.get());
    bytes.u64(index.get());
}

pub(crate) fn decode_id(fields: &mut Decode<'_>) -> Result<Option<(Term, LogIndex)>, Short> {
    let present = fields.u8()? != 0;
    let id = (Term::new(fields.u64()?), LogIndex::new(fields.u64()?));
    Ok(present.then_some(id))
}

pub(crate) fn encode_option(value: Option<u64>, bytes: &mut Vec<u8>) {
    bytes.u8(u8::from(value.is_some()));
    bytes.u64(value.unwrap_or(0));
}

pub(crate) fn decode_option(fields: &mut Decode<'_>) -> Result<Option<u64>, Short> {
    let present = fields.u8()? != 0;
    let value = fields.u64()?;
    Ok(present.then_some(value))
}

pub(crate) fn encode_start(start: &LogStart, bytes: &mut Vec<u8>) {
    bytes.u64(start.index.get());
    bytes.i64(start.offset.get());
    encode_id(start.prev, bytes);
}

pub(crate) fn decode_start(fields: &mut Decode<'_>) -> Result<LogStart, Short> {
    Ok(LogStart {
        index: LogIndex::new(fields.u64()?),
        offset: Offset::new(fields.i64()?),
        prev: decode_id(fields)?,
    })
}

pub(crate) fn encode_vote(vote: &Vote, bytes: &mut Vec<u8>) {
    bytes.u64(vote.term.get());
    encode_option(vote.voted_for.map(ReplicaId::get), bytes);
    bytes.u8(u8::from(vote.committed));
}

pub(crate) fn decode_vote(fields: &mut Decode<'_>) -> Result<Vote, Short> {
    Ok(Vote {
        term: Term::new(fields.u64()?),
        voted_for: decode_option(fields)?.map(ReplicaId::new),
        committed: fields.u8()? != 0,
    })
}

pub(crate) fn encode_identity(identity: &SegmentIdentity, bytes: &mut Vec<u8>) {
    bytes.u32(identity.id);
    bytes.u64(identity.salt);
    bytes.u64(identity.base_index.get());
    bytes.i64(identity.base_offset.get());
    bytes.i64(identity.created_millis);
}

pub(crate) fn decode_identity(fields: &mut Decode<'_>) -> Result<SegmentIdentity, Short> {
    Ok(SegmentIdentity {
        id: fields.u32()?,
        salt: fields.u64()?,
        base_index: LogIndex::new(fields.u64()?),
        base_offset: Offset::new(fields.i64()?),
        created_millis: fields.i64()?,
    })
}
