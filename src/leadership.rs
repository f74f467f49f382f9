//! Leadership news between nodes: who leads which partition, pushed by the leaders themselves.
//! Not in the controller's log: a failover must not wait for it.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_record::{GroupId, LeaderEpoch, NodeId, PartitionIndex, TopicId};

use crate::metadata::{LeaderInfo, LeaderUpdate};

/// Leaders in one message; a longer list is split.
pub const NEWS_LEADERS_MAX: usize = 10_000;

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct NewsEntry {
    topic: [u8; 16],
    partition: i32,
    node: i32,
    epoch: i32,
    in_sync: Vec<i32>,
}

/// Encodes news for other nodes behind the service byte `service`.
pub fn encode(service: u8, updates: &[LeaderUpdate]) -> Result<Vec<Bytes>, rkyv::rancor::Error> {
    updates
        .chunks(NEWS_LEADERS_MAX)
        .map(|chunk| {
            let entries: Vec<NewsEntry> = chunk
                .iter()
                .map(|update| NewsEntry {
                    topic: update.group.topic.bytes(),
                    partition: update.group.partition.get(),
                    node: update.info.node.get(),
                    epoch: update.info.epoch.get(),
                    in_sync: update.info.in_sync.iter().map(|n| n.get()).collect(),
                })
                .collect();
            let body = rkyv::to_bytes::<rkyv::rancor::Error>(&entries)?;
            let mut message = BytesMut::with_capacity(body.len() + 1);
            message.put_u8(service);
            message.extend_from_slice(&body);
            Ok(message.freeze())
        })
        .collect()
}

/// Decodes the news in a message, without its service byte.
pub fn decode(body: &[u8]) -> Result<Vec<LeaderUpdate>, rkyv::rancor::Error> {
    let mut aligned = rkyv::util::AlignedVec::<16>::with_capacity(body.len());
    aligned.extend_from_slice(body);
    let entries = rkyv::from_bytes::<Vec<NewsEntry>, rkyv::rancor::Error>(&aligned)?;
    Ok(entries
        .into_iter()
        .map(|entry| LeaderUpdate {
            group: GroupId {
                topic: TopicId::from_bytes(entry.topic),
                partition: PartitionIndex::new(entry.partition),
            },
            info: LeaderInfo {
                node: NodeId::new(entry.node),
                epoch: LeaderEpoch::new(entry.epoch),
                in_sync: entry.in_sync.into_iter().map(NodeId::new).collect(),
            },
        })
        .collect())
}

/// Encodes news of any length, in one answer: messages of at most [`NEWS_LEADERS_MAX`] leaders, each
/// behind its length (u32, little-endian).
pub fn encode_all(updates: &[LeaderUpdate]) -> Result<Bytes, rkyv::rancor::Error> {
    let mut all = BytesMut::new();
    for message in encode(0, updates)? {
        // Without the service byte: whoever asked knows.
        let body = message.slice(1..);
        // A message of ten thousand leaders is far below 4 GiB.
        all.put_u32_le(body.len() as u32);
        all.extend_from_slice(&body);
    }
    Ok(all.freeze())
}

/// Decodes what [`encode_all`] wrote. What is cut off at the end is left out.
pub fn decode_all(mut all: &[u8]) -> Result<Vec<LeaderUpdate>, rkyv::rancor::Error> {
    let mut updates = Vec::new();
    while let Some((length, rest)) = all.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((body, rest)) = rest.split_at_checked(length) else {
            break;
        };
        updates.extend(decode(body)?);
        all = rest;
    }
    Ok(updates)
}

/// What this node's replicas lead, as last told to the others. Lives on shard 0.
#[derive(Default)]
pub struct Led {
    led: RefCell<HashMap<GroupId, LeaderInfo>>,
}

impl Led {
    /// Takes in what one shard leads now that it has not said before.
    pub fn update(&self, gained: &[LeaderUpdate], lost: &[GroupId]) {
        let mut led = self.led.borrow_mut();
        for group in lost {
            led.remove(group);
        }
        for update in gained {
            led.insert(update.group, update.info.clone());
        }
    }

    /// Everything, for a node that has just come up.
    pub fn all(&self) -> Vec<LeaderUpdate> {
        self.led
            .borrow()
            .iter()
            .map(|(group, info)| LeaderUpdate {
                group: *group,
                info: info.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_survive_the_wire_and_rubbish_is_refused() {
        let update = LeaderUpdate {
            group: GroupId {
                topic: TopicId::from_bytes([7; 16]),
                partition: PartitionIndex::new(3),
            },
            info: LeaderInfo {
                node: NodeId::new(2),
                epoch: LeaderEpoch::new(9),
                in_sync: vec![NodeId::new(2), NodeId::new(1)],
            },
        };
        let messages = encode(2, std::slice::from_ref(&update)).expect("encodes");
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0][0], 2, "the service byte comes first");
        assert_eq!(decode(&messages[0][1..]).expect("decodes"), vec![update]);
        for cut in 1..messages[0].len() {
            // Any prefix is either refused or read as something harmless; it never panics.
            let _read = decode(&messages[0][1..cut]);
        }
        assert!(decode(&[0xff; 40]).is_err());
    }

    #[test]
    fn any_number_of_leaders_fits_one_answer() {
        for count in [0, 1, NEWS_LEADERS_MAX + 1] {
            let updates: Vec<LeaderUpdate> = (0..count)
                .map(|number| LeaderUpdate {
                    group: GroupId {
                        topic: TopicId::from_bytes([7; 16]),
                        partition: PartitionIndex::new(number as i32),
                    },
                    info: LeaderInfo {
                        node: NodeId::new(2),
                        epoch: LeaderEpoch::new(9),
                        in_sync: vec![NodeId::new(2)],
                    },
                })
                .collect();
            let answer = encode_all(&updates).expect("encodes");
            assert_eq!(decode_all(&answer).expect("decodes"), updates);
        }
        assert_eq!(decode_all(&[9, 0, 0, 0, 1]).expect("cut off"), Vec::new());
    }
}
