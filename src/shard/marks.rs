//! High watermarks of partitions that have no replica on this node, asked of their leaders: what the
//! lag of consumer groups is counted from.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use corduroy_record::{GroupId, NodeId, Offset, PartitionIndex, TopicId};
use futures::future::join_all;
use tokio::sync::oneshot;
use tracing::debug;

use crate::node::SERVICE_MARKS;

use super::{Shard, ShardMessage};

/// How long whoever asks waits for a node's answer: nobody who scrapes metrics waits long.
const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// Partitions in one question; what is beyond it goes into further ones.
const PARTITIONS_MAX: usize = 10_000;
/// A topic's id, and the partition (big endian).
const QUESTION_BYTES: usize = 16 + 4;
/// The answer for a partition that is not led there.
const UNKNOWN: i64 = -1;

impl Shard {
    /// Shard 0: what the leaders of partitions say of their high watermarks. Those of which nobody
    /// says anything in time are not in the answer.
    pub(super) async fn ask_marks(
        self: Rc<Self>,
        groups: Vec<GroupId>,
    ) -> HashMap<GroupId, Offset> {
        let mut by_leader: BTreeMap<NodeId, Vec<GroupId>> = BTreeMap::new();
        for group in groups {
            if let Some(leader) = self.metadata().leader(group) {
                by_leader.entry(leader.node).or_default().push(group);
            }
        }
        let shard = &*self;
        let questions = by_leader.iter().flat_map(|(node, groups)| {
            let chunks = groups.chunks(PARTITIONS_MAX);
            chunks.map(move |chunk| shard.ask_marks_of(*node, chunk))
        });
        join_all(questions).await.into_iter().flatten().collect()
    }

    async fn ask_marks_of(&self, node: NodeId, groups: &[GroupId]) -> Vec<(GroupId, Offset)> {
        if node == self.node() {
            let marks = self.own_marks(groups).await;
            return groups.iter().copied().zip(marks).filter(known).collect();
        }
        if self.metadata().unreachable(node) {
            return Vec::new();
        }
        let mut request = BytesMut::with_capacity(1 + groups.len() * QUESTION_BYTES);
        request.put_u8(SERVICE_MARKS);
        for group in groups {
            request.put_slice(&group.topic.bytes());
            request.put_i32(group.partition.get());
        }
        match self.raft().call(node, request.freeze(), ANSWER_WAIT).await {
            Ok(answer) => read_answer(groups, answer),
            Err(error) => {
                debug!(%node, %error, "a node does not say its high watermarks");
                Vec::new()
            }
        }
    }

    /// Shard 0: the answer to another node's question.
    pub async fn answer_marks(&self, request: Bytes) -> Bytes {
        let Some(groups) = read_question(&request) else {
            return Bytes::new();
        };
        let marks = self.own_marks(&groups).await;
        let mut answer = BytesMut::with_capacity(marks.len() * 8);
        for mark in marks {
            answer.put_i64(mark.get());
        }
        answer.freeze()
    }

    /// High watermarks of partitions that this shard leads, in order. Asked without a read barrier:
    /// it is for metrics, and a barrier would wake every group that sleeps.
    pub(super) fn led_marks(&self, groups: &[GroupId]) -> Vec<Option<Offset>> {
        let mark = |group: &GroupId| {
            let partition = self.partition(*group)?;
            partition
                .is_leader()
                .then(|| partition.watermarks().high_watermark)
        };
        groups.iter().map(mark).collect()
    }

    /// High watermarks of partitions that this node leads, in order; [`UNKNOWN`] for the others.
    async fn own_marks(&self, groups: &[GroupId]) -> Vec<Offset> {
        let mut jobs: BTreeMap<u16, (Vec<usize>, Vec<GroupId>)> = BTreeMap::new();
        for (place, group) in groups.iter().enumerate() {
            let job = jobs.entry(self.owner(*group)).or_default();
            job.0.push(place);
            job.1.push(*group);
        }
        let asked = jobs
            .into_iter()
            .map(|(owner, (places, groups))| async move {
                let (reply, answer) = oneshot::channel();
                let message = ShardMessage::LedMarks(groups, reply);
                let handle = self.handles().get(usize::from(owner));
                let sent = match handle {
                    Some(handle) => handle.send(message).await.is_ok(),
                    None => false,
                };
                let found = match sent {
                    true => answer.await.unwrap_or_default(),
                    false => Vec::new(),
                };
                (places, found)
            });
        let mut marks = vec![Offset::new(UNKNOWN); groups.len()];
        for (places, found) in join_all(asked).await {
            for (place, found) in places.into_iter().zip(found) {
                if let (Some(mark), Some(found)) = (marks.get_mut(place), found) {
                    *mark = found;
                }
            }
        }
        marks
    }
}

/// Partitions of a question, with its service byte in front. `None`: it is none.
fn read_question(request: &[u8]) -> Option<Vec<GroupId>> {
    let (_, body) = request.split_first()?;
    if body.len() > PARTITIONS_MAX * QUESTION_BYTES {
        return None;
    }
    let groups = body.chunks(QUESTION_BYTES).map(|entry| {
        let (topic, partition) = entry.split_first_chunk::<16>()?;
        Some(GroupId {
            topic: TopicId::from_bytes(*topic),
            partition: PartitionIndex::new(i32::from_be_bytes(partition.try_into().ok()?)),
        })
    });
    groups.collect()
}

/// An answer of another length is none: an older node does not know the question.
fn read_answer(groups: &[GroupId], mut answer: Bytes) -> Vec<(GroupId, Offset)> {
    if answer.len() != groups.len() * 8 {
        return Vec::new();
    }
    let marks = groups
        .iter()
        .map(|group| (*group, Offset::new(answer.get_i64())));
    marks.filter(known).collect()
}

fn known((_, mark): &(GroupId, Offset)) -> bool {
    mark.get() > UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Vec<GroupId> {
        let group = |topic, partition| GroupId {
            topic: TopicId::from_bytes([topic; 16]),
            partition: PartitionIndex::new(partition),
        };
        vec![group(1, 0), group(1, 7), group(9, i32::MAX)]
    }

    #[test]
    fn answers_of_the_wrong_length_are_none() {
        let mut answer = BytesMut::new();
        for mark in [5, UNKNOWN, 0] {
            answer.put_i64(mark);
        }
        let groups = groups();
        let found = read_answer(&groups, answer.clone().freeze());
        assert_eq!(
            found,
            [(groups[0], Offset::new(5)), (groups[2], Offset::new(0))],
            "whom nobody leads there is left out"
        );
        answer.put_u8(0);
        assert_eq!(read_answer(&groups, answer.freeze()), []);
        assert_eq!(read_answer(&groups, Bytes::new()), []);
    }

    #[test]
    fn questions_are_read_as_they_were_asked() {
        let mut request = BytesMut::new();
        request.put_u8(SERVICE_MARKS);
        for group in groups() {
            request.put_slice(&group.topic.bytes());
            request.put_i32(group.partition.get());
        }
        assert_eq!(read_question(&request), Some(groups()));
        request.put_u8(0);
        assert_eq!(read_question(&request), None, "a part of an entry");
        assert_eq!(read_question(&[]), None);
    }
}
