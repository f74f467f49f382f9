//! Produce, rooms 4 and 5 of the walk: leader, in-sync replicas, producer window; then propose.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_raft::{Proposal, ProposalPayload, ReplicaView};
use corduroy_record::{Batch, BatchHeader, LeaderEpoch, LogIndex, Offset, Term};
use corduroy_storage::EntryHead;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::trace;

use super::pending::{Fate, Pending, PendingObserver};
use super::producers::{BatchIdentity, Verdict, WindowBatch, judge};
use super::{Partition, PartitionError, TimestampType};
use crate::walk::WALK;

/// Bytes of one partition between proposal and commit; beyond it produce waits.
pub const PIPELINE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A batch that waits for room looks this often whether room can still come: nothing tells of a
/// lease that runs out.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// When a produce request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Never.
    None,
    /// When the leader's log holds the batch.
    Leader,
    /// When a majority holds it on disk, and at least `min.insync.replicas` hold it.
    All,
}

/// One batch to append.
pub struct ProduceSpec {
    /// The batch, validated.
    pub batch: Batch,
    /// When to answer.
    pub acks: Acks,
    /// When to give up waiting; what was appended stays appended.
    pub deadline: Instant,
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The leader's time for a topic with `LogAppendTime`, else -1.
    pub log_append_time_ms: i64,
    /// First offset that can be read.
    pub log_start: Offset,
}

/// The answer to come. The batch's place in the order is fixed once this exists.
pub type ProduceTicket = Pin<Box<dyn Future<Output = Result<Produced, PartitionError>>>>;

/// A produce request that waits until this replica may serve as leader, or until the pipeline has
/// room. Its ticket owns it, so that its memory goes when nobody waits any more; the line keeps the
/// place alone.
pub(super) struct Waiting {
    spec: Cell<Option<ProduceSpec>>,
    ticket: Cell<Option<oneshot::Sender<ProduceTicket>>>,
}

/// Produce requests that wait, in order.
#[derive(Default)]
pub(super) struct Line(VecDeque<Weak<Waiting>>);

impl Line {
    /// Whether nobody waits.
    pub(super) fn is_empty(&mut self) -> bool {
        while self
            .0
            .front()
            .is_some_and(|place| place.strong_count() == 0)
        {
            self.0.pop_front();
        }
        self.0.is_empty()
    }

    fn push(&mut self, waiting: &Rc<Waiting>) {
        if self.0.len() == self.0.capacity() {
            // Places that were given up, before the line grows: its length follows who waits.
            self.0.retain(|place| place.strong_count() > 0);
            self.0.reserve(self.0.len() + 1);
        }
        self.0.push_back(Rc::downgrade(waiting));
    }

    /// The first of those who still wait: they were never appended.
    fn pop(&mut self) -> Option<(ProduceSpec, oneshot::Sender<ProduceTicket>)> {
        loop {
            let Some(waiting) = self.0.pop_front()?.upgrade() else {
                continue;
            };
            if let (Some(spec), Some(ticket)) = (waiting.spec.take(), waiting.ticket.take()) {
                return Some((spec, ticket));
            }
        }
    }
}

impl Partition {
    /// Takes a batch in. What this call decides, it decides before it returns: batches of one
    /// connection that are handed in one after another are appended in that order or fail.
    pub fn produce(self: &Rc<Self>, spec: ProduceSpec) -> ProduceTicket {
        let view = self.replica.view();
        let may_go = match self.leading(&view) {
            Err(error) => return ready(Err(error)),
            Ok(may_go) => may_go,
        };
        // Before it waits for room: without a majority none will come (DESIGN 5.5).
        if may_go && let Err(error) = self.check_in_sync(&view, spec.acks) {
            return ready(Err(error));
        }
        // Behind others that wait, a batch waits as well: overtaking would break the order.
        let full = self.in_flight.borrow().bytes() >= PIPELINE_BYTES_MAX;
        if !may_go || full || !self.waiting.borrow_mut().is_empty() {
            return self.wait_in_line(spec);
        }
        self.admit(&view, spec)
    }

    /// Lets waiting batches go on, in order; called when the replica's role changed and when the
    /// pipeline has room again.
    pub(super) fn drain_waiting(self: &Rc<Self>) {
        loop {
            let view = self.replica.view();
            if matches!(self.leading(&view), Ok(false)) {
                return;
            }
            if self.in_flight.borrow().bytes() >= PIPELINE_BYTES_MAX {
                return;
            }
            let Some((spec, sender)) = self.waiting.borrow_mut().pop() else {
                return;
            };
            let ticket = match self.leading(&view) {
                Err(error) => ready(Err(error)),
                Ok(_) => self.admit(&view, spec),
            };
            // A receiver that went away just now loses its answer, not the order.
            let _gone = sender.send(ticket);
        }
    }

