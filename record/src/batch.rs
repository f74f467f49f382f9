//! One record batch, as on the wire and as in the log.

use bytes::{Bytes, BytesMut};

use crate::checksum::crc32c;
use crate::compression::Compression;
use crate::error::BatchError;
use crate::header::{
    ATTRIBUTES_AT, BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader, CRC_AT,
    LENGTH_EXCLUDED_BYTES, MAX_TIMESTAMP_AT,
};
use crate::ids::{LeaderEpoch, Offset, ProducerId};
use crate::records::RecordIter;

/// Where the CRC's bytes begin within the body.
const BODY_CRC_FROM: usize = ATTRIBUTES_AT - BATCH_HEAD_BYTES;
/// Where the CRC itself lies within the body.
const BODY_CRC_AT: usize = CRC_AT - BATCH_HEAD_BYTES;
const BODY_MAX_TIMESTAMP_AT: usize = MAX_TIMESTAMP_AT - BATCH_HEAD_BYTES;

/// One record batch in two pieces: the 16 stampable bytes by value, the rest shared. Stamping
/// copies nothing, and clones share the body.
///
/// Law: `header` is what the two pieces say, and `16 + body.len() == header.size_bytes()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    header: BatchHeader,
    body: Bytes,
}

/// Whether [`Batch::validate`] lets control batches pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRule {
    /// From a client: control batches are ours to write.
    Refuse,
    /// From a log.
    Allow,
}

/// Whether [`Batch::validate`] lets zstd pass: KIP-110 allows it from Produce version 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZstdRule {
    /// Produce below version 7.
    Refuse,
    /// Everywhere else.
    Allow,
}

/// What [`Batch::validate`] checks against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidateRules {
    /// Kafka's `max.message.bytes`: the whole batch as received, compressed.
    pub batch_bytes_max: usize,
    /// Control batches.
    pub control: ControlRule,
    /// The zstd codec.
    pub zstd: ZstdRule,
}

impl ValidateRules {
    /// For a batch from a client, at most `batch_bytes_max` long.
    pub fn client(batch_bytes_max: usize) -> ValidateRules {
        ValidateRules {
            batch_bytes_max,
            control: ControlRule::Refuse,
            zstd: ZstdRule::Allow,
        }
    }
}

