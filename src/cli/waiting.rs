//! Tells whoever waits at a terminal why nothing happens.
//!
//! The client tries again for as long as its time-outs allow, up to two minutes, and says so in its
//! log alone (level debug). This layer of the log turns what it says into one line a cause on
//! standard error, once somebody has waited for a while.

#![expect(
    clippy::disallowed_types,
    reason = "a layer of the log is shared by all threads of the process, and says little"
)]

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use corduroy_env::Env;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;

use super::output::clean;

/// A person has waited this long before a line is printed: failovers are over by then.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// Tries that are further apart than this have nothing to do with each other.
const LULL_MIN: Duration = Duration::from_secs(8);
/// Causes that are printed; whoever has read so many needs no more.
const CAUSES_MAX: usize = 8;

/// What the client says when it tries again: its events of level debug or above with an `error`.
pub(super) fn filter() -> Targets {
    Targets::new().with_target("corduroy_client", Level::DEBUG)
}

/// The layer. It prints to standard error.
pub(super) struct RetryNotice {
    env: Env,
    waiting: Mutex<Waiting>,
}

impl RetryNotice {
    pub(super) fn new(env: Env) -> RetryNotice {
        RetryNotice {
            env,
            waiting: Mutex::default(),
        }
    }
}

impl<S: Subscriber> Layer<S> for RetryNotice {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut cause = Cause(None);
        event.record(&mut cause);
        let Cause(Some(cause)) = cause else { return };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(notice) = waiting.note(self.env.now(), cause) {
            eprintln!("{notice}");
        }
    }
}

/// The `error` of an event.
struct Cause(Option<String>);

impl Visit for Cause {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "error" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

/// Since when somebody has been waiting, and what has been said about it.
#[derive(Default)]
struct Waiting {
    since: Option<Instant>,
    last: Option<Instant>,
    told: Vec<String>,
}

impl Waiting {
    /// Takes a failed try; the line to print, if it is time for one.
    fn note(&mut self, now: Instant, cause: String) -> Option<String> {
        let goes_on = self
            .last
            .replace(now)
            .is_some_and(|last| now.saturating_duration_since(last) < LULL_MIN);
        if !goes_on {
            self.since = Some(now);
        }
        let waited = now.saturating_duration_since(self.since?);
        if waited < NOTICE_AFTER || self.told.len() >= CAUSES_MAX || self.told.contains(&cause) {
            return None;
        }
        let notice = format!("still trying: {} (Ctrl-C to stop)", clean(&cause));
        self.told.push(cause);
        Some(notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_after_a_while() {
        let mut waiting = Waiting::default();
        let start = Env::real().now();
        let mut told = Vec::new();
        for tenths in 0..100 {
            let cause = if tenths < 50 {
                "no leader"
            } else {
                "no answer"
            };
            let now = start + Duration::from_millis(tenths * 100);
            told.extend(
                waiting
                    .note(now, cause.to_owned())
                    .map(|line| (tenths, line)),
            );
        }
        let line = |cause| format!("still trying: {cause} (Ctrl-C to stop)");
        assert_eq!(told, [(20, line("no leader")), (50, line("no answer"))]);
    }

    #[test]
    fn what_is_over_soon_is_not_told() {
        let mut waiting = Waiting::default();
        let start = Env::real().now();
        for minute in 0..10 {
            for tenths in 0..20 {
                let now = start + Duration::from_millis(minute * 60_000 + tenths * 100);
                assert_eq!(waiting.note(now, "a failover".to_owned()), None);
            }
        }
    }
}
