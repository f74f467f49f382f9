//! What a group hands out: records, with the right to commit them.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::commits::{Waiting, stale};
use super::driver::Command;
use super::ledger::Position;
use crate::client::ClientShared;
use crate::error::Error;
use crate::reader::{ReadBatch, ReadRecord, Told};
use crate::topic_partition::TopicPartition;

/// Consecutive records of one partition, read as a member of a group. Never empty.
///
/// It carries the generation under which it was handed out: a commit is accepted as long as its
/// partition has stayed with this member since, and is an error of kind
/// [`StaleGeneration`](crate::ErrorKind::StaleGeneration) afterwards.
#[derive(Clone)]
pub struct Batch {
    pub(super) read: ReadBatch,
    pub(super) member_id: Arc<str>,
    pub(super) generation: i32,
    pub(super) committer: Committer,
}

/// The way to the task that commits.
#[derive(Clone)]
pub(super) struct Committer {
    pub(super) client: Arc<ClientShared>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl Committer {
    /// Queues a commit, at once; its result comes later.
    pub(super) fn queue(
        &self,
        at: TopicPartition,
        incarnation: u64,
        position: Position,
    ) -> Committing {
        let (reply, answer) = oneshot::channel();
        let stale = stale(&at);
        let deadline: Instant = self.client.api_deadline();
        let waiting = Waiting {
            at,
            incarnation,
            position,
            deadline,
            reply,
        };
        // If the task has ended, the reply is dropped with the command.
        let _ = self.commands.send(Command::Commit(waiting));
        Committing { answer, stale }
    }
}

/// A commit on its way.
pub(super) struct Committing {
    pub(super) answer: oneshot::Receiver<Result<(), Error>>,
    /// What it means if nobody is left to answer.
    pub(super) stale: Error,
}

impl Committing {
    pub(super) async fn done(self) -> Result<(), Error> {
        self.answer.await.unwrap_or(Err(self.stale))
    }
}

impl Batch {
    /// Its topic.
    pub fn topic(&self) -> &str {
        self.read.topic()
    }

    /// Its partition.
    pub fn partition(&self) -> i32 {
        self.read.partition()
    }

    /// Its topic and partition.
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(self.read.topic.clone(), self.read.partition)
    }

    /// The records.
    pub fn records(&self) -> &[ReadRecord] {
        self.read.records()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read.len()
    }

    /// Never: a fetch without records gives no batch.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// Where the group goes on once this batch is committed.
    pub fn next_offset(&self) -> i64 {
        self.read.next_offset()
    }

    /// The high watermark at the time of the fetch.
    pub fn high_watermark(&self) -> i64 {
        self.read.high_watermark()
    }

    /// What else the leader said in the answer to that fetch.
    pub fn told(&self) -> Told {
        self.read.told()
    }

    /// The generation (the member epoch, under the consumer protocol) in which it was handed out.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// The member that got it.
    pub fn member_id(&self) -> &str {
        &self.member_id
    }

    /// Commits exactly what this batch covers: the group goes on behind it. Batches of one
    /// partition may be committed out of order; a position never goes back.
    ///
    /// Tries again, also with the next coordinator, for at most `default.api.timeout.ms`. Not
    /// cancel-safe: dropped halfway, it may still take effect.
    ///
    /// # Errors
    /// StaleGeneration once the partition has been taken away; the coordinator's refusal;
    /// [`is_fenced`](Error::is_fenced) where another instance of a static member has taken over.
    pub async fn commit(&self) -> Result<(), Error> {
        self.commit_at(self.position()).await
    }

    /// Commits the records of this batch up to this one, which is one of them: the group goes on
    /// behind it. For those who stop halfway.
    ///
    /// # Errors
    /// As [`commit`](Batch::commit).
    pub async fn commit_through(&self, record: &ReadRecord) -> Result<(), Error> {
        let position = Position {
            offset: (record.offset() + 1).min(self.next_offset()),
            leader_epoch: record.leader_epoch(),
        };
        self.commit_at(position).await
    }

    async fn commit_at(&self, position: Position) -> Result<(), Error> {
        let at = self.topic_partition();
        let committing = self.committer.queue(at, self.read.incarnation, position);
        committing.done().await
    }

    pub(super) fn position(&self) -> Position {
        let last = self.read.records.last();
        Position {
            offset: self.read.next_offset,
            leader_epoch: last.map_or(-1, ReadRecord::leader_epoch),
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("at", &self.topic_partition())
            .field("records", &self.len())
            .field("next_offset", &self.next_offset())
            .field("generation", &self.generation)
            .finish()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a ReadRecord;
    type IntoIter = std::slice::Iter<'a, ReadRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.read.records.iter()
    }
}

impl IntoIterator for Batch {
    type Item = ReadRecord;
    type IntoIter = std::vec::IntoIter<ReadRecord>;

    fn into_iter(self) -> Self::IntoIter {
        self.read.into_iter()
    }
}
