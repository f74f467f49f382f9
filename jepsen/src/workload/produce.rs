//! Producers: sessions with several calls in flight, as idempotence promises to keep them in order.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Acks, Producer, Record};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

#[cfg(feature = "librdkafka")]
use super::librdkafka::Sender;
use super::{DELIVERY_WAIT_MAX, Shared, failed_write, record_bytes};
use crate::chance::Chance;
use crate::cli::ClientKind;
use crate::history::{Answer, Call, Key, Outcome, ProcessId, SendRecord, Value, WorkerId};

/// Workers of one session: more would only wait for the five requests in flight.
pub const WORKERS_PER_SESSION: u32 = 8;
/// How long a batch waits for more.
const LINGER: Duration = Duration::from_millis(2);
/// Longest wait for buffer space and metadata.
const BLOCK_MAX: Duration = Duration::from_secs(10);
/// Zeros behind a payload, at most: entries of several sizes.
const PADDING_BYTES_MAX: u64 = 1_000;
/// How long to wait after a client that cannot connect.
const AGAIN: Duration = Duration::from_millis(500);

/// A producer that its workers share until it crashes.
#[derive(Clone)]
struct Session {
    number: u64,
    producer: Sending,
    /// Told by whoever sees that the producer has given up.
    broken: Rc<Notify>,
}

/// Whose producer it is.
#[derive(Clone)]
enum Sending {
    Corduroy(Producer),
    #[cfg(feature = "librdkafka")]
    Librdkafka(Rc<Sender>),
}

impl Sending {
    /// A producer as the run has them; `None` if there is none now.
    async fn new(shared: &Shared) -> Option<Sending> {
        match shared.client {
            #[cfg(feature = "librdkafka")]
            ClientKind::Librdkafka => {
                let sender = Sender::new(shared).ok()?;
                Some(Sending::Librdkafka(Rc::new(sender)))
            }
            #[cfg(not(feature = "librdkafka"))]
            ClientKind::Librdkafka => None,
            ClientKind::Corduroy => {
                let client = shared.client("jepsen-producer").await.ok()?;
                let builder = client
                    .producer()
                    .acks(match shared.acks {
                        crate::history::Acks::All => Acks::All,
                        crate::history::Acks::Leader => Acks::Leader,
                        crate::history::Acks::None => Acks::None,
                    })
                    .linger(LINGER)
                    .max_block(BLOCK_MAX)
                    .delivery_timeout(DELIVERY_WAIT_MAX);
                let builder = match shared.idempotence {
                    true => builder,
                    false => builder.without_idempotence(),
                };
                Some(Sending::Corduroy(builder.build()))
            }
        }
    }

    async fn send(&self, key: &Key, value: Value, padding: usize) -> Outcome {
        match self {
            Sending::Corduroy(producer) => send_record(producer, key, value, padding).await,
            #[cfg(feature = "librdkafka")]
            Sending::Librdkafka(sender) => sender.send(key, &record_bytes(value, padding)).await,
        }
    }

    /// Whether it will never send anything again.
    fn is_broken(&self) -> bool {
        match self {
            // It goes on under a new producer id by itself.
            Sending::Corduroy(_) => false,
            #[cfg(feature = "librdkafka")]
            Sending::Librdkafka(sender) => sender.is_broken(),
        }
    }
}

/// Runs one session after another: its workers send, a crash now and then drops it.
pub async fn run(shared: Shared, first_worker: u32, seed: u64) {
    let (current, _) = watch::channel::<Option<Session>>(None);
    let current = Rc::new(current);
    for worker in 0..WORKERS_PER_SESSION {
        let work = Worker {
            shared: shared.clone(),
            id: WorkerId(first_worker + worker),
            session: current.subscribe(),
            chance: Chance::fork(seed, u64::from(first_worker + worker)),
            values: Rc::new(Cell::new(0)),
            process: shared.recorder.process(),
        };
        shared.env.spawn_local(work.run());
    }
    let mut chance = Chance::fork(seed, u64::from(first_worker) + 1_000_000);
    while !shared.is_over() {
        let Some(producer) = Sending::new(&shared).await else {
            shared.pause(AGAIN).await;
            continue;
        };
        let broken = Rc::new(Notify::new());
        current.send_replace(Some(Session {
            number: shared.recorder.session(),
            producer,
            broken: broken.clone(),
        }));
        let half_ms = u64::try_from(shared.crash_every.as_millis() / 2).unwrap_or(u64::MAX);
        let life = Duration::from_millis(half_ms + chance.below(half_ms * 2));
        tokio::select! {
            () = shared.pause(life) => {}
            () = broken.notified() => {}
        }
        if !shared.is_over() {
            // Dropped without a goodbye: workers that wait see it and go on under new names.
            current.send_replace(None);
        }
    }
}

