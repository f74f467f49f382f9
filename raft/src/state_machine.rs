//! The seam to the partition: what the committed log is applied to.

use bytes::Bytes;
use corduroy_record::{LogIndex, NodeId, ReplicaId, Term};
use corduroy_storage::AppliedEntry;

/// A partition's tables. Deterministic: the same entries give the same tables on every replica.
///
/// All calls come on the replica's shard and must not block or call back into the replica's
/// machine.
pub trait StateMachine: 'static {
    /// Whether [`StateMachine::apply`] gets batches whole. The same for a machine's whole life.
    fn reads_records(&self) -> bool {
        false
    }

    /// The topic's name, for the log of the node. The same for a machine's whole life.
    fn topic(&self) -> Option<String> {
        None
    }

    /// Committed entries in log order, on every replica. Of a batch the header alone, unless the
    /// machine [reads records](StateMachine::reads_records).
    fn apply(&mut self, entries: &[AppliedEntry]);

    /// The tables exactly as of the last applied entry.
    fn tables(&self) -> Bytes;

    /// Replaces the tables; `None`: as of an empty log.
    ///
    /// # Errors
    /// The bytes are not tables: the replica stops and says so.
    fn restore(&mut self, tables: Option<Bytes>) -> Result<(), String>;

    /// Something happened that is not in the log.
    fn event(&mut self, event: &ReplicaEvent);
}

/// What a state machine is told beside the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// Another leader, another term, or none.
    LeaderChanged {
        /// The term.
        term: Term,
        /// Its leader, if known.
        leader: Option<(ReplicaId, NodeId)>,
        /// This replica is that leader.
        is_self: bool,
    },
    /// This replica leads and has applied the first entry of its term: judge sequences and serve
    /// the high watermark from now on (law 14).
    BecameReady {
        /// The term.
        term: Term,
    },
    /// The group's members changed.
    MembersChanged,
    /// The log was cut; what was appended after `last` is gone.
    Truncated {
        /// The last entry kept.
        last: Option<LogIndex>,
    },
    /// The replica has stopped and will not come back in this process.
    Stopped {
        /// Why, for people.
        reason: String,
    },
}
