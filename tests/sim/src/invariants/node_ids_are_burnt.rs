//! A node id belongs to one data directory for ever, and one whose node was removed never comes back,
//! not even with its own (DESIGN section 4).

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::NodeId;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct NodeIdsAreBurnt {
    owners: BTreeMap<NodeId, String>,
    version: u64,
    members: BTreeSet<NodeId>,
    burnt: BTreeSet<NodeId>,
}

impl Invariant for NodeIdsAreBurnt {
    fn name(&self) -> &'static str {
        "node_ids_are_burnt"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let Some(image) = moment.seen.image() else {
            return Ok(());
        };
        if image.version <= self.version {
            return Ok(());
        }
        self.version = image.version;
        let members: BTreeSet<NodeId> = image.nodes.keys().copied().collect();
        self.burnt.extend(self.members.difference(&members));
        if let Some(node) = members.intersection(&self.burnt).next() {
            return Err(format!("node id {node} was removed, and is there again"));
        }
        self.members = members;
        for node in image.nodes.values() {
            let uuid = node.uuid.to_string();
            let owner = self.owners.entry(node.id).or_insert_with(|| uuid.clone());
            if *owner != uuid {
                return Err(format!("node id {} went from {owner} to {uuid}", node.id));
            }
        }
        Ok(())
    }
}
