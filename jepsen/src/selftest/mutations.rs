//! Bugs planted into the product, each of which a run has to find, under its right name and within
//! its budget.
//!
//! The node is built once with the cargo feature `planted-bugs`; an environment variable names the
//! one that it shall have ([`Bug::id`]). A build without the feature knows no such variable.

use std::fmt;
use std::time::Duration;

use corduroy_env::Env;

use crate::verdict::{Class, Judgement, Verdict};

/// How many bugs a turn of the [`rotation`] has, if nobody says otherwise.
pub const ROTATION: usize = 3;
/// Runs without a bug before that one counts as not judged: the first may have seen too little.
const CONTROLS_MAX: u32 = 2;
/// A control's load, in seconds; a further one's is so many times as long.
const CONTROL_SECONDS: u64 = 20;

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
const LOADED: u32 = 400;

const QUEUE: Hint = Hint {
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

/// `count` of these bugs, others for another `turn`; all of them within as many turns as there are.
pub fn rotation(turn: u64, count: usize, bugs: &[&'static Bug]) -> Vec<&'static Bug> {
    if bugs.is_empty() {
        return Vec::new();
    }
    let first = (turn % bugs.len() as u64) as usize * count;
    (first..first + count.min(bugs.len()))
        .map(|position| bugs[position % bugs.len()])
        .collect()
}

/// One run that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// The bug to plant; none for the control, which has to be clean.
    pub bug: Option<&'static Bug>,
    /// Counts from 0; to be mixed into the seed.
    pub attempt: u32,
    pub load_seconds: u64,
    pub hint: Hint,
}

/// What became of one bug.
#[derive(Debug, Clone, PartialEq)]
pub struct Caught {
    pub bug: &'static Bug,
    pub trials: u32,
    pub took: Duration,
    /// The classes of the first trial that found anything.
    pub found: Vec<Class>,
    /// The law that the simulator saw broken.
    pub law: Option<String>,
    /// Why trials could not be judged, or prove nothing, if so.
    pub errors: Vec<String>,
}

impl Caught {
    fn new(bug: &'static Bug) -> Caught {
        Caught {
            bug,
            trials: 0,
            took: Duration::ZERO,
            found: Vec::new(),
            law: None,
            errors: Vec::new(),
        }
    }

    /// Whether it was found under one of its names.
    pub fn rightly(&self) -> bool {
        match self.bug.judge {
            Judge::Cluster => self
                .found
                .iter()
                .any(|class| self.bug.expected.contains(class)),
            Judge::Simulator { laws, .. } => {
                self.law.as_deref().is_some_and(|law| laws.contains(&law))
            }
        }
    }
}

/// The outcome of all trials.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MutationReport {
    /// What the run without a bug found, or why it could not be judged; absent if it was clean.
    pub control: Option<String>,
    pub bugs: Vec<Caught>,
}

impl MutationReport {
    pub fn caught(&self) -> usize {
        self.bugs.iter().filter(|bug| bug.rightly()).count()
    }

    /// Every bug was caught, and a product without one was not blamed.
    pub fn is_green(&self) -> bool {
        self.control.is_none() && self.caught() == self.bugs.len()
    }
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = self.found.iter().map(|class| class.name());
        let names: Vec<&str> = classes.chain(self.law.as_deref()).collect();
        let (id, took) = (self.bug.id, self.took.as_secs_f64());
        let trials = match (self.bug.judge, self.trials) {
            (Judge::Simulator { .. }, seeds) => format!("simulator, {seeds} seeds"),
            (Judge::Cluster, 1) => "1 trial".to_owned(),
            (Judge::Cluster, many) => format!("{many} trials"),
        };
        match (self.rightly(), names.is_empty()) {
            (true, _) => write!(
                f,
                "ok    {id:<26} {} ({trials}, {took:.0} s)",
                names.join(" ")
            ),
            (false, false) => write!(
                f,
                "FAIL  {id:<26} found under another name: {} ({trials}, {took:.0} s)",
                names.join(" ")
            ),
            (false, true) => write!(f, "FAIL  {id:<26} missed ({trials}, {took:.0} s)"),
        }?;
        for error in &self.errors {
            write!(f, "\n      {error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MutationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.control {
            None => writeln!(f, "ok    {:<26} clean", "no bug")?,
            Some(reason) => writeln!(f, "FAIL  {:<26} {reason}", "no bug")?,
        }
        for bug in &self.bugs {
            writeln!(f, "{bug}")?;
        }
        let (caught, all) = (self.caught(), self.bugs.len());
        write!(f, "mutation score: {caught} of {all}")
    }
}

/// Plants each bug in turn and runs it until it is found or its budget is gone.
///
/// `run` runs one cluster and returns its verdict, or why there is none; `simulate` tells the first
/// of so many seeds that goes red, and the law that it breaks; `say` is told each line as soon as it
/// is known. The first run is the control, without a bug.
pub async fn mutations(
    bugs: &[&'static Bug],
    env: &Env,
    mut run: impl AsyncFnMut(&Trial) -> Result<Verdict, String>,
    mut simulate: impl AsyncFnMut(&'static Bug, u64) -> Result<Option<(u64, String)>, String>,
    mut say: impl FnMut(&str),
) -> MutationReport {
    let mut report = MutationReport::default();
    for attempt in 0..CONTROLS_MAX {
        let control = Trial {
            bug: None,
            attempt,
            load_seconds: CONTROL_SECONDS << attempt,
            hint: Hint {
                faults: &["kill"],
                // It has to see enough.
                rates: &[LOADED],
                ..QUEUE
            },
        };
        let ended = run(&control).await;
        let is_over =
            !matches!(&ended, Ok(verdict) if verdict.judgement() == Judgement::TooLittleCoverage);
        report.control = match ended {
            Ok(verdict) if verdict.judgement() == Judgement::Pass => None,
            Ok(verdict) => Some(verdict.line()),
            Err(reason) => Some(reason),
        };
        if is_over {
            break;
        }
    }
    match &report.control {
        None => say(&format!("ok    {:<26} clean", "no bug")),
        Some(reason) => say(&format!("FAIL  {:<26} {reason}", "no bug")),
    }
    for bug in bugs {
        let caught = match bug.judge {
            Judge::Cluster => hunt(bug, env, &mut run).await,
            Judge::Simulator { seeds_max, .. } => {
                let began = env.now();
                let mut caught = Caught::new(bug);
                match simulate(bug, seeds_max).await {
                    Ok(Some((seed, law))) => {
                        caught.trials = u32::try_from(seed).unwrap_or(u32::MAX);
                        caught.law = Some(law);
                    }
                    Ok(None) => caught.trials = u32::try_from(seeds_max).unwrap_or(u32::MAX),
                    Err(reason) => caught.errors.push(reason),
                }
                caught.took = env.now().saturating_duration_since(began);
                caught
            }
        };
        say(&caught.to_string());
        report.bugs.push(caught);
    }
    report
}

async fn hunt(
    bug: &'static Bug,
    env: &Env,
    run: &mut impl AsyncFnMut(&Trial) -> Result<Verdict, String>,
) -> Caught {
    let began = env.now();
    let mut caught = Caught::new(bug);
    for attempt in 0..bug.trials_max {
        let trial = Trial {
            bug: Some(bug),
            attempt,
            load_seconds: bug.load_seconds,
            hint: bug.hint,
        };
        caught.trials += 1;
        match run(&trial).await {
            Ok(verdict) => {
                let found = verdict.classes();
                if !found.is_empty() {
                    caught.found = found;
                    if caught.rightly() {
                        break;
                    }
                } else if verdict.judgement() != Judgement::Pass {
                    caught.errors.push(verdict.line());
                }
            }
            Err(reason) => caught.errors.push(reason),
        }
    }
    caught.took = env.now().saturating_duration_since(began);
    caught
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::verdict::Finding;

    fn verdict(classes: &[Class]) -> Verdict {
        let violations = classes.iter().map(|class| Finding {
            class: *class,
            count: 1,
            examples: Vec::new(),
            allowed_because: None,
        });
        Verdict {
            violations: violations.collect(),
            tolerated: Vec::new(),
            counts: Default::default(),
            coverage: Default::default(),
            availability: Default::default(),
        }
    }

    #[test]
    fn a_rotation_reaches_every_bug() {
        let bugs: Vec<&'static Bug> = BUGS.iter().collect();
        for count in [1, ROTATION] {
            let turns = 0..bugs.len() as u64;
            let reached = turns.flat_map(|turn| rotation(turn, count, &bugs));
            let reached: BTreeSet<&str> = reached.map(|bug| bug.id).collect();
            assert_eq!(reached.len(), bugs.len());
        }
        assert_eq!(rotation(0, ROTATION, &bugs).len(), ROTATION);
        assert_ne!(rotation(0, ROTATION, &bugs), rotation(1, ROTATION, &bugs));
        assert_eq!(rotation(0, 1_000, &bugs).len(), bugs.len());
        assert_eq!(rotation(0, ROTATION, &bugs[..1]), bugs[..1]);
        assert!(rotation(0, ROTATION, &[]).is_empty());
    }

    /// The selftest knows every bug that a build can have, under the name that switches it on.
    #[test]
    fn every_planted_bug_is_hunted() {
        let hunted: BTreeSet<&str> = BUGS.iter().map(|bug| bug.id).collect();
        let planted = corduroy_env::planted::Bug::ALL.map(|bug| bug.name());
        assert_eq!(hunted, BTreeSet::from(planted));
        assert_eq!(BUGS.len(), planted.len());
    }

    #[tokio::test]
    async fn only_the_right_name_is_a_catch() {
        let wanted: Vec<&'static Bug> = BUGS
            .iter()
            .filter(|bug| {
                let ids = [
                    "ack-before-flush",
                    "vote-not-flushed",
                    "window-of-one",
                    "older-epoch-accepted",
                ];
                ids.contains(&bug.id)
            })
            .collect();
        let mut trials = Vec::new();
        let mut lines = Vec::new();
        let report = mutations(
            &wanted,
            &Env::real(),
            async |trial: &Trial| {
                let id = trial.bug.map_or("none", |bug| bug.id);
                trials.push((id, trial.attempt));
                match (id, trial.attempt) {
                    // Found at the second trial.
                    ("ack-before-flush", 1) => Ok(verdict(&[Class::FinalLost])),
                    // Found, but called something else.
                    ("older-epoch-accepted", _) => Ok(verdict(&[Class::Unseen])),
                    ("window-of-one", 0) => Err("the cluster did not start".to_owned()),
                    ("window-of-one", 1) => Ok(unknown()),
                    _ => Ok(verdict(&[])),
                }
            },
            async |bug, seeds| {
                assert_eq!((bug.id, seeds), ("vote-not-flushed", 100));
                Ok(Some((9, "terms_ascend".to_owned())))
            },
            |line| lines.push(line.to_owned()),
        )
        .await;
        assert_eq!(report.control, None);
        assert_eq!(report.caught(), 2);
        assert!(!report.is_green());
        assert_eq!(report.bugs.len(), 4);
        let of = |id: &str| trials.iter().filter(|(found, _)| *found == id).count();
        assert_eq!((of("none"), of("ack-before-flush")), (1, 2));
        assert_eq!(of("window-of-one"), 5);
        assert_eq!(lines.len(), 5);
        assert!(
            lines[2].contains("terms_ascend (simulator, 9 seeds"),
            "{lines:?}"
        );
        let text = report.to_string();
        assert!(text.ends_with("mutation score: 2 of 4"), "{text}");
        assert!(text.contains("found under another name: unseen"), "{text}");
        assert!(text.contains("the cluster did not start"), "{text}");
        assert!(text.contains("too little coverage: kill 0 of 1"), "{text}");
    }

    fn unknown() -> Verdict {
        let mut verdict = verdict(&[]);
        verdict.coverage.missing = vec!["kill 0 of 1 times".to_owned()];
        verdict
    }

    async fn control(run: impl AsyncFn(&Trial) -> Result<Verdict, String>) -> MutationReport {
        let simulator = async |_, _| Ok(None);
        mutations(
            &[],
            &Env::real(),
            async |trial: &Trial| run(trial).await,
            simulator,
            |_| {},
        )
        .await
    }

    #[tokio::test]
    async fn a_blamed_control_is_not_green() {
        let report = control(async |_: &Trial| Ok(verdict(&[Class::Duplicate]))).await;
        assert!(!report.is_green());
        let report = control(async |_: &Trial| Ok(verdict(&[Class::Breakdown]))).await;
        assert!(report.control.unwrap().contains("breakdown x1"));
    }

    /// A control that saw too little proves nothing: it is done again, longer, and then fails.
    #[tokio::test]
    async fn a_control_has_to_see_enough() {
        let report = control(async |_: &Trial| Ok(unknown())).await;
        let reason = report.control.unwrap();
        assert!(reason.contains("too little coverage: kill"), "{reason}");
        let report = control(async |trial: &Trial| match trial.load_seconds {
            CONTROL_SECONDS => Ok(unknown()),
            _ => Ok(verdict(&[])),
        })
        .await;
        assert!(report.is_green());
    }
}
