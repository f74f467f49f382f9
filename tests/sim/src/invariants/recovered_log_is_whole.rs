//! A replica that comes back still holds what it had on disk of the committed entries (law 3).

use corduroy_raft::Role;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct RecoveredLogIsWhole;

impl Invariant for RecoveredLogIsWhole {
    fn name(&self) -> &'static str {
        "recovered_log_is_whole"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // Its files are not what it wrote, or its topic is gone and its log with it.
            if moment.seen.rotten == Some(host) || moment.seen.gone.contains(&group) {
                continue;
            }
            if moment.earlier(host, group).is_some() {
                continue;
            }
            let node = moment.before.nodes.get(&host);
            let Some(old) = node.and_then(|node| node.replicas.get(&group)) else {
                continue;
            };
            if old.replica != replica.replica || replica.view.role == Role::Stopped {
                continue;
            }
            // Of what was on disk, whatever was applied anywhere can never be cut.
            let Some((committed, _)) = moment.history.group(group).and_then(|h| h.last()) else {
                continue;
            };
            let Some(durable) = old.log.durable_last else {
                continue;
            };
            let kept = durable.min(committed);
            let Some(entry) = moment.history.group(group).and_then(|h| h.get(kept)) else {
                continue;
            };
            if old.term_of(kept) != Some(entry.term) {
                continue;
            }
            if kept >= replica.log.log_start.index && replica.term_of(kept) != Some(entry.term) {
                return Err(format!(
                    "node {host} had {kept} of term {} of {group} on disk when it died; it came \
                     back with a log that ends at {:?}",
                    entry.term, replica.log.last
                ));
            }
        }
        Ok(())
    }
}
