//! Who leads what: the cached image of the cluster, and the task that keeps it fresh.

mod image;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

pub(crate) use image::{BrokerInfo, ClusterImage, LeaderHint, PartitionImage, TopicImage};

use crate::error::{Error, ErrorKind};
use crate::net::Net;
use crate::net::api::StrBytes;
use crate::net::connection::Connection;
use crate::net::pool::{Peer, Pool};
use crate::sync::Lock;

/// A broker that does not answer for this long is joined by another one: a stopped process keeps
/// its connections, and must not keep its clients from learning that it no longer leads.
const HEDGE_AFTER: Duration = Duration::from_millis(300);

/// Longest wait for one broker's metadata.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a topic may be unknown before a reader or an admin call is told so: a broker may hear
/// of a new topic a moment after the one that created it.
pub(crate) const UNKNOWN_TOPIC_GRACE: Duration = Duration::from_secs(1);

/// Who asks for a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// May have it created, and waits for it.
    Producer,
    /// Takes no for an answer after a moment.
    Reader,
}

/// The image, and who wants it refreshed.
pub(crate) struct Metadata {
    net: Arc<Net>,
    pool: Pool,
    image: Lock<Arc<ClusterImage>>,
    wanted: Lock<HashMap<Arc<str>, Wanted>>,
    /// Peers that let others answer first: asked last.
    suspects: Lock<HashSet<Peer>>,
    /// Refreshes asked for so far.
    asked: AtomicU64,
    wake: Notify,
    closed: AtomicBool,
    rounds: watch::Sender<Round>,
}

struct Wanted {
    used_at: Instant,
    may_create: bool,
}

/// The last refresh that ended.
#[derive(Clone, Default)]
struct Round {
    /// All refreshes asked for up to this one are answered by it.
    covers: u64,
    error: Option<Error>,
}

impl Metadata {
    /// An empty image. The caller spawns [`Metadata::run`].
    pub(crate) fn new(net: Arc<Net>) -> Arc<Metadata> {
        Arc::new(Metadata {
            pool: Pool::new(net.clone()),
            net,
            image: Lock::new(Arc::new(ClusterImage::default())),
            wanted: Lock::new(HashMap::new()),
            suspects: Lock::new(HashSet::new()),
            asked: AtomicU64::new(0),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            rounds: watch::channel(Round::default()).0,
        })
    }

    /// What is known now.
    pub(crate) fn image(&self) -> Arc<ClusterImage> {
        self.image.lock().clone()
    }

