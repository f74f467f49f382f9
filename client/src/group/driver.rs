//! The task behind a group's member: does what the machine says, keeps heartbeats going while the
//! user works, and commits.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::{MetadataRequest, OffsetCommitRequest};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::assignor::{Assignments, PartitionCounts, assign};
use super::calls;
use super::commits::{Commits, Positions, Waiting};
use super::consumer::Pulse;
use super::coordinator::{self, Coordinator};
use super::ledger::Ledger;
use super::locate::Search;
use super::machine::{Act, Call, Identity, JoinRefusal, Joined, Machine, MemberConfig};
use super::offsets::{CommittedOffset, CommittedOffsets, Signature, commit_errors, commit_request};
use crate::client::ClientShared;
use crate::error::Error;
use crate::metadata::{Asker, ClusterImage};
use crate::net::pool::Pool;
use crate::reader::fetcher::{Change, Start};
use crate::sync::Lock;
use crate::topic_partition::TopicPartition;

/// A silent coordinator is given up after this part of the session timeout, so that the next one
/// hears of the member in time.
const SESSION_PARTS: u32 = 3;

/// How long a partition that is given back may wait for its last commit.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(5);

/// How often brokers are asked for topics that do not exist yet.
const ABSENT_TOPIC_WAIT: Duration = Duration::from_secs(1);

/// From this version on a request for metadata can say that it creates nothing.
const METADATA_CREATES_VERSION: i16 = 4;

/// Longest wait for the answers to the last commit and to the leave of a member that goes.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// What the user's handle tells the task.
pub(super) enum Command {
    Commit(Waiting),
    /// The user has given back what this ticket asked for.
    Released(u64),
    /// The user asks for records again, after it had been away.
    Polled,
    Hold(TopicPartition, bool),
    Close(Option<oneshot::Sender<()>>),
}

/// What the task tells the user's handle, in order.
pub(super) enum Notice {
    Assigned {
        partitions: BTreeSet<TopicPartition>,
        generation: i32,
    },
    Revoking {
        partitions: BTreeSet<TopicPartition>,
        ticket: u64,
    },
    Lost(BTreeSet<TopicPartition>),
    Ended(Error),
}

/// What the task and the user's handle share.
pub(super) struct Shared {
    pub(super) ledger: Lock<Ledger>,
    pub(super) pace: Lock<Pace>,
    pub(super) identity: Lock<Identity>,
}

/// How the user comes along.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since when the user works on something; `None` while it waits for more.
    pub(super) busy_since: Option<Instant>,
    /// The member left because that took too long.
    pub(super) is_away: bool,
}

/// How far a member is, for the one who waits for its first assignment.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    pub(super) has_coordinator: bool,
    pub(super) has_joined: bool,
    /// Why the coordinator was not found last.
    pub(super) not_found: Option<Error>,
    /// Why this can't become or stay a member.
    pub(super) failed: Option<Error>,
}

/// What to build a driver from.
pub(super) struct Setup {
    pub(super) client: Arc<ClientShared>,
    pub(super) config: MemberConfig,
    pub(super) search: Search,
    pub(super) poll_interval_max: Duration,
    /// `None` = only explicit commits.
    pub(super) commit_interval: Option<Duration>,
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    pub(super) changes: mpsc::UnboundedSender<Change>,
    pub(super) progress: watch::Sender<Progress>,
}

enum Answer {
    Found(Result<Coordinator, Error>),
    Joined(Result<Joined, JoinRefusal>),
    Synced(Result<BTreeSet<TopicPartition>, Error>),
    Beaten(Result<(), Error>),
    Pulse(Result<Pulse, Error>),
    Divided(Assignments, PartitionCounts),
    Committed(Result<std::collections::BTreeMap<TopicPartition, ErrorCode>, Error>),
    Located(Result<Vec<Start>, Error>),
    /// All topics that are not internal.
    Listed(Result<Vec<(Uuid, Arc<str>)>, Error>),
    Left,
}

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Partitions that the user is asked to give back.
struct Releasing {
    ticket: u64,
    partitions: BTreeSet<TopicPartition>,
    /// Set once the user has: then only commits are waited for.
    until: Option<Instant>,
}

