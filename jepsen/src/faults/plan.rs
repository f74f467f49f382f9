//! The shifting mix: which faults come when. Decided before the run from its seed alone, so that
//! the same seed plans the same faults.
//!
//! Every 20 to 60 s (less in short runs) another random subset of the asked faults has its turn, a
//! quarter of the time none: a cluster that is always down teaches nothing.
//!
//! Each kind holds once for longer than the product's own limits ([`FaultKind::outlasts`]), as early
//! as there is time for that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::FaultKind;
use crate::chance::Chance;

/// Kinds that have their turn together, at most.
const TOGETHER_MAX: u64 = 5;
/// Percent of the time without faults.
const QUIET_PERCENT: u64 = 25;
/// Never more of it: the faults need their time.
const QUIET_PERCENT_MAX: u64 = 30;
/// Percent of windows that are quiet although there was enough of that so far: they cannot be
/// foreseen.
const QUIET_ALL_THE_SAME_PERCENT: u64 = 10;
/// The windows of a run that is long enough.
const WINDOW_MS: (u64, u64) = (20_000, 60_000);
/// A run shorter than this has shorter windows, in proportion.
const LONG_RUN_MS: u64 = 300_000;
const WINDOW_MS_LEAST: u64 = 3_000;
/// How long a fault holds, but for the long ones.
const HOLD_MS: (u64, u64) = (1_000, 12_000);
/// Where time is short, up to so long.
const HOLD_MS_HIGH_LEAST: u64 = 1_300;
/// So much longer than what it has to outlast a long one is planned: doing it takes its time.
const LONGER: Duration = Duration::from_millis(500);
/// Network faults that are on at the same time, and the percent of their time that they may fill.
const NETWORK_FAULTS_MAX: u64 = 2;
const NETWORK_PERCENT: u64 = 30;
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
    /// How often each kind has to come in a full run.
    pub due: BTreeMap<FaultKind, usize>,
    /// When nothing holds any more.
    pub end: Duration,
}

/// All faults of a run.
///
/// # Parameters
/// `load` is how long clients will be loaded, `due` the kinds that come, and how often each does at
/// least, time permitting.
pub fn plan(seed: u64, load: Duration, due: &BTreeMap<FaultKind, usize>) -> Schedule {
    let kinds: &[FaultKind] = &due.keys().copied().collect::<Vec<_>>();
    let load_ms = u64::try_from(load.as_millis()).unwrap_or(u64::MAX);
    // The last faults must have time to be undone.
    let end_ms = load_ms.saturating_sub((load_ms / 10).min(10_000));
    if kinds.is_empty() || end_ms == 0 {
        return Schedule::default();
    }
    let mut chance = Chance::fork(seed, 1);
    let windows = windows(&mut chance, load_ms, end_ms, kinds);
    let mut steps = Vec::new();
    let hold_high = |kind: FaultKind| {
        let limit = hold_that_leaves_room(end_ms, due, kind).unwrap_or(HOLD_MS.1);
        limit.min(load_ms / 15).clamp(HOLD_MS_HIGH_LEAST, HOLD_MS.1)
    };
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
                    hold_high(*kind),
                ));
            }
        }
    }
    let loud: Vec<&Window> = windows.iter().filter(|w| !w.kinds.is_empty()).collect();
    let missing: Vec<FaultKind> = due
        .iter()
        .flat_map(|(kind, times)| {
            let had = steps.iter().filter(|step| step.kind == *kind).count();
            std::iter::repeat_n(*kind, times.saturating_sub(had))
        })
        .collect();
    for kind in missing {
        let span = chance
            .pick(&loud)
            .map_or((0, end_ms), |window| (window.from, window.until));
        steps.push(step(&mut chance, kind, span, hold_high(kind)));
    }
    steps.sort_by_key(|step| (step.at, step.seed));
    let quiet = windows.iter().filter(|window| window.kinds.is_empty());
    let millis = Duration::from_millis;
    Schedule {
        steps,
        quiet: quiet
            .map(|window| (millis(window.from), millis(window.until)))
            .collect(),
        due: due.clone(),
        end: load,
    }
}

