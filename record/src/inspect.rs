//! What is inside a batch, read once before the batch enters a log.
//!
//! The header's CRC says that the bytes are the sender's, not that they are records. A broker that
//! takes them unread hands every consumer of the partition a batch that it can't pass (KIP-98 has
//! the record format; Kafka refuses with INVALID_RECORD).
//!
//! Nothing is built: the records are walked over, and compressed ones through a window of
//! [`WINDOW_BYTES`].

use bytes::{Buf, Bytes};

use crate::batch::Batch;
use crate::compression::{Decompressor, WINDOW_BYTES};
use crate::error::BatchError;
use crate::header::BatchHeader;
use crate::records::RECORD_HEADERS_MAX;

/// Bytes of records that [`Inspection::step`] reads at most, about: a batch of Kafka's default
/// `max.message.bytes` takes one step, and no step takes long.
pub const INSPECT_STEP_BYTES: usize = 1024 * 1024;

/// Records without a key that [`Inspected`] names one by one.
pub const KEYLESS_RECORDS_MAX: usize = 10_000;

/// Whether every record needs a key, as those of a compacted topic do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// Records may be without one.
    Optional,
    /// Records without one are named in [`Inspected::keyless`].
    Required,
}

/// What [`Batch::inspection`] needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectRules {
    /// Compressed records may become this long at most. They are not kept: the limit is on the
    /// work that a few bytes can cause.
    pub output_bytes_max: usize,
    /// Whether to look for missing keys.
    pub keys: KeyRule,
}

/// A batch whose records are sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The largest timestamp of its records, in milliseconds since the Unix epoch; -1 if none has
    /// one. The header's claim may differ.
    pub max_timestamp: i64,
    /// Places in the batch of records without a key, the first [`KEYLESS_RECORDS_MAX`] of them.
    /// Empty under [`KeyRule::Optional`].
    pub keyless: Vec<i32>,
}

/// An inspection under way, in steps of about [`INSPECT_STEP_BYTES`] so that whoever shares the
/// thread gets its turn.
pub struct Inspection {
    source: Source,
    walker: Walker,
}

enum Source {
    Plain(Bytes),
    Compressed(Decompressor),
}

impl Batch {
    /// Begins to read the batch's records. [`Batch::validate`] comes first: it has judged the CRC
    /// and the counts that the records are held against.
    ///
    /// # Errors
    /// An unknown codec, or a stream that is none of its codec.
    pub fn inspection(&self, rules: &InspectRules) -> Result<Inspection, BatchError> {
        let header = self.header();
        let stored = self.records_bytes();
        let source = match Decompressor::new(
            header.attributes.compression()?,
            &stored,
            rules.output_bytes_max,
        )? {
            None => Source::Plain(stored),
            Some(decompressor) => Source::Compressed(decompressor),
        };
        Ok(Inspection {
            source,
            walker: Walker::new(header, rules.keys),
        })
    }

    /// Reads the batch's records in one go.
    ///
    /// # Errors
    /// As [`Inspection::step`].
    pub fn inspect(&self, rules: &InspectRules) -> Result<Inspected, BatchError> {
        let mut inspection = self.inspection(rules)?;
        loop {
            if let Some(inspected) = inspection.step()? {
                return Ok(inspected);
            }
        }
    }
}

impl Inspection {
    /// Reads on. `None`: there is more to read.
    ///
    /// # Errors
    /// [`BatchError::InvalidRecord`] for the first record that is none, [`BatchError::Invalid`]
    /// for bytes after the last one, [`BatchError::Decompress`], [`BatchError::OutputTooLarge`].
    pub fn step(&mut self) -> Result<Option<Inspected>, BatchError> {
        match &mut self.source {
            Source::Plain(rest) => {
                let step = rest.len().min(INSPECT_STEP_BYTES);
                self.walker.feed(&rest[..step])?;
                rest.advance(step);
                if rest.has_remaining() {
                    return Ok(None);
                }
            }
            Source::Compressed(decompressor) => {
                for _ in 0..INSPECT_STEP_BYTES / WINDOW_BYTES {
                    let window = decompressor.read()?;
                    if window.is_empty() {
                        return self.walker.finish().map(Some);
                    }
                    self.walker.feed(window)?;
                }
                return Ok(None);
            }
        }
        self.walker.finish().map(Some)
    }
}

