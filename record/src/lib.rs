//! Ids and Kafka's record batches (format v2, "magic 2"), from the producer's socket to the disk
//! to the consumer's socket without re-encoding.
//!
//! | file | holds |
//! |---|---|
//! | `ids` | the numbers, each with its own type |
//! | `header` | the 61-byte batch header, the attributes |
//! | `batch` | one batch in two pieces, stamping, validation, splitting a payload |
//! | `records` | the lazy record iterator |
//! | `inspect` | the walk over a batch's records before it enters a log |
//! | `builder` | batches from records |
//! | `compression`, `snappy`, `lz4`, `zstandard` | the five codecs under a hard output cap |
//! | `checksum`, `murmur2`, `varint` | CRC-32C, Kafka's key hash, zigzag numbers |
//!
//! Any bytes may come in: nothing here panics on them, and nothing allocates more than the input's
//! own size, the caller's output cap and [`CODEC_SCRATCH_BYTES_MAX`] together.

mod batch;
mod builder;
mod checksum;
mod compression;
mod error;
mod header;
pub mod ids;
mod inspect;
mod lz4;
mod murmur2;
mod records;
mod snappy;
mod varint;
mod zstandard;

pub use batch::{
    Batch, BatchesIter, ControlRule, ValidateRules, ZstdRule, parse_many, parse_single,
};
pub use builder::{BatchBuilder, BuilderOptions};
pub use checksum::crc32c;
pub use compression::{CODEC_SCRATCH_BYTES_MAX, Compression};
pub use error::BatchError;
pub use header::{
    Attributes, BATCH_HEAD_BYTES, BATCH_HEADER_BYTES, BatchHeader, MAGIC_V2, SEQUENCE_NONE,
    TimestampType, sequence_after,
};
pub use ids::{
    GroupId, LeaderEpoch, LogIndex, NodeId, Offset, PartitionIndex, ProducerEpoch, ProducerId,
    ReplicaId, Term, TopicId, TopicPartition,
};
pub use inspect::{
    INSPECT_STEP_BYTES, InspectRules, Inspected, Inspection, KEYLESS_RECORDS_MAX, KeyRule,
};
pub use murmur2::{murmur2, partition_for_key};
pub use records::{RECORD_HEADERS_MAX, Record, RecordIter};
