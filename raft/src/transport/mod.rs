//! Connections between shards: one outgoing per (peer node, shard), any number incoming.
//!
//! Knows messages and who wants them; knows no Raft.

mod forwarding;
mod inbound;
mod link;
mod outbox;
mod switchboard;

pub(crate) use forwarding::Forwarded;
pub(crate) use inbound::{ReplyPath, serve};
pub(crate) use outbox::Outbox;
pub(crate) use switchboard::{AskError, Requests, StreamSlot, Switchboard};
