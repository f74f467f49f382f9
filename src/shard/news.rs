//! Leadership news: what this shard's replicas lead, told to the node's other shards and, by
//! shard 0, to the other nodes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_raft::Role;
use corduroy_record::{GroupId, NodeId};
use tracing::{error, info, warn};

use crate::leadership;
use crate::metadata::{LeaderInfo, LeaderUpdate};
use crate::node::SERVICE_NODE;

use super::{Counters, Shard, ShardMessage};

/// How often the in-sync sets of awake groups are looked at; leadership itself is told at once,
/// and nothing changes about a group that sleeps without a word (a wake, a node's failure).
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often damage that readers met, and a full disk, are looked for.
const DAMAGE_INTERVAL: Duration = Duration::from_secs(2);

/// How often everything is told again, for peers that missed something.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

impl Shard {
    /// Looks for news for ever.
    pub(super) async fn spread_news(self: Rc<Self>) {
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        let mut repeat = tokio::time::interval(REPEAT_INTERVAL);
        let mut damage = tokio::time::interval(DAMAGE_INTERVAL);
        damage.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // Groups that were awake at the last look: what they told last may have changed since.
        let mut awake_before: Vec<GroupId> = Vec::new();
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        repeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let (gained, lost) = tokio::select! {
                () = self.news.notified() => self.collect_all_news(),
                _ = look.tick() => {
                    let awake = self.parts.raft.awake_groups();
                    let mut groups = std::mem::replace(&mut awake_before, awake);
                    groups.extend_from_slice(&awake_before);
                    groups.sort_unstable();
                    groups.dedup();
                    self.collect_news(&groups)
                }
                _ = repeat.tick(), if self.index() == 0 => {
                    for node in self.peers() {
                        self.tell_everything_to(node);
                    }
                    continue;
                }
                _ = damage.tick() => {
                    if self.has_damaged() {
                        self.image_changed.notify_one();
                    }
                    if !self.has_room() && !self.leaving.replace(true) {
                        let shard = self.clone();
                        self.env().spawn_local(async move {
                            shard.clone().leave_full_disk().await;
                            shard.leaving.set(false);
                        });
                    }
                    continue;
                }
            };
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

    fn collect_all_news(&self) -> (Vec<LeaderUpdate>, Vec<GroupId>) {
        let mut groups: Vec<GroupId> = self.partitions.borrow().keys().copied().collect();
        // Those that were closed meanwhile are lost too.
        let told = self.told.borrow();
        groups.extend(
            told.keys()
                .filter(|group| self.partition(**group).is_none()),
        );
        drop(told);
        self.collect_news(&groups)
    }

    fn collect_news(&self, groups: &[GroupId]) -> (Vec<LeaderUpdate>, Vec<GroupId>) {
        let mut told = self.told.borrow_mut();
        let (mut gained, mut lost) = (Vec::new(), Vec::new());
        let partitions = self.partitions.borrow();
        for group in groups {
            let partition = partitions.get(group);
            let view = partition.map(|partition| partition.replica().view());
            let leads = view.filter(|view| view.role == Role::Leader);
            let (Some(partition), Some(view)) = (partition, leads) else {
                let Some(known) = told.get(group).cloned() else {
                    continue;
                };
                if view.is_some_and(|view| view.role == Role::Stopped) {
                    // Nobody may take over (it was the only copy), so it says itself that it is
                    // gone: its node is up, and clients would be sent there for ever.
                    if let Some(partition) = partition
                        && !known.is_vacant()
                    {
                        if !partition.is_closed() {
                            error!(parent: &partition.span(), "leads no more: its replica has stopped");
                        }
                        Counters::add(&self.leadership_changes, 1);
                        let info = LeaderInfo::vacant(known.epoch);
                        told.insert(*group, info.clone());
                        gained.push(LeaderUpdate {
                            group: *group,
                            info,
                        });
                    }
                    continue;
                }
                told.remove(group);
                if let Some(partition) = partition {
                    info!(parent: &partition.span(), "leads no more");
                }
                Counters::add(&self.leadership_changes, 1);
                lost.push(*group);
                continue;
            };
            if !view.leader_ready {
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
                    info!(parent: &partition.span(), "leads");
                    Counters::add(&self.leadership_changes, 1);
                }
                told.insert(*group, info.clone());
                gained.push(LeaderUpdate {
                    group: *group,
                    info,
                });
            }
        }
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
        self.metadata().set_leaders(&updates, self.env().now());
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

    /// Shard 0: everything that this node's replicas lead, as last told.
    pub fn led(&self) -> Vec<LeaderUpdate> {
        self.led.all()
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

    pub(super) fn peers(&self) -> Vec<NodeId> {
        let image = self.metadata().image();
        image
            .nodes
            .keys()
            .copied()
            .filter(|node| *node != self.node())
            .collect()
    }
}
