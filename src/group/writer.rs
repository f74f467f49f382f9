//! Records of one partition of `__consumer_offsets` on their way into its log: in the order in which
//! they were decided, many in one batch, a few batches under way.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_group::records::GroupRecord;
use corduroy_protocol::ErrorCode;
use corduroy_record::{Batch, BatchBuilder, BuilderOptions, Term};
use tokio::sync::{Notify, oneshot};

use crate::partition::{Partition, PartitionError};

/// Batches between proposal and commit; meanwhile records gather for the next.
const BATCHES_UNDER_WAY_MAX: usize = 4;

/// Bytes of keys and values at which a batch is full; one decision's records are never split.
const BATCH_BYTES: usize = 512 * 1024;

/// Bytes of keys and values of one decision: well below what a frame between nodes holds, since a
/// batch that followers cannot be sent stops its partition for good.
const DECISION_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of keys and values that wait; beyond it clients are asked to try again.
const WAITING_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The outcome of one decision's records.
pub(super) type Written = Result<(), ErrorCode>;

/// Who waits for a decision's outcome, and where it stood.
type Done = (Place, oneshot::Sender<Written>);

struct Waiting {
    place: Place,
    group: String,
    records: Vec<(Bytes, Option<Bytes>)>,
    bytes: usize,
    term: Term,
    done: oneshot::Sender<Written>,
}

/// Writes records in the order in which they are handed in.
pub(super) struct Writer {
    env: Env,
    partition: Rc<Partition>,
    waiting: RefCell<VecDeque<Waiting>>,
    waiting_bytes: Cell<usize>,
    under_way: Cell<usize>,
    held: Cell<bool>,
    /// Decisions taken in, and decisions answered; those by [`Writer::write_alone`] are in neither:
    /// they overtake what waits.
    taken: Cell<u64>,
    answered: Cell<u64>,
    changed: Notify,
}

impl Writer {
    pub(super) fn new(env: Env, partition: Rc<Partition>) -> Rc<Writer> {
        Rc::new(Writer {
            env,
            partition,
            waiting: RefCell::default(),
            waiting_bytes: Cell::new(0),
            under_way: Cell::new(0),
            held: Cell::new(false),
            taken: Cell::new(0),
            answered: Cell::new(0),
            changed: Notify::new(),
        })
    }

    /// Takes the records of one decision, made in `term`. Their place in the order is fixed when
    /// this returns. `Ok` means: durable on a majority, and applied here. An error means: refused
    /// before they had a place, or `term` is over here.
    ///
    /// Law: no outcome before the fate is known. What was given up for lost and came after all
    /// would stand behind, or between, what was decided without it.
    pub(super) fn write(
        self: &Rc<Self>,
        term: Term,
        records: &[GroupRecord],
    ) -> impl Future<Output = Written> + use<> {
        let written = self.queue(term, records, Place::Last);
        async move {
            match written {
                Ok(done) => done.await.unwrap_or(Err(ErrorCode::NotCoordinator)),
                Err(code) => Err(code),
            }
        }
    }

    /// Keeps what is handed in from going on until the guard is dropped.
    #[cfg(test)]
    pub(super) fn hold(self: &Rc<Self>) -> Release {
        self.held.set(true);
        Release(self.clone())
    }

    /// Waits until nothing is under way, then runs `decide` on what is applied and writes its
    /// records before anything that waits. What waits was decided already, without them, and comes
    /// behind them: `decide` has to be right about that.
    pub(super) async fn write_alone(
        self: &Rc<Self>,
        term: Term,
        decide: impl FnOnce() -> Vec<GroupRecord>,
    ) -> Written {
        self.until(|writer| !writer.held.get()).await;
        self.held.set(true);
        let release = Release(self.clone());
        self.until(|writer| writer.under_way.get() == 0).await;
        let records = decide();
        let written = self.queue(term, &records, Place::First);
        drop(release);
        match written {
            Ok(done) => done.await.unwrap_or(Err(ErrorCode::NotCoordinator)),
            Err(code) => Err(code),
        }
    }

    /// The groups of which records wait. (What [`Writer::write_alone`] writes is of many groups, and
    /// does not wait: nothing is under way then.)
    pub(super) fn waiting_groups(&self) -> HashSet<String> {
        let waiting = self.waiting.borrow();
        waiting
            .iter()
            .map(|waiting| waiting.group.clone())
            .collect()
    }

