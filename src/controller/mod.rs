//! The controller: cluster metadata as one Raft group, a replica of it on every node.
//!
//! Pattern: replicated commands, deterministic state, and reconcilers elsewhere that make each
//! shard match the published image. Nobody tells a node what to do step by step.
//!
//! | file | holds |
//! |---|---|
//! | `requests`, `judge` | what is asked; the decision, without I/O |
//! | `records`, `state` | what the log holds; what it adds up to |
//! | `image` | the published face |
//! | `placement`, `topic_name` | two rules of the decisions |
//! | `machine`, `service`, `members` | the replica, the task that leads, who votes |
//! | `handle`, `calls` | the way to the controller within and between nodes |
//! | `identity`, `formation` | who this node is; how a cluster forms and grows |

mod calls;
pub mod codec;
mod error;
mod formation;
mod handle;
mod identity;
mod image;
pub mod judge;
mod leaving;
mod log;
mod machine;
mod members;
pub mod placement;
pub mod records;
pub mod requests;
mod service;
mod start;
pub mod state;
pub mod topic_name;

pub use calls::SERVICE_CONTROLLER;
pub use error::{ControllerError, RequestError, TopicError, parted_text};
pub use formation::{Addresses, Formation};
pub use handle::{ControllerHandle, ControllerInbox};
pub use identity::{Founding, IDENTITY_FILE, Identity, IdentityFile};
pub use image::{HostPort, MetadataImage, NodeInfo, PartitionInfo, TopicInfo};
pub use machine::ControllerHooks;
pub use requests::{
    Assignment, ConfigAlteration, ConfigResource, ConfigStep, NewPartitions, NewTopic, NodeClaim,
    TopicRef,
};
pub use start::{Controller, ControllerParts};

#[cfg(test)]
mod tests;
