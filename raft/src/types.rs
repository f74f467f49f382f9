//! openraft's type parameters, filled in: what an entry, a vote, a member is here.
//!
//! This is the only vocabulary shared with openraft. Conversions to our own numbers live here, so
//! that the rest of the crate reads in one language.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use corduroy_record::{Batch, LogIndex, NodeId, ReplicaId, Term};
use corduroy_storage::{AppliedBody, AppliedEntry, EntryHead};
use openraft::entry::{RaftEntry, RaftPayload};
use openraft::impls::leader_id_std;
use openraft::raft::responder::Responder;
use openraft::type_config::alias::{
    CommittedLeaderIdOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf,
};
use openraft::{EntryPayload, RaftTypeConfig};

use crate::door::Ticket;
use crate::runtime::ShardRuntime;

/// openraft's type configuration.
#[derive(Debug, Clone, Copy, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct TypeConfig;

/// Where a replica lives. The transport maps the node to an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftNode {
    /// The node that hosts the replica.
    pub node: NodeId,
}

pub(crate) type Raft = openraft::Raft<TypeConfig, crate::machine::MachineDriver>;
pub(crate) type LogId = LogIdOf<TypeConfig>;
pub(crate) type RaftVote = VoteOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, RaftNode>;
pub(crate) type StoredMembership = StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<TypeConfig>;

impl RaftTypeConfig for TypeConfig {
    type D = Proposed;
    type R = ();
    type NodeId = u64;
    type Node = RaftNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Proposed, u64, RaftNode>;
    type Entry = LogEntry;
    type AsyncRuntime = ShardRuntime;
    type Responder<T>
        = CallbackResponder<T>
    where
        T: 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// What a proposal asks to be logged, or what came back from the log.
pub struct Proposed {
    pub(crate) body: Body,
    /// The proposal's process-local ticket: `None` for everything that this leader did not
    /// propose itself. Never serialised.
    pub(crate) ticket: Option<Rc<Ticket>>,
}

/// The content of a [`Proposed`].
pub(crate) enum Body {
    /// A record batch.
    Batch(Batch),
    /// An entry of ours. Empty bytes are a void: the place of a proposal whose predecessor was
    /// refused.
    Internal(Bytes),
    /// As read for apply: headers only.
    Applied(AppliedBody),
}

impl fmt::Debug for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Proposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            Body::Batch(batch) => write!(f, "batch of {} B", batch.size_bytes()),
            Body::Internal(bytes) => write!(f, "internal entry of {} B", bytes.len()),
            Body::Applied(_) => f.write_str("header"),
        }
    }
}

/// One Raft log entry on its way between openraft, the log store and the wire.
pub struct LogEntry {
    pub(crate) id: LogId,
    /// Known for entries that were stamped before (received, or read back); `None` for those that
    /// this leader is about to append.
    pub(crate) head: Option<EntryHead>,
    pub(crate) payload: EntryPayload<Proposed, u64, RaftNode>,
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.payload)
    }
}

impl RaftEntry for LogEntry {
    type CommittedLeaderId = CommittedLeaderIdOf<TypeConfig>;
    type Payload = EntryPayload<Proposed, u64, RaftNode>;

    fn new(id: LogId, payload: Self::Payload) -> Self {
        LogEntry {
            id,
            head: None,
            payload,
        }
    }

    fn log_id_parts(&self) -> (&Self::CommittedLeaderId, u64) {
        (&self.id.leader_id, self.id.index)
    }

    fn set_log_id(&mut self, id: LogId) {
        self.id = id;
    }

    fn get_membership(&self) -> Option<Membership> {
        self.payload.get_membership()
    }
}

/// Tells a proposal's outcome by a call instead of a channel: no task in between.
///
/// Law: the callback runs exactly once; with `None` if openraft dropped the request unanswered.
pub struct CallbackResponder<T>(Option<Callback<T>>);

type Callback<T> = Box<dyn FnOnce(Option<T>)>;

impl<T> CallbackResponder<T> {
    pub(crate) fn new(callback: Callback<T>) -> Self {
        CallbackResponder(Some(callback))
    }
}

impl<T: 'static> Responder<TypeConfig, T> for CallbackResponder<T> {
    fn on_complete(mut self, result: T) {
        if let Some(callback) = self.0.take() {
            callback(Some(result));
        }
    }
}

impl<T> Drop for CallbackResponder<T> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback(None);
        }
    }
}

/// The log id of an entry.
pub(crate) fn log_id(term: Term, index: LogIndex) -> LogId {
    LogId::new(committed_leader(term), index.get())
}

/// The term of a committed leader, as openraft wants it.
pub(crate) fn committed_leader(term: Term) -> CommittedLeaderIdOf<TypeConfig> {
    CommittedLeaderIdOf::<TypeConfig>::new(term.get())
}

/// An entry's place in our own numbers.
pub(crate) fn place(id: &LogId) -> (Term, LogIndex) {
    (Term::new(id.leader_id.term), LogIndex::new(id.index))
}

/// openraft's vote for the log.
pub(crate) fn vote_to_storage(vote: &RaftVote) -> corduroy_storage::Vote {
    corduroy_storage::Vote {
        term: Term::new(vote.leader_id.term),
        voted_for: Some(ReplicaId::new(vote.leader_id.voted_for)),
        committed: vote.committed,
    }
}