struct Worker {
    shared: Shared,
    id: WorkerId,
    session: watch::Receiver<Option<Session>>,
    chance: Chance,
    values: Rc<Cell<u64>>,
    process: ProcessId,
}

impl Worker {
    async fn run(mut self) {
        let sessions = u32::max(1, self.shared.sends_per_second);
        let mut next = self.shared.env.now();
        while !self.shared.is_over() {
            // All workers together keep the rate; each has its share.
            next = (next + self.gap(sessions)).max(self.shared.env.now());
            self.wait_until(next).await;
            let current = self.session.borrow_and_update().clone();
            let Some(session) = current else {
                let mut stop = self.shared.stop.clone();
                tokio::select! {
                    changed = self.session.changed() => if changed.is_err() { return },
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                continue;
            };
            self.send(&session).await;
        }
    }

    /// Between this worker's sends: its share of the rate, drawn around it.
    fn gap(&mut self, per_second: u32) -> Duration {
        let workers = u64::from(WORKERS_PER_SESSION) * SESSIONS;
        let mean_micros = workers * 1_000_000 / u64::from(per_second);
        Duration::from_micros(self.chance.below(mean_micros * 2 + 1))
    }

    async fn wait_until(&self, at: Instant) {
        let wait = at.saturating_duration_since(self.shared.env.now());
        if !wait.is_zero() {
            self.shared.pause(wait).await;
        }
    }

    async fn send(&mut self, session: &Session) {
        let Some((_, topic, partition)) = self.shared.keys.pick(&mut self.chance) else {
            self.shared.pause(AGAIN).await;
            return;
        };
        let value = Value::of(self.process.0, self.values.get());
        self.values.set(self.values.get() + 1);
        let key = topic.key(partition);
        let padding = usize::try_from(self.chance.below(PADDING_BYTES_MAX)).unwrap_or(0);
        let (outcome, crashed) = {
            let id = self.invoke(session, &key, value);
            self.shared.keys.began(&key.topic);
            let sending = session.producer.send(&key, value, padding);
            // A session that is gone, or replaced, has crashed.
            let number = session.number;
            let gone = self
                .session
                .wait_for(move |now| now.as_ref().is_none_or(|now| now.number != number));
            let (outcome, crashed) = tokio::select! {
                biased;
                outcome = sending => (outcome, false),
                _ = gone => (unheard(), true),
            };
            self.shared.keys.ended(&key.topic, &outcome);
            self.shared.recorder.complete(id, outcome.clone());
            (outcome, crashed)
        };
        if crashed {
            let crash = self
                .shared
                .recorder
                .invoke(self.id, self.process, Call::Crash);
            self.shared
                .recorder
                .complete(crash, Outcome::Ok(Answer::Done));
        }
        if !crashed && session.producer.is_broken() {
            session.broken.notify_one();
        }
        if crashed || matches!(outcome, Outcome::Unknown { .. }) {
            // What is unknown may still land: nothing is said about the order around it.
            self.process = self.shared.recorder.process();
            self.values.set(0);
        }
    }

    fn invoke(&self, session: &Session, key: &Key, value: Value) -> u64 {
        let call = Call::Send(SendRecord {
            key: key.clone(),
            value,
            session: session.number,
            txn: None,
            producer: None,
        });
        self.shared.recorder.invoke(self.id, self.process, call)
    }
}

/// Producer sessions of a run.
pub const SESSIONS: u64 = 4;

fn unheard() -> Outcome {
    Outcome::Unknown {
        error: "the client crashed".to_owned(),
    }
}

/// Sends one record and classifies the outcome.
async fn send_record(producer: &Producer, key: &Key, value: Value, padding: usize) -> Outcome {
    let partition = i32::try_from(key.partition).unwrap_or(i32::MAX);
    let record = Record::to(&*key.topic)
        .partition(partition)
        .value(record_bytes(value, padding));
    let sent = match producer.queue(record).await {
        Ok(ticket) => ticket.await,
        Err(error) => Err(error),
    };
    match sent {
        Ok(meta) => Outcome::Ok(Answer::Sent {
            offset: meta.offset,
        }),
        Err(error) => failed_write(&error),
    }
}
