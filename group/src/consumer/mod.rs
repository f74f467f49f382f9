//! The consumer protocol (KIP-848) of one group: decisions from its committed state.
//!
//! | module | holds |
//! |---|---|
//! | `state` | what the group's records add up to |
//! | `heartbeat` | join, stay, leave: the one request of the protocol |
//! | `advance` | what follows from a request, by either protocol |
//! | `classic_member` | members that speak the classic protocol |
//! | `classic_migration` | a group with members changes its protocol |
//! | `classic_embedded` | the metadata and assignments of classic members |
//! | `target` | the target assignment, and `assign` the assignors that make it |
//! | `reconcile` | one member's way to its target |
//! | `topics`, `regex`, `changes` | what the cluster has, and what follows when it changes |
//! | `check` | who may commit and fetch offsets |
//! | `timers` | deadlines of members, volatile |
//! | `describe` | the group for people |
//!
//! A decision is a function of committed state and a request. It comes out as records and an
//! answer; the answer is sent once the records have been applied, and the next decision about the
//! group is made only then. There is nothing else to lose when a coordinator dies.

mod advance;
pub mod assign;
mod changes;
mod check;
mod classic_embedded;
mod classic_member;
mod classic_migration;
mod describe;
mod heartbeat;
mod reconcile;
mod regex;
mod state;
mod target;
mod timers;
mod topics;

pub use changes::{Conversion, from_classic, to_classic, topics_changed};
pub use check::{check_commit, check_fetch};
pub use classic_member::{
    ClassicJoin, classic_heartbeat, classic_join, classic_leave, classic_sync,
};
pub use classic_migration::{MigrationLimits, MigrationPolicy, downgrade, upgrade};
pub use describe::{DescribedGroup, DescribedMember, MemberType, describe};
pub use heartbeat::{
    ConsumerLimits, Decision, HeartbeatAnswer, HeartbeatRequest, heartbeat, remove_members,
};
pub use regex::REGEX_BYTES_MAX;
pub use state::{
    ConsumerGroupState, ConsumerMember, ConsumerState, MEMBER_EPOCH_AWAY, MEMBER_EPOCH_JOIN,
    MEMBER_EPOCH_LEAVE,
};
pub use timers::{Expiry, Timers};
pub use topics::{TopicFacts, Topics};
