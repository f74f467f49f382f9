//! Why bytes are not a record of `__consumer_offsets`.

/// Why bytes are not a record of `__consumer_offsets`, or a record cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end inside a field, or a count promises more than is there.
    #[error("the bytes end before `{0}` does")]
    Cut(&'static str),
    /// A length below what the field may have (-1, null, where null is not allowed).
    #[error("`{field}` has the length {length}")]
    Length {
        /// The field.
        field: &'static str,
        /// What the bytes say.
        length: i64,
    },
    /// A variable-length number of more than 32 bits.
    #[error("the length of `{0}` is longer than 32 bits")]
    Varint(&'static str),
    /// Text that is not UTF-8.
    #[error("`{0}` is not UTF-8")]
    Text(&'static str),
    /// A version of a value that is newer than this program.
    #[error("version {version} of {value} is not known")]
    Version {
        /// What the value is.
        value: &'static str,
        /// Its version.
        version: i16,
    },
    /// Bytes after the last field.
    #[error("{bytes} bytes follow the end of {what}")]
    Trailing {
        /// What has ended.
        what: &'static str,
        /// How many.
        bytes: usize,
    },
    /// A text longer than Kafka's layout can hold ([`super::TEXT_BYTES_MAX`]).
    #[error(
        "`{field}` has {bytes} bytes, the record's layout holds {}",
        super::TEXT_BYTES_MAX
    )]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
}
