//! All connections of one shard, and who waits for an answer on them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_record::NodeId;
use futures::future::LocalBoxFuture;
use tokio::sync::{Notify, oneshot};

use super::forwarding::Forwarding;
use super::inbound::ReplyPath;
use super::link::{Link, LinkDown};
use super::outbox::Packed;
use crate::config::{AddressBook, Identity, RaftConfig};
use crate::counts::Counts;
use crate::incarnations::{Contact, Speaker, TwinRefusal};
use crate::wire::{AppendReply, Frame, Hello, Message};

/// Bits of a call or stream id that count; the shard that waits is in the bits above.
const ID_BITS: u32 = 48;

/// What the owner of the replicas does with messages that are not answers to this shard.
pub(crate) trait Requests {
    /// A request from `from`. Starts its work at once, in the order of the calls; the returned
    /// future finishes it and answers on `reply`.
    fn request(
        &self,
        from: NodeId,
        message: Message,
        payload: Bytes,
        reply: ReplyPath,
    ) -> Option<LocalBoxFuture<'static, ()>>;

    /// Which shard of this node answers for `message`; `None`: this one.
    fn elsewhere(&self, message: &Message) -> Option<u16>;

    /// Hands a frame to another shard of this node.
    fn forward(&self, shard: u16, from: NodeId, frame: Frame);

    /// A connection on which `from` sent requests has ended.
    fn connection_lost(&self, from: NodeId);
}

/// A request found no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskError {
    #[error("the peer cannot be reached")]
    Down,
    #[error("no answer in time")]
    Timeout,
}

struct Waiting {
    peer: NodeId,
    answer: oneshot::Sender<(Message, Bytes)>,
}

