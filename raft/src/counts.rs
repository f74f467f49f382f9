//! What one shard's Raft counts: plain cells, copied when somebody asks.

use std::cell::Cell;
use std::time::Duration;

/// Upper bounds of [`RaftMetrics::commit_buckets`](crate::RaftMetrics::commit_buckets) in
/// microseconds, but for the last: three to a decade, from a memory's round to a stalled disk.
pub const COMMIT_BUCKET_MICROS: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];

/// One bucket for each bound, and one for what is slower.
pub(crate) const COMMIT_BUCKETS: usize = COMMIT_BUCKET_MICROS.len() + 1;

/// A shard's counters.
///
/// Law: every applied proposal is in exactly one bucket.
#[derive(Default)]
pub(crate) struct Counts {
    commit_micros: Cell<u64>,
    commit_buckets: [Cell<u64>; COMMIT_BUCKETS],
    /// Frames of beats that were handed to a connection.
    pub(crate) beat_frames: Cell<u64>,
    /// Requests that named a replica that is not here (law 7).
    pub(crate) misdirected: Cell<u64>,
    /// Times that a replica here took the lead although most of its group had lost log (law 8).
    pub(crate) possible_losses: Cell<u64>,
    /// Append streams that could not begin: the peer cannot be reached.
    pub(crate) streams_refused: Cell<u64>,
}

impl Counts {
    /// A proposal is applied, this long after it was made.
    pub(crate) fn committed(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = COMMIT_BUCKET_MICROS.partition_point(|bound| *bound < micros);
        Counts::add(&self.commit_buckets[bucket], 1);
        Counts::add(&self.commit_micros, micros);
    }

    /// Microseconds of all applied proposals, and how many there were by bucket.
    pub(crate) fn commits(&self) -> (u64, [u64; COMMIT_BUCKETS]) {
        let buckets = std::array::from_fn(|bucket| self.commit_buckets[bucket].get());
        (self.commit_micros.get(), buckets)
    }

    pub(crate) fn add(counter: &Cell<u64>, by: u64) {
        counter.set(counter.get().wrapping_add(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_lands_in_the_first_bucket_that_holds_it() {
        let counts = Counts::default();
        for micros in [0, 50, 51, 10_000_000, 10_000_001] {
            counts.committed(Duration::from_micros(micros));
        }
        let (micros, buckets) = counts.commits();
        assert_eq!(micros, 20_000_102);
        assert_eq!((buckets[0], buckets[1]), (2, 1));
        assert_eq!((buckets[15], buckets[16]), (1, 1));
        assert_eq!(buckets.iter().sum::<u64>(), 5);
    }
}
