//! A term has one leader (Raft paper, figure 3: election safety).

use std::collections::BTreeMap;

use corduroy_raft::Role;
use corduroy_record::{GroupId, ReplicaId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct OneLeaderPerTerm {
    leaders: BTreeMap<(GroupId, Term), ReplicaId>,
}

impl Invariant for OneLeaderPerTerm {
    fn name(&self) -> &'static str {
        "one_leader_per_term"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // Where its topic is gone, a log that was removed may be opened anew by a node that has not
            // heard of it, and with it a vote was forgotten that nobody is promised anything by.
            if replica.view.role != Role::Leader || moment.seen.gone.contains(&group) {
                continue;
            }
            let key = (group, replica.view.term);
            let first = *self.leaders.entry(key).or_insert(replica.replica);
            if first != replica.replica {
                return Err(format!(
                    "{group} has two leaders in term {}: replica {first} and, on node {host}, \
                     replica {}",
                    replica.view.term, replica.replica
                ));
            }
        }
        Ok(())
    }
}
