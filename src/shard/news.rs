//! Leadership news: what this shard's replicas lead, told to the node's other shards and, by
//! shard 0, to the other nodes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_raft::Role;
use corduroy_record::{GroupId, NodeId};
use tracing::warn;

use crate::leadership;
use crate::metadata::{LeaderInfo, LeaderUpdate};
use crate::node::SERVICE_NODE;

use super::{Counters, Shard, ShardMessage};

/// How often in-sync sets are looked at; leadership itself is told at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often everything is told again, for peers that missed something.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

impl Shard {
    /// Looks for news for ever.
    pub(super) async fn spread_news(self: Rc<Self>) {
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        let mut repeat = tokio::time::interval(REPEAT_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        repeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.news.notified() => {}
                _ = look.tick() => {}
                _ = repeat.tick(), if self.index() == 0 => {
                    for node in self.peers() {
                        self.tell_everything_to(node);
                    }
                    continue;
                }
            }
            if self.has_damaged() {
                self.image_changed.notify_one();
            }
            let (gained, lost) = self.collect_news();
            if gained.is_empty() && lost.is_empty() {
                continue;
            }
            if self.index() == 0 {
                self.tell(gained, lost);
            } else if let Some(first) = self.handles().first()
                && first
                    .send(ShardMessage::Led { gained, lost })
                    .await
                    .is_err()
            {
                return;
            }
        }
    }

    fn collect_news(&self) -> (Vec<LeaderUpdate>, Vec<GroupId>) {
        let mut told = self.told.borrow_mut();
        let mut gained = Vec::new();
        let partitions = self.partitions.borrow();
        for (group, partition) in partitions.iter() {
            let view = partition.replica().view();
            if view.role != Role::Leader || !view.leader_ready {
                continue;
            }
            let info = LeaderInfo {
                node: self.node(),
                epoch: view.epoch,
                in_sync: partition.in_sync(),
            };
            if told.get(group) != Some(&info) {
                if told
                    .get(group)
                    .is_none_or(|known| known.epoch != info.epoch)
                {
                    Counters::add(&self.leadership_changes, 1);
                }
                told.insert(*group, info.clone());
                gained.push(LeaderUpdate {
                    group: *group,
                    info,
                });
            }
        }
        let mut lost = Vec::new();
        told.retain(|group, _| {
            let leads = partitions
                .get(group)
                .is_some_and(|p| p.replica().view().role == Role::Leader);
            if !leads {
                Counters::add(&self.leadership_changes, 1);
                lost.push(*group);
            }
            leads
        });
        (gained, lost)
    }

    /// Shard 0: passes a shard's news on.
    pub(super) fn tell(&self, gained: Vec<LeaderUpdate>, lost: Vec<GroupId>) {
        self.led.update(&gained, &lost);
        if gained.is_empty() {
            return;
        }
        self.cast_to(&self.peers(), &gained);
        self.publish(gained);
    }

    /// Shard 0: gives news from anywhere to all shards of this node.
    pub fn publish(&self, updates: Vec<LeaderUpdate>) {
        let updates = Arc::new(updates);
        self.metadata().set_leaders(&updates);
        for (index, handle) in self.handles().iter().enumerate() {
            if index == usize::from(self.index()) {
                continue;
            }
            if let Err(message) = handle.try_send(ShardMessage::Leaders(updates.clone())) {
                // A full mailbox: wait for room off the message loop rather than lose the news.
                let handle = handle.clone();
                self.env().spawn_local(async move {
                    let _stopping = handle.send(message).await;
                });
            }
        }
    }

    pub(super) fn tell_everything_to(&self, node: NodeId) {
        let all = self.led.all();
        if !all.is_empty() {
            self.cast_to(&[node], &all);
        }
    }

    fn cast_to(&self, nodes: &[NodeId], updates: &[LeaderUpdate]) {
        let messages: Vec<Bytes> = match leadership::encode(SERVICE_NODE, updates) {
            Ok(messages) => messages,
            Err(error) => {
                warn!(%error, "leadership news cannot be encoded");
                return;
            }
        };
        for node in nodes {
            for message in &messages {
                self.parts.raft.cast(*node, message.clone());
            }
        }
    }

    fn peers(&self) -> Vec<NodeId> {
        let image = self.metadata().image();
        image
            .nodes
            .keys()
            .copied()
            .filter(|node| *node != self.node())
            .collect()
    }
}
