//! The load: records as fast as a window allows, or at a steady rate.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Client, ErrorKind, Producer, Record, Ticket};
use corduroy_env::Env;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::options::{Limit, LoadArgs, ProducerArgs};
use super::progress::Progress;
use super::report::Latencies;
use crate::cli::{CliError, CliResult, Interrupt, client_error};

/// Records between two moments in which other tasks of this thread run for sure.
const YIELD_EVERY: u64 = 256;

/// How late the timer wakes us up where nothing else keeps us.
const TIMER_SLACK: Duration = Duration::from_micros(1_500);

/// How long a topic may take to be created.
const CREATE_WAIT_MAX: Duration = Duration::from_secs(120);

/// How long the partitions of a fresh topic may take to have leaders, and how often we look.
const LEADERS_WAIT_MAX: Duration = Duration::from_secs(120);
const LEADERS_PAUSE: Duration = Duration::from_millis(100);

/// Random bytes that values are cut from.
const NOISE_BYTES: usize = 1 << 20;

/// Bytes at the head of each value: its number and when it was due, in microseconds since the
/// start, both big-endian.
pub(super) const STAMP_BYTES: usize = 16;

/// A topic for one measurement.
pub(super) struct BenchTopic {
    pub(super) name: String,
    pub(super) partitions: i32,
    is_own: bool,
}

impl BenchTopic {
    /// Creates a fresh topic, or uses the named one and creates it if need be.
    pub(super) async fn prepare(env: &Env, client: &Client, args: &LoadArgs) -> CliResult<Self> {
        let Some(name) = &args.topic else {
            return BenchTopic::fresh(env, client, args.partitions, args.replication).await;
        };
        let mut topic = BenchTopic {
            name: name.clone(),
            partitions: args.partitions,
            is_own: false,
        };
        topic.ensure(env, client, args.replication).await?;
        Ok(topic)
    }

    /// Creates a topic that nobody else knows.
    pub(super) async fn fresh(
        env: &Env,
        client: &Client,
        partitions: i32,
        replication: Option<i16>,
    ) -> CliResult<Self> {
        let mut topic = BenchTopic {
            name: format!("bench-{:08x}", env.random_u64() as u32),
            partitions,
            is_own: true,
        };
        topic.ensure(env, client, replication).await?;
        Ok(topic)
    }

    async fn ensure(&mut self, env: &Env, client: &Client, replication: Option<i16>) -> CliResult {
        let name = &self.name;
        let admin = client.admin();
        let deadline = env.now() + CREATE_WAIT_MAX;
        loop {
            let mut creation = admin.create_topic(name).partitions(self.partitions);
            if let Some(replication) = replication {
                creation = creation.replication(replication);
            }
            match creation.ensure().await {
                Ok(_) => break,
                // A thousand partitions take their time; asked again, a topic that came to be
                // meanwhile is as good.
                Err(error) if error.kind() == ErrorKind::RequestTimeout && env.now() < deadline => {
                }
                Err(error) => {
                    let what = format!("cannot create the topic {name}");
                    return Err(client_error(&error, &what).into());
                }
            }
        }
        let topic = admin
            .describe_topic(name)
            .await
            .map_err(|error| client_error(&error, &format!("cannot describe the topic {name}")))?;
        self.partitions = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        Ok(())
    }

    /// Waits until every partition has a leader.
    pub(super) async fn wait_for_leaders(&self, env: &Env, client: &Client) -> CliResult {
        let name = &self.name;
        let deadline = env.now() + LEADERS_WAIT_MAX;
        loop {
            let topic = client.admin().describe_topic(name).await.map_err(|error| {
                client_error(&error, &format!("cannot describe the topic {name}"))
            })?;
            let orphans = topic.partitions.iter().filter(|at| at.leader.is_none());
            match orphans.count() {
                0 => return Ok(()),
                count if env.now() >= deadline => {
                    return Err(CliError::failed(format!(
                        "{count} partitions of {name} have no leader"
                    ))
                    .into());
                }
                _ => env.sleep(LEADERS_PAUSE).await,
            }
        }
    }

