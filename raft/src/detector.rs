//! The failure detector: one connection to each known node, pinged; what it says decides who is
//! down.
//!
//! It runs on shard 0 and answers nothing itself: pings are answered by whatever shard adopted the
//! peer's connection, so a node whose shard 0 hangs is down.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::{Env, Stream};
use corduroy_record::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use crate::config::{AddressBook, Identity, RaftConfig};
use crate::incarnations::{Contact, Speaker};
use crate::wire::{FrameEncoder, FrameReader, Hello, HelloError, Message, Purpose, offer_hello};

/// A peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It answers.
    Up,
    /// Its connection has just broken; the next dials tell.
    Suspect,
    /// It does not.
    Down,
}

/// First pause before a suspect is dialled again. A dying process still accepts connections for a
/// moment, so that one failed dial proves nothing; the pause doubles up to the ping interval.
const SUSPECT_REDIAL_MIN: Duration = Duration::from_millis(2);

/// Hears of every change.
pub type OnChange = Box<dyn Fn(NodeId, PeerState)>;

/// Part of `down_after` that a peer has again after this side was late, as a divisor: the whole of
/// it would let a dead node pass for alive on a machine where this side is late all the time.
const EXCUSED_PART: u32 = 2;

impl Peer {
    /// This side has not asked for a while: the peer has part of its time again, once for each
    /// time that it has been heard.
    fn asked_late(&self, now: Instant, down_after: Duration) {
        let heard_at = self.heard_at.get();
        if self.excused_for.replace(heard_at) != heard_at {
            self.excused_until.set(now - down_after / EXCUSED_PART);
        }
    }
}

struct Peer {
    /// Silence counts from here at the earliest.
    excused_until: Cell<Instant>,
    /// The last contact before the excuse.
    excused_for: Cell<Option<Instant>>,
    /// `None`: not judged yet.
    state: Cell<Option<PeerState>>,
    heard_at: Cell<Option<Instant>>,
    /// Since when this process has tried.
    watched_since: Instant,
    incarnation: Cell<Option<u64>>,
    task: RefCell<Option<tokio::task::JoinHandle<()>>>,
}

struct Inner {
    env: Env,
    config: RaftConfig,
    identity: Identity,
    book: AddressBook,
    on_change: OnChange,
    peers: RefCell<BTreeMap<NodeId, Rc<Peer>>>,
    started: Instant,
}

/// Watches all nodes of the address book. Clone = another handle.
#[derive(Clone)]
pub struct FailureDetector {
    inner: Rc<Inner>,
}

impl FailureDetector {
    /// A detector that has judged nobody yet. `on_change` is called on this shard; the node tells
    /// its other shards.
    pub fn new(
        env: Env,
        config: RaftConfig,
        identity: Identity,
        book: AddressBook,
        on_change: OnChange,
    ) -> FailureDetector {
        let started = env.now();
        FailureDetector {
            inner: Rc::new(Inner {
                env,
                config,
                identity,
                book,
                on_change,
                peers: RefCell::default(),
                started,
            }),
        }
    }

