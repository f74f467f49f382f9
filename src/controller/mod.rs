//! The controller: cluster metadata as one Raft group.

pub mod codec;
pub mod image;
pub mod judge;
pub mod placement;
pub mod records;
pub mod requests;
pub mod state;
pub mod topic_name;

pub use image::{HostPort, MetadataImage, NodeInfo, PartitionInfo, TopicInfo};
