//! Who leaves gives its vote back first. Law: no node is removed while its replica of the controller
//! votes. A removed node ends by itself, and a voter that has gone counts against every majority until
//! the voters have changed; two removed in a row would take the majority of four with them for good.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use corduroy_protocol::ErrorCode;
use corduroy_record::NodeId;
use tokio::time::{Instant, timeout_at};

use super::judge::Verdict;
use super::members::is_majority;
use super::requests::{Refusal, Request};
use super::service::{RETRY_PAUSE, Service};

/// Nodes whose removal somebody waits for: they are not to vote. Of this leader alone: after a change of
/// the leader whoever asked asks the next one.
#[derive(Clone, Default)]
pub(super) struct Leaving(Rc<RefCell<BTreeMap<i32, usize>>>);

impl Leaving {
    /// Whether somebody waits for this node to go.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.0.borrow().contains_key(&node.get())
    }

    /// Counts until it is dropped: several may ask for the same.
    fn hold(&self, node: i32) -> Held {
        *self.0.borrow_mut().entry(node).or_default() += 1;
        Held(self.clone(), node)
    }
}

pub(super) struct Held(Leaving, i32);

impl Drop for Held {
    fn drop(&mut self) {
        let mut leaving = self.0.0.borrow_mut();
        if let Some(count) = leaving.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                leaving.remove(&self.1);
            }
        }
    }
}

impl Service {
    /// Before a removal has its turn: waits until the node's replica of the controller votes no more,
    /// as long as the removal would be carried out and this replica leads. The vote stays away while
    /// what is returned lives.
    ///
    /// # Errors
    /// Without this vote those who are up would be no majority.
    pub(super) async fn release_vote(
        &self,
        request: &Request,
        deadline: Instant,
    ) -> Result<Option<Held>, Refusal> {
        let Request::RemoveNode { node } = request else {
            return Ok(None);
        };
        let mut held = None;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.env.now();
            let goes = matches!(self.judge_now(request), Verdict::Commit { .. });
            if !goes || !self.votes(*node) || !self.replica().view().leader_ready || now >= deadline
            {
                return Ok(held);
            }
            if held.is_none() {
                if let Some(refusal) = self.refuse_last_vote(*node) {
                    return Err(refusal);
                }
                held = Some(self.leaving.hold(*node));
                // The members change in a task of their own. This wakes the wait below too, once.
                self.changed.notify_waiters();
            }
            let pause = deadline.min(now + RETRY_PAUSE);
            let _ = timeout_at(pause, changed).await;
        }
    }

    /// Whether a removal has to wait: judged in turn, after everything that came before.
    pub(super) fn is_too_early(&self, request: &Request) -> bool {
        matches!(request, Request::RemoveNode { node } if self.votes(*node))
    }

    /// Why a vote cannot be spared: of those that stay too many are down. Those that others wait to see
    /// go do not stay.
    fn refuse_last_vote(&self, node: i32) -> Option<Refusal> {
        let members = self.replica().members();
        let staying: BTreeSet<i32> = members
            .iter()
            .filter(|(_, voter, votes)| *votes && !self.leaving.contains(*voter))
            .map(|(_, voter, _)| voter.get())
            .filter(|voter| *voter != node)
            .collect();
        let down = self.down.borrow();
        let away: Vec<String> = staying
            .intersection(&down)
            .map(ToString::to_string)
            .collect();
        if is_majority(staying.len() - away.len(), staying.len()) {
            return None;
        }
        let Some((last, others)) = away.split_last() else {
            return Some(Refusal::new(
                ErrorCode::InvalidRequest,
                format!(
                    "node {node} is the only one that votes on the cluster's metadata just now; try \
                     again in a moment"
                ),
            ));
        };
        let (names, verb, pronoun) = match others {
            [] => (format!("node {last}"), "is", "it"),
            others => (
                format!("nodes {} and {last}", others.join(", ")),
                "are",
                "them",
            ),
        };
        Some(Refusal::new(
            ErrorCode::InvalidRequest,
            format!(
                "the cluster needs the vote of node {node}: of the others that vote on its metadata, \
                 {names} {verb} down\n  help    start {pronoun} again, or decommission {names} first"
            ),
        ))
    }

    fn votes(&self, node: i32) -> bool {
        let members = self.replica().members();
        let mut voters = members.iter().filter(|(_, _, votes)| *votes);
        voters.any(|(_, voter, _)| voter.get() == node)
    }
}
