//! The entry frame: an envelope of 48 bytes, then the payload.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | crc | CRC-32C of the segment's salt, bytes 4..48 and the payload |
//! | 4..8 | length | bytes of the payload |
//! | 8..12 | head crc | CRC-32C of the salt, bytes 4..8, 12..48, the payload's first 61 bytes |
//! | 12 | kind | 1 batch, 2 internal, 3 blank, 4 membership |
//! | 13..16 | zero | |
//! | 16..24 | term | |
//! | 24..32 | index | |
//! | 32..40 | base offset | |
//! | 40..44 | records | offsets that it takes |
//! | 44..48 | zero | |
//!
//! All numbers are little-endian. The head crc lets a reader trust a batch's header without
//! reading its body.

use bytes::Bytes;
use corduroy_record::{BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, Batch, LogIndex, Offset, Term};

use crate::checksum::{Checksum, holds};
use crate::codec::{Decode, Short};
use crate::entry::{ENTRY_BYTES_MAX, Entry, EntryHead, EntryKind, Payload};

/// Bytes before the payload.
pub(crate) const ENVELOPE_BYTES: usize = 48;

/// Bytes that [`encode`] may add: the envelope and a batch's stampable head.
pub(crate) const STAMP_BYTES_MAX: usize = ENVELOPE_BYTES + BATCH_HEAD_BYTES;

/// A frame's length on disk.
pub(crate) fn frame_bytes(payload: &Payload) -> usize {
    ENVELOPE_BYTES + payload.size_bytes()
}

/// A parsed envelope whose payload may not have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub crc: u32,
    pub head_crc: u32,
    pub length: u32,
    pub head: EntryHead,
}

impl Envelope {
    pub(crate) fn frame_bytes(&self) -> u32 {
        // Law: parse refused lengths above ENTRY_BYTES_MAX.
        self.length + ENVELOPE_BYTES as u32
    }

