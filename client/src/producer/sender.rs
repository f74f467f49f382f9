//! The task that moves a producer's batches: takes what is ready, sends it to its leader, gives the
//! answers back to the queues.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use corduroy_record::{Batch, ProducerEpoch, ProducerId};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::accumulator::{Accumulator, QueueKey};
use super::batch::{Content, Parcel, Settled};
use super::queue::{Idle, LeaderSeen, Room};
use super::request::{Addressed, Head, encode};
use super::seal::{Identity, Stamp, stamp};
use super::verdict::{Answer, Pause};
use crate::client::ClientShared;
use crate::config::Acks;
use crate::error::{Error, ErrorKind};
use crate::metadata::{Asker, BrokerInfo, ClusterImage, LeaderHint};
use crate::net::api::Api;
use crate::net::connection::{Connection, Failure};
use crate::net::pool::Pool;

/// A request that is not answered for this long makes the sender ask who leads now: the process at
/// the other end may be stopped, and another may long have taken its place.
const STALL_AFTER: Duration = Duration::from_millis(500);

/// How often a topic in use is kept among those whose metadata is refreshed.
const KEEP_WANTED_EVERY: Duration = Duration::from_secs(10);

/// Bytes of a Produce request beside its batches, per batch: topic name (249 at most), array
/// lengths, partition, batch length, tags.
const ADDRESS_BYTES_MAX: usize = 249 + 32;

type Event = Pin<Box<dyn Future<Output = Happened> + Send>>;

enum Happened {
    Connected {
        node: i32,
        result: Result<Arc<Connection>, Error>,
    },
    Answered {
        request: u64,
        answer: Result<Bytes, Failure>,
    },
    Identified(Result<Identity, Error>),
}

/// A broker as the sender sees it.
#[derive(Default)]
struct Node {
    connection: Option<Arc<Connection>>,
    connecting: bool,
    /// The last try to connect failed.
    unreachable: bool,
    in_flight: usize,
    /// The broker asked for a pause (KIP-219).
    muted_until: Option<Instant>,
}

/// A batch with its address, on its way.
struct Shipped {
    key: QueueKey,
    order: u64,
    topic: Arc<str>,
    batch: Batch,
    leader: LeaderSeen,
}

/// A request that waits for its answer.
struct Outstanding {
    node: i32,
    connection: Arc<Connection>,
    version: i16,
    sent_at: Instant,
    batches: Vec<Shipped>,
}

