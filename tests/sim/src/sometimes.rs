//! Points that a run sometimes reaches. A batch of seeds that never reaches one proves nothing
//! about what lies behind it.

use std::collections::BTreeMap;

/// The points, with what each is.
pub const POINTS: &[(&str, &str)] = &[
    ("leader-changed", "a partition got another leader"),
    ("leader-killed", "a node died that led a partition"),
    ("controller-killed", "a node died that led the controller"),
    ("all-down", "no node ran"),
    ("no-leader", "a partition had no leader"),
    (
        "two-leaders",
        "two replicas of different terms both took themselves for the leader",
    ),
    ("suffix-cut", "a replica cut entries off its log's end"),
    (
        "snapshot-installed",
        "a replica that was behind the log's start got a snapshot",
    ),
    ("log-purged", "retention moved a log's start"),
    (
        "unflushed-lost",
        "a machine came back without entries that it had written",
    ),
    (
        "journal-torn",
        "the power failed in the middle of a write or a flush",
    ),
    (
        "disk-failed-leader",
        "a flush failed on a node that led a partition",
    ),
    ("slept", "a group slept"),
    ("woke", "a group that had slept woke"),
    (
        "one-way",
        "a link was cut in one direction while a partition had a leader there",
    ),
    (
        "isolated-leader",
        "a leader was cut off from all other nodes",
    ),
    ("clock-back", "a wall clock went back"),
    ("stopped-in-order", "a node stopped in order"),
    ("booted-alone", "a node booted while no other ran"),
    (
        "send-failed",
        "a client was told that its record was not written",
    ),
    (
        "send-unknown",
        "a client was not told whether its record was written",
    ),
    ("segment-rolled", "a log got another segment"),
    (
        "disk-full-leader",
        "a disk was full on a node that led a partition",
    ),
    ("bit-rot", "a bit flipped in a file that was in use"),
    (
        "identity-rot",
        "a bit flipped in each of the two files that say which replica a node has",
    ),
    (
        "damage-found",
        "a replica found its log damaged and asked others for it",
    ),
    ("recreated", "a deleted topic was created again"),
    (
        "coordinator-failover",
        "a group had members and was stable when another node came to coordinate it",
    ),
    (
        "failover-rebalance",
        "a group got another generation within moments of such a change",
    ),
    (
        "stale-commit-refused",
        "a commit of a generation that was over was refused",
    ),
    ("member-died", "a member of a group died where it stood"),
    (
        "static-returned",
        "a static member came back, and the group stayed in its generation",
    ),
    (
        "older-epoch-refused",
        "a batch of a producer epoch that was over was refused",
    ),
    (
        "copy-refused",
        "a copy of a node's disk that was started beside it ended with its message",
    ),
    (
        "twins-from-cold",
        "of a node and its copy that started together one was taken, and the other one ended",
    ),
    ("latest-told", "a node said what the latest offset is"),
    ("node-joined", "a node joined the running cluster"),
    ("node-removed", "a node was removed for good"),
    (
        "copies-removed",
        "one of the first nodes was removed, and with it a copy of everything",
    ),
    (
        "node-replaced",
        "a node joined after one of the first had been removed",
    ),
    (
        "node-parted",
        "a removed node that ran was told so and ended by itself",
    ),
    (
        "burnt-id-refused",
        "a node with an empty disk was refused the id of a removed one",
    ),
    (
        "controller-voters-changed",
        "the voters on the metadata became others",
    ),
];

/// How often each point was reached.
#[derive(Clone, Debug)]
pub struct Sometimes(BTreeMap<&'static str, u64>);

impl Default for Sometimes {
    fn default() -> Sometimes {
        Sometimes(POINTS.iter().map(|(name, _)| (*name, 0)).collect())
    }
}

impl Sometimes {
    /// A point was reached.
    ///
    /// # Panics
    /// At a name that is not in [`POINTS`].
    pub fn reach(&mut self, point: &'static str) {
        let count = self.0.get_mut(point);
        *count.unwrap_or_else(|| panic!("{point} is not in the list of points")) += 1;
    }

    /// Adds another run's counts, by name; names that are no points are passed over.
    pub fn add(&mut self, point: &str, times: u64) {
        if let Some(count) = self.0.get_mut(point) {
            *count += times;
        }
    }

    /// All points with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, count)| (*name, *count))
    }

    /// Points that were never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        let never = self.0.iter().filter(|(_, count)| **count == 0);
        never.map(|(name, _)| *name).collect()
    }
}
