//! A replica stops for a failed disk and for nothing else.

use std::collections::BTreeMap;

use corduroy_raft::Role;
use corduroy_record::GroupId;

use crate::network::Host;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct ReplicasRun {
    stopped: BTreeMap<(Host, GroupId), u64>,
}

impl Invariant for ReplicasRun {
    fn name(&self) -> &'static str {
        "replicas_run"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let now = moment.seen.at_millis;
        self.stopped.retain(|(host, group), _| {
            let node = moment.seen.nodes.get(host);
            let replica = node.and_then(|node| node.replicas.get(group));
            replica
                .is_some_and(|replica| !replica.of_the_dead && replica.view.role == Role::Stopped)
        });
        for (host, group, replica) in moment.seen.running() {
            let failed = moment.seen.nodes.get(&host);
            let failed = failed.and_then(|node| node.disk_failure.as_ref()).is_some();
            if replica.view.role != Role::Stopped || failed {
                continue;
            }
            let since = *self.stopped.entry((host, group)).or_insert(now);
            if now - since > REBUILD_MILLIS_MAX {
                return Err(format!(
                    "the replica of {group} on node {host} has stopped, and its disk is well"
                ));
            }
        }
        Ok(())
    }
}

/// How long a replica may be without its instance while it is opened or rebuilt.
const REBUILD_MILLIS_MAX: u64 = 3_000;
