//! `group`: members of groups that read the topics of the queue, commit, crash, stand still, leave
//! and come back.
//!
//! Law: what is noted is what was certain at that moment. A member's generation goes on by itself,
//! so a partition is noted with a generation only if nothing that was said after the generation was
//! looked at takes the partition away again.

mod drain;
mod ghost;
mod host;
mod watch;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{
    Batch, Commits, Error, From, Group, GroupBuilder, GroupEvent, GroupProtocol, Isolation,
    Strategy, TopicPartition,
};
use futures::FutureExt;

use super::{Shared, take_record, take_told};
use crate::chance::Chance;
use crate::history::{Answer, Call, Key, Nanos, Outcome, PartitionRead, ProcessId, WorkerId};
use ghost::Ghosts;
use host::Host;

pub use drain::drain;

/// Settings of nodes under this workload: members that are gone are missed soon.
pub const NODE_SETTINGS: &[&str] = &[
    "group.initial.rebalance.delay.ms=300",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.heartbeat.interval.ms=1000",
];
/// As short as brokers allow.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(1_000);
/// Who works longer on something leaves, and holds up the others for no longer.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// How long one poll waits.
const POLL_WAIT: Duration = Duration::from_millis(500);
/// How long a member may take to join.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(30);
/// Between two lives.
const AGAIN: Duration = Duration::from_millis(500);
/// How long what a dead host has left is kept: until its tasks are gone for certain.
const BURIAL: Duration = Duration::from_secs(1);
/// A life, in milliseconds.
const LIFE_MS: (u64, u64) = (3_000, 20_000);
/// How long a member stands still, in milliseconds: its session may be over after that.
const FREEZE_MS: (u64, u64) = (4_000, 12_000);
/// How long a batch is worked on, in milliseconds.
const WORK_MS: (u64, u64) = (0, 30);
/// Percent of batches that are committed.
const COMMIT_PERCENT: u64 = 70;
/// Percent of lives that end without a goodbye, and that go on after standing still.
const CRASH_PERCENT: u64 = 40;
const FREEZE_PERCENT: u64 = 30;

/// How a group divides its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// The classic protocol, partition by partition (KIP-429).
    Cooperative,
    /// The classic protocol, everything anew each time.
    Range,
    /// KIP-848.
    Server,
}

/// The groups of a run, with their members.
const GROUPS: &[(&str, Division, u32)] = &[
    ("jepsen-cooperative", Division::Cooperative, 3),
    ("jepsen-range", Division::Range, 2),
    ("jepsen-uniform", Division::Server, 3),
];

/// How many groups there are.
pub const GROUP_COUNT: u64 = GROUPS.len() as u64;

/// One group of a run.
#[derive(Clone)]
pub struct Plan {
    name: &'static str,
    division: Division,
    ghosts: Rc<RefCell<Ghosts>>,
}

/// Starts the members of all groups, and who asks after them. `worker` gives out numbers.
pub fn start(shared: &Shared, mut worker: impl FnMut() -> WorkerId, seed: u64) {
    for (name, division, members) in GROUPS {
        let plan = Plan {
            name,
            division: *division,
            ghosts: Rc::default(),
        };
        let env = &shared.env;
        for _ in 0..*members {
            env.spawn_local(live(shared.clone(), worker(), plan.clone(), seed));
        }
        env.spawn_local(watch::run(shared.clone(), worker(), plan.clone()));
        env.spawn_local(ghost::run(shared.clone(), worker(), plan, seed));
    }
}

/// One life of a member after another.
async fn live(shared: Shared, worker: WorkerId, plan: Plan, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    while !shared.is_over() {
        if let Some(member) = Member::join(&shared, worker, &plan).await {
            member.live(&mut chance).await;
        }
        let pause = AGAIN + Duration::from_millis(chance.below(2_000));
        shared.pause(pause).await;
    }
}

/// What a member was told, with the time before which nothing of it was known; or why it is no
/// member any more.
type Told = (Nanos, Result<GroupEvent, String>);

