//! What waits for other nodes in memory stays within the windows of the streams that feed it.

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct QueuesAreBounded;

impl Invariant for QueuesAreBounded {
    fn name(&self) -> &'static str {
        "queues_are_bounded"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, node) in &moment.seen.nodes {
            if node.queued_bytes > QUEUED_BYTES_MAX {
                return Err(format!(
                    "node {host} holds {} bytes for other nodes",
                    node.queued_bytes
                ));
            }
        }
        Ok(())
    }
}

/// Far above what the small batches of a run can need, far below a leak.
const QUEUED_BYTES_MAX: usize = 16 << 20;
