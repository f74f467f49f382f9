//! Slow changes of a group: its members, its log's start.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{LogIndex, NodeId, ReplicaId};
use openraft::ChangeMembers;
use tokio::time::Instant;

use crate::error::RaftError;
use crate::replica::Replica;
use crate::replica_core::Core;
use crate::types::{Raft, RaftNode};

/// A learner this close to the leader's end has caught up: the joint change itself waits for the
/// rest, and a busy leader is never quite reached.
const CATCH_UP_ENTRIES: u64 = 64;
/// How long a purge may wait for a follower that is reading below it.
const PURGE_WAIT: Duration = Duration::from_secs(5);

pub(crate) async fn change_members(
    replica: &Replica,
    core: &Rc<Core>,
    target: Vec<(ReplicaId, NodeId)>,
    learners: &[(ReplicaId, NodeId)],
    catch_up_max: Duration,
) -> Result<(), RaftError> {
    let raft = core.raft().ok_or(RaftError::Stopped)?;
    if !core.is_leader() {
        return Err(RaftError::NotLeader {
            leader: core.leader_node(),
        });
    }
    core.touch();
    let deadline = core.env.now() + catch_up_max;
    let known: BTreeSet<ReplicaId> = core.members().iter().map(|(id, _, _)| *id).collect();
    for (id, node) in target.iter().chain(learners) {
        if !known.contains(id) {
            add_learner(&raft, *id, *node).await?;
        }
    }
    // Who votes already may be down or far behind: whoever waited for all of them would let nobody
    // else in or out meanwhile. A majority is waited for, as nothing commits without it.
    let voted: BTreeSet<ReplicaId> = core
        .members()
        .iter()
        .filter(|(_, _, voter)| *voter)
        .map(|(id, _, _)| *id)
        .collect();
    let ids = || target.iter().map(|(id, _)| *id);
    let newcomers: Vec<ReplicaId> = ids().filter(|id| !voted.contains(id)).collect();
    catch_up(core, &newcomers, newcomers.len(), deadline).await?;
    let all: Vec<ReplicaId> = ids().collect();
    catch_up(core, &all, all.len() / 2 + 1, deadline).await?;
    if !target.iter().any(|(id, _)| *id == core.id) {
        return hand_over(replica, core, &raft, &target).await;
    }
    let voters: BTreeSet<u64> = target.iter().map(|(id, _)| id.get()).collect();
    let same: BTreeSet<u64> = core
        .members()
        .iter()
        .filter(|(_, _, voter)| *voter)
        .map(|(id, _, _)| id.get())
        .collect();
    if voters != same || core.is_joint() {
        let change_voters = ChangeMembers::ReplaceAllVoters(voters.clone());
        // A voter that leaves stays as a learner here; the next step drops the ones that go.
        change(core, &raft, change_voters, true).await?;
    }
    let extra: BTreeSet<u64> = core
        .members()
        .iter()
        .map(|(id, _, _)| id.get())
        .filter(|id| !voters.contains(id) && !learners.iter().any(|(l, _)| l.get() == *id))
        .collect();
    if !extra.is_empty() {
        change(core, &raft, ChangeMembers::RemoveNodes(extra), false).await?;
    }
    Ok(())
}

/// A leader that is to go first makes the newcomers voters, then hands over to one that stays:
/// it never removes itself while it leads.
async fn hand_over(
    replica: &Replica,
    core: &Rc<Core>,
    raft: &Raft,
    target: &[(ReplicaId, NodeId)],
) -> Result<(), RaftError> {
    let mut voters: BTreeMap<u64, RaftNode> = target
        .iter()
        .map(|(id, node)| (id.get(), RaftNode { node: *node }))
        .collect();
    let is_voter = |core: &Core, id: u64| {
        core.members()
            .iter()
            .any(|(member, _, voter)| member.get() == id && *voter)
    };
    let own_node = core
        .node_of(core.id.get())
        .unwrap_or(core.board.identity.node);
    voters.insert(core.id.get(), RaftNode { node: own_node });
    if !voters.keys().all(|id| is_voter(core, *id)) {
        let ids: BTreeSet<u64> = voters.keys().copied().collect();
        change(core, raft, ChangeMembers::ReplaceAllVoters(ids), true).await?;
    }
    let heir = target
        .iter()
        .filter(|(id, node)| is_voter(core, id.get()) && !core.nodes.is_down(*node))
        .max_by_key(|(id, _)| core.progress.matched(id.get()))
        .map(|(id, _)| *id)
        .ok_or(RaftError::NoTarget)?;
    replica.transfer_leader(Some(heir)).await?;
    Err(RaftError::NotLeader {
        leader: core.node_of(heir.get()),
    })
}

async fn add_learner(raft: &Raft, id: ReplicaId, node: NodeId) -> Result<(), RaftError> {
    // Not blocking: openraft calls a learner caught up that is thousands of entries behind.
    raft.add_learner(id.get(), RaftNode { node }, false)
        .await
        .map(|_| ())
        .map_err(|error| RaftError::Members(error.to_string()))
}

async fn change(
    core: &Rc<Core>,
    raft: &Raft,
    change: ChangeMembers<u64, RaftNode>,
    retain: bool,
) -> Result<(), RaftError> {
    core.touch();
    raft.change_membership(change, retain)
        .await
        .map(|_| ())
        .map_err(|error| RaftError::Members(error.to_string()))
}

/// Waits until so many of these replicas durably hold nearly all of the log; the leader does.
async fn catch_up(
    core: &Rc<Core>,
    replicas: &[ReplicaId],
    wanted: usize,
    deadline: Instant,
) -> Result<(), RaftError> {
    loop {
        let changed = core.progress.changed();
        if !core.is_leader() {
            return Err(RaftError::NotLeader {
                leader: core.leader_node(),
            });
        }
        let end = core.last().map_or(0, LogIndex::get);
        let is_near = |id: &&ReplicaId| {
            let matched = core.progress.matched(id.get());
            **id == core.id || matched.is_some_and(|at| at.get() + CATCH_UP_ENTRIES >= end)
        };
        if replicas.iter().filter(is_near).count() >= wanted {
            return Ok(());
        }
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            return Err(RaftError::Timeout("waiting for a new replica to catch up"));
        }
    }
}

pub(crate) async fn purge_to(core: &Rc<Core>, index: LogIndex) -> Result<(), RaftError> {
    let raft = core.raft().ok_or(RaftError::Stopped)?;
    let applied = core.applied.get().map_or(0, |(_, applied)| applied.get());
    // openraft #2116: never purge what apply may still ask for.
    let limit = applied.saturating_sub(core.config.purge_behind_applied);
    let upto = index.min(LogIndex::new(limit));
    let start = core.log.state().log_start.index;
    let target = core
        .log
        .tables_indices()
        .into_iter()
        .rev()
        .find(|at| *at <= upto && *at >= start)
        .ok_or(RaftError::NothingToPurge)?;
    let saved = core
        .log
        .tables_at(target)
        .await
        .ok_or(RaftError::NothingToPurge)?;
    core.log
        .save_snapshot(saved)
        .await
        .map_err(|error| RaftError::Storage(error.to_string()))?;
    raft.trigger()
        .snapshot()
        .await
        .map_err(|_| RaftError::Stopped)?;
    let deadline = core.env.now() + PURGE_WAIT;
    while core.log.state().log_start.index <= target {
        if core.env.now() >= deadline {
            return Err(RaftError::Timeout("purging the log"));
        }
        core.env.sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