/// What was taken from the queues for one request.
struct Load {
    node: i32,
    connection: Arc<Connection>,
    parcels: Vec<(QueueKey, Arc<str>, LeaderSeen, Parcel)>,
    bytes: usize,
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    nodes: HashMap<i32, Node>,
    outstanding: HashMap<u64, Outstanding>,
    next_request: u64,
    events: FuturesUnordered<Event>,
    identifying: bool,
    /// When each topic was last named to the metadata.
    wanted_at: HashMap<Arc<str>, Instant>,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>) -> Sender {
        let pool = Arc::new(Pool::new(shared.client.net.clone()));
        Sender {
            shared,
            pool,
            nodes: HashMap::new(),
            outstanding: HashMap::new(),
            next_request: 0,
            events: FuturesUnordered::new(),
            identifying: false,
            wanted_at: HashMap::new(),
        }
    }

    /// Runs until the producer is closed and everything is settled.
    pub(super) async fn run(mut self) {
        let mut changes = self.shared.client.metadata.changes();
        let shared = self.shared.clone();
        loop {
            let next_look = self.step();
            if shared.is_closing() && self.is_done() {
                break;
            }
            let far = shared.client.net.env.now() + Duration::from_secs(3600);
            tokio::select! {
                Some(event) = self.events.next(), if !self.events.is_empty() => {
                    self.take(event);
                    while let Some(Some(event)) = self.events.next().now_or_never() {
                        self.take(event);
                    }
                }
                () = shared.wake.notified() => {}
                // The sender of the changes lives as long as the client that this task holds.
                _ = changes.changed() => {}
                () = sleep_until(next_look.unwrap_or(far)) => {}
            }
        }
        shared.finish();
        self.pool.close("the producer is closed");
    }

    fn is_done(&self) -> bool {
        self.outstanding.is_empty() && self.shared.accumulator.lock().is_idle()
    }

    /// Gives up what is late, and sends what may go. Returns when to look again.
    fn step(&mut self) -> Option<Instant> {
        let shared = self.shared.clone();
        let now = shared.client.net.env.now();
        let image = shared.client.metadata.image();
        self.watch_stalls(now, &image);
        let mut settled = Vec::new();
        let mut needs = Needs::default();
        let (loads, next_look) = {
            let mut accumulator = shared.accumulator.lock();
            let accumulator = &mut *accumulator;
            for topic in accumulator.topics().cloned().collect::<Vec<_>>() {
                if let Some(known) = image.topics.get(&topic) {
                    accumulator.set_partitions(&topic, known.partitions.len());
                }
            }
            let active = accumulator.active();
            let rules = accumulator.rules().clone();
            let hurry = shared.short_of_space.load(Ordering::Acquire) > 0;
            for key in &active {
                self.keep_wanted(accumulator.topic(*key), now);
                let queue = accumulator.queue(*key);
                queue.expire(&rules, now, &mut settled);
                if hurry {
                    queue.hurry();
                }
            }
            let loads = self.collect(accumulator, &active, now, &image, &mut needs, &mut settled);
            let looks = active
                .iter()
                .filter_map(|key| accumulator.queue(*key).next_look(&rules));
            // What is due already waits for something else than time: an answer, a connection, a
            // leader. That will be an event.
            (loads, looks.filter(|look| *look > now).min())
        };
        shared.settle(settled);
        for load in loads {
            self.send(load, now);
        }
        self.meet(needs, &image);
        let muted = self.nodes.values().filter_map(|node| node.muted_until);
        let stalls = self
            .outstanding
            .values()
            .map(|request| request.sent_at + STALL_AFTER);
        next_look
            .into_iter()
            .chain(muted)
            .chain(stalls)
            .filter(|look| *look > now)
            .min()
    }

    fn keep_wanted(&mut self, topic: &Arc<str>, now: Instant) {
        let ClientShared { net, metadata, .. } = &*self.shared.client;
        let every = KEEP_WANTED_EVERY.min(net.settings.metadata_max_idle / 2);
        let known = self.wanted_at.get(topic);
        if known.is_none_or(|at| now >= *at + every) {
            metadata.want(topic, Asker::Producer);
            self.wanted_at.insert(topic.clone(), now);
        }
    }

    /// Takes ready batches, at most one of a partition into each request, while brokers have room.
    fn collect(
        &mut self,
        accumulator: &mut Accumulator,
        active: &[QueueKey],
        now: Instant,
        image: &ClusterImage,
        needs: &mut Needs,
        settled: &mut Vec<Settled>,
    ) -> Vec<Load> {
        let rules = accumulator.rules().clone();
        let mut loads = Vec::new();
        loop {
            let mut round: HashMap<i32, Load> = HashMap::new();
            for key in active {
                let topic = accumulator.topic(*key).clone();
                let leader = image
                    .partition(&topic, key.partition())
                    .and_then(|partition| partition.seen());
                let Some((id, _)) = leader.filter(|(id, _)| image.brokers.contains_key(id)) else {
                    if !accumulator.queue(*key).is_empty() {
                        needs.metadata = true;
                        let partition = key.partition();
                        let error = format_args!("no node leads {topic}/{partition}");
                        tracing::debug!(%error, "a batch waits");
                    }
                    continue;
                };
                let node = self.nodes.entry(id).or_default();
                // While a leader can't be reached, or has said that it no longer is one, the
                // metadata is asked again and again: the pause ends with the news.
                needs.metadata |= node.unreachable || accumulator.queue(*key).awaits_leader(leader);
                let Some(connection) = node.ready(now, self.shared.settings.in_flight_max) else {
                    if node.connection.is_none() && !accumulator.queue(*key).is_empty() {
                        needs.connections.push(id);
                    }
                    continue;
                };
                let used = round.get(&id).map_or(0, |load| load.bytes);
                let room = Room {
                    bytes: self
                        .shared
                        .settings
                        .request_bytes_max
                        .saturating_sub(used + ADDRESS_BYTES_MAX),
                    alone: used == 0,
                };
                let identity = accumulator.identity;
                let queue = accumulator.queue(*key);
                match queue.take(&rules, now, leader, identity, room, settled) {
                    Ok(parcel) => {
                        let load = round.entry(id).or_insert_with(|| Load {
                            node: id,
                            connection: connection.clone(),
                            parcels: Vec::new(),
                            bytes: 0,
                        });
                        load.bytes += parcel.content.size_estimate() + ADDRESS_BYTES_MAX;
                        load.parcels.push((*key, topic, leader, parcel));
                    }
                    Err(Idle::NeedsIdentity) => needs.identity = true,
                    Err(Idle::Nothing) => {}
                }
            }
            if round.is_empty() {
                return loads;
            }
            for (id, load) in round {
                self.nodes.entry(id).or_default().in_flight += 1;
                loads.push(load);
            }
        }
    }

    /// Seals the batches and puts the request on the wire, behind the earlier ones.
    fn send(&mut self, load: Load, now: Instant) {
        let Load {
            node,
            connection,
            mut parcels,
            ..
        } = load;
        let version = connection.version::<ProduceRequest>();
        // Batches of one topic stand together in a request.
        parcels.sort_by(|left, right| left.1.cmp(&right.1));
        let mut batches = Vec::with_capacity(parcels.len());
        for (key, topic, leader, parcel) in parcels {
            let batch = seal(parcel.content, parcel.stamp);
            batches.push(Shipped {
                key,
                order: parcel.order,
                topic,
                batch,
                leader,
            });
        }
        let version = match version {
            Ok(version) => version,
            Err(error) => {
                self.nodes.entry(node).or_default().in_flight -= 1;
                let answers = batches.into_iter().map(|shipped| {
                    let error = error.clone();
                    (shipped, Answer::Unsent(error))
                });
                self.give_back(answers.collect(), now);
                return;
            }
        };
        let acks = self.shared.settings.acks;
        let limit = self.shared.client.net.settings.request_timeout;
        let correlation = connection.next_correlation();
        let head = Head {
            version,
            correlation,
            client_id: connection.client_id(),
            acks: acks.wire(),
            timeout_ms: i32::try_from(limit.as_millis()).unwrap_or(i32::MAX),
        };
        let addressed: Vec<Addressed<'_>> = batches
            .iter()
            .map(|shipped| Addressed {
                topic: &shipped.topic,
                partition: shipped.key.partition(),
                batch: &shipped.batch,
            })
            .collect();
        let frame = encode(&head, &addressed);
        let request = self.next_request;
        self.next_request += 1;
        let answering = connection.submit(frame, (acks != Acks::None).then_some(correlation));
        self.events.push(Box::pin(async move {
            Happened::Answered {
                request,
                answer: answering.wait(limit).await,
            }
        }));
        let outstanding = Outstanding {
            node,
            connection,
            version,
            sent_at: now,
            batches,
        };
        self.outstanding.insert(request, outstanding);
    }

    fn take(&mut self, happened: Happened) {
        let now = self.shared.client.net.env.now();
        match happened {
            Happened::Connected { node, result } => {
                let state = self.nodes.entry(node).or_default();
                state.connecting = false;
                match result {
                    Ok(connection) => {
                        state.connection = Some(connection);
                        state.unreachable = false;
                    }
                    Err(error) => {
                        state.unreachable = true;
                        tracing::debug!(node, %error, "cannot connect to produce");
                        self.shared.client.metadata.refresh_soon();
                    }
                }
            }
            Happened::Answered { request, answer } => {
                if let Some(outstanding) = self.outstanding.remove(&request) {
                    self.answered(outstanding, answer, now);
                }
            }
            Happened::Identified(result) => {
                self.identifying = false;
                let mut settled = Vec::new();
                let mut accumulator = self.shared.accumulator.lock();
                match result {
                    Ok(identity) => accumulator.identity = Some(identity),
                    Err(error) => {
                        for key in accumulator.active() {
                            accumulator.queue(key).fail_all(&error, &mut settled);
                        }
                    }
                }
                drop(accumulator);
                self.shared.settle(settled);
            }
        }
    }

    fn answered(&mut self, outstanding: Outstanding, answer: Result<Bytes, Failure>, now: Instant) {
        let Outstanding {
            node,
            connection,
            version,
            batches,
            ..
        } = outstanding;
        let state = self.nodes.entry(node).or_default();
        state.in_flight -= 1;
        let lost = |failure: Failure| {
            let Failure { sent, error } = failure;
            let error = error.with_api(ProduceRequest::NAME);
            if sent {
                Answer::Lost(error)
            } else {
                Answer::Unsent(error)
            }
        };
        let answers = match answer {
            Err(failure) => {
                let each = |shipped| (shipped, lost(failure.clone()));
                batches.into_iter().map(each).collect()
            }
            Ok(_written) if self.shared.settings.acks == Acks::None => {
                let written = Answer::Written {
                    base_offset: None,
                    log_append_time: None,
                };
                batches
                    .into_iter()
                    .map(|shipped| (shipped, written.clone()))
                    .collect()
            }
            Ok(bytes) => match connection.typed::<ProduceRequest>(version, bytes) {
                Ok(response) => {
                    if response.throttle_time_ms > 0 {
                        let pause = Duration::from_millis(response.throttle_time_ms as u64);
                        state.muted_until = Some(now + pause);
                    }
                    self.read(response, batches)
                }
                Err(error) => {
                    let failure = Failure { sent: true, error };
                    let each = |shipped| (shipped, lost(failure.clone()));
                    batches.into_iter().map(each).collect()
                }
            },
        };
        self.give_back(answers, now);
    }

    /// Finds each batch's part of the response, and takes in the leaders that it names.
    fn read(&self, response: ProduceResponse, batches: Vec<Shipped>) -> Vec<(Shipped, Answer)> {
        let endpoint = |id: i32| {
            let endpoint = response
                .node_endpoints
                .iter()
                .find(|endpoint| endpoint.node_id.0 == id)?;
            BrokerInfo::new(id, &endpoint.host, endpoint.port, endpoint.rack.as_deref())
        };
        let mut answers = Vec::with_capacity(batches.len());
        for shipped in batches {
            let part = response
                .responses
                .iter()
                .filter(|topic| *topic.name.0 == *shipped.topic)
                .flat_map(|topic| &topic.partition_responses)
                .find(|part| part.index == shipped.key.partition());
            let Some(part) = part else {
                let what = "the answer does not mention the partition";
                answers.push((
                    shipped,
                    Answer::Lost(Error::new(ErrorKind::Malformed, what)),
                ));
                continue;
            };
            let code = ErrorCode::from_code(part.error_code);
            if code == ErrorCode::None {
                let answer = Answer::Written {
                    base_offset: Some(part.base_offset).filter(|offset| *offset >= 0),
                    log_append_time: Some(part.log_append_time_ms).filter(|time| *time >= 0),
                };
                answers.push((shipped, answer));
                continue;
            }
            let hint = LeaderHint {
                leader: part.current_leader.leader_id.0,
                epoch: part.current_leader.leader_epoch,
            };
            if hint.leader >= 0 {
                let metadata = &self.shared.client.metadata;
                let partition = shipped.key.partition();
                metadata.hint(&shipped.topic, partition, hint, endpoint(hint.leader));
            }
            let first_record = part.record_errors.first().and_then(|record| {
                let text = record.batch_index_error_message.as_deref()?;
                Some(format!("record {}: {text}", record.batch_index))
            });
            let message = part
                .error_message
                .as_deref()
                .map(str::to_owned)
                .or(first_record);
            let records = part.record_errors.iter();
            let answer = Answer::Refused {
                code,
                message,
                records: records.map(|record| record.batch_index).collect(),
            };
            answers.push((shipped, answer));
        }
        answers
    }

    /// Gives answers to the queues, which decide what becomes of the batches.
    fn give_back(&mut self, answers: Vec<(Shipped, Answer)>, now: Instant) {
        let net = &self.shared.client.net;
        let mut settled = Vec::new();
        let mut stale = false;
        {
            let mut accumulator = self.shared.accumulator.lock();
            let rules = accumulator.rules().clone();
            for (shipped, answer) in answers {
                let Shipped {
                    key,
                    order,
                    batch,
                    leader,
                    ..
                } = shipped;
                let error = answer.error();
                let queue = accumulator.queue(key);
                let pause = queue.answer(&rules, now, order, batch, answer, &mut settled);
                if pause != Pause::No
                    && let Some(error) = &error
                {
                    tracing::debug!(%error, "a batch is tried again");
                }
                let until = now + net.retry_backoff().wait(queue.failures + 1, &net.env);
                match pause {
                    Pause::No => {}
                    Pause::Backoff => queue.pause(until, None),
                    Pause::Leader => {
                        queue.pause(until, Some(leader));
                        stale = true;
                    }
                }
                if queue.needs_new_identity() {
                    accumulator.identity = None;
                }
            }
        }
        if stale {
            self.shared.client.metadata.refresh_soon();
        }
        self.shared.settle(settled);
    }

    /// Starts what the queues wait for.
    fn meet(&mut self, needs: Needs, image: &Arc<ClusterImage>) {
        if needs.metadata {
            self.shared.client.metadata.refresh_soon();
        }
        for node in needs.connections {
            let state = self.nodes.entry(node).or_default();
            if std::mem::replace(&mut state.connecting, true) {
                continue;
            }
            let (pool, image) = (self.pool.clone(), image.clone());
            self.events.push(Box::pin(async move {
                Happened::Connected {
                    node,
                    result: pool.node(&image, node).await,
                }
            }));
        }
        if needs.identity && !std::mem::replace(&mut self.identifying, true) {
            let shared = self.shared.clone();
            self.events.push(Box::pin(async move {
                Happened::Identified(identify(&shared).await)
            }));
        }
    }

    /// Leaves a broker that does not answer, once the metadata says that it no longer leads what
    /// was sent to it. Only with idempotence: the new leader recognises what it has already.
    fn watch_stalls(&mut self, now: Instant, image: &ClusterImage) {
        if !self.shared.settings.is_idempotent() {
            return;
        }
        let mut stalled = false;
        for request in self.outstanding.values() {
            if now < request.sent_at + STALL_AFTER {
                continue;
            }
            stalled = true;
            let moved = request.batches.iter().any(|shipped| {
                let known = image.partition(&shipped.topic, shipped.key.partition());
                known
                    .and_then(|partition| partition.seen())
                    .is_some_and(|(leader, epoch)| {
                        let sent_under = shipped.leader.map_or(-1, |(_, epoch)| epoch);
                        leader != request.node && epoch > sent_under
                    })
            });
            if moved {
                request.connection.close(Error::new(
                    ErrorKind::Disconnected,
                    "the broker stopped answering, and another one leads now",
                ));
            }
        }
        if stalled {
            self.shared.client.metadata.refresh_soon();
        }
    }
}

