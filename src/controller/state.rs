//! The controller's state: what a log of [`Command`]s adds up to.
//!
//! Laws:
//! - **Apply is blind and deterministic.** The leader judges a request against the state just
//!   before it ([`super::judge`]) and proposes facts; every replica folds them in alike. A fact
//!   that does not fit is passed over, by all replicas alike, and reported.
//! - **Nothing is handed out twice:** node ids, replica ids and producer ids only grow, and a
//!   removed node's id is burnt.
//! - **A retry changes nothing:** the last [`REMEMBERED_MAX`] requests keep their answers here, so
//!   that every replica would give the same one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use corduroy_record::{NodeId, TopicId};
use rkyv::{Archive, Deserialize, Serialize};
use tracing::error;
use uuid::Uuid;

use super::codec::{CodecError, decode, encode};
use super::image::MetadataImage;
use super::records::{Change, Command, NodeRecord, PartitionRecord, TopicRecord};
use super::topic_name::collision_key;

/// The version of the saved tables and of the log's commands.
pub const TABLES_FORMAT: u16 = 1;

/// Answers that are kept for retries. A retry comes within seconds, and a cluster changes its
/// metadata far more slowly than this.
pub const REMEMBERED_MAX: usize = 1024;

/// Bytes of answers that are kept for retries.
pub const REMEMBERED_BYTES_MAX: usize = 4 << 20;

/// The part that is saved.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
struct Tables {
    format: u16,
    version: u64,
    cluster_id: Option<[u8; 16]>,
    nodes: BTreeMap<i32, NodeRecord>,
    burnt_nodes: BTreeSet<i32>,
    topics: BTreeMap<String, TopicRecord>,
    cluster_configs: BTreeMap<String, String>,
    next_node: i32,
    next_replica: u64,
    next_producer: i64,
    remembered: VecDeque<([u8; 16], Vec<u8>)>,
}

impl Default for Tables {
    fn default() -> Self {
        Tables {
            format: TABLES_FORMAT,
            version: 0,
            cluster_id: None,
            nodes: BTreeMap::new(),
            burnt_nodes: BTreeSet::new(),
            topics: BTreeMap::new(),
            cluster_configs: BTreeMap::new(),
            next_node: 1,
            next_replica: 1,
            next_producer: 0,
            remembered: VecDeque::new(),
        }
    }
}

/// What one replica of the controller knows.
#[derive(Clone, Debug, Default)]
pub struct ControllerState {
    tables: Tables,
    // Everything below follows from the tables.
    topic_names: HashMap<[u8; 16], String>,
    collision_keys: BTreeMap<String, String>,
    remembered_bytes: usize,
    replicas: BTreeMap<i32, usize>,
    image: MetadataImage,
}

impl ControllerState {
    /// Folds one command in. Says whether the image changed.
    pub fn apply(&mut self, command: &Command) -> bool {
        // A retry that found its way into the log twice (both proposals survived a change of
        // leader): the first one counts.
        if self.remembered(&command.request).is_some() {
            return false;
        }
        let mut visible = false;
        for change in &command.changes {
            match self.fold(change) {
                Ok(seen) => visible |= seen,
                Err(why) => error!(
                    ?change,
                    why, "the controller's log holds a fact that does not fit"
                ),
            }
        }
        self.remember(command);
        if visible {
            self.tables.version += 1;
            self.image.version = self.tables.version;
        }
        visible
    }

    /// The published face; cheap to look at, a copy to publish.
    pub fn image(&self) -> &MetadataImage {
        &self.image
    }

    /// The answer that a request got, if it is recent.
    pub fn remembered(&self, request: &[u8; 16]) -> Option<&[u8]> {
        // Newest last, and a retry is recent.
        self.tables
            .remembered
            .iter()
            .rev()
            .find(|(id, _)| id == request)
            .map(|(_, reply)| &reply[..])
    }

    /// The cluster's id, once it has formed.
    pub fn cluster_id(&self) -> Option<[u8; 16]> {
        self.tables.cluster_id
    }

    /// The nodes by id.
    pub fn nodes(&self) -> &BTreeMap<i32, NodeRecord> {
        &self.tables.nodes
    }

    /// The node of a data directory.
    pub fn node_of(&self, uuid: &[u8; 16]) -> Option<&NodeRecord> {
        self.tables.nodes.values().find(|node| node.uuid == *uuid)
    }

