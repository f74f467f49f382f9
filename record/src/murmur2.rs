//! Kafka's hash of record keys, so that our clients choose the partition that Java's choose.

/// MurmurHash2 (32 bits, seed `0x9747b28c`) as Kafka's Java clients compute it.
///
/// The partition of a key is `(murmur2(key) & 0x7fff_ffff) % partitions`: see
/// [`partition_for_key`].
pub fn murmur2(bytes: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const MULTIPLIER: u32 = 0x5bd1_e995;
    // Kafka's lengths are 32-bit; longer keys cannot reach the wire.
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        k ^= k >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ k.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        for (position, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * position);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^= hash >> 15;
    hash as i32
}

/// The partition that Java's default partitioner gives a key; 0 for `partitions` of 0.
///
/// An empty key hashes like any other; a record *without* a key has no fixed partition.
pub fn partition_for_key(key: &[u8], partitions: u32) -> u32 {
    let positive = (murmur2(key) & 0x7fff_ffff) as u32;
    positive.checked_rem(partitions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{murmur2, partition_for_key};

    #[test]
    fn vectors_of_the_java_client() {
        let table: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in table {
            assert_eq!(murmur2(key), hash, "{:?}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn partitions_are_in_range() {
        assert_eq!(
            partition_for_key(b"", 7),
            (murmur2(b"") & 0x7fff_ffff) as u32 % 7
        );
        assert_eq!(partition_for_key(b"x", 0), 0);
        assert_eq!(partition_for_key(b"foobar", 1), 0);
        assert!((0..100_u8).all(|key| partition_for_key(&[key], 3) < 3));
    }
}
