//! Kafka's API on a shard: connections, and one file per family of requests.
//!
//! | file | holds |
//! |---|---|
//! | `connection` | frames in, replies out in request order |
//! | `dispatch` | which handler serves which request |
//! | `produce`, `fetch`, `offsets` | the data path |
//! | `metadata`, `api_versions`, `producer_ids` | what clients ask first |
//! | `topics`, `configs`, `cluster` | administration |
//! | `groups` | consumer groups |

mod api_versions;
mod cluster;
mod configs;
mod connection;
mod context;
mod dispatch;
mod fetch;
mod groups;
mod metadata;
mod offsets;
mod produce;
mod producer_ids;
mod topics;

pub use connection::serve_connection;
