//! The parts of a log keep their order: its start is at most one past what is applied, and nothing
//! durable, committed or applied lies beyond its end (law 6).

use corduroy_raft::Role;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct LogInBounds;

impl Invariant for LogInBounds {
    fn name(&self) -> &'static str {
        "log_in_bounds"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            if replica.view.role == Role::Stopped {
                continue;
            }
            let log = &replica.log;
            let last = log.last.map(|(_, index)| index);
            let start = log.log_start.index;
            let applied = replica.view.applied;
            let fault = if last.is_some_and(|last| last.next() < start) {
                "its end lies before its start"
            } else if log.durable_last > last {
                "more is durable than there is"
            } else if log.committed.is_some_and(|(_, index)| Some(index) > last) {
                "its committed entry lies beyond its end"
            } else if last.is_some_and(|last| applied > last) {
                "more is applied than there is"
            } else if start > applied.next() {
                "it starts past what is applied"
            } else {
                continue;
            };
            return Err(format!(
                "the log of {group} on node {host}: {fault}; {log:?}, applied {applied}"
            ));
        }
        Ok(())
    }
}