/// The number that comes next. Between two numbers lie bytes that are passed over: attributes,
/// keys, values, names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    RecordLength,
    TimestampDelta,
    OffsetDelta,
    KeyLength,
    ValueLength,
    HeaderCount,
    NameLength,
    HeaderValueLength,
}

/// Bits of a number in the longest encoding that every client reads: five bytes for 32 bits, ten
/// for 64.
const INT_BITS: u32 = 35;
const LONG_BITS: u32 = 70;

const CUT: &str = "it ends inside a number";
const OVERFLOW: &str = "a variable-length number is too long";

/// Walks over records that arrive in pieces. Holds its place, no record.
struct Walker {
    record_count: i32,
    base_timestamp: i64,
    keys: KeyRule,
    /// The record that is being read.
    index: i32,
    field: Field,
    /// Bytes of this record that no number and no skip has accounted for yet.
    record_rest: usize,
    /// Bytes to pass over before the next number; they are accounted for.
    skip: usize,
    number: u64,
    number_bits: u32,
    headers_rest: usize,
    max_timestamp: i64,
    keyless: Vec<i32>,
}

impl Walker {
    fn new(header: &BatchHeader, keys: KeyRule) -> Walker {
        Walker {
            record_count: header.record_count,
            base_timestamp: header.base_timestamp,
            keys,
            index: 0,
            field: Field::RecordLength,
            record_rest: 0,
            skip: 0,
            number: 0,
            number_bits: 0,
            headers_rest: 0,
            max_timestamp: -1,
            keyless: Vec::new(),
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BatchError> {
        loop {
            let passed = self.skip.min(bytes.len());
            self.skip -= passed;
            bytes = &bytes[passed..];
            if bytes.is_empty() {
                return Ok(());
            }
            if self.field == Field::RecordLength {
                if self.index >= self.record_count {
                    return Err(BatchError::invalid("bytes after the last record"));
                }
                if self.number_bits == 0
                    && let Some(length) = self.take_common(bytes)
                {
                    bytes = &bytes[length..];
                    continue;
                }
            }
            let number = self.take_number(&mut bytes);
            let taken = number.and_then(|number| number.map_or(Ok(()), |n| self.take_field(n)));
            if let Err(what) = taken {
                return Err(self.refusal(what));
            }
        }
    }

    fn finish(&mut self) -> Result<Inspected, BatchError> {
        let between = self.field == Field::RecordLength && self.skip == 0 && self.number_bits == 0;
        if !between || self.index < self.record_count {
            return Err(self.refusal("the batch ends before it does"));
        }
        Ok(Inspected {
            max_timestamp: self.max_timestamp,
            keyless: std::mem::take(&mut self.keyless),
        })
    }

    fn refusal(&self, what: &'static str) -> BatchError {
        let index = self.index;
        BatchError::InvalidRecord { index, what }
    }

    /// Takes a sound record of the usual kind that lies in `bytes` whole, and returns its length.
    /// Anything else, and whatever is wrong, is left to the walk number by number, which alone
    /// refuses: this is three times as fast, and changes nothing else.
    fn take_common(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        let length = usize::try_from(short_number(bytes, &mut at)?).ok()?;
        let end = at + length;
        let record = bytes.get(..end)?;
        at += 1;
        let timestamp = self
            .base_timestamp
            .checked_add(short_number(record, &mut at)?)?;
        if short_number(record, &mut at)? != i64::from(self.index) {
            return None;
        }
        let key = short_number(record, &mut at)?;
        at += usize::try_from(key).unwrap_or(0);
        let value = short_number(record, &mut at)?;
        at += usize::try_from(value).unwrap_or(0);
        let headers = short_number(record, &mut at)?;
        if headers < 0 || headers > RECORD_HEADERS_MAX as i64 {
            return None;
        }
        for _ in 0..headers {
            at += usize::try_from(short_number(record, &mut at)?).ok()?;
            let value = short_number(record, &mut at)?;
            at += usize::try_from(value).unwrap_or(0);
        }
        if at != end {
            return None;
        }
        if key < 0 {
            self.note_keyless();
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.index += 1;
        Some(end)
    }

    /// Takes a zigzag number; `None` if the bytes end inside it.
    fn take_number(&mut self, bytes: &mut &[u8]) -> Result<Option<i64>, &'static str> {
        let bits_max = match self.field {
            Field::TimestampDelta => LONG_BITS,
            _ => INT_BITS,
        };
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if self.field != Field::RecordLength {
                self.record_rest = self.record_rest.checked_sub(1).ok_or(CUT)?;
            }
            // The last byte of the longest encoding holds what is left of 32 or 64 bits.
            let last = self.number_bits + 7 == bits_max;
            let last_max = if bits_max == INT_BITS { 0x0f } else { 0x01 };
            if last && byte > last_max {
                return Err(OVERFLOW);
            }
            self.number |= u64::from(byte & 0x7f) << self.number_bits;
            self.number_bits += 7;
            if byte < 0x80 {
                let number = self.number;
                self.number = 0;
                self.number_bits = 0;
                return Ok(Some(((number >> 1) as i64) ^ -((number & 1) as i64)));
            }
        }
        Ok(None)
    }

    fn take_field(&mut self, number: i64) -> Result<(), &'static str> {
        match self.field {
            Field::RecordLength => {
                self.record_rest = usize::try_from(number).map_err(|_| "its length is negative")?;
                // The record's attributes: Kafka uses none, and passes them through.
                self.pass(1, "it has no attributes")?;
                self.field = Field::TimestampDelta;
            }
            Field::TimestampDelta => {
                let timestamp = self.base_timestamp.checked_add(number);
                let timestamp = timestamp.ok_or("its timestamp is out of range")?;
                self.max_timestamp = self.max_timestamp.max(timestamp);
                self.field = Field::OffsetDelta;
            }
            Field::OffsetDelta => {
                if number != i64::from(self.index) {
                    return Err("its offset delta is not its place in the batch");
                }
                self.field = Field::KeyLength;
            }
            Field::KeyLength => {
                match usize::try_from(number) {
                    Ok(length) => self.pass(length, "its key is longer than the record")?,
                    Err(_null) => self.note_keyless(),
                }
                self.field = Field::ValueLength;
            }
            Field::ValueLength => {
                if let Ok(length) = usize::try_from(number) {
                    self.pass(length, "its value is longer than the record")?;
                }
                self.field = Field::HeaderCount;
            }
            Field::HeaderCount => {
                let count = usize::try_from(number).map_err(|_| "its header count is negative")?;
                // A header takes two bytes or more.
                if count > self.record_rest / 2 {
                    return Err("it has no room for as many headers as it counts");
                }
                if count > RECORD_HEADERS_MAX {
                    return Err("it has too many headers");
                }
                self.headers_rest = count;
                self.begin_header()?;
            }
            Field::NameLength => {
                let length = usize::try_from(number).map_err(|_| "a header has no name")?;
                self.pass(length, "a header's name is longer than the record")?;
                self.field = Field::HeaderValueLength;
            }
            Field::HeaderValueLength => {
                if let Ok(length) = usize::try_from(number) {
                    self.pass(length, "a header's value is longer than the record")?;
                }
                self.headers_rest -= 1;
                self.begin_header()?;
            }
        }
        Ok(())
    }

    /// The next header, or the next record.
    fn begin_header(&mut self) -> Result<(), &'static str> {
        if self.headers_rest > 0 {
            self.field = Field::NameLength;
            return Ok(());
        }
        if self.record_rest > 0 {
            return Err("bytes follow its last header");
        }
        self.field = Field::RecordLength;
        self.index += 1;
        Ok(())
    }

    fn pass(&mut self, length: usize, too_long: &'static str) -> Result<(), &'static str> {
        self.record_rest = self.record_rest.checked_sub(length).ok_or(too_long)?;
        self.skip = length;
        Ok(())
    }

    fn note_keyless(&mut self) {
        if self.keys == KeyRule::Required && self.keyless.len() < KEYLESS_RECORDS_MAX {
            self.keyless.push(self.index);
        }
    }
}

/// A zigzag number of at most four bytes at `at`, which moves behind it. `None`: it is cut, or
/// longer.
#[inline(always)]
fn short_number(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let mut number = 0_u32;
    for position in 0..4 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u32::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            return Some(i64::from((number >> 1) as i32 ^ -((number & 1) as i32)));
        }
    }
    None
}
