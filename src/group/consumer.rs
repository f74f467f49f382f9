//! Groups of the consumer protocol (KIP-848): one decision of a group at a time, each from the
//! committed state.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use corduroy_group::consumer::{
    ConsumerState, Expiry, HeartbeatAnswer, HeartbeatRequest, MemberType, Timers, describe,
    remove_members, topics_changed,
};
use corduroy_group::records::GroupRecord;
use corduroy_group::table::GroupKind;
use corduroy_group::{GroupError, Now};
use corduroy_protocol::ErrorCode;
use tracing::{info, warn};

use crate::config::GroupConfigs;

use super::call::{ConsumerDescription, ConsumerMemberDescription, Reply};
use super::coordinator::{Coordinator, Held};
use super::migration::{ClassicTask, ClassicThen};
use super::topics::ImageTopics;

/// Decisions of one group that wait; beyond it members are asked to try again.
const WAITING_MAX: usize = 16 * 1024;

/// The groups that have members or are getting them, on the coordinator that leads.
#[derive(Default)]
pub(super) struct ConsumerGroups(RefCell<HashMap<String, Running>>);

struct Running {
    timers: Timers,
    waiting: VecDeque<Task>,
    /// Records of a decision that are under way: the next one follows when they are applied.
    deciding: Option<Rc<[GroupRecord]>>,
    topics_version: Option<u64>,
}

/// What is to be decided about a group.
pub(super) enum Task {
    Heartbeat(
        Box<HeartbeatRequest>,
        Reply<Result<HeartbeatAnswer, GroupError>>,
    ),
    Classic(ClassicTask),
    Remove(Vec<String>),
    LookAtTopics,
}

impl Task {
    /// Answers whoever waits for it, if somebody does.
    fn refuse(self, code: ErrorCode) {
        match self {
            Task::Heartbeat(_, reply) => {
                let _gone = reply.send(Err(code.into()));
            }
            Task::Classic(task) => task.refuse(code.into()),
            Task::Remove(_) | Task::LookAtTopics => {}
        }
    }
}

/// What a task came to.
pub(super) enum Decided {
    Answered,
    Write(Vec<GroupRecord>, Then),
}

/// What follows when a decision's records are applied.
pub(super) enum Then {
    Answer(
        String,
        Box<HeartbeatAnswer>,
        Reply<Result<HeartbeatAnswer, GroupError>>,
    ),
    Classic(ClassicThen),
    Again(Task),
    Nothing,
}

impl ConsumerGroups {
    /// Takes over a group as its durable state says; each session begins anew.
    pub(super) fn resume(
        &self,
        name: &str,
        state: &ConsumerState,
        now: Now,
        configs: &GroupConfigs,
    ) {
        if state.members().is_empty() {
            return;
        }
        let mut running = Running::new(configs);
        running.timers.observe(state, now);
        self.0.borrow_mut().insert(name.to_owned(), running);
    }

    /// The coordinator leads no more: whoever waits is not answered, which says so.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        let groups = self.0.borrow();
        let deadlines = groups.values().filter_map(|g| g.timers.next_deadline());
        deadlines.min()
    }

    /// Whether a decision about a group is on its way into the log.
    pub(super) fn is_deciding(&self, name: &str) -> bool {
        let groups = self.0.borrow();
        let running = groups.get(name);
        running.is_some_and(|running| running.deciding.is_some())
    }

    /// Whether such a decision changes what this member is.
    pub(super) fn is_deciding_about(&self, name: &str, member: &str) -> bool {
        let groups = self.0.borrow();
        let deciding = groups.get(name).and_then(|g| g.deciding.as_ref());
        deciding.is_some_and(|records| records.iter().any(|record| changes(record, member)))
    }

    /// How many groups run.
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Whether the group has members, or something is to be decided about it.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.0.borrow().contains_key(name)
    }

    pub(super) fn with_timers(&self, name: &str, act: impl FnOnce(&mut Timers)) {
        if let Some(running) = self.0.borrow_mut().get_mut(name) {
            act(&mut running.timers);
        }
    }
}

/// Whether a record changes a member's epoch, or ends its membership or its group.
fn changes(record: &GroupRecord, member_id: &str) -> bool {
    match record {
        GroupRecord::Consumer { value, .. } => value.is_none(),
        GroupRecord::ConsumerMember { member, .. } | GroupRecord::CurrentMember { member, .. } => {
            member == member_id
        }
        _ => false,
    }
}

impl Running {
    fn new(configs: &GroupConfigs) -> Running {
        Running {
            timers: Timers::new(configs.consumer_session_timeout),
            waiting: VecDeque::new(),
            deciding: None,
            topics_version: None,
        }
    }
}