    /// Does `work` on the topic, then deletes it if it was created for this measurement alone. A
    /// signal ends the work; the topic goes all the same.
    pub(super) async fn during<T>(
        self,
        client: &Client,
        interrupt: &mut Interrupt,
        work: impl AsyncFnOnce(&BenchTopic) -> CliResult<T>,
    ) -> CliResult<T> {
        let done = tokio::select! {
            biased;
            name = interrupt.first() => {
                Err(CliError::failed(format!("ended by {name}: nothing was measured")).into())
            }
            done = work(&self) => done,
        };
        let name = self.name.clone();
        match interrupt.bound(self.dispose(client)).await {
            Some(Ok(())) => {}
            Some(Err(stop)) if done.is_ok() => return Err(stop),
            // What went wrong before is the reason that a person looks for.
            Some(Err(_)) | None => {
                eprintln!("warning: the topic {name} is left; `corduroy topic delete {name}`");
            }
        }
        done
    }

    /// Deletes what was created for the measurement alone.
    async fn dispose(self, client: &Client) -> CliResult {
        if self.is_own {
            client
                .admin()
                .delete_topic(&self.name)
                .await
                .map_err(|error| {
                    client_error(&error, &format!("cannot delete the topic {}", self.name))
                })?;
        }
        Ok(())
    }
}

/// Builds the producer that the options describe.
pub(super) fn build_producer(client: &Client, args: &ProducerArgs) -> Producer {
    client
        .producer()
        .acks(args.acks())
        .linger(args.linger)
        .batch_size(args.batch_bytes as usize)
        .compression(args.compression())
        .build()
}

/// What a load did.
pub(super) struct LoadResult {
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    pub(super) bytes: u64,
    /// From the first record to the last acknowledgement.
    pub(super) elapsed: Duration,
    pub(super) latencies: Latencies,
    /// The first failure, in words.
    pub(super) first_error: Option<String>,
}

/// A load under way: shared by the sender and the collectors of acknowledgements.
struct Tally {
    env: Env,
    latencies: RefCell<Latencies>,
    acknowledged: Cell<u64>,
    failed: Cell<u64>,
    first_error: RefCell<Option<String>>,
    /// Free places of the window.
    places: Cell<u32>,
    freed: Notify,
}

impl Tally {
    async fn take_place(&self) {
        loop {
            let places = self.places.get();
            if places > 0 {
                self.places.set(places - 1);
                return;
            }
            self.freed.notified().await;
        }
    }

    fn settle<E: std::fmt::Display>(&self, due: Instant, result: Result<(), E>) {
        match result {
            Ok(()) => {
                self.acknowledged.set(self.acknowledged.get() + 1);
                self.latencies.borrow_mut().record(self.env.now() - due);
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                self.first_error
                    .borrow_mut()
                    .get_or_insert_with(|| error.to_string());
            }
        }
        self.places.set(self.places.get() + 1);
        self.freed.notify_one();
    }
}

/// A record on its way.
struct Pending {
    due: Instant,
    ticket: Ticket,
}

/// Sends until the limit and waits for the last acknowledgement. `started` is the zero of the
/// stamps; who waits for it may be shown how far it is.
pub(super) async fn send(
    env: &Env,
    producer: &Producer,
    topic: &BenchTopic,
    plan: Plan,
    (started, progress): (Instant, Option<&Progress>),
) -> CliResult<LoadResult> {
    let tally = Rc::new(Tally {
        env: env.clone(),
        latencies: RefCell::new(Latencies::new()),
        acknowledged: Cell::new(0),
        failed: Cell::new(0),
        first_error: RefCell::new(None),
        places: Cell::new(plan.window),
        freed: Notify::new(),
    });
    // Acknowledgements of one partition come in order, so one collector each is enough and no
    // record waits for another partition's.
    let mut collectors = JoinSet::new();
    let mut queues = Vec::new();
    for _ in 0..topic.partitions {
        let (queue_tx, queue_rx) = mpsc::unbounded_channel();
        queues.push(queue_tx);
        collectors.spawn_local(collect(queue_rx, tally.clone()));
    }
    let noise = noise(env);
    let mut value = vec![0; plan.value_bytes];
    let mut sent: u64 = 0;
    while sent < plan.limit.records {
        let due = match plan.rate {
            Some(rate) => {
                let due = started + Duration::from_secs_f64(sent as f64 / f64::from(rate));
                wait_until(env, due).await
            }
            None => env.now(),
        };
        if due.saturating_duration_since(started) >= plan.limit.duration {
            break;
        }
        tally.take_place().await;
        let due = if plan.rate.is_some() { due } else { env.now() };
        fill(&mut value, &noise, sent, due - started);
        match producer
            .queue(Record::to(topic.name.as_str()).value(&value))
            .await
        {
            Ok(ticket) => {
                let queue = usize::try_from(ticket.partition())
                    .ok()
                    .and_then(|p| queues.get(p));
                let queue = queue.ok_or_else(|| CliError::failed("the topic has grown"))?;
                // The collectors end after their queues.
                let _ = queue.send(Pending { due, ticket });
            }
            Err(error) => tally.settle(due, Err(error)),
        }
        sent += 1;
        if sent.is_multiple_of(YIELD_EVERY) {
            if let Some(progress) = progress {
                progress.at(tally.acknowledged.get());
            }
            tokio::task::yield_now().await;
        }
    }
    drop(queues);
    while collectors.join_next().await.is_some() {}
    let elapsed = env.now() - started;
    let tally =
        Rc::try_unwrap(tally).map_err(|_| CliError::failed("a collector outlived its queue"))?;
    let acknowledged = tally.acknowledged.get();
    Ok(LoadResult {
        acknowledged,
        failed: tally.failed.get(),
        bytes: acknowledged * plan.value_bytes as u64,
        elapsed,
        latencies: tally.latencies.into_inner(),
        first_error: tally.first_error.into_inner(),
    })
}

