//! Makes the shard's replicas match the image: opens, creates, removes. Desired state wins; no
//! one tells a node what to do step by step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_raft::{RaftError, ReplicaSpec, Role, write_first_entry};
use corduroy_record::{GroupId, NodeId, PartitionIndex, ReplicaId, TopicPartition};
use corduroy_storage::StorageError;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tracing::{debug, error, info, warn};

use crate::controller::MetadataImage;
use crate::group::{CONSUMER_OFFSETS, Coordinator};
use crate::partition::{Changes, Partition, PartitionMachine, PartitionSettings};

use super::{Counters, Shard};

/// Replicas that are opened or created at the same time.
const OPENING_REPLICAS_MAX: usize = 64;

/// How long to wait before trying again what failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a damaged leader may take to hand its leadership over before it stops anyway.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// Why a replica could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Raft(#[from] RaftError),
}

/// A replica that the image wants on this shard.
#[derive(Clone)]
struct Wanted {
    group: GroupId,
    name: TopicPartition,
    replica: ReplicaId,
    members: Vec<(ReplicaId, NodeId)>,
    settings: PartitionSettings,
}

impl Shard {
    /// Follows the image for ever.
    pub(super) async fn reconcile_replicas(self: Rc<Self>) {
        loop {
            self.image_changed.notified().await;
            while !self.reconcile_once().await {
                self.env().sleep(RETRY_AFTER).await;
            }
        }
    }

    /// One pass. Returns whether everything is as it should be.
    async fn reconcile_once(self: &Rc<Self>) -> bool {
        let image = self.metadata().image();
        let wanted = self.wanted(&image);
        self.unopened
            .borrow_mut()
            .retain(|group, _| wanted.contains_key(group));
        self.drop_damaged(&wanted).await;
        let mut complete = self.remove_unwanted(&image, &wanted).await;
        complete &= self.remove_leftovers(&image, &wanted).await;
        for (group, want) in &wanted {
            if let Some(partition) = self.partition(*group) {
                partition.configure(want.settings);
            }
        }
        let mut missing: Vec<Wanted> = wanted
            .into_values()
            .filter(|want| self.partition(want.group).is_none())
            .collect();
        let mut opening = FuturesUnordered::new();
        loop {
            while opening.len() < OPENING_REPLICAS_MAX {
                let Some(want) = missing.pop() else { break };
                opening.push(self.open(want));
            }
            match opening.next().await {
                Some(opened) => complete &= opened,
                None => break,
            }
        }
        complete
    }

    fn wanted(&self, image: &Arc<MetadataImage>) -> BTreeMap<GroupId, Wanted> {
        let mut wanted = BTreeMap::new();
        for topic in image.topics.values() {
            for (index, partition) in topic.partitions.iter().enumerate() {
                let Ok(number) = i32::try_from(index) else {
                    break;
                };
                let group = GroupId {
                    topic: topic.id,
                    partition: PartitionIndex::new(number),
                };
                let mine = partition
                    .replicas
                    .iter()
                    .find(|(_, node)| *node == self.node());
                let Some((replica, _)) = mine else { continue };
                if self.owner(group) != self.index() {
                    continue;
                }
                let want = Wanted {
                    group,
                    name: TopicPartition {
                        topic: topic.name.clone(),
                        partition: group.partition,
                    },
                    replica: *replica,
                    members: partition.replicas.clone(),
                    settings: PartitionSettings::resolve(image, topic, partition.replicas.len()),
                };
                wanted.insert(group, want);
            }
        }
        wanted
    }