/// Whether a fault of this kind may begin while those are on.
pub fn has_room(kind: FaultKind, on: &[FaultKind]) -> bool {
    let networks = on.iter().filter(|other| other.is_network()).count() as u64;
    let is_taken = kind.takes_a_node() && on.iter().any(|other| other.takes_a_node());
    let is_crowded = kind.is_network() && networks >= NETWORK_FAULTS_MAX;
    !(on.contains(&kind) || is_taken || is_crowded)
}

/// How often a step that could not be done, or that hit nothing, is tried again, and after what
/// time.
const TRIES_MAX: u32 = 5;
/// At so much of a run's time everything that is due shall have come, and a kind may be so much of it
/// (in parts of 1000) behind before it is put forward.
const ON_PACE_PERCENT: u128 = 70;
const BEHIND_SHARE: u128 = 200;
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What of a schedule is still to be done. Faults take their time, so steps come late; in quiet
/// windows none comes at all.
pub struct Agenda {
    waiting: VecDeque<Step>,
    /// Those that were in vain: when they are tried again, and how often they were.
    again: Vec<(Duration, Step, u32)>,
    quiet: Vec<(Duration, Duration)>,
    end: Duration,
    due: BTreeMap<FaultKind, usize>,
    /// How often each kind was tried.
    times: BTreeMap<FaultKind, usize>,
    /// Those that have not held for long yet.
    owing: BTreeSet<FaultKind>,
}

/// A step whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub step: Step,
    /// How often it was tried before.
    pub tries: u32,
    /// When it has to be over: its time, cut where a quiet window begins.
    pub until: Duration,
    /// For how long it has to hold, if it is the long one of its kind.
    pub outlasts: Option<Duration>,
}

impl Agenda {
    /// Everything is still to come.
    pub fn new(schedule: Schedule) -> Agenda {
        Agenda {
            waiting: schedule.steps.into(),
            again: Vec::new(),
            quiet: schedule.quiet,
            end: schedule.end,
            owing: schedule.due.keys().copied().collect(),
            due: schedule.due,
            times: BTreeMap::new(),
        }
    }

    /// The time up to the next quiet window, and each stretch between two of those after it.
    fn stretches(&self, now: Duration) -> Vec<Duration> {
        let mut from = now;
        let mut stretches = Vec::new();
        for (begin, end) in self.quiet.iter().filter(|(_, end)| *end > now) {
            stretches.push(begin.saturating_sub(from));
            from = *end;
        }
        stretches.push(self.end.saturating_sub(from));
        stretches
    }

    /// How long the long one of this kind takes, if that is still to come.
    fn owes(&self, kind: FaultKind) -> Option<Duration> {
        let (limit, _) = kind.outlasts()?;
        self.owing.contains(&kind).then_some(limit + LONGER)
    }

    /// Whether a kind waits for a stretch that is long enough, and there is one.
    fn waits(&self, kind: FaultKind, stretches: &[Duration]) -> bool {
        let Some((now, later)) = stretches.split_first() else {
            return false;
        };
        let long = self.owes(kind);
        let is_later = |stretch: &Duration, long| *stretch > long + LONGER;
        long.is_some_and(|long| *now < long && later.iter().any(|it| is_later(it, long)))
    }

    /// Whether so little of what is due of a kind came so far that its next one need not wait for its
    /// time.
    fn is_behind(&self, kind: FaultKind, now: Duration) -> bool {
        let end_ms = (self.end.as_millis() * ON_PACE_PERCENT / 100).max(1);
        let pace = now.as_millis() * 1000 / end_ms;
        (self.share(kind) as u128 + BEHIND_SHARE) < pace
    }

