//! What the parts of one replica share: its log, its machine, its openraft instance.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::{GroupId, LeaderEpoch, LogIndex, NodeId, Offset, ReplicaId, Term};
use corduroy_storage::Log;
use futures::FutureExt;
use openraft::errors::{ForwardReason, LinearizableReadError, RaftError};
use openraft::metrics::{RaftDataMetrics, RaftServerMetrics};
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{ReadPolicy, ServerState};
use openraft_rt::WatchReceiver;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::awake::AwakeSet;
use crate::config::RaftConfig;
use crate::counts::Counts;
use crate::door::Door;
use crate::machine::DriverLife;
use crate::nodes::Nodes;
use crate::partition_span::PartitionSpan;
use crate::progress::Progress;
use crate::proposal::RefuseReason;
use crate::revert::{Returning, Revert};
use crate::state_machine::{ReplicaEvent, StateMachine};
use crate::transport::Switchboard;
use crate::types::{LogId, Raft, RaftVote, StoredMembership, TypeConfig};

/// The role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads; see [`ReplicaView::leader_ready`] and [`ReplicaView::lease_valid`].
    Leader,
    /// Follows, or waits for a leader.
    Follower,
    /// Campaigns.
    Candidate,
    /// Receives the log without a vote.
    Learner,
    /// Has stopped.
    Stopped,
}

/// A replica at one moment. Cheap to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// What this replica is.
    pub role: Role,
    /// The term of its vote.
    pub term: Term,
    /// The leader that it knows, itself included.
    pub leader: Option<(ReplicaId, NodeId)>,
    /// This replica leads and has applied the blank entry of its own term: from here on its high
    /// watermark and tables are current (law 14).
    pub leader_ready: bool,
    /// This replica leads, has heard a majority within its lease, and no peer holds another process
    /// for this node. While a group sleeps, and
    /// until it has had time to hear one after that, the failure detector stands in for the lease.
    pub lease_valid: bool,
    /// The newest term of which an entry is committed: the leader epoch that clients may see.
    pub epoch: LeaderEpoch,
    /// The last applied entry; index 0 also stands for "none yet".
    pub applied: LogIndex,
    /// The offset after the last applied record.
    pub high_watermark: Offset,
}

/// Whether a replica's ticks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    Awake,
    Asleep { term: Term, heard_at: Instant },
}

pub(crate) struct Instance {
    pub(crate) raft: Raft,
    server: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
    data: WatchReceiverOf<TypeConfig, RaftDataMetrics<TypeConfig>>,
}

impl Instance {
    pub(crate) fn new(raft: Raft) -> Instance {
        Instance {
            server: raft.server_metrics(),
            data: raft.data_metrics(),
            raft,
        }
    }
}

/// Why a leader counts as gone in a term although its node may be up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It said so itself, or restarted: it never leads in that term again (law 2).
    Said,
    /// The detector held its node down. It may have been wrong: the leader's word takes it back.
    Detected,
}

