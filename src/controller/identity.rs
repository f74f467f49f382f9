//! Who this node is, for good: the file `node.id` of the data directory.
//!
//! TOML, readable by people:
//! ```toml
//! format = 1
//! uuid = "…"                 # the data directory's, random, written before anything else
//! node_id = 2                # once the cluster has formed or taken the node in
//! controller_replica = 2
//! controller_created = true  # the controller's log was made: from now on its absence is damage
//! initialize = false         # this node has still to start the controller's group
//! cluster_id = "…"           # once known
//! [[member]]                 # the founders, or the nodes that were there when this one joined
//! ```
//! Law: the file is replaced as a whole and durably, before anything is done that relies on it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corduroy_record::{NodeId, ReplicaId};
use corduroy_storage::{Disk, OpenMode};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::ControllerError;
use super::records::NodeRecord;

/// The file's name in the data directory.
pub const IDENTITY_FILE: &str = "node.id";

/// The version of the file.
const FORMAT: u32 = 1;

/// Larger is no identity.
const IDENTITY_BYTES_MAX: u64 = 1 << 20;

/// A node with a place in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The data directory's.
    pub uuid: Uuid,
    /// The node's id.
    pub node: NodeId,
    /// Its replica of the controller.
    pub controller_replica: ReplicaId,
    /// The cluster, once known.
    pub cluster_id: Option<Uuid>,
    /// The controller's log exists.
    pub controller_created: bool,
    /// This node has still to start the controller's group; only the first founder ever has.
    pub initialize: bool,
    /// What the founders agreed on; none on a node that joined.
    pub founding: Option<Founding>,
    /// Nodes last known: where to look for the controller.
    pub members: Vec<NodeRecord>,
}

/// What founders agree on before there is a controller: the first seed decides, the others adopt.
#[derive(
    rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Debug, Default, PartialEq, Eq,
)]
pub struct Founding {
    /// The founders in the order of the seeds.
    pub nodes: Vec<NodeRecord>,
    /// The settings that the cluster starts with.
    pub configs: BTreeMap<String, String>,
}

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Nothing yet.
    Empty,
    /// A uuid and no place in a cluster.
    Unplaced(Uuid),
    /// All of it.
    Placed(Identity),
}

