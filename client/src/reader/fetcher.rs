//! The task behind a reader: keeps one fetch on its way to each leader while there is room.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use corduroy_protocol::messages::fetch_response::PartitionData;
use corduroy_protocol::messages::{BrokerId, FetchRequest, FetchResponse, TopicName};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::From;
use super::batch::ReadBatch;
use super::cursor::{Aborted, Cursor, Fetched, View};
use super::places::Places;
use crate::client::ClientShared;
use crate::config::{OutOfRange, ReaderSettings};
use crate::error::{Error, ErrorKind};
use crate::metadata::{Asker, ClusterImage, LeaderHint};
use crate::net::api::{Api, StrBytes};
use crate::net::connection::Connection;
use crate::net::pool::Pool;
use crate::offsets::OffsetSpec;

/// A fetch that takes this much longer than its wait makes the reader ask who leads now.
const STALL_AFTER: Duration = Duration::from_secs(1);

/// How long all brokers may say that the topic does not exist before the reader believes them.
const DELETED_GRACE: Duration = Duration::from_secs(5);

/// What to read.
pub(super) struct Plan {
    pub(super) topic: String,
    pub(super) partitions: Option<Vec<i32>>,
    pub(super) from: From,
    /// Ends at the high watermarks found at the start.
    pub(super) bounded: bool,
    pub(super) settings: ReaderSettings,
}

/// Bytes that were fetched and not yet taken.
#[derive(Clone)]
pub(super) struct Budget {
    shared: Arc<BudgetShared>,
}

struct BudgetShared {
    used_bytes: AtomicUsize,
    limit_bytes: usize,
    freed: Notify,
}

impl Budget {
    pub(super) fn new(limit_bytes: usize) -> Budget {
        let shared = BudgetShared {
            used_bytes: AtomicUsize::new(0),
            limit_bytes,
            freed: Notify::new(),
        };
        Budget {
            shared: Arc::new(shared),
        }
    }

    pub(super) fn free(&self, bytes: usize) {
        let before = self.shared.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before >= self.shared.limit_bytes && before - bytes < self.shared.limit_bytes {
            self.shared.freed.notify_one();
        }
    }

    fn take(&self, bytes: usize) {
        self.shared.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    fn has_room(&self) -> bool {
        let used = self.shared.used_bytes.load(Ordering::Acquire);
        used < self.shared.limit_bytes.max(1)
    }
}

/// One partition that is read.
struct Track {
    cursor: Cursor,
    paused: Option<Paused>,
    failures: u32,
    /// Since when brokers say that it does not exist.
    unknown_since: Option<Instant>,
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

/// A fetch on its way.
struct Outstanding {
    sent_at: Instant,
    /// Partitions, with the epochs of their leaders.
    partitions: Vec<(i32, i32)>,
    /// Known once the connection is there.
    connection: Arc<watch::Sender<Option<Arc<Connection>>>>,
}

pub(super) struct Fetcher {
    client: Arc<ClientShared>,
    plan: Plan,
    budget: Budget,
    batches: mpsc::UnboundedSender<Result<ReadBatch, Error>>,
    started: watch::Sender<Option<Vec<(i32, i64)>>>,
    pool: Arc<Pool>,
    topic: Arc<str>,
    topic_id: Uuid,
    tracks: BTreeMap<i32, Track>,
    outstanding: HashMap<i32, Outstanding>,
    fetching: FuturesUnordered<Fetching>,
    /// Which partition comes first in the next request.
    turn: usize,
}

impl Fetcher {
    pub(super) fn new(
        client: Arc<ClientShared>,
        plan: Plan,
        budget: Budget,
        batches: mpsc::UnboundedSender<Result<ReadBatch, Error>>,
        started: watch::Sender<Option<Vec<(i32, i64)>>>,
    ) -> Fetcher {
        Fetcher {
            pool: Arc::new(Pool::new(client.net.clone())),
            topic: plan.topic.as_str().into(),
            topic_id: Uuid::nil(),
            client,
            plan,
            budget,
            batches,
            started,
            tracks: BTreeMap::new(),
            outstanding: HashMap::new(),
            fetching: FuturesUnordered::new(),
            turn: 0,
        }
    }

