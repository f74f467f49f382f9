//! Consumer groups on the wire: which coordinator, and each API's words.
//!
//! | file | APIs |
//! |---|---|
//! | `coordinator` | FindCoordinator, and the way to a group's coordinator on this node |
//! | `membership` | JoinGroup, SyncGroup, Heartbeat, LeaveGroup |
//! | `offsets` | OffsetCommit, OffsetFetch, OffsetDelete |
//! | `admin` | ListGroups, DescribeGroups, DeleteGroups |
//! | `consumer` | ConsumerGroupHeartbeat, ConsumerGroupDescribe |

mod admin;
mod consumer;
mod coordinator;
mod membership;
mod offsets;

pub use admin::{delete_groups, describe_groups, list_groups};
pub use consumer::{consumer_group_describe, consumer_group_heartbeat};
pub use coordinator::{find_coordinator, offsets_topic};
pub use membership::{heartbeat, join_group, leave_group, sync_group};
pub use offsets::{
    offset_commit, offset_commit_by_id, offset_delete, offset_fetch, offset_fetch_by_id,
};
