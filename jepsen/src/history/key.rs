//! The name of a partition in a history: `orders/3`, or `orders/3#2` for the third topic of that
//! name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A partition of one creation of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Key {
    pub topic: Arc<str>,
    pub partition: u32,
    /// How many topics of this name were created before this one.
    pub incarnation: u32,
}

impl Key {
    pub fn new(topic: impl Into<Arc<str>>, partition: u32) -> Key {
        Key {
            topic: topic.into(),
            partition,
            incarnation: 0,
        }
    }

    pub fn of_incarnation(self, incarnation: u32) -> Key {
        Key {
            incarnation,
            ..self
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)?;
        match self.incarnation {
            0 => Ok(()),
            again => write!(f, "#{again}"),
        }
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.to_string()
    }
}

/// A key that does not look like `topic/partition` or `topic/partition#incarnation`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a partition: expected `topic/partition` or `topic/partition#incarnation`")]
pub struct KeyError(String);

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Key, KeyError> {
        text.parse()
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        let parse = || {
            let (topic, rest) = text.rsplit_once('/')?;
            let (partition, incarnation) = rest.split_once('#').unwrap_or((rest, "0"));
            Some(Key {
                topic: topic.into(),
                partition: partition.parse().ok()?,
                incarnation: incarnation.parse().ok()?,
            })
        };
        parse()
            .filter(|key| !key.topic.is_empty())
            .ok_or_else(|| KeyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_as_it_is_written() {
        for text in ["orders/3", "orders/0#2", "a.b-c/17"] {
            let key: Key = text.parse().unwrap();
            assert_eq!(key.to_string(), text);
        }
        for text in ["", "orders", "/3", "orders/x", "orders/1#", "orders/-1"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
    }
}
