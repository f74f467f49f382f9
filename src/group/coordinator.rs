//! The coordinator of one partition of `__consumer_offsets`: on every replica, acting where it leads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_group::Now;
use corduroy_group::classic::ClassicGroup;
use corduroy_group::table::GroupKind;
use corduroy_protocol::ErrorCode;
use corduroy_record::Term;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::info;

use crate::config::GroupConfigs;
use crate::metadata::MetadataView;
use crate::partition::Partition;

use super::call::GroupCall;
use super::classic::{Reign, Waiters, classic_limits};
use super::consumer::ConsumerGroups;
use super::migration::ClassicTask;
use super::topics::DeadOffsets;
use super::writer::Writer;

/// A clock that nothing waits for still ticks so often: clients that went away are noticed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// While there are writes, the log's size is looked at so often.
const LOOK_AT_SIZE: Duration = Duration::from_secs(5);

/// Groups and offsets of one partition of `__consumer_offsets`.
pub struct Coordinator {
    pub(super) env: Env,
    pub(super) partition: Rc<Partition>,
    pub(super) metadata: MetadataView,
    pub(super) writer: Rc<Writer>,
    pub(super) consumers: ConsumerGroups,
    pub(super) dead_offsets: DeadOffsets,
    started: Instant,
    pub(super) reign: RefCell<Option<Reign>>,
    next_office: Cell<u64>,
    pub(super) waiters: Waiters,
    wake: Rc<Notify>,
    stopping: Cell<bool>,
    refreshing: Cell<bool>,
    expiring: Cell<bool>,
    expiry_looked_at: Cell<Now>,
    size_looked_at: Cell<Now>,
    rebalances: Cell<u64>,
}

/// An office as a decision found it: what was decided in it is followed up only while it is still
/// held. (A leader may lay its office down and take another one in the same term.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The term that it is written in.
    pub(super) term: Term,
    /// Tells one reign from another.
    office: u64,
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
            dead_offsets: DeadOffsets::default(),
            reign: RefCell::default(),
            next_office: Cell::new(0),
            waiters: Waiters::default(),
            wake: Rc::new(Notify::new()),
            stopping: Cell::new(false),
            refreshing: Cell::new(false),
            expiring: Cell::new(false),
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
            self.dead_offsets.follow(&self.metadata.image());
            if reigns {
                self.look_at_size();
                self.tick();
                self.forget_gone_topics();
                self.check_expiry();
            }
            let groups = reigns.then(|| self.next_deadline()).flatten();
            let expiry = reigns.then(|| self.next_expiry()).flatten();
            let settling = self.settles_first();
            let now = self.env.now();
            let gone = (groups.is_none() && !self.waiters.is_empty()).then(|| now + LOOK_AGAIN);
            let next = groups.into_iter().chain(expiry).min();
            let next = next.map(|next| (self.started + next).max(now));
            let until = next.into_iter().chain(gone).min();
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
        // The node stops, or the replica goes elsewhere.
        self.abdicate(ErrorCode::CoordinatorNotAvailable);
    }

    /// The node stops: whoever waits is told so while there are still connections to tell it on.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.abdicate(ErrorCode::CoordinatorNotAvailable);
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
        if self.stopping.get() {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let serving = self.partition.serving_term();
        let held = self.reign.borrow().as_ref().map(|reign| reign.held().term);
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

    /// The office at this moment, as [`Coordinator::serving`].
    pub(super) fn held(&self) -> Result<Held, ErrorCode> {
        self.serving()?;
        let reign = self.reign.borrow();
        let held = reign.as_ref().map(Reign::held);
        held.ok_or(ErrorCode::NotCoordinator)
    }

    /// Whether an office is still held.
    pub(super) fn holds(&self, held: Held) -> bool {
        self.held() == Ok(held)
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
        let office = self.next_office.get();
        self.next_office.set(office + 1);
        let mut reign = Reign::new(Held { term, office });
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
                        reign.resume(name, group);
                    }
                    GroupKind::Consumer(consumer) => {
                        self.consumers.resume(name, consumer, now, &configs);
                    }
                    GroupKind::Classic(_) | GroupKind::Simple => {}
                }
            }
        }
        if count > 0 {
            let (partition, live) = (self.partition.name(), reign.len());
            info!(%partition, %term, groups = count, with_members = live, "coordinates its groups");
        }
        *self.reign.borrow_mut() = Some(reign);
        self.dead_offsets.look_again();
        self.wake.notify_one();
    }

    /// Whoever waits looks for the new coordinator.
    pub(super) fn abdicate(&self, code: ErrorCode) {
        let reign = self.reign.borrow_mut().take();
        self.consumers.clear();
        let effects = reign.map_or_else(Vec::new, |reign| reign.close(code));
        for effect in effects {
            self.answer(effect);
        }
        self.waiters.clear();
    }

    fn next_deadline(&self) -> Option<Now> {
        let reign = self.reign.borrow();
        let classic = reign.as_ref().and_then(Reign::next_deadline);
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
            let due = self
                .reign
                .borrow()
                .as_ref()
                .and_then(|reign| reign.due(now));
            let Some(name) = due else { break };
            self.with_group(&name, |group, _, effects| group.tick(now, now_ms, effects));
        }
        self.tick_consumers(now);
    }

    /// How many generations and group epochs began here since the process started.
    pub fn rebalances(&self) -> u64 {
        self.rebalances.get()
    }

    pub(super) fn count_rebalance(&self) {
        self.rebalances.set(self.rebalances.get() + 1);
    }

    /// The settings of groups, as of the newest image.
    pub(super) fn configs(&self) -> Rc<GroupConfigs> {
        self.metadata.group_configs()
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

    /// Takes the right to expire; one at a time.
    pub(super) fn begin_expiry(&self) -> bool {
        !self.expiring.replace(true)
    }

    /// The next look has a deadline again.
    pub(super) fn end_expiry(&self) {
        self.expiring.set(false);
        self.wake();
    }

    /// When expired offsets are to be looked for, by the setting as it is now; none while that is
    /// under way.
    pub(super) fn next_expiry(&self) -> Option<Now> {
        let next = self.expiry_looked_at.get() + self.configs().offsets_retention_check;
        (!self.expiring.get()).then_some(next)
    }

    pub(super) fn look_at_expiry(&self, now: Now) {
        self.expiry_looked_at.set(now);
    }

    pub(super) fn end_refresh(&self) {
        self.refreshing.set(false);
    }
}
