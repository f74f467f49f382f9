//! The groups of the classic protocol that run: who waits in them, their clocks, and what follows
//! from what their machines say.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::planted::{self, Bug};
use corduroy_group::classic::{
    ClassicGroup, ClassicLimits, Effect, JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer,
    Ticket, validate_group_id,
};
use corduroy_group::consumer::to_classic;
use corduroy_group::records::GroupRecord;
use corduroy_group::table::{GroupKind, GroupState, GroupTable};
use corduroy_group::{GroupError, Now};
use corduroy_protocol::ErrorCode;
use tracing::{debug, info};

use crate::config::GroupConfigs;

use super::call::Reply;
use super::consumer::Task;
use super::coordinator::{Coordinator, Held, Moment};
use super::migration::ClassicTask;

/// Looking for clients that went away walks everybody who waits: not more often than this.
const LOOK_FOR_GONE: Duration = Duration::from_secs(1);

/// What a coordinator holds while it leads, beside what is durable. Goes with its term.
pub(super) struct Reign {
    held: Held,
    groups: HashMap<String, Running>,
    deadlines: BTreeSet<(Now, String)>,
    /// Law: the members of all groups that were given an id and have not joined with it.
    pending: usize,
}

struct Running {
    group: ClassicGroup,
    /// Law: `(deadline, name)` is in [`Reign::deadlines`].
    deadline: Option<Now>,
}

/// Who waits for an answer, and in which group.
enum Waiter {
    Join(String, Reply<JoinAnswer>),
    Sync(String, Reply<SyncAnswer>),
}

impl Waiter {
    fn group(&self) -> &str {
        match self {
            Waiter::Join(group, _) | Waiter::Sync(group, _) => group,
        }
    }

    fn has_gone(&self) -> bool {
        match self {
            Waiter::Join(_, reply) => reply.is_closed(),
            Waiter::Sync(_, reply) => reply.is_closed(),
        }
    }
}

/// Everybody who waits in a classic group.
#[derive(Default)]
pub(super) struct Waiters {
    by_ticket: RefCell<HashMap<Ticket, Waiter>>,
    next: Cell<u64>,
    /// When clients that went away were last looked for.
    gone_looked_at: Cell<Now>,
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.by_ticket.borrow().is_empty()
    }

    /// Without an answer, whoever asked says that no coordinator is here.
    pub(super) fn clear(&self) {
        self.by_ticket.borrow_mut().clear();
    }

    fn add(&self, waiter: Waiter) -> Ticket {
        let ticket = Ticket(self.next.get());
        self.next.set(ticket.0 + 1);
        self.by_ticket.borrow_mut().insert(ticket, waiter);
        ticket
    }

    /// Whose client has gone away; none before it is time to look again.
    fn take_gone(&self, now: Now) -> Vec<(Ticket, String)> {
        if now < self.gone_looked_at.get() + LOOK_FOR_GONE {
            return Vec::new();
        }
        self.gone_looked_at.set(now);
        let mut waiters = self.by_ticket.borrow_mut();
        let gone = waiters.extract_if(|_, waiter| waiter.has_gone());
        gone.map(|(ticket, waiter)| (ticket, waiter.group().to_owned()))
            .collect()
    }
}

impl Coordinator {
    /// Clients that went away while they waited: their members expire like silent ones.
    pub(super) fn forget_gone(self: &Rc<Self>, now: Now) {
        for (ticket, name) in self.waiters.take_gone(now) {
            self.with_group(&name, |group, _, _| group.forget(ticket, now));
        }
    }

    /// The one door to a classic group: runs `act` on it, then does what follows from it. A group
    /// that is not running begins as its durable state says; one that has nothing left to wait for
    /// is let go of.
    pub(super) fn with_group<R>(
        self: &Rc<Self>,
        name: &str,
        act: impl FnOnce(&mut ClassicGroup, Moment, &mut Vec<Effect>) -> R,
    ) -> Option<R> {
        let moment = self.moment();
        let mut effects = Vec::new();
        let limits = classic_limits(&self.configs());
        let result = {
            let mut reign = self.reign.borrow_mut();
            let reign = reign.as_mut()?;
            if !reign.groups.contains_key(name) {
                let group = self.dormant(name, limits, moment.now);
                reign.groups.insert(name.to_owned(), group);
            }
            let running = reign.groups.get_mut(name)?;
            running.group.set_limits(limits);
            let before = (running.group.generation(), running.group.pending_len());
            let result = act(&mut running.group, moment, &mut effects);
            if running.group.generation() > before.0 {
                self.count_rebalance();
            }
            reign.pending = (reign.pending + running.group.pending_len()).saturating_sub(before.1);
            let first = reign.deadlines.first().map(|(at, _)| *at);
            reign.rearm(name);
            let earlier = reign.deadlines.first().map(|(at, _)| *at) < first || first.is_none();
            if earlier && !reign.deadlines.is_empty() {
                self.wake();
            }
            reign.let_go(name);
            result
        };
        for effect in effects {
            self.follow(name, effect);
        }
        Some(result)
    }