/// The identity file of one data directory.
#[derive(Clone)]
pub struct IdentityFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl IdentityFile {
    /// The file in `data_dir`, which must exist.
    pub fn new(disk: Arc<dyn Disk>, data_dir: &Path) -> Self {
        IdentityFile {
            disk,
            dir: data_dir.to_owned(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.dir.join(IDENTITY_FILE)
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads it.
    pub fn load(&self) -> Result<Stored, ControllerError> {
        let path = self.path();
        if !(self.disk.exists(&path)).map_err(|source| self.failed(source))? {
            return Ok(Stored::Empty);
        }
        let text = self.read(&path).map_err(|source| self.failed(source))?;
        let form: Form = toml::from_str(&text).map_err(|error| self.damaged(error.to_string()))?;
        form.stored().map_err(|reason| self.damaged(reason))
    }

    /// Writes a uuid without a place.
    pub fn save_uuid(&self, uuid: Uuid) -> Result<(), ControllerError> {
        self.save_form(&Form {
            format: FORMAT,
            uuid: uuid.to_string(),
            ..Form::default()
        })
    }

    /// Writes all of it.
    pub fn save(&self, identity: &Identity) -> Result<(), ControllerError> {
        self.save_form(&Form::of(identity))
    }

    fn save_form(&self, form: &Form) -> Result<(), ControllerError> {
        let text = toml::to_string(form).map_err(|error| self.damaged(error.to_string()))?;
        self.write(text.as_bytes())
            .map_err(|source| self.failed(source))
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let file = self.disk.open(path, OpenMode::Existing)?;
        let length = file.len()?;
        if length > IDENTITY_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is too large",
            ));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(read as u64, &mut bytes[read..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => read += count,
            }
        }
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.dir.join("node.id.new");
        let file = self.disk.open(&temporary, OpenMode::Truncate)?;
        file.write_at(0, &[IoSlice::new(bytes)])?;
        file.flush()?;
        drop(file);
        self.disk.rename(&temporary, &self.path())?;
        self.disk.flush_dir(&self.dir)
    }

    fn failed(&self, source: io::Error) -> ControllerError {
        ControllerError::IdentityIo {
            path: self.path(),
            source,
        }
    }

    fn damaged(&self, reason: String) -> ControllerError {
        ControllerError::IdentityDamaged {
            path: self.path(),
            reason,
        }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Form {
    format: u32,
    uuid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_id: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controller_replica: Option<u64>,
    #[serde(default)]
    controller_created: bool,
    #[serde(default)]
    initialize: bool,
    #[serde(default)]
    founder: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    founding_configs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    member: Vec<MemberForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberForm {
    id: i32,
    uuid: String,
    controller_replica: u64,
    kafka_host: String,
    kafka_port: u16,
    rpc: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    admin: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rack: Option<String>,
}

impl MemberForm {
    fn of(node: &NodeRecord) -> Self {
        MemberForm {
            id: node.id,
            uuid: Uuid::from_bytes(node.uuid).to_string(),
            controller_replica: node.controller_replica,
            kafka_host: node.kafka_host.clone(),
            kafka_port: node.kafka_port,
            rpc: node.rpc,
            admin: node.admin,
            rack: node.rack.clone(),
        }
    }

    fn record(self) -> Result<NodeRecord, String> {
        Ok(NodeRecord {
            id: self.id,
            uuid: *uuid_of(&self.uuid)?.as_bytes(),
            controller_replica: self.controller_replica,
            kafka_host: self.kafka_host,
            kafka_port: self.kafka_port,
            rpc: self.rpc,
            admin: self.admin,
            rack: self.rack,
        })
    }
}

impl Form {
    fn of(identity: &Identity) -> Form {
        let founding = identity.founding.clone().unwrap_or_default();
        let members = if founding.nodes.is_empty() {
            &identity.members
        } else {
            &founding.nodes
        };
        Form {
            format: FORMAT,
            uuid: identity.uuid.to_string(),
            node_id: Some(identity.node.get()),
            controller_replica: Some(identity.controller_replica.get()),
            controller_created: identity.controller_created,
            initialize: identity.initialize,
            founder: identity.founding.is_some(),
            cluster_id: identity.cluster_id.map(|id| id.to_string()),
            founding_configs: founding.configs,
            member: members.iter().map(MemberForm::of).collect(),
        }
    }

    fn stored(self) -> Result<Stored, String> {
        if self.format != FORMAT {
            return Err(format!(
                "format {} is not known, this program reads {FORMAT}",
                self.format
            ));
        }
        let uuid = uuid_of(&self.uuid)?;
        let (node, controller_replica) = match (self.node_id, self.controller_replica) {
            (None, None) => return Ok(Stored::Unplaced(uuid)),
            (Some(node), Some(replica)) => (NodeId::new(node), ReplicaId::new(replica)),
            _ => return Err("node_id and controller_replica belong together".into()),
        };
        let cluster_id = self.cluster_id.as_deref().map(uuid_of).transpose()?;
        let members: Vec<NodeRecord> = self
            .member
            .into_iter()
            .map(MemberForm::record)
            .collect::<Result<_, _>>()?;
        let founding = self.founder.then(|| Founding {
            nodes: members.clone(),
            configs: self.founding_configs,
        });
        Ok(Stored::Placed(Identity {
            uuid,
            node,
            controller_replica,
            cluster_id,
            controller_created: self.controller_created,
            initialize: self.initialize,
            founding,
            members,
        }))
    }
}

fn uuid_of(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| format!("{text:?} is not a uuid"))
}

#[cfg(test)]
mod tests {
    use corduroy_storage::RealDisk;

    use super::*;

    fn member(id: i32) -> NodeRecord {
        NodeRecord {
            id,
            uuid: [id as u8; 16],
            controller_replica: id as u64,
            kafka_host: "h".into(),
            kafka_port: 9092,
            rpc: ([127, 0, 0, 1], 33145).into(),
            admin: None,
            rack: Some("r".into()),
        }
    }

    #[test]
    fn the_file_gives_back_what_it_was_given() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = IdentityFile::new(Arc::new(RealDisk), dir.path());
        assert_eq!(file.load().expect("reads"), Stored::Empty);
        let uuid = Uuid::from_u128(7);
        file.save_uuid(uuid).expect("writes");
        assert_eq!(file.load().expect("reads"), Stored::Unplaced(uuid));
        let nodes = vec![member(1), member(2)];
        let mut identity = Identity {
            uuid,
            node: NodeId::new(2),
            controller_replica: ReplicaId::new(2),
            cluster_id: Some(Uuid::from_u128(9)),
            controller_created: true,
            initialize: true,
            founding: Some(Founding {
                nodes: nodes.clone(),
                configs: BTreeMap::from([("num.partitions".to_owned(), "1".to_owned())]),
            }),
            members: nodes,
        };
        file.save(&identity).expect("writes");
        assert_eq!(
            file.load().expect("reads"),
            Stored::Placed(identity.clone())
        );
        identity.founding = None;
        file.save(&identity).expect("writes");
        assert_eq!(file.load().expect("reads"), Stored::Placed(identity));
    }

    #[test]
    fn damage_is_told_and_not_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = IdentityFile::new(Arc::new(RealDisk), dir.path());
        for text in ["", "format = 1", "format = 9\nuuid = \"x\"", "not toml ["] {
            std::fs::write(file.path(), text).expect("writes");
            let error = file.load().expect_err("damaged").to_string();
            assert!(error.contains("node.id"), "{error}");
        }
    }
}
