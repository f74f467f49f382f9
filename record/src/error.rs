//! What can be wrong with a batch.

use crate::compression::Compression;

/// Why a batch was refused. Narrow, so that a caller can map each case to its protocol error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("the batch needs {needed} bytes and only {found} are there")]
    Truncated {
        /// Bytes that the batch claims, or the smallest possible batch.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// The CRC-32C does not match.
    #[error("CRC-32C mismatch: the header says {stored:#010x}, the bytes give {computed:#010x}")]
    Corrupt {
        /// What the header says.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The batch is larger than allowed.
    #[error("the batch has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// An older message format, or a later one.
    #[error("message format {0} is not supported, only 2 is")]
    UnsupportedMagic(i8),
    /// The codec bits name none of the five codecs.
    #[error("unknown compression codec {0}")]
    UnknownCodec(u8),
    /// The codec exists, but this request must not use it.
    #[error("codec {} is not allowed here", .0.name())]
    CodecRefused(Compression),
    /// The compressed bytes are damaged.
    #[error("the {} stream is damaged", .0.name())]
    Decompress(Compression),
    /// The decompressed records exceed the caller's cap.
    #[error("the records exceed {bytes_max} bytes after decompression")]
    OutputTooLarge {
        /// The cap.
        bytes_max: usize,
    },
    /// A field contradicts the format.
    #[error("invalid batch: {what}")]
    Invalid {
        /// The contradiction, for people.
        what: &'static str,
    },
    /// A record inside the batch contradicts the format.
    #[error("record {index} of the batch is invalid: {what}")]
    InvalidRecord {
        /// Its place in the batch, from 0 on.
        index: i32,
        /// The contradiction, for people.
        what: &'static str,
    },
}

impl BatchError {
    pub(crate) const fn invalid(what: &'static str) -> BatchError {
        BatchError::Invalid { what }
    }
}
