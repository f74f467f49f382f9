//! What members tell each other through the coordinator: Kafka's ConsumerProtocolSubscription and
//! ConsumerProtocolAssignment, behind their version numbers. Pure.
//!
//! Layout (big-endian; string = i16 length + UTF-8; bytes = i32 length, -1 = null; array = i32
//! count; partitions = array of (topic string, array of i32)):
//! ```text
//! subscription  i16 version, array of topic strings, bytes user_data,
//!               v1+ partitions owned, v2+ i32 generation, v3+ nullable string rack
//! assignment    i16 version, partitions assigned, bytes user_data
//! ```
//! The bytes come from other members, whatever client wrote them: they are read within the bytes
//! that are there, and a count that these can't hold is refused before anything is allocated.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::config::Strategy;
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;

/// Newest version of a subscription that this client writes; of a newer one it reads this part.
const SUBSCRIPTION_VERSION: i16 = 3;

/// All versions of an assignment have the same layout.
const ASSIGNMENT_VERSION: i16 = 0;

/// What a member wants, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subscription {
    pub(super) topics: BTreeSet<Arc<str>>,
    /// Empty for a member that gives everything up before it rejoins.
    pub(super) owned: BTreeSet<TopicPartition>,
    /// The generation in which `owned` was assigned, -1 = none.
    pub(super) generation: i32,
}

/// What the sticky strategy's members remember of their last assignment, since they have given it
/// up when they rejoin: Kafka's StickyAssignorUserData (partitions, v1+ i32 generation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Previous {
    pub(super) partitions: BTreeSet<TopicPartition>,
    /// -1 = none.
    pub(super) generation: i32,
}

impl Default for Previous {
    fn default() -> Previous {
        Previous {
            partitions: BTreeSet::new(),
            generation: -1,
        }
    }
}

impl Subscription {
    pub(super) fn encode(&self, strategy: Strategy, previous: &Previous) -> Bytes {
        let mut out = BytesMut::new();
        out.put_i16(SUBSCRIPTION_VERSION);
        out.put_i32(self.topics.len() as i32);
        for topic in &self.topics {
            put_string(&mut out, topic);
        }
        let mut user_data = BytesMut::new();
        if strategy == Strategy::Sticky {
            put_partitions(&mut user_data, &previous.partitions);
            user_data.put_i32(previous.generation);
        } else {
            // Java's cooperative-sticky assignor looks for the generation here as well, since
            // version 1 has no field for it.
            user_data.put_i32(self.generation);
        }
        out.put_i32(user_data.len() as i32);
        out.put_slice(&user_data);
        put_partitions(&mut out, &self.owned);
        out.put_i32(self.generation);
        out.put_i16(-1); // no rack
        out.freeze()
    }

    /// `strategy` is the one that the group has chosen: what a member had comes by another way under
    /// the sticky one.
    ///
    /// # Errors
    /// Malformed.
    pub(super) fn decode(bytes: &[u8], strategy: Option<Strategy>) -> Result<Subscription, Error> {
        let mut input = Input(bytes);
        let version = input.i16()?;
        let mut topics = BTreeSet::new();
        for _ in 0..input.count(2)? {
            topics.insert(input.string()?.into());
        }
        let user_data = input.bytes()?;
        let owned = if version >= 1 {
            input.partitions()?
        } else {
            BTreeSet::new()
        };
        if strategy == Some(Strategy::Sticky) {
            let previous = Previous::decode(user_data)?;
            return Ok(Subscription {
                topics,
                owned: previous.partitions,
                generation: previous.generation,
            });
        }
        let generation = if version >= 2 {
            input.i32()?
        } else {
            user_data
                .first_chunk()
                .map_or(-1, |bytes| i32::from_be_bytes(*bytes))
        };
        Ok(Subscription {
            topics,
            owned,
            generation,
        })
    }
}

impl Previous {
    fn decode(user_data: &[u8]) -> Result<Previous, Error> {
        // A member that was never assigned anything may send nothing.
        if user_data.is_empty() {
            return Ok(Previous::default());
        }
        let mut input = Input(user_data);
        Ok(Previous {
            partitions: input.partitions()?,
            // Version 0 ends before it, and nothing says which version this is.
            generation: input.i32().unwrap_or(-1),
        })
    }
}

pub(super) fn encode_assignment(assigned: &BTreeSet<TopicPartition>) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(ASSIGNMENT_VERSION);
    put_partitions(&mut out, assigned);
    out.put_i32(-1); // no user data
    out.freeze()
}

/// No bytes at all are an assignment of nothing: so a coordinator answers for a member that the
/// leader left out.
///
/// # Errors
/// Malformed.
pub(crate) fn decode_assignment(bytes: &[u8]) -> Result<BTreeSet<TopicPartition>, Error> {
    if bytes.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut input = Input(bytes);
    input.i16()?;
    input.partitions()
}

fn put_string(out: &mut BytesMut, text: &str) {
    // Topic names have 249 characters at most.
    out.put_i16(text.len() as i16);
    out.put_slice(text.as_bytes());
}

