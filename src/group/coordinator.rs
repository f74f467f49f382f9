//! The coordinator of one partition of `__consumer_offsets`: on every replica, acting where it leads.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_group::classic::{
    ClassicGroup, ClassicLimits, Effect, JoinAnswer, MemberIdentity, SyncAnswer, Ticket,
    validate_group_id,
};
use corduroy_group::consumer::to_classic;
use corduroy_group::records::GroupRecord;
use corduroy_group::table::{GroupKind, GroupState};
use corduroy_group::{GroupError, Now};
use corduroy_protocol::ErrorCode;
use corduroy_record::Term;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::config::GroupConfigs;
use crate::metadata::MetadataView;
use crate::partition::Partition;

use super::call::{GroupCall, Reply};
use super::consumer::{ConsumerGroups, Task};
use super::migration::ClassicTask;
use super::topics::GoneTopics;
use super::writer::Writer;

/// A clock that nothing waits for still ticks so often: clients that went away are noticed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Looking for such clients walks everybody who waits: not more often than this.
const LOOK_FOR_GONE: Duration = Duration::from_secs(1);

/// While there are writes, the log's size is looked at so often.
const LOOK_AT_SIZE: Duration = Duration::from_secs(5);

/// Groups and offsets of one partition of `__consumer_offsets`.
pub struct Coordinator {
    pub(super) env: Env,
    pub(super) partition: Rc<Partition>,
    pub(super) metadata: MetadataView,
    pub(super) writer: Rc<Writer>,
    pub(super) consumers: ConsumerGroups,
    pub(super) gone_topics: GoneTopics,
    started: Instant,
    configs: RefCell<Option<(u64, Rc<GroupConfigs>)>>,
    reign: RefCell<Option<Reign>>,
    next_office: Cell<u64>,
    waiters: RefCell<HashMap<Ticket, Waiter>>,
    next_ticket: Cell<u64>,
    /// When clients that went away were last looked for.
    gone_looked_at: Cell<Now>,
    wake: Rc<Notify>,
    refreshing: Cell<bool>,
    expiry_looked_at: Cell<Now>,
    size_looked_at: Cell<Now>,
    rebalances: Cell<u64>,
}

/// Tells one reign from another, also of the same term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Office(u64);

/// What a coordinator holds while it leads, beside what is durable. Goes with its term.
struct Reign {
    term: Term,
    office: Office,
    groups: HashMap<String, Running>,
    deadlines: BTreeSet<(Now, String)>,
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

/// The clocks of one moment.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// Since the coordinator was made.
    pub now: Now,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl Coordinator {
    /// The coordinator of a partition's replica; [`Coordinator::run`] keeps its clocks.
    pub fn new(env: Env, partition: Rc<Partition>, metadata: MetadataView) -> Rc<Coordinator> {
        Rc::new(Coordinator {
            writer: Writer::new(env.clone(), partition.clone()),
            started: env.now(),
            env,
            partition,
            metadata,
            consumers: ConsumerGroups::default(),
            gone_topics: GoneTopics::default(),
            gone_looked_at: Cell::new(Now::ZERO),
            configs: RefCell::default(),
            reign: RefCell::default(),
            next_office: Cell::new(0),
            waiters: RefCell::default(),
            next_ticket: Cell::new(0),
            wake: Rc::new(Notify::new()),
            refreshing: Cell::new(false),
            expiry_looked_at: Cell::new(Now::ZERO),
            size_looked_at: Cell::new(Now::ZERO),
            rebalances: Cell::new(0),
        })
    }

    /// Follows the partition's leadership and runs the groups' timers, until the partition closes.
    pub async fn run(self: Rc<Self>) {
        loop {
            self.partition.wait_for_change(&self.wake);
            let mut changed = std::pin::pin!(self.metadata.changed());
            // Registered before the look, so that no change in between is missed.
            futures::future::poll_immediate(&mut changed).await;
            if self.partition.is_closed() {
                break;
            }
            let reigns = self.serving().is_ok();
            self.gone_topics
                .look(&self.metadata.image(), self.env.unix_millis());
            if reigns {
                self.look_at_size();
                self.tick();
                self.forget_gone_topics();
            }
            let next = reigns.then(|| self.next_deadline()).flatten();
            let settling = self.settles_first();
            let now = self.env.now();
            let until = match next {
                Some(next) => Some((self.started + next).max(now)),
                None if self.waiters.borrow().is_empty() => None,
                None => Some(now + LOOK_AGAIN),
            };
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = &mut changed => {}
                () = timer => {}
                () = self.writer.idle(), if settling => {}
            }
        }
        self.abdicate(ErrorCode::NotCoordinator);
    }

