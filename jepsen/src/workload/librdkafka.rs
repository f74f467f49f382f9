//! librdkafka in the place of our own client, for producers and consumers. What creates topics,
//! watches and reads in the end stays ours.
//!
//! Stricter than it has to be: rust-rdkafka does not tell whether a failed record was possibly
//! written, so everything that was queued and failed is of unknown outcome.

use bytes::Bytes;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::consume::Taken;
use super::{DELIVERY_WAIT_MAX, REQUEST_WAIT_MAX, Shared};
use crate::history::{Acks, Answer, Key, Outcome};

/// The longest pause between two tries to connect: a run sees what happens after a restart.
const RECONNECT_MILLIS_MAX: u32 = 500;
/// How long a fetch waits for records.
const FETCH_WAIT_MILLIS: u32 = 250;
/// How long a batch waits for more.
const LINGER_MILLIS: u32 = 2;

fn config(shared: &Shared) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &*shared.bootstrap)
        .set("allow.auto.create.topics", "false")
        .set(
            "socket.timeout.ms",
            REQUEST_WAIT_MAX.as_millis().to_string(),
        )
        .set("reconnect.backoff.max.ms", RECONNECT_MILLIS_MAX.to_string());
    config
}

/// Ends a client where it may block: librdkafka waits for its own threads.
struct Discarded<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Drop for Discarded<T> {
    fn drop(&mut self) {
        let Some(client) = self.0.take() else { return };
        #[expect(
            clippy::disallowed_methods,
            reason = "a foreign library that blocks; nothing of ours waits for this thread"
        )]
        let spawned = std::thread::Builder::new()
            .name("librdkafka-end".to_owned())
            .spawn(move || drop(client));
        // Without a thread it was dropped here and now.
        drop(spawned);
    }
}

/// A producer.
pub struct Sender {
    producer: Discarded<FutureProducer>,
}

impl Sender {
    /// A new session.
    ///
    /// # Errors
    /// librdkafka's, as a sentence.
    pub fn new(shared: &Shared) -> Result<Sender, String> {
        let producer: FutureProducer = config(shared)
            .set("client.id", "jepsen-producer")
            .set(
                "acks",
                match shared.acks {
                    Acks::All => "all",
                    Acks::Leader => "1",
                    Acks::None => "0",
                },
            )
            .set("enable.idempotence", shared.idempotence.to_string())
            .set("linger.ms", LINGER_MILLIS.to_string())
            .set(
                "request.timeout.ms",
                REQUEST_WAIT_MAX.as_millis().to_string(),
            )
            .set(
                "message.timeout.ms",
                DELIVERY_WAIT_MAX.as_millis().to_string(),
            )
            .create()
            .map_err(|error| error.to_string())?;
        Ok(Sender {
            producer: Discarded(Some(producer)),
        })
    }

    /// Sends one record and classifies the outcome.
    pub async fn send(&self, key: &Key, bytes: &[u8]) -> Outcome {
        let Some(producer) = &self.producer.0 else {
            return fail("the producer is gone");
        };
        let partition = i32::try_from(key.partition).unwrap_or(i32::MAX);
        let record: FutureRecord<'_, (), [u8]> = FutureRecord::to(&key.topic)
            .partition(partition)
            .payload(bytes);
        let delivery = match producer.send_result(record) {
            Ok(delivery) => delivery,
            Err((error, _)) => return fail(&error.to_string()),
        };
        match delivery.await {
            // An acknowledged duplicate has no offset.
            Ok(Ok(delivered)) => Outcome::Ok(Answer::Sent {
                offset: (delivered.offset >= 0).then_some(delivered.offset),
            }),
            Ok(Err((error, _))) => Outcome::Unknown {
                error: error.to_string(),
            },
            Err(_) => Outcome::Unknown {
                error: "the producer ended first".to_owned(),
            },
        }
    }

    /// Whether it has given up for good.
    pub fn is_broken(&self) -> bool {
        let fatal = |producer: &FutureProducer| producer.client().fatal_error().is_some();
        self.producer.0.as_ref().is_none_or(fatal)
    }
}

fn fail(error: &str) -> Outcome {
    Outcome::Fail {
        error: error.to_owned(),
    }
}

/// A consumer by assignment.
pub struct Taker {
    consumer: Discarded<StreamConsumer>,
}

impl Taker {
    /// Begins at the start of these partitions.
    ///
    /// # Errors
    /// librdkafka's, as a sentence.
    pub fn new(shared: &Shared, keys: &[Key]) -> Result<Taker, String> {
        let consumer: StreamConsumer = config(shared)
            .set("client.id", "jepsen-consumer")
            // Asked for by the library, never used: partitions are assigned by hand.
            .set("group.id", "jepsen-unused")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", FETCH_WAIT_MILLIS.to_string())
            // A position that is not there is told, not replaced.
            .set("auto.offset.reset", "error")
            .create()
            .map_err(|error| error.to_string())?;
        let mut places = TopicPartitionList::new();
        for key in keys {
            let partition = i32::try_from(key.partition).map_err(|error| error.to_string())?;
            places
                .add_partition_offset(&key.topic, partition, Offset::Beginning)
                .map_err(|error| error.to_string())?;
        }
        consumer
            .assign(&places)
            .map_err(|error| error.to_string())?;
        Ok(Taker {
            consumer: Discarded(Some(consumer)),
        })
    }

    /// The next record.
    ///
    /// # Errors
    /// librdkafka's, as a sentence. What it repairs by itself is none.
    pub async fn next(&mut self) -> Result<Taken, String> {
        let Some(consumer) = &self.consumer.0 else {
            return Err("the consumer is gone".to_owned());
        };
        loop {
            match consumer.recv().await {
                Ok(message) => {
                    let offset = message.offset();
                    return Ok(Taken {
                        partition: message.partition(),
                        next: offset + 1,
                        // rust-rdkafka does not tell the leader epoch.
                        records: vec![(offset, -1, message.payload().map(Bytes::copy_from_slice))],
                        told: None,
                    });
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Whether the library goes on by itself after this.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::Resolve
        )
    )
}
