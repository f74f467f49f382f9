//! How busy a shard's thread is: the share of time that it spends on a CPU.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The shortest interval that a share is taken over; asked again sooner, the last share holds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The CPU time of the thread that made it, set against the clock on the wall.
///
/// Law: made and read on the same thread.
pub struct BusyMeter {
    at: Cell<Instant>,
    cpu: Cell<Duration>,
    ratio: Cell<f64>,
}

impl BusyMeter {
    /// Starts to count on this thread.
    pub fn new(now: Instant) -> BusyMeter {
        BusyMeter {
            at: Cell::new(now),
            cpu: Cell::new(thread_cpu_time()),
            ratio: Cell::new(0.0),
        }
    }

    /// The share since the last look that is a second old or more, from 0 to 1.
    pub fn ratio(&self, now: Instant) -> f64 {
        self.look(now, thread_cpu_time())
    }

    fn look(&self, now: Instant, cpu: Duration) -> f64 {
        let elapsed = now.saturating_duration_since(self.at.get());
        if elapsed >= INTERVAL_MIN {
            let busy = cpu.saturating_sub(self.cpu.get());
            let ratio = busy.as_secs_f64() / elapsed.as_secs_f64();
            self.ratio.set(ratio.clamp(0.0, 1.0));
            self.at.set(now);
            self.cpu.set(cpu);
        }
        self.ratio.get()
    }
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_since_the_last_look() {
        let start = corduroy_env::Env::real().now();
        let meter = BusyMeter::new(start);
        meter.cpu.set(Duration::ZERO);
        let looks = [
            // (seconds, CPU milliseconds, share)
            (0.5, 500, 0.0),
            (2.0, 500, 0.25),
            (2.5, 1_000, 0.25),
            (4.0, 2_500, 1.0),
            (8.0, 2_500, 0.0),
        ];
        for (seconds, cpu_ms, want) in looks {
            let now = start + Duration::from_secs_f64(seconds);
            let got = meter.look(now, Duration::from_millis(cpu_ms));
            assert!((got - want).abs() < 1e-9, "after {seconds} s: {got}");
        }
    }

    #[test]
    fn work_of_this_thread_shows() {
        let before = thread_cpu_time();
        let mut sum = 0u64;
        while thread_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
