//! Read barriers, coalesced: one question to the majority answers everybody who asked before it.

use std::rc::Rc;

use corduroy_record::{LogIndex, NodeId};
use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::oneshot;

use crate::replica_core::Core;

/// This replica does not lead, or could not prove it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead the partition")]
pub struct NotLeader {
    /// The leader's node, if another one is known.
    pub leader: Option<NodeId>,
}

type Answer = Result<LogIndex, NotLeader>;

/// Who waits for the next round.
#[derive(Default)]
pub(crate) struct Barrier {
    waiting: Vec<oneshot::Sender<Answer>>,
    running: bool,
}

/// Waits until a majority has confirmed this leader after the call, and until everything that was
/// committed before it is applied here. Returns the index applied.
pub(crate) async fn read_barrier(core: &Rc<Core>) -> Answer {
    let (answer, answered) = oneshot::channel();
    let start = {
        let mut barrier = core.barrier.borrow_mut();
        barrier.waiting.push(answer);
        !std::mem::replace(&mut barrier.running, true)
    };
    if start {
        let core = core.clone();
        let env = core.env.clone();
        env.spawn_local(async move { run(&core).await });
    }
    answered.await.unwrap_or(Err(NotLeader { leader: None }))
}

async fn run(core: &Rc<Core>) {
    loop {
        // Only who asked before the round begins is answered by it.
        let waiting = {
            let mut barrier = core.barrier.borrow_mut();
            if barrier.waiting.is_empty() {
                barrier.running = false;
                return;
            }
            std::mem::take(&mut barrier.waiting)
        };
        let answer = round(core).await;
        for waiter in waiting {
            let _ = waiter.send(answer);
        }
    }
}

async fn round(core: &Rc<Core>) -> Answer {
    core.touch();
    let Some(raft) = core.raft().filter(|_| core.speaks()) else {
        return Err(NotLeader { leader: None });
    };
    let hurry = core.hurry_beats();
    let asked = tokio::time::timeout(
        core.config.read_barrier_max,
        // Never LeaseRead (law 12): a lease says nothing after a fast failover.
        raft.get_read_linearizer(ReadPolicy::ReadIndex),
    )
    .await;
    drop(hurry);
    let linearizer = match asked {
        Ok(Ok(linearizer)) => linearizer,
        Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
            return Err(NotLeader {
                leader: forward.leader_node.map(|node| node.node),
            });
        }
        Ok(Err(_)) | Err(_) => return Err(NotLeader { leader: None }),
    };
    let index = LogIndex::new(linearizer.read_log_id().index());
    let applied = tokio::time::timeout(core.config.read_barrier_max, core.await_applied(index));
    match applied.await {
        Ok(true) => Ok(core.applied.get().map_or(index, |(_, applied)| applied)),
        Ok(false) | Err(_) => Err(NotLeader { leader: None }),
    }
}
