//! Snappy as Kafka carries it: raw blocks, alone or in the framing of xerial's snappy-java.
//!
//! The framing (big endian): 8 bytes of magic, a version and a lowest compatible version (u32
//! each), then blocks of a u32 length and a raw block of at most 32 KiB before compression.

use std::io;

use bytes::{Buf, Bytes};
use snap::raw;

use crate::compression::Compression;
use crate::error::BatchError;

const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const XERIAL_HEADER_BYTES: usize = 16;
const XERIAL_VERSION: u32 = 1;
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// Output bytes that one input byte can make: a copy of three bytes repeats at most 64.
const RATIO_MAX: usize = 22;

const DAMAGED: BatchError = BatchError::Decompress(Compression::Snappy);

/// Compresses into xerial's framing.
pub(crate) fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = raw::Encoder::new();
    let mut out = Vec::with_capacity(XERIAL_HEADER_BYTES + bytes.len() / 2);
    out.extend_from_slice(&XERIAL_MAGIC);
    out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
    out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
    let mut block = vec![0; raw::max_compress_len(XERIAL_BLOCK_BYTES.min(bytes.len()))];
    for chunk in bytes.chunks(XERIAL_BLOCK_BYTES) {
        let length = encoder.compress(chunk, &mut block)?;
        out.extend_from_slice(&(length as u32).to_be_bytes());
        out.extend_from_slice(&block[..length]);
    }
    Ok(out)
}

/// Decompresses either form into at most `bytes_max` bytes.
pub(crate) fn decompress(bytes: &Bytes, bytes_max: usize) -> Result<Vec<u8>, BatchError> {
    let mut blocks = Blocks::new(bytes)?;
    let mut out = Vec::new();
    while blocks.append(&mut out, bytes_max)? {}
    Ok(out)
}

/// The blocks of either form, one after another.
pub(crate) struct Blocks {
    rest: Bytes,
    framed: bool,
}

impl Blocks {
    pub(crate) fn new(bytes: &Bytes) -> Result<Blocks, BatchError> {
        let mut rest = bytes.clone();
        let framed = bytes.starts_with(&XERIAL_MAGIC);
        if framed {
            // Both versions are 1 in every writer there is; readers ignore them, and so do we.
            if rest.len() < XERIAL_HEADER_BYTES {
                return Err(DAMAGED);
            }
            rest.advance(XERIAL_HEADER_BYTES);
        } else if rest.is_empty() {
            return Err(DAMAGED);
        }
        Ok(Blocks { rest, framed })
    }

    /// Puts the next block that is not empty into `window`, nothing at the end. At most `bytes_max`
    /// bytes may still come; the caller counts them.
    pub(crate) fn read(
        &mut self,
        window: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), BatchError> {
        window.clear();
        while window.is_empty() && self.append(window, bytes_max)? {}
        Ok(())
    }

    /// Appends one block; `false` at the end.
    fn append(&mut self, out: &mut Vec<u8>, bytes_max: usize) -> Result<bool, BatchError> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        let length = if self.framed {
            if self.rest.len() < 4 {
                return Err(DAMAGED);
            }
            self.rest.get_u32() as usize
        } else {
            self.rest.len()
        };
        if length > self.rest.len() {
            return Err(DAMAGED);
        }
        append_block(out, &self.rest.split_to(length), bytes_max)?;
        Ok(true)
    }
}

/// A raw block begins with the size it claims to grow to. The claim is checked against the cap and
/// against what so many bytes can become before anything is reserved.
fn append_block(out: &mut Vec<u8>, block: &[u8], bytes_max: usize) -> Result<(), BatchError> {
    let size = raw::decompress_len(block).map_err(|_damaged| DAMAGED)?;
    if size > block.len().saturating_mul(RATIO_MAX) {
        return Err(DAMAGED);
    }
    if size > bytes_max.saturating_sub(out.len()) {
        return Err(BatchError::OutputTooLarge { bytes_max });
    }
    let from = out.len();
    out.resize(from + size, 0);
    let written = raw::Decoder::new()
        .decompress(block, &mut out[from..])
        .map_err(|_damaged| DAMAGED)?;
    if written != size {
        return Err(DAMAGED);
    }
    Ok(())
}
