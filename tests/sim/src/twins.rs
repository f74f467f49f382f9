//! A copy of a node's disk, started beside it: one of the two is the node, the other one ends.

use std::ops::Range;

use crate::checker::Violation;
use crate::network::Host;
use crate::random::Random;
use crate::world::World;

/// Machines of copies.
const HOSTS_OF_COPIES: Range<Host> = 64..128;
/// What a node says before it ends because another process has its place.
const REFUSED: &str = "another process runs as node";

/// A node and a copy of it, both on their way.
#[derive(Clone, Copy, Debug)]
pub struct Twins {
    original: Host,
    copy: Host,
    /// They have started at the same moment: either may be the node.
    are_even: bool,
}

impl World {
    /// Copies the disk of `original` and starts the copy: beside the running original, or both at the
    /// same moment. `false` if there are no machines left for copies.
    pub fn begin_twins(&mut self, original: Host, are_even: bool, random: &mut Random) -> bool {
        let mut free = HOSTS_OF_COPIES;
        let Some(copy) = free.find(|host| !self.nodes.contains_key(host)) else {
            return false;
        };
        if are_even {
            self.kill(original, false);
        }
        let machine = self.node(original).copied(copy, random);
        self.nodes.insert(copy, machine);
        // It may be late, and meet the end of a node that has been removed meanwhile.
        self.leaving.insert(copy);
        tracing::info!(original, copy, are_even, at = self.now(), "a copy starts");
        let mut both = vec![copy];
        if are_even {
            both.push(original);
            if random.one_in(2) {
                both.reverse();
            }
        }
        for host in both {
            self.start(host);
        }
        self.twins = Some(Twins {
            original,
            copy,
            are_even,
        });
        true
    }

    /// A process has ended by itself. Returns whether it was one of two that there must not be.
    ///
    /// # Errors
    /// A copy had the place of its original, which ran all along.
    pub(crate) fn end_twins(&mut self, host: Host, reason: &str) -> Result<bool, Violation> {
        let Some(twins) = self.twins.filter(|_| reason.contains(REFUSED)) else {
            return Ok(false);
        };
        let Twins { original, copy, .. } = twins;
        if host != original && host != copy {
            return Ok(false);
        }
        if host == original && !twins.are_even {
            let what = format!("node {original} ran, and its copy has its place: {reason}");
            return Err(self.violation("original_stays", &what));
        }
        self.twins = None;
        let point = match twins.are_even {
            true => "twins-from-cold",
            false => "copy-refused",
        };
        self.checker.sometimes().reach(point);
        tracing::info!(host, at = self.now(), "one of two ended");
        self.kill(host, false);
        if host == original {
            // The copy is the node now. Its disk goes back to where everybody looks for it.
            self.kill(copy, false);
            if let Some(winner) = self.nodes.remove(&copy) {
                self.node(original).take_over(&winner);
                self.nodes.insert(copy, winner);
            }
            self.start(original);
        }
        Ok(true)
    }
}
