//! The bytes of a record of a fault test: enough to know it again, and to know that not a bit of
//! it is wrong.
//!
//! ```text
//!  0  magic  "CDJ1"
//!  4  value  u64, big endian
//! 12  CRC-32C of bytes 0..12, u32, big endian
//! ```

use super::Value;

/// The length of a payload. A workload that wants larger records pads behind it with zeros.
pub const PAYLOAD_BYTES: usize = 16;
const MAGIC: &[u8; 4] = b"CDJ1";
const COUNTER_BITS: u32 = 40;
/// Writers that can be told apart in a run: 24 bits of a value.
pub const WRITERS_MAX: u32 = 1 << (64 - COUNTER_BITS);

impl Value {
    /// The `counter`th value of a writer (a process: never used again after its crash).
    pub fn of(writer: u32, counter: u64) -> Value {
        debug_assert!(writer < WRITERS_MAX && counter < 1 << COUNTER_BITS);
        Value(u64::from(writer) << COUNTER_BITS | (counter & ((1 << COUNTER_BITS) - 1)))
    }

    /// Who wrote it.
    pub fn writer(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// How many that writer had written before.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }
}

impl std::fmt::Display for Value {
    /// `w3.17`: the 18th value of writer 3.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "w{}.{}", self.writer(), self.counter())
    }
}

/// Why bytes are not a record of a fault test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    #[error("{0} bytes, where a payload has at least {PAYLOAD_BYTES}")]
    Short(usize),
    #[error("does not begin with the mark of a payload")]
    Magic,
    #[error("checksum does not match: bytes were changed")]
    Checksum,
    #[error("padding is not zero: bytes were changed")]
    Padding,
}

/// Turns a value into a record's bytes, and back.
pub struct Payload;

impl Payload {
    pub fn encode(value: Value) -> [u8; PAYLOAD_BYTES] {
        let mut bytes = [0; PAYLOAD_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..12].copy_from_slice(&value.0.to_be_bytes());
        let checksum = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Value, PayloadError> {
        let (head, padding) = bytes
            .split_first_chunk::<PAYLOAD_BYTES>()
            .ok_or(PayloadError::Short(bytes.len()))?;
        if &head[..4] != MAGIC {
            return Err(PayloadError::Magic);
        }
        let value = u64::from_be_bytes(std::array::from_fn(|i| head[4 + i]));
        if Payload::encode(Value(value)) != *head {
            return Err(PayloadError::Checksum);
        }
        if padding.iter().any(|&byte| byte != 0) {
            return Err(PayloadError::Padding);
        }
        Ok(Value(value))
    }
}

/// CRC-32C bit by bit: twelve bytes a record do not deserve a table.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL_REFLECTED: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= POLYNOMIAL_REFLECTED;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let value = Value::of(3, 17);
        assert_eq!(value.to_string(), "w3.17");
        let mut bytes = Payload::encode(value).to_vec();
        bytes.extend([0; 4]);
        assert_eq!(Payload::decode(&bytes), Ok(value));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Payload::decode(&damaged).is_err(), "bit {bit}");
        }
        assert_eq!(Payload::decode(&bytes[..15]), Err(PayloadError::Short(15)));
    }
}
