//! Zigzag variable-length integers of the record format (as in Protocol Buffers).

use bytes::{Buf, Bytes};

use crate::error::BatchError;

const OVERFLOW: BatchError = BatchError::invalid("a variable-length number is too long");
const CUT: BatchError = BatchError::invalid("a record ends inside a number");

/// Appends a zigzag number (1 to 10 bytes).
pub(crate) fn put(out: &mut Vec<u8>, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The bytes that [`put`] appends.
pub(crate) fn size(value: i64) -> usize {
    let bits = 64 - zigzag(value).leading_zeros().min(63) as usize;
    bits.div_ceil(7)
}

/// Takes a zigzag number of up to 64 bits.
pub(crate) fn take_i64(bytes: &mut Bytes) -> Result<i64, BatchError> {
    let mut value = 0_u64;
    for position in 0..10 {
        if !bytes.has_remaining() {
            return Err(CUT);
        }
        let byte = bytes.get_u8();
        if position == 9 && byte > 1 {
            return Err(OVERFLOW);
        }
        value |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            return Ok(((value >> 1) as i64) ^ -((value & 1) as i64));
        }
    }
    Err(OVERFLOW)
}

/// Takes a zigzag number that must fit 32 bits.
pub(crate) fn take_i32(bytes: &mut Bytes) -> Result<i32, BatchError> {
    i32::try_from(take_i64(bytes)?).map_err(|_out_of_range| OVERFLOW)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let table: [(i64, &[u8]); 8] = [
            (0, &[0]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[0x7e]),
            (64, &[0x80, 0x01]),
            (-65, &[0x81, 0x01]),
            (i64::from(i32::MAX), &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (
                i64::MIN,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            ),
        ];
        for (value, bytes) in table {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, bytes, "{value}");
            assert_eq!(size(value), bytes.len(), "{value}");
            assert_eq!(take_i64(&mut Bytes::copy_from_slice(bytes)), Ok(value));
        }
    }

    #[test]
    fn refuses_what_is_cut_or_too_long() {
        let take = |bytes: &'static [u8]| take_i64(&mut Bytes::from_static(bytes));
        assert_eq!(take(&[]), Err(CUT));
        assert_eq!(take(&[0x80]), Err(CUT));
        assert_eq!(take(&[0xff; 11]), Err(OVERFLOW));
        let too_large = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(take(too_large), Err(OVERFLOW));
        let beyond_i32 = Bytes::from_static(&[0x80, 0x80, 0x80, 0x80, 0x10]);
        assert_eq!(take_i32(&mut beyond_i32.clone()), Err(OVERFLOW));
    }
}