/// Replies to one append stream.
pub(crate) struct StreamSlot {
    peer: NodeId,
    replies: RefCell<VecDeque<AppendReply>>,
    broken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl StreamSlot {
    /// The next reply; `None` when the connection broke.
    pub(crate) fn poll_reply(&self, cx: &mut Context<'_>) -> Poll<Option<AppendReply>> {
        if let Some(reply) = self.replies.borrow_mut().pop_front() {
            return Poll::Ready(Some(reply));
        }
        if self.broken.get() {
            return Poll::Ready(None);
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The connections of one shard.
pub(crate) struct Switchboard {
    pub(crate) env: Env,
    pub(crate) config: RaftConfig,
    pub(crate) identity: Identity,
    pub(crate) book: AddressBook,
    pub(crate) counts: Rc<Counts>,
    pub(crate) forwarding: Forwarding,
    links: RefCell<HashMap<NodeId, Rc<Link>>>,
    waiting: RefCell<HashMap<u64, Waiting>>,
    streams: RefCell<HashMap<u64, Rc<StreamSlot>>>,
    next_id: Cell<u64>,
    requests: RefCell<Option<std::rc::Weak<dyn Requests>>>,
    closed: Cell<bool>,
    closing: Notify,
}

impl Switchboard {
    pub(crate) fn new(
        env: Env,
        config: RaftConfig,
        identity: Identity,
        book: AddressBook,
    ) -> Rc<Switchboard> {
        Rc::new(Switchboard {
            env,
            config,
            identity,
            book,
            counts: Rc::default(),
            forwarding: Forwarding::default(),
            links: RefCell::default(),
            waiting: RefCell::default(),
            streams: RefCell::default(),
            next_id: Cell::new(1),
            requests: RefCell::new(None),
            closed: Cell::new(false),
            closing: Notify::new(),
        })
    }

    /// Names who takes requests. Before that they are dropped.
    pub(crate) fn serve_by(&self, requests: std::rc::Weak<dyn Requests>) {
        *self.requests.borrow_mut() = Some(requests);
    }

    pub(crate) fn requests(&self) -> Option<Rc<dyn Requests>> {
        self.requests.borrow().as_ref()?.upgrade()
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set((id + 1) & ((1 << ID_BITS) - 1));
        (u64::from(self.identity.shard) << ID_BITS) | id
    }

    /// This shard's connection to `peer`, dialled when first used.
    pub(crate) fn link(self: &Rc<Self>, peer: NodeId) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        links
            .entry(peer)
            .or_insert_with(|| Link::new(peer, Rc::downgrade(self)))
            .clone()
    }

    /// Bytes queued for all peers.
    pub(crate) fn queued_bytes(&self) -> usize {
        let links = self.links.borrow();
        links.values().map(|link| link.queued_bytes()).sum()
    }

    /// Sends a message that expects no answer here.
    pub(crate) fn send(
        self: &Rc<Self>,
        peer: NodeId,
        message: &Message,
        payload: Vec<Bytes>,
    ) -> Result<(), LinkDown> {
        self.link(peer).send(message, payload)
    }

    /// Beats that wait for those of other groups leave at once, to every peer.
    pub(crate) fn release_beats(&self) {
        for link in self.links.borrow().values() {
            link.release_beats();
        }
    }

    /// Adds to the gathered messages for `peer`.
    pub(crate) fn pack(
        self: &Rc<Self>,
        peer: NodeId,
        add: impl FnOnce(&mut Packed),
    ) -> Result<(), LinkDown> {
        self.link(peer).pack(add)
    }

    /// Asks `peer` and waits for the answer. `send` gets the call id and queues the message.
    pub(crate) async fn ask(
        self: &Rc<Self>,
        peer: NodeId,
        deadline: Duration,
        send: impl FnOnce(&Rc<Link>, u64) -> Result<(), LinkDown>,
    ) -> Result<(Message, Bytes), AskError> {
        let call = self.next_id();
        let (answer, answered) = oneshot::channel();
        // Entered before sending: a refused dial answers at once.
        self.waiting
            .borrow_mut()
            .insert(call, Waiting { peer, answer });
        let _forget = Forget {
            board: self.clone(),
            call,
        };
        let link = self.link(peer);
        send(&link, call).map_err(|LinkDown| AskError::Down)?;
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Down),
            Err(_) => Err(AskError::Timeout),
        }
    }

    /// Opens a stream of appends to `peer`.
    pub(crate) fn open_stream(&self, peer: NodeId) -> (u64, Rc<StreamSlot>) {
        let id = self.next_id();
        let slot = Rc::new(StreamSlot {
            peer,
            replies: RefCell::default(),
            broken: Cell::new(false),
            waker: RefCell::new(None),
        });
        self.streams.borrow_mut().insert(id, slot.clone());
        (id, slot)
    }

    pub(crate) fn close_stream(&self, id: u64) {
        self.streams.borrow_mut().remove(&id);
    }

    /// The connection to `peer` broke: whoever waits on it learns it now.
    pub(crate) fn link_broke(&self, peer: NodeId) {
        self.waiting
            .borrow_mut()
            .retain(|_, waiting| waiting.peer != peer);
        let broken: Vec<Rc<StreamSlot>> = self
            .streams
            .borrow()
            .values()
            .filter(|slot| slot.peer == peer)
            .cloned()
            .collect();
        for slot in broken {
            slot.broken.set(true);
            slot.wake();
        }
    }

    /// A node came back: dial it again without waiting out the pause. If another process of it
    /// did, the connection to the one before is left.
    pub(crate) fn node_up(&self, peer: NodeId) {
        let link = self.links.borrow().get(&peer).cloned();
        if let Some(link) = link {
            if link.leave_muted() {
                self.link_broke(peer);
            }
            link.forget_failures();
        }
    }

    /// Counts a connection with the process that speaks for a peer, or refuses another one.
    pub(super) async fn admit(&self, theirs: &Hello) -> Result<Contact, TwinRefusal> {
        self.identity.refuse_own(theirs)?;
        let table = &self.identity.incarnations;
        let speaker = Speaker::of(theirs);
        table.admit(&self.env, speaker, &self.config).await
    }

    /// Whether this process may speak for its node.
    pub(super) fn speaks(&self) -> bool {
        self.identity.incarnations.speaks()
    }

    /// One received frame: an answer goes to whoever waits for it, a request to the replicas.
    ///
    /// Returns the work of a request, to be driven by the caller.
    pub(crate) fn receive(
        self: &Rc<Self>,
        from: NodeId,
        frame: Frame,
        reply: ReplyPath,
    ) -> Result<Option<LocalBoxFuture<'static, ()>>, crate::wire::WireError> {
        let message = frame.message()?;
        let Some(requests) = self.requests() else {
            return Ok(None);
        };
        match message {
            Message::AppendReply(append) => {
                if let Some(shard) = self.other_shard(append.stream) {
                    requests.forward(shard, from, frame);
                    return Ok(None);
                }
                let slot = self.streams.borrow().get(&append.stream).cloned();
                if let Some(slot) = slot {
                    slot.replies.borrow_mut().push_back(append);
                    slot.wake();
                }
                Ok(None)
            }
            Message::BeatReplies(replies) => {
                self.answers(
                    &*requests,
                    from,
                    replies,
                    |reply| reply.call,
                    Message::BeatReplies,
                );
                Ok(None)
            }
            Message::SurveyAnswers(answers) => {
                self.answers(
                    &*requests,
                    from,
                    answers,
                    |a| a.call,
                    Message::SurveyAnswers,
                );
                Ok(None)
            }
            Message::SleepAnswers(answers) => {
                self.answers(&*requests, from, answers, |a| a.call, Message::SleepAnswers);
                Ok(None)
            }
            Message::VoteAnswer(crate::wire::VoteAnswer { call, .. })
            | Message::TransferAnswer { call, .. }
            | Message::SnapshotAnswer(crate::wire::SnapshotAnswer { call, .. })
            | Message::CallAnswer { call } => {
                match self.other_shard(call) {
                    Some(shard) => requests.forward(shard, from, frame),
                    None => self.answer(call, message, frame.payload),
                }
                Ok(None)
            }
            message => match requests.elsewhere(&message) {
                Some(shard) => {
                    requests.forward(shard, from, frame);
                    Ok(None)
                }
                None => Ok(requests.request(from, message, frame.payload, reply)),
            },
        }
    }

