//! The shifting mix: which faults come when. Decided before the run from its seed alone, so that
//! the same seed plans the same faults.
//!
//! Every 20 to 60 s (less in short runs) another random subset of the asked faults has its turn, a
//! quarter of the time none: a cluster that is always down teaches nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::FaultKind;
use crate::chance::Chance;

/// How often each asked fault comes at least, time permitting.
const TIMES_EACH: usize = 3;
/// Kinds that have their turn together, at most.
const TOGETHER_MAX: u64 = 5;
/// Percent of the time without faults.
const QUIET_PERCENT: u64 = 25;
/// Percent of windows that are quiet although there was enough of that so far: they cannot be
/// foreseen.
const QUIET_ALL_THE_SAME_PERCENT: u64 = 10;
/// The windows of a run that is long enough.
const WINDOW_MS: (u64, u64) = (20_000, 60_000);
/// A run shorter than this has shorter windows, in proportion.
const LONG_RUN_MS: u64 = 300_000;
const WINDOW_MS_LEAST: u64 = 3_000;
/// How long a fault holds.
const HOLD_MS: (u64, u64) = (1_000, 12_000);
/// Nobody is served while all nodes are without power: what counts is how often, not for how long.
const HOLD_ALL_MS_MAX: u64 = 2_500;
/// Percent of the time that the faults that take a node may fill.
const BUSY_PERCENT: u64 = 52;
/// What passes between two of them, with their undoing.
const BETWEEN_MS: u64 = 1_500;
/// One fault of a kind in so much of a window.
const EVERY_MS: u64 = 12_000;
/// The same where a kind has the run to itself.
const EVERY_ALONE_MS: u64 = 8_000;

/// A fault that is to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, from the begin of the load.
    pub at: Duration,
    /// What.
    pub kind: FaultKind,
    /// For how long.
    pub hold: Duration,
    /// Decides everything else about it.
    pub seed: u64,
}

/// What is to come when, from the begin of the load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The faults, by time.
    pub steps: Vec<Step>,
    /// From when to when there are none, by time.
    pub quiet: Vec<(Duration, Duration)>,
}

/// All faults of a run.
///
/// # Parameters
/// `load` is how long clients will be loaded.
pub fn plan(seed: u64, load: Duration, kinds: &[FaultKind]) -> Schedule {
    let load_ms = u64::try_from(load.as_millis()).unwrap_or(u64::MAX);
    // The last faults must have time to be undone.
    let end_ms = load_ms.saturating_sub((load_ms / 10).min(10_000));
    if kinds.is_empty() || end_ms == 0 {
        return Schedule::default();
    }
    let mut chance = Chance::fork(seed, 1);
    let windows = windows(&mut chance, load_ms, end_ms, kinds);
    let mut steps = Vec::new();
    let hold_high = (load_ms / 15)
        .min(hold_that_leaves_room(end_ms, kinds))
        .clamp(HOLD_MS.0 * 2, HOLD_MS.1);
    let every = match kinds.len() {
        1 => EVERY_ALONE_MS,
        _ => EVERY_MS,
    };
    for window in &windows {
        let times = (window.until - window.from).div_ceil(every);
        for kind in &window.kinds {
            for _ in 0..times {
                steps.push(step(
                    &mut chance,
                    *kind,
                    (window.from, window.until),
                    hold_high,
                ));
            }
        }
    }
    let loud: Vec<&Window> = windows.iter().filter(|w| !w.kinds.is_empty()).collect();
    let missing: Vec<FaultKind> = kinds
        .iter()
        .flat_map(|kind| {
            let had = steps.iter().filter(|step| step.kind == *kind).count();
            std::iter::repeat_n(*kind, TIMES_EACH.saturating_sub(had))
        })
        .collect();
    for kind in missing {
        let span = chance
            .pick(&loud)
            .map_or((0, end_ms), |window| (window.from, window.until));
        steps.push(step(&mut chance, kind, span, hold_high));
    }
    steps.sort_by_key(|step| (step.at, step.seed));
    let quiet = windows.iter().filter(|window| window.kinds.is_empty());
    let millis = Duration::from_millis;
    Schedule {
        steps,
        quiet: quiet
            .map(|window| (millis(window.from), millis(window.until)))
            .collect(),
    }
}

/// How often a step that could not be done, or that hit nothing, is tried again, and after what
/// time.
const TRIES_MAX: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What of a schedule is still to be done. Faults take their time, so steps come late; in quiet
/// windows none comes at all.
pub struct Agenda {
    waiting: VecDeque<Step>,
    /// Those that were in vain: when they are tried again, and how often they were.
    again: Vec<(Duration, Step, u32)>,
    quiet: Vec<(Duration, Duration)>,
    /// How often each kind was tried.
    times: BTreeMap<FaultKind, u32>,
}

