//! What nodes ask of the controller, and what it answers. These cross the wire between nodes and,
//! as the remembered answer, lie in the log; numbers are bare for the reason that
//! [`super::records`] gives.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use corduroy_protocol::ErrorCode;
use rkyv::{Archive, Deserialize, Serialize};

use super::records::{NodeRecord, TopicRecord};

/// Why something was refused: a Kafka error and one sentence that a person can act on.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kafka's error code.
    pub code: i16,
    /// Cause, what was found, what to do.
    pub message: String,
}

impl Refusal {
    /// A refusal with Kafka's error for it.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Refusal {
            code: code.code(),
            message: message.into(),
        }
    }
}

/// The nodes of one partition that somebody assigns by hand.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Partition index.
    pub partition: i32,
    /// Node ids, preferred leader first.
    pub nodes: Vec<i32>,
}

/// A topic to create.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// The name.
    pub name: String,
    /// Partitions; none takes `num.partitions`.
    pub partitions: Option<i32>,
    /// Replicas of each; none takes `default.replication.factor`.
    pub replication_factor: Option<i16>,
    /// Placement by hand; excludes the two counts. Empty leaves it to the controller.
    pub assignments: Vec<Assignment>,
    /// Settings in the order given; a missing value is refused.
    pub configs: Vec<(String, Option<String>)>,
}

impl NewTopic {
    /// A topic with the cluster's defaults.
    pub fn with_defaults(name: impl Into<String>) -> Self {
        NewTopic {
            name: name.into(),
            partitions: None,
            replication_factor: None,
            assignments: Vec::new(),
            configs: Vec::new(),
        }
    }
}

/// A topic by name or by id.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By the sixteen bytes of its id.
    Id([u8; 16]),
}

/// A topic that gets more partitions.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NewPartitions {
    /// The topic's name.
    pub topic: String,
    /// How many it shall have in all.
    pub count: i32,
    /// Node ids of each new partition in order; none leaves it to the controller.
    pub assignments: Option<Vec<Vec<i32>>>,
}

/// Whose settings change.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum ConfigResource {
    /// A topic's, by name.
    Topic(String),
    /// The whole cluster's.
    Cluster,
}

/// One step of a change of settings (IncrementalAlterConfigs).
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum ConfigStep {
    /// Sets the value.
    Set(String),
    /// Returns to the default.
    Delete,
    /// Adds the items to a list.
    Append(String),
    /// Takes the items from a list.
    Subtract(String),
}

/// A change of one resource's settings: all of it or nothing.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ConfigAlteration {
    /// Whose.
    pub resource: ConfigResource,
    /// Key and step, in order.
    pub steps: Vec<(String, ConfigStep)>,
}

/// A node that joins, or that announces itself again.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NodeClaim {
    /// The uuid of its data directory.
    pub uuid: [u8; 16],
    /// The id that it claims, or has.
    pub node: Option<i32>,
    /// Host for clients.
    pub kafka_host: String,
    /// Port for clients.
    pub kafka_port: u16,
    /// Where nodes reach it.
    pub rpc: SocketAddr,
    /// Where metrics and health are served.
    pub admin: Option<SocketAddr>,
    /// Its rack.
    pub rack: Option<String>,
}

impl NodeClaim {
    /// The record of a node that was granted this claim.
    pub fn record(&self, id: i32, controller_replica: u64) -> NodeRecord {
        NodeRecord {
            id,
            uuid: self.uuid,
            controller_replica,
            kafka_host: self.kafka_host.clone(),
            kafka_port: self.kafka_port,
            rpc: self.rpc,
            admin: self.admin,
            rack: self.rack.clone(),
        }
    }
}

/// What a node gets when it joins.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NodeGrant {
    /// Its id, for good.
    pub node: i32,
    /// Its replica id in the controller's group.
    pub controller_replica: u64,
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// Everyone, itself included.
    pub nodes: Vec<NodeRecord>,
    /// The image's version that shows the node as it is now.
    pub version: u64,
}

/// Something asked of the controller.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The founders' cluster comes into being. Only the controller's leader asks this, of itself.
    Form {
        /// Random.
        cluster_id: [u8; 16],
        /// The founders.
        nodes: Vec<NodeRecord>,
        /// The settings that the cluster starts with.
        configs: BTreeMap<String, String>,
    },
    /// A node joins or announces itself again.
    RegisterNode(NodeClaim),
    /// A node that holds no replica any more leaves for good.
    RemoveNode {
        /// Node id.
        node: i32,
    },
    /// Topics to create.
    CreateTopics {
        /// Distinct by name.
        topics: Vec<NewTopic>,
        /// Only check.
        validate_only: bool,
    },
    /// Topics to delete.
    DeleteTopics {
        /// Distinct.
        topics: Vec<TopicRef>,
    },
    /// Topics that get more partitions.
    CreatePartitions {
        /// Distinct by name.
        topics: Vec<NewPartitions>,
        /// Only check.
        validate_only: bool,
    },
    /// Settings to change.
    AlterConfigs {
        /// Distinct by resource.
        alterations: Vec<ConfigAlteration>,
        /// Only check.
        validate_only: bool,
    },
    /// A block of producer ids.
    AllocateProducerIds,
}

/// The answer to a [`Request`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Form`] and [`Request::RemoveNode`].
    Done,
    /// To [`Request::RegisterNode`].
    Node(NodeGrant),
    /// To [`Request::CreateTopics`], [`Request::DeleteTopics`] and [`Request::CreatePartitions`]:
    /// one for each topic asked for, in order. A topic as it was before its deletion, and as it is
    /// after everything else.
    Topics(Vec<Result<TopicRecord, Refusal>>),
    /// To [`Request::AlterConfigs`]: one for each resource, in order.
    Configs(Vec<Result<(), Refusal>>),
    /// To [`Request::AllocateProducerIds`].
    ProducerIds {
        /// The first id of the block.
        first: i64,
        /// The first id behind it.
        next: i64,
    },
    /// The whole request is refused.
    Refused(Refusal),
}
