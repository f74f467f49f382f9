//! Two voter sets of a group that follow each other share a majority, and none is empty. A replica
//! whose node was removed never votes again once it does not.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::{GroupId, ReplicaId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct MembersOverlap {
    voters: BTreeMap<GroupId, (Term, BTreeSet<ReplicaId>)>,
    /// Replicas of the controller that voted, on nodes that are no members any more.
    removed: BTreeSet<ReplicaId>,
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
            let now: BTreeSet<ReplicaId> = replica.voters().collect();
            let term = replica.view.term;
            let Some((known_term, known)) = self.voters.get(&group) else {
                self.voters.insert(group, (term, now));
                continue;
            };
            if term < *known_term || now == *known {
                continue;
            }
            if group == GroupId::CONTROLLER {
                if let Some(back) = now.intersection(&self.removed).next() {
                    return Err(format!(
                        "{back} of a removed node votes on the metadata again (node {host})"
                    ));
                }
                let gone = known.difference(&now).copied();
                let is_removed = |id: &ReplicaId| {
                    let image = moment.seen.image();
                    image.is_some_and(|image| {
                        let mut nodes = image.nodes.values();
                        nodes.all(|node| node.controller_replica != *id)
                    })
                };
                self.removed.extend(gone.filter(is_removed));
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
