//! Which nodes the failure detector holds down, as this shard has been told.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use corduroy_record::NodeId;

/// The shard's copy of the detector's verdicts. A node is up until it was called down.
#[derive(Default)]
pub(crate) struct Nodes {
    down: RefCell<HashSet<NodeId>>,
    changes: Cell<u64>,
}

impl Nodes {
    pub(crate) fn is_down(&self, node: NodeId) -> bool {
        self.down.borrow().contains(&node)
    }

    /// `true` if it was up before.
    pub(crate) fn set_down(&self, node: NodeId) -> bool {
        self.changes.set(self.changes.get() + 1);
        self.down.borrow_mut().insert(node)
    }

    /// `true` if it was down before.
    pub(crate) fn set_up(&self, node: NodeId) -> bool {
        self.changes.set(self.changes.get() + 1);
        self.down.borrow_mut().remove(&node)
    }
}
