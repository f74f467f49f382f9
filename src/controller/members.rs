//! Which replicas of the controller vote. Every node has one; the first [`VOTERS_MAX`] vote, the
//! others learn.

use std::collections::BTreeMap;

use corduroy_record::{NodeId, ReplicaId};

/// Voters of the controller's group. More would make every change wait for more disks.
pub const VOTERS_MAX: usize = 5;

/// The next step towards the members that there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberStep {
    /// A node's replica learns from now on.
    AddLearner(ReplicaId, NodeId),
    /// A learner votes from now on.
    Promote(ReplicaId),
    /// The replica of a node that left is a member no more.
    Remove(ReplicaId),
}

/// Decides on the next step; none if everything is as it should be. One at a time: each changes
/// the group's membership.
pub(super) fn next_step(
    members: &[(ReplicaId, NodeId, bool)],
    nodes: &BTreeMap<ReplicaId, NodeId>,
    is_down: impl Fn(NodeId) -> bool,
) -> Option<MemberStep> {
    if let Some((gone, _, _)) = members.iter().find(|(id, _, _)| !nodes.contains_key(id)) {
        return Some(MemberStep::Remove(*gone));
    }
    let is_member = |replica: &ReplicaId| members.iter().any(|(id, _, _)| id == replica);
    if let Some((replica, node)) = nodes.iter().find(|(replica, _)| !is_member(replica)) {
        return Some(MemberStep::AddLearner(*replica, *node));
    }
    let voters = members.iter().filter(|(_, _, votes)| *votes).count();
    if voters >= VOTERS_MAX {
        return None;
    }
    // A voter that is down from its first moment would only make majorities harder to reach.
    members
        .iter()
        .find(|(_, node, votes)| !votes && !is_down(*node))
        .map(|(id, _, _)| MemberStep::Promote(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(list: &[(u64, bool)]) -> Vec<(ReplicaId, NodeId, bool)> {
        list.iter().map(|(id, votes)| (ReplicaId::new(*id), NodeId::new(*id as i32), *votes)).collect()
    }

    #[test]
    fn members_follow_the_nodes() {
        let nodes = |ids: &[u64]| -> BTreeMap<ReplicaId, NodeId> {
            ids.iter().map(|id| (ReplicaId::new(*id), NodeId::new(*id as i32))).collect()
        };
        let learner = |id| Some(MemberStep::AddLearner(ReplicaId::new(id), NodeId::new(id as i32)));
        let promote = |id| Some(MemberStep::Promote(ReplicaId::new(id)));
        let remove = |id| Some(MemberStep::Remove(ReplicaId::new(id)));
        type Case = (&'static [(u64, bool)], &'static [u64], Option<MemberStep>);
        let cases: Vec<Case> = vec![
            (&[(1, true)], &[1], None),
            (&[(1, true)], &[1, 2], learner(2)),
            (&[(1, true), (2, false)], &[1, 2], promote(2)),
            (&[(1, true), (2, true)], &[1, 2], None),
            (&[(1, true), (2, true)], &[1], remove(2)),
            (&[(1, true), (2, true)], &[1, 3], remove(2)),
            (&[(1, true), (9, false)], &[1, 9], None),
            (
                &[(1, true), (2, true), (3, true), (4, true), (5, true), (6, false)],
                &[1, 2, 3, 4, 5, 6],
                None,
            ),
        ];
        for (list, ids, want) in cases {
            let got = next_step(&members(list), &nodes(ids), |node| node == NodeId::new(9));
            assert_eq!(got, want, "{list:?} {ids:?}");
        }
    }
}
