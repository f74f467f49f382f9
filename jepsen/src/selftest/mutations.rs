//! Bugs planted into the product, each of which a run has to find, under its right name and within
//! its budget.
//!
//! The node is built once with the cargo feature `planted-bugs`; an environment variable names the
//! one that it shall have ([`Bug::id`]). A build without the feature knows no such variable.

use std::fmt;
use std::time::Duration;

use corduroy_env::Env;

use crate::verdict::{Class, Judgement, Verdict};

use super::bugs::{Bug, Hint, Judge, LOADED, QUEUE};

/// How many bugs a turn of the [`rotation`] has, if nobody says otherwise.
pub const ROTATION: usize = 3;
/// Runs without a bug before that one counts as not judged: the first may have seen too little.
const CONTROLS_MAX: u32 = 2;
/// A control's load, in seconds, and what each kind of fault adds: it has to see every one. A further
/// try of it takes twice as long.
const CONTROL_SECONDS: u64 = 20;
const CONTROL_SECONDS_EACH: u64 = 8;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// The bug to plant; none for a control, which has to be clean.
    pub bug: Option<&'static Bug>,
    /// Counts from 0; to be mixed into the seed.
    pub attempt: u32,
    pub load_seconds: u64,
    pub hint: Hint,
    /// Names of faults: the hint's, or of a control those of all bugs that are hunted as it runs.
    pub faults: Vec<&'static str>,
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

/// A run without a bug, under the workload and the faults by which bugs are hunted: what is blamed
/// there would count as a catch.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    pub hint: Hint,
    pub faults: Vec<&'static str>,
    /// What it found, or why it could not be judged; absent if it was clean.
    pub blamed: Option<String>,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hint {
            workload,
            min_insync_replicas,
            ..
        } = self.hint;
        let insync = match min_insync_replicas == QUEUE.min_insync_replicas {
            true => String::new(),
            false => format!(", min.insync.replicas={min_insync_replicas}"),
        };
        let faults = match self.faults.is_empty() {
            true => "no fault".to_owned(),
            false => self.faults.join(" "),
        };
        let run = format!("{workload}{insync} under {faults}");
        match &self.blamed {
            None => write!(f, "ok    {:<26} clean ({run})", "no bug"),
            Some(reason) => write!(f, "FAIL  {:<26} {reason} ({run})", "no bug"),
        }
    }
}

/// What has to be clean for these hunts to mean anything: of each workload and setting one run, with
/// all the faults of its bugs.
fn controls(bugs: &[&'static Bug]) -> Vec<Control> {
    let mut controls: Vec<Control> = Vec::new();
    for bug in bugs.iter().filter(|bug| bug.judge == Judge::Cluster) {
        let alike = |control: &&mut Control| {
            (control.hint.workload, control.hint.nodes) == (bug.hint.workload, bug.hint.nodes)
                && control.hint.min_insync_replicas == bug.hint.min_insync_replicas
        };
        let known = controls.iter_mut().find(alike);
        let Some(control) = known else {
            controls.push(Control {
                hint: Hint {
                    // It has to see enough.
                    rates: &[LOADED],
                    ..bug.hint
                },
                faults: bug.hint.faults.to_vec(),
                blamed: None,
            });
            continue;
        };
        for fault in bug.hint.faults {
            if !control.faults.contains(fault) {
                control.faults.push(fault);
            }
        }
    }
    controls
}

/// The outcome of all trials.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MutationReport {
    pub controls: Vec<Control>,
    pub bugs: Vec<Caught>,
}

impl MutationReport {
    pub fn caught(&self) -> usize {
        self.bugs.iter().filter(|bug| bug.rightly()).count()
    }