    /// A group without members, as it is before it runs.
    fn dormant(&self, name: &str, limits: ClassicLimits, now: Now) -> Running {
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(name));
        let group = match state {
            Some(GroupState {
                kind: GroupKind::Classic(value),
                last_generation,
                ..
            }) => ClassicGroup::from_value(limits, value, *last_generation, now),
            Some(GroupState {
                kind: GroupKind::Consumer(consumer),
                last_generation,
                ..
            }) => ClassicGroup::new(limits, consumer.epoch().max(*last_generation)),
            Some(state) => ClassicGroup::new(limits, state.last_generation),
            None => ClassicGroup::new(limits, 0),
        };
        Running {
            group,
            deadline: None,
        }
    }

    fn follow(self: &Rc<Self>, name: &str, effect: Effect) {
        match effect {
            Effect::Persist(write, value) => {
                let Ok(held) = self.held() else { return };
                if self.has_consumer_members(name) {
                    // It became a group of the consumer protocol in between.
                    self.close_running(name, ErrorCode::RebalanceInProgress);
                    return;
                }
                let mut records = self.make_classic(name);
                records.push(GroupRecord::Classic {
                    group: name.to_owned(),
                    value: Some(value),
                });
                let written = self.writer.write(held.term, &records);
                let (coordinator, name) = (self.clone(), name.to_owned());
                self.env.spawn_local(async move {
                    let outcome = written.await;
                    if !coordinator.holds(held) {
                        return;
                    }
                    coordinator.with_group(&name, |group, moment, effects| {
                        group.persisted(write, outcome, moment.now, moment.now_ms, effects);
                    });
                });
            }
            Effect::Note(note) => {
                info!(group = name, "{note}");
            }
            answer => self.answer(answer),
        }
    }

    /// What must go before the first record of a classic group: the rest of one of the consumer
    /// protocol that has no members any more.
    fn make_classic(&self, name: &str) -> Vec<GroupRecord> {
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(name));
        match state.map(|state| &state.kind) {
            // Law: classic members of a consumer group with members do not come this way.
            Some(GroupKind::Consumer(consumer)) => to_classic(name, consumer).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    pub(super) fn answer(&self, effect: Effect) {
        // A client that has gone away needs no answer.
        match effect {
            Effect::Join(ticket, answer) => {
                if let Some(Waiter::Join(_, reply)) =
                    self.waiters.by_ticket.borrow_mut().remove(&ticket)
                {
                    let _gone = reply.send(answer);
                }
            }
            Effect::Sync(ticket, answer) => {
                if let Some(Waiter::Sync(_, reply)) =
                    self.waiters.by_ticket.borrow_mut().remove(&ticket)
                {
                    let _gone = reply.send(answer);
                }
            }
            Effect::Persist(..) | Effect::Note(_) => {}
        }
    }

    /// What a classic member asks, of whichever machine its group has.
    pub(super) fn classic(self: &Rc<Self>, name: String, task: ClassicTask) {
        let may = validate_group_id(&name).and_then(|()| Ok(self.serving()?));
        match may {
            Err(error) => task.refuse(error),
            Ok(_) if matches!(task, ClassicTask::Join(..)) && !self.has_room(&name) => {
                task.refuse(self.too_many_groups());
            }
            Ok(_) if self.is_consumer(&name) => self.hand_in(name, Task::Classic(task)),
            Ok(_) => self.serve_classic(name, task),
        }
    }

    /// What a member asks of a classic group.
    pub(super) fn serve_classic(self: &Rc<Self>, name: String, task: ClassicTask) {
        match task {
            ClassicTask::Join(request, reply) if self.has_too_many_pending(&request) => {
                let refusal = GroupError::new(
                    ErrorCode::CoordinatorLoadInProgress,
                    "too many members have been given an id and have not joined with it",
                );
                ClassicTask::Join(request, reply).refuse(refusal);
            }
            ClassicTask::Join(request, reply) => {
                debug!(
                    group = name,
                    member = request.member_id,
                    reason = request.reason,
                    "joins"
                );
                let ticket = self.waiters.add(Waiter::Join(name.clone(), reply));
                self.with_group(&name, |group, moment, effects| {
                    group.join(*request, ticket, moment.now, moment.now_ms, effects);
                });
            }
            ClassicTask::Sync(mut request, reply) => {
                if planted::is(Bug::PartitionGivenTwice) {
                    let plan = request.assignments.values().max_by_key(|plan| plan.len());
                    let plan = plan.cloned().unwrap_or_default();
                    request
                        .assignments
                        .values_mut()
                        .for_each(|own| own.clone_from(&plan));
                }
                let ticket = self.waiters.add(Waiter::Sync(name.clone(), reply));
                self.with_group(&name, |group, moment, effects| {
                    group.sync(*request, ticket, moment.now, effects);
                });
            }
            ClassicTask::Heartbeat(identity, reply) => {
                let answer = self.with_group(&name, |group, moment, _| {
                    group.heartbeat(&identity, moment.now)
                });
                let answer = answer.unwrap_or(Err(ErrorCode::NotCoordinator.into()));
                let _gone = reply.send(answer);
            }
            ClassicTask::Leave(members, reply) => {
                let answer = self.with_group(&name, |group, moment, effects| {
                    group.leave(members, moment.now, moment.now_ms, effects)
                });
                let _gone = reply.send(answer.ok_or(ErrorCode::NotCoordinator.into()));
            }
        }
    }

    /// Whether this join would be given one more id to hold than `group.coordinator.max.pending.members`.
    fn has_too_many_pending(&self, request: &JoinRequest) -> bool {
        let is_given_id = request.member_id.is_empty()
            && request.instance_id.is_none()
            && request.requires_known_member_id;
        let reign = self.reign.borrow();
        let pending = reign.as_ref().map_or(0, |reign| reign.pending);
        is_given_id && pending >= self.configs().pending_members_max
    }

    /// Whether a group of this name is here, or may come: `group.coordinator.max.groups` holds for
    /// those that are durable and for those that run, each.
    pub(super) fn has_room(&self, name: &str) -> bool {
        let groups_max = self.configs().groups_max;
        let reign = self.reign.borrow();
        let (runs, running) = reign.as_ref().map_or((false, 0), |reign| {
            (reign.groups.contains_key(name), reign.groups.len())
        });
        let machine = self.partition.machine();
        let table = machine.groups();
        let stored = table.map_or(0, GroupTable::len);
        (stored < groups_max && running + self.consumers.len() < groups_max)
            || runs
            || self.consumers.runs(name)
            || table.is_some_and(|table| table.get(name).is_some())
    }

    pub(super) fn too_many_groups(&self) -> GroupError {
        GroupError::new(
            ErrorCode::CoordinatorLoadInProgress,
            format!(
                "a partition of __consumer_offsets has at most {} groups \
                 (group.coordinator.max.groups)",
                self.configs().groups_max
            ),
        )
    }

    /// What a running group says, if it runs.
    pub(super) fn running<R>(
        &self,
        name: &str,
        look: impl FnOnce(&ClassicGroup) -> R,
    ) -> Option<R> {
        let reign = self.reign.borrow();
        let running = reign.as_ref()?.groups.get(name)?;
        Some(look(&running.group))
    }

    /// Names of the groups that run.
    pub(super) fn running_names(&self) -> Vec<String> {
        let reign = self.reign.borrow();
        reign
            .iter()
            .flat_map(|reign| reign.groups.keys().cloned())
            .collect()
    }

    /// Whether a member of a running classic group may commit; it is heard by that.
    pub(super) fn check_classic_commit(
        self: &Rc<Self>,
        name: &str,
        identity: &MemberIdentity,
    ) -> Option<Result<(), GroupError>> {
        let is_empty = self.running(name, ClassicGroup::is_empty)?;
        if is_empty {
            let is_writing = self.running(name, ClassicGroup::is_writing)?;
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(name));
            return match state.map(|state| &state.kind) {
                // Which of the two it will be is on its way.
                Some(GroupKind::Consumer(_)) if is_writing => {
                    Some(Err(ErrorCode::CoordinatorLoadInProgress.into()))
                }
                // What is left of the classic group says nothing about its successor.
                Some(GroupKind::Consumer(_)) => None,
                // Nobody is left, even where the record that says so is still on its way: a commit
                // takes it along (see `owed`).
                _ if identity.generation < 0 => Some(Ok(())),
                _ => Some(Err(ErrorCode::UnknownMemberId.into())),
            };
        }
        self.with_group(name, |group, moment, _| {
            group.check_commit(identity, moment.now)
        })
    }

    /// The record of a group without members that its durable state gives members, or will give
    /// them when what is on its way is applied: what is written with it holds of the group as it is
    /// now, whatever becomes of the writes before.
    pub(super) fn owed(&self, name: &str) -> Option<GroupRecord> {
        let (is_writing, value) = self.running(name, |group| {
            group
                .is_empty()
                .then(|| (group.is_writing(), group.value()))
        })??;
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(name));
        let owes = match state.map(|state| (&state.kind, state.has_members())) {
            Some((GroupKind::Consumer(_), _)) => false,
            Some((GroupKind::Classic(_), true)) => true,
            _ => is_writing,
        };
        owes.then(|| GroupRecord::Classic {
            group: name.to_owned(),
            value: Some(value),
        })
    }

    /// A classic group ends: whoever is parked in it is told `code`.
    pub(super) fn close_running(&self, name: &str, code: ErrorCode) {
        let running = {
            let mut reign = self.reign.borrow_mut();
            reign.as_mut().and_then(|reign| reign.remove(name))
        };
        let mut effects = Vec::new();
        if let Some(mut running) = running {
            running.group.close(code, &mut effects);
        }
        for effect in effects {
            self.answer(effect);
        }
    }

    /// A deleted group: nobody waits in it, and nothing of it runs.
    pub(super) fn drop_running(&self, name: &str) {
        if let Some(reign) = self.reign.borrow_mut().as_mut() {
            reign.remove(name);
        }
    }
}

