//! The shifting mix: which faults come when. Decided before the run from its seed alone, so that
//! the same seed plans the same faults.
//!
//! Every 20 to 60 s (less in short runs) another random subset of the asked faults has its turn, a
//! quarter of the time none: a cluster that is always down teaches nothing.

use std::time::Duration;

use super::FaultKind;
use crate::chance::Chance;

/// How often each asked fault comes at least, time permitting.
const TIMES_EACH: usize = 3;
/// Kinds that have their turn together, at most.
const TOGETHER_MAX: u64 = 5;
/// Percent of windows without faults.
const QUIET_PERCENT: u64 = 25;
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
const BUSY_PERCENT: u64 = 70;
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

/// All faults of a run, by time.
///
/// # Parameters
/// `load` is how long clients will be loaded.
pub fn plan(seed: u64, load: Duration, kinds: &[FaultKind]) -> Vec<Step> {
    let load_ms = u64::try_from(load.as_millis()).unwrap_or(u64::MAX);
    // The last faults must have time to be undone.
    let end_ms = load_ms.saturating_sub((load_ms / 10).min(10_000));
    if kinds.is_empty() || end_ms == 0 {
        return Vec::new();
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
    steps
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
        let quiet = chance.percent(QUIET_PERCENT) && windows.iter().any(|w| !w.kinds.is_empty());
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
                let steps = plan(seed, load, kinds);
                assert_eq!(steps, plan(seed, load, kinds), "the seed decides");
                for kind in kinds {
                    let times = steps.iter().filter(|step| step.kind == *kind).count();
                    assert!(times >= 3, "{kind:?} comes {times} times, seed {seed}");
                }
                assert!(steps.iter().all(|step| step.at < load), "seed {seed}");
                assert!(steps.is_sorted_by_key(|step| step.at));
            }
        }
        assert!(plan(1, Duration::from_secs(60), &[]).is_empty());
    }

    #[test]
    fn three_of_each_fit_into_a_full_run() {
        for seed in 0..20 {
            let load = Duration::from_secs(300);
            let steps = plan(seed, load, FaultKind::ALL);
            let mut times = std::collections::BTreeMap::new();
            let one_by_one = steps.iter().filter(|step| {
                let count: &mut usize = times.entry(step.kind).or_default();
                *count += 1;
                step.kind.takes_a_node() && *count <= TIMES_EACH
            });
            let held: Duration = one_by_one.map(|step| step.hold).sum();
            assert!(held < load * 3 / 5, "seed {seed}: {held:?} of {load:?}");
        }
        let alone = plan(1, Duration::from_secs(300), &[FaultKind::Kill]);
        let longest = alone.iter().map(|step| step.hold).max();
        assert!(longest > Some(Duration::from_secs(8)), "{longest:?}");
    }

    #[test]
    fn some_of_a_long_run_is_quiet() {
        let windows = windows(&mut Chance::new(7), 3_600_000, 3_600_000, FaultKind::ALL);
        let quiet = windows.iter().filter(|w| w.kinds.is_empty()).count();
        let share = quiet * 100 / windows.len();
        assert!((10..=40).contains(&share), "{share} % of windows");
    }
}
