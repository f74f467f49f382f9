//! The power fails at every single I/O step of a workload, and in another run the process alone
//! dies there. After each reopening nothing that was durable is lost, nothing half-written is
//! read, votes are kept, and the laws hold.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use corduroy_storage::{SimDisk, StoreConfig};
use support::{
    Action, ModelLog, Random, Subject, check_survivor, open_store, recover, simulate, small_log,
    small_store,
};

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Everything that can be done to a log.
    Mixed,
    /// Short operations alone, so that the journal goes round and files are used again while some
    /// logs have not been checkpointed.
    Short,
    /// One log writes all the time, two others once in a file or two: several files are in use,
    /// of which some hold what no state file has, and several are freed at once (law 5).
    Uneven,
}

/// What a workload is made of.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    shape: Shape,
    logs: u32,
    count: usize,
    inline_bytes_max: usize,
}

impl Plan {
    fn store(&self) -> StoreConfig {
        let config = small_store(self.inline_bytes_max);
        match self.shape {
            Shape::Uneven => StoreConfig {
                journal_files_max: 9,
                ..config
            },
            Shape::Mixed | Shape::Short => config,
        }
    }

    /// The log that operation `number` is done to, and what.
    fn next(&self, number: usize, random: &mut Random) -> (usize, Action) {
        if self.shape == Shape::Uneven {
            let subject = if number % 24 == 7 {
                1 + number / 24 % 2
            } else {
                0
            };
            return (subject, Action::Vote);
        }
        let subject = random.below(u64::from(self.logs)) as usize;
        if self.shape == Shape::Mixed {
            return (subject, Action::random(random));
        }
        let append = Action::Append {
            count: 1,
            records: 1,
            bytes: 300,
        };
        match random.below(3) {
            0 => (subject, Action::Vote),
            _ => (subject, append),
        }
    }
}

/// Runs the workload until the disk fails or the work is done. Returns the subjects.
async fn work(disk: &SimDisk, env: &corduroy_env::Env, plan: Plan) -> Vec<Subject> {
    let mut subjects = Vec::new();
    let Ok(_) = recover(disk) else {
        return subjects;
    };
    let Ok(store) = open_store(disk, plan.store(), env) else {
        return subjects;
    };
    for number in 0..plan.logs {
        match Subject::create(&store, number).await {
            Ok(subject) => subjects.push(subject),
            Err(_) => return subjects,
        }
    }
    let mut random = Random(plan.seed);
    for number in 0..plan.count {
        let (subject, action) = plan.next(number, &mut random);
        let subject = &subjects[subject];
        if subject.perform(&action).await.is_err() {
            return subjects;
        }
    }
    if plan.seed.is_multiple_of(2) {
        store.close().await.ok();
    }
    subjects
}

/// What ends at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The machine loses its power: an arbitrary part of what was not flushed is there.
    PowerLoss,
    /// The process alone dies: what it wrote reads back, and is no more durable than before.
    ProcessKill,
}

