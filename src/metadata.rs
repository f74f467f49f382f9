//! What a shard knows of the cluster: the controller's image, who leads what, who is reachable.
//! Each shard has its own; changes come as messages, reads take no lock.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use corduroy_record::{GroupId, LeaderEpoch, NodeId};
use tokio::sync::Notify;

use crate::controller::MetadataImage;
use crate::shard::ClusterView;

/// Who leads a partition, as its leader says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    /// The leader's node.
    pub node: NodeId,
    /// Its confirmed epoch: an entry of it is committed.
    pub epoch: LeaderEpoch,
    /// Nodes whose replicas keep up, leader first.
    pub in_sync: Vec<NodeId>,
}

/// One piece of leadership news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderUpdate {
    /// The partition.
    pub group: GroupId,
    /// Its leader.
    pub info: LeaderInfo,
}

struct Inner {
    image: RefCell<Arc<MetadataImage>>,
    leaders: RefCell<HashMap<GroupId, LeaderInfo>>,
    down: RefCell<HashSet<NodeId>>,
    isolated: Cell<bool>,
    controller_leader: Cell<Option<NodeId>>,
    changed: Notify,
}

/// A shard's view of the cluster. Clone = another handle.
#[derive(Clone)]
pub struct MetadataView(Rc<Inner>);

impl MetadataView {
    /// A view that starts from `image`.
    pub fn new(image: Arc<MetadataImage>) -> Self {
        Self(Rc::new(Inner {
            image: RefCell::new(image),
            leaders: RefCell::default(),
            down: RefCell::default(),
            isolated: Cell::new(false),
            controller_leader: Cell::new(None),
            changed: Notify::new(),
        }))
    }

    /// The newest image.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.0.image.borrow().clone()
    }

    /// The leader of a partition, if it has made itself known and its node is reachable.
    pub fn leader(&self, group: GroupId) -> Option<LeaderInfo> {
        let info = self.0.leaders.borrow().get(&group).cloned()?;
        (!self.unreachable(info.node)).then_some(info)
    }

    /// The last known leader, reachable or not.
    pub fn last_leader(&self, group: GroupId) -> Option<LeaderInfo> {
        self.0.leaders.borrow().get(&group).cloned()
    }

    /// Resolves at the next change after the call.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Whether this node has not heard of a majority of the cluster for
    /// [`crate::node::ISOLATED_AFTER`].
    pub fn isolated(&self) -> bool {
        self.0.isolated.get()
    }

    /// The controller's leader, as far as this node knows.
    pub fn controller_leader(&self) -> Option<NodeId> {
        self.0.controller_leader.get()
    }

    /// Whether the failure detector holds a node down.
    pub fn unreachable(&self, node: NodeId) -> bool {
        self.0.down.borrow().contains(&node)
    }

    /// Everything, as a copy to send elsewhere.
    pub fn cluster_view(&self) -> ClusterView {
        ClusterView {
            image: self.image(),
            leaders: self.0.leaders.borrow().clone(),
            down: self.0.down.borrow().clone(),
            isolated: self.isolated(),
            controller_leader: self.controller_leader(),
        }
    }

    /// Takes a new image in; older ones are ignored. Leaders of groups that are gone go too.
    pub fn set_image(&self, image: Arc<MetadataImage>) {
        if image.version < self.0.image.borrow().version {
            return;
        }
        let live = |group: &GroupId| image.topic_by_id(group.topic).is_some();
        self.0.leaders.borrow_mut().retain(|group, _| live(group));
        *self.0.image.borrow_mut() = image;
        self.bump();
    }

    /// Takes leadership news in; of two leaders the one of the higher epoch holds.
    pub fn set_leaders(&self, updates: &[LeaderUpdate]) {
        let mut leaders = self.0.leaders.borrow_mut();
        let mut news = false;
        for LeaderUpdate { group, info } in updates {
            let known = leaders.get(group);
            if known.is_none_or(|k| k.epoch < info.epoch || (k.epoch == info.epoch && k != info)) {
                leaders.insert(*group, info.clone());
                news = true;
            }
        }
        drop(leaders);
        if news {
            self.bump();
        }
    }

    /// Marks a node as unreachable or reachable.
    pub fn set_unreachable(&self, node: NodeId, down: bool) {
        let changed = if down {
            self.0.down.borrow_mut().insert(node)
        } else {
            self.0.down.borrow_mut().remove(&node)
        };
        if changed {
            self.bump();
        }
    }

    /// Marks this node as isolated or not.
    pub fn set_isolated(&self, isolated: bool) {
        if self.0.isolated.replace(isolated) != isolated {
            self.bump();
        }
    }

    /// Takes in who leads the controller.
    pub fn set_controller_leader(&self, leader: Option<NodeId>) {
        if self.0.controller_leader.replace(leader) != leader {
            self.bump();
        }
    }

    fn bump(&self) {
        self.0.changed.notify_waiters();
    }
}
