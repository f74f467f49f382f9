//! Two voter sets of a group that follow each other share a majority, and none is empty.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::{GroupId, ReplicaId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct MembersOverlap {
    voters: BTreeMap<GroupId, (Term, BTreeSet<ReplicaId>)>,
}

impl Invariant for MembersOverlap {
    fn name(&self) -> &'static str {
        "members_overlap"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            if !replica.leads() {
                continue;
            }
            let now: BTreeSet<ReplicaId> = replica
                .slow
                .members
                .iter()
                .filter(|(_, _, votes)| *votes)
                .map(|(replica, _, _)| *replica)
                .collect();
            let term = replica.view.term;
            let Some((known_term, known)) = self.voters.get(&group) else {
                self.voters.insert(group, (term, now));
                continue;
            };
            if term < *known_term || now == *known {
                continue;
            }
            let shared = known.intersection(&now).count();
            if now.is_empty() || (2 * shared < known.len() && 2 * shared < now.len()) {
                return Err(format!(
                    "the voters of {group} went from {known:?} to {now:?} (node {host})"
                ));
            }
            self.voters.insert(group, (term, now));
        }
        Ok(())
    }
}
