//! Kafka's five codecs, each under a hard cap on what it may put out.

use std::io::{self, Read, Write};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};

use crate::error::BatchError;
use crate::{lz4, snappy, zstandard};

/// What a decoder may hold beside its input and its capped output: the LZ4 frame decoder's
/// buffers for blocks of 4 MiB that depend on one another are the largest.
pub const CODEC_SCRATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

/// What a [`Decompressor`] hands out at a time, about: it stays in a core's own cache.
pub(crate) const WINDOW_BYTES: usize = 64 * 1024;

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
            Compression::Zstd => zstandard::decompress(bytes, output_bytes_max)?,
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

/// Decompresses piece by piece, without ever holding the whole output: for work that reads it once.
pub(crate) struct Decompressor {
    codec: Compression,
    stream: Stream,
    window: Vec<u8>,
    /// Bytes that may still come out.
    rest: usize,
    output_bytes_max: usize,
}

enum Stream {
    Gzip(Box<flate2::bufread::MultiGzDecoder<Reader<Bytes>>>),
    Snappy(snappy::Blocks),
    Lz4(Box<lz4_flex::frame::FrameDecoder<Reader<Bytes>>>),
    Zstd(zstandard::Frames),
}

impl Decompressor {
    /// `None` for the codec that is none.
    ///
    /// # Errors
    /// [`BatchError::Decompress`] if the beginning tells already that the stream is damaged.
    pub(crate) fn new(
        codec: Compression,
        bytes: &Bytes,
        output_bytes_max: usize,
    ) -> Result<Option<Decompressor>, BatchError> {
        let reader = || bytes.clone().reader();
        let stream = match codec {
            Compression::None => return Ok(None),
            Compression::Gzip => {
                Stream::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(reader())))
            }
            Compression::Snappy => Stream::Snappy(snappy::Blocks::new(bytes)?),
            Compression::Lz4 => {
                lz4::check_frame(bytes).ok_or(BatchError::Decompress(codec))?;
                Stream::Lz4(Box::new(lz4_flex::frame::FrameDecoder::new(reader())))
            }
            Compression::Zstd => Stream::Zstd(zstandard::Frames::new(bytes)?),
        };
        Ok(Some(Decompressor {
            codec,
            stream,
            window: Vec::new(),
            rest: output_bytes_max,
            output_bytes_max,
        }))
    }

    /// The next piece of the output; empty at its end.
    ///
    /// # Errors
    /// As [`Compression::decompress`].
    pub(crate) fn read(&mut self) -> Result<&[u8], BatchError> {
        let window = &mut self.window;
        let bytes_max = self.output_bytes_max;
        let damaged = |_damaged: io::Error| BatchError::Decompress(self.codec);
        let read = match &mut self.stream {
            Stream::Gzip(stream) => read_window(stream, window).map_err(damaged),
            Stream::Lz4(stream) => read_window(stream, window).map_err(damaged),
            Stream::Snappy(blocks) => blocks.read(window, self.rest),
            Stream::Zstd(frames) => frames.read(window, self.rest),
        };
        read.map_err(|error| match error {
            // They know what is left of the cap.
            BatchError::OutputTooLarge { .. } => BatchError::OutputTooLarge { bytes_max },
            error => error,
        })?;
        self.rest = self
            .rest
            .checked_sub(self.window.len())
            .ok_or(BatchError::OutputTooLarge { bytes_max })?;
        Ok(&self.window)
    }
}

/// Fills the window; it is shorter, or empty, only at the end of the stream.
fn read_window(stream: &mut impl Read, window: &mut Vec<u8>) -> io::Result<()> {
    window.clear();
    stream.take(WINDOW_BYTES as u64).read_to_end(window)?;
    Ok(())
}
