//! Which partition of `__consumer_offsets` coordinates a group: Kafka's rule, since tools compute it.

use corduroy_record::PartitionIndex;

/// Java's `String.hashCode`: over UTF-16 code units.
pub fn java_string_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// The partition of a group, of `partitions` (at least 1).
pub fn partition_of_group(group: &str, partitions: u32) -> PartitionIndex {
    // Kafka's `Utils.abs`: the absolute value, and 0 for the one number that has none.
    let hash = java_string_hash(group).checked_abs().unwrap_or(0);
    let partition = hash.unsigned_abs() % partitions.max(1);
    PartitionIndex::new(i32::try_from(partition).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_lie_where_kafka_puts_them() {
        // `Utils.abs("...".hashCode()) % 50`, computed by the definition of `String.hashCode`.
        for (group, hash, partition) in [
            ("", 0, 0),
            ("a", 97, 47),
            ("billing", -109_829_509, 9),
            ("polygenelubricants", i32::MIN, 0),
        ] {
            assert_eq!(java_string_hash(group), hash, "{group}");
            assert_eq!(partition_of_group(group, 50).get(), partition, "{group}");
        }
        // U+1F600 is two UTF-16 units.
        assert_eq!(java_string_hash("\u{1f600}"), 0xd83d * 31 + 0xde00);
    }
}