    fn other_shard(&self, id: u64) -> Option<u16> {
        let shard = (id >> ID_BITS) as u16;
        (shard != self.identity.shard && shard < self.identity.shards).then_some(shard)
    }

    fn answer(&self, call: u64, message: Message, payload: Bytes) {
        let waiting = self.waiting.borrow_mut().remove(&call);
        if let Some(waiting) = waiting {
            // The asker may have given up; then nobody cares.
            let _ = waiting.answer.send((message, payload));
        }
    }

    /// Gathered answers: each goes to its own asker, those of other shards are sent on.
    fn answers<T>(
        &self,
        requests: &dyn Requests,
        from: NodeId,
        answers: Vec<T>,
        call_of: fn(&T) -> u64,
        make: fn(Vec<T>) -> Message,
    ) {
        let mut others: HashMap<u16, Vec<T>> = HashMap::new();
        for answer in answers {
            let call = call_of(&answer);
            match self.other_shard(call) {
                Some(shard) => others.entry(shard).or_default().push(answer),
                None => self.answer(call, make(vec![answer]), Bytes::new()),
            }
        }
        for (shard, answers) in others {
            match crate::wire::FrameEncoder::default().frame(&make(answers)) {
                Ok(frame) => requests.forward(shard, from, frame),
                Err(error) => tracing::error!(%error, "answers for another shard are dropped"),
            }
        }
    }

    /// Ends when the shard closes: every connection ends with it.
    pub(super) async fn until_closed(&self) {
        let closing = self.closing.notified();
        if !self.closed.get() {
            closing.await;
        }
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.closing.notify_waiters();
        for (_, link) in self.links.borrow_mut().drain() {
            link.close();
        }
    }
}

/// Forgets a call whose asker went away.
struct Forget {
    board: Rc<Switchboard>,
    call: u64,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.board.waiting.borrow_mut().remove(&self.call);
    }
}
