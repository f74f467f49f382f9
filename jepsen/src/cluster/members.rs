//! Who is a member: nodes join, are removed for good, and others take their place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::node::Node;
use super::{Cluster, PartitionState, http, number};

/// How long a node may take to answer that it has removed another one, before somebody is asked
/// again: other faults have to end in time meanwhile.
const REMOVE_WAIT_MAX: Duration = Duration::from_secs(2);
/// What a node answers that will not remove another one as things are.
const CONFLICT: u16 = 409;

/// What came of asking for a node's removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is a member no more.
    Done,
    /// It still is one, and why.
    Refused(String),
    /// Nobody said.
    Unknown(String),
}

impl PartitionState {
    /// Replicas on nodes that are members: those of a node that was removed for good are listed, and
    /// will never be there again.
    pub fn living(&self, members: &[u32]) -> Vec<u32> {
        let replicas = self.replicas.iter().copied();
        replicas.filter(|id| members.contains(id)).collect()
    }
}

/// Where a node's log goes.
pub(super) fn log_of(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("node-{id}.log"))
}

/// The ids of the nodes that a status names, in order.
pub(super) fn known(status: &Value) -> Vec<u32> {
    let nodes = status["nodes"].as_array().map(Vec::as_slice);
    let ids = nodes.unwrap_or_default().iter();
    let mut ids: Vec<u32> = ids.filter_map(|node| number(&node["node"])).collect();
    ids.sort_unstable();
    ids
}

impl Cluster {
    /// Whether there is a machine on which nobody lives.
    pub fn has_spare(&self) -> bool {
        !self.spares.is_empty()
    }

    /// The machine of a host, whoever lives there.
    pub fn machine(&self, host: crate::topology::link::Host) -> Option<&Node> {
        self.machines().find(|node| node.place.host == host)
    }

    /// Names of the log files of all nodes that there ever were.
    pub fn log_names(&self) -> Vec<String> {
        let ever = 1..self.next_id;
        ever.map(|id| format!("node-{id}.log")).collect()
    }

    fn take_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Starts a fresh node on a free machine, and returns its id at once.
    ///
    /// # Errors
    /// That no machine is free; the operating system's.
    pub fn join(&mut self) -> anyhow::Result<u32> {
        let mut node = self.spares.pop().context("no machine is free")?;
        let id = self.take_id();
        let fresh = node.succeed(id, log_of(&self.dir, id));
        self.nodes.push(node);
        fresh?;
        self.start(id)?;
        Ok(id)
    }

    /// Starts a fresh node, under a new id and without any data, on the machine of one that was
    /// removed for good. Returns its id at once.
    ///
    /// # Errors
    /// The operating system's.
    pub fn replace(&mut self, gone: u32) -> anyhow::Result<u32> {
        let id = self.take_id();
        let log = log_of(&self.dir, id);
        self.node(gone)?.succeed(id, log)?;
        self.start(id)?;
        Ok(id)
    }

    /// The machine of a node that was removed for good is free again.
    ///
    /// # Errors
    /// The operating system's.
    pub fn dismiss(&mut self, gone: u32) -> anyhow::Result<()> {
        if let Some(place) = self.nodes.iter().position(|node| node.id() == gone) {
            let node = self.nodes.remove(place);
            let wiped = node.wipe();
            self.spares.push(node);
            wiped?;
        }
        Ok(())
    }

    /// Asks another node to remove a node for good; in another `turn` another one.
    pub async fn decommission(&self, id: u32, turn: usize) -> Removal {
        let others = self.nodes.iter().filter(|node| node.id() != id);
        let others = others.filter(|node| node.is_running() && !node.is_stopped());
        let others: Vec<&Node> = others.collect();
        let place = turn.checked_rem(others.len());
        let Some(node) = place.and_then(|place| others.get(place)) else {
            return Removal::Unknown("no other node runs".to_owned());
        };
        let path = format!("/v1/nodes/{id}/decommission");
        let admin = node.place.admin;
        match http::ask(&self.env, admin, "POST", &path, REMOVE_WAIT_MAX).await {
            Ok((200, _)) => Removal::Done,
            Ok((code, body)) => {
                let said = body["error"].as_str().unwrap_or("no reason");
                let why = format!("node {}: {code}: {said}", node.id());
                match code {
                    CONFLICT => Removal::Refused(why),
                    _ => Removal::Unknown(why),
                }
            }
            Err(error) => Removal::Unknown(format!("node {}: {error:#}", node.id())),
        }
    }

    /// Whether a node serves, and every other member that answers knows it.
    pub async fn has_joined(&self, id: u32) -> bool {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let is_new = node.id() == id;
            let has = match node.status(&self.env).await {
                Some(status) => {
                    let serves = status["is_serving"] == Value::Bool(true);
                    known(&status).contains(&id) && (serves || !is_new)
                }
                None => !is_new,
            };
            if !has {
                return false;
            }
        }
        true
    }
}