fn put_partitions(out: &mut BytesMut, partitions: &BTreeSet<TopicPartition>) {
    // Ordered by topic: each topic is one run.
    let mut runs: Vec<(&Arc<str>, Vec<i32>)> = Vec::new();
    for at in partitions {
        match runs.last_mut() {
            Some((topic, run)) if **topic == at.topic => run.push(at.partition),
            _ => runs.push((&at.topic, vec![at.partition])),
        }
    }
    out.put_i32(runs.len() as i32);
    for (topic, run) in runs {
        put_string(out, topic);
        out.put_i32(run.len() as i32);
        for partition in run {
            out.put_i32(partition);
        }
    }
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn short() -> Error {
        Error::new(
            ErrorKind::Malformed,
            "the subscription or assignment of a group's member ends too early",
        )
    }

    fn i16(&mut self) -> Result<i16, Error> {
        self.0.try_get_i16().map_err(|_| Input::short())
    }

    fn i32(&mut self) -> Result<i32, Error> {
        self.0.try_get_i32().map_err(|_| Input::short())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(Input::short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The length of an array whose elements take at least `element_bytes` each.
    fn count(&mut self, element_bytes: usize) -> Result<usize, Error> {
        let count = usize::try_from(self.i32()?).unwrap_or(0);
        if count > self.0.len() / element_bytes {
            return Err(Input::short());
        }
        Ok(count)
    }

    fn string(&mut self) -> Result<&'a str, Error> {
        let length = usize::try_from(self.i16()?).map_err(|_| Input::short())?;
        std::str::from_utf8(self.take(length)?).map_err(|error| {
            Error::new(ErrorKind::Malformed, "a topic's name is not UTF-8").with_source(error)
        })
    }

    /// Null counts as empty.
    fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = usize::try_from(self.i32()?).unwrap_or(0);
        self.take(length)
    }

    fn partitions(&mut self) -> Result<BTreeSet<TopicPartition>, Error> {
        let mut partitions = BTreeSet::new();
        for _ in 0..self.count(6)? {
            let topic: Arc<str> = self.string()?.into();
            for _ in 0..self.count(4)? {
                partitions.insert(TopicPartition::new(topic.clone(), self.i32()?));
            }
        }
        Ok(partitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(all: &[(&str, i32)]) -> BTreeSet<TopicPartition> {
        all.iter()
            .map(|(topic, partition)| TopicPartition::new(*topic, *partition))
            .collect()
    }

    fn subscription() -> Subscription {
        Subscription {
            topics: ["a".into(), "b".into()].into(),
            owned: set(&[("a", 0), ("a", 2), ("b", 1)]),
            generation: 7,
        }
    }

    fn whole() -> Bytes {
        subscription().encode(Strategy::Range, &Previous::default())
    }

    #[test]
    fn a_sticky_member_tells_what_it_had() {
        let previous = Previous {
            partitions: set(&[("t", 5)]),
            generation: 6,
        };
        let wish = Subscription {
            topics: ["t".into()].into(),
            owned: set(&[]),
            generation: 7,
        };
        let bytes = wish.encode(Strategy::Sticky, &previous);
        let user_data = [
            &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5][..],
            &[0, 0, 0, 6],
        ]
        .concat();
        assert_eq!(bytes[9..13], [0, 0, 0, 19]);
        assert_eq!(bytes[13..32], user_data);
        let read = Subscription::decode(&bytes, Some(Strategy::Sticky)).expect("whole");
        assert_eq!((read.owned, read.generation), (set(&[("t", 5)]), 6));
        // Under another strategy that is nobody's business.
        let read = Subscription::decode(&bytes, Some(Strategy::Range)).expect("whole");
        assert_eq!(read, wish);
        // Version 0 of the user data has no generation; a newcomer has none at all.
        let old = Previous::decode(&user_data[..15]).expect("version 0");
        assert_eq!((old.partitions, old.generation), (set(&[("t", 5)]), -1));
        assert_eq!(Previous::decode(&[]).expect("none"), Previous::default());
        assert!(Previous::decode(&user_data[..12]).is_err());
    }

    #[test]
    fn a_subscription_has_kafkas_bytes() {
        let bytes = Subscription {
            topics: ["t".into()].into(),
            owned: set(&[("t", 5)]),
            generation: 2,
        }
        .encode(Strategy::Range, &Previous::default());
        let expected = [
            &[0, 3][..],
            &[0, 0, 0, 1, 0, 1, b't'],
            &[0, 0, 0, 4, 0, 0, 0, 2],
            &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5],
            &[0, 0, 0, 2],
            &[0xff, 0xff],
        ]
        .concat();
        assert_eq!(&bytes[..], expected);
    }

    #[test]
    fn an_assignment_has_kafkas_bytes() {
        let bytes = encode_assignment(&set(&[("t", 5), ("t", 6)]));
        let expected = [
            &[0, 0][..],
            &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 6],
            &[0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(&bytes[..], expected);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let read = Subscription::decode(&whole(), None).expect("whole");
        assert_eq!(read, subscription());
        let assigned = set(&[("a", 0), ("b", 3)]);
        let read = decode_assignment(&encode_assignment(&assigned)).expect("whole");
        assert_eq!(read, assigned);
        assert_eq!(decode_assignment(&[]).expect("nothing"), set(&[]));
    }

    #[test]
    fn older_versions_have_less_and_newer_ones_more() {
        let oldest = [0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
        let read = Subscription::decode(&oldest, None).expect("version 0");
        assert_eq!(
            (read.topics.len(), read.owned.len(), read.generation),
            (1, 0, -1)
        );
        // Version 1 carries the generation as user data.
        let mut first = vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 9];
        first.extend([0, 0, 0, 0]);
        assert_eq!(
            Subscription::decode(&first, None)
                .expect("version 1")
                .generation,
            9
        );
        let mut newer = whole().to_vec();
        newer[1] = 9;
        newer.extend([1, 2, 3]);
        assert_eq!(
            Subscription::decode(&newer, None).expect("newer"),
            subscription()
        );
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let whole = whole();
        // The rack at the end is not looked at.
        for length in 0..whole.len() - 2 {
            let cut = Subscription::decode(&whole[..length], None);
            assert!(cut.is_err(), "cut at {length}");
        }
        let endless = [0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0];
        assert!(decode_assignment(&endless).is_err());
        assert!(Subscription::decode(&endless, None).is_err());
    }
}
