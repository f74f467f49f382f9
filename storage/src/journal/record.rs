//! Journal records: everything of a partition that must survive.
//!
//! Record header (40 bytes), then the body:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | length of the record, header included |
//! | 4 | kind |
//! | 5..8 | zero |
//! | 8..24 | topic id |
//! | 24..28 | partition |
//! | 28..36 | incarnation of the replica |
//! | 36..40 | entries that the body holds, else zero |

use bytes::Bytes;
use corduroy_record::{GroupId, LogIndex, Offset, PartitionIndex, Term, TopicId};

use crate::codec::{Decode, Encode, Short};
use crate::entry::{EntryHead, EntryKind, LogStart, Vote};
use crate::segment::SegmentIdentity;
use crate::state::{
    decode_id, decode_identity, decode_option, decode_start, decode_vote, encode_id,
    encode_identity, encode_option, encode_start, encode_vote,
};

pub(crate) const RECORD_HEADER_BYTES: usize = 40;

/// What a record is; the numbers are those on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// A new segment: number, salt, first index and offset, creation time.
    Segment = 1,
    /// Segment number, position, then the entries' frames exactly as in the segment.
    Inline = 2,
    /// Segment number, position, then an [`EntryRef`] for each entry: the frames themselves
    /// are durable in the segment.
    Referenced = 3,
    /// The vote.
    Vote = 4,
    /// The committed entry, as a hint.
    Committed = 5,
    /// The log ends after an entry: last, next offset, segment number and its end.
    Truncate = 6,
    /// The log starts later.
    Start = 7,
    /// The log is empty and starts elsewhere.
    Reset = 8,
    /// The no-vote flag, and the first damaged entry that is known.
    Flags = 9,
}

impl RecordKind {
    fn from_number(number: u8) -> Option<RecordKind> {
        Some(match number {
            1 => RecordKind::Segment,
            2 => RecordKind::Inline,
            3 => RecordKind::Referenced,
            4 => RecordKind::Vote,
            5 => RecordKind::Committed,
            6 => RecordKind::Truncate,
            7 => RecordKind::Start,
            8 => RecordKind::Reset,
            9 => RecordKind::Flags,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub kind: RecordKind,
    pub group: GroupId,
    pub incarnation: u64,
    pub entries: u32,
}

impl RecordHeader {
    pub(crate) fn encode(&self, body_bytes: usize, bytes: &mut Vec<u8>) {
        bytes.u32((RECORD_HEADER_BYTES + body_bytes) as u32);
        bytes.u8(self.kind as u8);
        bytes.bytes(&[0; 3]);
        bytes.bytes(&self.group.topic.bytes());
        bytes.i32(self.group.partition.get());
        bytes.u64(self.incarnation);
        bytes.u32(self.entries);
    }
}

/// Stands for an entry whose frame is in the segment: 56 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef {
    /// The frame's checksum.
    pub crc: u32,
    /// The payload's length.
    pub length: u32,
    pub head: EntryHead,
    pub max_timestamp: i64,
}

pub(crate) const ENTRY_REF_BYTES: usize = 56;

impl EntryRef {
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.u32(self.crc);
        bytes.u32(self.length);
        bytes.u64(self.head.term.get());
        bytes.u64(self.head.index.get());
        bytes.i64(self.head.base_offset.get());
        bytes.u32(self.head.records);
        bytes.u8(self.head.kind as u8);
        bytes.bytes(&[0; 3]);
        bytes.i64(self.max_timestamp);
        bytes.u64(0);
    }

    fn decode(fields: &mut Decode<'_>) -> Result<EntryRef, Short> {
        let crc = fields.u32()?;
        let length = fields.u32()?;
        let term = Term::new(fields.u64()?);
        let index = LogIndex::new(fields.u64()?);
        let base_offset = Offset::new(fields.i64()?);
        let records = fields.u32()?;
        let kind = EntryKind::from_number(fields.u8()?).ok_or(Short)?;
        fields.take(3)?;
        let max_timestamp = fields.i64()?;
        fields.u64()?;
        let head = EntryHead {
            term,
            index,
            base_offset,
            records,
            kind,
        };
        Ok(EntryRef {
            crc,
            length,
            head,
            max_timestamp,
        })
    }
}

/// A record as recovery reads it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub header: RecordHeader,
    pub body: RecordBody,
}

#[derive(Clone, Debug)]
pub(crate) enum RecordBody {
    Segment(SegmentIdentity),
    /// The frames' bytes, not yet checked one by one (the turn's checksum covers them).
    Inline {
        segment: u32,
        position: u32,
        frames: Bytes,
    },
    Referenced {
        segment: u32,
        position: u32,
        entries: Vec<EntryRef>,
    },
    Vote(Vote),
    Committed((Term, LogIndex)),
    Truncate {
        last: Option<(Term, LogIndex)>,
        next_offset: Offset,
        cut: Option<(u32, u32)>,
    },
    Start(LogStart),
    Reset(LogStart),
    Flags {
        no_vote: bool,
        damaged: bool,
        damaged_from: Option<LogIndex>,
    },
}