    /// Serves one call. What has to wait waits beside, so that calls are taken in their order.
    pub fn serve(self: &Rc<Self>, call: GroupCall) {
        match call {
            GroupCall::Join {
                group,
                request,
                reply,
            } => self.classic(group, ClassicTask::Join(Box::new(request), reply)),
            GroupCall::Sync {
                group,
                request,
                reply,
            } => self.classic(group, ClassicTask::Sync(Box::new(request), reply)),
            GroupCall::Heartbeat {
                group,
                identity,
                reply,
            } => self.classic(group, ClassicTask::Heartbeat(identity, reply)),
            GroupCall::Leave {
                group,
                members,
                reply,
            } => self.classic(group, ClassicTask::Leave(members, reply)),
            GroupCall::Commit {
                group,
                request,
                reply,
            } => self.commit(group, request, reply),
            GroupCall::FetchOffsets {
                group,
                request,
                reply,
            } => self.fetch_offsets(group, request, reply),
            GroupCall::DeleteOffsets {
                group,
                partitions,
                reply,
            } => self.delete_offsets(group, partitions, reply),
            GroupCall::List { filter, reply } => {
                let _gone = reply.send(self.list(&filter));
            }
            GroupCall::Describe { group, reply } => {
                let _gone = reply.send(self.describe(&group));
            }
            GroupCall::Delete { group, reply } => self.delete(group, reply),
            GroupCall::ConsumerHeartbeat {
                group,
                request,
                reply,
            } => self.consumer_heartbeat(group, request, reply),
            GroupCall::ConsumerDescribe { group, reply } => {
                let _gone = reply.send(self.consumer_describe(&group));
            }
        }
    }

    /// The term in which this coordinator acts. Takes office where the partition has come to lead,
    /// and lays it down where it leads no more.
    pub(super) fn serving(&self) -> Result<Term, ErrorCode> {
        let serving = self.partition.serving_term();
        let held = self.reign.borrow().as_ref().map(|reign| reign.term);
        match serving {
            Some(term) if held == Some(term) => Ok(term),
            Some(term) => {
                if held.is_some() {
                    self.abdicate(ErrorCode::NotCoordinator);
                }
                if self.settles_first() {
                    return Err(ErrorCode::CoordinatorLoadInProgress);
                }
                self.take_office(term);
                Ok(term)
            }
            None => {
                if held.is_some() {
                    self.abdicate(ErrorCode::NotCoordinator);
                }
                Err(if self.partition.is_leader() {
                    ErrorCode::CoordinatorLoadInProgress
                } else {
                    ErrorCode::NotCoordinator
                })
            }
        }
    }

    /// The reign at this moment.
    pub(super) fn office(&self) -> Option<Office> {
        self.serving().ok()?;
        self.reign.borrow().as_ref().map(|reign| reign.office)
    }

    /// Whether a new reign has to wait. A leader whose lease ran out for a while may come back in
    /// its own term, with writes of the reign before still under way: deciding without them would
    /// be deciding from the past.
    fn settles_first(&self) -> bool {
        self.reign.borrow().is_none() && !self.writer.is_idle()
    }

