//! Whether a run has seen enough for its silence to mean something, and how long the cluster was
//! unavailable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checker::progress::TRIED_SECONDS_MIN;
use crate::faults::FaultKind;
use crate::history::{
    Answer, Call, FaultEvent, FaultPhase, History, Key, Mark, Minima, Nanos, Operation, Outcome,
};

/// A run at least this long has to reach the full minima.
pub const FULL_RUN_SECONDS: u64 = 300;
const TIMES_EACH_FAULT: u64 = 3;
const OPERATIONS_IN_FAULTS: u64 = 1_000;
const OPERATIONS_IN_FAULTS_LEAST: u64 = 100;
/// Where groups and their positions are kept: who leads its partitions are the coordinators.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// From this length on, a run has to do the full number of operations.
const FULL_OPERATIONS_SECONDS: u64 = 60;
/// From this length on, each fault has to have been a long one once.
const LONG_HOLDS_SECONDS: u64 = 100;

impl Minima {
    /// What a run of this length has to reach.
    ///
    /// From [`FULL_RUN_SECONDS`] on: each fault three times, 1,000 acknowledged writes and as many
    /// reads while a fault was active, a complete final read. A shorter run has less time for
    /// faults: each once per 100 seconds begun, and operations in proportion below a minute, but
    /// never fewer than 100.
    pub fn for_run(load_seconds: u64) -> Minima {
        let times = load_seconds
            .div_ceil(FULL_RUN_SECONDS / TIMES_EACH_FAULT)
            .clamp(1, TIMES_EACH_FAULT);
        let operations = (OPERATIONS_IN_FAULTS * load_seconds / FULL_OPERATIONS_SECONDS)
            .clamp(OPERATIONS_IN_FAULTS_LEAST, OPERATIONS_IN_FAULTS);
        Minima {
            times_each_fault: times as u32,
            writes_in_faults: operations,
            reads_in_faults: operations,
            long_holds: u32::from(load_seconds >= LONG_HOLDS_SECONDS),
            final_read: true,
            // What the setup allows, the run knows.
            controller_compared: false,
            offsets_compared: false,
            group: None,
        }
    }

    /// Whether these are the minima of a full run.
    pub fn are_full(&self) -> bool {
        let by_length = Minima {
            controller_compared: false,
            offsets_compared: false,
            group: None,
            ..*self
        };
        by_length == Minima::for_run(FULL_RUN_SECONDS)
    }
}

/// What a run has covered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub minima: Minima,
    /// How often each fault took hold, those asked for and others.
    pub faults: BTreeMap<String, u32>,
    /// Of those, how often in each of their manners: shapes of partitions, kinds of damaged files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub manners: BTreeMap<String, BTreeMap<String, u32>>,
    /// Of those, how often it held for longer than the limit of the product that it has to outlast
    /// ([`FaultKind::outlasts`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub long_holds: BTreeMap<String, u32>,
    /// How often each fault was done and met nothing: it does not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<String, u32>,
    /// Seconds during which at least one fault was active, or the cluster not whole after one.
    pub fault_seconds: f64,
    /// Of the time of load up to the heal, the share in which no fault was active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_share: Option<f64>,
    pub writes_in_faults: u64,
    pub reads_in_faults: u64,
    /// Partitions with acknowledged writes, and how many of them were read to their end by a fresh
    /// client and by every node.
    pub partitions: u64,
    pub partitions_final_read: u64,
    pub partitions_compared: u64,
    /// Logs that were compared between the replicas of stopped nodes, those that no client reads
    /// among them, and their entries.
    #[serde(default)]
    pub logs_compared: u64,
    #[serde(default)]
    pub entries_compared: u64,
    /// Entries of the controller's log, and of `__consumer_offsets`, among those.
    #[serde(default)]
    pub controller_entries_compared: u64,
    #[serde(default)]
    pub offsets_entries_compared: u64,
    /// Of groups, where the run had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupCoverage>,
    /// Faults that `all` stood for and that were not possible on that machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// What is missing for a pass, a sentence each.
    pub missing: Vec<String>,
}

impl Coverage {
    /// How often a fault came in this manner, whatever a comma behind it adds.
    pub fn in_manner(&self, fault: &str, manner: &str) -> u32 {
        let manners = self.manners.get(fault).into_iter().flatten();
        let of_it = manners.filter(|(seen, _)| seen.split(',').next() == Some(manner));
        of_it.map(|(_, times)| *times).sum()
    }
}

