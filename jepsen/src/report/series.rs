//! A run over time: what the plots show.

use std::collections::HashMap;

use crate::history::{Answer, Call, History, Key, Nanos, Outcome, Value};

/// Points of a plot, at most; more would only make the file large.
const POINTS_MAX: usize = 3_000;
/// Stretches that a run is divided into.
const BUCKETS: f64 = 240.0;
const BUCKET_SECONDS_MIN: f64 = 0.25;

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Ok,
    Failed,
    Unknown,
}

/// One write: when it ended, how long it took, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub at: f64,
    pub seconds: f64,
    pub end: End,
}

/// Everything that is plotted. A bucket `i` is from `i * width` to `(i + 1) * width` seconds.
#[derive(Debug, Default)]
pub struct Series {
    pub width: f64,
    pub seconds: f64,
    pub points: Vec<Point>,
    /// Median and 99th percentile of acknowledged writes, in seconds.
    pub p50: Vec<Option<f64>>,
    pub p99: Vec<Option<f64>>,
    /// Of the whole run: 50th, 90th, 99th, 99.9th percentile and the longest, in seconds.
    pub quantiles: Vec<(&'static str, f64)>,
    /// Per second.
    pub acked: Vec<f64>,
    pub refused: Vec<f64>,
    pub read: Vec<f64>,
    /// Acknowledged values that nobody had read at the bucket's end.
    pub unseen: Vec<f64>,
    /// The most records that a poll in this bucket was behind what was known.
    pub lag: Vec<Option<f64>>,
}

impl Series {
    pub fn of(history: &History) -> Series {
        let seconds = history.end().seconds().max(BUCKET_SECONDS_MIN);
        let width = (seconds / BUCKETS).max(BUCKET_SECONDS_MIN);
        let buckets = (seconds / width).ceil() as usize + 1;
        let mut series = Series {
            width,
            seconds,
            ..Series::default()
        };
        series.latencies(history, buckets);
        series.rates(history, buckets);
        series.unseen(history, buckets);
        series.lag(history, buckets);
        series
    }

    fn bucket(&self, at: Nanos) -> usize {
        (at.seconds() / self.width) as usize
    }

    fn latencies(&mut self, history: &History, buckets: usize) {
        let mut all = Vec::new();
        let mut by_bucket: Vec<Vec<f64>> = vec![Vec::new(); buckets];
        for op in &history.operations {
            let (Call::Send(_), Some(completed)) = (&op.call, op.completed) else {
                continue;
            };
            let point = Point {
                at: completed.seconds(),
                seconds: completed.since(op.invoked).seconds(),
                end: match op.outcome {
                    Outcome::Ok(_) => End::Ok,
                    Outcome::Fail { .. } => End::Failed,
                    Outcome::Unknown { .. } => End::Unknown,
                },
            };
            if point.end == End::Ok {
                by_bucket[self.bucket(completed)].push(point.seconds);
            }
            all.push(point);
        }
        let quantile = |sorted: &[f64], share: f64| {
            let last = sorted.len().checked_sub(1)?;
            sorted.get((last as f64 * share).round() as usize).copied()
        };
        for bucket in &mut by_bucket {
            bucket.sort_unstable_by(f64::total_cmp);
            self.p50.push(quantile(bucket, 0.5));
            self.p99.push(quantile(bucket, 0.99));
        }
        let mut acked: Vec<f64> = by_bucket.into_iter().flatten().collect();
        acked.sort_unstable_by(f64::total_cmp);
        for (name, share) in [
            ("p50", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("longest", 1.0),
        ] {
            self.quantiles
                .extend(quantile(&acked, share).map(|seconds| (name, seconds)));
        }
        self.points = thinned(all);
    }

    fn rates(&mut self, history: &History, buckets: usize) {
        (self.acked, self.refused, self.read) =
            (vec![0.0; buckets], vec![0.0; buckets], vec![0.0; buckets]);
        for op in &history.operations {
            let Some(completed) = op.completed else {
                continue;
            };
            let bucket = self.bucket(completed);
            match (&op.call, op.is_ok()) {
                (Call::Send(_), true) => self.acked[bucket] += 1.0 / self.width,
                (Call::Send(_), false) => self.refused[bucket] += 1.0 / self.width,
                (Call::Poll { .. } | Call::ReadAll { .. }, true) => {
                    let values: usize = op.reads().iter().map(|read| read.values.len()).sum();
                    self.read[bucket] += values as f64 / self.width;
                }
                _ => {}
            }
        }
    }

    fn unseen(&mut self, history: &History, buckets: usize) {
        let mut first_read: HashMap<Value, Nanos> = HashMap::new();
        for op in &history.operations {
            for read in op.reads() {
                for (_, value) in &read.values {
                    let at = first_read.entry(*value).or_insert(op.end());
                    *at = op.end().min(*at);
                }
            }
        }
        let mut change = vec![0i64; buckets + 1];
        for op in &history.operations {
            let (Call::Send(send), true) = (&op.call, op.is_ok()) else {
                continue;
            };
            let acked = op.end();
            change[self.bucket(acked).min(buckets)] += 1;
            if let Some(read) = first_read.get(&send.value) {
                change[self.bucket(acked.max(*read)).min(buckets)] -= 1;
            }
        }
        let mut unseen = 0;
        for bucket in &change[..buckets] {
            unseen += bucket;
            self.unseen.push(unseen as f64);
        }
    }

    fn lag(&mut self, history: &History, buckets: usize) {
        self.lag = vec![None; buckets];
        let mut order: Vec<usize> = (0..history.operations.len()).collect();
        order.sort_by_key(|position| history.operations[*position].end());
        let mut ends: HashMap<&Key, i64> = HashMap::new();
        for op in order.into_iter().map(|at| &history.operations[at]) {
            if let (Call::Send(send), Outcome::Ok(Answer::Sent { offset: Some(at) })) =
                (&op.call, &op.outcome)
            {
                let end = ends.entry(&send.key).or_default();
                *end = (at + 1).max(*end);
            }
            if !matches!(op.call, Call::Poll { .. }) {
                continue;
            }
            let bucket = self.bucket(op.end());
            for read in op.reads() {
                let known = ends.entry(&read.key).or_default();
                *known = read.next.max(*known);
                let behind = (*known - read.next) as f64;
                let most = &mut self.lag[bucket];
                *most = Some(most.unwrap_or(0.0).max(behind));
            }
        }
    }
}

/// Few enough points to draw: those that took longest of each stretch, and every one that was not
/// acknowledged, as far as there is room.
fn thinned(points: Vec<Point>) -> Vec<Point> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let stride = points.len().div_ceil(POINTS_MAX / 2);
    let mut kept = Vec::with_capacity(POINTS_MAX);
    let mut others = 0;
    for stretch in points.chunks(stride) {
        let longest = stretch
            .iter()
            .filter(|point| point.end == End::Ok)
            .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        kept.extend(longest);
        for point in stretch.iter().filter(|point| point.end != End::Ok) {
            if others < POINTS_MAX / 2 {
                others += 1;
                kept.push(*point);
            }
        }
    }
    kept
}
