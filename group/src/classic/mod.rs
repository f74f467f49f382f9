//! The classic group protocol of one group, at its coordinator: a machine without I/O.
//!
//! What is durable comes from the table; what is under way (who waits for a join, which timers run)
//! lives here and dies with the coordinator's term. Every call says what happened and when; what
//! follows from it comes out as [`Effect`]s, in order.
//!
//! # The states
//!
//! ```text
//!            first join                        a member joins anew, rejoins with other metadata,
//!   +-------+ (waits for more)                 leaves, is silent, does not sync; the leader
//!   | Empty |-----------+                      rejoins; a write fails
//!   +-------+           v                 +------------------------------------------+
//!       ^      +--------------------+     |                                          |
//!       |      | PreparingRebalance |<----+----------------------+                   |
//!       |      |  members join and  |                            |                   |
//!       |      |  are parked        |                            |                   |
//!       |      +--------------------+                            |                   |
//!       |        |    | all came, or the longest rebalance timeout passed:           |
//!       +--------+    | generation + 1, a leader, a protocol; joins answered         |
//!     nobody came,    v                                          |                   |
//!     generation + 1 +---------------------+              +------+-----+             |
//!                    | CompletingRebalance |------------->|   Stable   |             |
//!                    |  members sync and   | the leader's | heartbeats |-------------+
//!                    |  are parked         | assignment   +------------+             |
//!                    +---------------------+ is durable:                             |
//!                               |            syncs answered                          |
//!                               +----------------------------------------------------+
//!
//!   Dead: after `close`. The coordinator stopped leading, or the group was deleted.
//! ```
//!
//! # One rebalance, with the files
//!
//! 1. `join`: a JoinGroup is judged (who, which protocols, is there room), then it is one of four
//!    things: a member that first needs an id, a new member, a static member that lost its id, a
//!    member that is there. Its ticket is parked with the member (`members`, `Standing`).
//! 2. `rebalance`: the join phase ends when all have come, or when its timer says so; who did not
//!    come is removed if it is dynamic, and kept until its session ends if it is static. The eldest
//!    member leads, and whoever leads goes on leading while it is there.
//! 3. `sync`: the leader brings the assignment, the others wait for it.
//! 4. `writes`: the assignment is handed out to be made durable. Only then is the group Stable and
//!    everybody answered; if it fails, everybody is told and the group starts over.
//! 5. `group`: heartbeats, commits, leaving, ticks; `timers` has the deadlines.
//!
//! # Where this differs from Apache Kafka
//!
//! - A member whose client went away while it was parked is removed after its session timeout
//!   (Kafka's coordinator does not see the client go).
//! - Static members that missed a rebalance have until their session timeout, however long the sync
//!   phase is; the rebalance does not start their session anew.
//! - Ids that were given out (MEMBER_ID_REQUIRED) count against `group.max.size`; a static member
//!   that comes back has its place, also in a full group.
//! - The first join phase ends when nobody new has come for the initial delay, not at multiples of
//!   it.
//! - A member may change all its protocols at once if the others support one of the new ones.
//! - A failed write of a static member's new id is followed by a rebalance, and not taken back: its
//!   outcome may be unknown.

mod facts;
mod group;
mod join;
mod members;
mod pending;
mod rebalance;
mod subscription;
mod sync;
mod timers;
mod writes;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::GroupError;
use crate::records::ClassicValue;

pub use facts::MemberFacts;
pub use group::ClassicGroup;

/// Who waits for an answer; the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One write of this group that is under way; the machine's own number, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// The limits of groups (cluster configuration, live).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassicLimits {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max: Duration,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay: Duration,
    /// `group.max.size`.
    pub members_max: usize,
}

/// JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// The member's id; empty: it has none yet.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// The id that the member gets if it needs a new one (`clientId-uuid`, or `instanceId-uuid`).
    pub fresh_member_id: String,
    /// Whether a member without id must come again with one (versions 4 and later, KIP-394).
    pub requires_known_member_id: bool,
    /// Whether the answer may tell the leader to skip its assignment (version 9, KIP-814).
    pub supports_skip_assignment: bool,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: String,
    /// Milliseconds.
    pub session_timeout_ms: i32,
    /// Milliseconds; version 0 sends the session timeout here.
    pub rebalance_timeout_ms: i32,
    /// "consumer", "connect" and so on.
    pub protocol_type: String,
    /// Name and metadata, in the member's order of preference.
    pub protocols: Vec<(String, Bytes)>,
    /// Why, for the log.
    pub reason: Option<String>,
}

/// What JoinGroup answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAnswer {
    /// The member's id: also in an error, where it has one (MEMBER_ID_REQUIRED).
    pub member_id: String,
    /// Why it did not join, or the generation that it joined.
    pub result: Result<Joined, GroupError>,
}

/// The generation that a member joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The generation.
    pub generation: i32,
    /// The group's protocol type.
    pub protocol_type: String,
    /// The chosen protocol.
    pub protocol: String,
    /// Member id of the leader.
    pub leader: String,
    /// The leader need not assign (KIP-814).
    pub skip_assignment: bool,
    /// All members with their metadata for the chosen protocol: for the leader alone, else empty.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// Its metadata for the chosen protocol.
    pub metadata: Bytes,
}

/// SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Who asks.
    pub identity: MemberIdentity,
    /// The group's protocol type as the member knows it (version 5).
    pub protocol_type: Option<String>,
    /// The chosen protocol as the member knows it (version 5).
    pub protocol: Option<String>,
    /// From the leader: assignment by member id.
    pub assignments: BTreeMap<String, Bytes>,
}

/// A member with its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberIdentity {
    /// Its id.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// The generation that it is in; -1: none.
    pub generation: i32,
}

/// What SyncGroup answers.
pub type SyncAnswer = Result<Synced, GroupError>;

/// A member's assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The group's protocol type.
    pub protocol_type: String,
    /// The chosen protocol.
    pub protocol: String,
    /// Opaque; empty for a member that the leader did not mention.
    pub assignment: Bytes,
}

/// One member of LeaveGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Its id; may be empty where the instance id is given.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// Why, for the log.
    pub reason: Option<String>,
}

/// A member as DescribeGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView<'a> {
    /// Its id.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// The client's name of itself.
    pub client_id: &'a str,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: &'a str,
    /// Its metadata for the chosen protocol, opaque; empty unless the group is Stable.
    pub metadata: Bytes,
    /// Its assignment, opaque; empty from the end of a join phase until the leader has assigned.
    pub assignment: Bytes,
}

/// Whether a name may be a group's in this protocol: any but the empty one.
///
/// # Errors
/// INVALID_GROUP_ID.
pub fn validate_group_id(group_id: &str) -> Result<(), GroupError> {
    match group_id {
        "" => Err(corduroy_protocol::ErrorCode::InvalidGroupId.into()),
        _ => Ok(()),
    }
}

/// What follows from a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer a JoinGroup.
    Join(Ticket, JoinAnswer),
    /// Answer a SyncGroup.
    Sync(Ticket, SyncAnswer),
    /// Make this the group's durable state, then call `persisted`. Writes of one group are handed
    /// out one at a time: the next one follows the outcome of the one before.
    Persist(WriteId, ClassicValue),
    /// A line for the log of people: a rebalance began or ended, a member was removed, and why.
    Note(String),
}

/// The five states of Kafka's classic group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicState {
    /// No members.
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// The leader computes the assignment.
    CompletingRebalance,
    /// Members consume.
    Stable,
    /// Deleted.
    Dead,
}

impl ClassicState {
    /// Kafka's name, as in DescribeGroups.
    pub const fn name(self) -> &'static str {
        match self {
            ClassicState::Empty => "Empty",
            ClassicState::PreparingRebalance => "PreparingRebalance",
            ClassicState::CompletingRebalance => "CompletingRebalance",
            ClassicState::Stable => "Stable",
            ClassicState::Dead => "Dead",
        }
    }
}