/// A step whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub step: Step,
    /// How often it was tried before.
    pub tries: u32,
    /// When it has to be over: its time, cut where a quiet window begins.
    pub until: Duration,
}

impl Agenda {
    /// Everything is still to come.
    pub fn new(schedule: Schedule) -> Agenda {
        Agenda {
            waiting: schedule.steps.into(),
            again: Vec::new(),
            quiet: schedule.quiet,
            times: BTreeMap::new(),
        }
    }

    /// The step that is to be done now. Of those whose time has come and that have room, the kind
    /// that came least often: where time is short, every kind has its turn before any has its
    /// second.
    pub fn next(&mut self, now: Duration, has_room: impl Fn(&Step) -> bool) -> Option<Turn> {
        // What has no time to take hold is not begun.
        let soon = now + Duration::from_millis(HOLD_MS.0);
        let is_quiet = |(from, until): &(Duration, Duration)| *from <= soon && now < *until;
        if self.quiet.iter().any(is_quiet) {
            return None;
        }
        let due = |(at, step, _): &(Duration, Step, u32)| *at <= now && has_room(step);
        let (step, tries) = match self.again.iter().position(due) {
            Some(place) => {
                let (_, step, tries) = self.again.remove(place);
                (step, tries)
            }
            None => {
                let ready = self
                    .waiting
                    .iter()
                    .take_while(|step| step.at <= now)
                    .enumerate()
                    .filter(|(_, step)| has_room(step))
                    .min_by_key(|(_, step)| self.times.get(&step.kind).copied().unwrap_or(0))
                    .map(|(place, _)| place);
                (self.waiting.remove(ready?)?, 0)
            }
        };
        *self.times.entry(step.kind).or_default() += 1;
        let begins = self.quiet.iter().map(|(from, _)| *from);
        let next_quiet = begins.filter(|from| *from > now).min();
        let until = next_quiet.map_or(now + step.hold, |from| from.min(now + step.hold));
        Some(Turn { step, tries, until })
    }

    /// It was in vain: it has another turn, unless it had enough of them.
    pub fn again(&mut self, now: Duration, step: Step, tries: u32) {
        let times = self.times.entry(step.kind).or_default();
        *times = times.saturating_sub(1);
        if tries < TRIES_MAX {
            self.again.push((now + TRY_AGAIN, step, tries + 1));
        }
    }
}

/// The longest hold with which every fault that takes a node comes as often as it has to, one after
/// the other, and some time is left without any.
fn hold_that_leaves_room(end_ms: u64, kinds: &[FaultKind]) -> u64 {
    let taking = kinds.iter().filter(|kind| kind.takes_a_node()).count();
    let times = (taking * TIMES_EACH).max(1) as u64;
    let mean = (end_ms * BUSY_PERCENT / 100 / times).saturating_sub(BETWEEN_MS);
    (mean * 2).saturating_sub(HOLD_MS.0)
}

fn step(chance: &mut Chance, kind: FaultKind, (from, until): (u64, u64), hold_ms_max: u64) -> Step {
    let hold_ms_max = match kind {
        FaultKind::PowerAll => hold_ms_max.min(HOLD_ALL_MS_MAX),
        _ => hold_ms_max,
    };
    let hold = chance.between(HOLD_MS.0, hold_ms_max);
    let at = chance.between(from, until.saturating_sub(hold).max(from));
    Step {
        at: Duration::from_millis(at),
        kind,
        hold: Duration::from_millis(hold),
        seed: chance.next(),
    }
}

struct Window {
    from: u64,
    until: u64,
    kinds: Vec<FaultKind>,
}