/// One replica's shared state. Lives on its shard.
///
/// Law: `applied <= committed`, and `high_watermark` is the offset after `applied`.
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) config: Rc<RaftConfig>,
    pub(crate) board: Rc<Switchboard>,
    pub(crate) nodes: Rc<Nodes>,
    pub(crate) group: GroupId,
    pub(crate) id: ReplicaId,
    pub(crate) span: PartitionSpan,
    pub(crate) log: Log,
    pub(crate) machine: Rc<RefCell<dyn StateMachine>>,
    pub(crate) door: Door,
    pub(crate) progress: Progress,
    pub(crate) instance: RefCell<Option<Instance>>,
    pub(crate) driver: RefCell<Rc<DriverLife>>,
    pub(crate) applied: Cell<Option<(Term, LogIndex)>>,
    pub(crate) high_watermark: Cell<Offset>,
    pub(crate) applied_membership: RefCell<StoredMembership>,
    pub(crate) applied_changed: Notify,
    /// The term whose leadership the machine was told to be ready.
    pub(crate) ready_term: Cell<Option<Term>>,
    /// First storage error: the group stays down (law 3). A full disk is not one.
    pub(crate) storage_error: RefCell<Option<String>>,
    /// Why this replica has ended by itself, once it has: a person must act.
    pub(crate) stop_reason: RefCell<Option<String>>,
    pub(crate) disk_full: Cell<bool>,
    /// One past the last entry that this instance may be asked for although it is rightly not in the
    /// log any more: it was cut, or (`u64::MAX`) a full disk refused what was taken for appended.
    pub(crate) gone_end: Cell<LogIndex>,
    pub(crate) stopped: Cell<bool>,
    /// `stopped` was set.
    pub(crate) stopping: Notify,
    /// Watches the instance, from the replica's opening until it has stopped.
    pub(crate) supervisor: RefCell<Option<JoinHandle<()>>>,
    pub(crate) touched_at: Cell<Instant>,
    pub(crate) sleep: Cell<Sleep>,
    pub(crate) awake: Rc<AwakeSet>,
    /// Groups of the shard that look for a leader at the same time.
    pub(crate) turns: Rc<Semaphore>,
    /// Until then the detector stands in for the lease: the group has just been woken.
    pub(crate) stand_in_until: Cell<Instant>,
    /// The term whose leader leads no more although its node may be up, and how this is known.
    pub(crate) lost: Cell<Option<(u64, Lost)>>,
    /// When a leader's append or beat came last.
    pub(crate) leader_heard_at: Cell<Instant>,
    /// "The leader of that term ordered that replica to campaign" (law 12).
    pub(crate) ordered: Cell<Option<(u64, u64)>>,
    pub(crate) revert: Cell<Revert>,
    /// Followers that have told this leader that they lost log.
    pub(crate) returning: RefCell<BTreeMap<u64, Returning>>,
    /// Until then this replica campaigns on what all voters answered although most of them lost
    /// log (law 8).
    pub(crate) all_answered_until: Cell<Option<Instant>>,
    /// The term in which it last campaigned so; a leader of a later term ends it.
    pub(crate) flagged_campaign: Cell<Option<u64>>,
    /// The term in which this replica led before it lost its instance, while it campaigns anew.
    pub(crate) own_lost_term: Cell<Option<u64>>,
    pub(crate) failover_running: Cell<bool>,
    /// How many wait for a majority to answer this leader's beats.
    pub(crate) hurried: Cell<u32>,
    pub(crate) barrier: RefCell<crate::barrier::Barrier>,
    /// The last entry before the next segment.
    pub(crate) boundary: Cell<Option<LogIndex>>,
    /// The last entry whose tables were saved.
    pub(crate) checkpointed: Cell<Option<LogIndex>>,
}

/// Part of the heartbeat's interval that a beat waits for those of other groups, as a divisor: each
/// group has a clock of its own, and a frame for each would cost a system call for each.
const BEAT_HOLD_PART: u32 = 5;

/// Somebody waits for a majority's word; see [`Core::hurry_beats`].
pub(crate) struct Hurry<'a>(&'a Cell<u32>);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Core {
    /// Runs `look` on the instance, if there is one.
    fn with<T>(&self, look: impl FnOnce(&Instance) -> T) -> Option<T> {
        self.instance.borrow().as_ref().map(look)
    }

    pub(crate) fn raft(&self) -> Option<Raft> {
        self.with(|instance| instance.raft.clone())
    }

    pub(crate) fn set_instance(&self, instance: Option<Instance>) -> Option<Raft> {
        let old = self.instance.replace(instance);
        old.map(|instance| instance.raft)
    }

    /// Something happened: the group is not idle, and wakes if it slept.
    pub(crate) fn touch(self: &Rc<Self>) {
        self.touched_at.set(self.env.now());
        if self.is_asleep() {
            self.wake();
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        matches!(self.sleep.get(), Sleep::Asleep { .. })
    }

    /// Ticks on. A leader says at once that it lives.
    pub(crate) fn wake(self: &Rc<Self>) {
        if !self.is_asleep() {
            return;
        }
        self.sleep.set(Sleep::Awake);
        self.awake.insert(self);
        self.touched_at.set(self.env.now());
        self.stand_in_until
            .set(self.env.now() + self.config.election_max);
        let Some(raft) = self.raft() else { return };
        raft.runtime_config().tick(true);
        if self.is_leader() {
            // Our channel takes the command without waiting.
            let _ = raft.trigger().heartbeat().now_or_never();
        }
    }

    /// Until this is dropped, a majority's word is waited for, and beats ask for it: they leave
    /// at once, those too that wait already.
    pub(crate) fn hurry_beats(&self) -> Hurry<'_> {
        self.hurried.set(self.hurried.get() + 1);
        self.board.release_beats();
        Hurry(&self.hurried)
    }

