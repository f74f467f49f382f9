//! The rows themselves. Names, types and defaults of the cluster and topic layers are Kafka's
//! (4.x), except where a sentence says otherwise.

use corduroy_protocol::FRAME_BYTES_MAX;

use super::key::{Allowed, ConfigKey, DefaultValue, Kind, Scope, Synonym, Unit};

const LONG_MAX: i64 = i64::MAX;
const INT_MAX: i64 = i32::MAX as i64;
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

const fn node(name: &'static str, kind: Kind, default: DefaultValue) -> ConfigKey {
    ConfigKey::new(name, Scope::Node, kind, default).enforced()
}

const fn cluster(name: &'static str, kind: Kind, default: &'static str) -> ConfigKey {
    ConfigKey::new(name, Scope::Cluster, kind, DefaultValue::Fixed(default))
}

const fn topic(name: &'static str, kind: Kind, default: &'static str) -> ConfigKey {
    ConfigKey::new(name, Scope::Topic, kind, DefaultValue::Fixed(default))
}

const fn same(name: &'static str) -> Synonym {
    Synonym { name, scale: 1 }
}

const COMPRESSIONS: Allowed =
    Allowed::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]);
const POLICIES: Allowed = Allowed::SomeOf(&["compact", "delete"]);
const TIMESTAMPS: Allowed = Allowed::OneOf(&["CreateTime", "LogAppendTime"]);

/// One process; a change needs a restart.
pub const NODE: &[ConfigKey] = &[
    node(
        "node.id",
        Kind::Int,
        DefaultValue::Computed("assigned when the node joins; 1 alone"),
    )
    .between(0, INT_MAX)
    .doc("The id this node claims. It is bound to the node's data directory for good."),
    node(
        "data.dir",
        Kind::String,
        DefaultValue::Fixed("./corduroy-data"),
    )
    .doc("The directory that holds everything this node stores."),
    node(
        "listen",
        Kind::String,
        DefaultValue::Fixed("127.0.0.1:9092"),
    )
    .unit(Unit::Address)
    .doc("Where Kafka clients connect."),
    node("advertised.listeners", Kind::String, DefaultValue::Unset)
        .unit(Unit::Address)
        .doc(
            "The HOST:PORT that Metadata gives to clients. Unset: the address that the client \
             itself used to reach this node.",
        ),
    node(
        "rpc.listen",
        Kind::String,
        DefaultValue::Fixed("127.0.0.1:33145"),
    )
    .unit(Unit::Address)
    .doc("Where the other nodes of the cluster connect."),
    node(
        "rpc.advertised",
        Kind::String,
        DefaultValue::Computed("rpc.listen"),
    )
    .unit(Unit::Address)
    .doc("The address that the other nodes use to reach rpc.listen, if it differs."),
    node(
        "admin.listen",
        Kind::String,
        DefaultValue::Computed("127.0.0.1:9644; a free port with seeds"),
    )
    .unit(Unit::Address)
    .doc("Where metrics and health are served; `off` serves none."),
    node("seeds", Kind::List, DefaultValue::Unset)
        .unit(Unit::Address)
        .doc(
            "The rpc addresses of the nodes that form the cluster, the same list on each. \
             Unset: a cluster of its own.",
        ),
    node(
        "shards",
        Kind::Int,
        DefaultValue::Computed("the number of cores"),
    )
    .between(1, 1024)
    .doc("How many shards (threads that own partitions) this node runs."),
    node("broker.rack", Kind::String, DefaultValue::Unset)
        .doc("The rack of this node; replicas of a partition are spread over racks."),
    node(
        "socket.request.max.bytes",
        Kind::Int,
        DefaultValue::Fixed("104857600"),
    )
    .unit(Unit::Bytes)
    .between(1024, FRAME_BYTES_MAX as i64)
    .doc("The largest request that a client connection accepts; a larger one closes it."),
    node(
        "storage.journal.file.bytes",
        Kind::Long,
        DefaultValue::Fixed("16777216"),
    )
    .unit(Unit::Bytes)
    .between(65_536, u32::MAX as i64)
    .doc("The size of one journal file; rounded down to a multiple of 4096."),
    node(
        "storage.journal.files.max",
        Kind::Int,
        DefaultValue::Fixed("16"),
    )
    .between(3, 4096)
    .doc("How many journal files one shard keeps; it bounds what recovery reads."),
    node(
        "storage.inline.bytes.max",
        Kind::Int,
        DefaultValue::Fixed("131072"),
    )
    .unit(Unit::Bytes)
    .between(0, INT_MAX)
    .doc(
        "Up to this many bytes of one partition in one flush turn travel inside the journal; \
             more are synced in their own segment.",
    ),
    node(
        "storage.cache.bytes",
        Kind::Long,
        DefaultValue::Fixed("4194304"),
    )
    .unit(Unit::Bytes)
    .between(1 << 20, 1 << 40)
    .doc("The recent-entries cache of one shard."),
    node(
        "storage.reserve.bytes",
        Kind::Long,
        DefaultValue::Fixed("4194304"),
    )
    .unit(Unit::Bytes)
    .between(0, 1 << 40)
    .doc(
        "A pre-written file of this size per shard is given up when the disk is full, so that \
         votes and metadata go on; 0 keeps none.",
    ),
    node(
        "storage.disk.low.bytes",
        Kind::Long,
        DefaultValue::Fixed("1073741824"),
    )
    .unit(Unit::Bytes)
    .between(0, 1 << 50)
    .doc("Below this many free bytes the disk counts as low: time for an alert."),
    node(
        "storage.disk.critical.bytes",
        Kind::Long,
        DefaultValue::Fixed("67108864"),
    )
    .unit(Unit::Bytes)
    .between(0, 1 << 50)
    .doc("Below this many free bytes produce is refused; everything else goes on."),
    node(
        "raft.ping.interval.ms",
        Kind::Int,
        DefaultValue::Fixed("100"),
    )
    .unit(Unit::Millis)
    .between(10, 60_000)
    .doc("How often a node pings each other node."),
    node("raft.down.after.ms", Kind::Int, DefaultValue::Fixed("500"))
        .unit(Unit::Millis)
        .between(50, 600_000)
        .doc(
            "After this long without an answer a node counts as down and its leaders are replaced.",
        ),
    node(
        "raft.hibernate.after.ms",
        Kind::Int,
        DefaultValue::Fixed("5000"),
    )
    .unit(Unit::Millis)
    .between(100, INT_MAX)
    .doc("After this long without a write a partition's Raft group stops ticking."),
    node(
        "log.retention.check.interval.ms",
        Kind::Long,
        DefaultValue::Fixed("300000"),
    )
    .unit(Unit::Millis)
    .between(1, LONG_MAX)
    .doc("How often each shard looks at the retention of the partitions that it leads."),
];