/// What a run has covered of groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCoverage {
    /// Generations in which partitions were given out, of all groups together.
    pub rebalances: u64,
    /// Acknowledged commits.
    pub commits: u64,
    pub commits_in_faults: u64,
    /// How often a coordinator was seen to give way to the next one.
    pub coordinator_changes: u64,
    /// Partitions that a group has read to the end after the heal, of all groups together.
    pub drained: u64,
}

/// How long clients had to wait.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Availability {
    /// By fault name; `none` is for times without a fault.
    pub after_fault: BTreeMap<String, Gap>,
    /// Calls that ended ok, of all that ended, during faults and outside of them.
    pub ok_share_in_faults: Option<f64>,
    pub ok_share_outside: Option<f64>,
}

impl Availability {
    /// The longest gap after each kind of fault, as lines of a table.
    pub fn lines(&self) -> Vec<String> {
        if self.after_fault.is_empty() {
            return Vec::new();
        }
        let mut lines = vec![format!(
            "{:<20} {:>5}  longest unavailability",
            "fault", "times"
        )];
        for (fault, gap) in &self.after_fault {
            let times = match gap.times {
                0 => "-".to_owned(),
                times => times.to_string(),
            };
            let place = match gap.partition.is_empty() {
                true => String::new(),
                false => format!("  ({} from {:.1} s)", gap.partition, gap.began_seconds),
            };
            lines.push(format!(
                "{fault:<20} {times:>5}  {:>6.2} s{place}",
                gap.longest_seconds
            ));
        }
        lines
    }

    /// The longest gap of the run, in seconds.
    pub fn longest_gap_seconds(&self) -> f64 {
        let gaps = self.after_fault.values().map(|gap| gap.longest_seconds);
        gaps.fold(0.0, f64::max)
    }
}

/// The longest time in which no write to one partition was acknowledged although some were tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    pub longest_seconds: f64,
    /// The partition that it struck, and when it began, in seconds of the run.
    pub partition: String,
    pub began_seconds: f64,
    /// How often this fault took hold.
    pub times: u32,
}

/// How far the final read got, of the partitions that hold acknowledged writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FinalReads {
    pub partitions: u64,
    /// Read to the end by a fresh client.
    pub by_client: u64,
    /// Read to the end on as many nodes as there are replicas.
    pub by_every_replica: u64,
}

/// A stretch of time, `begin <= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub begin: Nanos,
    pub end: Nanos,
}

impl Span {
    fn lasts(self) -> Duration {
        Duration::from_nanos(self.end.since(self.begin).0)
    }

    fn meets(self, begin: Nanos, end: Nanos) -> bool {
        begin <= self.end && self.begin <= end
    }
}

/// Until when a fault is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Its cause is gone.
    End,
    /// Its consequences are: the cluster is whole again.
    Recovered,
}

/// Each fault with the time in which it held: its name, its span, its targets.
pub fn fault_spans(history: &History) -> Vec<(&FaultEvent, Span)> {
    spans(history, Until::End)
}

/// Each fault with the time in which clients could feel it: until the cluster was whole again.
/// While every node is without power nobody reads; the reads that matter are those of a cluster
/// that is coming back.
pub fn fault_windows(history: &History) -> Vec<(&FaultEvent, Span)> {
    spans(history, Until::Recovered)
}

fn spans(history: &History, until: Until) -> Vec<(&FaultEvent, Span)> {
    let end = history.end();
    let mut spans: Vec<(&FaultEvent, Span)> = Vec::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    let missed: BTreeSet<u64> = missed(history).map(|fault| fault.id).collect();
    for fault in &history.faults {
        match fault.phase {
            _ if missed.contains(&fault.id) => {}
            FaultPhase::Begin => {
                open.insert(fault.id, spans.len());
                let begin = fault.at;
                let span = Span {
                    begin,
                    end: end.max(begin),
                };
                spans.push((fault, span));
            }
            FaultPhase::Recovered | FaultPhase::Overtaken if until == Until::End => {}
            FaultPhase::End | FaultPhase::Recovered | FaultPhase::Overtaken => {
                if let Some(position) = open.get(&fault.id) {
                    let span = &mut spans[*position].1;
                    span.end = fault.at.max(span.begin);
                }
            }
            FaultPhase::Missed | FaultPhase::Refused => {}
        }
    }
    spans
}

/// Faults that met nothing: they did not happen.
fn missed(history: &History) -> impl Iterator<Item = &FaultEvent> {
    let faults = history.faults.iter();
    faults.filter(|fault| fault.phase == FaultPhase::Missed)
}

