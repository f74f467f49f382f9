//! Instants of tokio's clock, so that a paused runtime owns them.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

/// A point on the shard's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardInstant(tokio::time::Instant);

impl ShardInstant {
    /// The instant as tokio knows it.
    pub(crate) fn tokio(self) -> tokio::time::Instant {
        self.0
    }
}

impl openraft_rt::Instant for ShardInstant {
    fn now() -> Self {
        ShardInstant(tokio::time::Instant::now())
    }
}

impl Add<Duration> for ShardInstant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        ShardInstant(self.0 + span)
    }
}

impl AddAssign<Duration> for ShardInstant {
    fn add_assign(&mut self, span: Duration) {
        self.0 += span;
    }
}

impl Sub<Duration> for ShardInstant {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        ShardInstant(self.0.checked_sub(span).unwrap_or(self.0))
    }
}

impl Sub<ShardInstant> for ShardInstant {
    type Output = Duration;

    fn sub(self, earlier: ShardInstant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl SubAssign<Duration> for ShardInstant {
    fn sub_assign(&mut self, span: Duration) {
        *self = *self - span;
    }
}
