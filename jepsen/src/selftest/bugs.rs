//! The planted bugs, and how each is hunted.

use crate::verdict::Class;

/// A bug that a build with `planted-bugs` can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bug {
    /// Its name, as the node knows it.
    pub id: &'static str,
    /// One sentence: what the product then does.
    pub what: &'static str,
    /// What a run may call it. Finding it under none of these names is not catching it.
    pub expected: &'static [Class],
    /// A trial's load, in seconds.
    pub load_seconds: u64,
    /// Trials, with a new seed each, before the bug counts as missed. The time budget is this many
    /// times `load_seconds`, and what starting and reading takes.
    pub trials_max: u32,
    pub hint: Hint,
    pub judge: Judge,
}

/// Who finds a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Runs of real processes.
    Cluster,
    /// The simulator: real processes do not come by the moment in which the bug matters.
    Simulator {
        /// Names of the laws of which one has to be broken.
        laws: &'static [&'static str],
        /// Seeds before the bug counts as missed.
        seeds_max: u64,
    },
}

/// Under which run a bug shows itself soonest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    pub workload: &'static str,
    /// Names of faults, of which a run uses those that are possible here.
    pub faults: &'static [&'static str],
    pub nodes: u32,
    pub min_insync_replicas: u32,
    /// Sends per second, one after the other in further trials: some bugs show themselves under
    /// load, and some only when a write is the last one for a while.
    pub rates: &'static [u32],
}

impl Hint {
    /// Sends per second of a trial.
    pub fn rate(&self, attempt: u32) -> u32 {
        let turn = (attempt as usize).checked_rem(self.rates.len());
        turn.and_then(|turn| self.rates.get(turn))
            .copied()
            .unwrap_or(LOADED)
    }
}

/// Sends per second that keep a cluster at work.
pub const LOADED: u32 = 400;

/// The default workload, without a fault.
pub const QUEUE: Hint = Hint {
    workload: "queue",
    faults: &[],
    nodes: 3,
    min_insync_replicas: 2,
    rates: &[LOADED, 30],
};

