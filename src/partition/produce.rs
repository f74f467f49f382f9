//! Produce, rooms 4 and 5 of the walk: leader, in-sync replicas, producer window; then propose.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_raft::{Proposal, ProposalPayload, ReplicaView};
use corduroy_record::{Batch, BatchHeader, LeaderEpoch, Offset, Term};
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

/// A produce request that waits until this replica may serve as leader.
pub(super) struct Waiting {
    spec: ProduceSpec,
    ticket: oneshot::Sender<ProduceTicket>,
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
        // Behind others that wait, a batch waits as well: overtaking would break the order.
        let full = self.in_flight.borrow().bytes() >= PIPELINE_BYTES_MAX;
        if !may_go || full || !self.waiting.borrow().is_empty() {
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
            let Some(waiting) = self.waiting.borrow_mut().pop_front() else {
                return;
            };
            if waiting.ticket.is_closed() {
                // Nobody waits any more (timeout, closed connection): it was never appended.
                continue;
            }
            let ticket = match self.leading(&view) {
                Err(error) => ready(Err(error)),
                Ok(_) => self.admit(&view, waiting.spec),
            };
            // A receiver that went away just now loses its answer, not the order.
            let _gone = waiting.ticket.send(ticket);
        }
    }

    fn wait_in_line(self: &Rc<Self>, spec: ProduceSpec) -> ProduceTicket {
        let deadline = spec.deadline;
        let (ticket, answer) = oneshot::channel();
        self.waiting
            .borrow_mut()
            .push_back(Waiting { spec, ticket });
        let partition = self.clone();
        Box::pin(async move {
            match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(ticket)) => ticket.await,
                Ok(Err(_)) => Err(partition.not_leader(&partition.replica.view())),
                // Not appended: the answer lets the client look for another leader.
                Err(_) => Err(partition.not_leader(&partition.replica.view())),
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
            Verdict::Duplicate(batch) => ready(self.duplicate(&batch)),
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

    /// A duplicate is answered under the condition of its own request. It is applied, so a
    /// majority holds it; the in-sync rule was checked at the door.
    fn duplicate(&self, batch: &WindowBatch) -> Result<Produced, PartitionError> {
        let log_append_time_ms = match self.settings.get().timestamp_type {
            TimestampType::LogAppendTime => batch.max_timestamp,
            TimestampType::CreateTime => -1,
        };
        Ok(Produced {
            base_offset: Offset::new(batch.base_offset),
            log_append_time_ms,
            log_start: self.machine.borrow().log_start(),
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
        let pending = Pending::new(identity, batch.size_bytes());
        self.in_flight.borrow_mut().insert(term, &pending);
        let partition = self.clone();
        let observer = PendingObserver::new(
            pending.clone(),
            Box::new(move |pending| {
                partition.in_flight.borrow_mut().remove(term, pending);
                if !partition.waiting.borrow().is_empty() {
                    partition.role_changed.notify_one();
                }
            }),
        );
        let proposal = Proposal {
            payload: ProposalPayload::Batch(batch),
            term,
        };
        self.replica.propose(proposal, Box::new(observer));
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
                partition.wait_for_copies(&head, deadline).await?;
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

    async fn wait_for(&self, pending: &Pending, acks: Acks) -> Result<EntryHead, PartitionError> {
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
    async fn wait_for_copies(
        &self,
        head: &EntryHead,
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
        if self
            .replica
            .wait_replicated(head.index, wanted, deadline)
            .await
        {
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

    fn check_in_sync(&self, view: &ReplicaView, acks: Acks) -> Result<(), PartitionError> {
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

fn ready(result: Result<Produced, PartitionError>) -> ProduceTicket {
    Box::pin(std::future::ready(result))
}
