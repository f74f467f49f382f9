//! The task behind a reader: keeps one fetch on its way to each leader while there is room.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use corduroy_protocol::messages::fetch_response::PartitionData;
use corduroy_protocol::messages::{BrokerId, FetchRequest, FetchResponse, TopicName};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::From;
use super::batch::{ReadBatch, Told};
use super::budget::Budget;
use super::cursor::{Aborted, Cursor, Fetched, View};
use super::places::{Places, out_of_range};
use crate::client::ClientShared;
use crate::config::{OutOfRange, ReaderSettings};
use crate::error::{Error, ErrorKind};
use crate::metadata::{Asker, ClusterImage, LeaderHint};
use crate::net::api::{Api, StrBytes};
use crate::net::connection::Connection;
use crate::net::pool::Pool;
use crate::offsets::OffsetSpec;
use crate::topic_partition::TopicPartition;

/// A fetch that takes this much longer than its wait makes the reader ask who leads now.
const STALL_AFTER: Duration = Duration::from_secs(1);

/// How long all brokers may say that the topic does not exist before the reader believes them.
const DELETED_GRACE: Duration = Duration::from_secs(5);

/// How long an assigned partition may look for a place before the others are served again.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(5);

/// What to read of one topic.
pub(crate) struct Plan {
    pub(crate) topic: String,
    pub(crate) partitions: Option<Vec<i32>>,
    pub(crate) from: From,
    /// Ends at the high watermarks found at the start.
    pub(crate) bounded: bool,
}

/// What is read, and who says so.
pub(crate) enum Source {
    /// One topic, from its partitions' starts on.
    Topic {
        plan: Plan,
        started: watch::Sender<Option<Vec<(i32, i64)>>>,
    },
    /// Whatever a group assigns to its member. Such a fetcher outlives passing troubles of a topic:
    /// the group's next assignment deals with the lasting ones.
    Assigned(mpsc::UnboundedReceiver<Change>),
}

/// A change of what is read.
#[derive(Debug)]
pub(crate) enum Change {
    Add(Vec<Start>),
    Remove(Vec<TopicPartition>),
    /// Fetches nothing of the partition for now, or again.
    Hold(TopicPartition, bool),
}

/// Where reading a partition begins.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) at: TopicPartition,
    pub(crate) offset: i64,
    /// Of the record before it, -1 = unknown: a log that has another record there was truncated.
    pub(crate) leader_epoch: i32,
    /// Stamped on the partition's batches.
    pub(crate) incarnation: u64,
}

/// One partition that is read.
struct Track {
    cursor: Cursor,
    incarnation: u64,
    /// Rests until it is told otherwise.
    held: bool,
    paused: Option<Paused>,
    failures: u32,
    /// Since when brokers say that it does not exist.
    unknown_since: Option<Instant>,
}

impl Track {
    fn new(cursor: Cursor, incarnation: u64) -> Track {
        Track {
            cursor,
            incarnation,
            held: false,
            paused: None,
            failures: 0,
            unknown_since: None,
        }
    }
}

/// A partition rests until then, or until somebody else leads it.
struct Paused {
    until: Instant,
    leader: Option<(i32, i32)>,
}

type Fetching = Pin<Box<dyn Future<Output = Answered> + Send>>;

struct Answered {
    node: i32,
    result: Result<FetchResponse, Error>,
}

/// What a fetch asks of one partition.
#[derive(Clone, Copy)]
struct Asked {
    asked_at: Instant,
    leader_epoch: i32,
    offset: i64,
    incarnation: u64,
}

/// A fetch on its way.
struct Outstanding {
    sent_at: Instant,
    partitions: BTreeMap<TopicPartition, Asked>,
    /// Known once the connection is there.
    connection: Arc<watch::Sender<Option<Arc<Connection>>>>,
}