    /// Every group with members goes on in the generation that it is in, each session anew.
    fn take_office(&self, term: Term) {
        let Moment { now, .. } = self.moment();
        let configs = self.configs();
        let office = Office(self.next_office.get());
        self.next_office.set(office.0 + 1);
        let mut reign = Reign {
            term,
            office,
            groups: HashMap::new(),
            deadlines: BTreeSet::new(),
        };
        let mut count = 0_usize;
        {
            let machine = self.partition.machine();
            let Some(table) = machine.groups() else {
                return;
            };
            for (name, state) in table.groups() {
                count += 1;
                match &state.kind {
                    GroupKind::Classic(value) if !value.members.is_empty() => {
                        let limits = classic_limits(&configs);
                        let group =
                            ClassicGroup::from_value(limits, value, state.last_generation, now);
                        let running = Running {
                            group,
                            deadline: None,
                        };
                        reign.groups.insert(name.to_owned(), running);
                        reign.rearm(name);
                    }
                    GroupKind::Consumer(consumer) => {
                        self.consumers.resume(name, consumer, now, &configs);
                    }
                    GroupKind::Classic(_) | GroupKind::Simple => {}
                }
            }
        }
        if count > 0 {
            let (partition, live) = (self.partition.name(), reign.groups.len());
            info!(%partition, %term, groups = count, with_members = live, "coordinates its groups");
        }
        *self.reign.borrow_mut() = Some(reign);
        self.wake.notify_one();
    }

    /// Whoever waits looks for the new coordinator.
    fn abdicate(&self, code: ErrorCode) {
        let reign = self.reign.borrow_mut().take();
        self.consumers.clear();
        let mut effects = Vec::new();
        for running in reign
            .into_iter()
            .flat_map(|reign| reign.groups.into_values())
        {
            let mut group = running.group;
            group.close(code, &mut effects);
        }
        for effect in effects {
            self.answer(effect);
        }
        // Without an answer, whoever asked says the same.
        self.waiters.borrow_mut().clear();
    }

