//! What a shard does for clients: produce, fetch, offsets, epochs, leadership.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_raft::Role;
use corduroy_record::{GroupId, NodeId};
use corduroy_storage::DiskLevel;
use futures::future::join_all;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::partition::{EpochEnd, FoundOffset, Partition, PartitionError, ProduceSpec};

use super::Shard;
use super::mailbox::{
    EpochQuestion, FetchAnswer, FetchJob, OffsetQuestion, ProduceAnswer, ProduceJob,
};

/// The answer to come; the order of what it appends is fixed already.
pub type Ticket = Pin<Box<dyn Future<Output = ProduceAnswer>>>;

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
        if self.parts.store.disk_level() == DiskLevel::Critical {
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

    /// Reads until there is enough, an error, or no more time; `hurry` ends the wait early.
    pub async fn fetch(&self, job: FetchJob, mut hurry: oneshot::Receiver<()>) -> FetchAnswer {
        let waiter = Rc::new(Notify::new());
        let partitions: Vec<Option<Rc<Partition>>> = job
            .items
            .iter()
            .map(|(group, _)| self.partition(*group))
            .collect();
        let mut last = false;
        loop {
            // Registered before the read, so that nothing that comes between is missed.
            for partition in partitions.iter().flatten() {
                partition.wait_for_change(&waiter);
            }
            let (answer, bytes, urgent) = self.read(&job, &partitions).await;
            if last || urgent || bytes >= job.bytes_min || Instant::now() >= job.deadline {
                for partition in partitions.iter().flatten() {
                    partition.forget_waiter(&waiter);
                }
                return answer;
            }
            tokio::select! {
                () = waiter.notified() => {}
                () = tokio::time::sleep_until(job.deadline) => last = true,
                _ = &mut hurry => last = true,
            }
        }
    }

    async fn read(
        &self,
        job: &FetchJob,
        partitions: &[Option<Rc<Partition>>],
    ) -> (FetchAnswer, usize, bool) {
        let mut answer = Vec::with_capacity(job.items.len());
        let (mut bytes, mut urgent) = (0, false);
        for ((group, spec), partition) in job.items.iter().zip(partitions) {
            let Some(partition) = partition else {
                answer.push(Err(self.not_here(*group)));
                urgent = true;
                continue;
            };
            let left = job.bytes_max.saturating_sub(bytes);
            let mut result = partition.fetch(spec, left).await;
            match &mut result {
                Ok(fetched) => {
                    // Only the first batch of the whole answer may exceed the limit (KIP-74).
                    while bytes > 0 && fetched.bytes > left {
                        let Some(batch) = fetched.batches.pop() else {
                            break;
                        };
                        fetched.bytes = fetched.bytes.saturating_sub(batch.size_bytes());
                    }
                    bytes += fetched.bytes;
                    urgent |= fetched.is_urgent();
                }
                Err(_) => urgent = true,
            }
            answer.push(result);
        }
        (answer, bytes, urgent)
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
                Some(found.map(|(id, _, _)| *id).ok_or_else(|| {
                    PartitionError::new(
                        ErrorCode::InvalidReplicaAssignment,
                        format!(
                            "node {node} holds no voting replica of {}",
                            partition.name()
                        ),
                    )
                })?)
            }
        };
        replica
            .transfer_leader(target)
            .await
            .map_err(|error| PartitionError::new(ErrorCode::LeaderNotAvailable, error.to_string()))
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
        join_all(led.into_iter().map(|group| async move {
            match tokio::time::timeout(TRANSFER_TIMEOUT, self.transfer(group, None)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%group, ?error, "leadership stays here"),
                Err(_) => tracing::warn!(%group, "leadership did not move in time"),
            }
        }))
        .await;
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
        }
    }
}
