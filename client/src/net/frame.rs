//! Frames on a socket: four bytes of length, then that many bytes.

use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Largest answer that is read. A broker sends at most `fetch.max.bytes` and one batch more.
pub(super) const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Bytes that are reserved at once on the word of a length prefix; more follow as they arrive.
const RESERVE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Slices per `writev`.
const WRITE_SLICES_MAX: usize = 64;

/// Reads one frame, without its length. `Ok(None)` = the peer closed between two frames.
pub(super) async fn read<R>(reader: &mut R, buffer: &mut BytesMut) -> io::Result<Option<Bytes>>
where
    R: AsyncRead + Unpin,
{
    const LENGTH_BYTES: usize = 4;
    if !fill(reader, buffer, LENGTH_BYTES).await? {
        return if buffer.is_empty() {
            Ok(None)
        } else {
            Err(cut())
        };
    }
    let length = i32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let length = usize::try_from(length)
        .ok()
        .filter(|length| (LENGTH_BYTES..=ANSWER_BYTES_MAX).contains(length))
        .ok_or_else(|| {
            let what = format!("an answer of {length} bytes; is this a Kafka listener?");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
    buffer.advance(LENGTH_BYTES);
    if !fill(reader, buffer, length).await? {
        return Err(cut());
    }
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Reads until `buffer` holds at least `bytes`. `false` = the peer closed first.
async fn fill<R>(reader: &mut R, buffer: &mut BytesMut, bytes: usize) -> io::Result<bool>
where
    R: AsyncRead + Unpin,
{
    const READ_AHEAD_BYTES: usize = 16 * 1024;
    while buffer.len() < bytes {
        let missing = bytes - buffer.len();
        buffer.reserve(missing.clamp(READ_AHEAD_BYTES, RESERVE_BYTES_MAX));
        if reader.read_buf(buffer).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn cut() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection was closed within an answer",
    )
}

/// Writes all chunks, in order, without joining them.
pub(super) async fn write<W>(writer: &mut W, chunks: &mut [Bytes]) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut from = 0;
    loop {
        while chunks.get(from).is_some_and(|chunk| chunk.is_empty()) {
            from += 1;
        }
        if from == chunks.len() {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
        let mut used = 0;
        for (slice, chunk) in slices.iter_mut().zip(&chunks[from..]) {
            *slice = IoSlice::new(chunk);
            used += 1;
        }
        let mut written = writer.write_vectored(&slices[..used]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while written > 0 {
            let step = written.min(chunks[from].len());
            chunks[from].advance(step);
            written -= step;
            if chunks[from].is_empty() {
                from += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        futures::executor::block_on(future)
    }

    #[test]
    fn frames_are_cut_out_of_the_stream() {
        let mut stream: &[u8] = &[0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 5, 5, 6, 7, 8, 9];
        let mut buffer = BytesMut::new();
        let mut next = || run(read(&mut stream, &mut buffer)).expect("valid");
        assert_eq!(next().as_deref(), Some(&[1, 2, 3, 4][..]));
        assert_eq!(next().as_deref(), Some(&[5, 6, 7, 8, 9][..]));
        assert_eq!(next(), None);
    }

    #[test]
    fn hostile_lengths_and_cut_frames_are_refused() {
        for bytes in [
            &b"HTTP/1.1 400"[..],
            &[255, 255, 255, 255, 0],
            &[0, 0, 0, 9, 1],
            &[0, 0],
        ] {
            let mut stream = bytes;
            assert!(
                run(read(&mut stream, &mut BytesMut::new())).is_err(),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn chunks_are_written_in_order() {
        let mut chunks: Vec<Bytes> = (0..200u8)
            .map(|i| Bytes::from(vec![i; i as usize]))
            .collect();
        let expected: Vec<u8> = chunks.concat();
        let mut out = Vec::new();
        run(write(&mut out, &mut chunks)).expect("a vector takes all");
        assert_eq!(out, expected);
    }
}
