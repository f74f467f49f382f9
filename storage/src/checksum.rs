//! CRC-32C (Castagnoli), fed piece by piece.

use corduroy_env::planted::{self, Bug};
use crc_fast::{CrcAlgorithm, Digest};

/// A checksum in the making.
pub(crate) struct Checksum(Digest);

impl Checksum {
    /// Starts with a salt, so that bytes of another file or incarnation never match.
    pub(crate) fn salted(salt: u64) -> Checksum {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&salt.to_le_bytes());
        Checksum(digest)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> u32 {
        // Law: a 32-bit algorithm leaves the upper half of the digest zero.
        self.0.finalize() as u32
    }
}

/// Whether bytes are what was written.
pub(crate) fn holds(found: u32, stored: u32) -> bool {
    found == stored || planted::is(Bug::TornTailAccepted)
}

/// The checksum of one slice, unsalted.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_castagnoli() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pieces_equal_the_whole_and_the_salt_counts() {
        let mut pieces = Checksum::salted(7);
        pieces.update(b"1234");
        pieces.update(b"56789");
        let mut whole = Checksum::salted(7);
        whole.update(b"123456789");
        assert_eq!(pieces.finish(), whole.finish());
        let mut other = Checksum::salted(8);
        other.update(b"123456789");
        assert_ne!(other.finish(), whole.finish());
    }
}
