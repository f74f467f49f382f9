//! The embedded protocol of type "consumer": what classic members tell each other through the
//! coordinator, and what they are told of their assignment.
//!
//! Layout (Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`; big-endian,
//! string = i16 length and UTF-8, bytes = i32 length with -1 for null, array = i32 count, partitions
//! = array of a topic string and an array of i32):
//!
//! ```text
//! subscription  i16 version, array of topic strings, bytes user data,
//!               v1+ partitions owned, v2+ i32 generation, v3+ nullable string rack
//! assignment    i16 version, partitions assigned, bytes user data
//! ```
//!
//! The bytes come from any client: a count is no reason to allocate, since each element costs input.

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_record::PartitionIndex;

use super::reconcile::normalise;
use super::topics::Topics;
use crate::records::Assignment;

/// The protocol type whose metadata this is.
pub(super) const PROTOCOL_TYPE: &str = "consumer";

/// The newest version of an assignment. All have the same layout.
const ASSIGNMENT_VERSION_MAX: i16 = 3;

/// Partitions by the name of their topic, as they came.
type Named<'a> = Vec<(&'a str, Vec<i32>)>;

/// What a classic member wants, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subscription<'a> {
    /// The version in which it was written: that of the assignment which the member can read.
    pub(super) version: i16,
    pub(super) topics: Vec<&'a str>,
    /// Empty for a member that gives everything up before it joins.
    pub(super) owned: Named<'a>,
    /// The generation in which `owned` was assigned; -1: none, or not told.
    pub(super) generation: i32,
    pub(super) rack: Option<&'a str>,
}

impl<'a> Subscription<'a> {
    /// Reads one; `None` where the bytes are something else. What newer versions add is passed over.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Subscription<'a>> {
        let mut input = Input(bytes);
        let version = input.i16().filter(|version| *version >= 0)?;
        let mut topics = Vec::new();
        for _ in 0..input.i32()? {
            topics.push(input.string()??);
        }
        input.skip_bytes()?;
        let owned = if version >= 1 {
            input.partitions()?
        } else {
            Vec::new()
        };
        let generation = if version >= 2 { input.i32()? } else { -1 };
        let rack = if version >= 3 { input.string()? } else { None };
        Some(Subscription {
            version,
            topics,
            owned,
            generation,
            rack: rack.filter(|rack| !rack.is_empty()),
        })
    }
}

/// Reads an assignment; no bytes at all are an assignment of nothing. Topics that are not there are
/// left out. `None` where the bytes are something else.
pub(super) fn decode_assignment(bytes: &[u8], topics: &dyn Topics) -> Option<Assignment> {
    if bytes.is_empty() {
        return Some(Assignment::new());
    }
    let mut input = Input(bytes);
    input.i16().filter(|version| *version >= 0)?;
    Some(by_id(&input.partitions()?, topics))
}

/// An assignment for a member that writes its subscription in `version`. Topics that are not there
/// any more are left out.
pub(super) fn encode_assignment(
    assignment: &Assignment,
    version: i16,
    topics: &dyn Topics,
) -> Bytes {
    let mut named: Vec<(&str, &[PartitionIndex])> = assignment
        .iter()
        .filter_map(|(id, partitions)| Some((topics.name(*id)?, partitions.as_slice())))
        .collect();
    named.sort_unstable();
    let mut out = BytesMut::new();
    out.put_i16(version.clamp(0, ASSIGNMENT_VERSION_MAX));
    // Counts and names are those of topics that exist: their limits are far below these types'.
    out.put_i32(named.len() as i32);
    for (name, partitions) in named {
        out.put_i16(name.len() as i16);
        out.put_slice(name.as_bytes());
        out.put_i32(partitions.len() as i32);
        for partition in partitions {
            out.put_i32(partition.get());
        }
    }
    out.put_i32(-1); // no user data
    out.freeze()
}

/// Partitions by the id of their topic; those of topics that are not there are left out.
pub(super) fn by_id(named: &[(&str, Vec<i32>)], topics: &dyn Topics) -> Assignment {
    let mut assignment = Assignment::new();
    for (name, partitions) in named {
        if let Some(facts) = topics.topic(name) {
            let partitions = partitions.iter().filter(|number| **number >= 0);
            assignment
                .entry(facts.id)
                .or_default()
                .extend(partitions.map(|number| PartitionIndex::new(*number)));
        }
    }
    normalise(&mut assignment);
    assignment
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A string that may be null.
    fn string(&mut self) -> Option<Option<&'a str>> {
        match self.i16()? {
            -1 => Some(None),
            length => {
                let bytes = self.take(usize::try_from(length).ok()?)?;
                Some(Some(std::str::from_utf8(bytes).ok()?))
            }
        }
    }

    fn skip_bytes(&mut self) -> Option<()> {
        match self.i32()? {
            -1 => Some(()),
            length => self.take(usize::try_from(length).ok()?).map(|_| ()),
        }
    }

    fn partitions(&mut self) -> Option<Named<'a>> {
        let mut named = Vec::new();
        for _ in 0..self.i32()? {
            let topic = self.string()??;
            let mut partitions = Vec::new();
            for _ in 0..self.i32()? {
                partitions.push(self.i32()?);
            }
            named.push((topic, partitions));
        }
        Some(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V0: &[u8] = b"\x00\x00\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff";
    /// Topics a and b, user data "x", owned a-0 and a-2, generation 7, rack "r".
    const V3: &[u8] = b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x01b\x00\x00\x00\x01x\
        \x00\x00\x00\x01\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\
        \x00\x00\x00\x07\x00\x01r";

    #[test]
    fn subscriptions_of_every_version_are_read() {
        let plain = Subscription {
            version: 0,
            topics: vec!["a"],
            owned: vec![],
            generation: -1,
            rack: None,
        };
        assert_eq!(Subscription::decode(V0), Some(plain));
        let whole = Subscription {
            version: 3,
            topics: vec!["a", "b"],
            owned: vec![("a", vec![0, 2])],
            generation: 7,
            rack: Some("r"),
        };
        assert_eq!(Subscription::decode(V3), Some(whole.clone()));
        let newer = [b"\x00\x09", &V3[2..], b"more"].concat();
        let read = Subscription::decode(&newer).unwrap();
        assert_eq!((read.topics, read.owned), (whole.topics, whole.owned));
    }

    #[test]
    fn damage_is_refused_without_allocation() {
        for length in 0..V3.len() {
            assert_eq!(Subscription::decode(&V3[..length]), None, "{length}");
        }
        for damaged in [
            &b"\xff\xff\x00\x00\x00\x00"[..],
            b"\x00\x00\x7f\xff\xff\xff\x00\x01a",
            b"\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff",
            b"\x00\x00\x00\x00\x00\x01\x00\x01\xff\xff\xff\xff\xff",
            b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xfe",
        ] {
            assert_eq!(Subscription::decode(damaged), None, "{damaged:?}");
        }
    }
}