/// A member, as its user sees it.
struct Member {
    shared: Shared,
    worker: WorkerId,
    process: ProcessId,
    plan: Plan,
    host: Host,
    group: Group,
    /// What it has, and since which generation.
    owned: BTreeMap<TopicPartition, Option<i32>>,
    /// The last batch of each partition that was not committed.
    uncommitted: BTreeMap<TopicPartition, Batch>,
    /// What was asked for ahead: each with the time before which nothing of it was known.
    waiting: VecDeque<Told>,
    /// Nothing that is still to be noted was known before this.
    quiet: Nanos,
}

impl Member {
    /// Joins; `None` if that fails or takes too long.
    async fn join(shared: &Shared, worker: WorkerId, plan: &Plan) -> Option<Member> {
        let host = Host::new().ok()?;
        let topics: Vec<_> = (0..shared.keys.places())
            .filter_map(|place| Some(shared.keys.at(place)?.name))
            .collect();
        let process = shared.recorder.process();
        let call = Call::GroupJoin {
            group: plan.name.to_owned(),
        };
        let id = shared.recorder.invoke(worker, process, call);
        let quiet = shared.recorder.now();
        let connecting = shared.builder("jepsen-member");
        let (name, division) = (plan.name, plan.division);
        let joining = host.run(async move {
            let client = connecting.connect().await?;
            let group = client
                .group(name)
                .topics(topics)
                .from(From::Earliest)
                .commits(Commits::Explicit)
                .isolation(Isolation::ReadCommitted)
                .session_timeout(SESSION_TIMEOUT)
                .heartbeat_interval(HEARTBEAT_EVERY)
                .max_poll_interval(POLL_INTERVAL_MAX);
            division.set(group).join().await
        });
        let was_over = shared.is_over();
        let mut stop = shared.stop.clone();
        let joined = tokio::select! {
            joined = tokio::time::timeout(JOIN_WAIT_MAX, joining) => joined,
            _ = stop.wait_for(|stop| *stop && !was_over), if !was_over => Ok(None),
        };
        let (group, outcome) = match joined {
            Ok(Some(Ok(group))) => (Some(group), Outcome::Ok(Answer::Done)),
            Ok(Some(Err(error))) => (None, unknown(&error.to_string())),
            Ok(None) => (None, unknown("given up")),
            Err(_late) => (None, unknown("not joined in time")),
        };
        shared.recorder.complete(id, outcome);
        Some(Member {
            shared: shared.clone(),
            worker,
            process,
            plan: plan.clone(),
            host,
            group: group?,
            owned: BTreeMap::new(),
            uncommitted: BTreeMap::new(),
            waiting: VecDeque::new(),
            quiet,
        })
    }

    /// Reads and commits, until it crashes, leaves, fails or the run is over.
    async fn live(mut self, chance: &mut Chance) {
        loop {
            let life = Duration::from_millis(chance.between(LIFE_MS.0, LIFE_MS.1));
            let end = self.shared.env.now() + life;
            while self.shared.env.now() < end && !self.shared.is_over() {
                if !self.step(chance).await {
                    return self.crash().await;
                }
            }
            if self.shared.is_over() || !chance.percent(CRASH_PERCENT + FREEZE_PERCENT) {
                return self.leave().await;
            }
            if chance.percent(100 * CRASH_PERCENT / (CRASH_PERCENT + FREEZE_PERCENT)) {
                return self.crash().await;
            }
            self.freeze(chance).await;
        }
    }

