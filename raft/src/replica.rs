//! The handle of one replica: all that the rest of the node may know of Raft.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{GroupId, LogIndex, NodeId, ReplicaId};
use corduroy_storage::Log;
use openraft_rt::WatchReceiver;
use tokio::time::Instant;

use crate::barrier::{NotLeader, read_barrier};
use crate::error::{RaftError, Unfit};
use crate::failover;
use crate::members;
use crate::proposal::{Proposal, ProposalObserver};
use crate::replica_core::{Core, ReplicaView, Sleep};
use crate::types::RaftNode;

/// How soon a group's first leader campaigns again if its first campaign made it none; doubles, up
/// to the shortest election timeout.
const FIRST_CAMPAIGN_PAUSE: Duration = Duration::from_millis(50);
/// After that many attempts the election timeout decides.
const FIRST_CAMPAIGNS_MAX: usize = 12;

/// One replica of one group. Clone = another handle.
#[derive(Clone)]
pub struct Replica {
    core: Rc<Core>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replica({} of {})", self.core.id, self.core.group)
    }
}

impl Replica {
    pub(crate) fn new(core: Rc<Core>) -> Replica {
        Replica { core }
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> Rc<Core> {
        self.core.clone()
    }

    /// What this replica is right now.
    pub fn view(&self) -> ReplicaView {
        self.core.view()
    }

    /// The span of lines about this replica: topic, partition, epoch, below those of its shard.
    pub fn span(&self) -> tracing::Span {
        self.core.span()
    }

    /// The group's members: replica, its node, whether it votes.
    pub fn members(&self) -> Vec<(ReplicaId, NodeId, bool)> {
        self.core.members()
    }

    /// The newest membership of its log, committed or not: where it was logged, and the voter sets
    /// that it puts in force, two during a joint change. Without an instance there is none.
    pub fn membership(&self) -> Option<(LogIndex, Vec<BTreeSet<ReplicaId>>)> {
        self.core.membership()
    }

    /// Gives the group its first members. Once per group, on the replica that the controller
    /// names; it then campaigns at once.
    ///
    /// # Errors
    /// The group has a log already, or this replica is not among the members.
    pub async fn initialize(&self, members: Vec<(ReplicaId, NodeId)>) -> Result<(), RaftError> {
        let raft = self.core.raft().ok_or(RaftError::Stopped)?;
        let members: BTreeMap<u64, RaftNode> = members
            .into_iter()
            .map(|(id, node)| (id.get(), RaftNode { node }))
            .collect();
        raft.initialize(members)
            .await
            .map_err(|error| RaftError::Initialize(error.to_string()))?;
        self.lead_first();
        Ok(())
    }

    /// Asks to be a new group's first leader, until there is one: for one replica of a group whose
    /// members are in its log already ([`write_first_entry`](crate::write_first_entry)). The others
    /// would campaign too, after an election timeout.
    pub fn lead_first(&self) {
        let replica = self.clone();
        self.core.env.spawn_local(async move {
            if replica.campaign().await.is_ok() {
                replica.campaign_until_led().await;
            }
        });
    }

    /// The other members may open their replicas a moment after this one has campaigned: asks
    /// again, by the plain rules, instead of waiting for an election timeout of seconds. Less and
    /// less often, and in turns: a campaign that follows another before its votes are there
    /// supersedes it, and a thousand new partitions would keep a slow machine busy with nothing else.
    async fn campaign_until_led(&self) {
        let core = &self.core;
        let mut pause = FIRST_CAMPAIGN_PAUSE;
        core.env.sleep(pause).await;
        for _ in 0..FIRST_CAMPAIGNS_MAX {
            let turn = failover::take_turn(core).await;
            if core.leader().is_some() || self.campaign().await.is_err() {
                return;
            }
            failover::until_settled(core, pause).await;
            drop(turn);
            pause = (pause * 2).min(core.config.election_min);
            core.env.sleep(pause).await;
        }
    }

    /// Ordered door (law 14): proposals of one replica are appended in the order of the calls, or
    /// fail; an entry whose predecessor was refused is not appended before it. A proposal that
    /// meets an expired lease is held and proposed again, up to
    /// [`RaftConfig::propose_hold_max`](crate::RaftConfig::propose_hold_max).
    pub fn propose(&self, proposal: Proposal, observer: Box<dyn ProposalObserver>) {
        self.core.door.propose(proposal, observer);
    }

    /// Waits until a majority has confirmed this leader after the call and everything committed
    /// before is applied; returns the index applied. ReadIndex (Raft dissertation, 6.4), never a
    /// lease; callers at the same time share a round.
    ///
    /// # Errors
    /// This replica does not lead, or no majority answered in time.
    pub async fn read_barrier(&self) -> Result<LogIndex, NotLeader> {
        read_barrier(&self.core).await
    }

    /// The in-sync replicas as the leader sees them, itself included: the voters that held its
    /// log's end within `lag_max` and whose node is not down. Empty on who does not lead.
    pub fn in_sync(&self, lag_max: Duration) -> Vec<(ReplicaId, NodeId)> {
        let core = &self.core;
        if !core.is_leader() {
            return Vec::new();
        }
        let (end, now) = (core.last(), core.env.now());
        core.members()
            .into_iter()
            .filter(|(id, node, voter)| {
                let alone = *id == core.id;
                *voter
                    && (alone
                        || !core.nodes.is_down(*node)
                            && (core.is_asleep()
                                || core.progress.is_in_sync(id.get(), end, lag_max, now)))
            })
            .map(|(id, node, _)| (id, node))
            .collect()
    }

    /// Waits until `copies` voters, this one included, durably hold `index`; `false` when
    /// `deadline` passes or the leadership ends first.
    pub async fn wait_replicated(&self, index: LogIndex, copies: usize, deadline: Instant) -> bool {
        let core = &self.core;
        loop {
            let changed = core.progress.changed();
            if core.is_leader() && self.copies(index) >= copies {
                return true;
            }
            if !core.is_leader() || tokio::time::timeout_at(deadline, changed).await.is_err() {
                return false;
            }
        }
    }

    fn copies(&self, index: LogIndex) -> usize {
        let core = &self.core;
        core.members()
            .iter()
            .filter(|(id, _, voter)| {
                let held = if *id == core.id {
                    core.log.state().durable_last
                } else {
                    core.progress.matched(id.get())
                };
                *voter && held >= Some(index)
            })
            .count()
    }

    /// Hands the leadership to `to`, or to the able voter that holds most of the log. Whoever
    /// shall lead is asked first whether it can: a leader that has handed over to one that cannot
    /// leaves the partition without a leader for a while.
    ///
    /// # Errors
    /// This replica does not lead; there is no other live voter, or `to` cannot lead; the target
    /// did not win in time (then this leader campaigns for its own leadership again).
    pub async fn transfer_leader(&self, to: Option<ReplicaId>) -> Result<(), RaftError> {
        let core = &self.core;
        let raft = core.raft().ok_or(RaftError::Stopped)?;
        if !core.is_leader() {
            return Err(RaftError::NotLeader {
                leader: core.leader_node(),
            });
        }
        if to == Some(core.id) {
            return Ok(());
        }
        let target = self.able_target(to).await?;
        let Some(vote) = core.vote().filter(|_| core.is_leader()) else {
            return Err(RaftError::NotLeader {
                leader: core.leader_node(),
            });
        };
        core.touch();
        // Law 12: this leader grants its own successor the privilege.
        core.ordered.set(Some((vote.leader_id.term, target.get())));
        raft.trigger()
            .transfer_leader(target.get())
            .await
            .map_err(|_| RaftError::Stopped)?;
        let mut server = raft.server_metrics();
        let gone = async {
            while core.is_leader() && core.vote() == Some(vote) {
                if server.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(core.config.transfer_max, gone)
            .await
            .is_ok()
        {
            return Ok(());
        }
        // openraft refuses writes until somebody wins: this leader campaigns itself.
        failover::campaign_as(core, &raft, vote, core.config.transfer_max).await;
        Err(RaftError::Timeout("transferring the leadership"))
    }

    /// The first of the live voters, by what they hold, that says that it can lead.
    async fn able_target(&self, to: Option<ReplicaId>) -> Result<ReplicaId, RaftError> {
        let core = &self.core;
        let mut candidates: Vec<(ReplicaId, NodeId)> = core
            .members()
            .into_iter()
            .filter(|(id, _, voter)| *voter && *id != core.id && to.is_none_or(|to| to == *id))
            .map(|(id, node, _)| (id, node))
            .collect();
        candidates.sort_by_key(|(id, _)| (core.progress.matched(id.get()), id.get()));
        let mut error = RaftError::NoTarget;
        while let Some((id, node)) = candidates.pop() {
            let unfit = if core.nodes.is_down(node) {
                Unfit::Down
            } else {
                match failover::look_at(core, id, node).await {
                    Ok(()) => return Ok(id),
                    Err(unfit) => unfit,
                }
            };
            if to.is_some() {
                error = RaftError::Unfit(unfit);
            }
        }
        Err(error)
    }

    /// Asks for an election now, by the plain rules: leases and pre-votes count.
    ///
    /// # Errors
    /// The replica has stopped.
    pub async fn campaign(&self) -> Result<(), RaftError> {
        self.core.wake();
        let raft = self.core.raft().ok_or(RaftError::Stopped)?;
        raft.trigger()
            .elect(true)
            .await
            .map_err(|_| RaftError::Stopped)
    }

    /// Retention: makes the newest saved tables at or below `index` the snapshot, then purges the
    /// log up to them. A leader whose follower is reading there purges a little later.
    ///
    /// # Errors
    /// Nothing saved lies above the log's start and at or below `index`; the disk failed.
    pub async fn purge_to(&self, index: LogIndex) -> Result<(), RaftError> {
        members::purge_to(&self.core, index).await
    }

    /// Whether the failure detector leaves a majority of the voters standing: without one nothing
    /// commits, although the lease may last a moment longer.
    pub fn majority_up(&self) -> bool {
        self.core.majority_up()
    }

    /// Makes `target` the group's voters: adds the new ones as learners, waits until they have
    /// caught up, changes the voters by joint consensus, drops the rest. One change at a time.
    ///
    /// # Errors
    /// This replica does not lead. If the leader is not in `target`, the leadership is first
    /// handed to a voter that is, and this is [`RaftError::NotLeader`]: call again there.
    pub async fn change_members(
        &self,
        target: Vec<(ReplicaId, NodeId)>,
        catch_up_max: Duration,
    ) -> Result<(), RaftError> {
        members::change_members(self, &self.core, target, &[], catch_up_max).await
    }

    /// [`Replica::change_members`] for a group of which some members only learn, for good:
    /// `learners` get the log and have no vote.
    ///
    /// # Errors
    /// As [`Replica::change_members`].
    pub async fn arrange_members(
        &self,
        voters: Vec<(ReplicaId, NodeId)>,
        learners: &[(ReplicaId, NodeId)],
        catch_up_max: Duration,
    ) -> Result<(), RaftError> {
        members::change_members(self, &self.core, voters, learners, catch_up_max).await
    }

    /// The machine's tables as of the last applied entry, for whoever compares replicas.
    pub fn tables(&self) -> bytes::Bytes {
        self.core.machine.borrow().tables()
    }

    /// The log, for reading.
    pub fn log(&self) -> &Log {
        &self.core.log
    }

    /// The group.
    pub fn group(&self) -> GroupId {
        self.core.group
    }

    /// This replica.
    pub fn id(&self) -> ReplicaId {
        self.core.id
    }

    /// How long ago the group's leader was heard; nothing while this replica leads.
    pub fn leader_silent_for(&self) -> Duration {
        let core = &self.core;
        if core.is_leader() {
            return Duration::ZERO;
        }
        let mut heard_at = core.leader_heard_at.get();
        if let Sleep::Asleep { heard_at: beat, .. } = core.sleep.get() {
            heard_at = heard_at.max(beat);
        }
        core.env.now().saturating_duration_since(heard_at)
    }

    /// Why this replica has stopped by itself (a storage error, a log that differs from its
    /// leader's); `None` while it runs, and after an orderly close.
    pub fn stop_reason(&self) -> Option<String> {
        self.core.stop_reason.borrow().clone()
    }

    /// Whether the group's ticks are off.
    pub fn is_asleep(&self) -> bool {
        self.core.is_asleep()
    }
}
