//! The term that a replica has shown never falls, also across restarts: it was flushed.

use std::collections::BTreeMap;

use corduroy_raft::Role;
use corduroy_record::{GroupId, ReplicaId, Term};

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct TermsAscend {
    terms: BTreeMap<(GroupId, ReplicaId), Term>,
}

impl Invariant for TermsAscend {
    fn name(&self) -> &'static str {
        "terms_ascend"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // Its files are not what it wrote, or its topic is gone and its log with it.
            if moment.seen.rotten == Some(host) || moment.seen.gone.contains(&group) {
                continue;
            }
            // A replica between two instances shows no term.
            if replica.view.role == Role::Stopped {
                continue;
            }
            let term = self.terms.entry((group, replica.replica)).or_default();
            if replica.view.term < *term {
                return Err(format!(
                    "the replica of {group} on node {host} went from term {term} back to {}",
                    replica.view.term
                ));
            }
            *term = replica.view.term;
        }
        Ok(())
    }
}
