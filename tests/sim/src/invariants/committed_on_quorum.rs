//! What is committed is on the disks of a majority of the voters, the dead ones included.
//!
//! Of the voters when it was committed: where members change, that is the set of the look before or
//! the one of now. What the old set has committed need not be on a majority of the new one before the
//! change itself is committed (Raft, section 6).

use std::collections::BTreeSet;

use corduroy_record::ReplicaId;

use super::{Invariant, Moment};
use crate::observe::ReplicaSeen;

/// See the file's head.
#[derive(Default)]
pub struct CommittedOnQuorum;

impl Invariant for CommittedOnQuorum {
    fn name(&self) -> &'static str {
        "committed_on_quorum"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (group, index) in moment.fresh {
            let Some(entry) = moment.history.group(*group).and_then(|h| h.get(*index)) else {
                continue;
            };
            let sets: BTreeSet<BTreeSet<ReplicaId>> = [moment.before, moment.seen]
                .into_iter()
                .flat_map(|seen| seen.of_group(*group))
                .filter(|(_, replica)| !replica.of_the_dead)
                .map(|(_, replica)| voters(replica))
                // A replica between two instances knows no members.
                .filter(|voters| !voters.is_empty())
                .collect();
            let holders = |voters: &BTreeSet<ReplicaId>| {
                moment
                    .seen
                    .of_group(*group)
                    .filter(|(_, replica)| voters.contains(&replica.replica))
                    .filter(|(_, replica)| replica.holds_durably(*index, entry.term))
                    .count()
            };
            let is_majority = |voters: &BTreeSet<ReplicaId>| 2 * holders(voters) > voters.len();
            if let Some(newest) = sets.last()
                && !sets.iter().any(is_majority)
            {
                return Err(format!(
                    "{index} of {group} is committed and on {} disks of {} voters",
                    holders(newest),
                    newest.len()
                ));
            }
        }
        Ok(())
    }
}

fn voters(replica: &ReplicaSeen) -> BTreeSet<ReplicaId> {
    let members = replica.slow.members.iter();
    members
        .filter(|(_, _, votes)| *votes)
        .map(|(replica, _, _)| *replica)
        .collect()
}
