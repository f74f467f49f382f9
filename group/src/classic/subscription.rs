//! The topics in a member's metadata of the "consumer" protocol.
//!
//! `ConsumerProtocolSubscription`: version (i16), topics (i32 count, each an i16 length and UTF-8
//! bytes), then user data and what later versions added; all integers big-endian. Every version
//! begins with version 0, so its part alone is read.

use std::collections::BTreeSet;

/// The protocol type whose metadata this is.
pub(super) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// Adds the topics of one subscription to `topics`; `None` where the bytes are something else.
pub(super) fn add_topics(mut bytes: &[u8], topics: &mut BTreeSet<String>) -> Option<()> {
    let version = i16::from_be_bytes(take(&mut bytes)?);
    if version < 0 {
        return None;
    }
    let count = i32::from_be_bytes(take(&mut bytes)?);
    // A null array is -1. The count is no reason to allocate: each topic costs input bytes.
    for _ in 0..count.max(0) {
        let length = usize::try_from(i16::from_be_bytes(take(&mut bytes)?)).ok()?;
        let (name, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let name = std::str::from_utf8(name).ok()?;
        if !topics.contains(name) {
            topics.insert(name.to_owned());
        }
    }
    Some(())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(bytes: &[u8]) -> Option<Vec<String>> {
        let mut found = BTreeSet::new();
        add_topics(bytes, &mut found).map(|()| found.into_iter().collect())
    }

    #[test]
    fn topics_of_every_version_are_read_and_damage_is_refused() {
        // Version 1 as clients send it: two topics, null user data, no owned partitions.
        let whole = b"\x00\x01\x00\x00\x00\x02\x00\x01b\x00\x01a\xff\xff\xff\xff\x00\x00\x00\x00";
        assert_eq!(topics(whole), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(topics(b"\x00\x00\x00\x00\x00\x00"), Some(vec![]));
        for damaged in [
            &b""[..],
            b"\x00",
            b"\xff\xff\x00\x00\x00\x00",
            b"\x00\x00\x7f\xff\xff\xff\x00\x01a",
            b"\x00\x00\x00\x00\x00\x01\xff\xff",
            b"\x00\x00\x00\x00\x00\x01\x00\x02a",
            b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
        ] {
            assert_eq!(topics(damaged), None, "{damaged:?}");
        }
    }
}
