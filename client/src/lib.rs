//! Corduroy's client: producer, reader, groups and admin for any Kafka-compatible cluster.
//!
//! ```no_run
//! use std::time::Duration;
//! use corduroy_client::{Acks, Client, From, Record};
//!
//! # async fn example() -> Result<(), corduroy_client::Error> {
//! let client = Client::connect("localhost:9092").await?;
//!
//! let admin = client.admin();
//! admin.create_topic("orders").partitions(12).replication(3).ensure().await?;
//!
//! let orders = client.producer().acks(Acks::All).linger(Duration::from_millis(5)).build();
//! let meta = orders.send(Record::to("orders").key("42").value("one coat")).await?;
//! println!("acknowledged at {}/{:?}", meta.partition, meta.offset);
//!
//! let ticket = orders.queue(Record::to("orders").key("43").value("two hats")).await?;
//! ticket.await?;
//!
//! let mut reader = client.read("orders").from(From::Earliest).until_high_watermark();
//! while let Some(batch) = reader.next().await {
//!     for record in &batch? {
//!         println!("{:?} = {:?}", record.key(), record.value());
//!     }
//! }
//!
//! let mut app = client.group("billing").topics(["orders"]).from(From::Earliest).join().await?;
//! while let Some(batch) = app.next().await {
//!     let batch = batch?;
//!     for record in &batch {
//!         println!("{:?}", record.value());
//!     }
//!     batch.commit().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Settings carry Kafka's names and defaults ([`PROPERTIES`]). Everything is `Send`, and works on
//! a current-thread runtime as well. Transactions are not here yet.
//!
//! | module | holds |
//! |---|---|
//! | `client` | the client, its builder, calls that any broker can answer |
//! | `config` | the table of names, properties, typed settings |
//! | `error` | the one error, with kind, outcome and context |
//! | `net` | connections, versions, pools |
//! | `metadata` | who leads what |
//! | `producer`, `reader`, `group`, `admin` | what the names say |
//! | `offsets` | offsets by time |

mod admin;
mod backoff;
mod client;
mod config;
mod error;
mod group;
mod metadata;
mod net;
mod offsets;
mod producer;
mod reader;
mod sync;
mod task;
mod topic_partition;

pub use admin::{
    Admin, AdminCall, AlterConfigs, BrokerDescription, ClusterDescription, ConfigEntry,
    ConfigResource, ConfigSource, CreateTopic, CreatedTopic, DescribeTopic, GroupDescription,
    GroupListing, MemberDescription, PartitionDescription, PartitionOffsets, TopicDescription,
    TopicListing,
};
pub use client::{Client, ClientBuilder, parse_bootstrap_servers};
pub use config::{
    Acks, GroupProtocol, Isolation, OutOfRange, PROPERTIES, Property, Scope, Strategy, Support,
};
pub use corduroy_protocol::ErrorCode;
pub use corduroy_record::{Compression, TimestampType};
pub use error::{Error, ErrorContext, ErrorKind, Outcome};
pub use group::{
    Batch, Commits, CommittedOffset, CommittedOffsets, Group, GroupBuilder, GroupEvent,
    GroupEvents, Uncommitted,
};
pub use offsets::{ListedOffset, OffsetSpec};
pub use producer::{Payload, Producer, ProducerBuilder, Record, RecordMetadata, Ticket};
pub use reader::{From, ReadBatch, ReadRecord, Reader, ReaderBuilder, Records, Told};
pub use topic_partition::TopicPartition;
