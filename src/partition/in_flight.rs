//! What the leader has proposed and not yet seen applied: the overlay over the producer table.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;

use corduroy_record::{ProducerEpoch, ProducerId, Term};

use super::pending::Pending;
use super::producers::BatchIdentity;

/// Batches in flight of one term.
///
/// Law: dies with the term (safety law 14). The applied table is the truth; this only says what
/// may follow what has not been applied yet.
#[derive(Default)]
pub struct InFlight {
    term: Term,
    producers: HashMap<ProducerId, VecDeque<Rc<Pending>>>,
    bytes: usize,
}

impl InFlight {
    /// Forgets everything of another term.
    pub fn enter(&mut self, term: Term) {
        if self.term != term {
            *self = InFlight {
                term,
                ..InFlight::default()
            };
        }
    }

    /// Bytes in flight.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Epoch and sequence of the last record in flight of a producer.
    pub fn last(&self, id: ProducerId) -> Option<(ProducerEpoch, i32)> {
        let identity = self.producers.get(&id)?.back()?.identity?;
        Some((identity.epoch, identity.last_sequence))
    }

    /// The batch in flight with exactly this identity: a retry on another connection.
    pub fn find(&self, identity: &BatchIdentity) -> Option<Rc<Pending>> {
        self.producers
            .get(&identity.producer_id)?
            .iter()
            .find(|p| p.identity.as_ref() == Some(identity))
            .cloned()
    }

    /// Takes in a batch that is about to be proposed in `term`.
    pub fn insert(&mut self, term: Term, pending: &Rc<Pending>) {
        assert_eq!(
            self.term, term,
            "law: the overlay holds batches of one term"
        );
        self.bytes += pending.size_bytes;
        if let Some(identity) = &pending.identity {
            self.producers
                .entry(identity.producer_id)
                .or_default()
                .push_back(pending.clone());
        }
    }

    /// Lets go of a batch that has come to its end.
    pub fn remove(&mut self, term: Term, pending: &Rc<Pending>) {
        if self.term != term {
            return;
        }
        self.bytes = self.bytes.saturating_sub(pending.size_bytes);
        let Some(identity) = &pending.identity else {
            return;
        };
        if let Some(queue) = self.producers.get_mut(&identity.producer_id) {
            queue.retain(|p| !Rc::ptr_eq(p, pending));
            if queue.is_empty() {
                self.producers.remove(&identity.producer_id);
            }
        }
    }
}