pub(crate) struct Fetcher {
    client: Arc<ClientShared>,
    settings: ReaderSettings,
    source: Source,
    budget: Budget,
    batches: mpsc::UnboundedSender<Result<ReadBatch, Error>>,
    pool: Arc<Pool>,
    /// The topics of `tracks` with their ids, nil while unknown.
    topics: BTreeMap<Arc<str>, Uuid>,
    tracks: BTreeMap<TopicPartition, Track>,
    outstanding: HashMap<i32, Outstanding>,
    fetching: FuturesUnordered<Fetching>,
    /// Which partition comes first in the next request.
    turn: usize,
}

impl Fetcher {
    pub(crate) fn new(
        client: Arc<ClientShared>,
        settings: ReaderSettings,
        source: Source,
        budget: Budget,
        batches: mpsc::UnboundedSender<Result<ReadBatch, Error>>,
    ) -> Fetcher {
        Fetcher {
            pool: Arc::new(Pool::new(client.net.clone())),
            client,
            settings,
            source,
            budget,
            batches,
            topics: BTreeMap::new(),
            tracks: BTreeMap::new(),
            outstanding: HashMap::new(),
            fetching: FuturesUnordered::new(),
            turn: 0,
        }
    }

    /// Runs until the end, an error, or until nobody listens any more.
    pub(crate) async fn run(mut self) {
        let batches = self.batches.clone();
        let ended = tokio::select! {
            ended = self.read() => ended,
            () = batches.closed() => Ok(()),
        };
        if let Err(error) = ended {
            // Nobody may be listening any more.
            let _ = self.batches.send(Err(error));
        }
        self.pool.close("the reader has ended");
    }

    fn is_assigned(&self) -> bool {
        matches!(self.source, Source::Assigned(_))
    }

    async fn read(&mut self) -> Result<(), Error> {
        self.begin().await?;
        let mut changes = self.client.metadata.changes();
        let budget = self.budget.clone();
        while self.is_assigned() || self.tracks.values().any(|track| !track.cursor.is_done()) {
            let next_look = self.step()?;
            let far = self.client.net.env.now() + Duration::from_secs(3600);
            tokio::select! {
                change = next_change(&mut self.source) => match change {
                    Some(change) => self.change(change),
                    None => return Ok(()),
                },
                Some(answered) = self.fetching.next(), if !self.fetching.is_empty() => {
                    self.take(answered).await?;
                }
                () = budget.freed() => {}
                _ = changes.changed() => {}
                () = sleep_until(next_look.unwrap_or(far)) => {}
            }
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Add(starts) => {
                for start in starts {
                    let TopicPartition { topic, partition } = start.at.clone();
                    let id = self
                        .client
                        .metadata
                        .image()
                        .topics
                        .get(&topic)
                        .map(|t| t.id);
                    self.topics
                        .entry(topic.clone())
                        .or_insert(id.unwrap_or_default());
                    let cursor = Cursor::new(topic, partition, start.offset, None)
                        .behind(start.leader_epoch);
                    let track = Track::new(cursor, start.incarnation);
                    self.tracks.insert(start.at, track);
                }
            }
            Change::Remove(gone) => {
                for at in gone {
                    self.tracks.remove(&at);
                }
                let tracks = &self.tracks;
                self.topics
                    .retain(|topic, _| tracks.keys().any(|at| at.topic == *topic));
            }
            Change::Hold(at, held) => {
                if let Some(track) = self.tracks.get_mut(&at) {
                    track.held = held;
                }
            }
        }
    }

