//! Kafka's five codecs, each under a hard cap on what it may put out.

use std::io::{self, Read, Write};

use bytes::Bytes;
use zstd::zstd_safe;

use crate::error::BatchError;
use crate::{lz4, snappy};

/// What a decoder may hold beside its input and its capped output: the LZ4 frame decoder's
/// buffers for blocks of 4 MiB that depend on one another are the largest.
pub const CODEC_SCRATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;
/// First output buffer of a zstd frame; grown fourfold while it is too small.
const ZSTD_OUTPUT_FIRST_BYTES: usize = 64 * 1024;

/// The codec of a batch's records. The default levels are Java's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// RFC 1952, level 6.
    Gzip,
    /// Raw blocks in xerial's framing, as Java writes them; read with and without the framing.
    Snappy,
    /// The LZ4 frame format with independent blocks of 64 KiB.
    Lz4,
    /// RFC 8878, level 3.
    Zstd,
}

impl Compression {
    /// All codecs, by code.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    /// The code in the batch's attributes, 0 to 4.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The codec of a code.
    pub const fn from_code(code: u8) -> Option<Compression> {
        match code {
            0 => Some(Compression::None),
            1 => Some(Compression::Gzip),
            2 => Some(Compression::Snappy),
            3 => Some(Compression::Lz4),
            4 => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Kafka's name, as in `compression.type`.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// The codec of Kafka's name.
    pub fn from_name(name: &str) -> Option<Compression> {
        Compression::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
    }

    /// Compresses `bytes` as Java's producer does. `None` copies.
    ///
    /// # Errors
    /// The codec's own; with memory on both sides there should be none.
    pub fn compress(self, bytes: &[u8]) -> io::Result<Bytes> {
        let out = match self {
            Compression::None => return Ok(Bytes::copy_from_slice(bytes)),
            Compression::Gzip => {
                let level = flate2::Compression::new(GZIP_LEVEL);
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(bytes)?;
                encoder.finish()?
            }
            Compression::Snappy => snappy::compress(bytes)?,
            Compression::Lz4 => lz4::compress(bytes)?,
            Compression::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL)?,
        };
        Ok(Bytes::from(out))
    }

    /// Decompresses into at most `output_bytes_max` bytes. `None` shares the input, which may be
    /// longer: nothing is put out.
    ///
    /// # Errors
    /// [`BatchError::OutputTooLarge`] as soon as the cap is passed, [`BatchError::Decompress`] for
    /// a damaged or cut stream.
    pub fn decompress(self, bytes: &Bytes, output_bytes_max: usize) -> Result<Bytes, BatchError> {
        let out = match self {
            Compression::None => return Ok(bytes.clone()),
            Compression::Gzip => {
                let decoder = flate2::read::MultiGzDecoder::new(&bytes[..]);
                read_capped(decoder, self, output_bytes_max)?
            }
            Compression::Snappy => snappy::decompress(bytes, output_bytes_max)?,
            Compression::Lz4 => {
                let frame = lz4::check_frame(bytes).ok_or(BatchError::Decompress(self))?;
                read_capped(
                    lz4_flex::frame::FrameDecoder::new(frame),
                    self,
                    output_bytes_max,
                )?
            }
            Compression::Zstd => zstd_decompress(bytes, output_bytes_max)?,
        };
        Ok(Bytes::from(out))
    }
}

/// Reads to the end, or to one byte beyond the cap.
fn read_capped(
    decoder: impl Read,
    codec: Compression,
    bytes_max: usize,
) -> Result<Vec<u8>, BatchError> {
    let mut out = Vec::new();
    let limit = (bytes_max as u64).saturating_add(1);
    match decoder.take(limit).read_to_end(&mut out) {
        _ if out.len() > bytes_max => Err(BatchError::OutputTooLarge { bytes_max }),
        Err(_damaged) => Err(BatchError::Decompress(codec)),
        Ok(_) => Ok(out),
    }
}

/// Decompresses in one go: the output is the window, so that a frame that declares a window of
/// 128 MiB costs nothing. The declared content size is only a hint.
fn zstd_decompress(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, BatchError> {
    let damaged = BatchError::Decompress(Compression::Zstd);
    // An empty input is no frame, though the library takes it for zero frames.
    if bytes.is_empty() {
        return Err(damaged);
    }
    let mut context = zstd_safe::DCtx::create();
    let mut room = ZSTD_OUTPUT_FIRST_BYTES
        .max(bytes.len().saturating_mul(4))
        .min(bytes_max);
    loop {
        let mut out = Vec::with_capacity(room);
        match context.decompress(&mut out, bytes) {
            // `with_capacity` may give more than was asked for.
            Ok(written) if written > bytes_max => {
                return Err(BatchError::OutputTooLarge { bytes_max });
            }
            Ok(_) => return Ok(out),
            Err(code) if !is_output_too_small(code) => return Err(damaged),
            Err(_) if room >= bytes_max => {
                return Err(BatchError::OutputTooLarge { bytes_max });
            }
            Err(_) => room = room.saturating_mul(4).min(bytes_max),
        }
    }
}

/// zstd returns its error codes negated in a `size_t`; this one is pinned in its `zstd_errors.h`.
fn is_output_too_small(code: zstd_safe::ErrorCode) -> bool {
    const DST_SIZE_TOO_SMALL: usize = 70;
    code == DST_SIZE_TOO_SMALL.wrapping_neg()
}