pub(super) struct Driver {
    setup: Setup,
    config: Arc<MemberConfig>,
    machine: Machine,
    /// JoinGroup is answered late, and what stands behind it waits: commits go another way.
    pool: Arc<Pool>,
    coordinator: Option<Coordinator>,
    answers: FuturesUnordered<Answering>,
    commits: Commits,
    commit_at: Option<Instant>,
    releasing: Option<Releasing>,
    tickets: u64,
    /// The topics whose partitions count: this member's own, or all of the group where it leads.
    interest: BTreeSet<Arc<str>>,
    absent_at: Option<Instant>,
    /// When to look at all topics; `None` while that is under way, or without a pattern.
    list_at: Option<Instant>,
}

impl Driver {
    pub(super) fn new(setup: Setup, machine: Machine) -> Driver {
        let config = Arc::new(setup.config.clone());
        let now = setup.client.net.env.now();
        Driver {
            pool: Arc::new(Pool::new(setup.client.net.clone())),
            coordinator: None,
            answers: FuturesUnordered::new(),
            commits: Commits::new(config.backoff),
            commit_at: setup.commit_interval.map(|interval| now + interval),
            releasing: None,
            tickets: 0,
            interest: config.topics.clone(),
            absent_at: None,
            list_at: config.pattern.is_some().then_some(now),
            config,
            machine,
            setup,
        }
    }

    fn now(&self) -> Instant {
        self.setup.client.net.env.now()
    }

    /// Runs until the member goes, or until it can't be one any more.
    pub(super) async fn run(mut self) {
        let mut metadata = self.setup.client.metadata.changes();
        self.look_at_topics();
        loop {
            let now = self.now();
            self.watch_pace(now);
            if self.absent_at.is_some_and(|at| now >= at) {
                self.look_at_topics();
            }
            self.list_topics(now);
            while let Some(act) = self.machine.step(now) {
                if let Act::Fail(error) = act {
                    return self.fail(error);
                }
                self.act(act, now);
            }
            *self.setup.shared.identity.lock() = self.machine.identity();
            self.commit(now);
            if self.finish_release(now) {
                continue;
            }
            let wake = self.wake_at(now);
            tokio::select! {
                command = self.setup.commands.recv() => match command {
                    Some(Command::Close(reply)) => return self.close(reply).await,
                    Some(command) => self.command(command),
                    None => return self.close(None).await,
                },
                Some(answer) = self.answers.next(), if !self.answers.is_empty() => {
                    if let Err(error) = self.take(answer) {
                        return self.fail(error);
                    }
                }
                _ = metadata.changed() => self.look_at_topics(),
                () = sleep_until(wake) => {}
            }
        }
    }

    fn wake_at(&self, now: Instant) -> Instant {
        let busy_since = self.setup.shared.pace.lock().busy_since;
        let wakes = [
            self.machine.wake_at(),
            self.commits.wake_at(),
            self.commit_at,
            self.absent_at,
            self.list_at,
            busy_since.map(|since| since + self.setup.poll_interval_max),
            self.releasing
                .as_ref()
                .and_then(|releasing| releasing.until),
        ];
        let far = now + Duration::from_secs(3600);
        // Whatever is overdue has been seen to above, or waits for an answer.
        let next = wakes.into_iter().flatten().filter(|wake| *wake > now).min();
        next.unwrap_or(far)
    }