    /// How long a beat may wait for those of other groups (DESIGN 6): not at all while somebody
    /// waits for its answer, or a woken leader has not yet heard a majority.
    pub(crate) fn beat_hold(&self) -> Duration {
        let is_awaited = self.hurried.get() > 0
            || self.is_asleep()
            || self.env.now() < self.stand_in_until.get();
        if is_awaited {
            Duration::ZERO
        } else {
            self.config.heartbeat / BEAT_HOLD_PART
        }
    }

    /// Ticks off.
    pub(crate) fn fall_asleep(&self, term: Term) {
        let Some(raft) = self.raft() else { return };
        raft.runtime_config().tick(false);
        self.sleep.set(Sleep::Asleep {
            term,
            heard_at: self.env.now(),
        });
        self.awake.remove(self.group);
    }

    pub(crate) fn role(&self) -> Role {
        if self.stopped.get() {
            return Role::Stopped;
        }
        self.with(|instance| role_of(instance.server.borrow_watched().state))
            .unwrap_or(Role::Stopped)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.role() == Role::Leader
    }

    /// Whether this process may speak for its node. A leader that may not is like one whose lease is
    /// gone, also one that needs nobody's vote.
    pub(crate) fn speaks(&self) -> bool {
        self.board.identity.incarnations.speaks()
    }

    /// The vote, as last flushed.
    pub(crate) fn vote(&self) -> Option<RaftVote> {
        self.with(|instance| instance.server.borrow_watched().vote)
    }

    pub(crate) fn term(&self) -> Term {
        Term::new(self.vote().map_or(0, |vote| vote.leader_id.term))
    }

