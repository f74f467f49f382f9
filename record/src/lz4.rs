//! The LZ4 frame as Kafka writes it: independent blocks of 64 KiB, no checksums but the header's.

use std::io::{self, Write};

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
const VERSION: u8 = 0b01;
/// Set in a block's size if its bytes are stored as they are.
const BLOCK_STORED: u32 = 1 << 31;

/// Compresses into one frame.
pub(crate) fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes)?;
    // An empty write emits no header; the frame still needs one.
    encoder.flush()?;
    encoder.finish().map_err(io::Error::from)
}

/// Walks the frame's block lengths without decompressing. `Some(frame)` if it is one whole frame
/// of the standard format (not the legacy one) and nothing else.
///
/// The decoder alone takes a frame cut between two blocks for a complete one.
pub(crate) fn check_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (&[flags, _block_descriptor], rest) = rest.split_first_chunk::<2>()?;
    if *magic != MAGIC || flags >> 6 != VERSION {
        return None;
    }
    let has = |bit: u8| flags & (1 << bit) != 0;
    let content_size_bytes = if has(3) { 8 } else { 0 };
    let dictionary_bytes = if has(0) { 4 } else { 0 };
    let header_checksum_bytes = 1;
    let mut rest = rest.get(content_size_bytes + dictionary_bytes + header_checksum_bytes..)?;
    loop {
        let (size, after) = rest.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size);
        if size == 0 {
            let content_checksum_bytes = if has(2) { 4 } else { 0 };
            return (after.len() == content_checksum_bytes).then_some(bytes);
        }
        let block_checksum_bytes = if has(4) { 4 } else { 0 };
        rest = after.get((size & !BLOCK_STORED) as usize + block_checksum_bytes..)?;
    }
}