    fn fail(mut self, error: Error) {
        tracing::debug!(group = %self.config.group, %error, "the member ends");
        self.commits.fail(&error);
        self.setup.progress.send_modify(|progress| {
            progress.failed = Some(error.clone());
        });
        let _ = self.setup.notices.send(Notice::Ended(error));
        self.pool.close("the group's member has ended");
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Commit(waiting) => self.commits.push(waiting),
            Command::Polled => self.machine.polled(),
            Command::Hold(at, held) => self.change(Change::Hold(at, held)),
            Command::Released(ticket) => {
                let until = self.now() + RELEASE_WAIT_MAX;
                if let Some(releasing) = &mut self.releasing
                    && releasing.ticket == ticket
                {
                    releasing.until = Some(until);
                    if self.setup.commit_interval.is_some() {
                        self.commits.flush();
                    }
                }
            }
            // The caller's.
            Command::Close(_) => {}
        }
    }

    fn change(&self, change: Change) {
        // A fetcher that has ended has told the user why.
        let _ = self.setup.changes.send(change);
    }

    fn act(&mut self, act: Act, now: Instant) {
        match act {
            Act::Find => {
                let client = self.setup.client.clone();
                let group = self.config.group.clone();
                // A short patience each time: the machine decides how long to go on.
                let deadline = now + client.net.settings.request_timeout;
                self.answers.push(Box::pin(async move {
                    Answer::Found(coordinator::find(&client, &group, deadline).await)
                }));
            }
            Act::Send(call) => self.send(call),
            Act::Divide { strategy, members } => {
                let topics = members
                    .iter()
                    .flat_map(|member| &member.subscription.topics);
                self.interest = topics.cloned().collect();
                let client = self.setup.client.clone();
                let interest = self.interest.clone();
                let deadline = now
                    + client
                        .net
                        .settings
                        .request_timeout
                        .min(self.config.session_timeout / 2);
                self.answers.push(Box::pin(async move {
                    want(&client, &interest);
                    // Without fresh metadata the known one has to do.
                    let _ = client.metadata.refresh(deadline).await;
                    let counts = counts(&client.metadata.image(), &interest);
                    Answer::Divided(assign(strategy, members, &counts), counts)
                }));
            }
            Act::Assign(partitions) => self.assign(partitions),
            Act::Revoke(partitions) => {
                self.change(Change::Remove(partitions.iter().cloned().collect()));
                self.tickets += 1;
                let ticket = self.tickets;
                self.releasing = Some(Releasing {
                    ticket,
                    partitions: partitions.clone(),
                    until: None,
                });
                self.tell(Notice::Revoking { partitions, ticket });
            }
            Act::Lose(partitions) => {
                self.change(Change::Remove(partitions.iter().cloned().collect()));
                self.releasing = None;
                let mut ledger = self.setup.shared.ledger.lock();
                partitions.iter().for_each(|at| ledger.close(at));
                drop(ledger);
                self.tell(Notice::Lost(partitions));
            }
            // The caller's.
            Act::Fail(_) => {}
        }
    }

    fn tell(&self, notice: Notice) {
        // If nobody listens any more, a close is under way.
        let _ = self.setup.notices.send(notice);
    }

    fn assign(&mut self, partitions: BTreeSet<TopicPartition>) {
        let mut by_topic: std::collections::BTreeMap<Arc<str>, Vec<_>> = Default::default();
        let mut ledger = self.setup.shared.ledger.lock();
        for at in &partitions {
            let incarnation = ledger.open(at.clone());
            let wanted = by_topic.entry(at.topic.clone()).or_default();
            wanted.push((at.clone(), incarnation));
        }
        drop(ledger);
        let identity = self.machine.identity();
        let generation = identity.generation;
        *self.setup.shared.identity.lock() = identity;
        self.tell(Notice::Assigned {
            partitions,
            generation,
        });
        // One search for each topic: one that is in trouble does not hold up the others.
        for (topic, wanted) in by_topic {
            let search = self.setup.search.clone();
            self.answers.push(Box::pin(async move {
                Answer::Located(search.run(topic, wanted).await)
            }));
        }
        self.setup
            .progress
            .send_modify(|progress| progress.has_joined = true);
    }

    fn send(&mut self, call: Call) {
        let Some(coordinator) = self.coordinator.clone() else {
            // The machine only sends what it has found a coordinator for.
            self.machine.coordinator_lost();
            return;
        };
        let (pool, config) = (self.pool.clone(), self.config.clone());
        let timeout = self.setup.client.net.settings.request_timeout;
        let beat_limit = timeout.min(config.session_timeout / SESSION_PARTS);
        self.answers.push(Box::pin(async move {
            let connection = coordinator.reach(&pool).await;
            match (call, connection) {
                (Call::Join(_), Err(error)) => Answer::Joined(Err(JoinRefusal::Error(error))),
                (Call::Sync { .. }, Err(error)) => Answer::Synced(Err(error)),
                (Call::Heartbeat { .. }, Err(error)) => Answer::Beaten(Err(error)),
                (Call::ConsumerHeartbeat(_), Err(error)) => Answer::Pulse(Err(error)),
                (Call::Join(wish), Ok(on)) => {
                    Answer::Joined(calls::join(&on, &config, wish, timeout).await)
                }
                (
                    Call::Sync {
                        identity,
                        strategy,
                        assignments,
                    },
                    Ok(on),
                ) => Answer::Synced(
                    calls::sync(&on, &config, identity, strategy, assignments, timeout).await,
                ),
                (Call::Heartbeat { identity }, Ok(on)) => {
                    Answer::Beaten(calls::heartbeat(&on, &config, identity, beat_limit).await)
                }
                (Call::ConsumerHeartbeat(beat), Ok(on)) => {
                    Answer::Pulse(calls::consumer_heartbeat(&on, &config, beat, beat_limit).await)
                }
            }
        }));
        want(&self.setup.client, &self.interest);
    }

    fn take(&mut self, answer: Answer) -> Result<(), Error> {
        let now = self.now();
        match (answer, &mut self.machine) {
            (Answer::Found(found), machine) => {
                let (error, found) = match found {
                    Ok(coordinator) => {
                        self.coordinator = Some(coordinator);
                        (None, Ok(()))
                    }
                    Err(error) => (Some(error.clone()), Err(error)),
                };
                machine.found(now, found);
                self.setup.progress.send_modify(|progress| {
                    progress.has_coordinator |= error.is_none();
                    progress.not_found = error;
                });
            }
            (Answer::Joined(answer), Machine::Classic(machine)) => {
                if let Err(JoinRefusal::Error(error)) = &answer {
                    tracing::debug!(group = %self.config.group, %error, "join");
                }
                machine.joined(now, answer);
            }
            (Answer::Synced(answer), Machine::Classic(machine)) => machine.synced(now, answer),
            (Answer::Beaten(answer), Machine::Classic(machine)) => machine.beaten(now, answer),
            (Answer::Pulse(answer), Machine::Consumer(machine)) => {
                machine.beaten(now, answer);
                self.look_at_topics();
            }
            (Answer::Divided(assignments, counts), machine) => machine.divided(assignments, counts),
            (Answer::Committed(answer), machine) => {
                let mut ledger = self.setup.shared.ledger.lock();
                let consequences = self.commits.answered(&mut ledger, now, answer);
                if consequences.is_coordinator_lost {
                    machine.coordinator_lost();
                }
                if let Some(fenced) = consequences.fenced {
                    return Err(fenced);
                }
            }
            (Answer::Located(starts), _) => {
                let ledger = self.setup.shared.ledger.lock();
                let mut starts = starts?;
                starts.retain(|start| ledger.incarnation(&start.at) == Some(start.incarnation));
                drop(ledger);
                // What is about to be given back is not begun.
                if let Some(releasing) = &self.releasing {
                    starts.retain(|start| !releasing.partitions.contains(&start.at));
                }
                if !starts.is_empty() {
                    self.change(Change::Add(starts));
                }
            }
            (Answer::Listed(Ok(topics)), _) => {
                self.list_at = Some(now + self.setup.client.net.settings.metadata_max_age);
                self.take_topics(topics);
            }
            (Answer::Listed(Err(error)), _) => {
                if !error.is_retriable() {
                    return Err(error);
                }
                tracing::debug!(group = %self.config.group, %error, "no list of topics");
                self.list_at = Some(now + ABSENT_TOPIC_WAIT);
            }
            _ => {}
        }
        Ok(())
    }

    /// Leaves the group while the user works on something for too long.
    fn watch_pace(&mut self, now: Instant) {
        let mut pace = self.setup.shared.pace.lock();
        let is_late = pace
            .busy_since
            .is_some_and(|since| now >= since + self.setup.poll_interval_max);
        if !is_late || pace.is_away {
            return;
        }
        pace.is_away = true;
        drop(pace);
        tracing::warn!(
            group = %self.config.group,
            limit = ?self.setup.poll_interval_max,
            "leaves the group: a batch takes longer than max.poll.interval.ms"
        );
        if let Some(identity) = self.machine.stuck() {
            let leave = self.leave(identity);
            self.answers.push(Box::pin(async move {
                leave.await;
                Answer::Left
            }));
        }
    }

    /// Sends a commit if there is one to send.
    fn commit(&mut self, now: Instant) {
        if let (Some(at), Some(interval)) = (self.commit_at, self.setup.commit_interval)
            && now >= at
        {
            self.commits.flush();
            self.commit_at = Some(now + interval);
        }
        let Some(coordinator) = self.coordinator.clone() else {
            return;
        };
        if !self.machine.has_coordinator() {
            return;
        }
        let identity = self.machine.identity();
        let ledger = self.setup.shared.ledger.lock();
        let Some(positions) = self.commits.next(&ledger, now, &identity) else {
            return;
        };
        drop(ledger);
        let signature = Signature {
            identity,
            instance_id: self.config.instance_id.clone(),
        };
        let (client, group) = (self.setup.client.clone(), self.config.group.clone());
        self.answers.push(Box::pin(async move {
            let offsets = committed(positions);
            let answer = async {
                let on = coordinator.reach(client.metadata.pool()).await?;
                let limit = client.net.settings.request_timeout;
                on.call(limit, |version| -> OffsetCommitRequest {
                    commit_request(version, &group, &signature, &offsets)
                })
                .await
            };
            Answer::Committed(answer.await.map(|answer| commit_errors(&answer)))
        }));
    }

    /// Ends a release once the user has given the partitions back and their commits are through.
    /// `true` if that was now.
    fn finish_release(&mut self, now: Instant) -> bool {
        let Some(releasing) = &self.releasing else {
            return false;
        };
        let Some(until) = releasing.until else {
            return false;
        };
        let mut ledger = self.setup.shared.ledger.lock();
        if now < until && self.commits.owes(&ledger, &releasing.partitions) {
            return false;
        }
        releasing.partitions.iter().for_each(|at| ledger.close(at));
        drop(ledger);
        self.releasing = None;
        self.machine.released(now);
        true
    }

    /// Tells the machine what there is, and asks again for what there is not.
    fn look_at_topics(&mut self) {
        let now = self.now();
        let client = &self.setup.client;
        want(client, &self.interest);
        let image = client.metadata.image();
        let counts = counts(&image, &self.interest);
        let mut is_lacking = counts.len() < self.interest.len();
        match &mut self.machine {
            Machine::Classic(machine) => machine.topics_changed(&counts),
            Machine::Consumer(machine) => {
                let known = image.topics.values().filter(|topic| !topic.id.is_nil());
                machine.topics_changed(now, known.map(|topic| (topic.id, topic.name.clone())));
                is_lacking |= machine.lacks_names();
            }
        }
        if !is_lacking {
            self.absent_at = None;
        } else if self.absent_at.is_none_or(|at| now >= at) {
            self.absent_at = Some(now + ABSENT_TOPIC_WAIT);
            client.metadata.refresh_soon();
            // The coordinator may know a topic that matches before this client has seen it.
            self.list_at = self.list_at.map(|_| now);
        }
    }

    /// Asks for the names of all topics if a pattern has to be held against them and it is time.
    fn list_topics(&mut self, now: Instant) {
        if self.list_at.is_none_or(|at| now < at) {
            return;
        }
        self.list_at = None;
        let client = self.setup.client.clone();
        let deadline = client.api_deadline();
        self.answers.push(Box::pin(async move {
            let all = |version| {
                MetadataRequest::default()
                    .with_topics(None)
                    .with_allow_auto_topic_creation(version < METADATA_CREATES_VERSION)
            };
            let listed = client.ask_any(deadline, all, |_answer| Ok(())).await;
            Answer::Listed(listed.map(|answer| {
                let image = ClusterImage::default().merged(&answer);
                let topics = image.topics.values().filter(|topic| !topic.internal);
                topics.map(|topic| (topic.id, topic.name.clone())).collect()
            }))
        }));
    }

    fn take_topics(&mut self, topics: Vec<(Uuid, Arc<str>)>) {
        let Some(pattern) = &self.config.pattern else {
            return;
        };
        match &mut self.machine {
            Machine::Classic(machine) => {
                let matching = topics.into_iter().map(|(_, name)| name);
                let mut wanted = self.config.topics.clone();
                wanted.extend(matching.filter(|name| pattern.matches(name)));
                if machine.subscribe(wanted.clone()) {
                    self.interest = wanted;
                }
            }
            Machine::Consumer(machine) => {
                let now = self.setup.client.net.env.now();
                let known = topics.into_iter().filter(|(id, _)| !id.is_nil());
                machine.topics_changed(now, known);
            }
        }
        self.look_at_topics();
    }

    /// Commits what is left, leaves, and ends.
    async fn close(mut self, reply: Option<oneshot::Sender<()>>) {
        // A join that is under way has nobody left to wait for it.
        self.pool.close("the group's member leaves");
        if self.setup.commit_interval.is_some() {
            self.commits.flush();
        }
        let deadline = self.now() + CLOSE_WAIT_MAX;
        loop {
            let now = self.now();
            if !self.machine.has_coordinator() && self.coordinator.is_some() {
                let found =
                    coordinator::find(&self.setup.client, &self.config.group, deadline).await;
                if self.take(Answer::Found(found)).is_err() {
                    break;
                }
            }
            self.commit(now);
            let is_member = self.machine.identity().generation >= 0;
            if self.commits.is_idle() || now >= deadline || !is_member {
                break;
            }
            let wake = self.commits.wake_at().unwrap_or(deadline).min(deadline);
            tokio::select! {
                Some(answer) = self.answers.next(), if !self.answers.is_empty() => {
                    if let Answer::Committed(_) = answer
                        && self.take(answer).is_err()
                    {
                        break;
                    }
                }
                () = sleep_until(wake.max(now + Duration::from_millis(1))) => {}
            }
        }
        self.commits.fail(&Error::closed("the group's member"));
        if let Some(identity) = self.machine.leave() {
            let leave = self.leave(identity);
            // Late is late: the coordinator finds out by itself.
            let _ = tokio::time::timeout(CLOSE_WAIT_MAX, leave).await;
        }
        if let Some(reply) = reply {
            let _ = reply.send(());
        }
    }

    fn leave(&self, identity: Identity) -> impl Future<Output = ()> + Send + use<> {
        let (client, config) = (self.setup.client.clone(), self.config.clone());
        let coordinator = self.coordinator.clone();
        let is_consumer = matches!(self.machine, Machine::Consumer(_));
        async move {
            let Some(coordinator) = coordinator else {
                return;
            };
            let left = async {
                let on = coordinator.reach(client.metadata.pool()).await?;
                let limit = client.net.settings.request_timeout.min(CLOSE_WAIT_MAX);
                calls::leave(&on, &config, identity, is_consumer, limit).await
            };
            if let Err(error) = left.await {
                tracing::debug!(group = %config.group, %error, "left without a word");
            }
        }
    }
}

fn committed(positions: Positions) -> CommittedOffsets {
    let committed = positions.into_iter().map(|(at, (_, position))| {
        let mut committed = CommittedOffset::at(position.offset);
        committed.leader_epoch = Some(position.leader_epoch).filter(|epoch| *epoch >= 0);
        (at, committed)
    });
    committed.collect()
}

/// Keeps the topics in what is refreshed.
fn want(client: &ClientShared, topics: &BTreeSet<Arc<str>>) {
    for topic in topics {
        client.metadata.want(topic, Asker::Reader);
    }
}

/// The partitions of those topics that exist.
fn counts(image: &ClusterImage, topics: &BTreeSet<Arc<str>>) -> PartitionCounts {
    let count = |topic: &Arc<str>| {
        let known = image.topics.get(topic)?;
        let count = i32::try_from(known.partitions.len()).ok()?;
        (count > 0).then(|| (topic.clone(), count))
    };
    topics.iter().filter_map(count).collect()
}