    fn wait_in_line(self: &Rc<Self>, spec: ProduceSpec) -> ProduceTicket {
        let (acks, deadline) = (spec.acks, spec.deadline);
        let (ticket, mut answer) = oneshot::channel();
        let waiting = Rc::new(Waiting {
            spec: Cell::new(Some(spec)),
            ticket: Cell::new(Some(ticket)),
        });
        self.waiting.borrow_mut().push(&waiting);
        let partition = self.clone();
        Box::pin(async move {
            loop {
                let look = deadline.min(partition.env.now() + LOOK_AGAIN);
                let answered = tokio::time::timeout_at(look, &mut answer).await;
                if let Ok(Ok(ticket)) = answered {
                    drop(waiting);
                    return ticket.await;
                }
                // Not appended: the answer lets the client look for another leader, or says why
                // this one takes nothing.
                let view = partition.replica.view();
                if partition.leading(&view)? {
                    partition.check_in_sync(&view, acks)?;
                }
                if answered.is_ok() || look == deadline {
                    return Err(partition.not_leader(&view));
                }
            }
        })
    }

    /// The one place that branches on leader, in-sync replicas and producer window.
    fn admit(self: &Rc<Self>, view: &ReplicaView, mut spec: ProduceSpec) -> ProduceTicket {
        let log_append_time_ms = match self.check_time(&mut spec.batch) {
            Ok(time) => time,
            Err(error) => return ready(Err(error)),
        };
        if let Err(error) = self.check_in_sync(view, spec.acks) {
            return ready(Err(error));
        }
        let identity = BatchIdentity::of(spec.batch.header());
        self.in_flight.borrow_mut().enter(view.term);
        let Some(identity) = identity else {
            return self.append(view.term, None, spec, log_append_time_ms);
        };
        if let Some(pending) = self.in_flight.borrow().find(&identity) {
            return self.answer(pending, spec.acks, spec.deadline, log_append_time_ms);
        }
        match self.judge(&identity) {
            Verdict::Accept => self.append(view.term, Some(identity), spec, log_append_time_ms),
            Verdict::Duplicate(batch) => self.duplicate(batch, spec.acks, spec.deadline),
            Verdict::Malformed => ready(Err(PartitionError::new(
                ErrorCode::InvalidRecord,
                "an idempotent batch needs a sequence and a producer epoch of 0 or more",
            ))),
            verdict @ (Verdict::OutOfOrder | Verdict::Fenced) => {
                self.confirm_refusal(verdict, identity, spec)
            }
        }
    }

    fn judge(&self, identity: &BatchIdentity) -> Verdict {
        let machine = self.machine.borrow();
        let window = machine.producers().window(identity.producer_id);
        judge(
            window,
            self.in_flight.borrow().last(identity.producer_id),
            identity,
        )
    }

    /// A negative verdict from a leader that is none any more makes clients bump their epoch and
    /// send again, which duplicates. So it follows a ReadIndex (safety law 14).
    fn confirm_refusal(
        self: &Rc<Self>,
        verdict: Verdict,
        identity: BatchIdentity,
        spec: ProduceSpec,
    ) -> ProduceTicket {
        let partition = self.clone();
        Box::pin(async move {
            let barrier =
                tokio::time::timeout_at(spec.deadline, partition.replica.read_barrier()).await;
            let view = partition.replica.view();
            if !matches!(barrier, Ok(Ok(_))) || partition.leading(&view).is_err() {
                return Err(partition.not_leader(&view));
            }
            partition.in_flight.borrow_mut().enter(view.term);
            if partition.judge(&identity) != verdict {
                // What was in flight has landed meanwhile.
                return partition.admit(&view, spec).await;
            }
            Err(match verdict {
                Verdict::Fenced => PartitionError::new(
                    ErrorCode::InvalidProducerEpoch,
                    format!(
                        "producer {} has been fenced: epoch {} is not its newest",
                        identity.producer_id, identity.epoch
                    ),
                ),
                _ => PartitionError::new(
                    ErrorCode::OutOfOrderSequenceNumber,
                    format!(
                        "sequence {} of producer {} does not follow what {} holds",
                        identity.first_sequence, identity.producer_id, partition.name
                    ),
                ),
            })
        })
    }

