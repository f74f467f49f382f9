//! Sends records: gathers them into batches, and sees each one through to its acknowledgement.
//!
//! A record's life: [`Producer::queue`] waits for buffer space, picks the partition
//! (`partitioner`), and copies the record into that partition's open batch (`accumulator`,
//! `queue`). The `sender` task takes batches that are full or have lingered, seals them (`seal`),
//! writes one request per leader (`request`), and hands the answers back to the queue, where
//! `verdict` decides: settled, sent again, split, put into a new order, or failed. The batch's
//! [`Ticket`]s hear of it through one shared completion (`ticket`).

mod accumulator;
mod batch;
mod partitioner;
mod queue;
mod record;
mod request;
mod seal;
mod sender;
mod ticket;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use corduroy_record::Compression;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::timeout;

pub use record::{Payload, Record};
pub use ticket::{RecordMetadata, Ticket};

use accumulator::{Accumulator, Choice, Offer, Offered, Spread};
use batch::Settled;
use queue::Rules;
use sender::Sender;

use crate::client::ClientShared;
use crate::config::{Acks, ProducerSettings, Settings, validate_producer};
use crate::error::{Error, ErrorKind};
use crate::metadata::Asker;
use crate::sync::Lock;

/// Batches of each producer that a broker remembers (Kafka: `ProducerStateEntry`).
const IDEMPOTENT_WINDOW: usize = 5;

/// Bytes of a batch around its records.
const BATCH_OVERHEAD_BYTES: usize = corduroy_record::BATCH_HEADER_BYTES;

/// What the handles of a producer and its sender share.
struct Shared {
    client: Arc<ClientShared>,
    settings: ProducerSettings,
    accumulator: Lock<Accumulator>,
    /// Free bytes of `buffer.memory`.
    space: Semaphore,
    /// Calls that wait for space: batches then go without lingering.
    short_of_space: AtomicUsize,
    wake: Notify,
    closing: AtomicBool,
    finished: AtomicBool,
    finish: Notify,
}

impl Shared {
    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Takes no more records; what is queued is still sent.
    fn start_closing(&self) {
        self.closing.store(true, Ordering::Release);
        self.space.close();
        // Nothing waits for more records any more.
        self.accumulator.lock().flush();
        self.wake.notify_one();
    }

    /// The sender has ended.
    fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.finish.notify_waiters();
    }

    /// Tells the tickets, and frees the space.
    fn settle(&self, settled: Vec<Settled>) {
        let freed = settled.iter().map(|settled| settled.freed_bytes).sum();
        if freed > 0 {
            self.space.add_permits(freed);
        }
        for settled in settled {
            settled.tell();
        }
    }
}

/// The last handle that goes closes the producer.
struct Handle {
    /// The error is a contradiction between settings, told by each call.
    shared: Result<Arc<Shared>, Error>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(shared) = &self.shared {
            shared.start_closing();
        }
    }
}

/// Sends records. Cheap to clone; usable from any number of tasks.
///
/// Idempotent by default: each record is written once, and records of one partition in the order
/// in which they were queued, whatever is retried and whichever leader dies. (With lower `acks`,
/// or without idempotence, retries may duplicate and reorder, as with any Kafka client.)
///
/// When the last handle is dropped, what is queued is still sent in the background, for as long as
/// the runtime lives; [`Producer::close`] waits for that.
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

impl Producer {
    fn shared(&self) -> Result<&Arc<Shared>, Error> {
        self.handle.shared.as_ref().map_err(Clone::clone)
    }

    /// Sends a record and waits for its acknowledgement.
    ///
    /// To send many, [`queue`](Producer::queue) them and await the tickets: this call alone waits
    /// for `linger.ms` and a round trip each time.
    ///
    /// Not cancel-safe in one respect: dropped halfway, the record may or may not be written.
    ///
    /// # Errors
    /// Those of [`queue`](Producer::queue), with nothing written; afterwards those of the broker
    /// and DeliveryTimeout. [`Error::outcome`] says whether the record may have been written.
    pub async fn send(&self, record: Record<'_>) -> Result<RecordMetadata, Error> {
        self.queue(record).await?.await
    }

