//! What a shard does for clients: produce, fetch, offsets, epochs, leadership.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_raft::{RaftError, Role};
use corduroy_record::{GroupId, NodeId};
use futures::future::join_all;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tracing::warn;

use crate::partition::{
    EpochEnd, FetchSpec, Fetched, FoundOffset, Partition, PartitionError, ProduceSpec,
};

use super::Shard;
use super::mailbox::{
    EpochQuestion, FetchAnswer, FetchJob, OffsetQuestion, ProduceAnswer, ProduceJob,
};
use super::memory::AnswerPermit;

/// The answer to come; the order of what it appends is fixed already.
pub type Ticket = Pin<Box<dyn Future<Output = ProduceAnswer>>>;

/// What one look at the partitions of a fetch found.
struct Looked {
    /// A result per partition, in order.
    items: Vec<Result<Fetched, PartitionError>>,
    /// Bytes of batches in `items`.
    bytes: usize,
    /// Whether the answer must go out at once.
    urgent: bool,
}

/// A leadership does not go to a node that could not use it.
fn unfit(node: NodeId, why: &str, in_sync: &[NodeId]) -> PartitionError {
    let in_sync: Vec<String> = in_sync.iter().map(ToString::to_string).collect();
    let message = format!("{why}; in sync are: {}", in_sync.join(", "));
    PartitionError::new(
        ErrorCode::EligibleLeadersNotAvailable,
        format!("node {node} cannot lead it: {message}"),
    )
}

/// How long one leadership may take to move before draining goes on without it.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

impl Shard {
    /// Hands the batches to their partitions, in order, before it returns.
    pub fn produce(&self, job: ProduceJob) -> Ticket {
        let ProduceJob {
            items,
            acks,
            deadline,
        } = job;
        if !self.has_room() {
            // Followers' and internal writes go on; the reserve is for votes and metadata.
            let full = PartitionError::new(
                ErrorCode::KafkaStorageError,
                "the disk of the leader is full: free space, or lower retention, and retry",
            );
            return Box::pin(std::future::ready(vec![Err(full); items.len()]));
        }
        if let [_] = items.as_slice() {
            // The common case needs no list of futures.
            let mut items = items;
            let Some(item) = items.pop() else {
                return Box::pin(async { Vec::new() });
            };
            let ticket = match self.partition(item.group) {
                Some(p) => p.produce(ProduceSpec {
                    batch: item.batch,
                    acks,
                    deadline,
                }),
                None => Box::pin(std::future::ready(Err(self.not_here(item.group)))),
            };
            return Box::pin(async move { vec![ticket.await] });
        }
        let tickets: Vec<_> = items
            .into_iter()
            .map(|item| match self.partition(item.group) {
                Some(p) => p.produce(ProduceSpec {
                    batch: item.batch,
                    acks,
                    deadline,
                }),
                None => Box::pin(std::future::ready(Err(self.not_here(item.group)))),
            })
            .collect();
        Box::pin(join_all(tickets))
    }

    /// Reads until there is enough, an error, or no more time; `hurry` ends the wait early. Memory
    /// is taken for each look and not while it waits.
    pub async fn fetch(&self, job: FetchJob, mut hurry: oneshot::Receiver<()>) -> FetchAnswer {
        let waiter = Rc::new(Notify::new());
        let partitions: Vec<Option<Rc<Partition>>> = job
            .items
            .iter()
            .map(|(group, _)| self.partition(*group))
            .collect();
        let wanted = job.items.iter().map(|(_, spec)| spec.bytes_max);
        let wanted = wanted.fold(0, usize::saturating_add).min(job.bytes_max);
        let mut last = false;
        loop {
            // Registered before the read, so that nothing that comes between is missed.
            for partition in partitions.iter().flatten() {
                partition.wait_for_change(&waiter);
            }
            let mut memory = self.answers.take_up_to(wanted);
            let granted = memory.as_ref().map_or(0, AnswerPermit::bytes).min(wanted);
            // Where others hold everything there is still one batch, so that every client gets
            // further. A client that wants no byte gets none.
            let bytes_max = granted.max(job.bytes_max.min(1));
            let Looked {
                mut items,
                bytes,
                urgent,
            } = self.read(&job.items, &partitions, bytes_max).await;
            let enough = job.bytes_min.min(bytes_max);
            if last || urgent || bytes >= enough || Instant::now() >= job.deadline {
                for (partition, item) in partitions.iter().zip(&mut items) {
                    let Some(partition) = partition else { continue };
                    partition.forget_waiter(&waiter);
                    partition.settle(item);
                }
                if let Some(memory) = &mut memory {
                    memory.shrink_to(bytes);
                }
                return FetchAnswer { items, memory };
            }
            drop((items, memory));
            tokio::select! {
                () = waiter.notified() => {}
                () = tokio::time::sleep_until(job.deadline) => last = true,
                _ = &mut hurry => last = true,
            }
        }
    }

