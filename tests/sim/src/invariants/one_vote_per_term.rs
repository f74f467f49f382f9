//! A replica votes once in a term, also across restarts (Raft paper, section 5.2).

use std::collections::BTreeMap;

use corduroy_record::{GroupId, ReplicaId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct OneVotePerTerm {
    votes: BTreeMap<(GroupId, ReplicaId, Term), ReplicaId>,
}

impl Invariant for OneVotePerTerm {
    fn name(&self) -> &'static str {
        "one_vote_per_term"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // Its files are not what it wrote, or its topic is gone and its log with it.
            if moment.seen.rotten == Some(host) || moment.seen.gone.contains(&group) {
                continue;
            }
            let Some(vote) = replica.log.vote else {
                continue;
            };
            // What Raft shows has been flushed; a vote that is not may still be forgotten.
            if vote.term != replica.view.term {
                continue;
            }
            // A vote that is committed names a leader that won, which may be another.
            let Some(voted_for) = vote.voted_for.filter(|_| !vote.committed) else {
                continue;
            };
            let key = (group, replica.replica, vote.term);
            let first = *self.votes.entry(key).or_insert(voted_for);
            if first != voted_for {
                return Err(format!(
                    "the replica of {group} on node {host} voted for {first} and then for \
                     {voted_for} in term {}",
                    vote.term
                ));
            }
        }
        Ok(())
    }
}