    /// Gives a record its place: waits for buffer space, picks the partition and puts it into that
    /// partition's batch. When it returns, the record is on its way, behind all records that were
    /// queued for its partition before; the ticket is its acknowledgement.
    ///
    /// Cancel-safe: dropped before it returns, the record is not sent.
    ///
    /// # Errors
    /// Nothing has been written. BlockTimeout or UnknownTopic after `max.block.ms`,
    /// UnknownPartition, RecordTooLarge, InvalidRecord, Config, Closed.
    pub async fn queue(&self, record: Record<'_>) -> Result<Ticket, Error> {
        // A loop that only queues lets the sender run all the same.
        tokio::task::consume_budget().await;
        let shared = self.shared()?;
        let size_bytes = record.size_bound();
        shared.check_size(&record, size_bytes)?;
        let space = match shared.space.try_acquire_many(size_bytes as u32) {
            Ok(space) => space,
            Err(TryAcquireError::Closed) => return Err(Error::closed("the producer")),
            Err(TryAcquireError::NoPermits) => shared.wait_for_space(size_bytes).await?,
        };
        let ticket = match shared.offer(&record, size_bytes)? {
            Offered::Queued { ticket, wake } => {
                if wake {
                    shared.wake.notify_one();
                }
                ticket
            }
            _ => shared.find_topic(&record, size_bytes).await?,
        };
        // Freed when the batch is settled.
        space.forget();
        Ok(ticket)
    }

    /// Sends what is queued without lingering, and waits until it is settled. What is queued
    /// meanwhile is not waited for.
    ///
    /// Cancel-safe: everything is sent all the same.
    ///
    /// # Errors
    /// The first failure of a record that was not settled when the call began.
    pub async fn flush(&self) -> Result<(), Error> {
        let shared = self.shared()?;
        let open = shared.accumulator.lock().flush();
        shared.wake.notify_one();
        let mut first = Ok(());
        for completion in open {
            let finished = completion.finished().await;
            if first.is_ok() {
                first = finished;
            }
        }
        first
    }

    /// Takes no more records, from any handle, sends what is queued and waits for it.
    ///
    /// Cancel-safe: the producer is closed all the same.
    ///
    /// # Errors
    /// The first failure of a record that was not settled when the call began.
    pub async fn close(self) -> Result<(), Error> {
        let shared = self.shared()?;
        let open = shared.accumulator.lock().flush();
        shared.start_closing();
        let mut first = Ok(());
        for completion in open {
            let finished = completion.finished().await;
            if first.is_ok() {
                first = finished;
            }
        }
        loop {
            let finished = shared.finish.notified();
            tokio::pin!(finished);
            // Listens before it looks: the sender may end in between.
            finished.as_mut().enable();
            if shared.finished.load(Ordering::Acquire) {
                return first;
            }
            finished.await;
        }
    }
}

impl Shared {
    fn check_size(&self, record: &Record<'_>, size_bytes: usize) -> Result<(), Error> {
        let request_max = self.settings.request_bytes_max;
        let (limit, name) = if size_bytes + BATCH_OVERHEAD_BYTES > request_max {
            (request_max, "max.request.size")
        } else if size_bytes > self.settings.buffer_bytes {
            (self.settings.buffer_bytes, "buffer.memory")
        } else {
            return Ok(());
        };
        let message = format!("the record takes up to {size_bytes} bytes, {name} is {limit}");
        Err(Error::new(ErrorKind::RecordTooLarge, message).with_topic(&(&*record.topic).into()))
    }

