//! Reads topics as a member of a group: the members share the partitions, and the group remembers
//! how far it got.
//!
//! | file | holds |
//! |---|---|
//! | `builder` | what a user sets |
//! | `machine`, `classic`, `consumer` | what a member does next, by either protocol; pure |
//! | `assignor`, `embedded` | how a leader divides, and the bytes members exchange; pure |
//! | `pattern` | which topics a subscription by pattern means; pure |
//! | `ledger`, `commits` | what is handed out, processed, committed; no I/O |
//! | `driver` | the task that does what these say |
//! | `calls`, `offsets`, `coordinator`, `locate` | requests |
//! | `batch`, `partitions` | what comes out, and work on all partitions at the same time |

mod assignor;
mod batch;
mod builder;
mod calls;
mod classic;
mod commits;
mod consumer;
pub(crate) mod coordinator;
mod driver;
mod embedded;
mod ledger;
mod locate;
mod machine;
#[cfg(test)]
mod machine_tests;
pub(crate) mod offsets;
mod partitions;
mod pattern;

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{FutureExt, Stream};
use tokio::sync::{mpsc, oneshot};

pub use batch::Batch;
pub use builder::{Commits, GroupBuilder};
pub(crate) use calls::by_topic;
pub(crate) use embedded::decode_assignment;
pub use ledger::Uncommitted;
pub use offsets::{CommittedOffset, CommittedOffsets};

use crate::error::{Error, ErrorKind};
use crate::reader::{Budget, ReadBatch, ReadRecord};
use crate::topic_partition::TopicPartition;
use batch::{Committer, Committing};
use driver::{Command, Notice, Shared};
use ledger::Standing;

/// What befalls a member of a group, in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Records.
    Batch(Batch),
    /// These partitions are this member's from now on, besides those that it has; none is an
    /// assignment as well. Records of theirs follow.
    Assigned {
        /// What is new.
        partitions: Vec<TopicPartition>,
        /// The generation that assigned them (the member epoch under the consumer protocol).
        /// [`Group::generation`] may be further already.
        generation: i32,
    },
    /// These partitions go to others: no more records of theirs follow. They are still this
    /// member's until it asks for the next event, so what has to be finished or committed before
    /// can be, now. It may take as long as a batch may.
    Revoked(Vec<TopicPartition>),
    /// These partitions belong to others already: the coordinator had given this member up. What
    /// was read of them and not committed is read again by somebody else.
    Lost(Vec<TopicPartition>),
}

/// A member of a group: a stream of [`Batch`]es. Made by [`Client::group`](crate::Client::group).
///
/// # Rebalances
/// [`next`](Group::next) and the `Stream` give batches only, and do what is right by default: what
/// was handed out counts as processed when the next batch is asked for, and only then are
/// partitions given up. [`next_event`](Group::next_event) tells of assignments as well, as values
/// in the same order as the records.
///
/// # Commits
/// [`Commits::AfterProcessing`], the default, commits what was processed at an interval, before
/// partitions are given up, and on leaving: after a crash, records may come twice and none is lost.
/// [`Batch::commit`] commits at once, in every mode.
///
/// # Liveness
/// Heartbeats go on in the background while a batch is worked on, for `max.poll.interval.ms` at
/// most; then the member leaves, its partitions are [`Lost`](GroupEvent::Lost), and it joins again
/// when the next batch is asked for.
///
/// Dropping it leaves the group in the background; [`close`](Group::close) also waits for that, and
/// counts what was handed out last as processed.
pub struct Group {
    id: Arc<str>,
    batches: mpsc::UnboundedReceiver<Result<ReadBatch, Error>>,
    notices: mpsc::UnboundedReceiver<Notice>,
    shared: Arc<Shared>,
    committer: Committer,
    budget: Budget,
    commits: Commits,
    poll_interval_max: Duration,
    owned: BTreeSet<TopicPartition>,
    /// Partitions that are being given back, with their ownership.
    revoking: HashMap<TopicPartition, u64>,
    /// What to say once the user asks for more.
    ticket: Option<u64>,
    /// At most once: a batch whose commit is on its way.
    paying: Option<(Batch, Committing)>,
    /// Something was handed out since the user last asked.
    has_handed_out: bool,
    /// Batches count as processed when somebody says so, one by one.
    is_accounted_by_others: bool,
    has_ended: bool,
}

