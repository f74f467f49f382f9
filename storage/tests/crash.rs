//! The power fails at every single I/O step of a workload. After each reopening nothing that
//! was durable is lost, nothing half-written is read, votes are kept, and the laws hold.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use corduroy_storage::SimDisk;
use support::{
    Action, ModelLog, Random, Subject, check_survivor, open_store, recover, simulate, small_log,
    small_store,
};

/// What a workload is made of.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    logs: u32,
    count: usize,
    inline_bytes_max: usize,
}

/// Runs the workload until the disk fails or the work is done. Returns the subjects.
async fn work(disk: &SimDisk, env: &corduroy_env::Env, plan: Plan) -> Vec<Subject> {
    let Plan {
        seed,
        logs,
        count,
        inline_bytes_max,
    } = plan;
    let mut subjects = Vec::new();
    let Ok(_) = recover(disk) else {
        return subjects;
    };
    let Ok(store) = open_store(disk, small_store(inline_bytes_max), env) else {
        return subjects;
    };
    for number in 0..logs {
        match Subject::create(&store, number).await {
            Ok(subject) => subjects.push(subject),
            Err(_) => return subjects,
        }
    }
    let mut random = Random(seed);
    for _ in 0..count {
        let subject = &subjects[random.below(u64::from(logs)) as usize];
        // Many logs: short operations alone, so that the journal goes round and files are used
        // again while some logs have not been checkpointed.
        let action = if logs > 3 {
            match random.below(3) {
                0 => Action::Vote,
                _ => Action::Append {
                    count: 1,
                    records: 1,
                    bytes: 300,
                },
            }
        } else {
            Action::random(&mut random)
        };
        if subject.perform(&action).await.is_err() {
            return subjects;
        }
    }
    if seed.is_multiple_of(2) {
        store.close().await.ok();
    }
    subjects
}

/// One run with the power failing at `step`. Returns whether it got that far.
fn crash_at(step: u64, plan: Plan) -> bool {
    let Plan {
        seed,
        inline_bytes_max,
        ..
    } = plan;
    let context = format!("seed {seed} step {step} inline {inline_bytes_max}");
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
    // Half of the crashes take the process alone.
    if step.is_multiple_of(2) {
        disk.crash(seed ^ step)
    } else {
        disk.kill_process()
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
            let store = open_store(&disk, small_store(inline_bytes_max), &env).unwrap();
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
            let store = open_store(&disk, small_store(inline_bytes_max), &env).unwrap();
            for (group, expected) in continued.take() {
                let log = store.open_log(group, small_log()).unwrap();
                let seen = support::observe(&log).await.unwrap();
                assert_eq!(seen, expected, "{context}: lost after recovery");
            }
        }
    });
    reached
}

fn crash_everywhere(plan: Plan, stride: u64) {
    let mut step = plan.seed % stride;
    while crash_at(step, plan) {
        step += stride;
    }
    assert!(
        step > 100,
        "the workload is too short to prove anything: {step} steps"
    );
}

/// Three seeds, or as many as `CORDUROY_CRASH_SEEDS` says.
fn seeds(first: u64) -> std::ops::Range<u64> {
    let count = std::env::var("CORDUROY_CRASH_SEEDS")
        .ok()
        .and_then(|count| count.parse().ok());
    first..first + count.unwrap_or(3)
}

fn plan(seed: u64, inline_bytes_max: usize) -> Plan {
    Plan {
        seed,
        logs: 3,
        count: 60,
        inline_bytes_max,
    }
}

#[test]
fn inline_at_every_step() {
    for seed in seeds(1) {
        crash_everywhere(plan(seed, usize::MAX), 1);
    }
}

#[test]
fn by_reference_at_every_step() {
    for seed in seeds(1001) {
        crash_everywhere(plan(seed, 0), 1);
    }
}

#[test]
fn mixed_at_every_step() {
    for seed in seeds(2001) {
        crash_everywhere(plan(seed, 1200), 1);
    }
}

#[test]
fn journal_files_used_again_at_every_second_step() {
    crash_everywhere(
        Plan {
            seed: 31,
            logs: 9,
            count: 110,
            inline_bytes_max: 10_000,
        },
        2,
    );
}