    /// Finds the partitions of one topic and where to begin.
    async fn begin(&mut self) -> Result<(), Error> {
        let Source::Topic { plan, started } = &self.source else {
            return Ok(());
        };
        let deadline = self.client.api_deadline();
        let topic = self
            .client
            .metadata
            .topic(&plan.topic, Asker::Reader, deadline)
            .await?;
        let count = topic.partitions.len() as i32;
        let partitions = match &plan.partitions {
            None => (0..count).collect(),
            Some(partitions) => partitions.clone(),
        };
        if let Some(unknown) = partitions
            .iter()
            .find(|partition| !(0..count).contains(*partition))
        {
            let message = format!("the topic has {count} partitions");
            return Err(Error::new(ErrorKind::UnknownPartition, message)
                .with_partition(&topic.name, *unknown));
        }
        let places = self.places(&topic.name);
        let ends = match plan.bounded {
            true => Some(
                places
                    .offsets(&partitions, OffsetSpec::Latest, deadline)
                    .await?,
            ),
            false => None,
        };
        let starts = places
            .starts(plan.from, &partitions, ends.as_ref(), deadline)
            .await?;
        if let (Some(ends), OutOfRange::Fail) = (&ends, self.settings.out_of_range)
            && let Some((&partition, &start)) = starts
                .iter()
                .find(|(partition, start)| ends.get(partition).is_some_and(|end| *start > end))
        {
            // Nothing would be asked of the leader, so it could not refuse.
            let error = places.out_of_range(partition, start).await;
            return Err(error.with_partition(&topic.name, partition));
        }
        self.topics.insert(topic.name.clone(), topic.id);
        for (&partition, &start) in &starts {
            let end = ends
                .as_ref()
                .map(|ends| ends.get(&partition).copied().unwrap_or(0));
            let cursor = Cursor::new(topic.name.clone(), partition, start, end);
            let at = TopicPartition::new(topic.name.clone(), partition);
            self.tracks.insert(at, Track::new(cursor, 0));
        }
        started.send_replace(Some(starts.into_iter().collect()));
        Ok(())
    }

    fn places(&self, topic: &Arc<str>) -> Places {
        Places {
            client: self.client.clone(),
            topic: topic.clone(),
            isolation: self.settings.isolation,
        }
    }

    /// Sends a fetch to each leader that has none and for which there is something to fetch.
    /// Returns when to look again.
    fn step(&mut self) -> Result<Option<Instant>, Error> {
        let now = self.client.net.env.now();
        let image = self.client.metadata.image();
        for topic in self.topics.keys() {
            self.client.metadata.want(topic, Asker::Reader);
        }
        self.check_topics(&image)?;
        self.watch_stalls(now, &image);
        let has_room = self.budget.has_room();
        let mut wanted: HashMap<i32, Vec<(TopicPartition, Asked)>> = HashMap::new();
        let mut needs_metadata = false;
        self.turn = self.turn.wrapping_add(1);
        let count = self.tracks.len().max(1);
        let (late, early) = self.tracks.iter().enumerate().fold(
            (Vec::new(), Vec::new()),
            |(mut late, mut early), (index, entry)| {
                if index < self.turn % count {
                    late.push(entry)
                } else {
                    early.push(entry)
                }
                (late, early)
            },
        );
        for (at, track) in early.into_iter().chain(late) {
            let known = image
                .partition(&at.topic, at.partition)
                .and_then(|known| known.seen());
            let is_paused = track
                .paused
                .as_ref()
                .is_some_and(|paused| now < paused.until && paused.leader == known);
            if track.cursor.is_done() || track.held {
                continue;
            }
            if is_paused {
                // The pause ends with another leader.
                needs_metadata = true;
                continue;
            }
            let Some((leader, epoch)) = known.filter(|(id, _)| image.brokers.contains_key(id))
            else {
                needs_metadata = true;
                continue;
            };
            if self.outstanding.contains_key(&leader) || !has_room {
                continue;
            }
            let asked = Asked {
                asked_at: now,
                leader_epoch: epoch,
                offset: track.cursor.next_offset(),
                incarnation: track.incarnation,
            };
            wanted.entry(leader).or_default().push((at.clone(), asked));
        }
        for (node, partitions) in wanted {
            self.fetch(node, partitions, now, &image);
        }
        if needs_metadata {
            self.client.metadata.refresh_soon();
        }
        let resumes = self
            .tracks
            .values()
            .filter_map(|track| track.paused.as_ref())
            .map(|p| p.until);
        let patience = self.settings.wait_max + STALL_AFTER;
        let stalls = self
            .outstanding
            .values()
            .map(|fetch| fetch.sent_at + patience);
        Ok(resumes.chain(stalls).filter(|look| *look > now).min())
    }

