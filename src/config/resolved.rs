//! Configuration as typed values, for the code that acts on it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use corduroy_group::consumer::MigrationPolicy;
use corduroy_group::consumer::assign::Assignor;

use super::effective::{Facts, cluster_value, topic_value};
use super::key::list_items;
use super::table;

/// Whose clock stamps a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The leader's, when it appends.
    LogAppendTime,
}

/// What happens to old records. At least one of the two is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Old segments are deleted.
    pub delete: bool,
    /// Records are compacted by key.
    pub compact: bool,
}

/// The settings of one topic that code acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfigs {
    /// `cleanup.policy`
    pub cleanup_policy: CleanupPolicy,
    /// `index.interval.bytes`
    pub index_interval_bytes: u32,
    /// `max.message.bytes`: the largest batch as received.
    pub max_message_bytes: usize,
    /// `message.timestamp.after.max.ms`
    pub timestamp_after_max_ms: i64,
    /// `message.timestamp.before.max.ms`
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.type`
    pub timestamp_type: TimestampType,
    /// `min.insync.replicas`
    pub min_insync_replicas: usize,
    /// `retention.bytes`; none keeps everything.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; none keeps everything.
    pub retention_ms: Option<i64>,
    /// `segment.bytes`
    pub segment_bytes: u32,
    /// `segment.ms`
    pub segment_ms: i64,
}

impl TopicConfigs {
    /// Resolves a topic's own settings over the cluster's over the defaults.
    ///
    /// Values were checked when they were stored. One that no longer parses counts as unset.
    pub fn resolve(
        topic: &BTreeMap<String, String>,
        cluster: &BTreeMap<String, String>,
        replication_factor: usize,
    ) -> TopicConfigs {
        let facts = Facts {
            nodes: replication_factor,
            replication_factor,
        };
        let text = |name: &str| {
            table::topic_key(name)
                .and_then(|key| topic_value(key, topic, cluster, facts).value)
                .unwrap_or_default()
        };
        let policy = text("cleanup.policy");
        let policies = list_items(&policy);
        let compact = policies.contains(&"compact");
        let timestamp_type = match text("message.timestamp.type").as_str() {
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        };
        TopicConfigs {
            cleanup_policy: CleanupPolicy {
                delete: policies.contains(&"delete") || !compact,
                compact,
            },
            index_interval_bytes: number(&text("index.interval.bytes"), 4096),
            max_message_bytes: number(&text("max.message.bytes"), 1_048_588),
            timestamp_after_max_ms: number(&text("message.timestamp.after.max.ms"), 3_600_000),
            timestamp_before_max_ms: number(&text("message.timestamp.before.max.ms"), i64::MAX),
            timestamp_type,
            min_insync_replicas: number(&text("min.insync.replicas"), 1),
            retention_bytes: text("retention.bytes").parse().ok(),
            retention_ms: text("retention.ms")
                .parse()
                .ok()
                .filter(|ms: &i64| *ms >= 0),
            segment_bytes: number(&text("segment.bytes"), 1 << 30),
            segment_ms: number(&text("segment.ms"), 604_800_000),
        }
    }
}

/// The cluster's settings that code acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfigs {
    /// `auto.create.topics.enable`
    pub auto_create_topics: bool,
    /// `num.partitions`
    pub num_partitions: i32,
    /// `default.replication.factor`
    pub default_replication_factor: usize,
    /// `replica.lag.time.max.ms`
    pub replica_lag_time_max: Duration,
    /// `delete.topic.enable`
    pub delete_topics: bool,
    /// `producer.id.expiration.ms`
    pub producer_expiration_ms: i64,
    /// `transaction.max.timeout.ms`
    pub transaction_max_timeout_ms: i32,
    /// Consumer groups.
    pub groups: GroupConfigs,
}

/// The settings of consumer groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfigs {
    /// `offsets.topic.num.partitions`
    pub topic_partitions: i32,
    /// `offsets.topic.replication.factor`
    pub topic_replication_factor: usize,
    /// `offsets.topic.segment.bytes`
    pub topic_segment_bytes: u32,
    /// `offsets.retention.minutes`, in milliseconds
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`
    pub offsets_retention_check: Duration,
    /// `offsets.commit.timeout.ms`
    pub offsets_commit_timeout: Duration,
    /// `offset.metadata.max.bytes`
    pub offset_metadata_max: usize,
    /// `group.initial.rebalance.delay.ms`
    pub initial_rebalance_delay: Duration,
    /// `group.min.session.timeout.ms`
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`
    pub session_timeout_max: Duration,
    /// `group.max.size`
    pub members_max: usize,
    /// `group.coordinator.max.groups`
    pub groups_max: usize,
    /// `group.coordinator.max.pending.members`
    pub pending_members_max: usize,
    /// `group.consumer.session.timeout.ms`, within its bounds
    pub consumer_session_timeout: Duration,
    /// `group.consumer.heartbeat.interval.ms`, within its bounds
    pub consumer_heartbeat_interval: Duration,
    /// `group.consumer.assignors`; not empty
    pub consumer_assignors: Vec<Assignor>,
    /// `group.consumer.max.size`
    pub consumer_members_max: usize,
    /// `group.consumer.migration.policy`
    pub consumer_migration: MigrationPolicy,
}

impl GroupConfigs {
    fn resolve(text: impl Fn(&str) -> String) -> GroupConfigs {
        let millis =
            |name: &str, otherwise: u64| Duration::from_millis(number(&text(name), otherwise));
        // The upper bound counts where somebody has crossed the two.
        let within = |name: &str, otherwise: u64, least: &str, most: &str| {
            let least = millis(least, 1);
            millis(name, otherwise)
                .max(least)
                .min(millis(most, i32::MAX as u64))
        };
        let mut assignors: Vec<Assignor> = list_items(&text("group.consumer.assignors"))
            .into_iter()
            .filter_map(Assignor::from_name)
            .collect();
        if assignors.is_empty() {
            assignors.extend(Assignor::ALL);
        }
        GroupConfigs {
            topic_partitions: number(&text("offsets.topic.num.partitions"), 50),
            topic_replication_factor: number(&text("offsets.topic.replication.factor"), 3),
            topic_segment_bytes: number(&text("offsets.topic.segment.bytes"), 104_857_600),
            offsets_retention_ms: number::<i64>(&text("offsets.retention.minutes"), 10_080)
                .saturating_mul(60_000),
            offsets_retention_check: millis("offsets.retention.check.interval.ms", 600_000),
            offsets_commit_timeout: millis("offsets.commit.timeout.ms", 5000),
            offset_metadata_max: number(&text("offset.metadata.max.bytes"), 4096),
            initial_rebalance_delay: millis("group.initial.rebalance.delay.ms", 3000),
            session_timeout_min: millis("group.min.session.timeout.ms", 6000),
            session_timeout_max: millis("group.max.session.timeout.ms", 1_800_000),
            members_max: number(&text("group.max.size"), i32::MAX as usize),
            groups_max: number(&text("group.coordinator.max.groups"), 10_000),
            pending_members_max: number(&text("group.coordinator.max.pending.members"), 10_000),
            consumer_session_timeout: within(
                "group.consumer.session.timeout.ms",
                45_000,
                "group.consumer.min.session.timeout.ms",
                "group.consumer.max.session.timeout.ms",
            ),
            consumer_heartbeat_interval: within(
                "group.consumer.heartbeat.interval.ms",
                5000,
                "group.consumer.min.heartbeat.interval.ms",
                "group.consumer.max.heartbeat.interval.ms",
            ),
            consumer_assignors: assignors,
            consumer_members_max: number(&text("group.consumer.max.size"), i32::MAX as usize),
            consumer_migration: MigrationPolicy::from_name(&text(
                "group.consumer.migration.policy",
            ))
            .unwrap_or(MigrationPolicy::Bidirectional),
        }
    }
}

impl ClusterConfigs {
    /// Resolves the cluster's settings over the defaults for a cluster of `nodes` nodes.
    pub fn resolve(cluster: &BTreeMap<String, String>, nodes: usize) -> ClusterConfigs {
        let facts = Facts {
            nodes,
            replication_factor: nodes.clamp(1, 3),
        };
        let text = |name: &str| {
            table::cluster_key(name)
                .and_then(|key| cluster_value(key, cluster, facts).value)
                .unwrap_or_default()
        };
        ClusterConfigs {
            auto_create_topics: number(&text("auto.create.topics.enable"), true),
            num_partitions: number(&text("num.partitions"), 4),
            default_replication_factor: number(&text("default.replication.factor"), 1),
            replica_lag_time_max: Duration::from_millis(number(
                &text("replica.lag.time.max.ms"),
                30_000,
            )),
            delete_topics: number(&text("delete.topic.enable"), true),
            producer_expiration_ms: number(&text("producer.id.expiration.ms"), 86_400_000),
            transaction_max_timeout_ms: number(&text("transaction.max.timeout.ms"), 900_000),
            groups: GroupConfigs::resolve(text),
        }
    }
}

fn number<T: FromStr>(text: &str, otherwise: T) -> T {
    text.parse().unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_table() {
        let none = BTreeMap::new();
        let topic = TopicConfigs::resolve(&none, &none, 3);
        assert_eq!(topic.min_insync_replicas, 2);
        assert_eq!(topic.retention_bytes, None);
        assert_eq!(topic.retention_ms, Some(604_800_000));
        assert_eq!(
            topic.cleanup_policy,
            CleanupPolicy {
                delete: true,
                compact: false
            }
        );
        let cluster = ClusterConfigs::resolve(&none, 2);
        assert_eq!(cluster.num_partitions, 4);
        assert_eq!(cluster.default_replication_factor, 2);
        assert_eq!(cluster.replica_lag_time_max, Duration::from_secs(30));
        assert!(cluster.auto_create_topics);
        let groups = cluster.groups;
        assert_eq!(groups.consumer_session_timeout, Duration::from_secs(45));
        assert_eq!(groups.consumer_assignors, Assignor::ALL);
        assert_eq!(groups.offsets_commit_timeout, Duration::from_secs(5));
    }

    #[test]
    fn settings_of_groups_stay_within_their_bounds() {
        let set = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let cluster: BTreeMap<String, String> = pairs.collect();
            ClusterConfigs::resolve(&cluster, 3).groups
        };
        let raised = set(&[
            ("group.consumer.session.timeout.ms", "100"),
            ("group.consumer.min.session.timeout.ms", "200"),
            ("group.consumer.heartbeat.interval.ms", "7000"),
            ("group.consumer.max.heartbeat.interval.ms", "6000"),
            ("offsets.commit.timeout.ms", "9"),
        ]);
        assert_eq!(raised.consumer_session_timeout, Duration::from_millis(200));
        assert_eq!(raised.consumer_heartbeat_interval, Duration::from_secs(6));
        assert_eq!(raised.offsets_commit_timeout, Duration::from_millis(9));
        let one = set(&[("group.consumer.assignors", "range")]);
        assert_eq!(one.consumer_assignors, [Assignor::Range]);
    }

    #[test]
    fn settings_reach_the_typed_values() {
        let topic: BTreeMap<String, String> = [
            ("cleanup.policy", "compact"),
            ("message.timestamp.type", "LogAppendTime"),
            ("retention.ms", "-1"),
            ("segment.bytes", "65536"),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
        let cluster = BTreeMap::from([("message.max.bytes".to_owned(), "2000".to_owned())]);
        let got = TopicConfigs::resolve(&topic, &cluster, 1);
        assert_eq!(
            got.cleanup_policy,
            CleanupPolicy {
                delete: false,
                compact: true
            }
        );
        assert_eq!(got.timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(got.retention_ms, None);
        assert_eq!(got.segment_bytes, 65_536);
        assert_eq!(got.max_message_bytes, 2000);
    }
}
