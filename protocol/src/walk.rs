//! A walk over a body before it is decoded.
//!
//! The decoder reserves memory for as many elements as an array claims to have: a Metadata request
//! of eight bytes would ask for 144 GiB and end the process. So the walk goes through the frame
//! first, without allocating: every array must really have its elements, and all of a request
//! together at most [`REQUEST_ELEMENTS_MAX`], since an element of two bytes on the wire takes some
//! hundred in memory.

use crate::schema::{Field, Kind, Schema};

/// Strings, structs and tagged fields in the arrays of one request. A request that names each of
/// 200,000 partitions fits; plain numbers are not counted, they take no more memory than bytes.
pub const REQUEST_ELEMENTS_MAX: usize = 256 * 1024;

/// The same for a response, which comes from a server that the user chose: a cluster of some hundred
/// thousand partitions fits.
pub(crate) const RESPONSE_ELEMENTS_MAX: usize = 4 * 1024 * 1024;

/// Why the walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misshapen(pub(crate) &'static str);

const CUT: Misshapen = Misshapen("it ends inside a field");

/// Walks a body and expects to end at its end, or exactly `trailing` bytes before it. Returns how
/// many bytes are left.
pub(crate) fn walk_body(
    schema: &Schema,
    version: i16,
    elements_max: usize,
    trailing: usize,
    body: &[u8],
) -> Result<usize, Misshapen> {
    let flexible = version >= schema.flexible_from;
    let mut walk = Walk {
        rest: body,
        version,
        flexible,
        elements_left: elements_max,
    };
    walk.fields(schema.fields)?;
    if walk.rest.is_empty() || walk.rest.len() == trailing {
        Ok(walk.rest.len())
    } else {
        Err(Misshapen("it has bytes after its end"))
    }
}

/// Walks the tagged fields at the beginning of `bytes` and returns their length.
pub(crate) fn tagged_fields_length(bytes: &[u8]) -> Result<usize, Misshapen> {
    let mut walk = Walk {
        rest: bytes,
        version: 0,
        flexible: true,
        elements_left: REQUEST_ELEMENTS_MAX,
    };
    walk.tags(&[])?;
    Ok(bytes.len() - walk.rest.len())
}

struct Walk<'a> {
    rest: &'a [u8],
    version: i16,
    flexible: bool,
    elements_left: usize,
}

impl Walk<'_> {
    fn fields(&mut self, fields: &[Field]) -> Result<(), Misshapen> {
        for field in fields {
            if field.tag.is_none() && (field.from..=field.to).contains(&self.version) {
                self.field(&field.kind)?;
            }
        }
        if self.flexible {
            self.tags(fields)
        } else {
            Ok(())
        }
    }

    fn field(&mut self, kind: &Kind) -> Result<(), Misshapen> {
        match kind {
            Kind::Fixed(bytes) => self.skip(*bytes),
            Kind::Text => self.text(),
            Kind::Blob => {
                let length = self.length_32()?;
                self.skip(length)
            }
            Kind::FixedArray(bytes) => {
                let count = self.length_32()?;
                self.skip(count.checked_mul(*bytes).ok_or(CUT)?)
            }
            Kind::TextArray => {
                for _ in 0..self.count()? {
                    self.text()?;
                }
                Ok(())
            }
            Kind::Struct(fields) => self.fields(fields),
            Kind::NullableStruct(fields) => {
                let (presence, rest) = self.rest.split_first().ok_or(CUT)?;
                self.rest = rest;
                // Java takes every other byte from 0 on for "there", the decoder for "null": it would
                // go on at another place than this walk. Nobody writes them.
                match i8::from_be_bytes([*presence]) {
                    -1 => Ok(()),
                    1 => self.fields(fields),
                    _ => Err(Misshapen("a struct is neither there nor null")),
                }
            }
            Kind::Structs(fields) => {
                for _ in 0..self.count()? {
                    self.fields(fields)?;
                }
                Ok(())
            }
        }
    }

    fn tags(&mut self, fields: &[Field]) -> Result<(), Misshapen> {
        let count = self.varint()? as usize;
        self.take_elements(count)?;
        for _ in 0..count {
            let tag = self.varint()?;
            let length = self.varint()? as usize;
            let Some((content, rest)) = self.rest.split_at_checked(length) else {
                return Err(CUT);
            };
            let known = fields.iter().find(|field| {
                field.tag == Some(tag) && (field.from..=field.to).contains(&self.version)
            });
            if let Some(field) = known {
                // The decoder reads a known field by its kind and trusts the length; so the two
                // must agree, or it would go on at another place than this walk.
                self.rest = content;
                self.field(&field.kind)?;
                if !self.rest.is_empty() {
                    return Err(Misshapen(
                        "a tagged field has another length than it claims",
                    ));
                }
            }
            self.rest = rest;
        }
        Ok(())
    }

    fn text(&mut self) -> Result<(), Misshapen> {
        let length = if self.flexible {
            self.compact_length()?
        } else {
            let (length, rest) = self.rest.split_first_chunk::<2>().ok_or(CUT)?;
            self.rest = rest;
            nullable_length(i32::from(i16::from_be_bytes(*length)))?
        };
        self.skip(length)
    }

    /// The count of an array whose elements are walked one by one.
    fn count(&mut self) -> Result<usize, Misshapen> {
        let count = self.length_32()?;
        // Each element takes a byte or more: refuse early what cannot be there.
        if count > self.rest.len() {
            return Err(Misshapen("an array has fewer elements than it claims"));
        }
        self.take_elements(count)?;
        Ok(count)
    }

    fn take_elements(&mut self, count: usize) -> Result<(), Misshapen> {
        self.elements_left = self
            .elements_left
            .checked_sub(count)
            .ok_or(Misshapen("it has more elements than a request may have"))?;
        Ok(())
    }

    /// The length of bytes or of an array; null counts as empty.
    fn length_32(&mut self) -> Result<usize, Misshapen> {
        if self.flexible {
            return self.compact_length();
        }
        let (length, rest) = self.rest.split_first_chunk::<4>().ok_or(CUT)?;
        self.rest = rest;
        nullable_length(i32::from_be_bytes(*length))
    }

    /// A compact length is stored plus one; 0 is null.
    fn compact_length(&mut self) -> Result<usize, Misshapen> {
        Ok((self.varint()? as usize).saturating_sub(1))
    }

    fn varint(&mut self) -> Result<u32, Misshapen> {
        let mut value = 0_u64;
        for position in 0..5 {
            let (byte, rest) = self.rest.split_first().ok_or(CUT)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * position);
            if *byte < 0x80 {
                return u32::try_from(value).map_err(|_large| Misshapen("a number is too large"));
            }
        }
        Err(Misshapen("a number is too long"))
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Misshapen> {
        self.rest = self.rest.get(bytes..).ok_or(CUT)?;
        Ok(())
    }
}

fn nullable_length(length: i32) -> Result<usize, Misshapen> {
    match length {
        -1 => Ok(0),
        _ => usize::try_from(length).map_err(|_negative| Misshapen("a length is negative")),
    }
}
