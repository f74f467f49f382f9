//! Members of the classic protocol in groups of the consumer protocol, and groups that change from
//! one to the other while they have members (KIP-848, "online migration").

use std::rc::Rc;

use corduroy_group::GroupError;
use corduroy_group::classic::{
    JoinAnswer, JoinRequest, Leaving, MemberIdentity, SyncAnswer, SyncRequest,
};
use corduroy_group::consumer::{
    ConsumerLimits, ConsumerState, HeartbeatRequest, MEMBER_EPOCH_JOIN, MigrationLimits,
    classic_heartbeat, classic_join, classic_leave, classic_sync, downgrade, from_classic,
    heartbeat, upgrade,
};
use corduroy_group::records::GroupRecord;
use corduroy_group::table::GroupKind;
use corduroy_protocol::ErrorCode;
use tracing::info;

use crate::config::GroupConfigs;

use super::call::Reply;
use super::classic::classic_limits;
use super::consumer::{Decided, Then};
use super::coordinator::Coordinator;
use super::topics::ImageTopics;

/// What LeaveGroup answers.
type LeaveAnswer = Result<Vec<Result<(), GroupError>>, GroupError>;

/// What a member of the classic protocol asks.
pub(super) enum ClassicTask {
    Join(Box<JoinRequest>, Reply<JoinAnswer>),
    Sync(Box<SyncRequest>, Reply<SyncAnswer>),
    Heartbeat(MemberIdentity, Reply<Result<(), GroupError>>),
    Leave(Vec<Leaving>, Reply<LeaveAnswer>),
}

impl ClassicTask {
    pub(super) fn refuse(self, error: GroupError) {
        // A client that has gone away needs no answer.
        match self {
            ClassicTask::Join(request, reply) => {
                let _gone = reply.send(JoinAnswer {
                    member_id: request.member_id,
                    result: Err(error),
                });
            }
            ClassicTask::Sync(_, reply) => {
                let _gone = reply.send(Err(error));
            }
            ClassicTask::Heartbeat(_, reply) => {
                let _gone = reply.send(Err(error));
            }
            ClassicTask::Leave(_, reply) => {
                let _gone = reply.send(Err(error));
            }
        }
    }
}

/// What a classic member is told when a decision's records are applied.
pub(super) enum ClassicThen {
    Joined(Box<JoinAnswer>, Reply<JoinAnswer>),
    Left(Vec<Result<(), GroupError>>, Reply<LeaveAnswer>),
}

impl ClassicThen {
    pub(super) fn refuse(self, code: ErrorCode) {
        match self {
            ClassicThen::Joined(answer, reply) => {
                let _gone = reply.send(JoinAnswer {
                    member_id: answer.member_id,
                    result: Err(code.into()),
                });
            }
            ClassicThen::Left(_, reply) => {
                let _gone = reply.send(Err(code.into()));
            }
        }
    }
}

/// What a member asks of whichever machine its group has.
impl Coordinator {
    /// Decides what a classic member asks of a group that is, or was, of the consumer protocol.
    pub(super) fn decide_classic(
        self: &Rc<Self>,
        name: &str,
        task: ClassicTask,
        topics: &ImageTopics,
        now_ms: i64,
    ) -> Decided {
        let machine = self.partition.machine();
        let group = machine.groups().and_then(|table| table.get(name));
        let state = match group.map(|group| &group.kind) {
            Some(GroupKind::Consumer(state)) if !state.members().is_empty() => state,
            _ => {
                drop(machine);
                self.serve_classic(name.to_owned(), task);
                return Decided::Answered;
            }
        };
        match task {
            ClassicTask::Join(request, reply) => {
                let configs = self.configs();
                let limits = (&consumer_limits(&configs), &classic_limits(&configs));
                let mut decided = classic_join(name, state, &request, topics, limits, now_ms);
                let records = decided.records;
                let down = self.downgraded(name, state, &records, topics, now_ms);
                if let (Some(_), Ok(joined)) = (&down, &mut decided.answer.result) {
                    // It is told of the rebalance when it syncs.
                    joined.generation = state.epoch();
                }
                let records = down.unwrap_or(records);
                drop(machine);
                let then = ClassicThen::Joined(Box::new(decided.answer), reply);
                if records.is_empty() {
                    self.tell_classic(name, then);
                    return Decided::Answered;
                }
                Decided::Write(records, Then::Classic(then))
            }
            ClassicTask::Leave(leaving, reply) => {
                let (records, results) = classic_leave(name, state, &leaving);
                drop(machine);
                let then = ClassicThen::Left(results, reply);
                if records.is_empty() {
                    self.tell_classic(name, then);
                    return Decided::Answered;
                }
                Decided::Write(records, Then::Classic(then))
            }
            ClassicTask::Sync(request, reply) => {
                let answer = classic_sync(state, &request, topics);
                drop(machine);
                let id = &request.identity.member_id;
                self.heard_classic(name, id, answer.as_ref().map(|_| Heard::Synced));
                let _gone = reply.send(answer);
                Decided::Answered
            }
            ClassicTask::Heartbeat(identity, reply) => {
                let answer = classic_heartbeat(state, &identity);
                drop(machine);
                let outcome = answer.as_ref().map(|()| Heard::Alive);
                self.heard_classic(name, &identity.member_id, outcome);
                let _gone = reply.send(answer);
                Decided::Answered
            }
        }
    }