/// The whole cluster, live: IncrementalAlterConfigs on the broker resource with the empty name.
pub const CLUSTER: &[ConfigKey] = &[
    cluster("auto.create.topics.enable", Kind::Boolean, "true")
        .doc("A Metadata request that allows it creates the topics it names.")
        .enforced(),
    cluster("num.partitions", Kind::Int, "4")
        .between(1, 100_000)
        .doc("Partitions of a topic that is created without a count (Kafka's default is 1).")
        .enforced(),
    ConfigKey::new(
        "default.replication.factor",
        Scope::Cluster,
        Kind::Int,
        DefaultValue::Computed("min(3, nodes)"),
    )
    .between(1, 32_767)
    .doc("Replicas of a topic that is created without a count (Kafka's default is 1).")
    .enforced(),
    ConfigKey::new(
        "min.insync.replicas",
        Scope::Cluster,
        Kind::Int,
        DefaultValue::Computed("2 where the replication factor is 3 or more, else 1"),
    )
    .between(1, INT_MAX)
    .doc("The default of the topic setting of the same name (Kafka's default is 1).")
    .enforced(),
    cluster("replica.lag.time.max.ms", Kind::Long, "30000")
        .unit(Unit::Millis)
        .between(500, LONG_MAX)
        .doc("A follower that has not reached its leader's log end for this long leaves the ISR.")
        .enforced(),
    cluster("delete.topic.enable", Kind::Boolean, "true")
        .doc("Whether topics can be deleted.")
        .enforced(),
    cluster("message.max.bytes", Kind::Int, "1048588")
        .unit(Unit::Bytes)
        .between(0, INT_MAX)
        .doc("The largest record batch, as received; the default of max.message.bytes.")
        .enforced(),
    cluster("log.segment.bytes", Kind::Int, "1073741824")
        .unit(Unit::Bytes)
        .between(1024, INT_MAX)
        .doc("The default of segment.bytes.")
        .enforced(),
    cluster("log.roll.ms", Kind::Long, "604800000")
        .unit(Unit::Millis)
        .between(1, LONG_MAX)
        .doc("The default of segment.ms.")
        .enforced(),
    cluster("log.roll.hours", Kind::Int, "168")
        .unit(Unit::Hours)
        .between(1, INT_MAX)
        .doc("The default of segment.ms, in hours; log.roll.ms is stronger.")
        .enforced(),
    cluster("log.roll.jitter.ms", Kind::Long, "0")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of segment.jitter.ms."),
    cluster("log.index.interval.bytes", Kind::Int, "4096")
        .unit(Unit::Bytes)
        .between(0, INT_MAX)
        .doc("The default of index.interval.bytes.")
        .enforced(),
    cluster("log.index.size.max.bytes", Kind::Int, "10485760")
        .unit(Unit::Bytes)
        .between(4, INT_MAX)
        .doc("The default of segment.index.bytes."),
    cluster("log.message.timestamp.type", Kind::String, "CreateTime")
        .allowed(TIMESTAMPS)
        .doc("The default of message.timestamp.type.")
        .enforced(),
    cluster(
        "log.message.timestamp.before.max.ms",
        Kind::Long,
        "9223372036854775807",
    )
    .unit(Unit::Millis)
    .between(0, LONG_MAX)
    .doc("The default of message.timestamp.before.max.ms.")
    .enforced(),
    cluster("log.message.timestamp.after.max.ms", Kind::Long, "3600000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of message.timestamp.after.max.ms.")
        .enforced(),
    cluster("log.retention.ms", Kind::Long, "604800000")
        .unit(Unit::Millis)
        .between(-1, LONG_MAX)
        .doc("The default of retention.ms.")
        .enforced(),
    cluster("log.retention.minutes", Kind::Int, "10080")
        .unit(Unit::Minutes)
        .between(1, INT_MAX)
        .doc("The default of retention.ms, in minutes; log.retention.ms is stronger.")
        .enforced(),
    cluster("log.retention.hours", Kind::Int, "168")
        .unit(Unit::Hours)
        .between(1, INT_MAX)
        .doc("The default of retention.ms, in hours; the two finer ones are stronger.")
        .enforced(),
    cluster("log.retention.bytes", Kind::Long, "-1")
        .unit(Unit::Bytes)
        .between(-1, LONG_MAX)
        .doc("The default of retention.bytes.")
        .enforced(),
    cluster("log.local.retention.ms", Kind::Long, "-2")
        .unit(Unit::Millis)
        .between(-2, LONG_MAX)
        .doc("The default of local.retention.ms."),
    cluster("log.local.retention.bytes", Kind::Long, "-2")
        .unit(Unit::Bytes)
        .between(-2, LONG_MAX)
        .doc("The default of local.retention.bytes."),
    cluster("log.segment.delete.delay.ms", Kind::Long, "60000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of file.delete.delay.ms."),
    cluster(
        "log.flush.interval.messages",
        Kind::Long,
        "9223372036854775807",
    )
    .between(1, LONG_MAX)
    .doc("The default of flush.messages. Every flush turn is durable anyway."),
    cluster("log.flush.interval.ms", Kind::Long, "9223372036854775807")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of flush.ms. Every flush turn is durable anyway."),
    cluster("log.preallocate", Kind::Boolean, "false").doc("The default of preallocate."),
    cluster("log.cleanup.policy", Kind::List, "delete")
        .allowed(POLICIES)
        .doc("The default of cleanup.policy.")
        .enforced(),
    cluster("log.cleaner.enable", Kind::Boolean, "true")
        .doc("Whether compacted topics are compacted."),
    cluster("log.cleaner.delete.retention.ms", Kind::Long, "86400000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of delete.retention.ms."),
    cluster("log.cleaner.min.compaction.lag.ms", Kind::Long, "0")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .doc("The default of min.compaction.lag.ms."),
    cluster(
        "log.cleaner.max.compaction.lag.ms",
        Kind::Long,
        "9223372036854775807",
    )
    .unit(Unit::Millis)
    .between(1, LONG_MAX)
    .doc("The default of max.compaction.lag.ms."),
    cluster("log.cleaner.min.cleanable.ratio", Kind::Double, "0.5")
        .allowed(Allowed::Ratio)
        .doc("The default of min.cleanable.dirty.ratio."),
    cluster("compression.type", Kind::String, "producer")
        .allowed(COMPRESSIONS)
        .doc("The default of the topic setting of the same name."),
    cluster("compression.gzip.level", Kind::Int, "-1")
        .between(-1, 9)
        .doc("The default of the topic setting of the same name."),
    cluster("compression.lz4.level", Kind::Int, "9")
        .between(1, 17)
        .doc("The default of the topic setting of the same name."),
    cluster("compression.zstd.level", Kind::Int, "3")
        .between(-131_072, 22)
        .doc("The default of the topic setting of the same name."),
    cluster("unclean.leader.election.enable", Kind::Boolean, "false").doc(
        "The default of the topic setting of the same name. Never done: a leader has every \
              committed record.",
    ),
    cluster("auto.leader.rebalance.enable", Kind::Boolean, "true")
        .doc("Whether leadership moves back to the first replica on its own."),
    cluster("fetch.max.bytes", Kind::Int, "57671680")
        .unit(Unit::Bytes)
        .between(1024, INT_MAX)
        .doc("The most bytes that one Fetch answers."),
    cluster("connections.max.idle.ms", Kind::Long, "600000")
        .unit(Unit::Millis)
        .between(-1, LONG_MAX)
        .doc("An idle client connection is closed after this long."),
    cluster("producer.id.expiration.ms", Kind::Int, "86400000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "A producer id without a record for this long, by the records' own timestamps, is \
             forgotten by a partition; looked at as often as retention, where there are writes.",
        )
        .enforced(),
    cluster("transactional.id.expiration.ms", Kind::Int, "604800000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("A transactional id without activity for this long is forgotten."),
    cluster("transaction.max.timeout.ms", Kind::Int, "900000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("The longest transaction timeout that a producer may ask for."),
    cluster("transaction.state.log.num.partitions", Kind::Int, "50")
        .between(1, INT_MAX)
        .doc("Partitions of the transactions' internal topic."),
    cluster("transaction.state.log.replication.factor", Kind::Int, "3")
        .between(1, 32_767)
        .doc("Replicas of the transactions' internal topic."),
    cluster("transaction.state.log.min.isr", Kind::Int, "2")
        .between(1, INT_MAX)
        .doc("min.insync.replicas of the transactions' internal topic."),
    cluster("offsets.topic.num.partitions", Kind::Int, "50")
        .between(1, INT_MAX)
        .doc("Partitions of the consumer groups' internal topic, when it is created.")
        .enforced(),
    cluster("offsets.topic.replication.factor", Kind::Int, "3")
        .between(1, 32_767)
        .doc(
            "Replicas of the consumer groups' internal topic, when it is created; at most the \
             number of nodes.",
        )
        .enforced(),
    cluster("offsets.topic.segment.bytes", Kind::Int, "104857600")
        .unit(Unit::Bytes)
        .between(1, INT_MAX)
        .doc(
            "Segment size of the consumer groups' internal topic, when it is created. Once a \
             segment is full, live groups and offsets are written again and older ones go.",
        )
        .enforced(),
    cluster("offsets.retention.minutes", Kind::Int, "10080")
        .unit(Unit::Minutes)
        .between(1, INT_MAX)
        .doc(
            "Committed offsets are kept this long: of a classic group without members from when it \
             became empty, else from their commit; always while members subscribe to their topic.",
        )
        .enforced(),
    cluster("offsets.retention.check.interval.ms", Kind::Long, "600000")
        .unit(Unit::Millis)
        .between(1, LONG_MAX)
        .doc("How often each coordinator looks for expired offsets.")
        .enforced(),
    cluster("offsets.commit.timeout.ms", Kind::Int, "5000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "How long whoever commits offsets, or asks for anything else of a group that has to be \
             written, waits before it is told COORDINATOR_NOT_AVAILABLE. The write goes on without it.",
        )
        .enforced(),
    cluster("offset.metadata.max.bytes", Kind::Int, "4096")
        .unit(Unit::Bytes)
        .between(0, INT_MAX)
        .doc("The longest metadata text of an offset commit.")
        .enforced(),
    cluster("group.initial.rebalance.delay.ms", Kind::Int, "3000")
        .unit(Unit::Millis)
        .between(0, INT_MAX)
        .doc("How long the first rebalance of an empty group waits for more members.")
        .enforced(),
    cluster("group.min.session.timeout.ms", Kind::Int, "6000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("The shortest session timeout that a group member may ask for.")
        .enforced(),
    cluster("group.max.session.timeout.ms", Kind::Int, "1800000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("The longest session timeout that a group member may ask for.")
        .enforced(),
    cluster("group.max.size", Kind::Int, "2147483647")
        .between(1, INT_MAX)
        .doc("The most members of one group.")
        .enforced(),
    cluster("group.coordinator.max.groups", Kind::Int, "10000")
        .between(1, INT_MAX)
        .doc(
            "The most groups of one partition of the consumer groups' internal topic. Beyond it a \
             group of a new name is told COORDINATOR_LOAD_IN_PROGRESS. A setting of Corduroy's own.",
        )
        .enforced(),
    cluster("group.coordinator.max.pending.members", Kind::Int, "10000")
        .between(1, INT_MAX)
        .doc(
            "The most members of one such partition's groups that have been given an id and have not \
             joined with it yet. Beyond it a member without id is told COORDINATOR_LOAD_IN_PROGRESS. \
             A setting of Corduroy's own.",
        )
        .enforced(),
    cluster("group.consumer.session.timeout.ms", Kind::Int, "45000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("A member of the consumer protocol that is silent for this long is removed.")
        .enforced(),
    cluster("group.consumer.min.session.timeout.ms", Kind::Int, "1")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "group.consumer.session.timeout.ms counts as this much where it is less. Kafka's default \
             is 45000; here a shorter timeout needs no second setting.",
        )
        .enforced(),
    cluster("group.consumer.max.session.timeout.ms", Kind::Int, "2147483647")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "group.consumer.session.timeout.ms counts as this much where it is more. Kafka's default \
             is 60000.",
        )
        .enforced(),
    cluster("group.consumer.heartbeat.interval.ms", Kind::Int, "5000")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc("How often members of the consumer protocol are told to send heartbeats.")
        .enforced(),
    cluster("group.consumer.min.heartbeat.interval.ms", Kind::Int, "1")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "group.consumer.heartbeat.interval.ms counts as this much where it is less. Kafka's \
             default is 5000.",
        )
        .enforced(),
    cluster("group.consumer.max.heartbeat.interval.ms", Kind::Int, "2147483647")
        .unit(Unit::Millis)
        .between(1, INT_MAX)
        .doc(
            "group.consumer.heartbeat.interval.ms counts as this much where it is more. Kafka's \
             default is 15000.",
        )
        .enforced(),
    cluster("group.consumer.assignors", Kind::List, "uniform,range")
        .allowed(Allowed::SomeOf(&["uniform", "range"]))
        .doc(
            "The assignors that members of the consumer protocol may ask for; those that ask for \
             none have the first one. A member has what held when it joined.",
        )
        .enforced(),
    cluster("group.consumer.max.size", Kind::Int, "2147483647")
        .between(1, INT_MAX)
        .doc("The most members of one group of the consumer protocol.")
        .enforced(),
    cluster(
        "group.consumer.migration.policy",
        Kind::String,
        "bidirectional",
    )
    .allowed(Allowed::OneOf(&[
        "disabled",
        "upgrade",
        "downgrade",
        "bidirectional",
    ]))
    .doc(
        "Which ways a group with members may change its protocol: to the consumer protocol when \
         a member comes that speaks it, and back to the classic one when the last such member goes.",
    )
    .enforced(),
];

/// One topic, live: CreateTopics and IncrementalAlterConfigs on the topic resource.
pub const TOPIC: &[ConfigKey] = &[
    topic("cleanup.policy", Kind::List, "delete")
        .allowed(POLICIES)
        .synonyms(&[same("log.cleanup.policy")])
        .doc("What happens to old records: `delete` them, `compact` them by key, or both. With `compact` a record without a key is refused; compaction itself does not run yet.")
    .enforced(),
    topic("compression.type", Kind::String, "producer")
        .allowed(COMPRESSIONS)
        .synonyms(&[same("compression.type")])
        .doc("`producer` keeps each batch as it came. Other values are stored and not acted upon."),
    topic("compression.gzip.level", Kind::Int, "-1")
        .between(-1, 9)
        .synonyms(&[same("compression.gzip.level")])
        .doc("The level where the broker itself compresses with gzip."),
    topic("compression.lz4.level", Kind::Int, "9")
        .between(1, 17)
        .synonyms(&[same("compression.lz4.level")])
        .doc("The level where the broker itself compresses with lz4."),
    topic("compression.zstd.level", Kind::Int, "3")
        .between(-131_072, 22)
        .synonyms(&[same("compression.zstd.level")])
        .doc("The level where the broker itself compresses with zstd."),
    topic("delete.retention.ms", Kind::Long, "86400000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.cleaner.delete.retention.ms")])
        .doc("How long compaction keeps a tombstone."),
    topic("file.delete.delay.ms", Kind::Long, "60000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.segment.delete.delay.ms")])
        .doc("How long a removed file stays on disk."),
    topic("flush.messages", Kind::Long, "9223372036854775807")
        .between(1, LONG_MAX)
        .synonyms(&[same("log.flush.interval.messages")])
        .doc("Records between two flushes. Every flush turn is durable anyway."),
    topic("flush.ms", Kind::Long, "9223372036854775807")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.flush.interval.ms")])
        .doc("Time between two flushes. Every flush turn is durable anyway."),
    topic("follower.replication.throttled.replicas", Kind::List, "")
        .doc("Replicas whose catching up is throttled, as PARTITION:NODE."),
    topic("index.interval.bytes", Kind::Int, "4096")
        .unit(Unit::Bytes)
        .between(0, INT_MAX)
        .synonyms(&[same("log.index.interval.bytes")])
        .doc("How many bytes of log lie between two entries of a segment's index.")
        .enforced(),
    topic("leader.replication.throttled.replicas", Kind::List, "")
        .doc("Replicas whose sending is throttled, as PARTITION:NODE."),
    topic("local.retention.bytes", Kind::Long, "-2")
        .unit(Unit::Bytes)
        .between(-2, LONG_MAX)
        .synonyms(&[same("log.local.retention.bytes")])
        .doc("Tiered storage: bytes kept locally; -2 follows retention.bytes."),
    topic("local.retention.ms", Kind::Long, "-2")
        .unit(Unit::Millis)
        .between(-2, LONG_MAX)
        .synonyms(&[same("log.local.retention.ms")])
        .doc("Tiered storage: time kept locally; -2 follows retention.ms."),
    topic("max.compaction.lag.ms", Kind::Long, "9223372036854775807")
        .unit(Unit::Millis)
        .between(1, LONG_MAX)
        .synonyms(&[same("log.cleaner.max.compaction.lag.ms")])
        .doc("A record is compacted after this long at the latest."),
    topic("max.message.bytes", Kind::Int, "1048588")
        .unit(Unit::Bytes)
        .between(0, INT_MAX)
        .synonyms(&[same("message.max.bytes")])
        .doc("The largest record batch, measured as received (compressed).")
        .enforced(),
    topic("message.downconversion.enable", Kind::Boolean, "true")
        .doc("Accepted for old tools; batches are never converted."),
    topic("message.format.version", Kind::String, "3.0-IV1")
        .doc("Accepted for old tools; every batch has format 2."),
    topic("message.timestamp.after.max.ms", Kind::Long, "3600000")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.message.timestamp.after.max.ms")])
        .doc("A record whose timestamp lies further in the future is refused.")
        .enforced(),
    topic(
        "message.timestamp.before.max.ms",
        Kind::Long,
        "9223372036854775807",
    )
    .unit(Unit::Millis)
    .between(0, LONG_MAX)
    .synonyms(&[same("log.message.timestamp.before.max.ms")])
    .doc("A record whose timestamp lies further in the past is refused.")
    .enforced(),
    topic("message.timestamp.type", Kind::String, "CreateTime")
        .allowed(TIMESTAMPS)
        .synonyms(&[same("log.message.timestamp.type")])
        .doc("Whose clock stamps a record: the producer's or, on append, the leader's.")
        .enforced(),
    topic("min.cleanable.dirty.ratio", Kind::Double, "0.5")
        .allowed(Allowed::Ratio)
        .synonyms(&[same("log.cleaner.min.cleanable.ratio")])
        .doc("Compaction starts when this share of the log is uncompacted."),
    topic("min.compaction.lag.ms", Kind::Long, "0")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.cleaner.min.compaction.lag.ms")])
        .doc("A record stays uncompacted for at least this long."),
    ConfigKey::new(
        "min.insync.replicas",
        Scope::Topic,
        Kind::Int,
        DefaultValue::Computed("2 where the replication factor is 3 or more, else 1"),
    )
    .between(1, INT_MAX)
    .synonyms(&[same("min.insync.replicas")])
    .doc("acks=all needs this many in-sync replicas (Kafka's default is 1).")
    .enforced(),
    topic("preallocate", Kind::Boolean, "false")
        .synonyms(&[same("log.preallocate")])
        .doc("Whether a new segment is allocated at its full size."),
    topic("remote.log.copy.disable", Kind::Boolean, "false").doc("Tiered storage: stop copying."),
    topic("remote.log.delete.on.disable", Kind::Boolean, "false")
        .doc("Tiered storage: delete the remote copy when it is switched off."),
    topic("remote.storage.enable", Kind::Boolean, "false").doc("Tiered storage."),
    topic("retention.bytes", Kind::Long, "-1")
        .unit(Unit::Bytes)
        .between(-1, LONG_MAX)
        .synonyms(&[same("log.retention.bytes")])
        .doc("Old segments are deleted beyond this size of a partition; -1 keeps everything.")
    .enforced(),
    topic("retention.ms", Kind::Long, "604800000")
        .unit(Unit::Millis)
        .between(-1, LONG_MAX)
        .synonyms(&[
            same("log.retention.ms"),
            Synonym {
                name: "log.retention.minutes",
                scale: MINUTE_MS,
            },
            Synonym {
                name: "log.retention.hours",
                scale: HOUR_MS,
            },
        ])
        .doc("Segments whose newest record is older are deleted, but for the one that is written to; -1 keeps everything.")
    .enforced(),
    topic("segment.bytes", Kind::Int, "1073741824")
        .unit(Unit::Bytes)
        .between(1024, INT_MAX)
        .synonyms(&[same("log.segment.bytes")])
        .doc("A segment is closed at this size.")
        .enforced(),
    topic("segment.index.bytes", Kind::Int, "10485760")
        .unit(Unit::Bytes)
        .between(4, INT_MAX)
        .synonyms(&[same("log.index.size.max.bytes")])
        .doc("The largest index of one segment."),
    topic("segment.jitter.ms", Kind::Long, "0")
        .unit(Unit::Millis)
        .between(0, LONG_MAX)
        .synonyms(&[same("log.roll.jitter.ms")])
        .doc("Random time taken off segment.ms, so that segments do not all close at once."),
    topic("segment.ms", Kind::Long, "604800000")
        .unit(Unit::Millis)
        .between(1, LONG_MAX)
        .synonyms(&[
            same("log.roll.ms"),
            Synonym {
                name: "log.roll.hours",
                scale: HOUR_MS,
            },
        ])
        .doc("A segment is closed at this age.")
        .enforced(),
    topic("unclean.leader.election.enable", Kind::Boolean, "false")
        .synonyms(&[same("unclean.leader.election.enable")])
        .doc("Accepted for tools; a leader always has every committed record."),
];