    /// Every bug was caught, and a product without one was not blamed.
    pub fn is_green(&self) -> bool {
        let is_clean = self.controls.iter().all(|control| control.blamed.is_none());
        is_clean && self.caught() == self.bugs.len()
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
        for control in &self.controls {
            writeln!(f, "{control}")?;
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
/// is known. The first runs are the controls, without a bug: see [`Control`].
pub async fn mutations(
    bugs: &[&'static Bug],
    env: &Env,
    mut run: impl AsyncFnMut(&Trial) -> Result<Verdict, String>,
    mut simulate: impl AsyncFnMut(&'static Bug, u64) -> Result<Option<(u64, String)>, String>,
    mut say: impl FnMut(&str),
) -> MutationReport {
    let mut report = MutationReport::default();
    for mut control in controls(bugs) {
        for attempt in 0..CONTROLS_MAX {
            let seconds = CONTROL_SECONDS + CONTROL_SECONDS_EACH * control.faults.len() as u64;
            let trial = Trial {
                bug: None,
                attempt,
                load_seconds: seconds << attempt,
                hint: control.hint,
                faults: control.faults.clone(),
            };
            let ended = run(&trial).await;
            let is_over = !matches!(
                &ended,
                Ok(verdict) if verdict.judgement() == Judgement::TooLittleCoverage
            );
            control.blamed = match ended {
                Ok(verdict) if verdict.judgement() == Judgement::Pass => None,
                Ok(verdict) => Some(verdict.line()),
                Err(reason) => Some(reason),
            };
            if is_over {
                break;
            }
        }
        say(&control.to_string());
        report.controls.push(control);
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
            faults: bug.hint.faults.to_vec(),
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

    use super::super::bugs::BUGS;
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
            delivery: Default::default(),
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
        let clean = report.controls.iter().map(|control| &control.blamed);
        assert_eq!(clean.collect::<Vec<_>>(), [&None, &None, &None]);
        assert_eq!(report.caught(), 2);
        assert!(!report.is_green());
        assert_eq!(report.bugs.len(), 4);
        let of = |id: &str| trials.iter().filter(|(found, _)| *found == id).count();
        assert_eq!((of("none"), of("ack-before-flush")), (3, 2));
        assert_eq!(of("window-of-one"), 5);
        assert_eq!(lines.len(), 7);
        assert!(
            lines[4].contains("terms_ascend (simulator, 9 seeds"),
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
        let fencing = BUGS.iter().filter(|bug| bug.id == "older-epoch-accepted");
        mutations(
            &fencing.collect::<Vec<_>>(),
            &Env::real(),
            async |trial: &Trial| run(trial).await,
            simulator,
            |_| {},
        )
        .await
    }

    #[tokio::test]
    async fn a_blamed_control_is_not_green() {
        let blaming = async |trial: &Trial, class| match trial.bug {
            None => Ok(verdict(&[class])),
            Some(_) => Ok(verdict(&[Class::FencedAppend])),
        };
        for (class, name) in [
            (Class::FencedAppend, "fenced-append x1"),
            (Class::Breakdown, "breakdown x1"),
        ] {
            let report = control(async |trial: &Trial| blaming(trial, class).await).await;
            assert_eq!(report.caught(), 1);
            assert!(
                !report.is_green(),
                "what is found without a bug is no catch"
            );
            let said = report.controls[0].to_string();
            assert!(said.contains(name), "{said}");
            assert!(said.contains("fencing under no fault"), "{said}");
        }
    }

    /// A false alarm of a workload or fault that is hunted with would pass for a catch.
    #[test]
    fn everything_that_is_hunted_with_has_its_control() {
        let bugs: Vec<&'static Bug> = BUGS.iter().collect();
        let controls = controls(&bugs);
        for bug in bugs.iter().filter(|bug| bug.judge == Judge::Cluster) {
            let covers = |control: &&Control| {
                control.hint.workload == bug.hint.workload
                    && control.hint.min_insync_replicas == bug.hint.min_insync_replicas
                    && bug
                        .hint
                        .faults
                        .iter()
                        .all(|fault| control.faults.contains(fault))
            };
            assert_eq!(controls.iter().filter(covers).count(), 1, "{}", bug.id);
        }
        let queue = controls
            .iter()
            .find(|control| control.hint.workload == "queue");
        let faults = &queue.expect("a control").faults;
        assert!(faults.contains(&"power-loss-all") && faults.contains(&"partition"));
    }

    /// A control that saw too little proves nothing: it is done again, longer, and then fails.
    #[tokio::test]
    async fn a_control_has_to_see_enough() {
        let report = control(async |_: &Trial| Ok(unknown())).await;
        let reason = report.controls[0].to_string();
        assert!(reason.contains("too little coverage: kill"), "{reason}");
        let report = control(
            async |trial: &Trial| match (trial.bug, trial.load_seconds) {
                (None, CONTROL_SECONDS) => Ok(unknown()),
                (None, _) => Ok(verdict(&[])),
                (Some(_), _) => Ok(verdict(&[Class::FencedAppend])),
            },
        )
        .await;
        assert!(report.is_green());
    }
}
