//! Corduroy's client: producer, reader and admin for any Kafka-compatible cluster.
mod backoff;
mod config;
mod error;
mod metadata;
mod net;
mod producer;
mod sync;
mod task;