    async fn wait_for_space(&self, size_bytes: usize) -> Result<SemaphorePermit<'_>, Error> {
        /// Counted as long as it lives, so that a cancelled call is not counted for ever.
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.short_of_space.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.short_of_space);
        self.wake.notify_one();
        let limit = self.settings.block_max;
        match timeout(limit, self.space.acquire_many(size_bytes as u32)).await {
            Ok(Ok(space)) => Ok(space),
            Ok(Err(_closed)) => Err(Error::closed("the producer")),
            Err(_elapsed) => {
                let message = format!("no buffer space within {limit:?} (max.block.ms)");
                Err(Error::new(ErrorKind::BlockTimeout, message))
            }
        }
    }

    fn offer(&self, record: &Record<'_>, size_bytes: usize) -> Result<Offered, Error> {
        let env = &self.client.net.env;
        let timestamp = record.timestamp.unwrap_or_else(|| env.unix_millis());
        let offer = Offer {
            record,
            size_bytes,
            timestamp,
        };
        let choice = |topic: &str| {
            let image = self.client.metadata.image();
            let partitions = image.topics.get(topic).map(|topic| &topic.partitions[..]);
            let has_leader = |partition: &crate::metadata::PartitionImage| {
                partition
                    .leader
                    .is_some_and(|id| image.brokers.contains_key(&id))
            };
            Choice {
                available: partitions
                    .unwrap_or_default()
                    .iter()
                    .map(has_leader)
                    .collect(),
                random: env.random_u64(),
            }
        };
        let mut accumulator = self.accumulator.lock();
        if self.is_closing() {
            return Err(Error::closed("the producer"));
        }
        accumulator
            .offer(&offer, || env.now(), choice)
            .map_err(|error| {
                Error::new(
                    ErrorKind::InvalidRecord,
                    format!("cannot write the record: {error}"),
                )
                .with_source(error)
                .with_topic(&(&*record.topic).into())
            })
    }

    /// Finds out about the record's topic, then queues the record.
    async fn find_topic(&self, record: &Record<'_>, size_bytes: usize) -> Result<Ticket, Error> {
        let metadata = &self.client.metadata;
        let limit = self.settings.block_max;
        let deadline = self.client.net.env.now() + limit;
        let late = |error: Error| match error.kind() {
            ErrorKind::ApiTimeout
            | ErrorKind::Disconnected
            | ErrorKind::NotServing
            | ErrorKind::RequestTimeout => {
                let message = format!("no metadata within {limit:?} (max.block.ms): {error}");
                Error::new(ErrorKind::BlockTimeout, message).with_source(error)
            }
            _ => error,
        };
        let mut refreshed = false;
        loop {
            let topic = metadata
                .topic(&record.topic, Asker::Producer, deadline)
                .await
                .map_err(late)?;
            self.accumulator
                .lock()
                .set_partitions(&topic.name, topic.partitions.len());
            match self.offer(record, size_bytes)? {
                Offered::Queued { ticket, wake } => {
                    if wake {
                        self.wake.notify_one();
                    }
                    return Ok(ticket);
                }
                // Partitions may have been added since.
                _ if !refreshed => {
                    refreshed = true;
                    metadata.refresh(deadline).await.map_err(late)?;
                }
                Offered::UnknownPartition { partitions } => {
                    let partition = record.partition.unwrap_or(-1);
                    let message = format!("the topic has {partitions} partitions");
                    return Err(Error::new(ErrorKind::UnknownPartition, message)
                        .with_partition(&topic.name, partition));
                }
                Offered::UnknownTopic => {
                    let message = "the topic has no partitions";
                    return Err(
                        Error::new(ErrorKind::UnknownTopic, message).with_topic(&topic.name)
                    );
                }
            }
        }
    }
}

/// Configures a [`Producer`]. Made by [`Client::producer`](crate::Client::producer); the defaults
/// are Kafka's, or what the client's properties say.
#[must_use = "a builder does nothing until it is built"]
pub struct ProducerBuilder {
    client: Arc<ClientShared>,
    settings: Settings,
    error: Option<Error>,
}

impl ProducerBuilder {
    pub(crate) fn new(client: Arc<ClientShared>, settings: Settings) -> ProducerBuilder {
        ProducerBuilder {
            client,
            settings,
            error: None,
        }
    }

    fn edit(mut self, edit: impl FnOnce(&mut ProducerSettings)) -> ProducerBuilder {
        edit(&mut self.settings.producer);
        self
    }

    /// `acks`: when a record counts as written.
    pub fn acks(self, acks: Acks) -> ProducerBuilder {
        self.edit(|settings| settings.acks = acks)
    }

