//! A node's status as Prometheus text (exposition format 0.0.4), prefix `corduroy_`.
//!
//! Seconds and bytes only; label values come from fixed sets (APIs, error names, shards), so the
//! number of series is bounded. Series per partition are printed on request (`?detail=partition`).

use std::fmt::{Display, Write};

use super::histogram::Histogram;
use super::status::{NodeStatus, PartitionView};

/// How much to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    #[default]
    Node,
    Partition,
}

/// The media type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prints all series of a node.
pub fn render(status: &NodeStatus, detail: Detail) -> String {
    let mut page = Page::default();
    page.metric(
        "build_info",
        Kind::Gauge,
        "Always 1; the version is a label.",
    );
    page.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.value(
        "uptime_seconds",
        Kind::Gauge,
        "Since the process started.",
        status.uptime_seconds,
    );
    page.value(
        "node_serving",
        Kind::Gauge,
        "1 once the node has joined its cluster and answers clients.",
        u8::from(status.is_serving),
    );
    page.value(
        "node_isolated",
        Kind::Gauge,
        "1 while the node hears no majority of its cluster.",
        u8::from(status.is_isolated),
    );
    page.value(
        "nodes_unreachable",
        Kind::Gauge,
        "Nodes that this node's failure detector does not hear.",
        status
            .nodes
            .iter()
            .filter(|node| !node.is_reachable)
            .count(),
    );
    kafka(&mut page, status);
    raft(&mut page, status);
    storage(&mut page, status);
    partitions(&mut page, status);
    groups(&mut page, status);
    shards(&mut page, status);
    if detail == Detail::Partition {
        each_partition(&mut page, status);
    }
    page.text
}

fn kafka(page: &mut Page, status: &NodeStatus) {
    let kafka = &status.kafka;
    page.metric(
        "kafka_requests_total",
        Kind::Counter,
        "Answered requests by API and error.",
    );
    for (api, counts) in &kafka.apis {
        for (error, count) in &counts.requests {
            page.sample(
                "kafka_requests_total",
                &[("api", api), ("error", error)],
                count,
            );
        }
    }
    page.metric(
        "kafka_request_seconds",
        Kind::Histogram,
        "From the last byte of a request to the first of its answer.",
    );
    for (api, counts) in &kafka.apis {
        page.histogram("kafka_request_seconds", &[("api", api)], &counts.seconds);
    }
    page.value(
        "kafka_connections",
        Kind::Gauge,
        "Open client connections.",
        kafka.connections,
    );
    for (name, help, value) in [
        (
            "kafka_records_produced_total",
            "Records taken from producers.",
            kafka.records_produced,
        ),
        (
            "kafka_produced_bytes_total",
            "Batch bytes taken from producers.",
            kafka.bytes_produced,
        ),
        (
            "kafka_records_fetched_total",
            "Records given to consumers.",
            kafka.records_fetched,
        ),
        (
            "kafka_fetched_bytes_total",
            "Batch bytes given to consumers.",
            kafka.bytes_fetched,
        ),
    ] {
        page.value(name, Kind::Counter, help, value);
    }
}

fn raft(page: &mut Page, status: &NodeStatus) {
    let raft = &status.raft;
    for (name, help, value) in [
        ("raft_replicas", "Replicas on this node.", raft.replicas),
        (
            "raft_leaders",
            "Replicas on this node that lead.",
            raft.leaders,
        ),
        (
            "raft_hibernating",
            "Replicas on this node that sleep.",
            raft.hibernating,
        ),
        (
            "raft_damaged_replicas",
            "Replicas on this node that neither vote nor lead until they have fetched what they lost.",
            status.damaged.len() as u64,
        ),
        (
            "raft_stopped_replicas",
            "Replicas on this node that do not run although they should; /health/cluster says why.",
            status.broken.len() as u64,
        ),
    ] {
        page.value(name, Kind::Gauge, help, value);
    }
    page.value(
        "raft_leadership_changes_total",
        Kind::Counter,
        "Elections and transfers seen by replicas on this node.",
        raft.leadership_changes,
    );
    page.value(
        "raft_possible_losses_total",
        Kind::Counter,
        "Leaderships taken here although most of a group had lost log: records may be lost.",
        raft.possible_losses,
    );
    page.value(
        "raft_heartbeats_total",
        Kind::Counter,
        "Heartbeats sent to other nodes.",
        raft.heartbeats,
    );
    page.metric(
        "raft_commit_seconds",
        Kind::Histogram,
        "From proposal to applied, on leaders.",
    );
    page.histogram("raft_commit_seconds", &[], &raft.commit_seconds);
}

