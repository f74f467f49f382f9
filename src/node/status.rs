//! What the admin port shows and does: asks the shards, adds up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corduroy_protocol::{ApiKey, ErrorCode};
use corduroy_record::{GroupId, NodeId, Offset, PartitionIndex, TopicPartition};
use corduroy_storage::DiskLevel;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::waiting::Waiting;
use crate::admin::{
    AdminServices, ApiStatus, BrokenReplica, DecommissionAnswer, DecommissionError, GroupView,
    Histogram, KafkaStatus, LeadAnswer, LeadError, LeadRequest, LocalReplica, NodeStatus, NodeView,
    PartitionView, RaftStatus, ShardStatus as ShardLine, StorageStatus,
};
use crate::controller::{ControllerHandle, MetadataImage, RequestError};
use crate::shard::{
    BUCKET_MICROS, ClusterView, CounterValues, PartitionStatus, ShardHandle, ShardMessage,
    ShardStatus, shard_of,
};

/// How long a leadership may take to arrive where it was sent.
const LEAD_WAIT: Duration = Duration::from_secs(5);
/// How long removing a node may take.
const DECOMMISSION_WAIT: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LEAD_LOOK: Duration = Duration::from_millis(20);

struct Serving {
    node: NodeId,
    handles: Vec<ShardHandle>,
    controller: ControllerHandle,
}

struct Inner {
    started: Instant,
    waiting: Waiting,
    serving: OnceLock<Serving>,
    node: OnceLock<NodeId>,
}

/// The node as its admin port sees it. Send, Sync; exists before the node serves.
#[derive(Clone)]
pub struct NodeStatusSource(Arc<Inner>);

impl NodeStatusSource {
    /// A node that has just started.
    pub fn new(started: Instant, waiting: Waiting) -> Self {
        Self(Arc::new(Inner {
            started,
            waiting,
            serving: OnceLock::new(),
            node: OnceLock::new(),
        }))
    }

    /// The node has its id.
    pub fn set_node(&self, node: NodeId) {
        // Set once per boot; a second call would carry the same id.
        let _same = self.0.node.set(node);
    }

    /// The node serves.
    pub fn set_serving(&self, node: NodeId, handles: &[ShardHandle], controller: ControllerHandle) {
        let _same = self.0.serving.set(Serving {
            node,
            handles: handles.to_vec(),
            controller,
        });
    }

    /// What the admin port is given.
    pub fn services(&self) -> AdminServices {
        let (status, lead, decommission) = (self.clone(), self.clone(), self.clone());
        AdminServices {
            status: Arc::new(move || {
                let source = status.clone();
                Box::pin(async move { source.status().await }) as BoxFuture<'static, _>
            }),
            lead: Arc::new(move |request| {
                let source = lead.clone();
                Box::pin(async move { source.lead(request).await }) as BoxFuture<'static, _>
            }),
            decommission: Arc::new(move |node| {
                let source = decommission.clone();
                Box::pin(async move { source.decommission(node).await }) as BoxFuture<'static, _>
            }),
        }
    }

    async fn status(&self) -> NodeStatus {
        let mut status = NodeStatus {
            node: self.0.node.get().map(|node| node.get()),
            uptime_seconds: self.0.started.elapsed().as_secs_f64(),
            ..NodeStatus::default()
        };
        let Some(serving) = self.0.serving.get() else {
            status.waits = Some(self.0.waiting.why());
            return status;
        };
        let mut shards = Vec::new();
        for handle in &serving.handles {
            match ask(handle, ShardMessage::Status).await {
                Some(shard) => shards.push(shard),
                None => status.is_stopping = true,
            }
        }
        let first = serving.handles.first();
        let view = match first {
            Some(handle) => ask(handle, ShardMessage::Cluster).await,
            None => None,
        };
        status.is_serving = !status.is_stopping;
        fill_shards(&mut status, &shards);
        if let Some(view) = view {
            let far = far_partitions(&view.image, &shards);
            let marks = match first {
                Some(first) if !far.is_empty() => {
                    ask(first, |reply| ShardMessage::Marks(far, reply)).await
                }
                _ => None,
            };
            fill_cluster(&mut status, serving.node, &view, &shards);
            fill_groups(&mut status, &view.image, &shards, marks.unwrap_or_default());
        }
        status
    }