    /// Bytes of the payload that the head crc covers.
    pub(crate) fn head_payload_bytes(&self) -> usize {
        (self.length as usize).min(BATCH_HEADER_BYTES)
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it ends early")]
    Short,
    #[error("its checksum does not match")]
    Checksum,
    #[error("its fields contradict each other")]
    Invalid,
}

/// Appends the envelope (and a batch's stampable head) to `arena`. The rest of the payload is
/// [`body`], shared. Returns the frame's crc.
pub(crate) fn encode(entry: &Entry, salt: u64, arena: &mut Vec<u8>) -> u32 {
    let mut envelope = [0; ENVELOPE_BYTES];
    let length = entry.payload.size_bytes() as u32;
    envelope[4..8].copy_from_slice(&length.to_le_bytes());
    envelope[12] = entry.head.kind as u8;
    envelope[16..24].copy_from_slice(&entry.head.term.get().to_le_bytes());
    envelope[24..32].copy_from_slice(&entry.head.index.get().to_le_bytes());
    envelope[32..40].copy_from_slice(&entry.head.base_offset.get().to_le_bytes());
    envelope[40..44].copy_from_slice(&entry.head.records.to_le_bytes());
    let stamp = match &entry.payload {
        Payload::Batch(batch) => Some(batch.head()),
        _ => None,
    };
    let stamp = stamp.as_ref().map_or(&[][..], |head| &head[..]);
    let body = body(&entry.payload).map_or(&[][..], |body| &body[..]);
    let head_body = &body[..body.len().min(BATCH_HEADER_BYTES - stamp.len())];

    let head_crc = head_checksum(salt, &envelope, &[stamp, head_body]);
    envelope[8..12].copy_from_slice(&head_crc.to_le_bytes());
    let mut crc = Checksum::salted(salt);
    crc.update(&envelope[4..]);
    crc.update(stamp);
    crc.update(body);
    let crc = crc.finish();
    envelope[0..4].copy_from_slice(&crc.to_le_bytes());
    arena.extend_from_slice(&envelope);
    arena.extend_from_slice(stamp);
    crc
}

/// The shared part of a payload: all of it but a batch's stampable head.
pub(crate) fn body(payload: &Payload) -> Option<&Bytes> {
    match payload {
        Payload::Batch(batch) => Some(batch.body()),
        Payload::Internal(bytes) | Payload::Membership(bytes) => Some(bytes),
        Payload::Blank => None,
    }
}

fn head_checksum(salt: u64, envelope: &[u8; ENVELOPE_BYTES], payload: &[&[u8]]) -> u32 {
    let mut crc = Checksum::salted(salt);
    crc.update(&envelope[4..8]);
    crc.update(&envelope[12..]);
    for bytes in payload {
        crc.update(bytes);
    }
    crc.finish()
}

/// Reads an envelope from the front of `bytes`. Only [`check_head`] or [`decode`] make it
/// trustworthy.
pub(crate) fn parse_envelope(bytes: &[u8]) -> Result<Envelope, FrameError> {
    let fields = read_fields(bytes).map_err(|Short| FrameError::Short)?;
    let Fields {
        crc,
        length,
        head_crc,
        kind,
        zero,
        term,
        index,
        base_offset,
        records,
        zero_end,
    } = fields;
    let kind = EntryKind::from_number(kind).ok_or(FrameError::Invalid)?;
    if length as usize > ENTRY_BYTES_MAX || !zero || zero_end != 0 || base_offset < 0 {
        return Err(FrameError::Invalid);
    }
    if kind != EntryKind::Batch && records != 0 {
        return Err(FrameError::Invalid);
    }
    let head = EntryHead {
        term: Term::new(term),
        index: LogIndex::new(index),
        base_offset: Offset::new(base_offset),
        records,
        kind,
    };
    Ok(Envelope {
        crc,
        head_crc,
        length,
        head,
    })
}

struct Fields {
    crc: u32,
    length: u32,
    head_crc: u32,
    kind: u8,
    zero: bool,
    term: u64,
    index: u64,
    base_offset: i64,
    records: u32,
    zero_end: u32,
}

fn read_fields(bytes: &[u8]) -> Result<Fields, Short> {
    let mut fields = Decode::new(bytes);
    Ok(Fields {
        crc: fields.u32()?,
        length: fields.u32()?,
        head_crc: fields.u32()?,
        kind: fields.u8()?,
        zero: fields.take(3)? == [0; 3],
        term: fields.u64()?,
        index: fields.u64()?,
        base_offset: fields.i64()?,
        records: fields.u32()?,
        zero_end: fields.u32()?,
    })
}

/// Checks an envelope together with the payload's first bytes. `bytes` starts at the envelope
/// and holds at least [`Envelope::head_payload_bytes`] of the payload.
pub(crate) fn check_head(bytes: &[u8], envelope: &Envelope, salt: u64) -> Result<(), FrameError> {
    let (front, payload) = bytes
        .split_first_chunk::<ENVELOPE_BYTES>()
        .ok_or(FrameError::Short)?;
    let payload = payload
        .get(..envelope.head_payload_bytes())
        .ok_or(FrameError::Short)?;
    if holds(head_checksum(salt, front, &[payload]), envelope.head_crc) {
        Ok(())
    } else {
        Err(FrameError::Checksum)
    }
}

/// Checks a whole frame and shares its payload. `bytes` starts at the envelope.
pub(crate) fn decode(bytes: &Bytes, salt: u64) -> Result<Entry, FrameError> {
    let envelope = parse_envelope(bytes)?;
    let end = envelope.frame_bytes() as usize;
    let frame = bytes.get(..end).ok_or(FrameError::Short)?;
    let mut crc = Checksum::salted(salt);
    crc.update(&frame[4..]);
    if !holds(crc.finish(), envelope.crc) {
        return Err(FrameError::Checksum);
    }
    let payload = bytes.slice(ENVELOPE_BYTES..end);
    let payload = match envelope.head.kind {
        EntryKind::Batch => {
            let (head, _) = payload
                .split_first_chunk::<BATCH_HEAD_BYTES>()
                .ok_or(FrameError::Invalid)?;
            let batch = Batch::from_parts(*head, payload.slice(BATCH_HEAD_BYTES..))
                .map_err(|_| FrameError::Invalid)?;
            Payload::Batch(batch)
        }
        EntryKind::Internal => Payload::Internal(payload),
        EntryKind::Membership => Payload::Membership(payload),
        EntryKind::Blank if payload.is_empty() => Payload::Blank,
        EntryKind::Blank => return Err(FrameError::Invalid),
    };
    Ok(Entry {
        head: envelope.head,
        payload,
    })
}
