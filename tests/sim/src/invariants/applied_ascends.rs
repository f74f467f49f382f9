//! What a replica has applied never falls while its process lives; nor does what it committed.

use corduroy_raft::Role;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct AppliedAscends;

impl Invariant for AppliedAscends {
    fn name(&self) -> &'static str {
        "applied_ascends"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let Some(old) = moment.earlier(host, group) else {
                continue;
            };
            if old.replica != replica.replica || replica.view.role == Role::Stopped {
                continue;
            }
            // One that could not write, or met damage, begins anew from what its disk tells.
            if moment.seen.may_begin_anew(host) {
                continue;
            }
            if replica.view.applied < old.view.applied {
                return Err(format!(
                    "the replica of {group} on node {host} went from applied {} back to {}",
                    old.view.applied, replica.view.applied
                ));
            }
        }
        Ok(())
    }
}