/// Takes over what was compared between stopped nodes.
fn logs_compared(history: &History, coverage: &mut Coverage) {
    let marks = history.marks.iter().rev();
    let mut compared = marks.filter(|mark| matches!(mark, Mark::LogsCompared { .. }));
    if let Some(Mark::LogsCompared {
        partitions,
        entries,
        controller_entries,
        offsets_entries,
        ..
    }) = compared.next()
    {
        coverage.logs_compared = *partitions;
        coverage.entries_compared = *entries;
        coverage.controller_entries_compared = *controller_entries;
        coverage.offsets_entries_compared = *offsets_entries;
    }
}

/// Of the time of load up to the heal, the share in which no fault was active.
fn quiet_share(history: &History) -> Option<f64> {
    let moment = |found: fn(&Mark) -> Option<Nanos>| history.marks.iter().find_map(found);
    let begin = moment(|mark| match mark {
        Mark::LoadBegin { at } => Some(*at),
        _ => None,
    })?;
    let end = history.healed()?;
    let active = merged(fault_spans(history).iter().map(|(_, span)| *span).collect());
    let all = end.since(begin).seconds();
    let loud = active.iter().map(|span| {
        let clipped = span.end.min(end).since(span.begin.max(begin));
        clipped.seconds()
    });
    (all > 0.0).then(|| (1.0 - loud.sum::<f64>() / all).max(0.0))
}

/// Overlapping spans made one, in order.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.begin);
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.begin <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

fn any_meets(merged: &[Span], begin: Nanos, end: Nanos) -> bool {
    let next = merged.partition_point(|span| span.end < begin);
    merged.get(next).is_some_and(|span| span.meets(begin, end))
}

/// Counts what a run has covered, and says what is missing.
pub fn measure(history: &History, finals: &FinalReads) -> Coverage {
    let plan = &history.header.plan;
    let minima = plan.minima;
    let spans = fault_windows(history);
    let active = merged(spans.iter().map(|(_, span)| *span).collect());
    let mut coverage = Coverage {
        minima,
        fault_seconds: active
            .iter()
            .fold(0.0, |sum, span| sum + span.end.since(span.begin).seconds()),
        partitions: finals.partitions,
        partitions_final_read: finals.by_client,
        partitions_compared: finals.by_every_replica,
        skipped: plan.skipped.clone(),
        quiet_share: quiet_share(history),
        ..Coverage::default()
    };
    logs_compared(history, &mut coverage);
    for (fault, _) in &spans {
        *coverage.faults.entry(fault.fault.clone()).or_default() += 1;
        if !fault.manner.is_empty() {
            let manners = coverage.manners.entry(fault.fault.clone()).or_default();
            *manners.entry(fault.manner.clone()).or_default() += 1;
        }
    }
    for (fault, span) in fault_spans(history) {
        let limit = FaultKind::named(&fault.fault).and_then(FaultKind::outlasts);
        if limit.is_some_and(|(limit, _)| span.lasts() > limit) {
            *coverage.long_holds.entry(fault.fault.clone()).or_default() += 1;
        }
    }
    for fault in missed(history) {
        *coverage.missed.entry(fault.fault.clone()).or_default() += 1;
    }
    let everything = plan.faults.is_empty();
    for op in &history.operations {
        let counts = op.is_ok() && (everything || any_meets(&active, op.invoked, op.end()));
        match op.call {
            Call::Send(_) if counts => coverage.writes_in_faults += 1,
            Call::Poll { .. } | Call::ReadAll { .. } if counts => {
                let seen = op.reads().iter().any(|read| !read.values.is_empty());
                coverage.reads_in_faults += u64::from(seen);
            }
            _ => {}
        }
    }
    coverage.group = measure_groups(history, |op| {
        everything || any_meets(&active, op.invoked, op.end())
    });
    coverage.missing = missing(history, &coverage);
    coverage
}

/// Counts what groups did; nothing if the run had none.
fn measure_groups(
    history: &History,
    is_in_fault: impl Fn(&Operation) -> bool,
) -> Option<GroupCoverage> {
    let mut coverage = GroupCoverage::default();
    let mut generations = BTreeSet::new();
    let mut epochs: BTreeMap<&Key, BTreeSet<i32>> = BTreeMap::new();
    let mut has_groups = history.header.plan.minima.group.is_some();
    for op in history.operations.iter().filter(|op| op.is_ok()) {
        match (&op.call, &op.outcome) {
            (Call::GroupJoin { .. }, _) => has_groups = true,
            (
                Call::GroupAssigned {
                    group,
                    generation: Some(generation),
                    ..
                },
                _,
            ) => {
                generations.insert((group.as_str(), *generation));
            }
            (Call::GroupCommit { .. }, _) => {
                coverage.commits += 1;
                coverage.commits_in_faults += u64::from(is_in_fault(op));
            }
            (Call::GroupDrain { .. }, _) => coverage.drained += 1,
            (Call::Leadership { key }, Outcome::Ok(Answer::Leadership { epoch, .. }))
                if &*key.topic == OFFSETS_TOPIC && *epoch >= 0 =>
            {
                epochs.entry(key).or_default().insert(*epoch);
            }
            _ => {}
        }
    }
    coverage.rebalances = generations.len() as u64;
    let changes = epochs.values().map(|seen| seen.len() as u64 - 1);
    coverage.coordinator_changes = changes.sum();
    has_groups.then_some(coverage)
}

