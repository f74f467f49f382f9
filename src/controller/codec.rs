//! Bytes of the controller's messages, log entries and tables.
//!
//! Law: bytes from a socket or a disk are checked in full before they are read; whatever they are,
//! the answer is a value or a [`CodecError`].

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Bytes that are not what they should be.
#[derive(Debug, ThisError)]
#[error("malformed controller bytes: {0}")]
pub struct CodecError(String);

/// Encodes a value.
pub fn encode<T>(value: &T) -> Result<Bytes, CodecError>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
{
    rkyv::to_bytes::<Error>(value)
        .map(|bytes| Bytes::from(bytes.into_vec()))
        .map_err(|error| CodecError(error.to_string()))
}

/// Decodes a value. Copies once, because the archive needs an alignment that a slice of a frame
/// does not have.
pub fn decode<T>(bytes: &[u8]) -> Result<T, CodecError>
where
    T: Archive,
    T::Archived:
        for<'a> CheckBytes<HighValidator<'a, Error>> + Deserialize<T, HighDeserializer<Error>>,
{
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<T, Error>(&aligned).map_err(|error| CodecError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::records::{Change, Command};
    use super::*;

    #[test]
    fn what_is_written_is_read_at_any_alignment() {
        let command = Command {
            request: [7; 16],
            changes: vec![Change::ProducerIdsTaken { next: 1000 }],
            reply: vec![1, 2, 3],
        };
        let bytes = encode(&command).expect("encodes");
        for pad in 0..16 {
            let mut shifted = vec![0; pad];
            shifted.extend_from_slice(&bytes);
            assert_eq!(
                decode::<Command>(&shifted[pad..]).expect("decodes"),
                command
            );
        }
    }

    #[test]
    fn rubbish_is_refused() {
        let command = Command {
            request: [7; 16],
            changes: Vec::new(),
            reply: vec![9; 100],
        };
        let bytes = encode(&command).expect("encodes");
        assert!(decode::<Command>(&[]).is_err());
        assert!(decode::<Command>(&bytes[1..]).is_err());
        assert!(decode::<Command>(&[0xff; 64]).is_err());
    }
}
