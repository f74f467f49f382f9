//! The node of Corduroy: shards, partitions, the controller, Kafka's API, and the command line.
//!
//! `ARCHITECTURE.md` tells how a produce and a fetch walk through these rooms.

pub mod admin;
pub mod bench;
pub mod cli;
pub mod config;
pub mod controller;
pub mod demo;
mod group;
mod kafka;
mod leadership;
mod metadata;
pub mod node;
mod partition;
mod shard;
mod walk;
