//! Frames: `{envelope length, payload length, envelope CRC, envelope, payload}`.

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_record::crc32c;

use super::message::Message;

/// Bytes before the envelope: envelope length, payload length, CRC-32C of the envelope; each a
/// little-endian u32.
pub(crate) const FRAME_HEAD_BYTES: usize = 12;
/// Largest envelope: an append of `append_entries_max` entries takes about 64 bytes for each.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 1 << 20;
/// Largest payload: the largest batch that Kafka's frame cap of 100 MiB lets in, and room.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 112 << 20;

/// Bytes from a peer are not a frame of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("envelope of {0} bytes, at most {ENVELOPE_BYTES_MAX} are taken")]
    EnvelopeTooLarge(usize),
    #[error("payload of {0} bytes, at most {PAYLOAD_BYTES_MAX} are taken")]
    PayloadTooLarge(usize),
    #[error("the envelope's checksum does not match")]
    Checksum,
    #[error("not an envelope: {0}")]
    Envelope(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the peer closed the connection")]
    Closed,
}

/// One received frame, its envelope still archived. Cheap to clone, `Send`.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) envelope: Bytes,
    pub(crate) payload: Bytes,
}

impl Frame {
    /// Validates and decodes the envelope.
    pub(crate) fn message(&self) -> Result<Message, WireError> {
        // rkyv reads aligned bytes; an envelope is small, batches lie beside it.
        let mut aligned = rkyv::util::AlignedVec::<16>::with_capacity(self.envelope.len());
        aligned.extend_from_slice(&self.envelope);
        rkyv::from_bytes::<Message, rkyv::rancor::Error>(&aligned)
            .map_err(|error| WireError::Envelope(error.to_string()))
    }

    /// Size on the wire.
    pub(crate) fn size_bytes(&self) -> usize {
        FRAME_HEAD_BYTES + self.envelope.len() + self.payload.len()
    }
}

/// Turns messages into the chunks of one vectored write.
#[derive(Default)]
pub(crate) struct FrameEncoder {
    buffer: BytesMut,
}

impl FrameEncoder {
    /// Head and envelope as one chunk; the caller sends the payload's chunks right behind it.
    pub(crate) fn encode(
        &mut self,
        message: &Message,
        payload_bytes: usize,
    ) -> Result<Bytes, WireError> {
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(WireError::PayloadTooLarge(payload_bytes));
        }
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(message)
            .map_err(|error| WireError::Envelope(error.to_string()))?;
        if archive.len() > ENVELOPE_BYTES_MAX {
            return Err(WireError::EnvelopeTooLarge(archive.len()));
        }
        self.buffer.reserve(FRAME_HEAD_BYTES + archive.len());
        self.buffer.put_u32_le(archive.len() as u32);
        self.buffer.put_u32_le(payload_bytes as u32);
        self.buffer.put_u32_le(crc32c(&archive));
        self.buffer.extend_from_slice(&archive);
        Ok(self.buffer.split().freeze())
    }
}

impl FrameEncoder {
    /// A frame without payload, as another shard of this node takes it.
    pub(crate) fn frame(&mut self, message: &Message) -> Result<Frame, WireError> {
        let chunk = self.encode(message, 0)?;
        Ok(Frame {
            envelope: chunk.slice(FRAME_HEAD_BYTES..),
            payload: Bytes::new(),
        })
    }
}

/// The lengths in a frame's head, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHead {
    pub(crate) envelope_bytes: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) crc: u32,
}

impl FrameHead {
    pub(crate) fn parse(bytes: [u8; FRAME_HEAD_BYTES]) -> Result<FrameHead, WireError> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let head = FrameHead {
            envelope_bytes: word(0) as usize,
            payload_bytes: word(4) as usize,
            crc: word(8),
        };
        if head.envelope_bytes > ENVELOPE_BYTES_MAX {
            return Err(WireError::EnvelopeTooLarge(head.envelope_bytes));
        }
        if head.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(WireError::PayloadTooLarge(head.payload_bytes));
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{AppendOutcome, AppendReply};

    fn reply() -> Message {
        Message::AppendReply(AppendReply {
            stream: 1,
            seq: 2,
            outcome: AppendOutcome::Flushed,
        })
    }

    #[test]
    fn a_message_survives_its_frame() {
        let chunk = FrameEncoder::default().encode(&reply(), 0).expect("small");
        let head = FrameHead::parse(chunk[..FRAME_HEAD_BYTES].try_into().expect("12 bytes"))
            .expect("valid");
        assert_eq!(head.envelope_bytes, chunk.len() - FRAME_HEAD_BYTES);
        let frame = Frame {
            envelope: chunk.slice(FRAME_HEAD_BYTES..),
            payload: Bytes::new(),
        };
        assert_eq!(frame.message().expect("own bytes"), reply());
    }

    #[test]
    fn hostile_envelopes_are_errors() {
        let chunk = FrameEncoder::default().encode(&reply(), 0).expect("small");
        let good = chunk.slice(FRAME_HEAD_BYTES..);
        for cut in 0..good.len() {
            let frame = Frame {
                envelope: good.slice(..cut),
                payload: Bytes::new(),
            };
            assert!(frame.message().is_err(), "cut at {cut}");
        }
        // Any flipped byte gives an error or some message, never a panic.
        for at in 0..good.len() {
            for flip in [0x01u8, 0x80, 0xff] {
                let mut bytes = good.to_vec();
                bytes[at] ^= flip;
                let _ = Frame {
                    envelope: bytes.into(),
                    payload: Bytes::new(),
                }
                .message();
            }
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused_before_a_byte_is_read() {
        let mut head = [0xff; FRAME_HEAD_BYTES];
        assert!(matches!(
            FrameHead::parse(head),
            Err(WireError::EnvelopeTooLarge(_))
        ));
        head[..4].copy_from_slice(&[0; 4]);
        assert!(matches!(
            FrameHead::parse(head),
            Err(WireError::PayloadTooLarge(_))
        ));
    }
}