    async fn decommission(&self, node: i32) -> Result<DecommissionAnswer, DecommissionError> {
        let unanswered = || DecommissionError::Unanswered("the node is not serving".to_owned());
        let serving = self.0.serving.get().ok_or_else(unanswered)?;
        let removed = serving
            .controller
            .remove_node(NodeId::new(node), DECOMMISSION_WAIT)
            .await;
        removed.map_err(|error| match error {
            RequestError::Refused(refusal) => DecommissionError::Refused(refusal.message),
            error => DecommissionError::Unanswered(error.to_string()),
        })?;
        let first = serving.handles.first().ok_or_else(unanswered)?;
        let view = ask(first, ShardMessage::Cluster)
            .await
            .ok_or_else(unanswered)?;
        let mut short_partitions = Vec::new();
        for topic in view.image.topics.values() {
            for (index, partition) in topic.partitions.iter().enumerate() {
                if partition.replicas.iter().any(|(_, n)| n.get() == node) {
                    short_partitions.push(format!("{}/{index}", topic.name));
                }
            }
        }
        Ok(DecommissionAnswer {
            node,
            short_partitions,
        })
    }

    async fn lead(&self, request: LeadRequest) -> Result<LeadAnswer, LeadError> {
        let stopping = || LeadError::Other("the node is not serving".to_owned());
        let serving = self.0.serving.get().ok_or_else(stopping)?;
        let first = serving.handles.first().ok_or_else(stopping)?;
        let view = ask(first, ShardMessage::Cluster)
            .await
            .ok_or_else(stopping)?;
        let unknown = || LeadError::UnknownPartition {
            topic: request.topic.clone(),
            partition: request.partition,
        };
        let topic = view.image.topics.get(&request.topic).ok_or_else(unknown)?;
        let index = PartitionIndex::new(request.partition);
        let partition = topic.partition(index).ok_or_else(unknown)?;
        let target = NodeId::new(request.node);
        if !partition.replicas.iter().any(|(_, node)| *node == target) {
            return Err(LeadError::NotAReplica {
                node: request.node,
                replicas: partition
                    .replicas
                    .iter()
                    .map(|(_, node)| node.get())
                    .collect(),
            });
        }
        let group = topic.group(index);
        let leader = view.leaders.get(&group).map(|info| info.node);
        if leader == Some(target) {
            return self
                .led(serving, group, &request)
                .await
                .ok_or_else(stopping);
        }
        if leader != Some(serving.node) {
            return Err(LeadError::NotLeader {
                leader: leader.map(NodeId::get),
                leader_admin: leader.and_then(|l| view.image.nodes.get(&l)?.admin),
            });
        }
        let shards = u16::try_from(serving.handles.len()).unwrap_or(u16::MAX);
        let owner = serving
            .handles
            .get(usize::from(shard_of(group, shards)))
            .ok_or_else(stopping)?;
        ask(owner, |reply| {
            ShardMessage::Transfer(group, Some(target), reply)
        })
        .await
        .ok_or_else(stopping)?
        .map_err(|error| match error.code {
            ErrorCode::EligibleLeadersNotAvailable => LeadError::NotInSync(error.message),
            _ => LeadError::Other(error.message),
        })?;
        let deadline = Instant::now() + LEAD_WAIT;
        loop {
            if let Some(answer) = self.led(serving, group, &request).await {
                return Ok(answer);
            }
            if Instant::now() >= deadline {
                return Err(LeadError::TimedOut);
            }
            tokio::time::sleep(LEAD_LOOK).await;
        }
    }

    /// The answer, once the wanted node leads.
    async fn led(
        &self,
        serving: &Serving,
        group: GroupId,
        request: &LeadRequest,
    ) -> Option<LeadAnswer> {
        let view = ask(serving.handles.first()?, ShardMessage::Cluster).await?;
        let info = view.leaders.get(&group)?;
        (info.node.get() == request.node).then(|| LeadAnswer {
            topic: request.topic.clone(),
            partition: request.partition,
            leader: info.node.get(),
            leader_epoch: info.epoch.get(),
        })
    }
}

async fn ask<T>(
    handle: &ShardHandle,
    message: impl FnOnce(oneshot::Sender<T>) -> ShardMessage,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    handle.send(message(reply)).await.ok()?;
    answer.await.ok()
}

