//! A node id belongs to one data directory for ever (DESIGN section 4).

use std::collections::BTreeMap;

use corduroy_record::NodeId;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct NodeIdsAreBurnt {
    owners: BTreeMap<NodeId, String>,
}

impl Invariant for NodeIdsAreBurnt {
    fn name(&self) -> &'static str {
        "node_ids_are_burnt"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let Some(image) = moment.seen.image() else {
            return Ok(());
        };
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
