//! What is committed is on the disks of a majority of the voters, the dead ones included.
//!
//! Of the voters when it was committed: a leader counts by the newest membership of its log, so that is
//! the one in force as of the entry, or one that was logged behind it before it was committed. Where it
//! is a joint one, a majority of each of its sets (Raft, section 6).

use std::collections::BTreeSet;

use corduroy_record::{GroupId, LogIndex, ReplicaId, Term};

use super::{Invariant, Moment};
use crate::history::VoterSets;
use crate::observe::Seen;

/// See the file's head.
#[derive(Default)]
pub struct CommittedOnQuorum;

impl Invariant for CommittedOnQuorum {
    fn name(&self) -> &'static str {
        "committed_on_quorum"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (group, index) in moment.fresh {
            let history = moment.history.group(*group);
            let Some((history, entry)) = history.and_then(|h| Some((h, h.get(*index)?))) else {
                continue;
            };
            // Those of logs that hold the entry: committed or not, in this look or the last.
            let floor = history.voters_from(*index).map(|(at, _)| at).next();
            let logged = [moment.before, moment.seen]
                .into_iter()
                .flat_map(|seen| seen.of_group(*group))
                .filter(|(_, replica)| !replica.of_the_dead)
                .filter(|(_, replica)| replica.term_of(*index) == Some(entry.term))
                .filter_map(|(_, replica)| replica.slow.membership.as_ref())
                .filter(|(at, _)| Some(*at) > floor)
                .map(|(_, sets)| sets);
            let known = history.voters_from(*index).map(|(_, sets)| sets);
            let mut in_force = known.chain(logged).peekable();
            let Some(first) = in_force.peek().copied() else {
                continue;
            };
            let at = (*group, *index, entry.term);
            if !in_force.any(|sets| is_on_quorum(moment.seen, at, sets)) {
                return Err(format!(
                    "{index} of {group} is committed and on {} disks of the voters {first:?}",
                    first
                        .iter()
                        .map(|set| holders(moment.seen, at, set))
                        .min()
                        .unwrap_or(0),
                ));
            }
        }
        Ok(())
    }
}

/// Group, index and term of an entry.
type Place = (GroupId, LogIndex, Term);

fn is_on_quorum(seen: &Seen, at: Place, sets: &VoterSets) -> bool {
    !sets.is_empty()
        && sets
            .iter()
            .all(|set| 2 * holders(seen, at, set) > set.len())
}

fn holders(seen: &Seen, (group, index, term): Place, voters: &BTreeSet<ReplicaId>) -> usize {
    seen.of_group(group)
        .filter(|(_, replica)| voters.contains(&replica.replica))
        // One that has just met damage may have held it until then.
        .filter(|(host, replica)| replica.holds_durably(index, term) || seen.rotten == Some(*host))
        .count()
}