    /// Watches until it is dropped: spawn it on shard 0.
    pub async fn run(self) {
        let inner = self.inner;
        let mut book = inner.book.subscribe();
        let _stop = StopPeers(inner.clone());
        loop {
            let nodes: Vec<NodeId> = book.borrow_and_update().keys().copied().collect();
            inner.watch(&nodes);
            if book.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether `node` is held down. This node never is.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.inner
            .peers
            .borrow()
            .get(&node)
            .is_some_and(|peer| peer.state.get() == Some(PeerState::Down))
    }

    /// How long ago `node` was heard; `None`: never.
    pub fn since_contact(&self, node: NodeId) -> Option<Duration> {
        if node == self.inner.identity.node {
            return Some(Duration::ZERO);
        }
        let heard_at = self.inner.peers.borrow().get(&node)?.heard_at.get()?;
        Some(self.inner.env.now().duration_since(heard_at))
    }

    /// Whether no majority of the known nodes, this one included, has been heard for
    /// [`RaftConfig::isolated_after`], or this process may not speak for its node. Not before it has
    /// run for as long.
    pub fn isolated(&self) -> bool {
        let inner = &self.inner;
        let now = inner.env.now();
        let patience = inner.config.isolated_after;
        if now.duration_since(inner.started) < patience {
            return false;
        }
        if !inner.identity.incarnations.speaks() {
            return true;
        }
        let nodes = inner.book.nodes();
        let heard = nodes
            .iter()
            .filter(|node| {
                self.since_contact(**node)
                    .is_some_and(|since| since <= patience)
            })
            .count();
        heard * 2 <= nodes.len() && nodes.len() > 1
    }
}

/// Ends the peers' tasks with the detector's.
struct StopPeers(Rc<Inner>);

impl Drop for StopPeers {
    fn drop(&mut self) {
        for peer in self.0.peers.borrow().values() {
            if let Some(task) = peer.task.borrow_mut().take() {
                task.abort();
            }
        }
    }
}

impl Inner {
    fn watch(self: &Rc<Self>, nodes: &[NodeId]) {
        let mut peers = self.peers.borrow_mut();
        peers.retain(|node, peer| {
            let stays = nodes.contains(node);
            if !stays && let Some(task) = peer.task.borrow_mut().take() {
                task.abort();
            }
            stays
        });
        for node in nodes {
            if *node == self.identity.node || peers.contains_key(node) {
                continue;
            }
            let now = self.env.now();
            let peer = Rc::new(Peer {
                excused_until: Cell::new(now),
                excused_for: Cell::new(None),
                state: Cell::new(None),
                heard_at: Cell::new(None),
                watched_since: now,
                incarnation: Cell::new(None),
                task: RefCell::new(None),
            });
            let (inner, watched, node) = (self.clone(), peer.clone(), *node);
            let task = self
                .env
                .spawn_local(async move { inner.watch_one(node, &watched).await });
            *peer.task.borrow_mut() = Some(task);
            peers.insert(node, peer);
        }
    }

    fn judge(&self, node: NodeId, peer: &Peer, state: PeerState) {
        if peer.state.replace(Some(state)) == Some(state) {
            return;
        }
        match state {
            PeerState::Down => tracing::warn!(%node, "a node is down"),
            PeerState::Suspect => tracing::debug!(%node, "a node's connection broke"),
            PeerState::Up => tracing::info!(%node, "a node is up"),
        }
        (self.on_change)(node, state);
    }

    fn heard(&self, node: NodeId, peer: &Peer, incarnation: u64) {
        peer.heard_at.set(Some(self.env.now()));
        let before = peer.incarnation.replace(Some(incarnation));
        if before.is_some_and(|before| before != incarnation) {
            // A restart between two pings: its leaders are gone all the same (law 2).
            self.judge(node, peer, PeerState::Down);
        }
        self.judge(node, peer, PeerState::Up);
    }

    /// Silence so far, counted from the last contact, the first attempt, or the moment from which
    /// this side has asked again.
    fn silence(&self, peer: &Peer) -> Duration {
        let since = peer.heard_at.get().unwrap_or(peer.watched_since);
        let since = since.max(peer.excused_until.get());
        self.env.now().saturating_duration_since(since)
    }

    async fn watch_one(&self, node: NodeId, peer: &Peer) {
        let mut pause = self.config.ping_interval;
        loop {
            let left = self.config.down_after.saturating_sub(self.silence(peer));
            let patience = if left.is_zero() {
                self.config.down_after
            } else {
                left
            };
            match tokio::time::timeout(patience, self.connect(node)).await {
                Ok(Ok(dialled)) => {
                    self.heard(node, peer, dialled.incarnation);
                    if let Ended::Moved = self.ping(node, peer, dialled).await {
                        // It has not fallen silent: the address that counts by now tells more.
                        continue;
                    }
                    // Broken, or silent: the next dial tells. A refused one means down at once.
                    if peer.state.get() == Some(PeerState::Up) {
                        self.judge(node, peer, PeerState::Suspect);
                        pause = SUSPECT_REDIAL_MIN;
                    }
                    continue;
                }
                Ok(Err(Dial::Refused)) if peer.heard_at.get().is_some() => {
                    self.judge(node, peer, PeerState::Down);
                }
                Ok(Err(_)) | Err(_) => {
                    if self.silence(peer) >= self.config.down_after {
                        self.judge(node, peer, PeerState::Down);
                    }
                }
            }
            self.env.sleep(pause).await;
            pause = (pause * 2).min(self.config.ping_interval);
        }
    }

