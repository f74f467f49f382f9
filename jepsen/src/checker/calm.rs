//! The times in which nothing disturbs the cluster: what it owes to clients within seconds is judged
//! there alone.

use crate::coverage::{Span, fault_windows};
use crate::history::{History, Mark, Nanos};

/// For so long nothing may have disturbed the cluster before it is late: an election and the
/// clients' own back-off fit in several times over.
pub const CALM_SECONDS: f64 = 10.0;

/// When faults held or were still felt, and when the harness did not get the processor.
pub struct Calm {
    /// Merged, in order.
    disturbed: Vec<Span>,
}

impl Calm {
    pub fn of(history: &History) -> Calm {
        let faults = fault_windows(history).into_iter().map(|(_, span)| span);
        let starved = history.marks.iter().filter_map(|mark| match mark {
            Mark::Starved { from, until } => Some(Span {
                begin: *from,
                end: *until,
            }),
            _ => None,
        });
        let mut all: Vec<Span> = faults.chain(starved).collect();
        all.sort_unstable_by_key(|span| span.begin);
        let mut disturbed: Vec<Span> = Vec::with_capacity(all.len());
        for span in all {
            match disturbed.last_mut() {
                Some(last) if span.begin <= last.end => last.end = last.end.max(span.end),
                _ => disturbed.push(span),
            }
        }
        Calm { disturbed }
    }

    /// The moment since which what is asked at `at` has had its time; `None` if there was a
    /// disturbance since then and up to `end`.
    pub fn since(&self, at: Nanos, end: Nanos) -> Option<Nanos> {
        let since = Nanos(at.0.checked_sub(Nanos::from_seconds(CALM_SECONDS).0)?);
        let next = self.disturbed.partition_point(|span| span.end < since);
        let is_calm = self.disturbed.get(next).is_none_or(|span| span.begin > end);
        is_calm.then_some(since)
    }
}
