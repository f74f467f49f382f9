//! Kafka's API on a shard: connections, and one file per family of requests.
//!
//! | file | holds |
//! |---|---|
//! | `connection` | frames in, replies out in request order |
//! | `dispatch` | which handler serves which request |
//! | `produce`, `fetch`, `offsets` | the data path |
//! | `metadata`, `api_versions`, `producer_ids` | what clients ask first |
//! | `topics`, `configs`, `cluster` | administration |
//! | `memory`, `counters` | budgets and what is counted |

mod api_versions;
mod cluster;
mod configs;
mod connection;
mod context;
mod counters;
mod dispatch;
mod fetch;
mod memory;
mod metadata;
mod offsets;
mod produce;
mod producer_ids;
mod routes;
mod topics;

pub use connection::serve_connection;
pub use counters::{BUCKET_MICROS, CounterValues, Counters};
pub use memory::{MemoryBudget, REQUEST_MEMORY_BYTES_MAX};
pub use producer_ids::ProducerIds;
pub use routes::{Route, Routes};
