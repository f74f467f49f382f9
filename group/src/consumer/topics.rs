//! What a group must know of the cluster's topics, and a fingerprint of the part that it uses.

use corduroy_record::TopicId;

/// What an assignment depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicFacts {
    /// The incarnation.
    pub id: TopicId,
    /// How many partitions it has.
    pub partitions: u32,
}

/// The topics of the cluster, as of one version of its metadata.
pub trait Topics {
    /// The topic of a name, if there is one.
    fn topic(&self, name: &str) -> Option<TopicFacts>;
    /// The name of an id, if there is such a topic.
    fn name(&self, id: TopicId) -> Option<&str>;
    /// The names that a regular expression may match: internal topics are not among them.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_>;
    /// The version of the metadata; grows with every change.
    fn version(&self) -> i64;
}

/// A hash of the topics of these names (ascending) that exist: names, incarnations and numbers of
/// partitions. 0 without any. Only ever compared with what this function made.
pub(crate) fn fingerprint<'a>(names: impl Iterator<Item = &'a str>, topics: &dyn Topics) -> i64 {
    let mut hash = Fnv::NEW;
    let mut any = false;
    for name in names {
        let Some(facts) = topics.topic(name) else {
            continue;
        };
        any = true;
        hash.write(&(name.len() as u64).to_be_bytes());
        hash.write(name.as_bytes());
        hash.write(&facts.id.bytes());
        hash.write(&facts.partitions.to_be_bytes());
    }
    match hash.0 as i64 {
        _ if !any => 0,
        // 0 means "no topics".
        0 => 1,
        hash => hash,
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): stable across versions of the compiler.
struct Fnv(u64);

impl Fnv {
    const NEW: Fnv = Fnv(0xcbf2_9ce4_8422_2325);

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
