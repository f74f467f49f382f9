//! The 61-byte header of a record batch, format v2 (KIP-98).
//!
//! Big endian. The log stamps the first 16 bytes; they and the magic byte lie outside the CRC.
//!
//! | at | field | type |
//! |---|---|---|
//! | 0 | base offset | i64 |
//! | 8 | batch length: bytes after this field | i32 |
//! | 12 | partition leader epoch | i32 |
//! | 16 | magic, 2 | i8 |
//! | 17 | CRC-32C over byte 21 to the end | u32 |
//! | 21 | attributes | i16 |
//! | 23 | last offset delta | i32 |
//! | 27 | base timestamp, ms | i64 |
//! | 35 | max timestamp, ms | i64 |
//! | 43 | producer id | i64 |
//! | 51 | producer epoch | i16 |
//! | 53 | base sequence | i32 |
//! | 57 | record count | i32 |

use crate::compression::Compression;
use crate::error::BatchError;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};

/// Bytes of the header, before the records.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Base offset, length, leader epoch: what the log stamps. Outside the CRC, as is the magic.
pub const BATCH_HEAD_BYTES: usize = 16;
/// The only message format that is served.
pub const MAGIC_V2: i8 = 2;
/// "No sequence": the base sequence of a batch without idempotence.
pub const SEQUENCE_NONE: i32 = -1;

/// Base offset and length, which the length does not count.
pub(crate) const LENGTH_EXCLUDED_BYTES: usize = 12;
const MAGIC_AT: usize = 16;
pub(crate) const CRC_AT: usize = 17;
pub(crate) const ATTRIBUTES_AT: usize = 21;
pub(crate) const MAX_TIMESTAMP_AT: usize = 35;

/// A parsed v2 header.
///
/// Law, kept by [`BatchHeader::parse`]: `magic == 2` and
/// `batch_length >= BATCH_HEADER_BYTES - 12`. Nothing else is checked there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record (before compaction took it, if it did).
    pub base_offset: Offset,
    /// Bytes after the length field.
    pub batch_length: i32,
    /// Epoch of the leader that appended the batch.
    pub leader_epoch: LeaderEpoch,
    /// Message format, always 2.
    pub magic: i8,
    /// CRC-32C over the bytes from the attributes to the end.
    pub crc: u32,
    /// Codec and flags.
    pub attributes: Attributes,
    /// Last offset of the batch minus the base offset; survives compaction.
    pub last_offset_delta: i32,
    /// Timestamp that the records' deltas count from, ms since the Unix epoch, -1 = none.
    pub base_timestamp: i64,
    /// Largest timestamp of the batch; with log append time, everyone's timestamp.
    pub max_timestamp: i64,
    /// Idempotent producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// Its incarnation, -1 = none.
    pub producer_epoch: ProducerEpoch,
    /// Sequence number of the first record, or [`SEQUENCE_NONE`].
    pub base_sequence: i32,
    /// Records in the batch; below `last_offset_delta + 1` only after compaction.
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads a header from the beginning of `bytes`; what follows it need not be there.
    ///
    /// # Errors
    /// [`BatchError::Truncated`], [`BatchError::UnsupportedMagic`], or an impossible length.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let truncated = BatchError::Truncated {
            needed: BATCH_HEADER_BYTES,
            found: bytes.len(),
        };
        // Older formats are shorter and keep their magic at the same place: name them first.
        match bytes.get(MAGIC_AT) {
            None => return Err(truncated),
            Some(&magic) if magic as i8 != MAGIC_V2 => {
                return Err(BatchError::UnsupportedMagic(magic as i8));
            }
            Some(_) => {}
        }
        let Some(header) = bytes.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(truncated);
        };
        let batch_length = i32_at(header, 8);
        if batch_length < (BATCH_HEADER_BYTES - LENGTH_EXCLUDED_BYTES) as i32 {
            return Err(BatchError::invalid(
                "the length is smaller than a batch header",
            ));
        }
        Ok(BatchHeader {
            base_offset: Offset::new(i64_at(header, 0)),
            batch_length,
            leader_epoch: LeaderEpoch::new(i32_at(header, 12)),
            magic: MAGIC_V2,
            crc: i32_at(header, CRC_AT) as u32,
            attributes: Attributes(i16_at(header, ATTRIBUTES_AT)),
            last_offset_delta: i32_at(header, 23),
            base_timestamp: i64_at(header, 27),
            max_timestamp: i64_at(header, MAX_TIMESTAMP_AT),
            producer_id: ProducerId::new(i64_at(header, 43)),
            producer_epoch: ProducerEpoch::new(i16_at(header, 51)),
            base_sequence: i32_at(header, 53),
            record_count: i32_at(header, 57),
        })
    }

    /// The 61 bytes of this header.
    pub fn to_bytes(&self) -> [u8; BATCH_HEADER_BYTES] {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        bytes[..BATCH_HEAD_BYTES].copy_from_slice(&self.head());
        bytes[MAGIC_AT] = self.magic as u8;
        bytes[17..21].copy_from_slice(&self.crc.to_be_bytes());
        bytes[21..23].copy_from_slice(&self.attributes.0.to_be_bytes());
        bytes[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        bytes[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        bytes[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        bytes[43..51].copy_from_slice(&self.producer_id.get().to_be_bytes());
        bytes[51..53].copy_from_slice(&self.producer_epoch.get().to_be_bytes());
        bytes[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        bytes[57..61].copy_from_slice(&self.record_count.to_be_bytes());
        bytes
    }

    /// The stampable first 16 bytes.
    pub fn head(&self) -> [u8; BATCH_HEAD_BYTES] {
        let mut head = [0; BATCH_HEAD_BYTES];
        head[..8].copy_from_slice(&self.base_offset.get().to_be_bytes());
        head[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        head[12..].copy_from_slice(&self.leader_epoch.get().to_be_bytes());
        head
    }

    /// The offset of the last record. Saturates on hostile numbers.
    pub fn last_offset(&self) -> Offset {
        Offset::new(
            self.base_offset
                .get()
                .saturating_add(i64::from(self.last_offset_delta)),
        )
    }

    /// The offset after the last record. Saturates on hostile numbers.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().advance(1)
    }

    /// The sequence number of the last record: wraps from `i32::MAX` to 0.
    /// [`SEQUENCE_NONE`] for a batch without sequence numbers.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return SEQUENCE_NONE;
        }
        sequence_after(self.base_sequence, self.last_offset_delta)
    }

    /// Size of the whole batch on the wire.
    pub fn size_bytes(&self) -> usize {
        // The law of the struct: the length is at least 49, so the cast keeps it.
        self.batch_length as usize + LENGTH_EXCLUDED_BYTES
    }

    /// Whether an idempotent or transactional producer wrote it.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id != ProducerId::NONE
    }
}