impl Coordinator {
    pub(super) fn consumer_heartbeat(
        self: &Rc<Self>,
        name: String,
        request: HeartbeatRequest,
        reply: Reply<Result<HeartbeatAnswer, GroupError>>,
    ) {
        if let Err(code) = self.serving() {
            let _gone = reply.send(Err(code.into()));
            return;
        }
        if request.member_epoch == 0 && !self.has_room(&name) {
            let _gone = reply.send(Err(self.too_many_groups()));
            return;
        }
        self.hand_in(name, Task::Heartbeat(Box::new(request), reply));
    }

    pub(super) fn hand_in(self: &Rc<Self>, name: String, task: Task) {
        let configs = self.configs();
        let refused = {
            let mut groups = self.consumers.0.borrow_mut();
            let running = groups
                .entry(name.clone())
                .or_insert_with(|| Running::new(&configs));
            if running.waiting.len() < WAITING_MAX {
                running.waiting.push_back(task);
                None
            } else {
                Some(task)
            }
        };
        if let Some(task) = refused {
            task.refuse(ErrorCode::CoordinatorLoadInProgress);
        }
        self.decide_next(&name);
    }

    /// Decides what waits, until a decision has to become durable first.
    fn decide_next(self: &Rc<Self>, name: &str) {
        loop {
            let Ok(held) = self.held() else { return };
            let task = {
                let mut groups = self.consumers.0.borrow_mut();
                let Some(running) = groups.get_mut(name) else {
                    return;
                };
                if running.deciding.is_some() {
                    return;
                }
                match running.waiting.pop_front() {
                    Some(task) => task,
                    None => {
                        if running.timers.next_deadline().is_none() {
                            groups.remove(name);
                        }
                        return;
                    }
                }
            };
            if let Decided::Write(records, then) = self.decide(name, task) {
                self.write_decision(held, name, records, then);
            }
        }
    }

    fn decide(self: &Rc<Self>, name: &str, task: Task) -> Decided {
        let image = self.metadata.image();
        let version = image.version;
        let topics = ImageTopics(image);
        let moment = self.moment();
        if self.topics_seen(name) != Some(version) {
            let records = {
                let machine = self.partition.machine();
                let state = machine.groups().and_then(|table| table.get(name));
                match state.map(|state| &state.kind) {
                    Some(GroupKind::Consumer(state)) => {
                        topics_changed(name, state, &topics, moment.now_ms)
                    }
                    _ => Vec::new(),
                }
            };
            self.see_topics(name, version);
            if !records.is_empty() {
                return Decided::Write(records, Then::Again(task));
            }
        }
        match task {
            Task::LookAtTopics => Decided::Answered,
            Task::Remove(members) => {
                let machine = self.partition.machine();
                let state = machine.groups().and_then(|table| table.get(name));
                let Some(GroupKind::Consumer(state)) = state.map(|state| &state.kind) else {
                    return Decided::Answered;
                };
                let ids: Vec<&str> = members.iter().map(String::as_str).collect();
                let records = remove_members(name, state, &ids);
                let down = self.downgraded(name, state, &records, &topics, moment.now_ms);
                drop(machine);
                Decided::Write(down.unwrap_or(records), Then::Nothing)
            }
            Task::Classic(task) => self.decide_classic(name, task, &topics, moment.now_ms),
            Task::Heartbeat(request, reply) => {
                match self.judge_heartbeat(name, &request, &topics, moment.now_ms) {
                    Err(error) => {
                        let _gone = reply.send(Err(error));
                        Decided::Answered
                    }
                    Ok((records, answer)) if records.is_empty() => {
                        self.heard(name, &answer.member_id);
                        let _gone = reply.send(Ok(answer));
                        Decided::Answered
                    }
                    Ok((records, answer)) => {
                        let member = answer.member_id.clone();
                        Decided::Write(records, Then::Answer(member, Box::new(answer), reply))
                    }
                }
            }
        }
    }

    /// Writes what was decided in `held`, and does what follows if that still stands when it is
    /// applied.
    pub(super) fn write_decision(
        self: &Rc<Self>,
        held: Held,
        name: &str,
        records: Vec<GroupRecord>,
        then: Then,
    ) {
        let records: Rc<[GroupRecord]> = records.into();
        if let Some(running) = self.consumers.0.borrow_mut().get_mut(name) {
            running.deciding = Some(records.clone());
        }
        let written = self.writer.write(held.term, &records);
        let (coordinator, name) = (self.clone(), name.to_owned());
        self.env.spawn_local(async move {
            let outcome = written.await;
            if !coordinator.holds(held) {
                // A later coordinator answers; `then` is dropped, which says so.
                return;
            }
            coordinator.applied(&name, &records, outcome.is_ok());
            coordinator.resume_classic(&name);
            match (then, outcome) {
                (Then::Answer(member, answer, reply), Ok(())) => {
                    coordinator.heard(&name, &member);
                    let _gone = reply.send(Ok(*answer));
                }
                (Then::Answer(_, _, reply), Err(code)) => {
                    let _gone = reply.send(Err(code.into()));
                }
                (Then::Classic(then), Ok(())) => coordinator.tell_classic(&name, then),
                (Then::Classic(then), Err(code)) => then.refuse(code),
                (Then::Again(task @ (Task::Heartbeat(..) | Task::Classic(_))), Err(code)) => {
                    task.refuse(code);
                }
                (Then::Again(task), _) => {
                    if let Some(running) = coordinator.consumers.0.borrow_mut().get_mut(&name) {
                        running.waiting.push_front(task);
                    }
                }
                (Then::Nothing, Err(code)) => {
                    warn!(
                        group = name,
                        code = code.name(),
                        "silent members could not be removed yet"
                    );
                }
                (Then::Nothing, Ok(())) => {}
            }
            coordinator.decide_next(&name);
            coordinator.wake();
        });
    }