impl Batch {
    /// Reads exactly one batch. Checks its structure (magic, length), not its CRC or its meaning:
    /// that is [`Batch::validate`]. Shares `bytes`.
    ///
    /// # Errors
    /// Too few or too many bytes, another message format, an impossible length.
    pub fn parse(bytes: Bytes) -> Result<Batch, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        check_size(&header, bytes.len())?;
        Ok(Batch {
            header,
            body: bytes.slice(BATCH_HEAD_BYTES..),
        })
    }

    /// Joins the two pieces that [`Batch::head`] and [`Batch::body`] gave. Shares `body`.
    ///
    /// # Errors
    /// As [`Batch::parse`].
    pub fn from_parts(head: [u8; BATCH_HEAD_BYTES], body: Bytes) -> Result<Batch, BatchError> {
        const REST: usize = BATCH_HEADER_BYTES - BATCH_HEAD_BYTES;
        let mut bytes = [0; BATCH_HEADER_BYTES];
        bytes[..BATCH_HEAD_BYTES].copy_from_slice(&head);
        let there = body.len().min(REST);
        bytes[BATCH_HEAD_BYTES..BATCH_HEAD_BYTES + there].copy_from_slice(&body[..there]);
        let header = BatchHeader::parse(&bytes[..BATCH_HEAD_BYTES + there])?;
        check_size(&header, BATCH_HEAD_BYTES + body.len())?;
        Ok(Batch { header, body })
    }

    /// The builder's batch.
    pub(crate) fn sealed(header: BatchHeader, body: Bytes) -> Batch {
        assert_eq!(
            header.size_bytes(),
            BATCH_HEAD_BYTES + body.len(),
            "law of Batch: the length field counts the body"
        );
        Batch { header, body }
    }

    /// The parsed header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The first 16 bytes as they go to the wire.
    pub fn head(&self) -> [u8; BATCH_HEAD_BYTES] {
        self.header.head()
    }

    /// Everything after the first 16 bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Size on the wire.
    pub fn size_bytes(&self) -> usize {
        BATCH_HEAD_BYTES + self.body.len()
    }

    /// The batch in one piece. Copies: for tests and tools, not for the data path.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.size_bytes());
        bytes.extend_from_slice(&self.head());
        bytes.extend_from_slice(&self.body);
        bytes.freeze()
    }

    /// Gives the batch its place in the log. Both fields lie outside the CRC.
    pub fn stamp(&mut self, base_offset: Offset, leader_epoch: LeaderEpoch) {
        self.header.base_offset = base_offset;
        self.header.leader_epoch = leader_epoch;
    }

    /// Switches the batch to log append time: attribute bit 3, max timestamp, a new CRC. The
    /// records and the base timestamp stay; readers take the max timestamp for all of them.
    /// Copies the body.
    pub fn set_log_append_time(&mut self, unix_millis: i64) {
        self.header.attributes = self.header.attributes.with_log_append_time();
        self.header.max_timestamp = unix_millis;
        self.rewrite_header_fields();
    }

    /// Brings the header's attributes and largest timestamp into the body.
    fn rewrite_header_fields(&mut self) {
        let mut body = BytesMut::from(&self.body[..]);
        body[BODY_CRC_FROM..BODY_CRC_FROM + 2]
            .copy_from_slice(&self.header.attributes.bits().to_be_bytes());
        body[BODY_MAX_TIMESTAMP_AT..BODY_MAX_TIMESTAMP_AT + 8]
            .copy_from_slice(&self.header.max_timestamp.to_be_bytes());
        self.header.crc = crc32c(&body[BODY_CRC_FROM..]);
        body[BODY_CRC_AT..BODY_CRC_FROM].copy_from_slice(&self.header.crc.to_be_bytes());
        self.body = body.freeze();
    }

    /// Sets the largest timestamp to what the records say, with a new CRC, as Kafka does for a
    /// header that claims another. Copies the body.
    pub fn set_max_timestamp(&mut self, unix_millis: i64) {
        self.header.max_timestamp = unix_millis;
        self.rewrite_header_fields();
    }

    /// Checks a batch before it enters the log: size, CRC-32C, codec, counts, control bit,
    /// producer fields. Does not look inside the records: that is [`Batch::inspection`].
    ///
    /// # Errors
    /// The first rule broken, in the order above.
    pub fn validate(&self, rules: &ValidateRules) -> Result<(), BatchError> {
        if self.size_bytes() > rules.batch_bytes_max {
            return Err(BatchError::TooLarge {
                bytes: self.size_bytes(),
                bytes_max: rules.batch_bytes_max,
            });
        }
        self.check_crc()?;
        let header = &self.header;
        if header.attributes.compression()? == Compression::Zstd && rules.zstd == ZstdRule::Refuse {
            return Err(BatchError::CodecRefused(Compression::Zstd));
        }
        if header.record_count <= 0 {
            return Err(BatchError::invalid("a batch without records"));
        }
        // Law 17 of Kafka's wire traps: a fresh batch has no gaps. record_count >= 1 here.
        if header.last_offset_delta != header.record_count - 1 {
            return Err(BatchError::invalid(
                "the last offset delta is not the record count - 1",
            ));
        }
        if header.attributes.is_control() && rules.control == ControlRule::Refuse {
            return Err(BatchError::invalid(
                "clients must not write control batches",
            ));
        }
        if header.producer_id == ProducerId::NONE {
            if header.attributes.is_transactional() {
                return Err(BatchError::invalid(
                    "a transactional batch without a producer id",
                ));
            }
            return Ok(());
        }
        if header.producer_id.get() < 0 || header.producer_epoch.get() < 0 {
            return Err(BatchError::invalid(
                "a negative producer id or producer epoch",
            ));
        }
        if header.base_sequence < 0 && !header.attributes.is_control() {
            return Err(BatchError::invalid(
                "an idempotent batch without a sequence number",
            ));
        }
        Ok(())
    }

    /// Checks the CRC-32C alone.
    ///
    /// # Errors
    /// [`BatchError::Corrupt`].
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let computed = crc32c(&self.body[BODY_CRC_FROM..]);
        if computed == self.header.crc {
            return Ok(());
        }
        Err(BatchError::Corrupt {
            stored: self.header.crc,
            computed,
        })
    }

    /// The records, one at a time. Uncompressed records share the body; compressed ones are
    /// decompressed here, into at most `output_bytes_max` bytes.
    ///
    /// # Errors
    /// An unknown codec, a damaged stream, [`BatchError::OutputTooLarge`], a negative count.
    pub fn records(&self, output_bytes_max: usize) -> Result<RecordIter, BatchError> {
        RecordIter::new(&self.header, self.records_bytes(), output_bytes_max)
    }

    /// The records as they lie in the batch, compressed if it is.
    pub fn records_bytes(&self) -> Bytes {
        self.body.slice(BATCH_HEADER_BYTES - BATCH_HEAD_BYTES..)
    }
}

fn check_size(header: &BatchHeader, found: usize) -> Result<(), BatchError> {
    let needed = header.size_bytes();
    if found < needed {
        return Err(BatchError::Truncated { needed, found });
    }
    if found > needed {
        return Err(BatchError::invalid("more bytes than the batch claims"));
    }
    Ok(())
}

/// Reads the payload of one partition of a Produce request, which must be exactly one batch
/// (Produce version 3 and later).
///
/// # Errors
/// As [`Batch::parse`]; no batch and more than one batch are [`BatchError::Invalid`].
pub fn parse_single(bytes: Bytes) -> Result<Batch, BatchError> {
    if bytes.is_empty() {
        return Err(BatchError::invalid("no record batch"));
    }
    let header = BatchHeader::parse(&bytes)?;
    if bytes.len() > header.size_bytes() {
        return Err(BatchError::invalid(
            "more than one record batch for a partition",
        ));
    }
    Batch::parse(bytes)
}

/// Splits the records of one partition of a Fetch response.
pub fn parse_many(bytes: Bytes) -> BatchesIter {
    BatchesIter { rest: bytes }
}

/// The batches of [`parse_many`]. A partial batch at the end is left out, as Kafka's clients do:
/// a broker may cut there. An error ends the iteration.
#[derive(Clone, Debug)]
pub struct BatchesIter {
    rest: Bytes,
}

impl BatchesIter {
    /// The bytes not yet read.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }
}

impl Iterator for BatchesIter {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let found = BatchHeader::parse(&self.rest).and_then(|header| {
            if self.rest.len() < header.size_bytes() {
                let needed = header.size_bytes();
                return Err(BatchError::Truncated {
                    needed,
                    found: self.rest.len(),
                });
            }
            Batch::parse(self.rest.split_to(header.size_bytes()))
        });
        match found {
            Err(BatchError::Truncated { .. }) => {
                self.rest.clear();
                None
            }
            Err(error) => {
                self.rest.clear();
                Some(Err(error))
            }
            Ok(batch) => Some(Ok(batch)),
        }
    }
}

const _: () = assert!(LENGTH_EXCLUDED_BYTES + 4 == BATCH_HEAD_BYTES);