    /// The pool for calls that no producer or reader makes.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Sees each end of a refresh, and each hint.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Send + Sync + use<>> {
        self.rounds.subscribe()
    }

    /// Asks for a refresh, soon, without waiting for it.
    pub(crate) fn refresh_soon(&self) {
        self.asked.fetch_add(1, Ordering::AcqRel);
        self.wake.notify_one();
    }

    /// Refreshes, and waits for the end of a refresh that began after the call.
    ///
    /// # Errors
    /// Why no broker answered; ApiTimeout at `deadline`.
    pub(crate) async fn refresh(&self, deadline: Instant) -> Result<Arc<ClusterImage>, Error> {
        let mut rounds = self.rounds.subscribe();
        let ticket = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        let ended = timeout_at(deadline, rounds.wait_for(|round| round.covers >= ticket)).await;
        match ended {
            Ok(Ok(round)) => match &round.error {
                Some(error) => Err(error.clone()),
                None => Ok(self.image()),
            },
            Ok(Err(_closed)) => Err(Error::closed("the client")),
            Err(_elapsed) => {
                let last = self.rounds.borrow().error.clone();
                let timeout = Error::new(ErrorKind::ApiTimeout, "no metadata in time");
                Err(last.unwrap_or(timeout))
            }
        }
    }

    /// The topic, once it is known and has partitions.
    ///
    /// # Errors
    /// UnknownTopic (a reader after a moment, a producer at `deadline`), the broker's refusal, or
    /// why no broker answered by `deadline`.
    pub(crate) async fn topic(
        &self,
        name: &str,
        asker: Asker,
        deadline: Instant,
    ) -> Result<Arc<TopicImage>, Error> {
        let name = self.want(name, asker);
        let began = self.net.env.now();
        let mut failures = 0;
        loop {
            let known = self.image().topics.get(&name).cloned();
            let error = match known {
                Some(topic) if topic.error.is_none() && !topic.partitions.is_empty() => {
                    return Ok(topic);
                }
                Some(topic) => match topic.error {
                    Some(code) if !code.is_retriable() => {
                        return Err(Error::broker(code, None).with_topic(&name));
                    }
                    Some(ErrorCode::UnknownTopicOrPartition) => {
                        let error = Error::new(ErrorKind::UnknownTopic, "the topic does not exist")
                            .with_topic(&name);
                        if asker == Asker::Reader
                            && self.net.env.now() >= began + UNKNOWN_TOPIC_GRACE
                        {
                            return Err(error);
                        }
                        Some(error)
                    }
                    Some(code) => Some(Error::broker(code, None).with_topic(&name)),
                    None => None,
                },
                None => None,
            };
            if let Some(error) = &error {
                tracing::debug!(%error, "the topic is asked for again");
            }
            if failures > 0 {
                let wait = self.net.retry_backoff().wait(failures, &self.net.env);
                let again = self.net.env.now() + wait;
                if again >= deadline {
                    sleep_until(deadline).await;
                    let late = || {
                        Error::new(ErrorKind::ApiTimeout, "no metadata in time").with_topic(&name)
                    };
                    return Err(error.unwrap_or_else(late));
                }
                sleep_until(again).await;
            }
            failures += 1;
            match self.refresh(deadline).await {
                Ok(_) => {}
                Err(refused) if self.net.env.now() >= deadline || !refused.is_retriable() => {
                    return Err(error.unwrap_or(refused));
                }
                Err(_passing) => {}
            }
        }
    }

    /// Keeps the topic in what is refreshed. Returns the name to share.
    pub(crate) fn want(&self, name: &str, asker: Asker) -> Arc<str> {
        let now = self.net.env.now();
        let mut wanted = self.wanted.lock();
        let may_create = asker == Asker::Producer;
        if let Some((known, topic)) = wanted.get_key_value(name) {
            let known = known.clone();
            let wanted_before = topic.may_create;
            wanted.insert(
                known.clone(),
                Wanted {
                    used_at: now,
                    may_create: may_create || wanted_before,
                },
            );
            return known;
        }
        let name: Arc<str> = name.into();
        wanted.insert(
            name.clone(),
            Wanted {
                used_at: now,
                may_create,
            },
        );
        name
    }

    /// Takes in the leader that a broker named beside its refusal. `true` if that was news.
    pub(crate) fn hint(
        &self,
        topic: &str,
        partition: i32,
        hint: LeaderHint,
        endpoint: Option<BrokerInfo>,
    ) -> bool {
        let mut image = self.image.lock();
        let Some(hinted) = image.hinted(topic, partition, hint, endpoint) else {
            return false;
        };
        *image = Arc::new(hinted);
        drop(image);
        self.rounds.send_modify(|_| {});
        true
    }

    /// Takes in an answer that somebody else asked for.
    pub(crate) fn merge(&self, response: &MetadataResponse) -> Arc<ClusterImage> {
        let mut image = self.image.lock();
        *image = Arc::new(image.merged(response));
        image.clone()
    }

    /// Ends [`Metadata::run`].
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Refreshes when asked, and when the image is old. Ends after [`Metadata::close`].
    pub(crate) async fn run(self: Arc<Metadata>) {
        let mut failures = 0;
        let mut not_before = self.net.env.now();
        let mut age_limit = self.net.env.now() + self.net.settings.metadata_max_age;
        let mut covered = 0;
        while !self.closed.load(Ordering::Acquire) {
            if self.asked.load(Ordering::Acquire) == covered {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep_until(age_limit) => self.refresh_soon(),
                }
                continue;
            }
            // Those who ask in the meantime share the round.
            sleep_until(not_before).await;
            let covers = self.asked.load(Ordering::Acquire);
            let error = self.fetch().await.err();
            let now = self.net.env.now();
            failures = if error.is_some() { failures + 1 } else { 1 };
            not_before = now + self.net.retry_backoff().wait(failures, &self.net.env);
            age_limit = now + self.net.settings.metadata_max_age;
            covered = covers;
            if let Some(error) = &error {
                tracing::debug!(%error, "no broker answered with metadata");
            }
            self.rounds.send_replace(Round { covers, error });
        }
        self.pool.close("the client is closed");
        let closed = Some(Error::closed("the client"));
        self.rounds.send_replace(Round {
            covers: u64::MAX,
            error: closed,
        });
    }

    /// Asks brokers until one answers, and takes the answer in.
    async fn fetch(&self) -> Result<(), Error> {
        let request = self.request();
        let mut candidates = self.candidates().into_iter();
        let mut asking = FuturesUnordered::new();
        let mut last = Error::new(ErrorKind::Disconnected, "no broker is known");
        loop {
            let asked = candidates.next();
            match &asked {
                Some(peer) => asking.push(self.ask(peer.clone(), request.clone())),
                None if asking.is_empty() => return Err(last),
                None => {}
            }
            let hedge_at = self.net.env.now() + HEDGE_AFTER;
            tokio::select! {
                Some((peer, answer)) = asking.next() => match answer {
                    Ok(response) => {
                        self.suspects.lock().remove(&peer);
                        self.merge(&response);
                        return Ok(());
                    }
                    Err(error) => {
                        self.suspects.lock().insert(peer);
                        last = error;
                    }
                },
                () = sleep_until(hedge_at), if candidates.len() > 0 => {
                    self.suspects.lock().extend(asked);
                }
            }
        }
    }

    /// All peers, the best first: live connections, known brokers, bootstrap servers; each class
    /// starts at a random place, so that clients spread.
    pub(crate) fn candidates(&self) -> Vec<Peer> {
        let image = self.image();
        let suspects = self.suspects.lock().clone();
        let shuffled = |mut peers: Vec<Peer>| {
            for at in (1..peers.len()).rev() {
                peers.swap(at, self.net.env.random_below(at as u64 + 1) as usize);
            }
            peers
        };
        let mut peers = shuffled(image.brokers.keys().copied().map(Peer::Node).collect());
        let seeds = self.net.settings.bootstrap_servers.len();
        peers.extend(shuffled((0..seeds).map(Peer::Seed).collect()));
        peers.sort_by_key(|peer| {
            let is_seed = matches!(peer, Peer::Seed(_));
            (
                suspects.contains(peer),
                is_seed,
                self.pool.live(peer).is_none(),
            )
        });
        peers
    }

    async fn ask(
        &self,
        peer: Peer,
        request: MetadataRequest,
    ) -> (Peer, Result<MetadataResponse, Error>) {
        let answer = self.ask_for(&peer, request).await;
        (peer, answer)
    }

    async fn ask_for(
        &self,
        peer: &Peer,
        request: MetadataRequest,
    ) -> Result<MetadataResponse, Error> {
        let connection = self.reach(peer).await?;
        let limit = self.net.settings.request_timeout.min(ANSWER_WAIT_MAX);
        connection
            .call(limit, |version| {
                if version >= 4 {
                    return request;
                }
                // Before version 4 a broker creates topics as it likes.
                request.with_allow_auto_topic_creation(true)
            })
            .await
    }

    /// The connection to a peer.
    ///
    /// # Errors
    /// As [`Pool::node`].
    pub(crate) async fn reach(&self, peer: &Peer) -> Result<Arc<Connection>, Error> {
        match peer {
            Peer::Node(id) => self.pool.node(&self.image(), *id).await,
            Peer::Seed(place) => self.pool.seed(*place).await,
        }
    }

    /// Asks for the wanted topics, forgetting those that nobody used for long.
    fn request(&self) -> MetadataRequest {
        let now = self.net.env.now();
        let idle_max = self.net.settings.metadata_max_idle;
        let mut wanted = self.wanted.lock();
        wanted.retain(|_, topic| now < topic.used_at + idle_max);
        let may_create =
            self.net.settings.auto_create_topics && wanted.values().any(|topic| topic.may_create);
        let topics = wanted
            .keys()
            .map(|name| {
                let name = TopicName(StrBytes::from_string(name.to_string()));
                MetadataRequestTopic::default().with_name(Some(name))
            })
            .collect();
        MetadataRequest::default()
            .with_topics(Some(topics))
            .with_allow_auto_topic_creation(may_create)
    }
}