    /// A topic that was deleted and created again is another log: offsets of one mean nothing in
    /// the other. A group's member goes on: where its place does not exist, `auto.offset.reset`
    /// says where.
    fn check_topics(&mut self, image: &ClusterImage) -> Result<(), Error> {
        let is_assigned = self.is_assigned();
        for (name, id) in &mut self.topics {
            let Some(topic) = image.topics.get(name) else {
                continue;
            };
            if id.is_nil() {
                *id = topic.id;
            }
            if topic.error.is_none() && !topic.id.is_nil() && topic.id != *id {
                let message = "the topic was deleted and created again";
                if !is_assigned {
                    return Err(Error::new(ErrorKind::LogTruncated, message).with_topic(name));
                }
                tracing::warn!(topic = %name, message);
                *id = topic.id;
            }
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        node: i32,
        partitions: Vec<(TopicPartition, Asked)>,
        now: Instant,
        image: &Arc<ClusterImage>,
    ) {
        let settings = &self.settings;
        let wait = settings.wait_max;
        let limit = self
            .client
            .net
            .settings
            .request_timeout
            .saturating_add(wait);
        // In the order of the turn, each topic once: brokers fill an answer in this order.
        let mut topics: Vec<(Arc<str>, Vec<FetchPartition>)> = Vec::new();
        for (at, asked) in &partitions {
            let last_epoch = self.tracks.get(at).map(|track| track.cursor.last_epoch());
            let fetch = FetchPartition::default()
                .with_partition(at.partition)
                .with_current_leader_epoch(asked.leader_epoch)
                .with_fetch_offset(asked.offset)
                .with_last_fetched_epoch(last_epoch.unwrap_or(-1))
                .with_log_start_offset(-1)
                .with_partition_max_bytes(settings.partition_bytes_max);
            match topics.iter_mut().find(|(topic, _)| *topic == at.topic) {
                Some((_, fetches)) => fetches.push(fetch),
                None => topics.push((at.topic.clone(), vec![fetch])),
            }
        }
        let topics = topics.into_iter().map(|(topic, fetches)| {
            FetchTopic::default()
                .with_topic(TopicName(StrBytes::from_string(topic.to_string())))
                .with_partitions(fetches)
        });
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(settings.fetch_bytes_min)
            .with_max_bytes(settings.fetch_bytes_max)
            .with_isolation_level(settings.isolation.wire())
            // No session (KIP-227): every request names what it wants.
            .with_session_id(0)
            .with_session_epoch(-1)
            .with_topics(topics.collect());
        let connection = Arc::new(watch::channel(None).0);
        self.outstanding.insert(
            node,
            Outstanding {
                sent_at: now,
                partitions: partitions.into_iter().collect(),
                connection: connection.clone(),
            },
        );
        let (pool, image) = (self.pool.clone(), image.clone());
        self.fetching.push(Box::pin(async move {
            let result = async {
                let open = pool.node(&image, node).await?;
                connection.send_replace(Some(open.clone()));
                open.call(limit, |version| fit(request, version)).await
            };
            Answered {
                node,
                result: result.await,
            }
        }));
    }

    async fn take(&mut self, answered: Answered) -> Result<(), Error> {
        let Answered { node, result } = answered;
        let now = self.client.net.env.now();
        let asked = self.outstanding.remove(&node).map(|fetch| fetch.partitions);
        let failed = match result {
            Ok(response) => match ErrorCode::from_code(response.error_code) {
                ErrorCode::None => {
                    for topic in response.responses {
                        let name: Arc<str> = (**topic.topic).into();
                        for part in topic.partitions {
                            let at = TopicPartition::new(name.clone(), part.partition_index);
                            if let Some(asked) = asked.as_ref().and_then(|asked| asked.get(&at)) {
                                self.take_partition(&at, *asked, part, now).await?;
                            }
                        }
                    }
                    return Ok(());
                }
                code => Error::broker(code, None).with_api(FetchRequest::NAME),
            },
            Err(error) => error,
        };
        if !failed.is_retriable() {
            let topic = asked.and_then(|asked| asked.into_keys().next());
            return Err(match topic {
                Some(at) => failed.with_topic(&at.topic),
                None => failed,
            });
        }
        tracing::debug!(node, error = %failed, "a fetch failed");
        for at in asked.unwrap_or_default().into_keys() {
            self.pause(&at, now);
        }
        self.client.metadata.refresh_soon();
        Ok(())
    }

    async fn take_partition(
        &mut self,
        at: &TopicPartition,
        asked: Asked,
        part: PartitionData,
        now: Instant,
    ) -> Result<(), Error> {
        let is_assigned = self.is_assigned();
        let Some(track) = self.tracks.get_mut(at) else {
            return Ok(());
        };
        if (asked.incarnation, asked.offset) != (track.incarnation, track.cursor.next_offset()) {
            // The track has moved meanwhile: what was asked of the old place is no news of the new.
            return Ok(());
        }
        match ErrorCode::from_code(part.error_code) {
            ErrorCode::None if part.diverging_epoch.end_offset >= 0 => {
                let end = part.diverging_epoch.end_offset;
                let message = format!(
                    "the log was replaced from offset {end} on; {} was read already",
                    track.cursor.next_offset()
                );
                let error = Error::new(ErrorKind::LogTruncated, message);
                if is_assigned && self.settings.out_of_range != OutOfRange::Fail {
                    // What was read and is no more can't be unread; the rest is still there. Where
                    // the log goes on for longer, nothing of it is skipped.
                    tracing::warn!(%at, end, %error, "goes on where the logs part");
                    track.cursor.reset(end.min(track.cursor.next_offset()));
                    return Ok(());
                }
                self.lost_place(at, error, now).await
            }
            ErrorCode::None => {
                track.failures = 0;
                track.paused = None;
                track.unknown_since = None;
                let fetched = Fetched {
                    records: part.records.unwrap_or_default(),
                    told: Told {
                        asked_at: asked.asked_at,
                        leader_epoch: asked.leader_epoch,
                        log_start: part.log_start_offset,
                        last_stable: part.last_stable_offset,
                        high_watermark: part.high_watermark,
                    },
                    aborted: part
                        .aborted_transactions
                        .unwrap_or_default()
                        .iter()
                        .map(|aborted| Aborted {
                            producer_id: aborted.producer_id.0,
                            first_offset: aborted.first_offset,
                        })
                        .collect(),
                };
                let view = View {
                    isolation: self.settings.isolation,
                    check_crcs: self.settings.check_crcs,
                };
                if let Some(mut batch) = track.cursor.take(fetched, view)? {
                    batch.incarnation = track.incarnation;
                    self.budget.take(batch.fetched_bytes);
                    // If nobody listens any more, the task is about to end.
                    let _ = self.batches.send(Ok(batch));
                }
                Ok(())
            }
            ErrorCode::OffsetOutOfRange => {
                let offset = track.cursor.next_offset();
                // A refusal names no bounds: they are asked for where somebody is going to read
                // about them.
                let error = match self.settings.out_of_range {
                    OutOfRange::Fail => {
                        self.places(&at.topic)
                            .out_of_range(at.partition, offset)
                            .await
                    }
                    _ => out_of_range(offset, None),
                };
                self.lost_place(at, error, now).await
            }
            code if code.is_retriable() => {
                if code == ErrorCode::UnknownTopicOrPartition {
                    let since = *track.unknown_since.get_or_insert(now);
                    if now >= since + DELETED_GRACE && !is_assigned {
                        return Err(Error::new(ErrorKind::UnknownTopic, "the topic is gone")
                            .with_partition(&at.topic, at.partition));
                    }
                }
                let hint = LeaderHint {
                    leader: part.current_leader.leader_id.0,
                    epoch: part.current_leader.leader_epoch,
                };
                let hinted = hint.leader >= 0
                    && self
                        .client
                        .metadata
                        .hint(&at.topic, at.partition, hint, None);
                if !hinted {
                    self.pause(at, now);
                }
                if code.refreshes_metadata() {
                    self.client.metadata.refresh_soon();
                }
                Ok(())
            }
            code => Err(Error::broker(code, None)
                .with_api(FetchRequest::NAME)
                .with_partition(&at.topic, at.partition)),
        }
    }

    /// The reader's place is gone: ends with `error`, or goes on where the user said.
    async fn lost_place(
        &mut self,
        at: &TopicPartition,
        error: Error,
        now: Instant,
    ) -> Result<(), Error> {
        let spec = match self.settings.out_of_range {
            OutOfRange::Fail => return Err(error.with_partition(&at.topic, at.partition)),
            OutOfRange::Earliest => OffsetSpec::Earliest,
            OutOfRange::Latest => OffsetSpec::Latest,
        };
        let mut deadline = self.client.api_deadline();
        if self.is_assigned() {
            deadline = deadline.min(now + PLACE_WAIT_MAX);
        }
        let places = self.places(&at.topic);
        let offsets = match places.offsets(&[at.partition], spec, deadline).await {
            Err(why) if self.is_assigned() && why.is_passing() => {
                tracing::debug!(%at, error = %why, "no place to go on yet");
                self.pause(at, now);
                return Ok(());
            }
            found => found?,
        };
        if let (Some(track), Some(offset)) = (self.tracks.get_mut(at), offsets.get(&at.partition)) {
            tracing::warn!(%at, offset, %error, "goes on elsewhere");
            track.cursor.reset(*offset);
        }
        Ok(())
    }

    fn pause(&mut self, at: &TopicPartition, now: Instant) {
        let ClientShared { net, metadata, .. } = &*self.client;
        if let Some(track) = self.tracks.get_mut(at) {
            track.failures += 1;
            let until = now + net.retry_backoff().wait(track.failures, &net.env);
            let image = metadata.image();
            let leader = image
                .partition(&at.topic, at.partition)
                .and_then(|known| known.seen());
            track.paused = Some(Paused { until, leader });
        }
    }

    /// Leaves a broker that does not answer once another one leads what was asked of it.
    fn watch_stalls(&mut self, now: Instant, image: &ClusterImage) {
        let patience = self.settings.wait_max + STALL_AFTER;
        let mut stalled = false;
        for (node, fetch) in &self.outstanding {
            if now < fetch.sent_at + patience {
                continue;
            }
            stalled = true;
            let moved = fetch.partitions.iter().any(|(at, asked)| {
                let known = image
                    .partition(&at.topic, at.partition)
                    .and_then(|p| p.seen());
                known.is_some_and(|(leader, now)| leader != *node && now > asked.leader_epoch)
            });
            if let (true, Some(connection)) = (moved, &*fetch.connection.borrow()) {
                connection.close(Error::new(
                    ErrorKind::Disconnected,
                    "the broker stopped answering, and another one leads now",
                ));
            }
        }
        if stalled {
            self.client.metadata.refresh_soon();
        }
    }
}

/// The next change of an assignment; for ever in coming where there is none.
async fn next_change(source: &mut Source) -> Option<Change> {
    match source {
        Source::Topic { .. } => std::future::pending().await,
        Source::Assigned(changes) => changes.recv().await,
    }
}

/// Leaves out what a version does not have.
fn fit(mut request: FetchRequest, version: i16) -> FetchRequest {
    if version < 7 {
        request.session_epoch = -1;
    }
    for partition in request
        .topics
        .iter_mut()
        .flat_map(|topic| &mut topic.partitions)
    {
        if version < 9 {
            partition.current_leader_epoch = -1;
        }
        if version < 12 {
            partition.last_fetched_epoch = -1;
        }
    }
    request
}