fn missing(history: &History, coverage: &Coverage) -> Vec<String> {
    let minima = &coverage.minima;
    let plan = &history.header.plan;
    let mut missing = Vec::new();
    for asked in &plan.faults {
        let times = coverage.faults.get(asked).copied().unwrap_or(0);
        if times < minima.times_each_fault {
            let refused = history
                .faults
                .iter()
                .filter(|fault| fault.phase == FaultPhase::Refused && fault.fault == *asked)
                .count();
            let refused = match refused {
                0 => String::new(),
                count => format!(", {count} times in vain"),
            };
            let missed = match coverage.missed.get(asked) {
                None => String::new(),
                Some(count) => format!(", {count} times without meeting anything"),
            };
            let least = minima.times_each_fault;
            missing.push(format!("{asked} {times} of {least} times{refused}{missed}"));
        }
        let long = coverage.long_holds.get(asked).copied().unwrap_or(0);
        if let Some((limit, reason)) = FaultKind::named(asked).and_then(FaultKind::outlasts)
            && long < minima.long_holds
        {
            missing.push(format!(
                "{asked} held {long} of {} times for more than {} s, which is {reason}",
                minima.long_holds,
                limit.as_secs()
            ));
        }
        for manner in plan.manners.get(asked).into_iter().flatten() {
            if coverage.in_manner(asked, manner) == 0 {
                missing.push(format!("{asked} 0 of 1 times as \"{manner}\""));
            }
        }
    }
    let place = match plan.faults.is_empty() {
        true => "",
        false => " during faults",
    };
    for (name, seen, least) in [
        (
            "writes acknowledged",
            coverage.writes_in_faults,
            minima.writes_in_faults,
        ),
        (
            "reads with records",
            coverage.reads_in_faults,
            minima.reads_in_faults,
        ),
    ] {
        if seen < least {
            missing.push(format!("{seen} of {least} {name}{place}"));
        }
    }
    if let (Some(least), Some(seen)) = (&minima.group, &coverage.group) {
        for (name, seen, least) in [
            ("rebalances".to_owned(), seen.rebalances, least.rebalances),
            (
                format!("commits acknowledged{place}"),
                seen.commits_in_faults,
                least.commits_in_faults,
            ),
            (
                "coordinators that gave way".to_owned(),
                seen.coordinator_changes,
                least.coordinator_changes,
            ),
            (
                "partitions read to the end by a group".to_owned(),
                seen.drained,
                least.drained,
            ),
        ] {
            if seen < least {
                missing.push(format!("{seen} of {least} {name}"));
            }
        }
    }
    if minima.controller_compared && coverage.controller_entries_compared == 0 {
        missing.push("the controller's log was not compared between stopped nodes".to_owned());
    }
    if minima.offsets_compared && coverage.offsets_entries_compared == 0 {
        missing.push(format!(
            "no log of {OFFSETS_TOPIC} was compared between stopped nodes"
        ));
    }
    if minima.final_read {
        if let Some(seconds) = history.load_after_heal_seconds()
            && seconds < TRIED_SECONDS_MIN
        {
            missing.push(format!(
                "clients wrote for {seconds:.0} of {TRIED_SECONDS_MIN:.0} s after the heal: whether \
                 partitions are stuck was not judged"
            ));
        }
        let partitions = coverage.partitions;
        if partitions == 0 {
            missing.push("no partition with acknowledged writes was left to read".to_owned());
        }
        for (by, read) in [
            ("by a fresh client", coverage.partitions_final_read),
            ("on every replica", coverage.partitions_compared),
        ] {
            if read < partitions {
                missing.push(format!(
                    "{read} of {partitions} partitions read to the end {by}"
                ));
            }
        }
    }
    missing
}

/// For how long after its end a fault is blamed for what clients had to wait, if no other begins.
const BLAMED_SECONDS: f64 = 10.0;
/// The name under which gaps without a fault are kept.
const NO_FAULT: &str = "none";

