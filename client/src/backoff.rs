//! How long to wait before trying again.

use std::time::Duration;

use corduroy_env::Env;

/// Exponential backoff with jitter, as Kafka's clients do it (KIP-144, KIP-580): the n-th wait is
/// `first * 2^n`, at most `max`, spread by 20 % so that clients do not come back in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

/// The spread: waits lie within this many percent of the exponential value.
const JITTER_PERCENT: u64 = 20;

impl Backoff {
    /// The wait after `failures` failed tries in a row (1 = the first one failed).
    pub(crate) fn wait(&self, failures: u32, env: &Env) -> Duration {
        self.wait_with(failures, env.random_below(2 * JITTER_PERCENT + 1))
    }

    /// The same for a caller that has no machine at hand: `percent` (0 to 99) places the wait within
    /// the spread.
    pub(crate) fn wait_by(&self, failures: u32, percent: u64) -> Duration {
        self.wait_with(failures, percent % 100 * 2 * JITTER_PERCENT / 100)
    }

    /// `spread` lies in `0..=2 * JITTER_PERCENT`.
    fn wait_with(&self, failures: u32, spread: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let exact = self
            .first
            .saturating_mul(1 << doublings)
            .min(self.max.max(self.first));
        let micros = u64::try_from(exact.as_micros()).unwrap_or(u64::MAX);
        let percent = 100 - JITTER_PERCENT + spread;
        Duration::from_micros(micros.saturating_mul(percent) / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_the_maximum_within_the_spread() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_millis(1000),
        };
        let table = [
            (1, 100),
            (2, 200),
            (3, 400),
            (4, 800),
            (5, 1000),
            (60, 1000),
        ];
        for (failures, millis) in table {
            assert_eq!(
                backoff.wait_with(failures, 20),
                Duration::from_millis(millis)
            );
            assert_eq!(
                backoff.wait_with(failures, 0),
                Duration::from_millis(millis * 8 / 10)
            );
            assert_eq!(
                backoff.wait_with(failures, 40),
                Duration::from_millis(millis * 12 / 10)
            );
        }
    }

    #[test]
    fn a_maximum_below_the_first_wait_is_ignored() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_millis(1),
        };
        assert_eq!(backoff.wait_with(3, 20), Duration::from_millis(100));
    }
}