    fn next_deadline(&self) -> Option<Now> {
        let reign = self.reign.borrow();
        let classic = reign
            .as_ref()
            .and_then(|reign| reign.deadlines.first().map(|(at, _)| *at));
        [classic, self.consumers.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets time pass in the groups whose deadlines have come.
    fn tick(self: &Rc<Self>) {
        let Moment { now, now_ms } = self.moment();
        self.forget_gone(now);
        loop {
            let due = {
                let reign = self.reign.borrow();
                let first = reign.as_ref().and_then(|reign| reign.deadlines.first());
                first
                    .filter(|(at, _)| *at <= now)
                    .map(|(_, name)| name.clone())
            };
            let Some(name) = due else { break };
            self.with_group(&name, |group, _, effects| group.tick(now, now_ms, effects));
        }
        self.tick_consumers(now);
    }

    /// Clients that went away while they waited: their members expire like silent ones.
    fn forget_gone(self: &Rc<Self>, now: Now) {
        if now < self.gone_looked_at.get() + LOOK_FOR_GONE {
            return;
        }
        self.gone_looked_at.set(now);
        let gone: Vec<(Ticket, String)> = {
            let waiters = self.waiters.borrow();
            let gone = waiters.iter().filter(|(_, waiter)| waiter.has_gone());
            gone.map(|(ticket, waiter)| (*ticket, waiter.group().to_owned()))
                .collect()
        };
        for (ticket, name) in gone {
            self.waiters.borrow_mut().remove(&ticket);
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
            let before = running.group.generation();
            let result = act(&mut running.group, moment, &mut effects);
            if running.group.generation() > before {
                self.count_rebalance();
            }
            let first = reign.deadlines.first().map(|(at, _)| *at);
            reign.rearm(name);
            let earlier = reign.deadlines.first().map(|(at, _)| *at) < first || first.is_none();
            if earlier && !reign.deadlines.is_empty() {
                self.wake.notify_one();
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
                let Ok(term) = self.serving() else { return };
                if self.has_consumer_members(name) {
                    // Its change of protocol was given up for lost, and came after all.
                    self.close_running(name, ErrorCode::RebalanceInProgress);
                    return;
                }
                let mut records = self.make_classic(name);
                records.push(GroupRecord::Classic {
                    group: name.to_owned(),
                    value: Some(value),
                });
                let written = self.writer.write(term, &records);
                let (coordinator, name) = (self.clone(), name.to_owned());
                let office = self.office();
                self.env.spawn_local(async move {
                    let outcome = written.await;
                    if coordinator.office() != office {
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

    fn answer(&self, effect: Effect) {
        // A client that has gone away needs no answer.
        match effect {
            Effect::Join(ticket, answer) => {
                if let Some(Waiter::Join(_, reply)) = self.waiters.borrow_mut().remove(&ticket) {
                    let _gone = reply.send(answer);
                }
            }
            Effect::Sync(ticket, answer) => {
                if let Some(Waiter::Sync(_, reply)) = self.waiters.borrow_mut().remove(&ticket) {
                    let _gone = reply.send(answer);
                }
            }
            Effect::Persist(..) | Effect::Note(_) => {}
        }
    }

    /// How many generations and group epochs began here since the process started.
    pub fn rebalances(&self) -> u64 {
        self.rebalances.get()
    }

    pub(super) fn count_rebalance(&self) {
        self.rebalances.set(self.rebalances.get() + 1);
    }

    fn ticket(&self, waiter: Waiter) -> Ticket {
        let ticket = Ticket(self.next_ticket.get());
        self.next_ticket.set(ticket.0 + 1);
        self.waiters.borrow_mut().insert(ticket, waiter);
        ticket
    }

    /// What a classic member asks, of whichever machine its group has.
    fn classic(self: &Rc<Self>, name: String, task: ClassicTask) {
        let may = validate_group_id(&name).and_then(|()| Ok(self.serving()?));
        match may {
            Err(error) => task.refuse(error),
            Ok(_) if self.is_consumer(&name) => self.hand_in(name, Task::Classic(task)),
            Ok(_) => self.serve_classic(name, task),
        }
    }

    /// What a member asks of a classic group.
    pub(super) fn serve_classic(self: &Rc<Self>, name: String, task: ClassicTask) {
        match task {
            ClassicTask::Join(request, reply) => {
                debug!(
                    group = name,
                    member = request.member_id,
                    reason = request.reason,
                    "joins"
                );
                let ticket = self.ticket(Waiter::Join(name.clone(), reply));
                self.with_group(&name, |group, moment, effects| {
                    group.join(*request, ticket, moment.now, moment.now_ms, effects);
                });
            }
            ClassicTask::Sync(request, reply) => {
                let ticket = self.ticket(Waiter::Sync(name.clone(), reply));
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
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(name));
            let applied = state.map(|state| (&state.kind, state.has_members()));
            return match applied {
                // What is left of the classic group says nothing about its successor.
                Some((GroupKind::Consumer(_), _)) => None,
                // The last member has left; the record that says so is still on its way.
                Some((_, true)) => Some(Err(ErrorCode::CoordinatorLoadInProgress.into())),
                _ if identity.generation < 0 => Some(Ok(())),
                _ => Some(Err(ErrorCode::UnknownMemberId.into())),
            };
        }
        self.with_group(name, |group, moment, _| {
            group.check_commit(identity, moment.now)
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

    /// The settings of groups, as of the newest image.
    pub(super) fn configs(&self) -> Rc<GroupConfigs> {
        let image = self.metadata.image();
        let mut held = self.configs.borrow_mut();
        match &*held {
            Some((version, configs)) if *version == image.version => configs.clone(),
            _ => {
                let configs = Rc::new(image.cluster().groups);
                *held = Some((image.version, configs.clone()));
                configs
            }
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            now: self.env.now().saturating_duration_since(self.started),
            now_ms: self.env.unix_millis(),
        }
    }

    /// Asks the clocks to look again.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// [`Coordinator::check_size`], where writes may have closed a segment.
    fn look_at_size(self: &Rc<Self>) {
        let now = self.moment().now;
        if now >= self.size_looked_at.get() + LOOK_AT_SIZE {
            self.size_looked_at.set(now);
            self.check_size();
        }
    }

    /// Takes the right to refresh; one at a time.
    pub(super) fn begin_refresh(&self) -> bool {
        !self.refreshing.replace(true)
    }

    /// When expired offsets were last looked for.
    pub(super) fn expiry_looked_at(&self) -> Now {
        self.expiry_looked_at.get()
    }

    pub(super) fn look_at_expiry(&self, now: Now) {
        self.expiry_looked_at.set(now);
    }

    pub(super) fn end_refresh(&self) {
        self.refreshing.set(false);
    }
}

impl Reign {
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
