//! Appends of the node's own to an internal topic: a decision made in one term is written in that
//! term or not at all.

use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{Batch, Term};

use super::produce::{ProduceTicket, Produced, ready};
use super::{Acks, Partition};

/// How long a batch that is applied may wait for more copies than a majority, where
/// `min.insync.replicas` asks for them.
const COPIES_WAIT_MAX: Duration = Duration::from_secs(5);

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
    /// replica's leadership of `term` is over. (NOT_ENOUGH_REPLICAS_AFTER_APPEND: it is applied.)
    pub fn append_in_term(self: &Rc<Self>, batch: Batch, term: Term) -> ProduceTicket {
        let view = self.replica.view();
        if !matches!(self.leading(&view), Ok(true)) || view.term != term {
            return ready(Err(self.not_leader(&view)));
        }
        if let Err(error) = self.check_in_sync(&view, Acks::All) {
            return ready(Err(error));
        }
        self.in_flight.borrow_mut().enter(term);
        let pending = self.propose(term, None, batch);
        let partition = self.clone();
        Box::pin(async move {
            let head = partition.wait_for(&pending, Acks::All).await?;
            let copies_by = partition.env.now() + COPIES_WAIT_MAX;
            partition.wait_for_copies(head.index, copies_by).await?;
            Ok(Produced {
                base_offset: head.base_offset,
                log_append_time_ms: -1,
                log_start: partition.machine.borrow().log_start(),
            })
        })
    }
}