impl RecordBody {
    /// Encodes the small bodies; entries are written piece by piece by the turn itself.
    pub(crate) fn encode_small(&self, bytes: &mut Vec<u8>) {
        match self {
            RecordBody::Segment(identity) => encode_identity(identity, bytes),
            RecordBody::Vote(vote) => encode_vote(vote, bytes),
            RecordBody::Committed(id) => encode_id(Some(*id), bytes),
            RecordBody::Truncate {
                last,
                next_offset,
                cut,
            } => {
                encode_id(*last, bytes);
                bytes.i64(next_offset.get());
                bytes.u8(u8::from(cut.is_some()));
                let (segment, end) = cut.unwrap_or_default();
                bytes.u32(segment);
                bytes.u32(end);
            }
            RecordBody::Start(start) | RecordBody::Reset(start) => encode_start(start, bytes),
            RecordBody::Flags {
                no_vote,
                damaged,
                damaged_from,
            } => {
                bytes.u8(u8::from(*no_vote));
                bytes.u8(u8::from(*damaged));
                encode_option(damaged_from.map(LogIndex::get), bytes);
            }
            RecordBody::Inline {
                segment, position, ..
            }
            | RecordBody::Referenced {
                segment, position, ..
            } => {
                bytes.u32(*segment);
                bytes.u32(*position);
            }
        }
    }

    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            RecordBody::Segment(_) => RecordKind::Segment,
            RecordBody::Inline { .. } => RecordKind::Inline,
            RecordBody::Referenced { .. } => RecordKind::Referenced,
            RecordBody::Vote(_) => RecordKind::Vote,
            RecordBody::Committed(_) => RecordKind::Committed,
            RecordBody::Truncate { .. } => RecordKind::Truncate,
            RecordBody::Start(_) => RecordKind::Start,
            RecordBody::Reset(_) => RecordKind::Reset,
            RecordBody::Flags { .. } => RecordKind::Flags,
        }
    }
}

impl Record {
    /// Takes one record from the front of a turn's body.
    pub(crate) fn decode(turn: &Bytes, at: &mut usize) -> Result<Record, Short> {
        let mut fields = Decode::new(turn.get(*at..).ok_or(Short)?);
        let length = fields.u32()? as usize;
        let kind = RecordKind::from_number(fields.u8()?).ok_or(Short)?;
        fields.take(3)?;
        let topic = TopicId::from_bytes(fields.bytes16()?);
        let partition = PartitionIndex::new(fields.i32()?);
        let incarnation = fields.u64()?;
        let entries = fields.u32()?;
        let group = GroupId { topic, partition };
        let header = RecordHeader {
            kind,
            group,
            incarnation,
            entries,
        };
        let body_start = *at + RECORD_HEADER_BYTES;
        let body_end = at.checked_add(length).ok_or(Short)?;
        if body_end < body_start || body_end > turn.len() {
            return Err(Short);
        }
        let body = turn.slice(body_start..body_end);
        *at = body_end;
        Ok(Record {
            header,
            body: decode_body(kind, entries, &body)?,
        })
    }
}

fn decode_body(kind: RecordKind, entries: u32, body: &Bytes) -> Result<RecordBody, Short> {
    let mut fields = Decode::new(body);
    Ok(match kind {
        RecordKind::Segment => RecordBody::Segment(decode_identity(&mut fields)?),
        RecordKind::Inline => {
            let segment = fields.u32()?;
            let position = fields.u32()?;
            RecordBody::Inline {
                segment,
                position,
                frames: body.slice(8..),
            }
        }
        RecordKind::Referenced => {
            let segment = fields.u32()?;
            let position = fields.u32()?;
            let mut references = Vec::new();
            for _ in 0..entries {
                references.push(EntryRef::decode(&mut fields)?);
            }
            RecordBody::Referenced {
                segment,
                position,
                entries: references,
            }
        }
        RecordKind::Vote => RecordBody::Vote(decode_vote(&mut fields)?),
        RecordKind::Committed => RecordBody::Committed(decode_id(&mut fields)?.ok_or(Short)?),
        RecordKind::Truncate => {
            let last = decode_id(&mut fields)?;
            let next_offset = Offset::new(fields.i64()?);
            let present = fields.u8()? != 0;
            let cut = (fields.u32()?, fields.u32()?);
            RecordBody::Truncate {
                last,
                next_offset,
                cut: present.then_some(cut),
            }
        }
        RecordKind::Start => RecordBody::Start(decode_start(&mut fields)?),
        RecordKind::Reset => RecordBody::Reset(decode_start(&mut fields)?),
        RecordKind::Flags => RecordBody::Flags {
            no_vote: fields.u8()? != 0,
            damaged: fields.u8()? != 0,
            damaged_from: decode_option(&mut fields)?.map(LogIndex::new),
        },
    })
}
