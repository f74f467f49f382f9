//! Snappy as Kafka carries it: raw blocks, alone or in the framing of xerial's snappy-java.
//!
//! The framing (big endian): 8 bytes of magic, a version and a lowest compatible version (u32
//! each), then blocks of a u32 length and a raw block of at most 32 KiB before compression.

use std::io;

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
pub(crate) fn decompress(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, BatchError> {
    let mut out = Vec::new();
    if !bytes.starts_with(&XERIAL_MAGIC) {
        append_block(&mut out, bytes, bytes_max)?;
        return Ok(out);
    }
    // Both versions are 1 in every writer there is; readers ignore them, and so do we.
    let mut rest = bytes.get(XERIAL_HEADER_BYTES..).ok_or(DAMAGED)?;
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, after) = after.split_at_checked(length).ok_or(DAMAGED)?;
        append_block(&mut out, block, bytes_max)?;
        rest = after;
    }
    Ok(out)
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
