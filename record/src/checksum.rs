//! CRC-32C (Castagnoli), the checksum of record batches and of our own formats.

/// CRC-32C of `bytes`, with hardware instructions where the machine has them.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn check_values() {
        // The catalogue's check value, and RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b""), 0);
    }
}
