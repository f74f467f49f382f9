//! Batches from records.

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::Batch;
use crate::checksum::crc32c;
use crate::compression::Compression;
use crate::error::BatchError;
use crate::header::{
    ATTRIBUTES_AT, Attributes, BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader,
    LENGTH_EXCLUDED_BYTES, MAGIC_V2, SEQUENCE_NONE,
};
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use crate::records::RECORD_HEADERS_MAX;
use crate::varint;

/// Uncompressed bytes of one batch: the length field is 31 bits wide, and a codec may add a little
/// to what it cannot compress.
const BUILD_BYTES_MAX: usize = 1 << 30;

/// What a new batch carries beside its records. The default: no codec, no producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuilderOptions {
    /// Codec of the records.
    pub compression: Compression,
    /// Idempotent producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// Its incarnation, -1 without one.
    pub producer_epoch: ProducerEpoch,
    /// Sequence number of the first record, or [`SEQUENCE_NONE`].
    pub base_sequence: i32,
    /// Sets the transactional bit.
    pub transactional: bool,
    /// Sets the control bit (transaction markers).
    pub control: bool,
    /// Offset of the first record. A producer sends 0; the log stamps it.
    pub base_offset: Offset,
    /// Leader epoch. A producer sends -1; the log stamps it.
    pub leader_epoch: LeaderEpoch,
}

impl Default for BuilderOptions {
    fn default() -> Self {
        BuilderOptions {
            compression: Compression::None,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::new(-1),
            base_sequence: SEQUENCE_NONE,
            transactional: false,
            control: false,
            base_offset: Offset::ZERO,
            leader_epoch: LeaderEpoch::NONE,
        }
    }
}

/// Gathers records into one batch. Offsets count up from the base offset without gaps.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    options: BuilderOptions,
    records: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl BatchBuilder {
    /// An empty batch.
    pub fn new(options: BuilderOptions) -> BatchBuilder {
        BatchBuilder {
            options,
            records: Vec::new(),
            count: 0,
            base_timestamp: -1,
            max_timestamp: -1,
        }
    }

    /// Adds a record: `timestamp` in milliseconds since the Unix epoch (-1 = none), headers in
    /// their order.
    ///
    /// # Errors
    /// [`BatchError::TooLarge`] beyond 1 GiB of records, [`BatchError::Invalid`] beyond
    /// [`RECORD_HEADERS_MAX`] headers. The builder is as before.
    pub fn push(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> Result<(), BatchError> {
        self.push_any(timestamp, key, value, headers)
    }

    /// [`BatchBuilder::push`] with headers as [`crate::Record`] holds them.
    ///
    /// # Errors
    /// As [`BatchBuilder::push`].
    pub fn push_owned(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(String, Option<Bytes>)],
    ) -> Result<(), BatchError> {
        self.push_any(timestamp, key, value, headers)
    }

    fn push_any<N: AsRef<str>, V: AsRef<[u8]>>(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(N, Option<V>)],
    ) -> Result<(), BatchError> {
        if headers.len() > RECORD_HEADERS_MAX {
            return Err(BatchError::invalid("too many headers in one record"));
        }
        let base_timestamp = if self.count == 0 {
            timestamp
        } else {
            self.base_timestamp
        };
        let timestamp_delta = timestamp.wrapping_sub(base_timestamp);
        let field = |bytes: &[u8]| varint::size(bytes.len() as i64) + bytes.len();
        let nullable = |bytes: Option<&[u8]>| bytes.map_or(1, field);
        let headers_bytes: usize = headers
            .iter()
            .map(|(name, value)| {
                field(name.as_ref().as_bytes()) + nullable(value.as_ref().map(AsRef::as_ref))
            })
            .sum();
        let length = 1 // attributes
            + varint::size(timestamp_delta)
            + varint::size(i64::from(self.count))
            + nullable(key)
            + nullable(value)
            + varint::size(headers.len() as i64)
            + headers_bytes;
        let bytes = self.size_estimate() + varint::size(length as i64) + length;
        if bytes > BUILD_BYTES_MAX {
            return Err(BatchError::TooLarge {
                bytes,
                bytes_max: BUILD_BYTES_MAX,
            });
        }

        let out = &mut self.records;
        varint::put(out, length as i64);
        out.push(0);
        varint::put(out, timestamp_delta);
        varint::put(out, i64::from(self.count));
        put_nullable(out, key);
        put_nullable(out, value);
        varint::put(out, headers.len() as i64);
        for (name, value) in headers {
            put_nullable(out, Some(name.as_ref().as_bytes()));
            put_nullable(out, value.as_ref().map(AsRef::as_ref));
        }
        self.base_timestamp = base_timestamp;
        self.max_timestamp = if self.count == 0 {
            timestamp
        } else {
            self.max_timestamp.max(timestamp)
        };
        // A record takes 7 bytes or more, so BUILD_BYTES_MAX keeps the count far below i32::MAX.
        self.count += 1;
        Ok(())
    }

    /// Records so far.
    pub fn record_count(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch so far, before compression: an upper bound for codec `None`, and close
    /// to one for the others.
    pub fn size_estimate(&self) -> usize {
        BATCH_HEADER_BYTES + self.records.len()
    }

    /// Largest timestamp so far, -1 without records.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// Compresses and seals the batch. An empty builder gives a batch of no records, which
    /// [`Batch::validate`] refuses.
    pub fn finish(self) -> Batch {
        let options = self.options;
        // Compressing into memory fails only inside the codec itself; then the records go as they
        // are, which is always a valid batch.
        let (codec, records) = match options.compression.compress(&self.records) {
            Ok(compressed) => (options.compression, compressed),
            Err(_codec_failed) => (Compression::None, Bytes::from(self.records)),
        };
        let mut attributes = Attributes::default().with_compression(codec);
        if options.transactional {
            attributes = attributes.with_transactional();
        }
        if options.control {
            attributes = attributes.with_control();
        }
        let mut header = BatchHeader {
            base_offset: options.base_offset,
            // BUILD_BYTES_MAX leaves every codec its worst case within 31 bits.
            batch_length: (BATCH_HEADER_BYTES - LENGTH_EXCLUDED_BYTES + records.len()) as i32,
            leader_epoch: options.leader_epoch,
            magic: MAGIC_V2,
            crc: 0,
            attributes,
            last_offset_delta: self.count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: options.producer_id,
            producer_epoch: options.producer_epoch,
            base_sequence: options.base_sequence,
            record_count: self.count,
        };
        let mut body = BytesMut::with_capacity(header.size_bytes() - BATCH_HEAD_BYTES);
        body.put_slice(&header.to_bytes()[BATCH_HEAD_BYTES..]);
        body.put_slice(&records);
        header.crc = crc32c(&body[ATTRIBUTES_AT - BATCH_HEAD_BYTES..]);
        body[1..5].copy_from_slice(&header.crc.to_be_bytes());
        // The pieces were made to fit: parsing them back is the law of `Batch`, not input.
        Batch::sealed(header, body.freeze())
    }
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::put(out, -1),
        Some(bytes) => {
            varint::put(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