fn storage(page: &mut Page, status: &NodeStatus) {
    let storage = &status.storage;
    page.metric(
        "storage_append_seconds",
        Kind::Histogram,
        "From an append to a log until it is durable on this node.",
    );
    page.histogram("storage_append_seconds", &[], &storage.append_seconds);
    page.metric(
        "storage_flush_seconds",
        Kind::Histogram,
        "One flush turn of a shard.",
    );
    page.histogram("storage_flush_seconds", &[], &storage.flush_seconds);
    page.value(
        "storage_bytes",
        Kind::Gauge,
        "Bytes in logs and journals.",
        storage.bytes,
    );
    page.value(
        "storage_appended_bytes_total",
        Kind::Counter,
        "Bytes appended to logs.",
        storage.bytes_appended,
    );
    page.value(
        "storage_disk_free_bytes",
        Kind::Gauge,
        "Free bytes of the data directory's disk.",
        storage.disk_free_bytes,
    );
    page.value(
        "storage_disk_low",
        Kind::Gauge,
        "1 while free space is below storage.disk.low.bytes.",
        u64::from(storage.is_disk_low),
    );
    page.value(
        "storage_disk_full",
        Kind::Gauge,
        "1 while this node's leaders refuse produce for want of space.",
        u64::from(storage.is_disk_full),
    );
    page.value(
        "storage_corruptions_total",
        Kind::Counter,
        "Damage found in logs, indices, journals or votes.",
        storage.corruptions,
    );
    page.value(
        "storage_failed",
        Kind::Gauge,
        "1 after a failed flush: the disk takes nothing more.",
        u8::from(status.disk_failure.is_some()),
    );
}

fn partitions(page: &mut Page, status: &NodeStatus) {
    page.value(
        "partitions",
        Kind::Gauge,
        "Partitions of the cluster.",
        status.partitions.len(),
    );
    page.value(
        "partition_leaderless",
        Kind::Gauge,
        "Partitions of the cluster without a leader.",
        status.leaderless().count(),
    );
    page.value(
        "partition_under_replicated",
        Kind::Gauge,
        "Partitions of the cluster with a replica out of sync.",
        status.under_replicated().count(),
    );
}

fn groups(page: &mut Page, status: &NodeStatus) {
    page.value(
        "group_rebalances_total",
        Kind::Counter,
        "Generations and group epochs that began at coordinators on this node.",
        status.group_rebalances,
    );
    page.metric(
        "group_members",
        Kind::Gauge,
        "Members of the consumer groups that this node coordinates.",
    );
    for group in &status.groups {
        page.sample("group_members", &[("group", &group.group)], group.members);
    }
    page.metric(
        "group_lag",
        Kind::Gauge,
        "Records between committed offsets and high watermarks.",
    );
    for group in &status.groups {
        for (topic, lag) in &group.lag {
            page.sample(
                "group_lag",
                &[("group", &group.group), ("topic", topic)],
                lag,
            );
        }
    }
    page.metric(
        "group_lag_unknown_partitions",
        Kind::Gauge,
        "Partitions with committed offsets that group_lag leaves out: no leader answered.",
    );
    for group in &status.groups {
        let labels = [("group", group.group.as_str())];
        page.sample("group_lag_unknown_partitions", &labels, group.lag_unknown);
    }
}

fn shards(page: &mut Page, status: &NodeStatus) {
    let labels: Vec<String> = (0..status.shards.len())
        .map(|shard| shard.to_string())
        .collect();
    page.metric(
        "shard_busy_ratio",
        Kind::Gauge,
        "Part of the time that a shard's thread was on a CPU.",
    );
    for (shard, label) in status.shards.iter().zip(&labels) {
        page.sample("shard_busy_ratio", &[("shard", label)], shard.busy_ratio);
    }
    page.metric(
        "shard_mailbox_depth",
        Kind::Gauge,
        "Messages that wait for a shard.",
    );
    for (shard, label) in status.shards.iter().zip(&labels) {
        page.sample(
            "shard_mailbox_depth",
            &[("shard", label)],
            shard.mailbox_depth,
        );
    }
    page.metric(
        "shard_partitions",
        Kind::Gauge,
        "Replicas that live on a shard.",
    );
    for (shard, label) in status.shards.iter().zip(&labels) {
        page.sample("shard_partitions", &[("shard", label)], shard.partitions);
    }
}