    /// Runs until the end, an error, or until nobody listens any more.
    pub(super) async fn run(mut self) {
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

    async fn read(&mut self) -> Result<(), Error> {
        self.begin().await?;
        let mut changes = self.client.metadata.changes();
        let budget = self.budget.clone();
        while self.tracks.values().any(|track| !track.cursor.is_done()) {
            let next_look = self.step()?;
            let far = self.client.net.env.now() + Duration::from_secs(3600);
            tokio::select! {
                Some(answered) = self.fetching.next(), if !self.fetching.is_empty() => {
                    self.take(answered).await?;
                }
                () = budget.shared.freed.notified() => {}
                _ = changes.changed() => {}
                () = sleep_until(next_look.unwrap_or(far)) => {}
            }
        }
        Ok(())
    }

    /// Finds the partitions and where to begin.
    async fn begin(&mut self) -> Result<(), Error> {
        let deadline = self.client.api_deadline();
        let topic = self
            .client
            .metadata
            .topic(&self.topic, Asker::Reader, deadline)
            .await?;
        self.topic = topic.name.clone();
        self.topic_id = topic.id;
        let count = topic.partitions.len() as i32;
        let partitions = match &self.plan.partitions {
            None => (0..count).collect(),
            Some(partitions) => partitions.clone(),
        };
        if let Some(unknown) = partitions
            .iter()
            .find(|partition| !(0..count).contains(*partition))
        {
            let message = format!("the topic has {count} partitions");
            return Err(Error::new(ErrorKind::UnknownPartition, message)
                .with_partition(&self.topic, *unknown));
        }
        let places = self.places();
        let ends = match self.plan.bounded {
            true => Some(
                places
                    .offsets(&partitions, OffsetSpec::Latest, deadline)
                    .await?,
            ),
            false => None,
        };
        let from = self.plan.from;
        let starts = places
            .starts(from, &partitions, ends.as_ref(), deadline)
            .await?;
        for (&partition, &start) in &starts {
            let end = ends
                .as_ref()
                .map(|ends| ends.get(&partition).copied().unwrap_or(0));
            let cursor = Cursor::new(self.topic.clone(), partition, start, end);
            let track = Track {
                cursor,
                paused: None,
                failures: 0,
                unknown_since: None,
            };
            self.tracks.insert(partition, track);
        }
        self.started
            .send_replace(Some(starts.into_iter().collect()));
        Ok(())
    }

    fn places(&self) -> Places {
        Places {
            client: self.client.clone(),
            topic: self.topic.clone(),
            isolation: self.plan.settings.isolation,
        }
    }

    /// Sends a fetch to each leader that has none and for which there is something to fetch.
    /// Returns when to look again.
    fn step(&mut self) -> Result<Option<Instant>, Error> {
        let now = self.client.net.env.now();
        let image = self.client.metadata.image();
        self.client.metadata.want(&self.topic, Asker::Reader);
        self.check_topic(&image)?;
        self.watch_stalls(now, &image);
        let has_room = self.budget.has_room();
        let mut wanted: HashMap<i32, Vec<FetchPartition>> = HashMap::new();
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
        for (&partition, track) in early.into_iter().chain(late) {
            let known = image
                .partition(&self.topic, partition)
                .and_then(|known| known.seen());
            let is_paused = track
                .paused
                .as_ref()
                .is_some_and(|paused| now < paused.until && paused.leader == known);
            if track.cursor.is_done() {
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
            wanted.entry(leader).or_default().push(
                FetchPartition::default()
                    .with_partition(partition)
                    .with_current_leader_epoch(epoch)
                    .with_fetch_offset(track.cursor.next_offset())
                    .with_last_fetched_epoch(track.cursor.last_epoch())
                    .with_log_start_offset(-1)
                    .with_partition_max_bytes(self.plan.settings.partition_bytes_max),
            );
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
        let patience = self.plan.settings.wait_max + STALL_AFTER;
        let stalls = self
            .outstanding
            .values()
            .map(|fetch| fetch.sent_at + patience);
        Ok(resumes.chain(stalls).filter(|look| *look > now).min())
    }

    /// A topic that was deleted and created again is another log: offsets of one mean nothing in
    /// the other.
    fn check_topic(&mut self, image: &ClusterImage) -> Result<(), Error> {
        let Some(topic) = image.topics.get(&self.topic) else {
            return Ok(());
        };
        if self.topic_id.is_nil() {
            self.topic_id = topic.id;
        }
        if topic.error.is_none() && !topic.id.is_nil() && topic.id != self.topic_id {
            let message = "the topic was deleted and created again";
            return Err(Error::new(ErrorKind::LogTruncated, message).with_topic(&self.topic));
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        node: i32,
        partitions: Vec<FetchPartition>,
        now: Instant,
        image: &Arc<ClusterImage>,
    ) {
        let settings = &self.plan.settings;
        let wait = settings.wait_max;
        let limit = self
            .client
            .net
            .settings
            .request_timeout
            .saturating_add(wait);
        let epochs = partitions
            .iter()
            .map(|p| (p.partition, p.current_leader_epoch))
            .collect();
        let name = TopicName(StrBytes::from_string(self.topic.to_string()));
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(settings.fetch_bytes_min)
            .with_max_bytes(settings.fetch_bytes_max)
            .with_isolation_level(settings.isolation.wire())
            // No session (KIP-227): every request names what it wants.
            .with_session_id(0)
            .with_session_epoch(-1)
            .with_topics(vec![
                FetchTopic::default()
                    .with_topic(name)
                    .with_partitions(partitions),
            ]);
        let connection = Arc::new(watch::channel(None).0);
        self.outstanding.insert(
            node,
            Outstanding {
                sent_at: now,
                partitions: epochs,
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
                    for part in response
                        .responses
                        .into_iter()
                        .flat_map(|topic| topic.partitions)
                    {
                        self.take_partition(part, now).await?;
                    }
                    return Ok(());
                }
                code => Error::broker(code, None).with_api(FetchRequest::NAME),
            },
            Err(error) => error,
        };
        if !failed.is_retriable() {
            return Err(failed.with_topic(&self.topic));
        }
        tracing::debug!(node, error = %failed, "a fetch failed");
        for (partition, _) in asked.unwrap_or_default() {
            self.pause(partition, now);
        }
        self.client.metadata.refresh_soon();
        Ok(())
    }

    async fn take_partition(&mut self, part: PartitionData, now: Instant) -> Result<(), Error> {
        let partition = part.partition_index;
        let Some(track) = self.tracks.get_mut(&partition) else {
            return Ok(());
        };
        match ErrorCode::from_code(part.error_code) {
            ErrorCode::None if part.diverging_epoch.end_offset >= 0 => {
                let end = part.diverging_epoch.end_offset;
                let message = format!(
                    "the log was replaced from offset {end} on; {} was read already",
                    track.cursor.next_offset()
                );
                let error = Error::new(ErrorKind::LogTruncated, message);
                self.lost_place(partition, error).await
            }
            ErrorCode::None => {
                track.failures = 0;
                track.paused = None;
                track.unknown_since = None;
                let fetched = Fetched {
                    records: part.records.unwrap_or_default(),
                    high_watermark: part.high_watermark,
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
                    isolation: self.plan.settings.isolation,
                    check_crcs: self.plan.settings.check_crcs,
                };
                if let Some(batch) = track.cursor.take(fetched, view)? {
                    self.budget.take(batch.fetched_bytes);
                    // If nobody listens any more, the task is about to end.
                    let _ = self.batches.send(Ok(batch));
                }
                Ok(())
            }
            ErrorCode::OffsetOutOfRange => {
                let message = format!(
                    "offset {} does not exist; the log starts at {}, its high watermark is {}",
                    track.cursor.next_offset(),
                    part.log_start_offset,
                    part.high_watermark
                );
                let error = Error::new(ErrorKind::OffsetOutOfRange, message);
                self.lost_place(partition, error).await
            }
            code if code.is_retriable() => {
                if code == ErrorCode::UnknownTopicOrPartition {
                    let since = *track.unknown_since.get_or_insert(now);
                    if now >= since + DELETED_GRACE {
                        return Err(Error::new(ErrorKind::UnknownTopic, "the topic is gone")
                            .with_partition(&self.topic, partition));
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
                        .hint(&self.topic, partition, hint, None);
                if !hinted {
                    self.pause(partition, now);
                }
                if code.refreshes_metadata() {
                    self.client.metadata.refresh_soon();
                }
                Ok(())
            }
            code => Err(Error::broker(code, None)
                .with_api(FetchRequest::NAME)
                .with_partition(&self.topic, partition)),
        }
    }

    /// The reader's place is gone: ends with `error`, or goes on where the user said.
    async fn lost_place(&mut self, partition: i32, error: Error) -> Result<(), Error> {
        let spec = match self.plan.settings.out_of_range {
            OutOfRange::Fail => return Err(error.with_partition(&self.topic, partition)),
            OutOfRange::Earliest => OffsetSpec::Earliest,
            OutOfRange::Latest => OffsetSpec::Latest,
        };
        let deadline = self.client.api_deadline();
        let offsets = self.places().offsets(&[partition], spec, deadline).await?;
        if let (Some(track), Some(offset)) =
            (self.tracks.get_mut(&partition), offsets.get(&partition))
        {
            tracing::warn!(topic = %self.topic, partition, offset, %error, "goes on elsewhere");
            track.cursor.reset(*offset);
        }
        Ok(())
    }

    fn pause(&mut self, partition: i32, now: Instant) {
        let ClientShared { net, metadata, .. } = &*self.client;
        if let Some(track) = self.tracks.get_mut(&partition) {
            track.failures += 1;
            let until = now + net.retry_backoff().wait(track.failures, &net.env);
            let image = metadata.image();
            let leader = image
                .partition(&self.topic, partition)
                .and_then(|known| known.seen());
            track.paused = Some(Paused { until, leader });
        }
    }

    /// Leaves a broker that does not answer once another one leads what was asked of it.
    fn watch_stalls(&mut self, now: Instant, image: &ClusterImage) {
        let patience = self.plan.settings.wait_max + STALL_AFTER;
        let mut stalled = false;
        for (node, fetch) in &self.outstanding {
            if now < fetch.sent_at + patience {
                continue;
            }
            stalled = true;
            let moved = fetch.partitions.iter().any(|(partition, epoch)| {
                let known = image
                    .partition(&self.topic, *partition)
                    .and_then(|p| p.seen());
                known.is_some_and(|(leader, now)| leader != *node && now > *epoch)
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