/// Waits until a record is due, and says from when its latency counts. The timer ticks once a
/// millisecond: what it adds by itself is no delay of the cluster's. A later wake-up is, since
/// then this process had no time for it.
async fn wait_until(env: &Env, due: Instant) -> Instant {
    if due <= env.now() {
        return due;
    }
    tokio::time::sleep_until(due).await;
    let woken = env.now();
    if woken.saturating_duration_since(due) <= TIMER_SLACK {
        woken
    } else {
        due
    }
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) limit: Limit,
    pub(super) value_bytes: usize,
    pub(super) window: u32,
    pub(super) rate: Option<u32>,
}

async fn collect(mut queue: mpsc::UnboundedReceiver<Pending>, tally: Rc<Tally>) {
    while let Some(Pending { due, ticket }) = queue.recv().await {
        let result = ticket.await;
        tally.settle(due, result.map(|_| ()));
    }
}

fn noise(env: &Env) -> Vec<u8> {
    let mut noise = Vec::with_capacity(NOISE_BYTES);
    while noise.len() < NOISE_BYTES {
        noise.extend_from_slice(&env.random_u64().to_ne_bytes());
    }
    noise
}

/// Makes the value of record `number`: the stamp, then noise.
fn fill(value: &mut [u8], noise: &[u8], number: u64, due: Duration) {
    let (stamp, body) = value.split_at_mut(STAMP_BYTES.min(value.len()));
    let micros = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
    let mut whole = [0; STAMP_BYTES];
    whole[..8].copy_from_slice(&number.to_be_bytes());
    whole[8..].copy_from_slice(&micros.to_be_bytes());
    stamp.copy_from_slice(&whole[..stamp.len()]);
    let span = noise.len().saturating_sub(body.len()).max(1);
    let start = (number as usize).wrapping_mul(4099) % span;
    let count = body.len().min(noise.len() - start);
    body[..count].copy_from_slice(&noise[start..start + count]);
}

/// Reads a stamp: the record's number and when it was due since the start.
pub(super) fn read_stamp(value: &[u8]) -> Option<(u64, Duration)> {
    let number = u64::from_be_bytes(value.get(..8)?.try_into().ok()?);
    let micros = u64::from_be_bytes(value.get(8..16)?.try_into().ok()?);
    Some((number, Duration::from_micros(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_carries_its_stamp_and_fresh_noise() {
        let noise: Vec<u8> = (0..1000u32).map(|byte| byte as u8).collect();
        let (mut first, mut second) = (vec![0; 100], vec![0; 100]);
        fill(&mut first, &noise, 7, Duration::from_micros(42));
        fill(&mut second, &noise, 8, Duration::from_micros(43));
        assert_eq!(read_stamp(&first), Some((7, Duration::from_micros(42))));
        assert_ne!(first[STAMP_BYTES..], second[STAMP_BYTES..]);
        assert_eq!(read_stamp(&first[..15]), None);
    }

    #[test]
    fn a_value_larger_than_the_noise_is_no_trouble() {
        let mut value = vec![0; 64];
        fill(&mut value, &[1; 8], u64::MAX, Duration::MAX);
        assert_eq!(read_stamp(&value).map(|stamp| stamp.0), Some(u64::MAX));
    }
}
