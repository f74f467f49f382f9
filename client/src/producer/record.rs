//! What a producer is given: a record on its way to a topic.

use std::borrow::Cow;

use bytes::Bytes;

/// Bytes of a key, value or header: borrowed until the record is queued, or owned.
///
/// Made from `&str`, `&[u8]`, `String`, `Vec<u8>` and [`Bytes`].
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// The caller's.
    Borrowed(&'a [u8]),
    /// Owned or shared.
    Owned(Bytes),
}

impl AsRef<[u8]> for Payload<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Owned(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a> From<&'a str> for Payload<'a> {
    fn from(text: &'a str) -> Self {
        Payload::Borrowed(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Payload<'a> {
    fn from(text: &'a String) -> Self {
        Payload::Borrowed(text.as_bytes())
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a> From<&'a Bytes> for Payload<'a> {
    fn from(bytes: &'a Bytes) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl From<String> for Payload<'_> {
    fn from(text: String) -> Self {
        Payload::Owned(text.into())
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Owned(bytes.into())
    }
}

impl From<Bytes> for Payload<'_> {
    fn from(bytes: Bytes) -> Self {
        Payload::Owned(bytes)
    }
}

/// A record on its way to a topic.
///
/// It may borrow: [`Producer::queue`](crate::Producer::queue) copies it into its batch, so sending
/// takes no allocation per record.
#[derive(Clone, Debug)]
#[must_use = "a record goes nowhere until it is sent"]
pub struct Record<'a> {
    pub(crate) topic: Cow<'a, str>,
    pub(crate) partition: Option<i32>,
    pub(crate) timestamp: Option<i64>,
    pub(crate) key: Option<Payload<'a>>,
    pub(crate) value: Option<Payload<'a>>,
    pub(crate) headers: Vec<(Cow<'a, str>, Option<Payload<'a>>)>,
}

impl<'a> Record<'a> {
    /// A record for `topic`, without key and with a null value.
    pub fn to(topic: impl Into<Cow<'a, str>>) -> Record<'a> {
        Record {
            topic: topic.into(),
            partition: None,
            timestamp: None,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// Its key: records with the same key go to the same partition, by Kafka's murmur2 hash. An
    /// empty key is hashed as well; without a key the producer picks the partition.
    pub fn key(mut self, key: impl Into<Payload<'a>>) -> Record<'a> {
        self.key = Some(key.into());
        self
    }

    /// Its value. Without one the value is null: in a compacted topic, a tombstone for the key.
    pub fn value(mut self, value: impl Into<Payload<'a>>) -> Record<'a> {
        self.value = Some(value.into());
        self
    }

    /// Adds a header. Names may repeat; order is kept.
    pub fn header(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Payload<'a>>,
    ) -> Record<'a> {
        self.headers.push((name.into(), Some(value.into())));
        self
    }

    /// Adds a header with a null value.
    pub fn null_header(mut self, name: impl Into<Cow<'a, str>>) -> Record<'a> {
        self.headers.push((name.into(), None));
        self
    }

    /// Names the partition; the key no longer decides.
    pub fn partition(mut self, partition: i32) -> Record<'a> {
        self.partition = Some(partition);
        self
    }

    /// Its time in milliseconds since the Unix epoch. Default: now.
    pub fn timestamp(mut self, unix_millis: i64) -> Record<'a> {
        self.timestamp = Some(unix_millis);
        self
    }

    /// Upper bound of its bytes in a batch.
    pub(crate) fn size_bound(&self) -> usize {
        /// Length, attributes, timestamp delta, offset delta, key and value lengths, header count.
        const OVERHEAD_BYTES_MAX: usize = 5 + 1 + 10 + 5 + 5 + 5 + 5;
        let length = |bytes: &Option<Payload<'_>>| bytes.as_ref().map_or(0, |b| b.as_ref().len());
        OVERHEAD_BYTES_MAX
            + length(&self.key)
            + length(&self.value)
            + self
                .headers
                .iter()
                .map(|(name, value)| 10 + name.len() + length(value))
                .sum::<usize>()
    }
}