    /// Whether an id was a node's that left for good.
    pub fn is_burnt(&self, node: i32) -> bool {
        self.tables.burnt_nodes.contains(&node)
    }

    /// The ids of nodes that left for good.
    pub fn burnt_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.tables.burnt_nodes.iter().copied().map(NodeId::new)
    }

    /// The lowest id that no node ever had and no id above which was had.
    pub fn next_node(&self) -> i32 {
        self.tables.next_node
    }

    /// The first replica id that no replica ever had.
    pub fn next_replica(&self) -> u64 {
        self.tables.next_replica
    }

    /// The first producer id that nobody has.
    pub fn next_producer(&self) -> i64 {
        self.tables.next_producer
    }

    /// The topics by name.
    pub fn topics(&self) -> &BTreeMap<String, TopicRecord> {
        &self.tables.topics
    }

    /// A topic by id.
    pub fn topic(&self, id: &[u8; 16]) -> Option<&TopicRecord> {
        self.tables.topics.get(self.topic_names.get(id)?)
    }

    /// The topic whose name differs from this one only in dots and underscores.
    pub fn collision(&self, name: &str) -> Option<&str> {
        self.collision_keys
            .get(&collision_key(name))
            .map(String::as_str)
    }

    /// What was set for the whole cluster.
    pub fn cluster_configs(&self) -> &BTreeMap<String, String> {
        &self.tables.cluster_configs
    }

    /// How many partition replicas live on a node.
    pub fn replicas_on(&self, node: i32) -> usize {
        self.replicas.get(&node).copied().unwrap_or(0)
    }

    /// The state as bytes, exactly as of the last command applied.
    pub fn save(&self) -> Result<Bytes, CodecError> {
        encode(&self.tables)
    }

    /// The state that [`ControllerState::save`] wrote.
    pub fn restore(bytes: &[u8]) -> Result<ControllerState, RestoreError> {
        let tables: Tables = decode(bytes)?;
        if tables.format != TABLES_FORMAT {
            return Err(RestoreError::Format {
                found: tables.format,
            });
        }
        let mut state = ControllerState {
            remembered_bytes: tables.remembered.iter().map(|(_, reply)| reply.len()).sum(),
            topic_names: tables
                .topics
                .values()
                .map(|t| (t.id, t.name.clone()))
                .collect(),
            collision_keys: tables
                .topics
                .keys()
                .map(|name| (collision_key(name), name.clone()))
                .collect(),
            image: MetadataImage {
                version: tables.version,
                cluster_id: tables.cluster_id.map_or(Uuid::nil(), Uuid::from_bytes),
                nodes: tables
                    .nodes
                    .values()
                    .map(|n| (NodeId::new(n.id), n.info()))
                    .collect(),
                topics: tables
                    .topics
                    .values()
                    .map(|t| (t.name.clone(), t.info()))
                    .collect(),
                topic_names: tables
                    .topics
                    .values()
                    .map(|t| (TopicId::from_bytes(t.id), t.name.clone()))
                    .collect(),
                cluster_configs: tables.cluster_configs.clone(),
                producer_ids_end: tables.next_producer,
            },
            replicas: BTreeMap::new(),
            tables,
        };
        for topic in state.tables.topics.values() {
            count_replicas(&mut state.replicas, &topic.partitions);
        }
        Ok(state)
    }

    fn remember(&mut self, command: &Command) {
        self.remembered_bytes += command.reply.len();
        self.tables
            .remembered
            .push_back((command.request, command.reply.clone()));
        while self.tables.remembered.len() > REMEMBERED_MAX
            || (self.remembered_bytes > REMEMBERED_BYTES_MAX && self.tables.remembered.len() > 1)
        {
            let Some((_, reply)) = self.tables.remembered.pop_front() else {
                break;
            };
            self.remembered_bytes -= reply.len();
        }
    }

    /// Folds one fact in; whether the image shows it, or why it does not fit.
    fn fold(&mut self, change: &Change) -> Result<bool, &'static str> {
        match change {
            Change::ClusterFormed { cluster_id } => {
                if self.tables.cluster_id.is_some() {
                    return Err("the cluster has formed before");
                }
                self.tables.cluster_id = Some(*cluster_id);
                self.image.cluster_id = Uuid::from_bytes(*cluster_id);
            }
            Change::NodeRegistered(node) => self.register(node)?,
            Change::NodeRemoved { node } => {
                self.tables.nodes.remove(node).ok_or("no such node")?;
                self.tables.burnt_nodes.insert(*node);
                self.image.nodes.remove(&NodeId::new(*node));
            }
            Change::TopicCreated(topic) => self.create(topic)?,
            Change::TopicDeleted { topic } => {
                let name = self.topic_names.remove(topic).ok_or("no such topic")?;
                let gone = self.tables.topics.remove(&name).ok_or("no such topic")?;
                for replica in gone.partitions.iter().flatten() {
                    if let Some(count) = self.replicas.get_mut(&replica.node) {
                        *count -= 1;
                    }
                }
                self.collision_keys.remove(&collision_key(&name));
                self.image.topics.remove(&name);
                self.image.topic_names.remove(&TopicId::from_bytes(*topic));
            }
            Change::PartitionsAdded { topic, partitions } => {
                self.topic_mut(topic)?
                    .partitions
                    .extend(partitions.iter().cloned());
                self.take_replicas(partitions);
                self.show(topic);
            }
            Change::TopicConfigChanged { topic, name, value } => {
                set(&mut self.topic_mut(topic)?.configs, name, value);
                self.show(topic);
            }
            Change::ClusterConfigChanged { name, value } => {
                set(&mut self.tables.cluster_configs, name, value);
                set(&mut self.image.cluster_configs, name, value);
            }
            Change::ProducerIdsTaken { next } => {
                self.tables.next_producer = self.tables.next_producer.max(*next);
                self.image.producer_ids_end = self.tables.next_producer;
            }
        }
        Ok(true)
    }

    fn register(&mut self, node: &NodeRecord) -> Result<(), &'static str> {
        if self.tables.burnt_nodes.contains(&node.id) {
            return Err("the node id is burnt");
        }
        match self.tables.nodes.get(&node.id) {
            Some(known) if known.uuid != node.uuid => return Err("the node id has another uuid"),
            _ => {}
        }
        self.tables.next_node = self.tables.next_node.max(node.id.saturating_add(1));
        self.tables.next_replica = self.tables.next_replica.max(node.controller_replica + 1);
        self.image.nodes.insert(NodeId::new(node.id), node.info());
        self.tables.nodes.insert(node.id, node.clone());
        Ok(())
    }

    fn create(&mut self, topic: &TopicRecord) -> Result<(), &'static str> {
        if self.tables.topics.contains_key(&topic.name) {
            return Err("the topic exists");
        }
        self.take_replicas(&topic.partitions);
        self.topic_names.insert(topic.id, topic.name.clone());
        self.collision_keys
            .insert(collision_key(&topic.name), topic.name.clone());
        self.tables.topics.insert(topic.name.clone(), topic.clone());
        self.image
            .topic_names
            .insert(TopicId::from_bytes(topic.id), topic.name.clone());
        self.show(&topic.id);
        Ok(())
    }

    fn topic_mut(&mut self, id: &[u8; 16]) -> Result<&mut TopicRecord, &'static str> {
        let name = self.topic_names.get(id).ok_or("no such topic")?;
        self.tables.topics.get_mut(name).ok_or("no such topic")
    }

    fn take_replicas(&mut self, partitions: &[PartitionRecord]) {
        count_replicas(&mut self.replicas, partitions);
        for replica in partitions.iter().flatten() {
            self.tables.next_replica = self.tables.next_replica.max(replica.replica + 1);
        }
    }

    /// Brings a topic's face up to date.
    fn show(&mut self, id: &[u8; 16]) {
        if let Some(topic) = self.topic(id) {
            let info = topic.info();
            self.image.topics.insert(info.name.clone(), info);
        }
    }
}

/// Two states are the same if they would be saved alike.
impl PartialEq for ControllerState {
    fn eq(&self, other: &Self) -> bool {
        self.tables == other.tables
    }
}

fn count_replicas(counts: &mut BTreeMap<i32, usize>, partitions: &[PartitionRecord]) {
    for replica in partitions.iter().flatten() {
        *counts.entry(replica.node).or_default() += 1;
    }
}

fn set(configs: &mut BTreeMap<String, String>, name: &str, value: &Option<String>) {
    match value {
        Some(value) => configs.insert(name.to_owned(), value.clone()),
        None => configs.remove(name),
    };
}

/// Tables that cannot be taken back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Not tables at all.
    #[error(transparent)]
    Malformed(#[from] CodecError),
    /// Tables of another version of this program.
    #[error("the controller's tables have format {found}, this program reads {TABLES_FORMAT}")]
    Format {
        /// The format found.
        found: u16,
    },
}
