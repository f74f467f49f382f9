//! The records inside a batch.

use bytes::{Buf, Bytes};

use crate::error::BatchError;
use crate::header::{BatchHeader, TimestampType};
use crate::ids::Offset;
use crate::varint;

/// Headers of one record. Kafka has no such limit; ours keeps two wire bytes a header from
/// becoming some fifty bytes of memory each without end.
pub const RECORD_HEADERS_MAX: usize = 65_536;

/// One record. Key, value and header values share the batch's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where a consumer reads it.
    pub offset: Offset,
    /// Milliseconds since the Unix epoch; -1 = none.
    pub timestamp: i64,
    /// The key, if there is one; an empty key is a key.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone in compacted topics.
    pub value: Option<Bytes>,
    /// Headers in their order, duplicates kept. A name that is not UTF-8 has its bad bytes
    /// replaced, as Java's clients do.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// Reads the records of a batch one at a time. An error ends the iteration.
#[derive(Clone, Debug)]
pub struct RecordIter {
    rest: Bytes,
    remaining: i32,
    base_offset: Offset,
    last_offset_delta: i32,
    base_timestamp: i64,
    append_timestamp: Option<i64>,
}

impl RecordIter {
    pub(crate) fn new(
        header: &BatchHeader,
        stored: Bytes,
        output_bytes_max: usize,
    ) -> Result<RecordIter, BatchError> {
        if header.record_count < 0 {
            return Err(BatchError::invalid("a negative record count"));
        }
        let codec = header.attributes.compression()?;
        // A compacted batch may have lost all its records; then there is no stream to read.
        let rest = if stored.is_empty() && header.record_count == 0 {
            stored
        } else {
            codec.decompress(&stored, output_bytes_max)?
        };
        let append_timestamp = match header.attributes.timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(header.max_timestamp),
        };
        Ok(RecordIter {
            rest,
            remaining: header.record_count,
            base_offset: header.base_offset,
            last_offset_delta: header.last_offset_delta,
            base_timestamp: header.base_timestamp,
            append_timestamp,
        })
    }

    fn read(&mut self) -> Result<Record, BatchError> {
        let length = take_length(&mut self.rest, "a record without a length")?;
        if length > self.rest.len() {
            return Err(BatchError::invalid("a record longer than its batch"));
        }
        let mut body = self.rest.split_to(length);
        if body.is_empty() {
            return Err(BatchError::invalid("a record without attributes"));
        }
        // Record attributes: unused by Kafka, passed through by the broker, ignored here.
        body.advance(1);
        let timestamp_delta = varint::take_i64(&mut body)?;
        let offset_delta = varint::take_i32(&mut body)?;
        if !(0..=self.last_offset_delta).contains(&offset_delta) {
            return Err(BatchError::invalid(
                "a record's offset lies outside its batch",
            ));
        }
        let key = take_nullable(&mut body)?;
        let value = take_nullable(&mut body)?;
        let headers = take_headers(&mut body)?;
        if !body.is_empty() {
            return Err(BatchError::invalid(
                "a record with bytes after its last header",
            ));
        }
        Ok(Record {
            offset: self.base_offset.advance(offset_delta as u32),
            timestamp: self
                .append_timestamp
                .unwrap_or_else(|| self.base_timestamp.saturating_add(timestamp_delta)),
            key,
            value,
            headers,
        })
    }
}

impl Iterator for RecordIter {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            if self.rest.is_empty() {
                return None;
            }
            self.rest.clear();
            return Some(Err(BatchError::invalid(
                "more records than the header counts",
            )));
        }
        self.remaining -= 1;
        let record = self.read();
        if record.is_err() {
            self.remaining = 0;
            self.rest.clear();
        }
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The count is the sender's claim: no lower bound, so that `collect` reserves nothing.
        (0, Some(self.remaining as usize + 1))
    }
}

fn take_headers(body: &mut Bytes) -> Result<Vec<(String, Option<Bytes>)>, BatchError> {
    let count = take_length(body, "a negative header count")?;
    if count > RECORD_HEADERS_MAX {
        return Err(BatchError::invalid("too many headers in one record"));
    }
    // A header takes two bytes or more: a count beyond that is refused before anything is reserved.
    if count > body.len() / 2 {
        return Err(BatchError::invalid(
            "more headers than the record has room for",
        ));
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_length(body, "a header without a name")?;
        let name = take_bytes(body, length)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        headers.push((name, take_nullable(body)?));
    }
    Ok(headers)
}

/// Takes a length that must not be negative.
fn take_length(bytes: &mut Bytes, what: &'static str) -> Result<usize, BatchError> {
    usize::try_from(varint::take_i32(bytes)?).map_err(|_negative| BatchError::Invalid { what })
}

/// Takes a length and as many bytes; a negative length is null.
fn take_nullable(bytes: &mut Bytes) -> Result<Option<Bytes>, BatchError> {
    match usize::try_from(varint::take_i32(bytes)?) {
        Err(_negative) => Ok(None),
        Ok(length) => take_bytes(bytes, length).map(Some),
    }
}

fn take_bytes(bytes: &mut Bytes, length: usize) -> Result<Bytes, BatchError> {
    if length > bytes.len() {
        return Err(BatchError::invalid("a field longer than its record"));
    }
    Ok(bytes.split_to(length))
}