impl Reign {
    pub(super) fn new(held: Held) -> Reign {
        Reign {
            held,
            groups: HashMap::new(),
            deadlines: BTreeSet::new(),
            pending: 0,
        }
    }

    pub(super) const fn held(&self) -> Held {
        self.held
    }

    /// How many groups run.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// A group goes on as its durable state says.
    pub(super) fn resume(&mut self, name: &str, group: ClassicGroup) {
        let running = Running {
            group,
            deadline: None,
        };
        self.groups.insert(name.to_owned(), running);
        self.rearm(name);
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A group whose deadline has come.
    pub(super) fn due(&self, now: Now) -> Option<String> {
        let first = self.deadlines.first().filter(|(at, _)| *at <= now);
        first.map(|(_, name)| name.clone())
    }

    /// All groups end: whoever is parked is told `code`.
    pub(super) fn close(self, code: ErrorCode) -> Vec<Effect> {
        let mut effects = Vec::new();
        for mut running in self.groups.into_values() {
            running.group.close(code, &mut effects);
        }
        effects
    }

    /// Puts a group's next deadline where the clock finds it.
    fn rearm(&mut self, name: &str) {
        let Some(running) = self.groups.get_mut(name) else {
            return;
        };
        let next = running.group.next_deadline();
        if next == running.deadline {
            return;
        }
        if let Some(old) = running.deadline.take() {
            self.deadlines.remove(&(old, name.to_owned()));
        }
        if let Some(next) = next {
            self.deadlines.insert((next, name.to_owned()));
        }
        running.deadline = next;
    }

    /// Lets go of a group that holds nothing that its durable state does not.
    fn let_go(&mut self, name: &str) {
        let idle = self.groups.get(name).is_some_and(|running| {
            running.group.is_empty() && !running.group.is_writing() && running.deadline.is_none()
        });
        if idle {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &str) -> Option<Running> {
        let running = self.groups.remove(name)?;
        self.pending = self.pending.saturating_sub(running.group.pending_len());
        if let Some(at) = running.deadline {
            self.deadlines.remove(&(at, name.to_owned()));
        }
        Some(running)
    }
}

pub(super) fn classic_limits(configs: &GroupConfigs) -> ClassicLimits {
    ClassicLimits {
        session_timeout_min: configs.session_timeout_min,
        session_timeout_max: configs.session_timeout_max,
        initial_rebalance_delay: configs.initial_rebalance_delay,
        members_max: configs.members_max,
    }
}
