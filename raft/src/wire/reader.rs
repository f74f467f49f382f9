//! Frames out of a byte stream, within named limits.

use bytes::{Buf, Bytes, BytesMut};
use corduroy_record::crc32c;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::frame::{FRAME_HEAD_BYTES, Frame, FrameHead, WireError};

/// Bytes asked of the socket at once.
const READ_BYTES: usize = 64 << 10;
/// A payload smaller than this is copied out of the read buffer, so that a cached batch of a few
/// hundred bytes does not keep 64 KiB alive.
const COPY_BYTES_MAX: usize = 8 << 10;
/// A frame that claims more than this gets its buffer as its bytes arrive, not before.
const RESERVE_BYTES_MAX: usize = 1 << 20;

/// Reads frames. Cancel-safe: what was read stays in the buffer.
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    /// The head of the frame being read.
    head: Option<FrameHead>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        FrameReader {
            stream,
            buffer: BytesMut::with_capacity(READ_BYTES),
            head: None,
        }
    }

    /// The next frame that is already in the buffer.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, WireError> {
        let head = match self.head {
            Some(head) => head,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<FRAME_HEAD_BYTES>() else {
                    return Ok(None);
                };
                let head = FrameHead::parse(*bytes)?;
                self.buffer.advance(FRAME_HEAD_BYTES);
                self.head = Some(head);
                head
            }
        };
        if self.buffer.len() < head.envelope_bytes + head.payload_bytes {
            return Ok(None);
        }
        self.head = None;
        let envelope = self.buffer.split_to(head.envelope_bytes).freeze();
        if crc32c(&envelope) != head.crc {
            return Err(WireError::Checksum);
        }
        let payload = if head.payload_bytes == 0 {
            Bytes::new()
        } else if head.payload_bytes < COPY_BYTES_MAX {
            let copy = Bytes::copy_from_slice(&self.buffer[..head.payload_bytes]);
            self.buffer.advance(head.payload_bytes);
            copy
        } else {
            self.buffer.split_to(head.payload_bytes).freeze()
        };
        Ok(Some(Frame { envelope, payload }))
    }

    /// Waits for more bytes.
    pub(crate) async fn fill(&mut self) -> Result<(), WireError> {
        let wanted = self.head.map_or(FRAME_HEAD_BYTES, |head| {
            head.envelope_bytes + head.payload_bytes
        });
        let missing = wanted.saturating_sub(self.buffer.len());
        let step = missing.clamp(READ_BYTES, RESERVE_BYTES_MAX.max(self.buffer.len()));
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES.min(missing.max(1)) {
            self.buffer.reserve(step);
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(WireError::Closed),
            _ => Ok(()),
        }
    }

    /// The next frame.
    pub(crate) async fn next(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::FrameEncoder;
    use crate::wire::message::Message;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("runtime")
            .block_on(future)
    }

    fn stream_of(count: u64, payload: &[u8]) -> Vec<u8> {
        let mut encoder = FrameEncoder::default();
        let mut bytes = Vec::new();
        for call in 0..count {
            bytes.extend(
                encoder
                    .encode(&Message::Call { call }, payload.len())
                    .expect("small"),
            );
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        run(async {
            for payload_bytes in [0usize, 1, 100, COPY_BYTES_MAX, 300_000] {
                let payload = vec![7u8; payload_bytes];
                let bytes = stream_of(5, &payload);
                for step in [1usize, 13, 4096, bytes.len()] {
                    if bytes.len() / step > 200_000 {
                        continue;
                    }
                    let (mut near, far) = tokio::io::duplex(1 << 16);
                    let chunks = bytes.clone();
                    let writer = async move {
                        for chunk in chunks.chunks(step) {
                            tokio::io::AsyncWriteExt::write_all(&mut near, chunk)
                                .await
                                .expect("open");
                        }
                    };
                    let reader = async {
                        let mut reader = FrameReader::new(far);
                        for call in 0..5 {
                            let frame = reader.next().await.expect("frame");
                            assert_eq!(frame.message().expect("message"), Message::Call { call });
                            assert_eq!(frame.payload, payload);
                        }
                        assert!(matches!(reader.next().await, Err(WireError::Closed)));
                    };
                    futures::join!(writer, reader);
                }
            }
        });
    }

    #[test]
    fn a_flipped_envelope_is_refused() {
        run(async {
            let mut bytes = stream_of(1, &[]);
            bytes[FRAME_HEAD_BYTES] ^= 1;
            let mut reader = FrameReader::new(&bytes[..]);
            assert!(matches!(reader.next().await, Err(WireError::Checksum)));
        });
    }

    #[test]
    fn a_claimed_size_is_not_allocated_before_its_bytes_arrive() {
        run(async {
            let mut head = Vec::new();
            head.extend_from_slice(&8u32.to_le_bytes());
            head.extend_from_slice(&(100u32 << 20).to_le_bytes());
            head.extend_from_slice(&[0; 12]);
            let mut reader = FrameReader::new(&head[..]);
            assert!(matches!(reader.next().await, Err(WireError::Closed)));
            assert!(reader.buffer.capacity() <= 4 << 20);
        });
    }
}