    async fn remove_unwanted(
        &self,
        image: &MetadataImage,
        wanted: &BTreeMap<GroupId, Wanted>,
    ) -> bool {
        if image.version == 0 {
            // Before the first image everything would look unwanted.
            return true;
        }
        let mut complete = true;
        let unwanted: Vec<Rc<Partition>> = {
            let mut open = self.partitions.borrow_mut();
            let (keep, drop): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut *open)
                .into_iter()
                .partition(|(g, _)| wanted.contains_key(g));
            *open = keep;
            drop.into_values().collect()
        };
        for partition in unwanted {
            info!(parent: &partition.span(), "removing a replica whose topic is gone");
            self.coordinators.borrow_mut().remove(&partition.group());
            partition.close();
            self.parts.raft.close_replica(partition.group()).await;
            if let Err(error) = self.parts.store.remove_log(partition.group()).await {
                error!(parent: &partition.span(), %error, "a log could not be removed");
                complete = false;
            }
        }
        complete
    }

    /// Removes, once after a start, logs that nobody has opened and nobody wants: of topics that ended
    /// while this node was away, when its controller's replica skipped their end with a snapshot, or
    /// the node was killed between the end and the removal.
    ///
    /// Law: only by an image that the cluster has confirmed since the start. An older one lacks what was
    /// placed here after it.
    async fn remove_leftovers(
        &self,
        image: &MetadataImage,
        wanted: &BTreeMap<GroupId, Wanted>,
    ) -> bool {
        let is_current = self
            .current_from
            .get()
            .is_some_and(|from| image.version >= from);
        if !is_current || self.leftovers_removed.get() {
            return true;
        }
        let registered = match self.parts.store.registered().await {
            Ok(groups) => groups,
            Err(error) => {
                warn!(%error, "the logs of this node could not be listed");
                return false;
            }
        };
        let leftovers = registered.into_iter().filter(|group| {
            *group != GroupId::CONTROLLER
                && self.owner(*group) == self.index()
                && !wanted.contains_key(group)
                && self.partition(*group).is_none()
        });
        let mut complete = true;
        for group in leftovers {
            info!(%group, "removing a log whose topic ended while this node was away");
            match self.parts.store.remove_log(group).await {
                Ok(()) | Err(StorageError::NotFound { .. }) => {}
                Err(error) => {
                    error!(%group, %error, "a log could not be removed");
                    complete = false;
                }
            }
        }
        self.leftovers_removed.set(complete);
        complete
    }

    /// Whether a replica met damage in its log while it ran.
    pub(super) fn has_damaged(&self) -> bool {
        let partitions = self.partitions.borrow();
        partitions
            .values()
            .any(|partition| partition.replica().log().must_reopen())
    }

    /// Closes replicas that met damage in their logs; they are opened again in the same pass, as
    /// after a restart: without vote, and without what is damaged, until their leader has sent it
    /// again (safety law 8).
    async fn drop_damaged(&self, wanted: &BTreeMap<GroupId, Wanted>) {
        let damaged: Vec<Rc<Partition>> = {
            let partitions = self.partitions.borrow();
            let damaged = partitions
                .values()
                .filter(|p| p.replica().log().must_reopen());
            damaged.cloned().collect()
        };
        for partition in damaged {
            let group = partition.group();
            // The only copy is not thrown away: what can be read of it is worth more than nothing.
            let alone = wanted.get(&group).is_none_or(|want| want.members.len() < 2);
            // Closed, but still here: its disk has failed.
            if alone && self.damaged_only_copies.borrow_mut().insert(group) {
                Counters::add(&self.corruptions, 1);
                error!(parent: &partition.span(), "the only copy of a log is damaged; what can be read is served");
            }
            if alone || self.parts.raft.replica(group).is_none() {
                continue;
            }
            error!(parent: &partition.span(), "a replica met damage in its log; it is rebuilt");
            if partition.replica().view().role == Role::Leader {
                let moved = tokio::time::timeout(HAND_OVER_MAX, self.transfer(group, None)).await;
                if !matches!(moved, Ok(Ok(()))) {
                    warn!(parent: &partition.span(), "the others have to elect a leader");
                }
            }
            partition.close();
            self.parts.raft.close_replica(group).await;
            // Law 3: everything that was appended is durable before the log is handed out again.
            match partition.replica().log().flush().await {
                Ok(()) => drop(self.partitions.borrow_mut().remove(&group)),
                Err(error) => error!(parent: &partition.span(), %error, "its disk has failed"),
            }
        }
    }

    async fn open(self: &Rc<Self>, want: Wanted) -> bool {
        let (group, name) = (want.group, want.name.clone());
        match self.try_open(want).await {
            Ok(()) => {
                self.unopened.borrow_mut().remove(&group);
                true
            }
            // The node stops while it starts: nobody has to act.
            Err(error) if self.draining.get() => {
                debug!(topic = name.topic, partition = name.partition.get(), %error, "a replica is not opened any more");
                false
            }
            Err(error) => {
                self.unopened.borrow_mut().insert(group, error.to_string());
                error!(topic = name.topic, partition = name.partition.get(), %error, "a replica could not be opened; trying again");
                false
            }
        }
    }

    async fn try_open(self: &Rc<Self>, want: Wanted) -> Result<(), OpenError> {
        let store = &self.parts.store;
        let config = want.settings.log_config();
        let log = if store.contains(want.group) && want.members.len() < 2 {
            store.open_only_copy(want.group, config)?
        } else if store.contains(want.group) {
            store.open_placed_log(want.group, want.replica, config)?
        } else {
            store.create_log(want.group, want.replica, config).await?
        };
        let state = log.state();
        if state.damaged {
            Counters::add(&self.corruptions, 1);
        }
        let begins = write_first_entry(&log, &want.members).await?;
        let role_changed = Rc::new(Notify::new());
        let holds_groups = want.name.topic == CONSUMER_OFFSETS;
        let machine = PartitionMachine::new(
            want.name.clone(),
            Changes::default(),
            role_changed.clone(),
            holds_groups,
        );
        let machine = Rc::new(RefCell::new(machine));
        let spec = ReplicaSpec {
            group: want.group,
            replica: log.replica(),
            log,
        };
        let replica = self.parts.raft.open(spec, machine.clone()).await?;
        let partition = Partition::new(
            self.env().clone(),
            want.name,
            replica.clone(),
            machine,
            want.settings,
            role_changed,
            self.news.clone(),
        );
        self.partitions
            .borrow_mut()
            .insert(want.group, partition.clone());
        self.env().spawn_local(partition.clone().run());
        if holds_groups {
            let metadata = self.metadata().clone();
            let coordinator = Coordinator::new(self.env().clone(), partition, metadata);
            self.coordinators
                .borrow_mut()
                .insert(want.group, Rc::downgrade(&coordinator));
            self.env().spawn_local(coordinator.run());
        }
        let is_first = want
            .members
            .first()
            .is_some_and(|(id, _)| *id == want.replica);
        if begins && is_first {
            replica.lead_first();
        }
        Ok(())
    }
}