fn fill_shards(status: &mut NodeStatus, shards: &[ShardStatus]) {
    let mut kafka = KafkaStatus::default();
    let mut raft = RaftStatus::default();
    let mut storage = StorageStatus::default();
    for shard in shards {
        add_kafka(&mut kafka, &shard.kafka);
        raft.replicas += shard.raft.replicas as u64;
        raft.leaders += shard.raft.leaders as u64;
        raft.hibernating += shard.raft.asleep as u64;
        raft.leadership_changes += shard.leadership_changes;
        raft.possible_losses += shard.raft.possible_losses;
        raft.heartbeats += shard.raft.beat_frames;
        let commit_bounds = corduroy_raft::COMMIT_BUCKET_MICROS.map(|m| m as f64 / 1e6);
        raft.commit_seconds.merge(&Histogram::from_buckets(
            &commit_bounds,
            &shard.raft.commit_buckets,
            shard.raft.commit_micros as f64 / 1e6,
        ));
        let bounds: Vec<f64> = corduroy_storage::FLUSH_BUCKET_MICROS
            .iter()
            .map(|m| *m as f64 / 1e6)
            .collect();
        storage.flush_seconds.merge(&Histogram::from_buckets(
            &bounds,
            &shard.storage.flush_buckets,
            shard.storage.flush_micros as f64 / 1e6,
        ));
        storage.append_seconds.merge(&Histogram::from_buckets(
            &bounds,
            &shard.storage.append_buckets,
            shard.storage.append_micros as f64 / 1e6,
        ));
        storage.bytes += shard.partitions.iter().map(|p| p.size_bytes).sum::<u64>();
        storage.bytes_appended += shard.storage.appended_bytes;
        storage.disk_free_bytes = storage.disk_free_bytes.max(shard.storage.free_bytes);
        storage.is_disk_low |= shard.storage.disk_level >= DiskLevel::Low;
        storage.is_disk_full |= shard.storage.disk_level >= DiskLevel::Critical;
        storage.corruptions += shard.corruptions;
        if let Some(failure) = &shard.disk_failure {
            status.disk_failure.get_or_insert_with(|| failure.clone());
        }
        status.shards.push(ShardLine {
            busy_ratio: shard.busy_ratio,
            mailbox_depth: shard.mailbox_depth as u64,
            partitions: shard.partitions.len() as u64,
        });
    }
    status.kafka = kafka;
    status.raft = raft;
    status.storage = storage;
}

fn add_kafka(kafka: &mut KafkaStatus, values: &CounterValues) {
    kafka.connections += values.connections;
    kafka.records_produced += values.produced_records;
    kafka.bytes_produced += values.produced_bytes;
    kafka.records_fetched += values.fetched_records;
    kafka.bytes_fetched += values.fetched_bytes;
    let bounds: Vec<f64> = BUCKET_MICROS.iter().map(|m| *m as f64 / 1e6).collect();
    for (key, count) in &values.apis {
        let name =
            ApiKey::try_from(*key).map_or_else(|_| format!("api-{key}"), |key| format!("{key:?}"));
        let api: &mut ApiStatus = kafka.apis.entry(name).or_default();
        let failed: u64 = count.errors.values().sum();
        *api.requests.entry("NONE".to_owned()).or_default() +=
            count.requests.saturating_sub(failed);
        for (error, times) in &count.errors {
            *api.requests.entry((*error).to_owned()).or_default() += times;
        }
        api.seconds.merge(&Histogram::from_buckets(
            &bounds,
            &count.buckets,
            count.micros_total as f64 / 1e6,
        ));
    }
}

/// The partition of a committed offset, if its topic is still there.
fn group_of(image: &MetadataImage, partition: &TopicPartition) -> Option<GroupId> {
    let topic = image.topics.get(&partition.topic)?;
    topic.partition(partition.partition)?;
    Some(GroupId {
        topic: topic.id,
        partition: partition.partition,
    })
}

/// The partitions of committed offsets that have no replica on this node.
fn far_partitions(image: &MetadataImage, shards: &[ShardStatus]) -> Vec<GroupId> {
    let statuses = shards.iter().flat_map(|shard| &shard.partitions);
    let local: HashSet<GroupId> = statuses.map(|status| status.group).collect();
    let groups = shards.iter().flat_map(|shard| &shard.groups);
    let offsets = groups.flat_map(|group| &group.offsets);
    let far: HashSet<GroupId> = offsets
        .filter_map(|(partition, _)| group_of(image, partition))
        .filter(|group| !local.contains(group))
        .collect();
    far.into_iter().collect()
}