impl Group {
    /// The next batch; `None` after an error, or after [`close`](Group::close).
    ///
    /// Everything that was handed out before counts as processed. Cancel-safe: dropped halfway, no
    /// batch is lost.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        std::future::poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// The next batch or change of the assignment; `None` as for [`next`](Group::next).
    ///
    /// Cancel-safe.
    pub async fn next_event(&mut self) -> Option<Result<GroupEvent, Error>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The same as a stream.
    pub fn events(self) -> GroupEvents {
        GroupEvents { group: self }
    }

    /// The group's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The partitions of this member, as far as it has been told.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.owned.iter().cloned().collect()
    }

    /// The generation, or the member epoch under the consumer protocol; `None` while this is no
    /// member.
    pub fn generation(&self) -> Option<i32> {
        let generation = self.shared.identity.lock().generation;
        (generation >= 0).then_some(generation)
    }

    /// This member's id.
    pub fn member_id(&self) -> String {
        self.shared.identity.lock().member_id.clone()
    }

    /// Commits everything that was handed out so far.
    ///
    /// # Errors
    /// As [`Batch::commit`], the first one.
    pub async fn commit(&mut self) -> Result<(), Error> {
        let owed = {
            let mut ledger = self.shared.ledger.lock();
            ledger.processed_all();
            ledger.owed()
        };
        self.has_handed_out = false;
        let queue = |(at, (incarnation, position))| self.committer.queue(at, incarnation, position);
        let committing: Vec<Committing> = owed.into_iter().map(queue).collect();
        let mut result = Ok(());
        for commit in committing {
            result = result.and(commit.done().await);
        }
        result
    }

    /// What was handed out and is not known to be committed: a member that ends now has it read
    /// again. A commit on its way may still arrive.
    pub fn uncommitted(&self) -> Vec<Uncommitted> {
        self.shared.ledger.lock().uncommitted()
    }

    /// Ends the membership: what was handed out counts as processed and is committed (unless all
    /// commits are explicit), then a dynamic member leaves at once. A static one keeps its place
    /// for the session timeout.
    pub async fn close(mut self) {
        self.settle();
        self.leave().await;
    }

    /// As [`close`](Group::close), but what was handed out last does not count as processed.
    pub async fn leave(mut self) {
        let (reply, done) = oneshot::channel();
        self.has_ended = true;
        if self
            .committer
            .commands
            .send(Command::Close(Some(reply)))
            .is_ok()
        {
            // An error means that the task had ended before.
            let _ = done.await;
        }
    }

    /// The user asks for more: it is done with what it had.
    fn settle(&mut self) {
        if std::mem::take(&mut self.has_handed_out) && !self.is_accounted_by_others {
            self.shared.ledger.lock().processed_all();
        }
        let mut pace = self.shared.pace.lock();
        if !self.is_accounted_by_others {
            pace.busy_since = None;
        }
        // Work that is still late would make it leave again at once.
        let now = self.committer.client.net.env.now();
        let is_late = pace
            .busy_since
            .is_some_and(|since| now >= since + self.poll_interval_max);
        if pace.is_away && !is_late {
            pace.is_away = false;
            self.tell(Command::Polled);
        }
        drop(pace);
        if let Some(ticket) = self.ticket.take() {
            self.tell(Command::Released(ticket));
        }
    }

    fn tell(&self, command: Command) {
        // A task that has ended has told why.
        let _ = self.committer.commands.send(command);
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Batch, Error>>> {
        loop {
            match ready!(self.poll_event(cx)) {
                Some(Ok(GroupEvent::Batch(batch))) => return Poll::Ready(Some(Ok(batch))),
                Some(Ok(_rebalance)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GroupEvent, Error>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        self.settle();
        let event = ready!(self.poll_inside(cx));
        match &event {
            Ok(_) => {
                self.has_handed_out = true;
                if !self.is_accounted_by_others {
                    let now = self.committer.client.net.env.now();
                    self.shared.pace.lock().busy_since = Some(now);
                }
            }
            Err(_) => {
                self.has_ended = true;
                self.tell(Command::Close(None));
            }
        }
        Poll::Ready(Some(event))
    }

    fn poll_inside(&mut self, cx: &mut Context<'_>) -> Poll<Result<GroupEvent, Error>> {
        loop {
            if let Poll::Ready(notice) = self.notices.poll_recv(cx) {
                let gone = || Notice::Ended(Error::closed("the group's member"));
                return Poll::Ready(self.take_notice(notice.unwrap_or_else(gone)));
            }
            if let Some((_, committing)) = &mut self.paying {
                let result = ready!(committing.answer.poll_unpin(cx));
                // The notice that says why it was not answered comes first.
                let result = result.unwrap_or_else(|_| Err(committing.stale.clone()));
                let Some((batch, _)) = self.paying.take() else {
                    continue;
                };
                match result {
                    Ok(()) => return Poll::Ready(Ok(self.hand_out(batch))),
                    // Somebody else reads it.
                    Err(error) if error.kind() == ErrorKind::StaleGeneration => continue,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            let Some(read) = ready!(self.batches.poll_recv(cx)) else {
                // The task is about to say why.
                let notice = ready!(self.notices.poll_recv(cx));
                let gone = || Notice::Ended(Error::closed("the group's member"));
                return Poll::Ready(self.take_notice(notice.unwrap_or_else(gone)));
            };
            let read = match read {
                Ok(read) => read,
                Err(error) => return Poll::Ready(Err(error)),
            };
            self.budget.free(read.fetched_bytes);
            let at = TopicPartition::new(read.topic.clone(), read.partition);
            let standing = self.shared.ledger.lock().standing(&at, read.incarnation);
            let is_revoking = self.revoking.get(&at) == Some(&read.incarnation);
            if standing == Standing::Stale || is_revoking {
                continue;
            }
            let identity = self.shared.identity.lock().clone();
            let batch = Batch {
                member_id: identity.member_id.into(),
                generation: identity.generation,
                committer: self.committer.clone(),
                read,
            };
            if self.commits == Commits::BeforeProcessing {
                let committing = self
                    .committer
                    .queue(at, batch.read.incarnation, batch.position());
                self.paying = Some((batch, committing));
                continue;
            }
            return Poll::Ready(Ok(self.hand_out(batch)));
        }
    }

    fn hand_out(&mut self, batch: Batch) -> GroupEvent {
        let (at, position) = (batch.topic_partition(), batch.position());
        let incarnation = batch.read.incarnation;
        let first = batch.records().first();
        let from = first.map_or(position.offset, ReadRecord::offset);
        self.shared
            .ledger
            .lock()
            .delivered(&at, incarnation, from, position);
        GroupEvent::Batch(batch)
    }

    fn take_notice(&mut self, notice: Notice) -> Result<GroupEvent, Error> {
        match notice {
            Notice::Assigned {
                partitions,
                generation,
            } => {
                self.owned.extend(partitions.iter().cloned());
                Ok(GroupEvent::Assigned {
                    partitions: partitions.into_iter().collect(),
                    generation,
                })
            }
            Notice::Revoking { partitions, ticket } => {
                self.owned = &self.owned - &partitions;
                let ledger = self.shared.ledger.lock();
                self.revoking = partitions
                    .iter()
                    .filter_map(|at| Some((at.clone(), ledger.incarnation(at)?)))
                    .collect();
                drop(ledger);
                self.ticket = Some(ticket);
                Ok(GroupEvent::Revoked(partitions.into_iter().collect()))
            }
            Notice::Lost(partitions) => {
                self.owned = &self.owned - &partitions;
                self.ticket = None;
                Ok(GroupEvent::Lost(partitions.into_iter().collect()))
            }
            Notice::Ended(error) => Err(error),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tell(Command::Close(None));
    }
}

impl Stream for Group {
    type Item = Result<Batch, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_batch(cx)
    }
}

/// The events of a [`Group`], as a stream.
pub struct GroupEvents {
    group: Group,
}

impl GroupEvents {
    /// As [`Group::close`].
    pub async fn close(self) {
        self.group.close().await;
    }
}

impl Stream for GroupEvents {
    type Item = Result<GroupEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().group.poll_event(cx)
    }
}