/// The time in which waits are this fault's: with some time after it, but not into the next fault.
fn blamed(span: &Span, all: &[(&FaultEvent, Span)]) -> Span {
    let next = all
        .iter()
        .map(|(_, other)| other.begin)
        .filter(|begin| *begin >= span.end)
        .min();
    let after = Nanos(span.end.0 + Nanos::from_seconds(BLAMED_SECONDS).0);
    Span {
        begin: span.begin,
        end: next.map_or(after, |next| next.min(after)),
    }
}

/// One wait of a partition's writers.
struct Wait {
    begin: Nanos,
    end: Nanos,
}

/// How long clients had to wait, after which fault.
pub fn availability(history: &History) -> Availability {
    let spans = fault_windows(history);
    let active = merged(spans.iter().map(|(_, span)| *span).collect());
    let blamed_spans: Vec<(&str, Span)> = spans
        .iter()
        .map(|(fault, span)| (fault.fault.as_str(), blamed(span, &spans)))
        .collect();
    let all_blamed = merged(blamed_spans.iter().map(|(_, span)| *span).collect());
    let mut availability = Availability::default();
    for (fault, _) in &blamed_spans {
        let gap = availability.after_fault.entry((*fault).to_owned());
        gap.or_default().times += 1;
    }
    for (key, waits) in waits(history) {
        let mut blame = |fault: &str, wait: &Wait| {
            let seconds = wait.end.since(wait.begin).seconds();
            let gap = availability
                .after_fault
                .entry(fault.to_owned())
                .or_default();
            if seconds > gap.longest_seconds {
                gap.longest_seconds = seconds;
                gap.partition = key.to_string();
                gap.began_seconds = wait.begin.seconds();
            }
        };
        for (fault, span) in &blamed_spans {
            let first = waits.partition_point(|wait| wait.end <= span.begin);
            let meeting = waits[first..]
                .iter()
                .take_while(|wait| wait.begin < span.end);
            for wait in meeting {
                blame(fault, wait);
            }
        }
        let quiet = waits
            .iter()
            .filter(|wait| !any_meets(&all_blamed, wait.begin, wait.end));
        for wait in quiet {
            blame(NO_FAULT, wait);
        }
    }
    let mut shares = [(0u64, 0u64); 2];
    for op in &history.operations {
        if matches!(
            op.call,
            Call::Send(_) | Call::Poll { .. } | Call::ReadAll { .. }
        ) {
            let (ok, all) = &mut shares[usize::from(any_meets(&active, op.invoked, op.end()))];
            *ok += u64::from(op.is_ok());
            *all += 1;
        }
    }
    let share = |(ok, all): (u64, u64)| (all > 0).then(|| ok as f64 / all as f64);
    availability.ok_share_outside = share(shares[0]);
    availability.ok_share_in_faults = share(shares[1]);
    availability
}

/// By partition: every stretch in which writes were under way and none was acknowledged, in order.
fn waits(history: &History) -> BTreeMap<&Key, Vec<Wait>> {
    /// A send: when it ended, when it began, whether it was acknowledged.
    type Try = (Nanos, Nanos, bool);
    let mut tries: HashMap<&Key, Vec<Try>> = HashMap::new();
    let load_end = history.marks.iter().rev().find_map(|mark| match mark {
        Mark::LoadEnd { at } => Some(*at),
        _ => None,
    });
    let horizon = load_end.unwrap_or_else(|| history.end());
    for op in &history.operations {
        let Call::Send(send) = &op.call else { continue };
        let end = op.completed.unwrap_or(horizon).max(op.invoked);
        let entry = (end, op.invoked, op.is_ok());
        tries.entry(&send.key).or_default().push(entry);
    }
    let mut waits = BTreeMap::new();
    for (key, mut tries) in tries {
        tries.sort_unstable();
        // From each try on, the earliest beginning of those that end there or later.
        let mut earliest = vec![Nanos(u64::MAX); tries.len() + 1];
        for (position, (_, begin, _)) in tries.iter().enumerate().rev() {
            earliest[position] = earliest[position + 1].min(*begin);
        }
        let mut found = Vec::new();
        // Where the present wait's tries begin, and when the last acknowledgement was.
        let (mut first, mut acked) = (0, Nanos(0));
        for (position, (end, _, ok)) in tries.iter().enumerate() {
            if *ok || position + 1 == tries.len() {
                let begin = acked.max(earliest[first]).min(*end);
                found.push(Wait { begin, end: *end });
                (first, acked) = (position + 1, *end);
            }
        }
        waits.insert(key, found);
    }
    waits
}
