//! zstd (RFC 8878): frames in one go, and frames read through a window.

use bytes::Bytes;
use zstd::zstd_safe;

use crate::compression::{Compression, WINDOW_BYTES};
use crate::error::BatchError;

/// First output buffer of a frame that is decompressed in one go; grown fourfold while it is too
/// small.
const OUTPUT_FIRST_BYTES: usize = 64 * 1024;

/// The largest window that [`Frames`] gives a frame, as a power of two: 8 MiB, what level 19 asks
/// for. Frames with a larger one are decompressed in one go.
const WINDOW_LOG_MAX: u32 = 23;

const DAMAGED: BatchError = BatchError::Decompress(Compression::Zstd);

// zstd returns its error codes negated in a `size_t`; these are pinned in its `zstd_errors.h`.
const WINDOW_TOO_LARGE: usize = 16;
const DST_SIZE_TOO_SMALL: usize = 70;

fn is(code: zstd_safe::ErrorCode, named: usize) -> bool {
    code == named.wrapping_neg()
}

/// Frames read one after another, piece by piece.
pub(crate) struct Frames {
    context: zstd_safe::DCtx<'static>,
    input: Bytes,
    position: usize,
    /// Whether the input so far ends with a frame.
    between: bool,
    written: usize,
    /// Everything, if a frame wanted a window that is too large.
    whole: Option<Bytes>,
}

impl Frames {
    pub(crate) fn new(input: &Bytes) -> Result<Frames, BatchError> {
        // An empty input is no frame, though the library takes it for zero frames.
        if input.is_empty() {
            return Err(DAMAGED);
        }
        let mut context = zstd_safe::DCtx::create();
        context
            .set_parameter(zstd_safe::DParameter::WindowLogMax(WINDOW_LOG_MAX))
            .map_err(|_refused| DAMAGED)?;
        Ok(Frames {
            context,
            input: input.clone(),
            position: 0,
            between: true,
            written: 0,
            whole: None,
        })
    }

    /// Puts the next piece into `window`, nothing at the end. At most `bytes_max` bytes may still
    /// come; the caller counts them.
    pub(crate) fn read(
        &mut self,
        window: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), BatchError> {
        window.clear();
        if self.whole.is_some() {
            self.read_whole(window);
            return Ok(());
        }
        window.reserve(WINDOW_BYTES);
        while window.is_empty() {
            if self.position == self.input.len() && self.between {
                return Ok(());
            }
            let mut input = zstd_safe::InBuffer {
                src: &self.input[..],
                pos: self.position,
            };
            let mut output = zstd_safe::OutBuffer::around(window);
            let hint = match self.context.decompress_stream(&mut output, &mut input) {
                Ok(hint) => hint,
                Err(code) if is(code, WINDOW_TOO_LARGE) => {
                    let bytes_max = self.written.saturating_add(bytes_max);
                    let whole = Bytes::from(decompress(&self.input, bytes_max)?);
                    self.whole = Some(whole);
                    self.read_whole(window);
                    return Ok(());
                }
                Err(_damaged) => return Err(DAMAGED),
            };
            let stuck = input.pos == self.position && output.pos() == 0;
            self.position = input.pos;
            self.between = hint == 0;
            if stuck {
                // All is read, and the frame wants more.
                return Err(DAMAGED);
            }
        }
        self.written += window.len();
        Ok(())
    }

    fn read_whole(&mut self, window: &mut Vec<u8>) {
        let rest = self
            .whole
            .as_ref()
            .and_then(|whole| whole.get(self.written..));
        let piece = rest.unwrap_or_default();
        let piece = &piece[..piece.len().min(WINDOW_BYTES)];
        window.extend_from_slice(piece);
        self.written += piece.len();
    }
}

/// Decompresses in one go: the output is the window, so that a frame that declares a window of
/// 128 MiB costs nothing. The declared content size is only a hint.
pub(crate) fn decompress(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, BatchError> {
    // An empty input is no frame, though the library takes it for zero frames.
    if bytes.is_empty() {
        return Err(DAMAGED);
    }
    let mut context = zstd_safe::DCtx::create();
    let mut room = OUTPUT_FIRST_BYTES
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
            Err(code) if !is(code, DST_SIZE_TOO_SMALL) => return Err(DAMAGED),
            Err(_) if room >= bytes_max => {
                return Err(BatchError::OutputTooLarge { bytes_max });
            }
            Err(_) => room = room.saturating_mul(4).min(bytes_max),
        }
    }
}
