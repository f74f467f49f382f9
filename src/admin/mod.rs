//! The admin port: metrics, health and the few operations that Kafka's protocol has no word for.
//!
//! It runs on a small thread of its own, so that a scrape never takes time from a shard. It owns
//! no state: whatever it shows, it asks for.

mod connections;
mod health;
mod histogram;
mod metrics;
mod server;
mod status;

pub use health::{ClusterHealth, Readiness, cluster_health, readiness};
pub use histogram::{BUCKET_BOUNDS_SECONDS, Histogram};
pub use metrics::{Detail, render as render_metrics};
pub use server::{
    AdminServer, AdminServices, DecommissionAnswer, DecommissionError, DecommissionFn, LeadAnswer,
    LeadError, LeadFn, LeadRequest, Refusal, StatusFn, start,
};
pub use status::{
    ApiStatus, BrokenReplica, GroupView, KafkaStatus, LocalReplica, NodeStatus, NodeView,
    PartitionView, RaftStatus, ShardStatus, StorageStatus,
};
