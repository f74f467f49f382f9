//! The group coordinator: drives the pure group machines (crate `corduroy-group`) on the leader of
//! each partition of `__consumer_offsets`.
//!
//! | file | holds |
//! |---|---|
//! | `coordinator` | one coordinator per replica: whether it may act, its clocks and settings |
//! | `classic` | the classic groups that run, who waits in them, their timers |
//! | `consumer` | the groups of the consumer protocol (KIP-848) |
//! | `migration` | classic members of those, and groups that change their protocol |
//! | `offsets` | commits, fetches and deletion of offsets |
//! | `expiry` | offsets that go by themselves |
//! | `admin` | list, describe, delete |
//! | `topics` | the cluster's topics as assignors see them, and those that have gone |
//! | `writer` | records into batches, in one order, a few batches under way |
//! | `portion` | how much of that upkeep writes in one decision |
//! | `refresh` | the live state written again, so that what is older can be purged |
//! | `call` | what the wire's side asks |
//!
//! Law: durable state is the partition's applied [`corduroy_group::table::GroupTable`], the same on
//! every replica. What lives here beside it (who waits, which timers run) belongs to one term and
//! goes with it, so a failover keeps generations and members, and rebalances nobody.

mod admin;
mod call;
mod classic;
mod consumer;
mod coordinator;
mod expiry;
mod migration;
mod offsets;
mod portion;
mod refresh;
mod topics;
mod writer;

#[cfg(test)]
mod tests;

pub use call::{
    AskedOffset, CommitRequest, CommittedOffset, FetchOffsetsRequest, GroupCall, GroupStatus,
    ListFilter, OffsetCommit, Reply,
};
pub use coordinator::Coordinator;

/// The internal topic that holds groups and committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";

/// Whether a topic is the cluster's own. Any other name may begin with `__` too.
pub fn is_internal(topic: &str) -> bool {
    topic == CONSUMER_OFFSETS
}