fn each_partition(page: &mut Page, status: &NodeStatus) {
    type Read = fn(&PartitionView) -> Option<i64>;
    let series: [(&str, &str, Read); 6] = [
        (
            "partition_leader",
            "The leader's node id; -1 is none.",
            |p| Some(p.leader.map_or(-1, i64::from)),
        ),
        ("partition_in_sync_replicas", "Replicas in sync.", |p| {
            i64::try_from(p.in_sync.len()).ok()
        }),
        (
            "partition_log_start_offset",
            "First offset of the local replica.",
            |p| p.local.as_ref().map(|local| local.log_start_offset),
        ),
        (
            "partition_high_watermark",
            "Where consumers of the local replica stop.",
            |p| p.local.as_ref().map(|local| local.high_watermark),
        ),
        (
            "partition_log_end_offset",
            "The local replica's next offset.",
            |p| p.local.as_ref().map(|local| local.log_end_offset),
        ),
        ("partition_size_bytes", "Bytes of the local replica.", |p| {
            p.local
                .as_ref()
                .and_then(|local| i64::try_from(local.size_bytes).ok())
        }),
    ];
    for (name, help, read) in series {
        page.metric(name, Kind::Gauge, help);
        for partition in &status.partitions {
            let Some(value) = read(partition) else {
                continue;
            };
            let number = partition.partition.to_string();
            page.sample(
                name,
                &[("topic", &partition.topic), ("partition", &number)],
                value,
            );
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// The head of a metric; its samples follow.
    fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String can't fail.
        let _ = writeln!(
            self.text,
            "# HELP corduroy_{name} {help}\n# TYPE corduroy_{name} {kind}"
        );
    }

    /// A metric with a single sample.
    fn value(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "corduroy_{name}");
        if !labels.is_empty() {
            self.text.push('{');
            for (index, (label, text)) in labels.iter().enumerate() {
                if index > 0 {
                    self.text.push(',');
                }
                let _ = write!(self.text, "{label}=\"{}\"", escaped(text));
            }
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let bucket_name = format!("{name}_bucket");
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_infinite() {
                "+Inf".to_owned()
            } else {
                bound.to_string()
            };
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.sample(&bucket_name, &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum_seconds());
        self.sample(&format!("{name}_count"), labels, histogram.count());
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use super::super::status::{GroupView, LocalReplica, ShardStatus};
    use super::*;

    fn sample() -> NodeStatus {
        let mut status = NodeStatus {
            node: Some(1),
            is_serving: true,
            ..NodeStatus::default()
        };
        let produce = status.kafka.apis.entry("Produce".to_owned()).or_default();
        produce.requests.insert("NONE".to_owned(), 2);
        produce.seconds.record(Duration::from_millis(2));
        status.shards.push(ShardStatus {
            busy_ratio: 0.25,
            mailbox_depth: 3,
            partitions: 1,
        });
        status.groups.push(GroupView {
            group: "billing".to_owned(),
            members: 2,
            lag: BTreeMap::from([("orders".to_owned(), 7)]),
            lag_unknown: 1,
        });
        status.partitions.push(PartitionView {
            topic: "orders".to_owned(),
            partition: 4,
            leader: None,
            replicas: vec![1, 2, 3],
            local: Some(LocalReplica {
                high_watermark: 17,
                ..LocalReplica::default()
            }),
            ..PartitionView::default()
        });
        status
    }

    #[test]
    fn samples_carry_names_labels_and_values() {
        let text = render(&sample(), Detail::Partition);
        for line in [
            "corduroy_kafka_requests_total{api=\"Produce\",error=\"NONE\"} 2",
            "corduroy_kafka_request_seconds_bucket{api=\"Produce\",le=\"0.001\"} 0",
            "corduroy_kafka_request_seconds_bucket{api=\"Produce\",le=\"0.0025\"} 1",
            "corduroy_kafka_request_seconds_bucket{api=\"Produce\",le=\"+Inf\"} 1",
            "corduroy_kafka_request_seconds_sum{api=\"Produce\"} 0.002",
            "corduroy_partition_leaderless 1",
            "corduroy_partition_under_replicated 0",
            "corduroy_group_members{group=\"billing\"} 2",
            "corduroy_group_lag{group=\"billing\",topic=\"orders\"} 7",
            "corduroy_group_lag_unknown_partitions{group=\"billing\"} 1",
            "corduroy_shard_busy_ratio{shard=\"0\"} 0.25",
            "corduroy_partition_high_watermark{topic=\"orders\",partition=\"4\"} 17",
            "corduroy_partition_leader{topic=\"orders\",partition=\"4\"} -1",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in\n{text}"
            );
        }
        assert!(!render(&sample(), Detail::Node).contains("partition=\"4\""));
    }

    #[test]
    fn every_sample_follows_the_one_head_of_its_metric() {
        let text = render(&sample(), Detail::Partition);
        let mut heads = BTreeSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap_or_default().to_owned();
                assert!(heads.insert(current.clone()), "two heads of {current}");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&current), "`{line}` under {current}");
            }
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
