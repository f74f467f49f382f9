//! The controller's task: carries requests to wherever the controller leads, and leads.
//!
//! As leader it judges one request at a time, each after the one before has been applied (law of
//! [`super::judge`]): a verdict is proposed in the term in which it was judged and in no other. A
//! verdict under way is never abandoned, even when its asker has given up; the next one waits.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_raft::{
    Proposal, ProposalObserver, ProposalOutcome, ProposalPayload, RaftShard, Replica, Role,
};
use corduroy_record::NodeId;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use super::calls::{Answer, Call, decode_answer, encode_call};
use super::codec::{decode, encode};
use super::error::RequestError;
use super::handle::{ControllerInbox, Job};
use super::judge::{Facts, Verdict, judge};
use super::leaving::Leaving;
use super::machine::ControllerMachine;
use super::records::Command;
use super::requests::{Reply, Request};

/// How long one attempt at another node may take before the request looks for the leader again.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// Pause before the leader is looked for again, if nothing happens that ends it.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(25);

/// What the tasks of one node's controller share. Lives on shard 0.
pub(super) struct Service {
    pub(super) env: Env,
    pub(super) node: NodeId,
    pub(super) raft: RaftShard,
    /// Another one after damage.
    pub(super) replica: RefCell<Replica>,
    pub(super) machine: Rc<RefCell<ControllerMachine>>,
    pub(super) changed: Rc<Notify>,
    /// Nodes that the failure detector holds down.
    pub(super) down: RefCell<BTreeSet<i32>>,
    /// Nodes that are about to be removed.
    pub(super) leaving: Leaving,
    /// One permit, held by the request that is being judged or applied.
    pub(super) turn: Semaphore,
}

/// How an attempt ended.
pub(super) enum Attempt {
    Done(Reply),
    NotLeader,
    TryAgain,
}

impl Service {
    /// This node's replica.
    pub(super) fn replica(&self) -> Replica {
        self.replica.borrow().clone()
    }

    /// Serves this node's own requests for ever.
    pub(super) async fn serve(self: Rc<Self>, mut inbox: ControllerInbox) {
        while let Some(Job {
            id,
            request,
            deadline,
            answer,
        }) = inbox.0.recv().await
        {
            let service = self.clone();
            self.env.spawn_local(async move {
                let reply = service.carry(id, request, deadline).await;
                // An asker that has given up needs no answer.
                let _gone = answer.send(reply);
            });
        }
    }

