//! The table: every row of every layer, and how to find one.

use super::key::{ConfigKey, Scope};
use super::nearest::nearest;
use super::rows;

/// Every row: node, then cluster, then topic, each in the order of its table.
pub fn all() -> impl Iterator<Item = &'static ConfigKey> {
    rows::NODE.iter().chain(rows::CLUSTER).chain(rows::TOPIC)
}

/// The rows of one layer.
pub fn of(scope: Scope) -> &'static [ConfigKey] {
    match scope {
        Scope::Node => rows::NODE,
        Scope::Cluster => rows::CLUSTER,
        Scope::Topic => rows::TOPIC,
    }
}

/// The row of `name` in one layer. The same name may live in two (`min.insync.replicas`).
pub fn find(scope: Scope, name: &str) -> Option<&'static ConfigKey> {
    of(scope).iter().find(|key| key.name == name)
}

/// The row of a topic key.
pub fn topic_key(name: &str) -> Option<&'static ConfigKey> {
    find(Scope::Topic, name)
}

/// The row of a cluster key.
pub fn cluster_key(name: &str) -> Option<&'static ConfigKey> {
    find(Scope::Cluster, name)
}

/// The known name of one layer that is nearest to a mistyped one.
pub fn nearest_in(scope: Scope, name: &str) -> Option<&'static str> {
    nearest(name, of(scope).iter().map(|key| key.name))
}

/// Those of `names` that are known in a layer and that nothing acts on yet: setting one warns.
pub fn idle<'a>(scope: Scope, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let is_idle = |name: &&str| find(scope, name).is_some_and(|key| !key.enforced);
    names.into_iter().filter(is_idle).collect()
}

/// One sentence for an unknown key of a layer, with the nearest name or the layer that has it.
pub fn unknown_message(scope: Scope, name: &str) -> String {
    if let Some(other) = all().find(|key| key.name == name && key.scope != scope) {
        return format!("{name} is a {} setting, not a {scope} setting", other.scope);
    }
    match nearest_in(scope, name) {
        Some(near) => format!("unknown {scope} setting {name:?}; did you mean {near}?"),
        None => format!("unknown {scope} setting {name:?}; docs/config.md lists all of them"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::key::DefaultValue;

    #[test]
    fn rows_are_sound() {
        for scope in [Scope::Node, Scope::Cluster, Scope::Topic] {
            let mut seen = BTreeSet::new();
            for key in of(scope) {
                assert_eq!(key.scope, scope, "{}", key.name);
                assert!(seen.insert(key.name), "{} is listed twice", key.name);
                assert!(key.doc.ends_with('.'), "{} needs a sentence", key.name);
                if let DefaultValue::Fixed(value) = key.default {
                    assert_eq!(key.check(value).as_deref(), Ok(value), "{}", key.name);
                }
                for synonym in key.synonyms {
                    assert!(cluster_key(synonym.name).is_some(), "{}", synonym.name);
                }
            }
        }
    }

    #[test]
    fn every_topic_key_of_the_tools_is_known() {
        for name in [
            "cleanup.policy",
            "compression.type",
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.zstd.level",
            "delete.retention.ms",
            "file.delete.delay.ms",
            "flush.messages",
            "flush.ms",
            "follower.replication.throttled.replicas",
            "index.interval.bytes",
            "leader.replication.throttled.replicas",
            "local.retention.bytes",
            "local.retention.ms",
            "max.compaction.lag.ms",
            "max.message.bytes",
            "message.timestamp.after.max.ms",
            "message.timestamp.before.max.ms",
            "message.timestamp.type",
            "min.cleanable.dirty.ratio",
            "min.compaction.lag.ms",
            "min.insync.replicas",
            "preallocate",
            "remote.storage.enable",
            "retention.bytes",
            "retention.ms",
            "segment.bytes",
            "segment.index.bytes",
            "segment.jitter.ms",
            "segment.ms",
            "unclean.leader.election.enable",
        ] {
            assert!(topic_key(name).is_some(), "{name}");
        }
    }

    #[test]
    fn an_unknown_key_names_a_way_out() {
        let cases = [
            (Scope::Topic, "retention.msec", "did you mean retention.ms?"),
            (
                Scope::Topic,
                "num.partitions",
                "is a cluster setting, not a topic setting",
            ),
            (
                Scope::Cluster,
                "retention.ms",
                "is a topic setting, not a cluster setting",
            ),
            (Scope::Node, "zzzzzzzzzzzzzzzzzz", "docs/config.md"),
        ];
        for (scope, name, want) in cases {
            let got = unknown_message(scope, name);
            assert!(got.contains(want), "{got}");
        }
    }
}