/// The sequence number `by` steps after `sequence`: counts 0 to `i32::MAX`, then 0 again (KIP-98).
pub fn sequence_after(sequence: i32, by: i32) -> i32 {
    const MODULUS: i64 = 1 << 31;
    (i64::from(sequence) + i64::from(by)).rem_euclid(MODULUS) as i32
}

/// What the timestamps of a batch mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's, at append: all records have the batch's max timestamp.
    LogAppendTime,
}

/// Codec and flags of a batch: bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
/// 6 delete horizon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(i16);

impl Attributes {
    const CODEC: i16 = 0b111;
    const LOG_APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;

    /// Wraps the bits.
    pub const fn new(bits: i16) -> Attributes {
        Attributes(bits)
    }

    /// The bits.
    pub const fn bits(self) -> i16 {
        self.0
    }

    /// The codec of the records.
    ///
    /// # Errors
    /// [`BatchError::UnknownCodec`] for codes 5 to 7.
    pub fn compression(self) -> Result<Compression, BatchError> {
        let code = (self.0 & Self::CODEC) as u8;
        Compression::from_code(code).ok_or(BatchError::UnknownCodec(code))
    }

    /// Whether the batch is a control batch: transaction markers, never client data.
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the batch belongs to a transaction.
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the base timestamp is a delete horizon (KIP-534, compacted topics).
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// Whose timestamps they are.
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    /// With another codec.
    pub const fn with_compression(self, codec: Compression) -> Attributes {
        Attributes(self.0 & !Self::CODEC | codec.code() as i16)
    }

    /// With log append time.
    pub const fn with_log_append_time(self) -> Attributes {
        Attributes(self.0 | Self::LOG_APPEND_TIME)
    }

    /// With the transactional bit.
    pub const fn with_transactional(self) -> Attributes {
        Attributes(self.0 | Self::TRANSACTIONAL)
    }

    /// With the control bit.
    pub const fn with_control(self) -> Attributes {
        Attributes(self.0 | Self::CONTROL)
    }
}

// The offsets below are constants under BATCH_HEADER_BYTES: the copies cannot be short.

fn i16_at(header: &[u8; BATCH_HEADER_BYTES], at: usize) -> i16 {
    i16::from_be_bytes([header[at], header[at + 1]])
}

fn i32_at(header: &[u8; BATCH_HEADER_BYTES], at: usize) -> i32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[at..at + 4]);
    i32::from_be_bytes(bytes)
}

fn i64_at(header: &[u8; BATCH_HEADER_BYTES], at: usize) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    i64::from_be_bytes(bytes)
}
