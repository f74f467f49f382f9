//! What the controller's log and its saved tables hold, in the form in which they hold it.
//!
//! Bare numbers on purpose: this is a format. rkyv lays each struct out by its fields, so a change
//! here is a change of what old logs mean; [`super::state::TABLES_FORMAT`] counts such changes.
//! Everywhere else the numbers have types (see [`super::image`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use corduroy_record::{NodeId, ReplicaId, TopicId};
use rkyv::{Archive, Deserialize, Serialize};
use uuid::Uuid;

use super::image::{HostPort, NodeInfo, PartitionInfo, TopicInfo};

/// A node as the log holds it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Node id.
    pub id: i32,
    /// The data directory's uuid.
    pub uuid: [u8; 16],
    /// Its replica id in the controller's group.
    pub controller_replica: u64,
    /// Host that clients are given.
    pub kafka_host: String,
    /// Port that clients are given.
    pub kafka_port: u16,
    /// Where nodes reach it.
    pub rpc: SocketAddr,
    /// Where metrics and health are served.
    pub admin: Option<SocketAddr>,
    /// Its rack.
    pub rack: Option<String>,
}

impl NodeRecord {
    /// With typed numbers.
    pub fn info(&self) -> NodeInfo {
        NodeInfo {
            id: NodeId::new(self.id),
            uuid: Uuid::from_bytes(self.uuid),
            kafka: HostPort {
                host: self.kafka_host.clone(),
                port: self.kafka_port,
            },
            rpc: self.rpc,
            admin: self.admin,
            rack: self.rack.clone(),
            controller_replica: ReplicaId::new(self.controller_replica),
        }
    }
}

/// One placement of a replica.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    /// Replica id.
    pub replica: u64,
    /// Node id.
    pub node: i32,
}

/// The replicas of one partition, preferred leader first.
pub type PartitionRecord = Vec<ReplicaRecord>;

/// A topic as the log holds it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// The name.
    pub name: String,
    /// The incarnation's id.
    pub id: [u8; 16],
    /// By partition index.
    pub partitions: Vec<PartitionRecord>,
    /// Set on the topic itself.
    pub configs: BTreeMap<String, String>,
}

impl TopicRecord {
    /// With typed numbers.
    pub fn info(&self) -> TopicInfo {
        TopicInfo {
            id: TopicId::from_bytes(self.id),
            name: self.name.clone(),
            partitions: self.partitions.iter().map(partition_info).collect(),
            configs: self.configs.clone(),
        }
    }
}

fn partition_info(record: &PartitionRecord) -> PartitionInfo {
    PartitionInfo {
        replicas: record
            .iter()
            .map(|replica| (ReplicaId::new(replica.replica), NodeId::new(replica.node)))
            .collect(),
    }
}

/// A fact of the controller's log. The leader has checked it against the state just before it; all
/// replicas apply it blindly and alike.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cluster exists and has this id.
    ClusterFormed {
        /// Random.
        cluster_id: [u8; 16],
    },
    /// A node joined, or a known one changed its addresses.
    NodeRegistered(NodeRecord),
    /// A node left for good; its id is burnt.
    NodeRemoved {
        /// Node id.
        node: i32,
    },
    /// A topic exists.
    TopicCreated(TopicRecord),
    /// A topic is gone.
    TopicDeleted {
        /// Topic id.
        topic: [u8; 16],
    },
    /// A topic has more partitions.
    PartitionsAdded {
        /// Topic id.
        topic: [u8; 16],
        /// The new ones, in order of their index.
        partitions: Vec<PartitionRecord>,
    },
    /// A topic setting was set, or removed where there is no value.
    TopicConfigChanged {
        /// Topic id.
        topic: [u8; 16],
        /// Key.
        name: String,
        /// Value.
        value: Option<String>,
    },
    /// A cluster setting was set, or removed where there is no value.
    ClusterConfigChanged {
        /// Key.
        name: String,
        /// Value.
        value: Option<String>,
    },
    /// Producer ids below this one are handed out.
    ProducerIdsTaken {
        /// The first id that nobody has.
        next: i64,
    },
}

/// One entry of the controller's log.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The request's random id: a retry of it gets the same answer and changes nothing.
    pub request: [u8; 16],
    /// What changed, in order, all or nothing.
    pub changes: Vec<Change>,
    /// The answer to the request, encoded.
    pub reply: Vec<u8>,
}
