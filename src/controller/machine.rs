//! The controller's state behind its Raft replica: applies commands, publishes images.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use corduroy_raft::{ReplicaEvent, StateMachine};
use corduroy_record::NodeId;
use corduroy_storage::{AppliedBody, AppliedEntry};
use tokio::sync::Notify;
use tracing::{error, info};

use super::codec::decode;
use super::image::MetadataImage;
use super::records::Command;
use super::state::ControllerState;

/// What the node hears from its controller. Called on shard 0; must not block.
pub struct ControllerHooks {
    /// A new image, on every node, right after the change was applied there.
    pub publish: Box<dyn Fn(Arc<MetadataImage>)>,
    /// Another leader, or none.
    pub leader_changed: Box<dyn Fn(Option<NodeId>)>,
}

/// One replica's state machine.
pub(super) struct ControllerMachine {
    state: ControllerState,
    hooks: ControllerHooks,
    /// Rings at everything that the controller's task may have to act on.
    changed: Rc<Notify>,
    /// Why this node's replica stopped, if it did.
    stopped: Option<String>,
}

impl ControllerMachine {
    pub(super) fn new(hooks: ControllerHooks, changed: Rc<Notify>) -> Self {
        ControllerMachine {
            state: ControllerState::default(),
            hooks,
            changed,
            stopped: None,
        }
    }

    /// As of the last applied entry.
    pub(super) fn state(&self) -> &ControllerState {
        &self.state
    }

    /// Why this node's replica stopped, if it did.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    fn publish(&self) {
        (self.hooks.publish)(Arc::new(self.state.image().clone()));
    }
}

impl StateMachine for ControllerMachine {
    fn apply(&mut self, entries: &[AppliedEntry]) {
        let mut visible = false;
        for entry in entries {
            let AppliedBody::Internal(bytes) = &entry.body else {
                continue;
            };
            match decode::<Command>(bytes) {
                Ok(command) => visible |= self.state.apply(&command),
                // The bytes are the same on every replica, and so is passing over them.
                Err(why) => {
                    error!(index = %entry.head.index, %why, "an entry of the controller's log is not a command")
                }
            }
        }
        // One image for all that was applied at once.
        if visible {
            self.publish();
        }
        self.changed.notify_waiters();
    }

    fn tables(&self) -> Bytes {
        self.state
            .save()
            .expect("law: the tables hold only types that archive without fail")
    }

    fn restore(&mut self, tables: Option<Bytes>) -> Result<(), String> {
        self.state = match tables {
            None => ControllerState::default(),
            Some(bytes) => ControllerState::restore(&bytes).map_err(|error| error.to_string())?,
        };
        if self.state.image().version > 0 {
            self.publish();
        }
        self.changed.notify_waiters();
        Ok(())
    }

    fn event(&mut self, event: &ReplicaEvent) {
        match event {
            ReplicaEvent::LeaderChanged {
                term,
                leader,
                is_self,
            } => {
                let node = leader.map(|(_, node)| node);
                let shown = node.map_or_else(|| "none".to_owned(), |node| node.to_string());
                info!(%term, leader = %shown, is_self, "the controller's leader");
                (self.hooks.leader_changed)(node);
            }
            ReplicaEvent::Stopped { reason } => {
                error!(reason, "the controller's replica of this node has stopped");
                (self.hooks.leader_changed)(None);
                self.stopped = Some(reason.to_string());
            }
            ReplicaEvent::BecameReady { .. }
            | ReplicaEvent::MembersChanged
            | ReplicaEvent::Truncated { .. } => {}
        }
        self.changed.notify_waiters();
    }
}
