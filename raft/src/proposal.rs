//! What a caller proposes and how it learns the outcome.

use bytes::Bytes;
use corduroy_record::{Batch, NodeId, Term};
use corduroy_storage::EntryHead;

/// A command for a replica's log.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// What to log.
    pub payload: ProposalPayload,
    /// The term in which the caller judged it: it is never appended in another.
    pub term: Term,
}

/// The two kinds of commands.
#[derive(Clone, Debug)]
pub enum ProposalPayload {
    /// A record batch; the log stamps its base offset and leader epoch.
    Batch(Batch),
    /// An entry of the state machine's own, without offsets. Never empty: an empty one would be
    /// taken for a void.
    Internal(Bytes),
}

/// Hears about one proposal. Calls come on the shard, in the order of the log, and must not block.
pub trait ProposalObserver {
    /// The entry is in the leader's log and its write has returned; it is not flushed yet. This
    /// is what `acks=1` waits for. Not called if the outcome comes first.
    fn appended(&mut self, head: EntryHead) {
        let _ = head;
    }

    /// How it ended. Called exactly once.
    fn finished(self: Box<Self>, outcome: ProposalOutcome);
}

/// How a proposal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// Committed and applied at this place.
    Applied(EntryHead),
    /// It is not in the log and never will be.
    NotAppended(RefuseReason),
    /// It was appended, and then truncated by a new leader, or its replica stopped: it may or may
    /// not be committed.
    Discarded,
}

/// Why a proposal was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// Another replica leads, or this one leads in another term.
    NotLeader {
        /// The leader's node, if known.
        leader: Option<NodeId>,
    },
    /// This leader has heard no majority for longer than its lease.
    LeaseLost,
    /// An earlier proposal of this replica was refused.
    Predecessor,
    /// The replica has stopped.
    Stopped,
}
