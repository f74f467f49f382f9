//! Which replicas of the controller vote: five at most; on every other node one learns.
//!
//! More voters would not make the metadata safer, only every change of it slower. The same goes for
//! a fourth: of four, as of three, one may be lost, but a change needs three of them. So three vote
//! until there are five. A learner has the whole log, so one becomes a voter as soon as it is needed.

use std::collections::BTreeMap;

use corduroy_record::{NodeId, ReplicaId};

/// Voters of the controller's group: two of them may be lost.
pub(super) const VOTERS_MAX: usize = 5;
/// Up to so many nodes all vote.
const VOTERS_MIN: usize = 3;

/// The members of the controller's group as they shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// Who votes; at most [`VOTERS_MAX`].
    pub voters: Vec<(ReplicaId, NodeId)>,
    /// Who only learns.
    pub learners: Vec<(ReplicaId, NodeId)>,
}

/// What is known of nodes besides.
pub(super) struct Facts<'a> {
    /// Held down by the failure detector.
    pub is_down: &'a dyn Fn(NodeId) -> bool,
    /// About to be removed: it only learns until then ([`super::leaving`]).
    pub is_leaving: &'a dyn Fn(NodeId) -> bool,
}

/// Decides on the next step towards a replica on each node, [`VOTERS_MAX`] of them with a vote; none
/// if everything is as it should be. One newcomer at a time, so that one that never comes up keeps
/// nobody else out: `attempt` says whose turn it is.
pub(super) fn next_members(
    members: &[(ReplicaId, NodeId, bool)],
    nodes: &BTreeMap<ReplicaId, NodeId>,
    Facts {
        is_down,
        is_leaving,
    }: &Facts<'_>,
    attempt: usize,
) -> Option<Arrangement> {
    let staying = |votes: bool| -> Vec<(ReplicaId, NodeId)> {
        let kind = members.iter().filter(|(_, _, voter)| *voter == votes);
        kind.filter(|(id, _, _)| nodes.contains_key(id))
            .map(|(id, node, _)| (*id, *node))
            .collect()
    };
    let mut next = Arrangement {
        voters: staying(true),
        learners: staying(false),
    };
    let someone_left = members.iter().any(|(id, _, _)| !nodes.contains_key(id));
    if someone_left && !next.voters.is_empty() {
        return Some(next);
    }
    let (leaving, kept): (Vec<_>, Vec<_>) =
        next.voters.iter().partition(|(_, node)| is_leaving(*node));
    // Nobody gives its vote back to those who could then decide nothing.
    let up = kept.iter().filter(|(_, node)| !is_down(*node)).count();
    if !leaving.is_empty() && is_majority(up, kept.len()) {
        next.voters = kept;
        next.learners.extend(leaving);
        return Some(next);
    }
    if next.voters.len() > VOTERS_MAX {
        // Whoever is down first, then the youngest.
        next.voters.sort_by_key(|(id, node)| (is_down(*node), *id));
        let surplus = next.voters.split_off(VOTERS_MAX);
        next.learners.extend(surplus);
        return Some(next);
    }
    // A newcomer that is down from its first moment would only make majorities harder to reach.
    let is_among =
        |members: &[(ReplicaId, NodeId)], id: ReplicaId| members.iter().any(|m| m.0 == id);
    let mut waiting: Vec<(ReplicaId, NodeId)> = nodes
        .iter()
        .map(|(replica, node)| (*replica, *node))
        .filter(|(replica, node)| !is_among(&next.voters, *replica) && !is_down(*node))
        .filter(|(_, node)| !is_leaving(*node))
        .collect();
    let promotes = is_vote_wanted(next.voters.len(), waiting.len());
    if !promotes {
        waiting.retain(|(replica, _)| !is_among(&next.learners, *replica));
    }
    let (replica, node) = *waiting.get(attempt.checked_rem(waiting.len())?)?;
    if promotes {
        next.learners.retain(|(id, _)| *id != replica);
        next.voters.push((replica, node));
    } else {
        next.learners.push((replica, node));
    }
    Some(next)
}

/// Whether so many of them decide; of none nobody does.
pub(super) fn is_majority(there: usize, of: usize) -> bool {
    there > of / 2
}