    /// A decision's records are applied.
    pub(super) fn tell_classic(&self, name: &str, then: ClassicThen) {
        match then {
            ClassicThen::Joined(answer, reply) => {
                if answer.result.is_ok() {
                    self.heard_classic(name, &answer.member_id, Ok(Heard::Joined));
                }
                let _gone = reply.send(*answer);
            }
            ClassicThen::Left(results, reply) => {
                let _gone = reply.send(Ok(results));
            }
        }
    }

    /// A classic member spoke: its session begins anew, and what it owes is another thing now.
    fn heard_classic(&self, name: &str, id: &str, outcome: Result<Heard, &GroupError>) {
        let rejoins = outcome.is_err_and(|error| error.code == ErrorCode::RebalanceInProgress);
        if outcome.is_err() && !rejoins {
            return;
        }
        self.heard(name, id);
        let now = self.moment().now;
        let machine = self.partition.machine();
        let group = machine.groups().and_then(|table| table.get(name));
        let Some(GroupKind::Consumer(state)) = group.map(|group| &group.kind) else {
            return;
        };
        let Some(member) = state.members().get(id) else {
            return;
        };
        self.consumers.with_timers(name, |timers| match outcome {
            Ok(Heard::Joined) => timers.owes_sync(id, member, now),
            Ok(Heard::Synced) => timers.synced(id),
            Ok(Heard::Alive) => {}
            Err(_) => timers.owes_join(id, member, now),
        });
        self.wake();
    }

    /// Decides ConsumerGroupHeartbeat, whatever the group is now.
    pub(super) fn judge_heartbeat(
        self: &Rc<Self>,
        name: &str,
        request: &HeartbeatRequest,
        topics: &ImageTopics,
        now_ms: i64,
    ) -> Result<(Vec<GroupRecord>, corduroy_group::consumer::HeartbeatAnswer), GroupError> {
        let configs = self.configs();
        let limits = consumer_limits(&configs);
        self.resume_classic(name);
        let running = self.running(name, |group| (group.len(), group.is_writing()));
        match running {
            // What is under way would come after the group's end.
            Some((_, true)) => return Err(ErrorCode::CoordinatorLoadInProgress.into()),
            Some((members, false)) if members > 0 => {
                return self.judge_upgrade(name, request, topics, now_ms);
            }
            _ => {}
        }
        let machine = self.partition.machine();
        let group = machine.groups().and_then(|table| table.get(name));
        let (mut records, decision) = match group.map(|group| (&group.kind, group.last_generation))
        {
            Some((GroupKind::Consumer(state), _)) => {
                let mut decision = heartbeat(name, Some(state), request, topics, &limits, now_ms)?;
                let down = self.downgraded(name, state, &decision.records, topics, now_ms);
                if let Some(records) = down {
                    decision.records = records;
                }
                (Vec::new(), decision)
            }
            Some((GroupKind::Classic(value), last_generation)) => {
                let conversion = from_classic(name, value, last_generation)?;
                let state = Some(&conversion.state);
                let decision = heartbeat(name, state, request, topics, &limits, now_ms)?;
                (conversion.records, decision)
            }
            Some((GroupKind::Simple, _)) | None => (
                Vec::new(),
                heartbeat(name, None, request, topics, &limits, now_ms)?,
            ),
        };
        drop(machine);
        // A classic group without members may still wait for those that were given an id.
        self.close_running(name, ErrorCode::RebalanceInProgress);
        records.extend(decision.records);
        Ok((records, decision.answer))
    }