    async fn read(
        &self,
        asked: &[(GroupId, FetchSpec)],
        partitions: &[Option<Rc<Partition>>],
        bytes_max: usize,
    ) -> Looked {
        let mut looked = Looked {
            items: Vec::with_capacity(asked.len()),
            bytes: 0,
            urgent: false,
        };
        for ((group, spec), partition) in asked.iter().zip(partitions) {
            let Some(partition) = partition else {
                looked.items.push(Err(self.not_here(*group)));
                looked.urgent = true;
                continue;
            };
            let left = bytes_max.saturating_sub(looked.bytes);
            let mut result = partition.fetch(spec, left).await;
            match &mut result {
                Ok(fetched) => {
                    // Only the first batch of the whole answer may exceed the limit (KIP-74).
                    while looked.bytes > 0 && fetched.bytes > left {
                        let Some(batch) = fetched.batches.pop() else {
                            break;
                        };
                        fetched.bytes = fetched.bytes.saturating_sub(batch.size_bytes());
                    }
                    looked.bytes += fetched.bytes;
                    looked.urgent |= fetched.is_urgent();
                }
                Err(_) => looked.urgent = true,
            }
            looked.items.push(result);
        }
        looked
    }

    /// Looks offsets up, all at the same time.
    pub async fn offsets(
        &self,
        questions: Vec<OffsetQuestion>,
    ) -> Vec<Result<FoundOffset, PartitionError>> {
        join_all(questions.into_iter().map(|q| async move {
            match self.partition(q.group) {
                Some(p) => p.find_offset(q.target, q.epoch, q.isolation).await,
                None => Err(self.not_here(q.group)),
            }
        }))
        .await
    }

    /// Looks ends of epochs up.
    pub fn epochs(&self, questions: &[EpochQuestion]) -> Vec<Result<EpochEnd, PartitionError>> {
        questions
            .iter()
            .map(|q| match self.partition(q.group) {
                Some(p) => p.epoch_end(q.asked, q.current),
                None => Err(self.not_here(q.group)),
            })
            .collect()
    }

    /// Moves a partition's leadership to `to`, or to the replica that is furthest.
    pub async fn transfer(&self, group: GroupId, to: Option<NodeId>) -> Result<(), PartitionError> {
        let partition = self.partition(group).ok_or_else(|| self.not_here(group))?;
        let replica = partition.replica().clone();
        if replica.view().role != Role::Leader {
            return Err(self.not_here(group));
        }
        let target = match to {
            None => None,
            Some(node) if node == self.node() => return Ok(()),
            Some(node) => {
                let members = replica.members();
                let found = members.iter().find(|(_, n, voter)| *n == node && *voter);
                let found = found.map(|(id, _, _)| *id).ok_or_else(|| {
                    PartitionError::new(
                        ErrorCode::InvalidReplicaAssignment,
                        format!(
                            "node {node} holds no voting replica of {}",
                            partition.name()
                        ),
                    )
                })?;
                let in_sync = partition.in_sync();
                if !in_sync.contains(&node) {
                    return Err(unfit(node, "it is not in sync", &in_sync));
                }
                Some(found)
            }
        };
        replica
            .transfer_leader(target)
            .await
            .map_err(|error| match (error, to) {
                (RaftError::Unfit(why), Some(node)) => {
                    unfit(node, &why.to_string(), &partition.in_sync())
                }
                (error, _) => PartitionError::new(ErrorCode::LeaderNotAvailable, error.to_string()),
            })
    }

    /// Moves every leadership away, so that the others go on without noticing.
    pub async fn drain(&self) {
        self.draining.set(true);
        let led: Vec<GroupId> = self
            .partitions
            .borrow()
            .values()
            .filter(|p| p.replica().view().role == Role::Leader && p.replica().members().len() > 1)
            .map(|p| p.group())
            .collect();
        let moved = join_all(led.into_iter().map(|group| self.try_move(group, None))).await;
        // Where the whole cluster stops, none finds a taker: that is one piece of news.
        let mut stayed = moved.iter().filter_map(|moved| moved.as_ref().err());
        if let Some(first) = stayed.next() {
            let partitions = 1 + stayed.count();
            warn!(partitions, error = %first, "leaderships stay here; the others elect");
        }
        for coordinator in self.live_coordinators() {
            coordinator.stop();
        }
    }

    /// Moves one leadership to `to`, or to whoever is furthest; says so where it stays. Returns
    /// whether it moved.
    pub(super) async fn move_leadership(&self, group: GroupId, to: Option<NodeId>) -> bool {
        let moved = self.try_move(group, to).await;
        if let (Err(error), Some(partition)) = (&moved, self.partition(group)) {
            warn!(parent: &partition.span(), %error, "leadership stays here");
        }
        moved.is_ok()
    }

    /// Moves one leadership; an error says why it stays.
    async fn try_move(&self, group: GroupId, to: Option<NodeId>) -> Result<(), String> {
        match tokio::time::timeout(TRANSFER_TIMEOUT, self.transfer(group, to)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("{}: {}", error.code.name(), error.message)),
            Err(_) => Err("it did not move in time".to_owned()),
        }
    }

    fn not_here(&self, group: GroupId) -> PartitionError {
        if self.metadata().image().topic_by_id(group.topic).is_none() {
            return PartitionError::new(
                ErrorCode::UnknownTopicOrPartition,
                "this topic does not exist (any more)",
            );
        }
        let leader = self
            .metadata()
            .leader(group)
            .filter(|l| l.node != self.node());
        PartitionError {
            code: ErrorCode::NotLeaderOrFollower,
            message: "this node holds no open replica of the partition".to_owned(),
            leader: leader.map(|l| (l.node, l.epoch)),
            log_start: None,
        }
    }
}
