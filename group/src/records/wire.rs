//! The two layouts of Kafka's schemas: fields one after another, in big-endian order.

use bytes::Bytes;
use corduroy_record::{PartitionIndex, TopicId};

use super::{Assignment, RecordError, TEXT_BYTES_MAX};

/// How lengths are written (KIP-482).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Text: i16; bytes and arrays: i32; -1 is null. No tagged fields.
    Fixed,
    /// All: unsigned varint of length + 1; 0 is null. Tagged fields end each struct.
    Flexible,
}

/// Takes fields off the front of bytes of any origin.
///
/// Law: what is allocated is at most a constant factor of what was read; a count is never trusted.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    layout: Layout,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], layout: Layout) -> Reader<'a> {
        Reader {
            rest: bytes,
            layout,
        }
    }

    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// All bytes must have been read.
    pub(crate) fn end(&self, what: &'static str) -> Result<(), RecordError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(RecordError::Trailing { what, bytes }),
        }
    }

    fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], RecordError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(RecordError::Cut(field))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(RecordError::Cut(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, RecordError> {
        Ok(u8::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn i16(&mut self, field: &'static str) -> Result<i16, RecordError> {
        Ok(i16::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, RecordError> {
        Ok(i32::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, RecordError> {
        Ok(i64::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn topic_id(&mut self, field: &'static str) -> Result<TopicId, RecordError> {
        Ok(TopicId::from_bytes(self.array(field)?))
    }

    /// An unsigned varint of up to 32 bits.
    pub(crate) fn varint(&mut self, field: &'static str) -> Result<u32, RecordError> {
        let mut value = 0_u64;
        for position in 0..5 {
            let byte = self.u8(field)?;
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte < 0x80 {
                return u32::try_from(value).map_err(|_wide| RecordError::Varint(field));
            }
        }
        Err(RecordError::Varint(field))
    }

    /// A length; `None` is null.
    fn length(&mut self, text: bool, field: &'static str) -> Result<Option<usize>, RecordError> {
        let length = match (self.layout, text) {
            (Layout::Flexible, _) => i64::from(self.varint(field)?) - 1,
            (Layout::Fixed, true) => i64::from(self.i16(field)?),
            (Layout::Fixed, false) => i64::from(self.i32(field)?),
        };
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_negative) if length == -1 => Ok(None),
            Err(_negative) => Err(RecordError::Length { field, length }),
        }
    }

    pub(crate) fn text_or_null(
        &mut self,
        field: &'static str,
    ) -> Result<Option<String>, RecordError> {
        let Some(length) = self.length(true, field)? else {
            return Ok(None);
        };
        let bytes = self.take(length, field)?;
        let text = std::str::from_utf8(bytes).map_err(|_not_text| RecordError::Text(field))?;
        Ok(Some(text.to_owned()))
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, RecordError> {
        self.text_or_null(field)?
            .ok_or(RecordError::Length { field, length: -1 })
    }

    /// Bytes, in place.
    pub(crate) fn slice(&mut self, field: &'static str) -> Result<&'a [u8], RecordError> {
        let length = self
            .length(false, field)?
            .ok_or(RecordError::Length { field, length: -1 })?;
        self.take(length, field)
    }

    /// Bytes, copied: a slice of the record would keep its whole batch in memory.
    pub(crate) fn bytes(&mut self, field: &'static str) -> Result<Bytes, RecordError> {
        Ok(Bytes::copy_from_slice(self.slice(field)?))
    }

    /// An array that may not be null.
    pub(crate) fn list<T>(
        &mut self,
        field: &'static str,
        mut item: impl FnMut(&mut Reader<'a>) -> Result<T, RecordError>,
    ) -> Result<Vec<T>, RecordError> {
        let count = self
            .length(false, field)?
            .ok_or(RecordError::Length { field, length: -1 })?;
        // Every item takes at least a byte, so a count above that is a lie. No capacity is
        // reserved from it either: the list grows with what is really there.
        if count > self.rest.len() {
            return Err(RecordError::Cut(field));
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(item(self)?);
        }
        list.shrink_to_fit();
        Ok(list)
    }

    /// The tagged fields that end a struct of the flexible layout; `known` answers whether it read
    /// the field, others are passed over (they come from newer versions).
    pub(crate) fn tagged_fields(
        &mut self,
        mut known: impl FnMut(u32, &mut Reader<'a>) -> Result<bool, RecordError>,
    ) -> Result<(), RecordError> {
        const FIELD: &str = "tagged fields";
        if self.layout == Layout::Fixed {
            return Ok(());
        }
        for _ in 0..self.varint(FIELD)? {
            let tag = self.varint(FIELD)?;
            let length = usize::try_from(self.varint(FIELD)?).unwrap_or(usize::MAX);
            let mut field = Reader::new(self.take(length, FIELD)?, self.layout);
            if known(tag, &mut field)? {
                field.end(FIELD)?;
            }
        }
        Ok(())
    }

    /// Tagged fields of which none is known.
    pub(crate) fn no_tagged_fields(&mut self) -> Result<(), RecordError> {
        self.tagged_fields(|_tag, _field| Ok(false))
    }

    /// `[]TopicPartitions`: topic id and partitions, in any order.
    pub(crate) fn assignment(&mut self, field: &'static str) -> Result<Assignment, RecordError> {
        let topics = self.list(field, |reader| {
            let topic = reader.topic_id(field)?;
            let partitions =
                reader.list(field, |reader| Ok(PartitionIndex::new(reader.i32(field)?)))?;
            reader.no_tagged_fields()?;
            Ok((topic, partitions))
        })?;
        let mut assignment = Assignment::new();
        for (topic, mut partitions) in topics {
            assignment.entry(topic).or_default().append(&mut partitions);
        }
        for partitions in assignment.values_mut() {
            partitions.sort_unstable();
            partitions.dedup();
        }
        Ok(assignment)
    }
}

/// Appends fields.
pub(crate) struct Writer {
    out: Vec<u8>,
    layout: Layout,
}

impl Writer {
    /// A writer that begins with the i16 of a key's kind or a value's version.
    pub(crate) fn new(kind: i16, layout: Layout) -> Writer {
        Writer {
            out: kind.to_be_bytes().to_vec(),
            layout,
        }
    }

    pub(crate) fn finish(self) -> Bytes {
        Bytes::from(self.out)
    }

    pub(crate) fn i8(&mut self, value: i8) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn topic_id(&mut self, id: TopicId) {
        self.out.extend_from_slice(&id.bytes());
    }

    fn varint(&mut self, value: u32) {
        let mut rest = value;
        while rest >= 0x80 {
            self.out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push(rest as u8);
    }

    fn length(&mut self, length: usize) {
        // Nothing of 2 GiB fits a batch; the record's own size was limited long before.
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        match self.layout {
            Layout::Flexible => self.varint(length.unsigned_abs() + 1),
            Layout::Fixed => self.i32(length),
        }
    }

    pub(crate) fn text_or_null(&mut self, text: Option<&str>) {
        match (self.layout, text) {
            (Layout::Flexible, None) => self.varint(0),
            (Layout::Fixed, None) => self.out.extend_from_slice(&(-1_i16).to_be_bytes()),
            (_, Some(text)) => self.text(text),
        }
    }

    /// Text; in the fixed layout cut to [`TEXT_BYTES_MAX`], which `GroupRecord::check` refuses.
    pub(crate) fn text(&mut self, text: &str) {
        if self.layout == Layout::Flexible {
            self.length(text.len());
            self.out.extend_from_slice(text.as_bytes());
            return;
        }
        // A length that lies would make every replica refuse the record.
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let length = i16::try_from(text.len()).unwrap_or(i16::MAX);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut item: impl FnMut(&mut Writer, T),
    ) {
        self.length(items.len());
        for value in items {
            item(self, value);
        }
    }

    /// The end of a struct of the flexible layout that has no tagged fields set.
    pub(crate) fn no_tagged_fields(&mut self) {
        if self.layout == Layout::Flexible {
            self.varint(0);
        }
    }

    /// The end of a struct with one tagged field.
    pub(crate) fn one_tagged_field(&mut self, tag: u32, content: impl FnOnce(&mut Writer)) {
        let mut field = Writer {
            out: Vec::new(),
            layout: self.layout,
        };
        content(&mut field);
        self.varint(1);
        self.varint(tag);
        self.varint(u32::try_from(field.out.len()).unwrap_or(u32::MAX));
        self.out.append(&mut field.out);
    }

    /// The byte that says that a nullable tagged struct is not null.
    pub(crate) fn present(&mut self) {
        self.varint(1);
    }

    pub(crate) fn assignment(&mut self, assignment: &Assignment) {
        self.list(assignment.iter(), |writer, (topic, partitions)| {
            writer.topic_id(*topic);
            writer.list(partitions.iter(), |writer, partition| {
                writer.i32(partition.get());
            });
            writer.no_tagged_fields();
        });
    }
}