    /// `enable.idempotence=false`: retries may duplicate and reorder.
    pub fn without_idempotence(self) -> ProducerBuilder {
        self.edit(|settings| settings.idempotence = Some(false))
    }

    /// `linger.ms`: how long a batch waits for more records.
    pub fn linger(self, linger: Duration) -> ProducerBuilder {
        self.edit(|settings| settings.linger = linger)
    }

    /// `batch.size`: bytes at which a batch is full.
    pub fn batch_size(self, bytes: usize) -> ProducerBuilder {
        self.edit(|settings| settings.batch_bytes = bytes)
    }

    /// `buffer.memory`: bytes of records that may wait.
    pub fn buffer_memory(self, bytes: usize) -> ProducerBuilder {
        self.edit(|settings| settings.buffer_bytes = bytes)
    }

    /// `max.block.ms`: longest wait for buffer space and metadata.
    pub fn max_block(self, limit: Duration) -> ProducerBuilder {
        self.edit(|settings| settings.block_max = limit)
    }

    /// `max.request.size`: largest request in bytes, hence largest record.
    pub fn max_request_size(self, bytes: usize) -> ProducerBuilder {
        self.edit(|settings| settings.request_bytes_max = bytes)
    }

    /// `max.in.flight.requests.per.connection`: at most 5 with idempotence.
    pub fn max_in_flight(self, requests: usize) -> ProducerBuilder {
        self.edit(|settings| settings.in_flight_max = requests)
    }

    /// `delivery.timeout.ms`: longest time from queueing a record to its success or failure. At
    /// least `linger.ms` + `request.timeout.ms`.
    pub fn delivery_timeout(self, limit: Duration) -> ProducerBuilder {
        self.edit(|settings| {
            settings.delivery_timeout = limit;
            settings.delivery_timeout_explicit = true;
        })
    }

    /// `retries`: how often a batch is sent again. Leave it; the delivery timeout decides.
    pub fn retries(self, retries: u32) -> ProducerBuilder {
        self.edit(|settings| settings.retries = retries)
    }

    /// `compression.type`: codec of the batches.
    pub fn compression(self, codec: Compression) -> ProducerBuilder {
        self.edit(|settings| settings.compression = codec)
    }

    /// Any producer property, by Kafka's name. A wrong one is told by the producer's first call.
    pub fn set(mut self, name: &str, value: &str) -> ProducerBuilder {
        if let Err(error) = self.settings.apply(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Starts the producer. Contradictions between settings are told by its first call.
    pub fn build(mut self) -> Producer {
        let request_timeout = self.client.net.settings.request_timeout;
        let valid = match self.error.take() {
            Some(error) => Err(error),
            None => validate_producer(&mut self.settings.producer, request_timeout),
        };
        let shared = valid.map(|()| start(self.client, self.settings.producer));
        Producer {
            handle: Arc::new(Handle { shared }),
        }
    }
}

fn start(client: Arc<ClientShared>, settings: ProducerSettings) -> Arc<Shared> {
    let idempotent = settings.is_idempotent();
    let window = match idempotent {
        true => settings.in_flight_max.min(IDEMPOTENT_WINDOW),
        false => settings.in_flight_max,
    };
    let rules = Rules {
        idempotent,
        window,
        linger: settings.linger,
        // A batch has to fit into a request.
        batch_bytes: settings.batch_bytes.min(settings.request_bytes_max),
        compression: settings.compression,
        delivery_timeout: settings.delivery_timeout,
        retries: settings.retries,
    };
    let spread = Spread {
        ignore_keys: settings.ignore_keys,
        adaptive: settings.adaptive,
    };
    let shared = Arc::new(Shared {
        accumulator: Lock::new(Accumulator::new(rules, spread)),
        space: Semaphore::new(settings.buffer_bytes.min(Semaphore::MAX_PERMITS)),
        short_of_space: AtomicUsize::new(0),
        wake: Notify::new(),
        closing: AtomicBool::new(false),
        finished: AtomicBool::new(false),
        finish: Notify::new(),
        settings,
        client,
    });
    shared
        .client
        .net
        .tasks
        .spawn(Sender::new(shared.clone()).run());
    shared
}