/// One run that ends at `step`. Returns whether it got that far.
fn crash_at(step: u64, ending: Ending, plan: Plan) -> bool {
    let Plan {
        seed,
        inline_bytes_max,
        ..
    } = plan;
    let context = format!("seed {seed} step {step} {ending:?} inline {inline_bytes_max}");
    let disk = SimDisk::new();
    disk.crash_at_step(step);
    let subjects = simulate(seed, |env| {
        let disk = disk.clone();
        async move {
            let subjects = work(&disk, &env, plan).await;
            // Whatever was under way settles: callbacks fire, with errors or without.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            subjects
        }
    });
    let reached = disk.crashed();
    match ending {
        Ending::PowerLoss => disk.crash(seed ^ step),
        Ending::ProcessKill => disk.kill_process(),
    }
    // Recovery is interrupted as well, at a step of its own, then runs through.
    disk.crash_at_step(disk.steps() + (step.wrapping_mul(7) ^ seed) % 40);
    let interrupted = recover(&disk).is_err();
    if interrupted {
        disk.crash(seed.wrapping_add(step));
    } else {
        disk.crash_at_step(u64::MAX);
    }
    let continued: Rc<RefCell<Vec<(corduroy_record::GroupId, ModelLog)>>> = Rc::default();
    simulate(seed ^ 1, |env| {
        let disk = disk.clone();
        let (context, continued) = (context.clone(), continued.clone());
        async move {
            let report = recover(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(report.damaged.is_empty(), "{context}: {report:?}");
            let store = open_store(&disk, plan.store(), &env).unwrap();
            for subject in subjects {
                assert!(
                    store.contains(subject.group),
                    "{context}: a registered replica is gone"
                );
                let log = store.open_log(subject.group, small_log()).unwrap();
                let steps = subject.steps.take();
                let durable = subject.durable_steps.get();
                let model = check_survivor(&log, &steps, durable).await;
                // It goes on from there.
                subject.term.set(
                    subject
                        .term
                        .get()
                        .max(model.last().map_or(0, |(term, _)| term.get()))
                        + 1,
                );
                *subject.log.borrow_mut() = log.clone();
                *subject.model.borrow_mut() = model.clone();
                subject.steps.replace(Vec::new());
                subject.durable_steps.set(0);
                subject
                    .perform(&Action::Append {
                        count: 2,
                        records: 1,
                        bytes: 100,
                    })
                    .await
                    .unwrap();
                subject.perform(&Action::Vote).await.unwrap();
                let seen = support::observe(&log).await.unwrap();
                assert_eq!(seen, *subject.model.borrow(), "{context}");
                continued.borrow_mut().push((subject.group, seen));
            }
        }
    });
    // Recovered is not durable until recovery made it so (law 3): the power fails once more.
    disk.crash(seed.wrapping_mul(31) ^ step);
    simulate(seed ^ 2, |env| {
        let disk = disk.clone();
        async move {
            let report = recover(&disk).unwrap();
            assert!(report.damaged.is_empty(), "{context}: {report:?}");
            let store = open_store(&disk, plan.store(), &env).unwrap();
            for (group, expected) in continued.take() {
                let log = store.open_log(group, small_log()).unwrap();
                let seen = support::observe(&log).await.unwrap();
                assert_eq!(seen, expected, "{context}: lost after recovery");
            }
        }
    });
    reached
}

/// The power fails at every step of the workload, or the process dies there.
fn crash_everywhere(ending: Ending, plan: Plan) {
    let mut step = 0;
    while crash_at(step, ending, plan) {
        step += 1;
    }
    assert!(
        step > 100,
        "the workload is too short to prove anything: {step} steps"
    );
}

/// The power fails at every step of three workloads, or of as many as `CORDUROY_CRASH_SEEDS` says;
/// the process dies at every step of the first.
fn crash_workloads(first: u64, inline_bytes_max: usize) {
    let count = std::env::var("CORDUROY_CRASH_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok());
    for seed in first..first + count.unwrap_or(3) {
        crash_everywhere(Ending::PowerLoss, plan(seed, inline_bytes_max));
    }
    crash_everywhere(Ending::ProcessKill, plan(first, inline_bytes_max));
}

fn plan(seed: u64, inline_bytes_max: usize) -> Plan {
    Plan {
        seed,
        shape: Shape::Mixed,
        logs: 3,
        count: 60,
        inline_bytes_max,
    }
}

#[test]
fn inline_at_every_step() {
    crash_workloads(1, usize::MAX);
}

#[test]
fn by_reference_at_every_step() {
    crash_workloads(1001, 0);
}

#[test]
fn mixed_at_every_step() {
    crash_workloads(2001, 1200);
}

#[test]
fn journal_files_used_again_at_every_step() {
    for ending in [Ending::PowerLoss, Ending::ProcessKill] {
        crash_everywhere(
            ending,
            Plan {
                seed: 31,
                shape: Shape::Short,
                logs: 9,
                count: 110,
                inline_bytes_max: 10_000,
            },
        );
    }
}

/// Law 5: a journal file goes only past the state files of all logs that have records in it, and
/// the oldest first.
#[test]
fn journal_files_of_uneven_logs_at_every_step() {
    crash_everywhere(
        Ending::PowerLoss,
        Plan {
            seed: 41,
            shape: Shape::Uneven,
            logs: 3,
            count: 110,
            inline_bytes_max: 10_000,
        },
    );
}