/// Whether one more shall vote: an even number of voters is only passed through.
fn is_vote_wanted(voters: usize, waiting: usize) -> bool {
    let needed = if voters < VOTERS_MIN || voters.is_multiple_of(2) {
        1
    } else {
        2
    };
    voters < VOTERS_MAX && waiting >= needed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members with a vote, members without, nodes, attempt, and what comes next.
    type Case = (
        &'static [u64],
        &'static [u64],
        &'static [u64],
        usize,
        Option<(&'static [u64], &'static [u64])>,
    );

    #[test]
    fn members_follow_the_nodes_and_five_vote() {
        // Node 9 is down, node 8 is about to leave.
        let cases: &[Case] = &[
            (&[1], &[], &[1], 0, None),
            (&[1], &[], &[1, 2], 0, Some((&[1, 2], &[]))),
            (&[1], &[2], &[1, 2], 0, Some((&[1, 2], &[]))),
            (&[1, 2], &[], &[1, 2], 0, None),
            (&[1, 2], &[], &[1], 0, Some((&[1], &[]))),
            (&[1, 2], &[], &[1, 3], 0, Some((&[1], &[]))),
            (&[1], &[2], &[1], 0, Some((&[1], &[]))),
            (&[1], &[], &[1, 9], 0, None),
            (&[1], &[], &[1, 2, 3], 0, Some((&[1, 2], &[]))),
            (&[1], &[], &[1, 2, 3], 1, Some((&[1, 3], &[]))),
            (&[1], &[], &[1, 2, 3], 2, Some((&[1, 2], &[]))),
            // The fourth learns until there is a fifth; then both vote, one after the other.
            (&[1, 2, 3], &[], &[1, 2, 3, 4], 0, Some((&[1, 2, 3], &[4]))),
            (&[1, 2, 3], &[4], &[1, 2, 3, 4], 0, None),
            (&[1, 2, 3], &[4], &[1, 2, 3], 0, Some((&[1, 2, 3], &[]))),
            (&[1, 2, 3], &[4], &[1, 2, 3, 4, 9], 0, None),
            (
                &[1, 2, 3],
                &[4],
                &[1, 2, 3, 4, 5],
                0,
                Some((&[1, 2, 3, 4], &[])),
            ),
            (
                &[1, 2, 3, 4],
                &[],
                &[1, 2, 3, 4, 5],
                0,
                Some((&[1, 2, 3, 4, 5], &[])),
            ),
            (&[1, 2, 3, 4], &[], &[1, 2, 3, 4], 0, None),
            // The sixth and seventh learn, and stay.
            (&[1, 2, 3, 4, 5], &[], &[1, 2, 3, 4, 5], 0, None),
            (
                &[1, 2, 3, 4, 5],
                &[],
                &[1, 2, 3, 4, 5, 6],
                3,
                Some((&[1, 2, 3, 4, 5], &[6])),
            ),
            (
                &[1, 2, 3, 4, 5],
                &[6],
                &[1, 2, 3, 4, 5, 6, 7],
                0,
                Some((&[1, 2, 3, 4, 5], &[6, 7])),
            ),
            (&[1, 2, 3, 4, 5], &[6, 7], &[1, 2, 3, 4, 5, 6, 7], 0, None),
            // A voter leaves, and the learners stay; then one of them is promoted.
            (
                &[1, 2, 3, 4, 5],
                &[6, 7],
                &[1, 2, 4, 5, 6, 7],
                0,
                Some((&[1, 2, 4, 5], &[6, 7])),
            ),
            (
                &[1, 2, 4, 5],
                &[6, 7],
                &[1, 2, 4, 5, 6, 7],
                1,
                Some((&[1, 2, 4, 5, 7], &[6])),
            ),
            // A learner that is down is not promoted.
            (&[1, 2, 3, 4], &[9], &[1, 2, 3, 4, 9], 0, None),
            // Who is to leave only learns until it is gone, and is not promoted again.
            (&[1, 8], &[], &[1, 8], 0, Some((&[1], &[8]))),
            (&[1], &[8], &[1, 8], 0, None),
            (&[1, 2, 8], &[3], &[1, 2, 3, 8], 0, Some((&[1, 2], &[3, 8]))),
            (&[1, 2], &[3, 8], &[1, 2, 3, 8], 0, Some((&[1, 2, 3], &[8]))),
            (&[8], &[], &[8], 0, None),
            // The two that would stay could not decide without the one that is down.
            (&[1, 8, 9], &[], &[1, 8, 9], 0, None),
            // Too many voters, by an older version.
            (
                &[1, 2, 3, 4, 5, 6, 9],
                &[],
                &[1, 2, 3, 4, 5, 6, 9],
                0,
                Some((&[1, 2, 3, 4, 5], &[6, 9])),
            ),
        ];
        let member = |id: &u64, votes| (ReplicaId::new(*id), NodeId::new(*id as i32), votes);
        let numbers =
            |members: &[(ReplicaId, NodeId)]| members.iter().map(|m| m.0.get()).collect::<Vec<_>>();
        for (voters, learners, ids, attempt, want) in cases {
            let members: Vec<_> = voters
                .iter()
                .map(|id| member(id, true))
                .chain(learners.iter().map(|id| member(id, false)))
                .collect();
            let nodes: BTreeMap<ReplicaId, NodeId> = ids
                .iter()
                .map(|id| (ReplicaId::new(*id), NodeId::new(*id as i32)))
                .collect();
            let facts = Facts {
                is_down: &|node| node == NodeId::new(9),
                is_leaving: &|node| node == NodeId::new(8),
            };
            let got = next_members(&members, &nodes, &facts, *attempt)
                .map(|next| (numbers(&next.voters), numbers(&next.learners)));
            let want = want.map(|(voters, learners)| (voters.to_vec(), learners.to_vec()));
            assert_eq!(got, want, "{voters:?} {learners:?} {ids:?} {attempt}");
        }
    }
}