    /// Brings a request to the leader, as often as it takes.
    pub(super) async fn carry(
        self: &Rc<Self>,
        id: [u8; 16],
        request: Request,
        deadline: Instant,
    ) -> Result<Reply, RequestError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that a change in between ends the pause below.
            changed.as_mut().enable();
            let view = self.replica().view();
            let attempt = match (view.role, view.leader) {
                (Role::Leader, _) => self.execute(id, request.clone(), deadline).await,
                (Role::Stopped, _) => return Err(self.stopped()),
                (_, Some((_, leader))) if leader != self.node => {
                    self.send(leader, id, &request, deadline).await
                }
                _ => Attempt::NotLeader,
            };
            if let Attempt::Done(reply) = attempt {
                return Ok(reply);
            }
            if self.env.now() >= deadline {
                return Err(RequestError::Timeout);
            }
            let pause = deadline.min(self.env.now() + RETRY_PAUSE);
            // Either way the leader is looked for again.
            let _ = timeout_at(pause, changed).await;
        }
    }

    /// A replica that stops says why, but for one that was closed with its node.
    fn stopped(&self) -> RequestError {
        match self.machine.borrow().stopped() {
            Some(reason) => RequestError::ReplicaStopped(reason.to_owned()),
            None => RequestError::Stopping,
        }
    }

    async fn send(
        &self,
        leader: NodeId,
        id: [u8; 16],
        request: &Request,
        deadline: Instant,
    ) -> Attempt {
        let call = Call::Execute {
            request: id,
            body: request.clone(),
        };
        let Ok(bytes) = encode_call(&call) else {
            return Attempt::TryAgain;
        };
        let patience = deadline
            .saturating_duration_since(self.env.now())
            .min(ATTEMPT_MAX);
        match self.raft.call(leader, bytes, patience).await {
            Ok(answer) => match decode_answer(&answer) {
                Ok(Answer::Reply(reply)) => Attempt::Done(reply),
                Ok(Answer::NotLeader { .. }) => Attempt::NotLeader,
                Ok(Answer::TryAgain | Answer::Presence(_)) => Attempt::TryAgain,
                Err(error) => {
                    warn!(%leader, %error, "the controller's leader gave an unreadable answer");
                    Attempt::TryAgain
                }
            },
            Err(error) => {
                debug!(%leader, %error, "the controller's leader cannot be asked");
                Attempt::TryAgain
            }
        }
    }

    /// Carries a request out here, if this replica leads. Waits at most until `deadline`.
    pub(super) async fn execute(
        self: &Rc<Self>,
        id: [u8; 16],
        request: Request,
        deadline: Instant,
    ) -> Attempt {
        let (sender, answered) = oneshot::channel();
        let service = self.clone();
        // A task of its own: an asker that gives up must not take the turn away from a verdict
        // whose entry is in the log.
        self.env.spawn_local(async move {
            let _vote = match service.release_vote(&request, deadline).await {
                Ok(vote) => vote,
                Err(refusal) => {
                    let _gone = sender.send(Attempt::Done(Reply::Refused(refusal)));
                    return;
                }
            };
            let Ok(_turn) = service.turn.acquire().await else {
                return;
            };
            if service.env.now() < deadline {
                let attempt = service.execute_in_turn(id, &request, deadline).await;
                let _gone = sender.send(attempt);
            }
        });
        match timeout_at(deadline, answered).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) | Err(_) => Attempt::TryAgain,
        }
    }

    async fn execute_in_turn(&self, id: [u8; 16], request: &Request, deadline: Instant) -> Attempt {
        if !self.await_ready(deadline).await {
            return Attempt::NotLeader;
        }
        let view = self.replica().view();
        if let Some(reply) = self.machine.borrow().state().remembered(&id) {
            return match decode(reply) {
                Ok(reply) => Attempt::Done(reply),
                Err(_) => Attempt::TryAgain,
            };
        }
        match self.judge_now(request) {
            Verdict::Commit { .. } if self.is_too_early(request) => Attempt::TryAgain,
            // An old leader must not answer from what it does not know to be current (law 12: a
            // lease proves nothing).
            Verdict::Answer(reply) => match self.replica().read_barrier().await {
                Ok(_) => Attempt::Done(reply),
                Err(error) => {
                    debug!(%error, "this leader is not known to be current");
                    Attempt::TryAgain
                }
            },
            Verdict::Commit { changes, reply } => {
                let Ok(encoded) = encode(&reply) else {
                    return Attempt::TryAgain;
                };
                let command = Command {
                    request: id,
                    changes,
                    reply: encoded.to_vec(),
                };
                match encode(&command) {
                    Ok(bytes) => self.commit(bytes, view.term, reply).await,
                    Err(_) => Attempt::TryAgain,
                }
            }
        }
    }

    /// What the request comes to in the state of now.
    pub(super) fn judge_now(&self, request: &Request) -> Verdict {
        let mut random = || self.env.random_u64();
        let down = self.down.borrow();
        let mut facts = Facts {
            down: &down,
            random: &mut random,
        };
        judge(self.machine.borrow().state(), request, &mut facts)
    }

    /// Waits until this leader has applied everything before its term; false if it leads no more.
    async fn await_ready(&self, deadline: Instant) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let view = self.replica().view();
            if view.leader_ready {
                return true;
            }
            if view.role != Role::Leader || self.env.now() >= deadline {
                return false;
            }
            let _ = timeout(RETRY_PAUSE, changed).await;
        }
    }

    async fn commit(&self, bytes: Bytes, term: corduroy_record::Term, reply: Reply) -> Attempt {
        let (sender, finished) = oneshot::channel();
        let payload = ProposalPayload::Internal(bytes);
        self.replica()
            .propose(Proposal { payload, term }, Box::new(Finished(sender)));
        match finished.await {
            Ok(ProposalOutcome::Applied(_)) => Attempt::Done(reply),
            Ok(ProposalOutcome::NotAppended(reason)) => {
                debug!(?reason, "a command of the controller was not appended");
                Attempt::TryAgain
            }
            // Whether it survives decides the next leader; the retry finds the answer there.
            Ok(ProposalOutcome::Discarded) | Err(_) => Attempt::TryAgain,
        }
    }
}

struct Finished(oneshot::Sender<ProposalOutcome>);

impl ProposalObserver for Finished {
    fn finished(self: Box<Self>, outcome: ProposalOutcome) {
        let _gone = self.0.send(outcome);
    }
}