    async fn connect(&self, node: NodeId) -> Result<Dialled, Dial> {
        let addr = self.book.get(node).ok_or(Dial::Failed)?;
        let mut stream = self
            .env
            .connect(addr)
            .await
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::ConnectionRefused => Dial::Refused,
                _ => Dial::Failed,
            })?;
        let hello = Hello {
            purpose: Purpose::Detector,
            cluster: self.identity.cluster.get(),
            node: self.identity.node,
            target_node: node,
            incarnation: self.identity.incarnation,
            target_shard: 0,
            refusal: None,
        };
        let failed = |error: HelloError| {
            tracing::debug!(%node, %error, "a node cannot be watched");
            if let HelloError::Twin { by, refusal, .. } = error {
                self.identity.incarnations.refused_by(by, refusal);
            }
            Dial::Failed
        };
        let theirs = offer_hello(&mut stream, &hello).await.map_err(failed)?;
        let speaker = Speaker {
            node,
            incarnation: theirs.incarnation,
        };
        let table = &self.identity.incarnations;
        match table.admit(&self.env, speaker, &self.config).await {
            Ok(contact) => Ok(Dialled {
                addr,
                stream,
                incarnation: theirs.incarnation,
                contact,
            }),
            // Somebody answers there, and it is not the process that lives.
            Err(_) => Err(Dial::Failed),
        }
    }

    /// Pings until the connection breaks or falls silent, or the node is found elsewhere.
    async fn ping(&self, node: NodeId, peer: &Peer, dialled: Dialled) -> Ended {
        let Dialled {
            addr,
            stream,
            incarnation,
            contact,
        } = dialled;
        let mut book = self.book.subscribe();
        let (read, mut write) = stream.into_split();
        let mut reader = FrameReader::new(read);
        let mut encoder = FrameEncoder::default();
        let mut count = 0u64;
        let mut next = self.env.now();
        loop {
            tokio::select! {
                biased;
                frame = reader.next() => {
                    match frame.and_then(|frame| frame.message()) {
                        Ok(_) if contact.is_muted() => return Ended::Broken,
                        Ok(Message::Pong { .. }) => {
                            contact.heard(self.env.now());
                            self.heard(node, peer, incarnation);
                        }
                        Ok(_) => {}
                        Err(_) => return Ended::Broken,
                    }
                }
                changed = book.changed() => {
                    if changed.is_err() || self.book.get(node).is_some_and(|now| now != addr) {
                        return Ended::Moved;
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    let now = self.env.now();
                    if now.duration_since(next) > self.config.ping_interval {
                        // This thread was busy, or the machine: what has not been asked has not
                        // been left unanswered. The peer's time counts from when we ask again.
                        peer.asked_late(now, self.config.down_after);
                    } else if self.silence(peer) >= self.config.down_after {
                        self.judge(node, peer, PeerState::Down);
                        return Ended::Broken;
                    }
                    next = now + self.config.ping_interval;
                    count += 1;
                    let Ok(ping) = encoder.encode(&Message::Ping { count }, 0) else {
                        return Ended::Broken;
                    };
                    if write.write_all(&ping).await.is_err() {
                        return Ended::Broken;
                    }
                }
            }
        }
    }
}

/// A connection to a node's living process.
struct Dialled {
    addr: SocketAddr,
    stream: Stream,
    incarnation: u64,
    contact: Contact,
}

/// Why pinging ended.
enum Ended {
    /// The connection broke, or the node fell silent.
    Broken,
    /// The node has another address.
    Moved,
}

/// Why a dial failed.
enum Dial {
    /// Nobody listens: the process is gone.
    Refused,
    Failed,
}
