//! The four bytes before each frame.

/// Kafka's default of `socket.request.max.bytes`: 100 MiB.
pub const FRAME_BYTES_MAX: usize = 100 * 1024 * 1024;

/// Bytes of the length before a frame.
pub const FRAME_LENGTH_BYTES: usize = 4;

/// The smallest frame there is: a response header of version 0.
const FRAME_BYTES_MIN: usize = 4;

/// A length that no frame can have. The connection must be closed: there is no way to find the
/// next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {length} bytes; {FRAME_BYTES_MIN} to {bytes_max} are allowed")]
pub struct FrameError {
    /// The length as it was sent.
    pub length: i32,
    /// The limit.
    pub bytes_max: usize,
}

/// Reads the big-endian length of the frame that follows. Call it before anything is reserved for
/// the frame: what arrives on an open port need not be Kafka's protocol at all.
///
/// # Errors
/// A negative length, one below 4 or above `bytes_max`.
pub fn frame_length(
    prefix: [u8; FRAME_LENGTH_BYTES],
    bytes_max: usize,
) -> Result<usize, FrameError> {
    let length = i32::from_be_bytes(prefix);
    match usize::try_from(length) {
        Ok(bytes) if (FRAME_BYTES_MIN..=bytes_max).contains(&bytes) => Ok(bytes),
        _ => Err(FrameError { length, bytes_max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plausible_lengths_pass() {
        let length = |length: i32| frame_length(length.to_be_bytes(), 1000).ok();
        assert_eq!(length(4), Some(4));
        assert_eq!(length(1000), Some(1000));
        for refused in [0, 3, 1001, -1, i32::MAX, i32::MIN] {
            assert_eq!(length(refused), None, "{refused}");
        }
        assert!(
            frame_length(*b"GET ", FRAME_BYTES_MAX).is_err(),
            "HTTP on our port"
        );
        assert!(
            frame_length([0x16, 3, 1, 2], FRAME_BYTES_MAX).is_err(),
            "TLS on our port"
        );
    }
}
