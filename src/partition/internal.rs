//! Appends of the node's own to an internal topic: a decision made in one term is written in that
//! term or not at all.

use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{Batch, Term};

use super::produce::{ProduceTicket, ready};
use super::{Acks, Partition, ProduceSpec};

/// Longer than any leadership without a majority lasts: what ends the wait is the batch's fate.
const FATE_WAIT_MAX: Duration = Duration::from_hours(24);

impl Partition {
    /// The term in which this replica leads and may serve; `None` where it does not lead (or not
    /// yet: see [`Partition::is_leader`]).
    pub fn serving_term(&self) -> Option<Term> {
        let view = self.replica.view();
        matches!(self.leading(&view), Ok(true)).then_some(view.term)
    }

    /// Whether this replica leads, though it may not have applied its own first entry yet.
    pub fn is_leader(&self) -> bool {
        self.leading(&self.replica.view()).is_ok()
    }

    /// Appends a batch of the node's own with `acks=all`. It takes its place in the log's order
    /// before this returns; a replica that does not lead in `term` any more refuses.
    ///
    /// The answer comes when the batch's fate is known, and not before: it is applied, or this
    /// replica's leadership of `term` is over.
    pub fn append_in_term(self: &Rc<Self>, batch: Batch, term: Term) -> ProduceTicket {
        let view = self.replica.view();
        if !matches!(self.leading(&view), Ok(true)) || view.term != term {
            return ready(Err(self.not_leader(&view)));
        }
        if let Err(error) = self.check_in_sync(&view, Acks::All) {
            return ready(Err(error));
        }
        self.in_flight.borrow_mut().enter(term);
        let spec = ProduceSpec {
            batch,
            acks: Acks::All,
            deadline: self.env.now() + FATE_WAIT_MAX,
        };
        self.append(term, None, spec, -1)
    }
}
