//! Which replicas of the controller vote: one on every node.
//!
//! A replica that only learns would be dropped by the next change of members
//! ([`corduroy_raft::Replica::change_members`] makes the members exactly the voters), so every
//! node's replica votes. That is what Redpanda does too, and good for a few dozen nodes.

use std::collections::BTreeMap;

use corduroy_record::{NodeId, ReplicaId};

/// Decides on the next voters on the way to one on each node; none if everything is as it should
/// be. One newcomer at a time, so that one that never comes up keeps nobody else out: `attempt`
/// says whose turn it is.
pub(super) fn next_voters(
    members: &[(ReplicaId, NodeId, bool)],
    nodes: &BTreeMap<ReplicaId, NodeId>,
    is_down: impl Fn(NodeId) -> bool,
    attempt: usize,
) -> Option<Vec<(ReplicaId, NodeId)>> {
    let votes = |replica: &ReplicaId| members.iter().any(|(id, _, votes)| *votes && id == replica);
    let mut voters: Vec<(ReplicaId, NodeId)> = members
        .iter()
        .filter(|(id, _, votes)| *votes && nodes.contains_key(id))
        .map(|(id, node, _)| (*id, *node))
        .collect();
    let someone_left = members.iter().any(|(id, _, _)| !nodes.contains_key(id));
    if someone_left && !voters.is_empty() {
        return Some(voters);
    }
    // A voter that is down from its first moment would only make majorities harder to reach.
    let newcomers: Vec<(ReplicaId, NodeId)> = nodes
        .iter()
        .filter(|(replica, node)| !votes(replica) && !is_down(**node))
        .map(|(replica, node)| (*replica, *node))
        .collect();
    let newcomer = newcomers.get(attempt.checked_rem(newcomers.len())?)?;
    voters.push(*newcomer);
    Some(voters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_follow_the_nodes() {
        type Case = (
            &'static [(u64, bool)],
            &'static [u64],
            usize,
            Option<&'static [u64]>,
        );
        // Node 9 is down.
        let cases: &[Case] = &[
            (&[(1, true)], &[1], 0, None),
            (&[(1, true)], &[1, 2], 0, Some(&[1, 2])),
            (&[(1, true), (2, false)], &[1, 2], 0, Some(&[1, 2])),
            (&[(1, true), (2, true)], &[1, 2], 0, None),
            (&[(1, true), (2, true)], &[1], 0, Some(&[1])),
            (&[(1, true), (2, true)], &[1, 3], 0, Some(&[1])),
            (&[(1, true), (2, false)], &[1], 0, Some(&[1])),
            (&[(1, true)], &[1, 9], 0, None),
            (&[(1, true)], &[1, 2, 3], 0, Some(&[1, 2])),
            (&[(1, true)], &[1, 2, 3], 1, Some(&[1, 3])),
            (&[(1, true)], &[1, 2, 3], 2, Some(&[1, 2])),
        ];
        for (members, ids, attempt, want) in cases {
            let members: Vec<(ReplicaId, NodeId, bool)> = members
                .iter()
                .map(|(id, votes)| (ReplicaId::new(*id), NodeId::new(*id as i32), *votes))
                .collect();
            let nodes: BTreeMap<ReplicaId, NodeId> = ids
                .iter()
                .map(|id| (ReplicaId::new(*id), NodeId::new(*id as i32)))
                .collect();
            let got = next_voters(&members, &nodes, |node| node == NodeId::new(9), *attempt)
                .map(|voters| voters.iter().map(|(id, _)| id.get()).collect::<Vec<_>>());
            assert_eq!(got.as_deref(), *want, "{members:?} {ids:?} {attempt}");
        }
    }
}
