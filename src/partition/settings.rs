//! The configuration that a partition's hot path reads, resolved once per change.

use std::time::Duration;

use corduroy_storage::LogConfig;

pub use crate::config::TimestampType;
use crate::config::{ClusterConfigs, TopicConfigs};
use crate::controller::{MetadataImage, TopicInfo};

/// A partition's settings; topic configuration first, cluster configuration behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionSettings {
    /// `min.insync.replicas`. Above the replication factor, `acks=all` is always refused, as in
    /// Kafka.
    pub min_insync_replicas: usize,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `retention.ms`; none keeps for ever.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`; none keeps everything.
    pub retention_bytes: Option<u64>,
    /// Whether `cleanup.policy` contains `delete`.
    pub cleanup_delete: bool,
    /// How segments are cut: `segment.bytes`, `segment.ms`, `index.interval.bytes`.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_max: Duration,
    /// `producer.id.expiration.ms`.
    pub producer_expiration_ms: i64,
}

impl PartitionSettings {
    /// What `image` says of a partition of `topic`.
    pub fn resolve(image: &MetadataImage, topic: &TopicInfo, replicas: usize) -> Self {
        let configs = TopicConfigs::resolve(&topic.configs, &image.cluster_configs, replicas);
        let cluster = ClusterConfigs::resolve(&image.cluster_configs, image.nodes.len());
        Self {
            min_insync_replicas: configs.min_insync_replicas,
            timestamp_type: configs.timestamp_type,
            timestamp_before_max_ms: configs.timestamp_before_max_ms,
            timestamp_after_max_ms: configs.timestamp_after_max_ms,
            retention_ms: configs.retention_ms,
            retention_bytes: configs.retention_bytes,
            cleanup_delete: configs.cleanup_policy.delete,
            segment_bytes: configs.segment_bytes,
            segment_ms: configs.segment_ms,
            index_interval_bytes: configs.index_interval_bytes,
            replica_lag_max: cluster.replica_lag_time_max,
            producer_expiration_ms: cluster.producer_expiration_ms,
        }
    }

    /// The part that the log needs.
    pub fn log_config(&self) -> LogConfig {
        LogConfig {
            segment_bytes: self.segment_bytes,
            segment_ms: self.segment_ms,
            index_interval_bytes: self.index_interval_bytes,
        }
    }
}
