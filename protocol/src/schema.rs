//! The shape of each body, as far as its walk needs it: where the arrays are, and how long
//! everything else is.
//!
//! Kept honest by a test that walks golden frames of every version of every API.

mod group_request;
mod group_response;
mod request;
mod response;

pub(crate) use request::request_schema;
pub(crate) use response::response_schema;

/// A body.
pub(crate) struct Schema {
    /// First version with compact lengths and tagged fields (KIP-482).
    pub(crate) flexible_from: i16,
    pub(crate) fields: &'static [Field],
}

/// A field, and the versions that have it.
pub(crate) struct Field {
    pub(crate) from: i16,
    pub(crate) to: i16,
    /// The tag of a tagged field; `None` for one that stands in its place.
    pub(crate) tag: Option<u32>,
    pub(crate) kind: Kind,
}

/// What a field looks like on the wire. Nullable or not makes no difference to a walk.
pub(crate) enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// A string.
    Text,
    /// Bytes.
    Blob,
    /// An array of elements of so many bytes each.
    FixedArray(usize),
    /// An array of strings.
    TextArray,
    /// One struct.
    Struct(&'static [Field]),
    /// A struct behind a byte that says whether it is there (1) or is null (-1).
    NullableStruct(&'static [Field]),
    /// An array of structs.
    Structs(&'static [Field]),
}

const fn always(kind: Kind) -> Field {
    between(0, i16::MAX, kind)
}

const fn from(version: i16, kind: Kind) -> Field {
    between(version, i16::MAX, kind)
}

const fn between(from: i16, to: i16, kind: Kind) -> Field {
    Field {
        from,
        to,
        tag: None,
        kind,
    }
}

/// A tagged field whose content the decoder knows. Unknown ones are skipped by their length.
const fn tagged(from: i16, tag: u32, kind: Kind) -> Field {
    Field {
        from,
        to: i16::MAX,
        tag: Some(tag),
        kind,
    }
}

const BOOL: Kind = Kind::Fixed(1);
const I8: Kind = Kind::Fixed(1);
const I16: Kind = Kind::Fixed(2);
const I32: Kind = Kind::Fixed(4);
const I64: Kind = Kind::Fixed(8);
const UUID: Kind = Kind::Fixed(16);
const I32_ARRAY: Kind = Kind::FixedArray(4);