/// Every planted bug.
pub const BUGS: &[Bug] = &[
    Bug {
        id: "ack-before-flush",
        what: "acks=all is answered before the leader's own copy is flushed",
        expected: LOSS,
        load_seconds: 30,
        trials_max: 4,
        hint: Hint {
            faults: &["power-loss-all"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "vote-not-flushed",
        what: "a vote is answered before it is on disk",
        expected: &[
            Class::TwoLeaders,
            Class::InconsistentOffsets,
            Class::ReplicaDivergence,
            Class::EpochRegression,
            Class::LostWrite,
            Class::FinalLost,
            Class::RealtimeOrder,
        ],
        load_seconds: 60,
        trials_max: 5,
        hint: Hint {
            faults: &["power-loss", "power-loss-all", "partition"],
            ..QUEUE
        },
        // A vote is on disk with the first entry of its term. Only a node that loses power within
        // those milliseconds votes twice, and only if its candidate is cut off from the next one is
        // that anything that a client sees.
        judge: Judge::Simulator {
            laws: &["terms_ascend", "one_vote_per_term", "one_leader_per_term"],
            seeds_max: 100,
        },
    },
    Bug {
        id: "watermark-is-log-end",
        what: "the high watermark is the leader's log end, committed or not",
        expected: &[
            Class::DirtyRead,
            Class::InconsistentOffsets,
            Class::HighWatermarkRegression,
            Class::StaleLatest,
            Class::StaleRead,
            Class::AbortedRead,
        ],
        load_seconds: 45,
        trials_max: 4,
        hint: Hint {
            faults: &["partition", "kill"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "older-epoch-accepted",
        what: "a batch of an older producer epoch is appended after one of a newer",
        expected: &[Class::FencedAppend],
        load_seconds: 15,
        trials_max: 2,
        hint: Hint {
            workload: "fencing",
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "stale-leader-serves",
        what: "a leader that lost its office goes on to serve reads and latest offsets",
        expected: &[
            Class::StaleLatest,
            Class::StaleRead,
            Class::DirtyRead,
            Class::InconsistentOffsets,
            Class::TwoLeaders,
        ],
        load_seconds: 45,
        trials_max: 4,
        hint: Hint {
            workload: "list-append",
            faults: &["partition", "pause"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "torn-tail-accepted",
        what: "recovery takes a torn entry at the journal's tail for a whole one",
        expected: &[
            Class::ImpossibleValue,
            Class::ReplicaDivergence,
            Class::ReplicaIncomplete,
            Class::InconsistentOffsets,
            Class::LostWrite,
            Class::FinalLost,
            // Of a term that nobody wrote.
            Class::LeaderEpochRegression,
        ],
        load_seconds: 45,
        trials_max: 5,
        hint: Hint {
            // A disk that tears a turn is not to be had here: what is torn is a turn whose bytes
            // are not those that were written.
            faults: &["bit-rot"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "zero-tail-is-batch",
        what: "recovery takes zeros at a log's tail for an empty batch",
        expected: &[
            Class::ImpossibleValue,
            Class::ReplicaDivergence,
            Class::ReplicaIncomplete,
            Class::InconsistentOffsets,
            Class::OffsetMismatch,
            Class::LostWrite,
            Class::FinalLost,
            Class::Stuck,
        ],
        load_seconds: 45,
        trials_max: 5,
        hint: Hint {
            faults: &["power-loss", "power-loss-all"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "offset-at-propose",
        what: "the base offset is stamped when a batch is proposed, not when it is appended",
        expected: &[
            Class::InconsistentOffsets,
            Class::OffsetMismatch,
            Class::RealtimeOrder,
            Class::ReplicaDivergence,
            Class::IntNonmonotonicPoll,
            Class::NonmonotonicPoll,
            Class::Reordered,
        ],
        load_seconds: 30,
        trials_max: 4,
        hint: Hint {
            faults: &["kill", "leadership-transfer"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "window-of-one",
        what: "the producer's window remembers one batch where a client may repeat five",
        expected: &[Class::Duplicate, Class::Reordered],
        load_seconds: 60,
        trials_max: 5,
        hint: Hint {
            // Several batches of one producer have to be under way when its leader goes: one
            // partition, much load, and answers that take long.
            workload: "list-append",
            faults: &["kill", "pause", "delay", "bandwidth"],
            rates: &[2_400],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "truncation-keeps-offset",
        what: "after a truncation, the next offset is what it was before",
        expected: &[
            Class::ReplicaDivergence,
            Class::ReplicaIncomplete,
            Class::OffsetMismatch,
            Class::InconsistentOffsets,
            Class::RealtimeOrder,
            Class::Stuck,
        ],
        load_seconds: 45,
        trials_max: 5,
        hint: Hint {
            faults: &["partition", "pause", "kill"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "ack-below-min-insync",
        what: "acks=all is answered by a majority although min.insync.replicas asks for more",
        expected: &[Class::UnderReplicatedAck],
        load_seconds: 30,
        trials_max: 3,
        hint: Hint {
            faults: &["kill"],
            min_insync_replicas: 3,
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "callback-before-sync",
        what: "the flush callback fires before the journal's sync has returned",
        expected: LOSS,
        load_seconds: 30,
        trials_max: 4,
        hint: Hint {
            faults: &["power-loss-all"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "lease-read",
        what: "a leader names the latest offset by its lease alone",
        expected: &[Class::StaleLatest, Class::StaleRead],
        load_seconds: 60,
        trials_max: 5,
        hint: Hint {
            workload: "register",
            // Whoever is elected by the others is so before the lease of the one cut off is over.
            faults: &["partition", "delay", "leadership-transfer"],
            ..QUEUE
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "old-generation-commits",
        what: "a group takes commits of generations that are over",
        expected: &[Class::StaleCommit],
        load_seconds: 30,
        trials_max: 3,
        hint: GROUP,
        judge: Judge::Cluster,
    },
    Bug {
        id: "commit-before-write",
        what: "a commit is acknowledged before it is written",
        expected: &[Class::LostPosition],
        load_seconds: 30,
        trials_max: 4,
        hint: Hint {
            faults: &["partition", "kill"],
            ..GROUP
        },
        judge: Judge::Cluster,
    },
    Bug {
        id: "partition-given-twice",
        what: "all members of a group are handed the same partitions",
        expected: &[Class::DoubleOwnership],
        load_seconds: 30,
        trials_max: 3,
        hint: GROUP,
        judge: Judge::Cluster,
    },
    Bug {
        id: "stale-positions",
        what: "a coordinator that was deposed goes on to name committed positions",
        expected: &[Class::LostPosition],
        // Longer runs have longer faults: the group has to go on while its old coordinator is alone.
        load_seconds: 90,
        trials_max: 4,
        hint: Hint {
            faults: &["partition"],
            ..GROUP
        },
        judge: Judge::Cluster,
    },
];

const GROUP: Hint = Hint {
    workload: "group",
    ..QUEUE
};

/// What lost power does to writes that were not on disk.
const LOSS: &[Class] = &[
    Class::LostWrite,
    Class::FinalLost,
    Class::InconsistentOffsets,
    Class::RealtimeOrder,
    Class::ReplicaDivergence,
];
