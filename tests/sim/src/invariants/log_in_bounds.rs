//! The parts of a log keep their order: its start is at most one past what is applied, and nothing
//! durable, committed or applied lies beyond its end (law 6).

use std::collections::BTreeMap;

use corduroy_raft::Role;
use corduroy_record::GroupId;

use crate::network::Host;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct LogInBounds {
    cut_since: BTreeMap<(Host, GroupId), u64>,
}

/// How long a cut may take to be durable; until then, what it cuts off counts as durable.
const CUT_MILLIS_MAX: u64 = 5_000;

impl LogInBounds {
    fn is_late(&mut self, now: u64, log: (Host, GroupId), cut: bool) -> bool {
        if !cut {
            self.cut_since.remove(&log);
            return false;
        }
        let since = *self.cut_since.entry(log).or_insert(now);
        now - since > CUT_MILLIS_MAX
    }
}

impl Invariant for LogInBounds {
    fn name(&self) -> &'static str {
        "log_in_bounds"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            // What a full disk did not take, or damage cost, is out of the log before its replica
            // begins anew.
            if replica.view.role == Role::Stopped || moment.seen.may_begin_anew(host) {
                continue;
            }
            let log = &replica.log;
            let last = log.last.map(|(_, index)| index);
            let start = log.log_start.index;
            let applied = replica.view.applied;
            let fault = if last.is_some_and(|last| last.next() < start) {
                "its end lies before its start"
            } else if self.is_late(
                moment.seen.at_millis,
                (host, group),
                log.durable_last > last,
            ) {
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