    /// How much of what is due of a kind came so far, in parts of 1000.
    fn share(&self, kind: FaultKind) -> usize {
        let times = self.times.get(&kind).copied().unwrap_or(0);
        times * 1000 / self.due.get(&kind).copied().unwrap_or(1).max(1)
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
        let stretches = self.stretches(now);
        let fits = |step: &Step| has_room(step) && !self.waits(step.kind, &stretches);
        let due = |(at, step, _): &(Duration, Step, u32)| *at <= now && fits(step);
        let (step, tries) = match self.again.iter().position(due) {
            Some(place) => {
                let (_, step, tries) = self.again.remove(place);
                (step, tries)
            }
            None => {
                let comes = |step: &Step| step.at <= now || self.is_behind(step.kind, now);
                let ready = self
                    .waiting
                    .iter()
                    .enumerate()
                    .filter(|(_, step)| comes(step) && fits(step))
                    .min_by_key(|(_, step)| self.share(step.kind))
                    .map(|(place, _)| place);
                (self.waiting.remove(ready?)?, 0)
            }
        };
        *self.times.entry(step.kind).or_default() += 1;
        let room = stretches.first().copied().unwrap_or_default();
        let long = self.owes(step.kind).filter(|long| *long <= room);
        if long.is_some() {
            self.owing.remove(&step.kind);
        }
        let hold = step.hold.max(long.unwrap_or_default());
        let begins = self.quiet.iter().map(|(from, _)| *from);
        let next_quiet = begins.filter(|from| *from > now).min();
        let until = next_quiet.map_or(now + hold, |from| from.min(now + hold));
        Some(Turn {
            outlasts: long.map(|long| long - LONGER),
            step,
            tries,
            until,
        })
    }

    /// It was in vain: it has another turn, unless it had enough of them.
    pub fn again(&mut self, now: Duration, turn: Turn) {
        let Turn { step, tries, .. } = turn;
        let times = self.times.entry(step.kind).or_default();
        *times = times.saturating_sub(1);
        if turn.outlasts.is_some() {
            self.owing.insert(step.kind);
        }
        if tries < TRIES_MAX {
            self.again.push((now + TRY_AGAIN, step, tries + 1));
        }
    }
}