    /// A member of the consumer protocol comes to a classic group with members.
    fn judge_upgrade(
        &self,
        name: &str,
        request: &HeartbeatRequest,
        topics: &ImageTopics,
        now_ms: i64,
    ) -> Result<(Vec<GroupRecord>, corduroy_group::consumer::HeartbeatAnswer), GroupError> {
        if request.member_epoch != MEMBER_EPOCH_JOIN {
            return Err(GroupError::new(
                ErrorCode::GroupIdNotFound,
                format!("group {name} has members that use the classic protocol"),
            ));
        }
        let configs = self.configs();
        let limits = MigrationLimits {
            policy: configs.consumer_migration,
            members_max: configs.consumer_members_max,
        };
        let conversion = {
            let machine = self.partition.machine();
            let group = machine.groups().and_then(|table| table.get(name));
            let last_generation = group.map_or(0, |group| group.last_generation);
            let durable = match group.map(|group| &group.kind) {
                Some(GroupKind::Classic(value)) => Some(value),
                _ => None,
            };
            let convert =
                |running: &_| upgrade(name, running, durable, last_generation, topics, limits);
            let conversion = self.running(name, convert);
            conversion.unwrap_or(Err(ErrorCode::NotCoordinator.into()))?
        };
        let (state, limits) = (Some(&conversion.state), consumer_limits(&configs));
        let decision = heartbeat(name, state, request, topics, &limits, now_ms)?;
        info!(
            group = name,
            classic_members = conversion.state.members().len(),
            "a classic group becomes one of the consumer protocol"
        );
        // Whoever is parked joins again, and finds the group's new protocol.
        self.close_running(name, ErrorCode::RebalanceInProgress);
        let mut records = conversion.records;
        records.extend(decision.records);
        Ok((records, decision.answer))
    }

    /// What to write instead of `records` if these leave classic members alone.
    pub(super) fn downgraded(
        &self,
        name: &str,
        state: &ConsumerState,
        records: &[GroupRecord],
        topics: &ImageTopics,
        now_ms: i64,
    ) -> Option<Vec<GroupRecord>> {
        let configs = self.configs();
        let limits = MigrationLimits {
            policy: configs.consumer_migration,
            members_max: configs.members_max,
        };
        let instead = downgrade(name, state, records, topics, limits, now_ms)?;
        info!(
            group = name,
            "the last member of the consumer protocol goes: the group becomes a classic one"
        );
        Some(instead)
    }

    /// A classic group with members that does not run begins as its durable state says: it has
    /// changed its protocol, or a change of it failed.
    pub(super) fn resume_classic(self: &Rc<Self>, name: &str) {
        let is_classic = {
            let machine = self.partition.machine();
            let group = machine.groups().and_then(|table| table.get(name));
            match group.map(|group| &group.kind) {
                Some(GroupKind::Classic(value)) => !value.members.is_empty(),
                _ => false,
            }
        };
        if is_classic && self.running(name, |_| ()).is_none() {
            self.with_group(name, |_, _, _| ());
        }
    }

    /// Whether classic members of this group are members of a consumer group, or may be when what
    /// is under way is applied.
    pub(super) fn is_consumer(&self, name: &str) -> bool {
        self.consumers.runs(name) || self.has_consumer_members(name)
    }

    pub(super) fn has_consumer_members(&self, name: &str) -> bool {
        let machine = self.partition.machine();
        let group = machine.groups().and_then(|table| table.get(name));
        match group.map(|group| &group.kind) {
            Some(GroupKind::Consumer(state)) => !state.members().is_empty(),
            _ => false,
        }
    }
}

/// What was heard of a classic member.
#[derive(Clone, Copy)]
enum Heard {
    Joined,
    Synced,
    Alive,
}

fn consumer_limits(configs: &GroupConfigs) -> ConsumerLimits {
    ConsumerLimits {
        session_timeout: configs.consumer_session_timeout,
        heartbeat_interval: configs.consumer_heartbeat_interval,
        members_max: configs.consumer_members_max,
        assignors: configs.consumer_assignors.clone(),
    }
}