/// What has to be found before more can be sent.
#[derive(Default)]
struct Needs {
    metadata: bool,
    identity: bool,
    connections: Vec<i32>,
}

impl Node {
    /// The connection, if one more request may go now.
    fn ready(&mut self, now: Instant, in_flight_max: usize) -> Option<Arc<Connection>> {
        if self
            .connection
            .as_ref()
            .is_some_and(|connection| !connection.is_open())
        {
            self.connection = None;
        }
        if self.muted_until.is_some_and(|until| now < until) {
            return None;
        }
        self.muted_until = None;
        self.connection
            .clone()
            .filter(|_| self.in_flight < in_flight_max)
    }
}

/// Compresses and stamps.
fn seal(content: Content, place: Option<Stamp>) -> Batch {
    let batch = match content {
        Content::Gathered(builder) => builder.finish(),
        Content::Sealed(batch) => batch,
    };
    let Some(place) = place else {
        return batch;
    };
    stamp(batch, place)
}

/// Asks any broker for a producer id.
async fn identify(shared: &Shared) -> Result<Identity, Error> {
    let net = &shared.client.net;
    let deadline = net.env.now() + shared.settings.delivery_timeout;
    let answer = shared
        .client
        .ask_any(
            deadline,
            |_version| {
                InitProducerIdRequest::default()
                    .with_transactional_id(None)
                    .with_transaction_timeout_ms(i32::MAX)
                    .with_producer_id(corduroy_protocol::messages::ProducerId(-1))
                    .with_producer_epoch(-1)
            },
            |answer| match ErrorCode::from_code(answer.error_code) {
                ErrorCode::None => Ok(()),
                code => Err(Error::broker(code, None)),
            },
        )
        .await?;
    Ok(Identity {
        id: ProducerId::new(answer.producer_id.0),
        epoch: ProducerEpoch::new(answer.producer_epoch),
    })
}