/// The longest hold with which every fault that shares its place with this kind comes as often as it
/// has to, one after the other and once for long, and some time is left without any: of those that take
/// a node one is on, of those of the network a few. Nothing for a kind that shares it with no other.
fn hold_that_leaves_room(
    end_ms: u64,
    due: &BTreeMap<FaultKind, usize>,
    kind: FaultKind,
) -> Option<u64> {
    let shares: fn(FaultKind) -> bool = match kind {
        _ if kind.takes_a_node() => FaultKind::takes_a_node,
        _ if kind.is_network() => FaultKind::is_network,
        _ => return None,
    };
    let all_ms = match kind.is_network() {
        true => end_ms * NETWORK_PERCENT * NETWORK_FAULTS_MAX / 100,
        false => end_ms * BUSY_PERCENT / 100,
    };
    let (mut long_ms, mut short) = (0, 0);
    for (kind, times) in due.iter().filter(|(kind, _)| shares(**kind)) {
        let long = kind.outlasts().map(|(limit, _)| limit + LONGER);
        long_ms += long.map_or(0, |long| BETWEEN_MS + long.as_millis() as u64);
        short += (*times as u64).saturating_sub(u64::from(long.is_some()));
    }
    let left = all_ms.saturating_sub(long_ms);
    let mean = (left / short.max(1)).saturating_sub(BETWEEN_MS);
    Some((mean * 2).saturating_sub(HOLD_MS.0))
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
        let is_enough = (quiet_so_far + until - from) * 100 > end_ms * QUIET_PERCENT_MAX;
        let quiet =
            chance.percent(percent) && !is_enough && windows.iter().any(|w| !w.kinds.is_empty());
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
    use super::super::TIMES_EACH;
    use super::*;

    fn due(kinds: &[FaultKind]) -> BTreeMap<FaultKind, usize> {
        let due = kinds.iter().map(|kind| (*kind, kind.times_due(3, true)));
        due.collect()
    }

    #[test]
    fn every_asked_fault_comes_as_often_as_it_has_to_within_the_run() {
        for (seconds, kinds) in [
            (30, &[FaultKind::Kill, FaultKind::Pause][..]),
            (60, FaultKind::ALL),
            (300, FaultKind::ALL),
        ] {
            for seed in 0..20 {
                let load = Duration::from_secs(seconds);
                let due = due(kinds);
                let schedule = plan(seed, load, &due);
                assert_eq!(schedule, plan(seed, load, &due), "the seed decides");
                let steps = schedule.steps;
                for (kind, least) in due {
                    let times = steps.iter().filter(|step| step.kind == kind).count();
                    assert!(times >= least, "{kind:?} comes {times} times, seed {seed}");
                    assert!(least >= TIMES_EACH);
                }
                assert!(steps.iter().all(|step| step.at < load), "seed {seed}");
                assert!(steps.is_sorted_by_key(|step| step.at));
            }
        }
        let none = plan(1, Duration::from_secs(60), &BTreeMap::new());
        assert_eq!(none, Schedule::default());
    }

    #[test]
    fn one_kind_alone_holds_longer() {
        let alone = plan(1, Duration::from_secs(300), &due(&[FaultKind::Kill])).steps;
        let longest = alone.iter().map(|step| step.hold).max();
        assert!(longest > Some(Duration::from_secs(8)), "{longest:?}");
    }

    /// How often each kind came and held for long, in a run that goes as the injector's do: one
    /// thing is done after the other, a rolling restart and a change of members take their time, and
    /// every twelfth fault meets nothing.
    fn lived(seed: u64, seconds: u64, kinds: &[FaultKind]) -> BTreeMap<FaultKind, (usize, usize)> {
        let load = Duration::from_secs(seconds);
        let mut agenda = Agenda::new(plan(seed, load, &due(kinds)));
        let mut on: Vec<(Turn, Duration)> = Vec::new();
        let mut came: BTreeMap<FaultKind, (usize, usize)> = BTreeMap::new();
        let (mut now, mut done) = (Duration::ZERO, 0);
        while now < load {
            while let Some(place) = on.iter().position(|(_, until)| *until <= now) {
                let (turn, _) = on.remove(place);
                now += Duration::from_millis(BETWEEN_MS / 2);
                done += 1;
                if done % 12 == 0 {
                    agenda.again(now, turn);
                    continue;
                }
                let (times, long) = came.entry(turn.step.kind).or_default();
                *times += 1;
                *long += usize::from(turn.outlasts.is_some());
            }
            let kinds: Vec<FaultKind> = on.iter().map(|(turn, _)| turn.step.kind).collect();
            let Some(turn) = agenda.next(now, |step| has_room(step.kind, &kinds)) else {
                now += Duration::from_millis(100);
                continue;
            };
            now += Duration::from_millis(BETWEEN_MS / 4);
            let until = match turn.step.kind {
                FaultKind::Restart => {
                    now += Duration::from_secs(6);
                    now
                }
                FaultKind::Membership => now + Duration::from_secs(8),
                _ => turn.until.max(now + turn.outlasts.unwrap_or_default()),
            };
            on.push((turn, until));
        }
        came
    }

    #[test]
    fn all_of_them_come_often_enough_and_once_for_long_in_a_full_run() {
        for seed in 0..40 {
            let came = lived(seed, 300, FaultKind::ALL);
            for (kind, least) in due(FaultKind::ALL) {
                let (times, long) = came.get(&kind).copied().unwrap_or_default();
                assert!(
                    times >= least,
                    "{kind:?} came {times} times, seed {seed}: {came:?}"
                );
                let is_long = long > 0 || kind.outlasts().is_none();
                assert!(
                    is_long,
                    "{kind:?} never held for long, seed {seed}: {came:?}"
                );
            }
        }
    }

    /// What CI asks for of a minute.
    #[test]
    fn a_few_come_and_hold_for_long_in_a_short_run() {
        let kinds = [
            FaultKind::Kill,
            FaultKind::Pause,
            FaultKind::Partition,
            FaultKind::Transfer,
            FaultKind::PowerAll,
        ];
        for seconds in [60, 120] {
            for seed in 0..40 {
                let came = lived(seed, seconds, &kinds);
                for kind in kinds {
                    let (times, long) = came.get(&kind).copied().unwrap_or_default();
                    assert!(times > 0, "{kind:?} in {seconds} s, seed {seed}: {came:?}");
                    let is_long = long > 0 || kind.outlasts().is_none() || seconds < 100;
                    assert!(is_long, "{kind:?} in {seconds} s, seed {seed}: {came:?}");
                }
            }
        }
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
            let schedule = plan(seed, load, &due(FaultKind::ALL));
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
                    agenda.again(now, turn);
                }
            }
            assert!(late > 20, "seed {seed}: {late} of {done} came late");
        }
    }
}
