//! How a group begins: with one entry, its members, the same on every replica.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::{LogIndex, NodeId, Offset, ReplicaId, Term};
use corduroy_storage::{AppendDone, Log, LogStart, NewEntry, Payload};

use crate::error::RaftError;
use crate::types::{Membership, MembershipRecord, RaftNode};

/// Writes a group's first entry, its members, to a log that holds nothing yet; durable when it
/// returns. Before the replica is opened. Returns whether it was written.
///
/// `members` come from the one command of the controller that created the group, so it is one and
/// the same entry on every replica, whoever writes it (safety law 7), and any majority of them can
/// elect a leader. If one replica alone had it, the others would wait for that one's node: they
/// know of nobody whom they could ask for votes.
///
/// # Errors
/// The members make no group; a failed disk.
pub async fn write_first_entry(
    log: &Log,
    members: &[(ReplicaId, NodeId)],
) -> Result<bool, RaftError> {
    let state = log.state();
    let is_new = state.last.is_none()
        && state.log_start == LogStart::ZERO
        && log.snapshot_at().is_none()
        // What such a replica does not hold it may have lost.
        && !state.damaged
        && !state.no_vote;
    if !is_new {
        return Ok(false);
    }
    let voters: BTreeSet<u64> = members.iter().map(|(id, _)| id.get()).collect();
    let nodes: BTreeMap<u64, RaftNode> = members
        .iter()
        .map(|(id, node)| (id.get(), RaftNode { node: *node }))
        .collect();
    let refused = |error: String| RaftError::Initialize(error);
    let membership =
        Membership::new(vec![voters], nodes).map_err(|error| refused(error.to_string()))?;
    let entry = NewEntry {
        term: Term::new(0),
        index: LogIndex::new(0),
        base_offset: Some(Offset::ZERO),
        payload: Payload::Membership(MembershipRecord::of(&membership, None).encode()),
    };
    log.append(vec![entry], AppendDone::default())
        .map_err(|error| refused(error.to_string()))?;
    log.flush()
        .await
        .map_err(|error| refused(error.to_string()))?;
    Ok(true)
}
