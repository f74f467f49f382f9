//! What holds for a key: its value and where that came from, for describing and for resolving.

use std::collections::BTreeMap;

use super::key::{ConfigKey, DefaultValue, Scope};
use super::table;

/// Where a value came from, with DescribeConfigs' codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Set on the topic (DYNAMIC_TOPIC_CONFIG).
    Topic,
    /// Set for the whole cluster (DYNAMIC_DEFAULT_BROKER_CONFIG).
    Cluster,
    /// Set on the node by flag, environment or file (STATIC_BROKER_CONFIG).
    Node,
    /// Set by nobody (DEFAULT_CONFIG).
    Default,
}

impl Origin {
    /// DescribeConfigs' `config_source`.
    pub const fn wire_code(self) -> i8 {
        match self {
            Origin::Topic => 1,
            Origin::Cluster => 3,
            Origin::Node => 4,
            Origin::Default => 5,
        }
    }
}

/// One place where a value could have come from, strongest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynonymValue {
    /// The key as that place names it.
    pub name: &'static str,
    /// Its value there.
    pub value: String,
    /// The place.
    pub origin: Origin,
}

/// The value that holds for a key.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The row.
    pub key: &'static ConfigKey,
    /// The value; none where the key has neither a value nor a default.
    pub value: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// Every place that has a value, strongest first (DescribeConfigs version 1).
    pub synonyms: Vec<SynonymValue>,
}

/// Facts that computed defaults depend on.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// How many nodes the cluster has.
    pub nodes: usize,
    /// The replication factor of the topic asked about; for cluster keys, the default one.
    pub replication_factor: usize,
}

/// What a topic's own map and the cluster's map make of one topic key.
pub fn topic_value(
    key: &'static ConfigKey,
    topic: &BTreeMap<String, String>,
    cluster: &BTreeMap<String, String>,
    facts: Facts,
) -> Effective {
    let mut synonyms = Vec::new();
    if let Some(value) = topic.get(key.name) {
        synonyms.push(SynonymValue {
            name: key.name,
            value: value.clone(),
            origin: Origin::Topic,
        });
    }
    for synonym in key.synonyms {
        if let Some(value) = cluster.get(synonym.name) {
            synonyms.push(SynonymValue {
                name: synonym.name,
                value: scaled(value, synonym.scale),
                origin: Origin::Cluster,
            });
        }
    }
    finish(key, synonyms, default_value(key, facts))
}

/// What the cluster's map makes of one cluster key.
pub fn cluster_value(
    key: &'static ConfigKey,
    cluster: &BTreeMap<String, String>,
    facts: Facts,
) -> Effective {
    let mut synonyms = Vec::new();
    if let Some(value) = cluster.get(key.name) {
        synonyms.push(SynonymValue {
            name: key.name,
            value: value.clone(),
            origin: Origin::Cluster,
        });
    }
    finish(key, synonyms, default_value(key, facts))
}

/// The default of a key under the given facts; none where it has no default.
pub fn default_value(key: &ConfigKey, facts: Facts) -> Option<String> {
    match (key.default, key.scope, key.name) {
        (DefaultValue::Fixed(value), _, _) => Some(value.to_owned()),
        (DefaultValue::Computed(_), Scope::Cluster, "default.replication.factor") => {
            Some(facts.nodes.clamp(1, 3).to_string())
        }
        (DefaultValue::Computed(_), Scope::Cluster | Scope::Topic, "min.insync.replicas") => Some(
            if facts.replication_factor >= 3 {
                "2"
            } else {
                "1"
            }
            .to_owned(),
        ),
        (DefaultValue::Computed(_) | DefaultValue::Unset, _, _) => None,
    }
}

fn finish(
    key: &'static ConfigKey,
    mut synonyms: Vec<SynonymValue>,
    default: Option<String>,
) -> Effective {
    if let Some(value) = default {
        // The name behind the default is the broker's, as Kafka answers it.
        let name = match key.scope {
            Scope::Topic => key.synonyms.last().map_or(key.name, |synonym| synonym.name),
            Scope::Node | Scope::Cluster => key.name,
        };
        synonyms.push(SynonymValue {
            name,
            value,
            origin: Origin::Default,
        });
    }
    let (value, origin) = match synonyms.first() {
        Some(first) => (Some(first.value.clone()), first.origin),
        None => (None, Origin::Default),
    };
    Effective {
        key,
        value,
        origin,
        synonyms,
    }
}

fn scaled(value: &str, scale: i64) -> String {
    match (scale, value.parse::<i64>()) {
        (1, _) | (_, Err(_)) => value.to_owned(),
        (scale, Ok(number)) => number.saturating_mul(scale).to_string(),
    }
}

/// Every topic key with what holds for it, in the order of the table.
pub fn topic_values(
    topic: &BTreeMap<String, String>,
    cluster: &BTreeMap<String, String>,
    facts: Facts,
) -> Vec<Effective> {
    table::of(Scope::Topic)
        .iter()
        .map(|key| topic_value(key, topic, cluster, facts))
        .collect()
}

/// Every cluster key with what holds for it, in the order of the table.
pub fn cluster_values(cluster: &BTreeMap<String, String>, facts: Facts) -> Vec<Effective> {
    table::of(Scope::Cluster)
        .iter()
        .map(|key| cluster_value(key, cluster, facts))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    }

    #[test]
    fn the_strongest_place_wins() {
        type Pairs = &'static [(&'static str, &'static str)];
        let cases: &[(&str, Pairs, Pairs, usize, &str, Origin)] = &[
            ("retention.ms", &[], &[], 1, "604800000", Origin::Default),
            (
                "retention.ms",
                &[],
                &[("log.retention.hours", "2")],
                1,
                "7200000",
                Origin::Cluster,
            ),
            (
                "retention.ms",
                &[],
                &[("log.retention.hours", "2"), ("log.retention.ms", "5")],
                1,
                "5",
                Origin::Cluster,
            ),
            (
                "retention.ms",
                &[("retention.ms", "9")],
                &[("log.retention.ms", "5")],
                1,
                "9",
                Origin::Topic,
            ),
            ("min.insync.replicas", &[], &[], 1, "1", Origin::Default),
            ("min.insync.replicas", &[], &[], 2, "1", Origin::Default),
            ("min.insync.replicas", &[], &[], 3, "2", Origin::Default),
            (
                "min.insync.replicas",
                &[],
                &[("min.insync.replicas", "3")],
                3,
                "3",
                Origin::Cluster,
            ),
            (
                "min.insync.replicas",
                &[("min.insync.replicas", "1")],
                &[("min.insync.replicas", "3")],
                3,
                "1",
                Origin::Topic,
            ),
        ];
        for (name, topic, cluster, replication_factor, value, origin) in cases {
            let key = table::topic_key(name).expect("a known key");
            let facts = Facts {
                nodes: 3,
                replication_factor: *replication_factor,
            };
            let got = topic_value(key, &map(topic), &map(cluster), facts);
            assert_eq!(
                (got.value.as_deref(), got.origin),
                (Some(*value), *origin),
                "{name} {topic:?} {cluster:?}"
            );
        }
    }

    #[test]
    fn the_default_replication_factor_follows_the_nodes() {
        let key = table::cluster_key("default.replication.factor").expect("a known key");
        for (nodes, want) in [(0, "1"), (1, "1"), (2, "2"), (3, "3"), (7, "3")] {
            let facts = Facts {
                nodes,
                replication_factor: 1,
            };
            assert_eq!(
                cluster_value(key, &map(&[]), facts).value.as_deref(),
                Some(want)
            );
        }
    }
}
