//! Which of a shard's replicas are awake: only these cost anything while nothing happens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use corduroy_record::GroupId;
use tokio::sync::Notify;

use crate::replica_core::Core;

/// The awake replicas of one shard.
///
/// Law: a replica is in here exactly while its sleep is `Awake` and it has an instance, or had one
/// that is being restarted.
#[derive(Default)]
pub(crate) struct AwakeSet {
    replicas: RefCell<HashMap<GroupId, Weak<Core>>>,
    first: Notify,
}

impl AwakeSet {
    pub(crate) fn insert(&self, core: &Rc<Core>) {
        let mut replicas = self.replicas.borrow_mut();
        if replicas.is_empty() {
            self.first.notify_one();
        }
        replicas.insert(core.group, Rc::downgrade(core));
    }

    pub(crate) fn remove(&self, group: GroupId) {
        self.replicas.borrow_mut().remove(&group);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.borrow().is_empty()
    }

    pub(crate) fn groups(&self) -> Vec<GroupId> {
        self.replicas.borrow().keys().copied().collect()
    }

    pub(crate) fn cores(&self) -> Vec<Rc<Core>> {
        let replicas = self.replicas.borrow();
        replicas.values().filter_map(Weak::upgrade).collect()
    }

    /// Waits until one is awake after none was.
    pub(crate) async fn until_one(&self) {
        self.first.notified().await;
    }
}