    /// Whether nothing waits and nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.get() == 0 && self.waiting.borrow().is_empty()
    }

    /// Waits until nothing waits and nothing is under way.
    pub(super) async fn idle(&self) {
        self.until(Writer::is_idle).await;
    }

    /// Waits until whatever was handed in before the call has its outcome.
    pub(super) async fn settled(&self) {
        let taken = self.taken.get();
        self.until(|writer| writer.answered.get() >= taken).await;
    }

    async fn until(&self, condition: impl Fn(&Writer) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change in between is missed.
            changed.as_mut().enable();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    fn queue(
        self: &Rc<Self>,
        term: Term,
        records: &[GroupRecord],
        place: Place,
    ) -> Result<oneshot::Receiver<Written>, ErrorCode> {
        let (done, written) = oneshot::channel();
        if records.iter().any(|record| record.check().is_err()) {
            // A name that came from a client and that no record can hold.
            return Err(ErrorCode::InvalidRequest);
        }
        let Some(group) = records.first().map(|record| record.group().to_owned()) else {
            let _here = done.send(Ok(()));
            return Ok(written);
        };
        let records: Vec<(Bytes, Option<Bytes>)> = records
            .iter()
            .map(|record| (record.encode_key(), record.encode_value()))
            .collect();
        let bytes = records
            .iter()
            .map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        if bytes > DECISION_BYTES_MAX {
            return Err(ErrorCode::RecordListTooLarge);
        }
        let total = self.waiting_bytes.get() + bytes;
        if place == Place::Last {
            // What goes first does not wait; refused here, a coordinator that is always busy would
            // never purge and never expire.
            if total > WAITING_BYTES_MAX && self.waiting_bytes.get() > 0 {
                return Err(ErrorCode::CoordinatorLoadInProgress);
            }
            self.taken.set(self.taken.get() + 1);
        }
        self.waiting_bytes.set(total);
        let waiting = Waiting {
            place,
            group,
            records,
            bytes,
            term,
            done,
        };
        match place {
            Place::First => self.waiting.borrow_mut().push_front(waiting),
            Place::Last => self.waiting.borrow_mut().push_back(waiting),
        }
        self.pump();
        Ok(written)
    }

    /// Sends off what waits, as far as it may.
    fn pump(self: &Rc<Self>) {
        while !self.held.get() && self.under_way.get() < BATCHES_UNDER_WAY_MAX {
            let Some((term, batch, done)) = self.next_batch() else {
                return;
            };
            let ticket = match batch {
                Some(batch) => self.partition.append_in_term(batch, term),
                None => {
                    self.answer(done, Err(ErrorCode::RecordListTooLarge));
                    continue;
                }
            };
            self.under_way.set(self.under_way.get() + 1);
            let writer = self.clone();
            self.env.spawn_local(async move {
                let result = ticket.await;
                writer.answer(
                    done,
                    result.map(|_| ()).map_err(|error| coordinator_code(&error)),
                );
                writer
                    .under_way
                    .set(writer.under_way.get().saturating_sub(1));
                writer.changed.notify_waiters();
                writer.pump();
            });
        }
    }

    fn answer(&self, done: Vec<Done>, result: Written) {
        let counted = done.iter().filter(|(place, _)| *place == Place::Last);
        self.answered
            .set(self.answered.get() + counted.count() as u64);
        for (_, done) in done {
            // A client that has gone away needs no answer.
            let _gone = done.send(result);
        }
        self.changed.notify_waiters();
    }

    /// The next batch in order: decisions of one term, up to [`BATCH_BYTES`]. No batch: the records
    /// do not fit into one.
    fn next_batch(&self) -> Option<(Term, Option<Batch>, Vec<Done>)> {
        let mut waiting = self.waiting.borrow_mut();
        let term = waiting.front()?.term;
        let mut builder = BatchBuilder::new(BuilderOptions::default());
        let now_ms = self.env.unix_millis();
        let (mut bytes, mut done, mut fits) = (0, Vec::new(), true);
        while let Some(next) = waiting.front() {
            if next.term != term || (bytes > 0 && bytes + next.bytes > BATCH_BYTES) {
                break;
            }
            let Some(next) = waiting.pop_front() else {
                break;
            };
            self.waiting_bytes
                .set(self.waiting_bytes.get().saturating_sub(next.bytes));
            bytes += next.bytes;
            done.push((next.place, next.done));
            for (key, value) in &next.records {
                fits &= builder
                    .push(now_ms, Some(key), value.as_deref(), &[])
                    .is_ok();
            }
        }
        Some((term, fits.then(|| builder.finish()), done))
    }
}

/// Where records go among those that wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Last,
}

/// Lets what waits go on, also where whoever held it gave up.
pub(super) struct Release(Rc<Writer>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.held.set(false);
        self.0.changed.notify_waiters();
        self.0.pump();
    }
}

/// What a client of the coordinator is told of a failed append, as in Kafka: retriable words, and
/// never one that makes it rejoin.
fn coordinator_code(error: &PartitionError) -> ErrorCode {
    match error.code {
        ErrorCode::NotLeaderOrFollower => ErrorCode::NotCoordinator,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => ErrorCode::UnknownServerError,
        _ => ErrorCode::CoordinatorNotAvailable,
    }
}