/// A stored vote for openraft; `own` stands in where an old vote names nobody.
pub(crate) fn vote_from_storage(vote: &corduroy_storage::Vote, own: ReplicaId) -> RaftVote {
    let voted_for = vote.voted_for.unwrap_or(own).get();
    if vote.committed {
        RaftVote::new_committed(vote.term.get(), voted_for)
    } else {
        RaftVote::new(vote.term.get(), voted_for)
    }
}

/// The voter sets that a logged membership puts in force: one, or two of which each has to agree
/// while a joint change is under way. `None`: these bytes are no membership.
pub fn voter_sets(logged: &[u8]) -> Option<Vec<BTreeSet<ReplicaId>>> {
    let record = MembershipRecord::decode(logged).ok()?;
    let set = |voters: Vec<u64>| voters.into_iter().map(ReplicaId::new).collect();
    Some(record.configs.into_iter().map(set).collect())
}

/// A membership's bytes as logged and as carried by snapshots: rkyv of [`MembershipRecord`].
#[derive(
    rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Debug, Clone, PartialEq, Eq, Default,
)]
pub(crate) struct MembershipRecord {
    /// Voter sets: one, or two while a joint change is under way.
    pub(crate) configs: Vec<Vec<u64>>,
    /// Every member with its node, learners included.
    pub(crate) nodes: Vec<(u64, i32)>,
    /// Where the membership was logged: `(term, index)`. `None` inside a log entry, whose own id
    /// says it.
    pub(crate) at: Option<(u64, u64)>,
}

impl MembershipRecord {
    pub(crate) fn of(membership: &Membership, at: Option<&LogId>) -> MembershipRecord {
        MembershipRecord {
            configs: membership
                .get_joint_config()
                .iter()
                .map(|voters| voters.iter().copied().collect())
                .collect(),
            nodes: membership
                .nodes()
                .map(|(id, node)| (*id, node.node.get()))
                .collect(),
            at: at.map(|id| (id.leader_id.term, id.index)),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(self)
            .expect("law just checked: a membership record holds no type that fails to archive");
        Bytes::copy_from_slice(&bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<MembershipRecord, MembershipError> {
        let mut aligned = rkyv::util::AlignedVec::<16>::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        rkyv::from_bytes::<MembershipRecord, rkyv::rancor::Error>(&aligned)
            .map_err(|error| MembershipError(error.to_string()))
    }

    pub(crate) fn membership(&self) -> Result<Membership, MembershipError> {
        let configs: Vec<BTreeSet<u64>> = self
            .configs
            .iter()
            .map(|voters| voters.iter().copied().collect())
            .collect();
        let nodes: BTreeMap<u64, RaftNode> = self
            .nodes
            .iter()
            .map(|(id, node)| {
                (
                    *id,
                    RaftNode {
                        node: NodeId::new(*node),
                    },
                )
            })
            .collect();
        if configs.is_empty() && nodes.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(configs, nodes).map_err(|error| MembershipError(error.to_string()))
    }

    pub(crate) fn stored(&self) -> Result<StoredMembership, MembershipError> {
        let at = self
            .at
            .map(|(term, index)| log_id(Term::new(term), LogIndex::new(index)));
        Ok(StoredMembership::new(at, self.membership()?))
    }

    pub(crate) fn of_stored(stored: &StoredMembership) -> MembershipRecord {
        MembershipRecord::of(stored.membership(), stored.log_id().as_ref())
    }
}

/// Bytes that should be a membership are not one.
#[derive(Debug, thiserror::Error)]
#[error("not a membership: {0}")]
pub(crate) struct MembershipError(String);

/// The entry as the state machine sees it, of a batch the records if it `reads_records`; `None` if
/// the log gave no head, which it always does.
pub(crate) fn applied_entry(entry: &LogEntry, reads_records: bool) -> Option<AppliedEntry> {
    let head = entry.head?;
    let body = match &entry.payload {
        EntryPayload::Blank => AppliedBody::Blank,
        EntryPayload::Membership(membership) => {
            AppliedBody::Membership(MembershipRecord::of(membership, None).encode())
        }
        EntryPayload::Normal(proposed) => match &proposed.body {
            Body::Batch(batch) if reads_records => AppliedBody::Records(batch.clone()),
            Body::Batch(batch) => AppliedBody::Batch(*batch.header()),
            // A void is nobody's command.
            Body::Internal(bytes) if bytes.is_empty() => AppliedBody::Blank,
            Body::Internal(bytes) => AppliedBody::Internal(bytes.clone()),
            Body::Applied(AppliedBody::Internal(bytes)) if bytes.is_empty() => AppliedBody::Blank,
            Body::Applied(body) => body.clone(),
        },
    };
    Some(AppliedEntry { head, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joint_membership_survives_its_bytes() {
        let record = MembershipRecord {
            configs: vec![vec![1, 2, 3], vec![2, 3, 4]],
            nodes: vec![(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)],
            at: Some((7, 9)),
        };
        let back = MembershipRecord::decode(&record.encode()).expect("own bytes");
        assert_eq!(back, record);
        let stored = back.stored().expect("valid");
        assert_eq!(MembershipRecord::of_stored(&stored), record);
    }

    #[test]
    fn hostile_membership_bytes_are_an_error() {
        assert!(MembershipRecord::decode(&[]).is_err());
        assert!(MembershipRecord::decode(&[0xff; 64]).is_err());
        let orphan = MembershipRecord {
            configs: vec![vec![1]],
            nodes: vec![],
            at: None,
        };
        assert!(orphan.membership().is_err());
    }
}