    /// A duplicate is answered under the condition of its own request (safety law 14). It is
    /// applied, so a majority holds it; `min.insync.replicas` may ask for more.
    fn duplicate(
        self: &Rc<Self>,
        batch: WindowBatch,
        acks: Acks,
        deadline: Instant,
    ) -> ProduceTicket {
        let log_append_time_ms = match self.settings.get().timestamp_type {
            TimestampType::LogAppendTime => batch.max_timestamp,
            TimestampType::CreateTime => -1,
        };
        let partition = self.clone();
        Box::pin(async move {
            if acks == Acks::All {
                let index = LogIndex::new(batch.index);
                partition.wait_for_copies(index, deadline).await?;
            }
            Ok(Produced {
                base_offset: Offset::new(batch.base_offset),
                log_append_time_ms,
                log_start: partition.machine.borrow().log_start(),
            })
        })
    }

    fn append(
        self: &Rc<Self>,
        term: Term,
        identity: Option<BatchIdentity>,
        spec: ProduceSpec,
        log_append_time_ms: i64,
    ) -> ProduceTicket {
        let ProduceSpec {
            mut batch,
            acks,
            deadline,
        } = spec;
        let (group, epoch) = (self.group(), LeaderEpoch::from_term(term));
        let early = planted::is(Bug::OffsetAtPropose).then(|| {
            let end = self.replica.log().state().next_offset;
            batch.stamp(end, epoch);
            end
        });
        trace!(target: WALK, room = 4, partition = %self.name, %group, %epoch, "a batch is admitted");
        let pending = self.propose(term, identity, batch);
        let ticket = self.answer(pending, acks, deadline, log_append_time_ms);
        let Some(base_offset) = early else {
            return ticket;
        };
        Box::pin(async move {
            let produced = ticket.await?;
            Ok(Produced {
                base_offset,
                ..produced
            })
        })
    }

    /// Hands a batch to the log. Its place in the order is fixed when this returns.
    pub(super) fn propose(
        self: &Rc<Self>,
        term: Term,
        identity: Option<BatchIdentity>,
        batch: Batch,
    ) -> Rc<Pending> {
        let pending = Pending::new(identity, batch.size_bytes());
        self.in_flight.borrow_mut().insert(term, &pending);
        let partition = self.clone();
        let observer = PendingObserver::new(
            pending.clone(),
            Box::new(move |pending| {
                partition.in_flight.borrow_mut().remove(term, pending);
                if !partition.waiting.borrow_mut().is_empty() {
                    partition.role_changed.notify_one();
                }
            }),
        );
        let proposal = Proposal {
            payload: ProposalPayload::Batch(batch),
            term,
        };
        self.replica.propose(proposal, Box::new(observer));
        pending
    }

    fn answer(
        self: &Rc<Self>,
        pending: Rc<Pending>,
        acks: Acks,
        deadline: Instant,
        log_append_time_ms: i64,
    ) -> ProduceTicket {
        let partition = self.clone();
        Box::pin(async move {
            let end = tokio::time::timeout_at(deadline, partition.wait_for(&pending, acks));
            let head = match end.await {
                Ok(head) => head?,
                Err(_) => {
                    return Err(PartitionError::new(
                        ErrorCode::RequestTimedOut,
                        format!(
                            "{} did not commit the batch in time; it may still",
                            partition.name
                        ),
                    ));
                }
            };
            if acks == Acks::All {
                partition.wait_for_copies(head.index, deadline).await?;
            }
            let (group, offset) = (partition.group(), head.base_offset);
            trace!(target: WALK, room = "ticket", partition = %partition.name, %group, %offset, "a batch is answered");
            let log_start = partition.machine.borrow().log_start();
            Ok(Produced {
                base_offset: head.base_offset,
                log_append_time_ms,
                log_start,
            })
        })
    }

    pub(super) async fn wait_for(
        &self,
        pending: &Pending,
        acks: Acks,
    ) -> Result<EntryHead, PartitionError> {
        let fate = match acks {
            Acks::None | Acks::Leader => match pending.appended().await {
                Ok(head) => return Ok(head),
                Err(fate) => fate,
            },
            Acks::All => match pending.finished().await {
                Fate::Applied(head) => return Ok(head),
                fate => fate,
            },
        };
        let unknown = |message: String| {
            // A definite error for an appended record would be a lie to a producer that cannot
            // tell duplicates apart.
            Err(PartitionError::new(ErrorCode::RequestTimedOut, message))
        };
        match fate {
            Fate::Applied(head) => Ok(head),
            Fate::NotAppended => Err(self.not_leader(&self.replica.view())),
            Fate::Unknown if pending.identity.is_some() => {
                Err(self.not_leader(&self.replica.view()))
            }
            Fate::Unknown => unknown(format!(
                "the leader of {} changed; the batch may be kept",
                self.name
            )),
            Fate::Stopped => unknown(format!("the replica of {} is stopping", self.name)),
        }
    }

