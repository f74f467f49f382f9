//! What a shard knows of the cluster: the controller's image, who leads what, who is reachable.
//! Each shard has its own; changes come as messages, reads take no lock.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_raft::PeerState;
use corduroy_record::{GroupId, LeaderEpoch, NodeId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::GroupConfigs;
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

/// Stands for "nobody" in news of a leader that has stopped.
const NOBODY: NodeId = NodeId::new(-1);

impl LeaderInfo {
    /// "Whoever led in `epoch` leads no more": it has stopped, and nobody else is known to lead.
    pub fn vacant(epoch: LeaderEpoch) -> LeaderInfo {
        LeaderInfo {
            node: NOBODY,
            epoch,
            in_sync: Vec::new(),
        }
    }

    /// Whether this says that nobody leads.
    pub fn is_vacant(&self) -> bool {
        self.node == NOBODY
    }
}

/// One piece of leadership news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderUpdate {
    /// The partition.
    pub group: GroupId,
    /// Its leader.
    pub info: LeaderInfo,
}

/// A node that stopped answering.
#[derive(Clone, Copy)]
struct Doubt {
    since: Instant,
    is_down: bool,
}

struct Inner {
    image: RefCell<Arc<MetadataImage>>,
    /// The settings of groups as of a version of the image, once somebody has asked for them.
    groups: RefCell<Option<(u64, Rc<GroupConfigs>)>>,
    leaders: RefCell<HashMap<GroupId, LeaderInfo>>,
    doubts: RefCell<HashMap<NodeId, Doubt>>,
    /// Partitions that nobody is known to lead: since their leader has resigned, or since somebody
    /// asked for it first.
    unled: RefCell<HashMap<GroupId, Instant>>,
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
            groups: RefCell::default(),
            leaders: RefCell::default(),
            doubts: RefCell::default(),
            unled: RefCell::default(),
            isolated: Cell::new(false),
            controller_leader: Cell::new(None),
            changed: Notify::new(),
        }))
    }

    /// The newest image.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.0.image.borrow().clone()
    }

    /// The settings of groups as of the newest image; cheap enough to ask for at every request.
    pub fn group_configs(&self) -> Rc<GroupConfigs> {
        let image = self.0.image.borrow();
        let mut held = self.0.groups.borrow_mut();
        match &*held {
            Some((version, configs)) if *version == image.version => configs.clone(),
            _ => {
                let configs = Rc::new(image.cluster().groups);
                *held = Some((image.version, configs.clone()));
                configs
            }
        }
    }

    /// The leader of a partition, if it has made itself known and its node is reachable.
    pub fn leader(&self, group: GroupId) -> Option<LeaderInfo> {
        let info = self.last_leader(group)?;
        (!self.unreachable(info.node)).then_some(info)
    }

    /// The last known leader, reachable or not; none if it has resigned without an heir.
    pub fn last_leader(&self, group: GroupId) -> Option<LeaderInfo> {
        let info = self.0.leaders.borrow().get(&group).cloned();
        info.filter(|info| !info.is_vacant())
    }

    /// Resolves at the next change after the call.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Waits until each of `groups` that has just lost its leader, with its node or because it
    /// resigned, has another one, but no longer than until `window` after the loss. What is lost
    /// later prolongs nothing.
    pub async fn failed_over(&self, env: &Env, mut groups: Vec<GroupId>, window: Duration) {
        let mut last: Option<Instant> = None;
        loop {
            let mut changed = std::pin::pin!(self.changed());
            // Registers the wait before the look, so that a change in between is not missed.
            futures::future::poll_immediate(&mut changed).await;
            let now = env.now();
            let mut until: Option<Instant> = None;
            // What has another leader, or was never in question, is not looked at again.
            groups.retain(|group| {
                let end = self.unled_since(*group).map(|since| since + window);
                let end = end.filter(|end| *end > now);
                until = until.max(end);
                end.is_some()
            });
            let Some(until) = until else { return };
            let until = until.min(*last.get_or_insert(until));
            if until <= now {
                return;
            }
            // In time or not: who is still waited for is looked at again.
            let _in_time = tokio::time::timeout_at(until, changed).await;
        }
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
        let doubts = self.0.doubts.borrow();
        doubts.get(&node).is_some_and(|doubt| doubt.is_down)
    }

    /// Whether `node` stopped answering less than `window` before `now`: what this node knows of
    /// its leaderships is about to change.
    pub fn lost_within(&self, node: NodeId, now: Instant, window: Duration) -> bool {
        let doubts = self.0.doubts.borrow();
        let doubt = doubts.get(&node);
        doubt.is_some_and(|doubt| now.saturating_duration_since(doubt.since) < window)
    }

    /// Whether any node stopped answering less than `window` before `now`.
    pub fn any_lost_within(&self, now: Instant, window: Duration) -> bool {
        let doubts = self.0.doubts.borrow();
        doubts
            .values()
            .any(|doubt| now.saturating_duration_since(doubt.since) < window)
    }

    /// Since when a partition lacks a leader that answers; none while it has one, or if it has never
    /// had one and [`MetadataView::ask_for`] was not called.
    fn unled_since(&self, group: GroupId) -> Option<Instant> {
        let leaders = self.0.leaders.borrow();
        match leaders.get(&group).filter(|info| !info.is_vacant()) {
            Some(info) => Some(self.0.doubts.borrow().get(&info.node)?.since),
            None => self.0.unled.borrow().get(&group).copied(),
        }
    }

    /// Somebody asks for these leaders at `now`. One that was never known counts as lost since it was
    /// asked for first.
    pub fn ask_for(&self, groups: &[GroupId], now: Instant) {
        let leaders = self.0.leaders.borrow();
        let mut unled = self.0.unled.borrow_mut();
        for group in groups.iter().filter(|group| !leaders.contains_key(group)) {
            unled.entry(*group).or_insert(now);
        }
    }

    /// Everything at `now`, as a copy to send elsewhere.
    pub fn cluster_view(&self, now: Instant) -> ClusterView {
        ClusterView {
            image: self.image(),
            leaders: {
                let leaders = self.0.leaders.borrow();
                let known = leaders.iter().filter(|(_, info)| !info.is_vacant());
                known.map(|(group, info)| (*group, info.clone())).collect()
            },
            down: self
                .0
                .doubts
                .borrow()
                .iter()
                .filter(|(_, doubt)| doubt.is_down)
                .map(|(node, doubt)| (*node, now.saturating_duration_since(doubt.since)))
                .collect(),
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
        self.0.unled.borrow_mut().retain(|group, _| live(group));
        *self.0.image.borrow_mut() = image;
        self.bump();
    }

    /// Takes leadership news in at `now`; of two leaders the one of the higher epoch holds. A leader
    /// that has stopped never leads again in its epoch (safety law 2): what comes late of it is old.
    pub fn set_leaders(&self, updates: &[LeaderUpdate], now: Instant) {
        let mut leaders = self.0.leaders.borrow_mut();
        let mut unled = self.0.unled.borrow_mut();
        let mut news = false;
        for LeaderUpdate { group, info } in updates {
            let known = leaders.get(group);
            let is_newer = |known: &LeaderInfo| {
                known.epoch < info.epoch
                    || (known.epoch == info.epoch && known != info && !known.is_vacant())
            };
            if known.is_none_or(is_newer) {
                if !info.is_vacant() {
                    unled.remove(group);
                } else {
                    unled.entry(*group).or_insert(now);
                }
                leaders.insert(*group, info.clone());
                news = true;
            }
        }
        drop((leaders, unled));
        if news {
            self.bump();
        }
    }

    /// Takes in what the failure detector says of a node at `now`.
    pub fn set_peer(&self, node: NodeId, state: PeerState, now: Instant) {
        let mut doubts = self.0.doubts.borrow_mut();
        match state {
            PeerState::Up => {
                doubts.remove(&node);
            }
            PeerState::Suspect | PeerState::Down => {
                let is_down = state == PeerState::Down;
                let fresh = Doubt {
                    since: now,
                    is_down,
                };
                doubts.entry(node).or_insert(fresh).is_down = is_down;
            }
        }
        drop(doubts);
        self.bump();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::MetadataImage;

    const WINDOW: Duration = Duration::from_millis(500);

    #[test]
    fn a_leader_that_has_stopped_is_named_no_more_until_a_later_epoch() {
        let view = MetadataView::new(Arc::new(MetadataImage::default()));
        let group = GroupId {
            topic: corduroy_record::TopicId::from_bytes([1; 16]),
            partition: corduroy_record::PartitionIndex::new(0),
        };
        let leads = |node: i32, epoch: i32| LeaderUpdate {
            group,
            info: LeaderInfo {
                node: NodeId::new(node),
                epoch: LeaderEpoch::new(epoch),
                in_sync: vec![NodeId::new(node)],
            },
        };
        let resigned = LeaderUpdate {
            group,
            info: LeaderInfo::vacant(LeaderEpoch::new(3)),
        };
        let now = Instant::now();
        view.set_leaders(&[leads(2, 3)], now);
        assert_eq!(view.leader(group), Some(leads(2, 3).info));
        view.set_leaders(&[resigned.clone(), leads(2, 3)], now);
        assert_eq!(view.leader(group), None);
        assert_eq!(view.last_leader(group), None);
        assert!(view.cluster_view(Instant::now()).leaders.is_empty());
        view.set_leaders(&[leads(1, 4), resigned], now);
        assert_eq!(view.leader(group), Some(leads(1, 4).info));
    }

    #[test]
    fn a_lost_node_leads_nothing_once_down_and_is_lost_since_the_first_doubt() {
        let view = MetadataView::new(Arc::new(MetadataImage::default()));
        let (node, start) = (NodeId::new(2), Instant::now());
        let group = GroupId {
            topic: corduroy_record::TopicId::from_bytes([1; 16]),
            partition: corduroy_record::PartitionIndex::new(0),
        };
        let info = LeaderInfo {
            node,
            epoch: LeaderEpoch::new(3),
            in_sync: vec![node],
        };
        let leads = LeaderUpdate {
            group,
            info: info.clone(),
        };
        view.set_leaders(&[leads], Instant::now());

        view.set_peer(node, PeerState::Suspect, start);
        assert!(view.lost_within(node, start, WINDOW));
        assert_eq!(view.leader(group), Some(info.clone()), "a doubt is no news");
        view.set_peer(node, PeerState::Down, start + WINDOW / 2);
        assert_eq!(view.leader(group), None);
        let down = view.cluster_view(start + WINDOW).down;
        assert_eq!(down.get(&node), Some(&WINDOW), "down since the first doubt");
        assert_eq!(view.last_leader(group), Some(info.clone()));
        assert!(
            !view.lost_within(node, start + WINDOW, WINDOW),
            "the window counts from the first doubt, or a failover would wait twice"
        );
        view.set_peer(node, PeerState::Up, start + WINDOW * 2);
        assert!(!view.lost_within(node, start + WINDOW * 2, WINDOW));
        assert_eq!(view.leader(group), Some(info));
    }

    /// Two partitions, of topics 1 and 2.
    fn pair() -> [GroupId; 2] {
        [1, 2].map(|topic| GroupId {
            topic: corduroy_record::TopicId::from_bytes([topic; 16]),
            partition: corduroy_record::PartitionIndex::new(0),
        })
    }

    fn leads(group: GroupId, node: i32, epoch: i32) -> LeaderUpdate {
        let info = LeaderInfo {
            node: NodeId::new(node),
            epoch: LeaderEpoch::new(epoch),
            in_sync: vec![NodeId::new(node)],
        };
        LeaderUpdate { group, info }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_is_waited_for_until_a_while_after_the_loss() {
        let (env, view) = (Env::real(), MetadataView::new(Arc::default()));
        let [group, other] = pair();
        let (two, three) = (NodeId::new(2), NodeId::new(3));
        view.set_leaders(&[leads(group, 2, 1), leads(other, 3, 1)], env.now());
        let waited = async |groups: &[GroupId]| {
            let asked_at = env.now();
            view.failed_over(&env, groups.to_vec(), WINDOW).await;
            env.now().saturating_duration_since(asked_at)
        };
        assert_eq!(waited(&[group, other]).await, Duration::ZERO, "all is well");

        let lost_at = env.now();
        view.set_peer(two, PeerState::Suspect, lost_at);
        assert!(view.any_lost_within(lost_at, WINDOW));
        assert_eq!(waited(&[other]).await, Duration::ZERO, "another node's");
        tokio::time::sleep(WINDOW * 9 / 10).await;
        // Another loss, on which the question does not hang.
        view.set_peer(three, PeerState::Down, env.now());
        assert_eq!(waited(&[group]).await, WINDOW / 10, "since the loss");
        assert_eq!(
            waited(&[group]).await,
            Duration::ZERO,
            "leaderless for long"
        );
        assert!(!view.any_lost_within(lost_at + WINDOW * 2, WINDOW));

        // Both in question; one is over before the other would be given up.
        view.set_peer(two, PeerState::Up, env.now());
        view.set_peer(two, PeerState::Down, env.now());
        let asked_at = env.now();
        let both = [group, other];
        let (waited, ()) = tokio::join!(waited(&both), async {
            tokio::time::sleep(WINDOW / 5).await;
            view.set_leaders(&[leads(group, 1, 2)], env.now());
        });
        let given_up = (lost_at + WINDOW * 19 / 10).saturating_duration_since(asked_at);
        assert_eq!(
            waited, given_up,
            "the end of the one that has no leader yet"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_resigned_leader_and_an_unknown_one_are_waited_for_once() {
        let (env, view) = (Env::real(), MetadataView::new(Arc::default()));
        let [group, unknown] = pair();
        let waited = async |group: GroupId| {
            let asked_at = env.now();
            view.ask_for(&[group], asked_at);
            view.failed_over(&env, vec![group], WINDOW).await;
            env.now().saturating_duration_since(asked_at)
        };
        view.set_leaders(&[leads(group, 2, 1)], env.now());
        assert_eq!(waited(group).await, Duration::ZERO, "it leads");
        let vacant = LeaderInfo::vacant(LeaderEpoch::new(1));
        let resigned = LeaderUpdate {
            group,
            info: vacant,
        };
        view.set_leaders(&[resigned], env.now());
        tokio::time::sleep(WINDOW / 5).await;
        assert_eq!(waited(group).await, WINDOW * 4 / 5, "since it resigned");
        assert_eq!(waited(group).await, Duration::ZERO, "long ago");

        assert_eq!(waited(unknown).await, WINDOW, "nobody had asked");
        assert_eq!(waited(unknown).await, Duration::ZERO, "asked again");
        view.set_leaders(&[leads(unknown, 3, 1)], env.now());
        let vacant = LeaderInfo::vacant(LeaderEpoch::new(1));
        let resigned = LeaderUpdate {
            group: unknown,
            info: vacant,
        };
        let asked_at = env.now();
        view.set_leaders(&[resigned], asked_at);
        let successor = async {
            tokio::time::sleep(WINDOW / 5).await;
            view.set_leaders(&[leads(unknown, 2, 2)], env.now());
        };
        let (waited, ()) = tokio::join!(waited(unknown), successor);
        assert_eq!(waited, WINDOW / 5, "a later loss is another one");
    }
}