fn windows(chance: &mut Chance, load_ms: u64, end_ms: u64, kinds: &[FaultKind]) -> Vec<Window> {
    let scale = |ms: u64| (ms * load_ms.min(LONG_RUN_MS) / LONG_RUN_MS).max(WINDOW_MS_LEAST);
    let mut windows: Vec<Window> = Vec::new();
    let mut from = 0;
    // A deck, so that no kind waits for ever.
    let mut deck: Vec<FaultKind> = Vec::new();
    while from < end_ms {
        let length = chance.between(scale(WINDOW_MS.0), scale(WINDOW_MS.1));
        let until = (from + length).min(end_ms);
        // The more quiet is missing so far, the likelier it is.
        let quiet_so_far: u64 = windows
            .iter()
            .filter(|window| window.kinds.is_empty())
            .map(|window| window.until - window.from)
            .sum();
        let missing = (until * QUIET_PERCENT / 100).saturating_sub(quiet_so_far);
        let percent =
            (missing * 100 / (until - from).max(1)).clamp(QUIET_ALL_THE_SAME_PERCENT, 100);
        let quiet = chance.percent(percent) && windows.iter().any(|w| !w.kinds.is_empty());
        let mut now = Vec::new();
        if !quiet {
            let most = TOGETHER_MAX.min(kinds.len() as u64);
            for _ in 0..chance.between(1, most) {
                if deck.is_empty() {
                    deck = kinds.to_vec();
                    chance.shuffle(&mut deck);
                }
                if let Some(kind) = deck.pop()
                    && !now.contains(&kind)
                {
                    now.push(kind);
                }
            }
        }
        windows.push(Window {
            from,
            until,
            kinds: now,
        });
        from = until;
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_asked_fault_comes_three_times_within_the_run() {
        for (seconds, kinds) in [
            (30, &[FaultKind::Kill, FaultKind::Pause][..]),
            (60, FaultKind::ALL),
            (300, FaultKind::ALL),
        ] {
            for seed in 0..20 {
                let load = Duration::from_secs(seconds);
                let schedule = plan(seed, load, kinds);
                assert_eq!(schedule, plan(seed, load, kinds), "the seed decides");
                let steps = schedule.steps;
                for kind in kinds {
                    let times = steps.iter().filter(|step| step.kind == *kind).count();
                    assert!(times >= 3, "{kind:?} comes {times} times, seed {seed}");
                }
                assert!(steps.iter().all(|step| step.at < load), "seed {seed}");
                assert!(steps.is_sorted_by_key(|step| step.at));
            }
        }
        assert_eq!(plan(1, Duration::from_secs(60), &[]), Schedule::default());
    }

    #[test]
    fn three_of_each_fit_into_a_full_run() {
        for seed in 0..20 {
            let load = Duration::from_secs(300);
            let steps = plan(seed, load, FaultKind::ALL).steps;
            let mut times = std::collections::BTreeMap::new();
            let one_by_one = steps.iter().filter(|step| {
                let count: &mut usize = times.entry(step.kind).or_default();
                *count += 1;
                step.kind.takes_a_node() && *count <= TIMES_EACH
            });
            let held: Duration = one_by_one.map(|step| step.hold).sum();
            assert!(held < load * 3 / 5, "seed {seed}: {held:?} of {load:?}");
        }
        let alone = plan(1, Duration::from_secs(300), &[FaultKind::Kill]).steps;
        let longest = alone.iter().map(|step| step.hold).max();
        assert!(longest > Some(Duration::from_secs(8)), "{longest:?}");
    }

    #[test]
    fn some_of_a_long_run_is_quiet() {
        let windows = windows(&mut Chance::new(7), 3_600_000, 3_600_000, FaultKind::ALL);
        let quiet = windows.iter().filter(|w| w.kinds.is_empty());
        let share = quiet.map(|w| w.until - w.from).sum::<u64>() * 100 / 3_600_000;
        assert!((20..=35).contains(&share), "{share} % of the time");
    }

    /// A cluster under so many faults that each comes late.
    #[test]
    fn nothing_begins_and_nothing_holds_in_a_quiet_window() {
        for seed in 0..20 {
            let load = Duration::from_secs(300);
            let schedule = plan(seed, load, FaultKind::ALL);
            let quiet = schedule.quiet.clone();
            assert!(!quiet.is_empty());
            let mut agenda = Agenda::new(schedule);
            let (mut now, mut late, mut done) = (Duration::ZERO, 0, 0);
            while now < load {
                let Some(turn) = agenda.next(now, |_| true) else {
                    now += Duration::from_millis(100);
                    continue;
                };
                done += 1;
                late += usize::from(turn.step.at < now);
                let in_quiet =
                    |(from, until): &&(Duration, Duration)| now < *until && *from < turn.until;
                assert_eq!(quiet.iter().find(in_quiet), None, "seed {seed}: {turn:?}");
                // Another one only when this one is over, and a second for undoing it; every
                // fifth is in vain.
                now = turn.until + Duration::from_secs(1);
                if done % 5 == 0 {
                    agenda.again(now, turn.step, turn.tries);
                }
            }
            assert!(late > 20, "seed {seed}: {late} of {done} came late");
        }
    }
}