    /// Commit means a majority; `min.insync.replicas` may ask for more.
    pub(super) async fn wait_for_copies(
        &self,
        index: LogIndex,
        deadline: Instant,
    ) -> Result<(), PartitionError> {
        let voters = self
            .replica
            .members()
            .iter()
            .filter(|(_, _, voter)| *voter)
            .count();
        let wanted = self.settings.get().min_insync_replicas;
        if wanted <= voters / 2 + 1 || planted::is(Bug::AckBelowMinInsync) {
            return Ok(());
        }
        if self.replica.wait_replicated(index, wanted, deadline).await {
            return Ok(());
        }
        Err(PartitionError::new(
            ErrorCode::NotEnoughReplicasAfterAppend,
            format!(
                "{} is committed, but fewer than {wanted} replicas hold the batch",
                self.name
            ),
        ))
    }

    pub(super) fn check_in_sync(
        &self,
        view: &ReplicaView,
        acks: Acks,
    ) -> Result<(), PartitionError> {
        if acks != Acks::All {
            if view.lease_valid {
                return Ok(());
            }
            return Err(self.not_leader(view));
        }
        let settings = self.settings.get();
        let in_sync = self.replica.in_sync(settings.replica_lag_max).len();
        let wanted = settings.min_insync_replicas;
        // Whatever the minimum: what a majority cannot hold is never committed (DESIGN 5.5).
        let reaches_majority = view.lease_valid && self.replica.majority_up();
        if reaches_majority && (in_sync >= wanted || planted::is(Bug::AckBelowMinInsync)) {
            return Ok(());
        }
        Err(PartitionError::new(
            ErrorCode::NotEnoughReplicas,
            if reaches_majority {
                format!(
                    "{in_sync} replicas of {} are in sync, {wanted} are needed",
                    self.name
                )
            } else {
                format!(
                    "the leader of {} does not reach a majority of its replicas",
                    self.name
                )
            },
        ))
    }

    /// `message.timestamp.type` and its limits. Returns the time that the answer names.
    fn check_time(&self, batch: &mut Batch) -> Result<i64, PartitionError> {
        let settings = self.settings.get();
        let now = self.env.unix_millis();
        if settings.timestamp_type == TimestampType::LogAppendTime {
            batch.set_log_append_time(now);
            return Ok(now);
        }
        let header: &BatchHeader = batch.header();
        let late = header.max_timestamp.saturating_sub(now) > settings.timestamp_after_max_ms;
        let early =
            now.saturating_sub(header.base_timestamp.max(0)) > settings.timestamp_before_max_ms;
        if header.max_timestamp >= 0 && (late || early) {
            return Err(PartitionError::new(
                ErrorCode::InvalidTimestamp,
                format!(
                    "timestamp {} is too far from the leader's clock ({now})",
                    if late {
                        header.max_timestamp
                    } else {
                        header.base_timestamp
                    }
                ),
            ));
        }
        Ok(-1)
    }
}

pub(super) fn ready(result: Result<Produced, PartitionError>) -> ProduceTicket {
    Box::pin(std::future::ready(result))
}

#[cfg(test)]
mod tests {
    use corduroy_record::{BatchBuilder, BuilderOptions};

    use super::*;

    fn waiting(deadline: Instant) -> (Rc<Waiting>, oneshot::Receiver<ProduceTicket>) {
        let mut batch = BatchBuilder::new(BuilderOptions::default());
        batch.push(1, None, Some(b"x"), &[]).expect("it fits");
        let spec = ProduceSpec {
            batch: batch.finish(),
            acks: Acks::All,
            deadline,
        };
        let (ticket, answer) = oneshot::channel();
        let waiting = Waiting {
            spec: Cell::new(Some(spec)),
            ticket: Cell::new(Some(ticket)),
        };
        (Rc::new(waiting), answer)
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_the_line_and_those_behind_keep_their_order() {
        let now = Instant::now();
        let mut line = Line::default();
        for _ in 0..10_000 {
            let (gone, _answer) = waiting(now);
            line.push(&gone);
        }
        assert!(line.0.len() < 100, "{} places", line.0.len());
        assert!(line.is_empty());
        let mut kept = Vec::new();
        for n in 0..100 {
            let (waiting, answer) = waiting(now + std::time::Duration::from_secs(n));
            line.push(&waiting);
            if n % 2 == 1 {
                kept.push((waiting, answer));
            }
        }
        let deadlines = std::iter::from_fn(|| line.pop()).map(|(spec, _)| spec.deadline);
        let seconds: Vec<u64> = deadlines.map(|at| (at - now).as_secs()).collect();
        assert_eq!(seconds, (0..50).map(|n| 2 * n + 1).collect::<Vec<_>>());
    }
}