    /// One event, and what a user does about it. `false`: it is no member any more.
    async fn step(&mut self, chance: &mut Chance) -> bool {
        let Some((since, event)) = self.next().await else {
            return true;
        };
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let name = self.plan.name;
                let note = format!("a member of {name} has ended: {error}");
                self.shared.recorder.note(note);
                return false;
            }
        };
        if let Some(batch) = self.note(since, event, chance).await {
            let work = chance.between(WORK_MS.0, WORK_MS.1);
            self.shared.pause(Duration::from_millis(work)).await;
            if chance.percent(COMMIT_PERCENT) {
                self.commit(&batch).await;
            }
        }
        true
    }

    /// Notes an event. Returns its batch, if it is one.
    async fn note(
        &mut self,
        since: Nanos,
        event: GroupEvent,
        chance: &mut Chance,
    ) -> Option<Batch> {
        match event {
            GroupEvent::Assigned { partitions, .. } => {
                self.assigned(since, &partitions);
                None
            }
            GroupEvent::Revoked(partitions) => {
                for at in &partitions {
                    // They are its own until it asks for more.
                    if let Some(batch) = self.uncommitted.get(at).cloned()
                        && chance.percent(COMMIT_PERCENT)
                    {
                        self.commit(&batch).await;
                    }
                }
                self.revoked(&partitions);
                None
            }
            GroupEvent::Lost(partitions) => {
                for at in &partitions {
                    // No user should, some do.
                    if let Some(batch) = self.uncommitted.get(at).cloned()
                        && chance.percent(COMMIT_PERCENT)
                    {
                        self.commit(&batch).await;
                    }
                }
                self.revoked(&partitions);
                None
            }
            GroupEvent::Batch(batch) => {
                self.read(&batch);
                Some(batch)
            }
            _ => None,
        }
    }

    /// The next event, with the time before which nothing of it was known; `None` if nothing comes
    /// for a while.
    async fn next(&mut self) -> Option<Told> {
        if let Some(waiting) = self.waiting.pop_front() {
            return Some(waiting);
        }
        if let Some(event) = self.at_hand() {
            return Some(event);
        }
        let event = tokio::time::timeout(POLL_WAIT, self.group.next_event()).await;
        Some((self.quiet, told(event.ok()?)))
    }

    /// What is there already. Looks past the runtime's own limits: nothing means nothing.
    fn at_hand(&mut self) -> Option<Told> {
        let asked = self.shared.recorder.now();
        let event = tokio::task::unconstrained(self.group.next_event()).now_or_never();
        // Batches come only when nothing else does.
        if matches!(event, None | Some(Some(Ok(GroupEvent::Batch(_))))) {
            self.quiet = asked;
        }
        Some((self.quiet, told(event?)))
    }

    fn assigned(&mut self, since: Nanos, partitions: &[TopicPartition]) {
        let generation = self.group.generation();
        // Whatever has led to a later generation than theirs was said before it: look for it.
        let takes = |event: &Result<GroupEvent, String>| {
            !matches!(
                event,
                Ok(GroupEvent::Assigned { .. } | GroupEvent::Batch(_))
            )
        };
        // Asking on after a revocation would give the partitions back.
        while !self.waiting.iter().any(|(_, event)| takes(event)) {
            let Some(event) = self.at_hand() else { break };
            let is_batch = matches!(event.1, Ok(GroupEvent::Batch(_)));
            self.waiting.push_back(event);
            if is_batch {
                break;
            }
        }
        let is_certain = !self.waiting.iter().any(|(_, event)| takes(event));
        let generation = generation.filter(|_| is_certain);
        for at in partitions {
            self.owned.insert(at.clone(), generation);
        }
        let keys = keys_of(partitions);
        if let Some(generation) = generation {
            self.plan.ghosts.borrow_mut().owned(&keys, generation);
        }
        let call = Call::GroupAssigned {
            group: self.plan.name.to_owned(),
            generation,
            keys,
            since,
        };
        self.say(call);
        self.say_assignment();
    }

    fn revoked(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.owned.remove(at);
            self.uncommitted.remove(at);
        }
        let call = Call::GroupRevoked {
            group: self.plan.name.to_owned(),
            keys: keys_of(partitions),
        };
        self.say(call);
        self.say_assignment();
    }

    /// What is not in it begins anew when it comes back.
    fn say_assignment(&self) {
        let keys = self.owned.keys().map(key_of).collect();
        self.say(Call::Assign { keys });
    }

    fn read(&mut self, batch: &Batch) {
        let Some(first) = batch.records().first() else {
            return;
        };
        let at = batch.topic_partition();
        let mut read = PartitionRead::at(key_of(&at), first.offset());
        let asked = self.shared.recorder.nanos(batch.told().asked_at);
        take_told(&mut read, &batch.told(), Some(asked));
        read.log_start = Some(batch.told().log_start).filter(|start| *start >= 0);
        read.next = batch.next_offset();
        for record in batch.records() {
            let (offset, epoch) = (record.offset(), record.leader_epoch());
            take_record(&mut read, offset, epoch, record.value());
        }
        let call = Call::Poll {
            keys: vec![read.key.clone()],
        };
        let recorder = &self.shared.recorder;
        let id = recorder.invoke(self.worker, self.process, call);
        recorder.complete(id, Outcome::Ok(Answer::Read(vec![read])));
        self.uncommitted.insert(at, batch.clone());
    }

    /// Commits a batch. Whether it holds.
    async fn commit(&mut self, batch: &Batch) -> bool {
        let id = self.begin_commit(batch);
        let done = batch.commit().await;
        self.end_commit(id, batch, done)
    }

    fn begin_commit(&self, batch: &Batch) -> u64 {
        let at = batch.topic_partition();
        let call = Call::GroupCommit {
            group: self.plan.name.to_owned(),
            generation: self.owned.get(&at).copied().flatten(),
            key: key_of(&at),
            offset: batch.next_offset(),
        };
        self.shared.recorder.invoke(self.worker, self.process, call)
    }

    fn end_commit(&mut self, id: u64, batch: &Batch, done: Result<(), Error>) -> bool {
        let at = batch.topic_partition();
        let outcome = match &done {
            Ok(()) => Outcome::Ok(Answer::Done),
            // An earlier try may have been heard.
            Err(error) => unknown(&error.to_string()),
        };
        self.shared.recorder.complete(id, outcome);
        if done.is_ok() {
            self.uncommitted.remove(&at);
            if let Some(Some(generation)) = self.owned.get(&at) {
                let mut ghosts = self.plan.ghosts.borrow_mut();
                ghosts.committed(ghost::Ghost {
                    member_id: batch.member_id().to_owned(),
                    generation: *generation,
                    key: key_of(&at),
                    offset: batch.next_offset(),
                });
            }
        }
        done.is_ok()
    }

    /// Stands still, as on a machine that swaps, and goes on where it was.
    async fn freeze(&mut self, chance: &mut Chance) {
        let still = Duration::from_millis(chance.between(FREEZE_MS.0, FREEZE_MS.1));
        let frozen = self.host.freeze();
        self.shared.pause(still).await;
        let batch = self.uncommitted.values().next().cloned();
        let Some(batch) = batch.filter(|_| chance.percent(COMMIT_PERCENT)) else {
            drop(frozen);
            return;
        };
        let id = self.begin_commit(&batch);
        // The commit is the first that it does when it can again.
        let (done, ()) = tokio::join!(batch.commit(), async { drop(frozen) });
        self.end_commit(id, &batch, done);
    }

    /// Ends without a goodbye.
    async fn crash(self) {
        self.say(Call::Crash);
        let Member {
            shared,
            host,
            group,
            uncommitted,
            waiting,
            ..
        } = self;
        drop(host);
        // While a task of its own is there to hear of it, a member that is dropped leaves.
        shared.env.sleep(BURIAL).await;
        drop((group, uncommitted, waiting));
    }

    async fn leave(self) {
        let keys = self.owned.keys().map(key_of).collect();
        let group = self.plan.name.to_owned();
        self.say(Call::GroupRevoked { group, keys });
        let leaving = self.host.run(self.group.leave());
        // A member that is not heard is missed later.
        let _ = tokio::time::timeout(JOIN_WAIT_MAX, leaving).await;
    }

    fn say(&self, call: Call) {
        let recorder = &self.shared.recorder;
        let id = recorder.invoke(self.worker, self.process, call);
        recorder.complete(id, Outcome::Ok(Answer::Done));
    }
}

impl Division {
    fn set(self, group: GroupBuilder) -> GroupBuilder {
        match self {
            Division::Cooperative => group
                .protocol(GroupProtocol::Classic)
                .strategies([Strategy::CooperativeSticky]),
            Division::Range => group
                .protocol(GroupProtocol::Classic)
                .strategies([Strategy::Range]),
            Division::Server => group.protocol(GroupProtocol::Consumer),
        }
    }
}

fn told(event: Option<Result<GroupEvent, Error>>) -> Result<GroupEvent, String> {
    match event {
        Some(event) => event.map_err(|error| error.to_string()),
        None => Err("the member has ended".to_owned()),
    }
}

fn key_of(at: &TopicPartition) -> Key {
    Key::new(
        at.topic.clone(),
        u32::try_from(at.partition).unwrap_or(u32::MAX),
    )
}

fn keys_of(partitions: &[TopicPartition]) -> Vec<Key> {
    partitions.iter().map(key_of).collect()
}

fn unknown(error: &str) -> Outcome {
    Outcome::Unknown {
        error: error.to_owned(),
    }
}
