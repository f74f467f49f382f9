//! The published face of the controller's state: immutable, replaced by version, read by every
//! shard without a lock.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use corduroy_record::{GroupId, NodeId, PartitionIndex, ReplicaId, TopicId};
use uuid::Uuid;

use crate::config::{ClusterConfigs, TopicConfigs};

/// A host and port as clients get them; the host may be a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || format!("{text:?} is not HOST:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(refuse());
        }
        Ok(HostPort {
            host: host.to_owned(),
            port: port.parse().map_err(|_| refuse())?,
        })
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its id, Kafka's broker id.
    pub id: NodeId,
    /// The identity of its data directory.
    pub uuid: Uuid,
    /// Where clients reach it: the advertised address, else the one it listens on.
    pub kafka: HostPort,
    /// Where nodes reach it.
    pub rpc: SocketAddr,
    /// Where metrics and health are served.
    pub admin: Option<SocketAddr>,
    /// Its rack.
    pub rack: Option<String>,
    /// Its replica of the controller.
    pub controller_replica: ReplicaId,
}

/// Where one partition lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    /// Each replica with its node; the first is the preferred leader.
    pub replicas: Vec<(ReplicaId, NodeId)>,
}

/// One incarnation of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Random, never reused.
    pub id: TopicId,
    /// The name, unique among the living topics.
    pub name: String,
    /// By partition index.
    pub partitions: Vec<PartitionInfo>,
    /// What was set on the topic itself.
    pub configs: BTreeMap<String, String>,
}

impl TopicInfo {
    /// How many replicas each partition has (that of the first, as Kafka reports it).
    pub fn replication_factor(&self) -> usize {
        self.partitions
            .first()
            .map_or(0, |partition| partition.replicas.len())
    }

    /// The partition of one index.
    pub fn partition(&self, index: PartitionIndex) -> Option<&PartitionInfo> {
        self.partitions.get(usize::try_from(index.get()).ok()?)
    }

    /// The Raft group of one partition; it need not exist.
    pub fn group(&self, index: PartitionIndex) -> GroupId {
        GroupId {
            topic: self.id,
            partition: index,
        }
    }

    /// The Raft groups of all partitions.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        // A topic has at most PARTITIONS_PER_TOPIC_MAX partitions, far below 2^31.
        (0..self.partitions.len()).map(|index| self.group(PartitionIndex::new(index as i32)))
    }
}

/// Cluster metadata as of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataImage {
    /// Grows with every visible change; 0 before the first.
    pub version: u64,
    /// Nil before the cluster has formed.
    pub cluster_id: Uuid,
    /// The nodes by id.
    pub nodes: BTreeMap<NodeId, NodeInfo>,
    /// The topics by name.
    pub topics: BTreeMap<String, TopicInfo>,
    /// The topics' names by id.
    pub topic_names: BTreeMap<TopicId, String>,
    /// What was set for the whole cluster.
    pub cluster_configs: BTreeMap<String, String>,
    /// Producer ids below it have been handed out, in blocks; none at or above it has.
    pub producer_ids_end: i64,
}

impl MetadataImage {
    /// The topic of an id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&TopicInfo> {
        self.topics.get(self.topic_names.get(&id)?)
    }

    /// The place of a group, unless its topic or partition is gone.
    pub fn partition_of(&self, group: GroupId) -> Option<&PartitionInfo> {
        self.topic_by_id(group.topic)?.partition(group.partition)
    }

    /// The settings of a topic, resolved.
    pub fn topic_configs(&self, topic: &TopicInfo) -> TopicConfigs {
        TopicConfigs::resolve(
            &topic.configs,
            &self.cluster_configs,
            topic.replication_factor(),
        )
    }

    /// The settings of the cluster, resolved.
    pub fn cluster(&self) -> ClusterConfigs {
        ClusterConfigs::resolve(&self.cluster_configs, self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_reads_what_it_writes() {
        for text in ["localhost:9092", "10.0.0.1:1", "[::1]:9092"] {
            let parsed: HostPort = text.parse().expect("valid");
            assert_eq!(parsed.to_string(), text);
        }
        for text in ["localhost", ":1", "a:b", "a:70000", ""] {
            assert!(text.parse::<HostPort>().is_err(), "{text:?}");
        }
    }
}