    pub(crate) fn leader(&self) -> Option<(ReplicaId, NodeId)> {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            let leader = server.current_leader?;
            let node = server.membership_config.get_node(&leader)?.node;
            Some((ReplicaId::new(leader), node))
        })
        .flatten()
    }

    pub(crate) fn leader_node(&self) -> Option<NodeId> {
        self.leader().map(|(_, node)| node)
    }

    /// Whether the leader of this replica's term can no longer lead: the detector holds its node
    /// down, it said so itself, or it is this replica, which does not.
    pub(crate) fn leader_is_gone(&self) -> bool {
        let Some(vote) = self.vote().filter(|vote| vote.committed) else {
            return false;
        };
        if self.is_lost(vote.leader_id.term) {
            return true;
        }
        if vote.leader_id.voted_for == self.id.get() {
            // Law 2: who lost its instance leads again only in a new term.
            return !self.is_leader();
        }
        self.node_of(vote.leader_id.voted_for)
            .is_some_and(|node| self.nodes.is_down(node))
    }

    /// The leader of `term` leads no more; `false` if this replica knew, or is past that term.
    pub(crate) fn note_leader_lost(&self, leader: u64, term: u64, how: Lost) -> bool {
        let current = self.vote() == Some(RaftVote::new_committed(term, leader));
        if !current || self.is_leader() {
            return false;
        }
        let knew = self.is_lost(term);
        if !knew || how == Lost::Said {
            self.lost.set(Some((term, how)));
        }
        !knew
    }

    fn is_lost(&self, term: u64) -> bool {
        self.lost.get().is_some_and(|(lost, _)| lost == term)
    }

    /// A leader spoke. Whoever took it for dead was wrong (law 12), unless the detector still
    /// holds its node down: then these are words from before.
    pub(crate) fn leader_heard(&self, vote: &RaftVote) {
        self.leader_heard_at.set(self.env.now());
        self.flagged_campaign.set(None);
        let leader = vote.leader_id.voted_for;
        if self.lost.get() == Some((vote.leader_id.term, Lost::Detected))
            && self.vote().as_ref() == Some(vote)
            && self
                .node_of(leader)
                .is_some_and(|node| !self.nodes.is_down(node))
        {
            self.lost.set(None);
        }
    }

    /// All members: id, node, whether it votes.
    pub(crate) fn members(&self) -> Vec<(ReplicaId, NodeId, bool)> {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            let voters: BTreeSet<u64> = server.membership_config.voter_ids().collect();
            server
                .membership_config
                .nodes()
                .map(|(id, node)| (ReplicaId::new(*id), node.node, voters.contains(id)))
                .collect()
        })
        .unwrap_or_default()
    }

    /// The membership in force: where it was logged, and its voter sets.
    pub(crate) fn membership(&self) -> Option<(LogIndex, Vec<BTreeSet<ReplicaId>>)> {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            let at = LogIndex::new(server.membership_config.log_id().as_ref()?.index);
            let configs = server.membership_config.get_joint_config().iter();
            let set =
                |voters: &BTreeSet<u64>| voters.iter().map(|id| ReplicaId::new(*id)).collect();
            Some((at, configs.map(set).collect()))
        })
        .flatten()
    }

    /// Whether `replicas` are a majority of every voter set in force.
    pub(crate) fn is_quorum(&self, replicas: &BTreeSet<u64>) -> bool {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            let configs = server.membership_config.get_joint_config();
            !configs.is_empty()
                && configs
                    .iter()
                    .all(|voters| voters.intersection(replicas).count() * 2 > voters.len())
        })
        .unwrap_or(false)
    }

    /// Whether every majority that `replica` is part of has one of `others` in it too.
    pub(crate) fn meets_every_quorum_of(&self, replica: u64, others: &BTreeSet<u64>) -> bool {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            let configs = server.membership_config.get_joint_config().iter();
            let mut with_it = configs.filter(|voters| voters.contains(&replica));
            with_it.all(|voters| {
                let met = voters.intersection(others).count();
                met >= voters.len() - voters.len() / 2
            })
        })
        .unwrap_or(false)
    }

    pub(crate) fn is_joint(&self) -> bool {
        self.with(|instance| {
            instance
                .server
                .borrow_watched()
                .membership_config
                .get_joint_config()
                .len()
                > 1
        })
        .unwrap_or(false)
    }

    pub(crate) fn node_of(&self, replica: u64) -> Option<NodeId> {
        self.with(|instance| {
            let server = instance.server.borrow_watched();
            server
                .membership_config
                .get_node(&replica)
                .map(|node| node.node)
        })
        .flatten()
    }

    /// Whether the detector leaves a majority of the voters standing.
    pub(crate) fn majority_up(&self) -> bool {
        let up: BTreeSet<u64> = self
            .members()
            .iter()
            .filter(|(_, node, _)| !self.nodes.is_down(*node))
            .map(|(id, _, _)| id.get())
            .collect();
        self.is_quorum(&up)
    }

    /// Whether a majority answered this leader within its lease.
    pub(crate) fn lease_valid(&self) -> bool {
        if !self.is_leader() || !self.speaks() {
            return false;
        }
        // Law 12. A woken leader asks for a majority's word at once; until it has had time to
        // come, what openraft last noted is as old as the sleep.
        if self.is_asleep() || self.env.now() < self.stand_in_until.get() {
            return self.majority_up();
        }
        // A leader that is its own quorum needs nobody's acknowledgement, and gets none: what
        // openraft last noted grows old while it idles.
        if self.is_quorum(&BTreeSet::from([self.id.get()])) {
            return true;
        }
        let now = self.env.now();
        self.with(|instance| {
            let data = instance.data.borrow_watched();
            match data.last_quorum_acked {
                Some(acked) => {
                    now.saturating_duration_since(acked.into_inner().tokio())
                        < self.config.election_max
                }
                None => false,
            }
        })
        .unwrap_or(false)
    }

    pub(crate) fn view(&self) -> ReplicaView {
        let role = self.role();
        let term = self.term();
        let applied = self.applied.get();
        let applied_term = applied.map(|(term, _)| term);
        ReplicaView {
            role,
            term,
            leader: self.leader(),
            leader_ready: role == Role::Leader && applied_term == Some(term),
            lease_valid: self.lease_valid(),
            epoch: self.epoch(),
            applied: applied.map_or(LogIndex::new(0), |(_, index)| index),
            high_watermark: self.high_watermark.get(),
        }
    }

    fn epoch(&self) -> LeaderEpoch {
        let applied = self.applied.get();
        applied.map_or(LeaderEpoch::NONE, |(term, _)| LeaderEpoch::from_term(term))
    }

    /// What lines about this replica carry.
    pub(crate) fn span(&self) -> tracing::Span {
        self.span.at(self.epoch())
    }

    /// The end of the log.
    pub(crate) fn last(&self) -> Option<LogIndex> {
        self.log.state().last.map(|(_, index)| index)
    }

    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        self.log
            .state()
            .last
            .map(|(term, index)| crate::types::log_id(term, index))
    }

    /// Whether this replica campaigns for a group most of which lost log.
    pub(crate) fn all_answered(&self) -> bool {
        self.all_answered_until
            .get()
            .is_some_and(|until| self.env.now() < until)
    }

    pub(crate) fn event(&self, event: &ReplicaEvent) {
        self.machine.borrow_mut().event(event);
    }

    /// Whether openraft may campaign when its own timeouts have passed. A flagged replica's never
    /// do (law 8).
    pub(crate) fn allow_elections(&self, may_elect: bool) {
        if let Some(raft) = self.raft() {
            raft.runtime_config().elect(may_elect && !self.no_vote());
        }
    }

    /// Tells the machine once per term that this leader is ready.
    pub(crate) fn announce_ready(&self) {
        if self.ready_term.get() == self.applied.get().map(|(term, _)| term) {
            return;
        }
        let view = self.view();
        if view.leader_ready && self.ready_term.get() != Some(view.term) {
            self.ready_term.set(Some(view.term));
            if self
                .flagged_campaign
                .take()
                .is_some_and(|term| term < view.term.get())
            {
                Counts::add(&self.board.counts.possible_losses, 1);
                tracing::error!(
                    parent: &self.span(),
                    group = %self.group,
                    "this replica leads although most of its group had lost log: committed records \
                     may be lost"
                );
            }
            self.event(&ReplicaEvent::BecameReady { term: view.term });
        }
    }

    /// Asks a majority whether this replica still leads in `term`. `Err(None)`: not known, try
    /// again.
    pub(crate) async fn confirm_leadership(&self, term: Term) -> Result<(), Option<RefuseReason>> {
        let not_leader = || {
            Some(RefuseReason::NotLeader {
                leader: self.leader_node(),
            })
        };
        let Some(raft) = self.raft() else {
            return Err(Some(RefuseReason::Stopped));
        };
        if !self.is_leader() || self.term() != term {
            return Err(not_leader());
        }
        if !self.speaks() {
            return Err(None);
        }
        let _hurry = self.hurry_beats();
        let confirmed = tokio::time::timeout(
            self.config.read_barrier_max,
            raft.get_read_linearizer(ReadPolicy::ReadIndex),
        )
        .await;
        match confirmed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
                if forward.reason == ForwardReason::LeaseExpired {
                    return Err(None);
                }
                let leader = forward.leader_node.map(|node| node.node);
                Err(Some(RefuseReason::NotLeader { leader }))
            }
            Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) | Err(_) => {
                Err(None)
            }
            Ok(Err(RaftError::Fatal(_))) => Err(Some(RefuseReason::Stopped)),
        }
    }

    /// The replica takes nothing more.
    pub(crate) fn set_stopped(&self) {
        self.stopped.set(true);
        self.stopping.notify_waiters();
    }

    /// Ends when the replica stops.
    pub(crate) async fn until_stopped(&self) {
        let stopping = self.stopping.notified();
        if !self.stopped.get() {
            stopping.await;
        }
    }

    /// Waits until `index` is applied here; `false` if the replica stops first.
    pub(crate) async fn await_applied(&self, index: LogIndex) -> bool {
        loop {
            let changed = self.applied_changed.notified();
            if self
                .applied
                .get()
                .is_some_and(|(_, applied)| applied >= index)
            {
                return true;
            }
            if self.stopped.get() {
                return false;
            }
            changed.await;
        }
    }

    /// Tells every other member to run its ticks: this instance leads no more (law 13).
    pub(crate) fn resign(&self) {
        let resigned = self
            .vote()
            .filter(|vote| vote.committed && vote.leader_id.voted_for == self.id.get())
            .map(|vote| vote.leader_id.term);
        for (id, node, _) in self.members() {
            if id != self.id {
                let route = crate::wire::Route::new(self.group, self.id, id);
                let note = crate::wire::WakeNote { route, resigned };
                let _ = self.board.pack(node, |packed| packed.wakes.push(note));
            }
        }
    }

    /// A follower takes nothing, or holds less than it had said: it is out of sync.
    pub(crate) fn forget_follower(&self, replica: u64) {
        self.progress.forget(replica, self.last(), self.env.now());
    }
}

fn role_of(state: ServerState) -> Role {
    match state {
        ServerState::Leader => Role::Leader,
        ServerState::Candidate => Role::Candidate,
        ServerState::Follower => Role::Follower,
        ServerState::Learner => Role::Learner,
        ServerState::Shutdown => Role::Stopped,
    }
}