    /// The end of a write: deadlines fit the state again.
    fn applied(&self, name: &str, records: &[GroupRecord], is_ok: bool) {
        let now = self.moment().now;
        let mut groups = self.consumers.0.borrow_mut();
        let Some(running) = groups.get_mut(name) else {
            return;
        };
        running.deciding = None;
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(name));
        let nothing = ConsumerState::default();
        let state = match state.map(|state| &state.kind) {
            Some(GroupKind::Consumer(state)) => state,
            _ => &nothing,
        };
        if is_ok {
            let is_epoch = |record: &GroupRecord| {
                matches!(record, GroupRecord::Consumer { value: Some(_), .. })
            };
            if records.iter().any(is_epoch) {
                self.count_rebalance();
            }
            running.timers.observe_records(state, records, now);
        } else {
            running.topics_version = None;
            running.timers.observe(state, now);
        }
    }

    pub(super) fn heard(&self, name: &str, member: &str) {
        let now = self.moment().now;
        let timeout = self.configs().consumer_session_timeout;
        if let Some(running) = self.consumers.0.borrow_mut().get_mut(name) {
            running.timers.set_session_timeout(timeout);
            running.timers.heard(member, now);
        }
    }

    fn topics_seen(&self, name: &str) -> Option<u64> {
        let groups = self.consumers.0.borrow();
        groups.get(name).and_then(|running| running.topics_version)
    }

    fn see_topics(&self, name: &str, version: u64) {
        if let Some(running) = self.consumers.0.borrow_mut().get_mut(name) {
            running.topics_version = Some(version);
        }
    }

    /// Removes members whose time is over, and looks at topics that changed.
    pub(super) fn tick_consumers(self: &Rc<Self>, now: Now) {
        if self.consumers.is_empty() {
            return;
        }
        let version = self.metadata.image().version;
        let mut tasks = Vec::new();
        for (name, running) in self.consumers.0.borrow_mut().iter_mut() {
            let expired = running.timers.expired(now);
            if !expired.is_empty() {
                for (member, why) in &expired {
                    let why = match why {
                        Expiry::Session => "it was silent for its session timeout",
                        Expiry::Revocation => "it did not give up its partitions in time",
                        Expiry::Join => "it did not rejoin in time",
                        Expiry::Sync => "it did not ask for its assignment in time",
                    };
                    info!(group = name, member, why, "a member is removed");
                }
                let members = expired.into_iter().map(|(member, _)| member).collect();
                tasks.push((name.clone(), Task::Remove(members)));
            }
            if running.topics_version.is_some_and(|seen| seen != version) {
                tasks.push((name.clone(), Task::LookAtTopics));
            }
        }
        for (name, task) in tasks {
            self.hand_in(name, task);
        }
    }

    pub(super) fn consumer_describe(&self, name: &str) -> Result<ConsumerDescription, GroupError> {
        self.serving()?;
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(name));
        let Some(GroupKind::Consumer(state)) = state.map(|state| &state.kind) else {
            return Err(GroupError::new(
                ErrorCode::GroupIdNotFound,
                match state {
                    Some(_) => format!("group {name} is not of the consumer protocol"),
                    None => format!("group {name} does not exist"),
                },
            ));
        };
        let described = describe(state);
        let members = described.members.into_iter();
        Ok(ConsumerDescription {
            state: described.state.name(),
            epoch: described.epoch,
            assignment_epoch: described.assignment_epoch,
            assignor: described.assignor.name(),
            members: members
                .map(|member| ConsumerMemberDescription {
                    member_id: member.member_id.to_owned(),
                    instance_id: member.instance_id.map(str::to_owned),
                    rack_id: member.rack_id.map(str::to_owned),
                    member_epoch: member.member_epoch,
                    client_id: member.client_id.to_owned(),
                    client_host: member.client_host.to_owned(),
                    topics: member.subscribed_topics.to_vec(),
                    regex: member.subscribed_regex.map(str::to_owned),
                    assignment: member.assigned.cloned().unwrap_or_default(),
                    target: member.target.clone(),
                    is_classic: member.member_type == MemberType::Classic,
                })
                .collect(),
        })
    }
}
