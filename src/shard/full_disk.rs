//! A leader whose disk is full refuses what clients send. Where a replica in sync has room on its
//! node's disk, it shall lead instead: clients go on, and the full node follows until it has room.

use std::rc::Rc;
use std::time::Duration;

use corduroy_raft::Role;
use corduroy_record::{GroupId, NodeId};
use corduroy_storage::DiskLevel;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use tokio::sync::oneshot;
use tracing::info;

use crate::node::room;

use super::{Shard, ShardMessage};

/// How long what could not move stays before it is tried again: each try is a line in the log for
/// each partition.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Leaderships that move away at the same time.
const MOVING_MAX: usize = 32;

impl Shard {
    /// Whether this shard's disk takes what clients send.
    pub(super) fn has_room(&self) -> bool {
        self.parts.store.disk_level() != DiskLevel::Critical
    }

    /// Shard 0: whether the disk takes what clients send on every shard of this node; the one that
    /// writes is the first to notice that it does not.
    pub async fn node_has_room(&self) -> bool {
        let mut answers = Vec::with_capacity(self.handles().len());
        for handle in self.handles() {
            let (reply, answer) = oneshot::channel();
            if handle.send(ShardMessage::HasRoom(reply)).await.is_err() {
                return false;
            }
            answers.push(answer);
        }
        let answers = join_all(answers).await;
        answers.into_iter().all(|room| room == Ok(true))
    }

    /// Shard 0: the other nodes that are up and say that they have room.
    pub(super) async fn others_with_room(&self) -> Vec<NodeId> {
        let up = self.peers().into_iter();
        let up = up.filter(|node| !self.metadata().unreachable(*node));
        let asked = up.map(|node| async move { room::of(self, node).await.then_some(node) });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Moves what this shard leads to where there is room; comes back when that may be looked at
    /// again. Nothing moves where every replica
    /// in sync is on a full disk: produce is refused by name, and reads are served.
    pub(super) async fn leave_full_disk(self: Rc<Self>) {
        let roomy = self.ask_who_has_room().await;
        let moves: Vec<(GroupId, NodeId)> = {
            let partitions = self.partitions.borrow();
            let led = partitions
                .values()
                .filter(|partition| partition.replica().view().role == Role::Leader);
            led.filter_map(|partition| {
                let in_sync = partition.in_sync();
                let group = partition.group();
                Some((group, heir(group, &in_sync, &roomy)?))
            })
            .collect()
        };
        if moves.is_empty() {
            return;
        }
        let wanted = moves.len();
        let moved = stream::iter(moves)
            .map(|(group, node)| self.move_leadership(group, Some(node)))
            .buffer_unordered(MOVING_MAX)
            .filter(|moved| std::future::ready(*moved))
            .count()
            .await;
        info!(
            moved,
            wanted, "the disk is full: others with room lead instead"
        );
        if moved < wanted {
            self.env().sleep(TRY_AGAIN).await;
        }
    }

    async fn ask_who_has_room(&self) -> Vec<NodeId> {
        if self.index() == 0 {
            return self.others_with_room().await;
        }
        // Nodes talk about themselves by way of their first shards.
        let (reply, answer) = oneshot::channel();
        let Some(first) = self.handles().first() else {
            return Vec::new();
        };
        match first.send(ShardMessage::OthersWithRoom(reply)).await {
            Ok(()) => answer.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}

/// Who shall lead: in sync, with room, and for each partition of a topic another one.
fn heir(group: GroupId, in_sync: &[NodeId], roomy: &[NodeId]) -> Option<NodeId> {
    let able: Vec<NodeId> = in_sync
        .iter()
        .copied()
        .filter(|node| roomy.contains(node))
        .collect();
    let turn = usize::try_from(group.partition.get()).unwrap_or(0);
    able.get(turn.checked_rem(able.len())?).copied()
}

#[cfg(test)]
mod tests {
    use corduroy_record::{PartitionIndex, TopicId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn who_is_in_sync_and_has_room_leads_in_turns() {
        let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect::<Vec<_>>();
        let cases = [
            (0, vec![1, 2, 3], vec![2, 3], Some(2)),
            (1, vec![1, 2, 3], vec![2, 3], Some(3)),
            (2, vec![1, 2, 3], vec![2, 3], Some(2)),
            (1, vec![1, 3], vec![2, 3], Some(3)),
            (0, vec![1, 2], vec![3], None),
            (0, vec![1], vec![], None),
        ];
        for (partition, in_sync, roomy, want) in cases {
            let group = GroupId {
                topic: TopicId::new(Uuid::nil()),
                partition: PartitionIndex::new(partition),
            };
            let found = heir(group, &nodes(&in_sync), &nodes(&roomy));
            assert_eq!(
                found,
                want.map(NodeId::new),
                "{partition} {in_sync:?} {roomy:?}"
            );
        }
    }
}
