//! What is committed is on the disks of a majority of the voters, the dead ones included.

use std::collections::BTreeSet;

use corduroy_record::ReplicaId;

use super::{Invariant, Moment};

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
            let members = moment
                .seen
                .of_group(*group)
                .filter(|(_, replica)| replica.view.applied >= *index && !replica.of_the_dead)
                .map(|(_, replica)| &replica.slow.members)
                // A replica between two instances knows no members.
                .find(|members| !members.is_empty());
            let Some(members) = members else { continue };
            let voters: BTreeSet<ReplicaId> = members
                .iter()
                .filter(|(_, _, votes)| *votes)
                .map(|(replica, _, _)| *replica)
                .collect();
            let holders = moment
                .seen
                .of_group(*group)
                .filter(|(_, replica)| voters.contains(&replica.replica))
                .filter(|(_, replica)| replica.holds_durably(*index, entry.term))
                .count();
            if 2 * holders <= voters.len() {
                return Err(format!(
                    "{index} of {group} is committed and on {holders} disks of {} voters",
                    voters.len()
                ));
            }
        }
        Ok(())
    }
}
