//! Consumer groups without I/O: Kafka's group semantics as records, a table and two machines.
//!
//! | module | holds |
//! |---|---|
//! | `records` | keys and values of `__consumer_offsets`, byte for byte Kafka's |
//! | `table` | what applied records add up to: the same on every replica, carried by snapshots |
//! | `classic` | the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) of one group |
//! | `consumer` | the consumer protocol (KIP-848) of one group, and its assignors |
//! | `commits` | who may commit offsets, and when they expire |
//!
//! Invariants, stated as absences: nothing here reads a clock, draws a random number, sleeps, sends
//! or spawns. Time comes in as [`Now`]; new member ids come in with the request; what must be
//! durable goes out as records, and takes effect when they have been committed and applied.

pub mod classic;
pub mod commits;
pub mod consumer;
mod coordinator_key;
pub mod records;
pub mod table;

pub use coordinator_key::{java_string_hash, partition_of_group};

/// Monotonic time since a start that the caller chose.
pub type Now = std::time::Duration;

/// Why a group request was refused: Kafka's code, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct GroupError {
    /// Kafka's error code.
    pub code: corduroy_protocol::ErrorCode,
    /// One sentence; empty where the code says it all.
    pub message: String,
}

impl GroupError {
    /// An error with a sentence.
    pub fn new(code: corduroy_protocol::ErrorCode, message: impl Into<String>) -> GroupError {
        GroupError {
            code,
            message: message.into(),
        }
    }
}

impl From<corduroy_protocol::ErrorCode> for GroupError {
    fn from(code: corduroy_protocol::ErrorCode) -> GroupError {
        GroupError::new(code, "")
    }
}