/// Records behind a group's committed offsets by topic, and how many partitions are not in it
/// because nobody says how far they are.
fn lag_by_topic(
    image: &MetadataImage,
    marks: &HashMap<GroupId, Offset>,
    offsets: &[(TopicPartition, Offset)],
) -> (BTreeMap<String, u64>, u64) {
    let mut lags = BTreeMap::new();
    let mut unknown = 0;
    for (partition, offset) in offsets {
        let Some(group) = group_of(image, partition) else {
            continue;
        };
        let Some(mark) = marks.get(&group) else {
            unknown += 1;
            continue;
        };
        let behind = mark.get() - offset.get();
        *lags.entry(partition.topic.clone()).or_default() += u64::try_from(behind).unwrap_or(0);
    }
    (lags, unknown)
}

/// The groups that this node coordinates. `marks`: high watermarks of partitions without a replica
/// here.
fn fill_groups(
    status: &mut NodeStatus,
    image: &MetadataImage,
    shards: &[ShardStatus],
    mut marks: HashMap<GroupId, Offset>,
) {
    let partitions = shards.iter().flat_map(|shard| &shard.partitions);
    marks.extend(partitions.map(|p| (p.group, p.watermarks.high_watermark)));
    status.group_rebalances = shards.iter().map(|shard| shard.group_rebalances).sum();
    status.groups = shards
        .iter()
        .flat_map(|shard| &shard.groups)
        .map(|group| {
            let (lag, lag_unknown) = lag_by_topic(image, &marks, &group.offsets);
            GroupView {
                group: group.group.clone(),
                members: group.members as u64,
                lag,
                lag_unknown,
            }
        })
        .collect();
}

fn fill_cluster(status: &mut NodeStatus, own: NodeId, view: &ClusterView, shards: &[ShardStatus]) {
    let local: HashMap<GroupId, &PartitionStatus> = shards
        .iter()
        .flat_map(|s| &s.partitions)
        .map(|p| (p.group, p))
        .collect();
    let image = &view.image;
    status.cluster_id = (!image.cluster_id.is_nil()).then(|| image.cluster_id.to_string());
    status.is_isolated = view.isolated;
    status.controller = view.controller_leader.map(NodeId::get);
    status.nodes = image
        .nodes
        .values()
        .map(|node| NodeView {
            node: node.id.get(),
            kafka: node.kafka.to_string(),
            rpc: node.rpc.to_string(),
            admin: node.admin.map(|addr| addr.to_string()),
            rack: node.rack.clone(),
            is_reachable: node.id == own || !view.down.contains_key(&node.id),
            down_seconds: view.down.get(&node.id).map(Duration::as_secs),
        })
        .collect();
    let mut partitions = Vec::new();
    for topic in image.topics.values() {
        for (group, partition) in topic.groups().zip(&topic.partitions) {
            let leader = view
                .leaders
                .get(&group)
                .filter(|l| !view.down.contains_key(&l.node));
            partitions.push(PartitionView {
                topic: topic.name.clone(),
                partition: group.partition.get(),
                leader: leader.map(|l| l.node.get()),
                leader_epoch: leader.map_or(-1, |l| l.epoch.get()),
                replicas: partition.replicas.iter().map(|(_, n)| n.get()).collect(),
                in_sync: leader
                    .map(|l| l.in_sync.iter().map(|n| n.get()).collect())
                    .unwrap_or_default(),
                local: local.get(&group).map(|p| LocalReplica {
                    is_leader: p.is_leader,
                    is_hibernating: p.is_hibernating,
                    is_damaged: p.is_damaged,
                    log_start_offset: p.watermarks.log_start.get(),
                    high_watermark: p.watermarks.high_watermark.get(),
                    log_end_offset: p.watermarks.log_end.get(),
                    size_bytes: p.size_bytes,
                }),
            });
        }
    }
    status.partitions = partitions;
    let name_of = |group: &GroupId| match image.topic_by_id(group.topic) {
        Some(topic) => Some(format!("{}/{}", topic.name, group.partition)),
        None if *group == GroupId::CONTROLLER => Some("the controller".to_owned()),
        // Its topic is being deleted.
        None => None,
    };
    let broken = shards.iter().flat_map(|shard| &shard.broken);
    status.broken = broken
        .filter_map(|(group, reason)| {
            let (name, reason) = (name_of(group)?, reason.clone());
            Some(BrokenReplica { name, reason })
        })
        .collect();
    let damaged = shards.iter().flat_map(|shard| &shard.damaged);
    status.damaged = damaged.filter_map(name_of).collect();
}
