//! Latency counts in fixed buckets, as Prometheus wants them: cheap to record, add and print.

use std::time::Duration;

use serde::Serialize;

/// Upper bounds of the buckets in seconds; one more bucket takes what is slower. From 50 us (a
/// fast append) to 10 s (a stalled disk), three to a decade.
pub const BUCKET_BOUNDS_SECONDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 10.0,
];

const BUCKETS: usize = BUCKET_BOUNDS_SECONDS.len() + 1;

/// How often something took how long.
///
/// Law: `count()` is the sum over the buckets; each recording is in exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum_seconds: f64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Counts `times` occurrences of one duration.
    pub fn record_many(&mut self, duration: Duration, times: u64) {
        let seconds = duration.as_secs_f64();
        self.counts[bucket(seconds)] += times;
        self.sum_seconds += seconds * times as f64;
    }

    /// Takes over counts that somebody else kept in buckets of his own: `counts[i]` durations of
    /// at most `bounds_seconds[i]`, and one last count for what is slower. Each lands in the first
    /// bucket here whose bound is not below its own, so that no duration looks faster than it was.
    pub fn from_buckets(bounds_seconds: &[f64], counts: &[u64], sum_seconds: f64) -> Histogram {
        let mut histogram = Histogram {
            sum_seconds,
            ..Histogram::default()
        };
        for (index, &count) in counts.iter().enumerate() {
            let bound = bounds_seconds.get(index).copied().unwrap_or(f64::INFINITY);
            histogram.counts[bucket(bound)] += count;
        }
        histogram
    }

    /// Adds another shard's counts.
    pub fn merge(&mut self, other: &Histogram) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            *to += from;
        }
        self.sum_seconds += other.sum_seconds;
    }

    /// How many durations were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }

    /// `(upper bound in seconds, durations up to it)`, ascending, ending with infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = BUCKET_BOUNDS_SECONDS.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }
}

fn bucket(seconds: f64) -> usize {
    BUCKET_BOUNDS_SECONDS.partition_point(|&bound| bound < seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lands_in_the_first_bucket_that_holds_it() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::from_micros(50));
        histogram.record(Duration::from_micros(51));
        histogram.record_many(Duration::from_secs(60), 2);
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative[0], (0.000_05, 1));
        assert_eq!(cumulative[1], (0.000_1, 2));
        assert_eq!(cumulative[15], (10.0, 2));
        assert_eq!(cumulative[16], (f64::INFINITY, 4));
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum_seconds() - 120.000_101).abs() < 1e-9);
    }

    #[test]
    fn foreign_buckets_never_look_faster() {
        let histogram = Histogram::from_buckets(&[0.000_06, 0.01], &[3, 2, 1], 5.0);
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative[0], (0.000_05, 0));
        assert_eq!(cumulative[1], (0.000_1, 3));
        assert_eq!(cumulative[7], (0.01, 5));
        assert_eq!(cumulative[16], (f64::INFINITY, 6));
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut left, mut right, mut both) = Default::default();
        for (micros, is_left) in [(10, true), (3_000, false), (7_000_000, true)] {
            let duration = Duration::from_micros(micros);
            let side: &mut Histogram = if is_left { &mut left } else { &mut right };
            side.record(duration);
            Histogram::record(&mut both, duration);
        }
        left.merge(&right);
        assert_eq!(left.counts, both.counts);
    }
}
