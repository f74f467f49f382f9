//! Frames that arrive: read, started in order, answered on the connection that brought them.

use std::rc::Rc;

use corduroy_env::{ReadHalf, Stream};
use corduroy_record::NodeId;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use super::outbox::{Outbox, Packed};
use super::switchboard::Switchboard;
use crate::incarnations::Contact;
use crate::wire::{
    FrameReader, Hello, HelloError, Message, Purpose, WireError, answer_hello, check_hello,
};

/// Requests of one connection that may be unanswered; beyond it the socket is not read.
const REQUESTS_MAX: usize = 4096;
/// Bytes of these. The last one taken may exceed it by its own size: the largest is a frame's.
/// A leader has a few MiB in flight for each of its groups; eight groups in full flight fit.
const REQUESTS_BYTES_MAX: usize = 32 << 20;

/// Where an answer goes.
#[derive(Clone)]
pub(crate) enum ReplyPath {
    /// The connection that brought the request.
    Connection(Rc<Outbox>),
    /// The request came by way of another shard: this shard's own connection to the asker.
    Node(NodeId, Rc<Switchboard>),
}

impl ReplyPath {
    /// Sends an answer. An asker that is gone needs none.
    pub(crate) fn send(&self, message: &Message, payload: Vec<bytes::Bytes>) {
        match self {
            ReplyPath::Connection(outbox) => {
                outbox.push(message, payload);
            }
            ReplyPath::Node(node, board) => {
                let _ = board.send(*node, message, payload);
            }
        }
    }

    /// Adds to the gathered answers.
    pub(crate) fn pack(&self, add: impl FnOnce(&mut Packed)) {
        match self {
            ReplyPath::Connection(outbox) => {
                outbox.pack(add);
            }
            ReplyPath::Node(node, board) => {
                let _ = board.pack(*node, add);
            }
        }
    }
}

/// Reads frames of `from` until the connection ends.
///
/// One task reads, starts the requests and drives them: a request's way to the Raft core and the
/// answer's way to the writer take no further task. What is unanswered is bounded in number and in
/// bytes, and so is what was handed to other shards: behind a slow disk the peer waits in its own
/// memory.
pub(super) async fn read_frames(
    board: &Rc<Switchboard>,
    from: NodeId,
    contact: Option<&Contact>,
    stream: ReadHalf,
    reply: ReplyPath,
) -> Result<(), WireError> {
    let mut reader = FrameReader::new(stream);
    let mut work: FuturesUnordered<LocalBoxFuture<'static, usize>> = FuturesUnordered::new();
    let mut work_bytes = 0;
    loop {
        if contact.is_some_and(Contact::is_muted) {
            // Another process is that node by now: nothing that this one says counts.
            return Err(WireError::Closed);
        }
        let mut elsewhere_full = false;
        let full = loop {
            if work.len() >= REQUESTS_MAX || work_bytes >= REQUESTS_BYTES_MAX {
                break true;
            }
            if board.forwarding.is_full() {
                elsewhere_full = true;
                break true;
            }
            let Some(frame) = reader.buffered()? else {
                break false;
            };
            let bytes = frame.size_bytes();
            if let Some(request) = board.receive(from, frame, reply.clone())? {
                work_bytes += bytes;
                work.push(Box::pin(request.map(move |()| bytes)));
            }
        };
        tokio::select! {
            biased;
            Some(bytes) = work.next(), if !work.is_empty() => work_bytes -= bytes,
            () = board.forwarding.until_room(), if elsewhere_full => {}
            filled = reader.fill(), if !full => {
                filled?;
                if let Some(contact) = contact {
                    contact.heard(board.env.now());
                }
            }
        }
    }
}

/// Serves a connection that a peer dialled, its hello already read.
pub(crate) async fn serve(board: Rc<Switchboard>, stream: Stream, theirs: Hello) {
    let served = tokio::select! {
        biased;
        () = board.until_closed() => return,
        served = serve_inner(&board, stream, &theirs) => served,
    };
    if let Err(error) = served {
        match error {
            // Said once, where it was decided.
            ServeError::Hello(HelloError::Twin { .. }) => {}
            ServeError::Hello(error) => {
                tracing::warn!(peer = %theirs.node, %error, "a peer connection was refused");
            }
            ServeError::Wire(WireError::Closed | WireError::Io(_)) => {}
            ServeError::Wire(error) => {
                tracing::warn!(peer = %theirs.node, %error, "a peer connection was closed");
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error(transparent)]
    Wire(#[from] WireError),
}

async fn serve_inner(
    board: &Rc<Switchboard>,
    mut stream: Stream,
    theirs: &Hello,
) -> Result<(), ServeError> {
    let mut ours = Hello {
        purpose: theirs.purpose,
        cluster: board.identity.cluster.get(),
        node: board.identity.node,
        target_node: theirs.node,
        incarnation: board.identity.incarnation,
        target_shard: board.identity.shard,
        refusal: None,
    };
    if theirs.purpose == Purpose::Admission {
        // The node answers these itself, before it has shards.
        return Ok(());
    }
    if theirs.purpose == Purpose::Peer && !board.speaks() {
        // Answered again when nobody refuses this process any more. Pings are answered all along:
        // they keep its node's place.
        return Ok(());
    }
    // A stranger of another cluster has no place here to lose.
    let fits = check_hello(&ours, theirs).is_ok();
    let mut contact = None;
    if fits && theirs.purpose != Purpose::Anonymous {
        match board.admit(theirs).await {
            Ok(admitted) => contact = Some(admitted),
            Err(refusal) => ours.refusal = Some(refusal),
        }
    }
    answer_hello(&mut stream, &ours, theirs).await?;
    let (read, mut write) = stream.into_split();
    let outbox = Rc::new(Outbox::new(board.counts.clone()));
    if theirs.purpose == Purpose::Detector {
        let pings = answer_pings(board, contact.as_ref(), read, &outbox);
        tokio::select! {
            read = pings => read?,
            written = outbox.write_to(&mut write) => written.map_err(WireError::from)?,
        }
        return Ok(());
    }
    let reply = ReplyPath::Connection(outbox.clone());
    // Reading first: what it answers is then written in the same turn.
    let ended = tokio::select! {
        biased;
        () = board.identity.incarnations.until_silent(), if theirs.purpose == Purpose::Peer => Ok(()),
        read = read_frames(board, theirs.node, contact.as_ref(), read, reply) => read,
        written = outbox.write_to(&mut write) => written.map_err(WireError::from),
    };
    if let Some(requests) = board.requests() {
        requests.connection_lost(theirs.node);
    }
    Ok(ended?)
}

async fn answer_pings(
    board: &Switchboard,
    contact: Option<&Contact>,
    stream: ReadHalf,
    outbox: &Outbox,
) -> Result<(), WireError> {
    let mut reader = FrameReader::new(stream);
    loop {
        let frame = reader.next().await?;
        if let Some(contact) = contact {
            if contact.is_muted() {
                return Err(WireError::Closed);
            }
            contact.heard(board.env.now());
        }
        if let Message::Ping { count } = frame.message()? {
            outbox.push(&Message::Pong { count }, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::rc::Weak;

    use bytes::Bytes;
    use corduroy_env::Env;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Semaphore;

    use super::super::forwarding::{FORWARDED_BYTES_MAX, Forwarded};
    use super::super::switchboard::Requests;
    use super::*;
    use crate::config::{AddressBook, ClusterTag, Identity, RaftConfig};
    use crate::counts::Counts;
    use crate::incarnations::Incarnations;
    use crate::wire::{Frame, FrameEncoder};

    const PAYLOAD_BYTES: usize = 1 << 20;

    /// Takes requests and answers none before it is let.
    struct SlowDisk {
        taken_bytes: Cell<usize>,
        answers: Rc<Semaphore>,
    }

    impl Requests for SlowDisk {
        fn request(
            &self,
            _: NodeId,
            _: Message,
            payload: Bytes,
            _: ReplyPath,
        ) -> Option<LocalBoxFuture<'static, ()>> {
            self.taken_bytes.set(self.taken_bytes.get() + payload.len());
            let answers = self.answers.clone();
            Some(Box::pin(async move {
                let _payload = payload;
                if let Ok(answer) = answers.acquire().await {
                    answer.forget();
                }
            }))
        }

        fn elsewhere(&self, _: &Message) -> Option<u16> {
            None
        }

        fn forward(&self, _: u16, _: NodeId, _: Frame) {}

        fn connection_lost(&self, _: NodeId) {}
    }

    /// Hands everything to another shard, which does nothing before it is let.
    struct SlowShard {
        board: Rc<Switchboard>,
        queue: RefCell<VecDeque<(Frame, Forwarded)>>,
    }

    impl SlowShard {
        fn queued_bytes(&self) -> usize {
            let queue = self.queue.borrow();
            queue.iter().map(|(frame, _)| frame.size_bytes()).sum()
        }
    }

    impl Requests for SlowShard {
        fn request(
            &self,
            _: NodeId,
            _: Message,
            _: Bytes,
            _: ReplyPath,
        ) -> Option<LocalBoxFuture<'static, ()>> {
            unreachable!("everything is for the other shard")
        }

        fn elsewhere(&self, _: &Message) -> Option<u16> {
            Some(1)
        }

        fn forward(&self, _: u16, _: NodeId, frame: Frame) {
            let held = self.board.forwarding.count(frame.size_bytes());
            self.queue.borrow_mut().push_back((frame, held));
        }

        fn connection_lost(&self, _: NodeId) {}
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    fn switchboard(env: &Env) -> Rc<Switchboard> {
        let identity = Identity {
            node: NodeId::new(1),
            incarnation: 1,
            shard: 0,
            shards: 2,
            cluster: ClusterTag::unknown(),
            incarnations: Incarnations::default(),
        };
        let book = AddressBook::new();
        Switchboard::new(env.clone(), RaftConfig::default(), identity, book)
    }

    /// A peer that sends payloads of `PAYLOAD_BYTES` without end; returns what it could write.
    async fn flood(env: &Env, board: &Rc<Switchboard>) -> Rc<Cell<usize>> {
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = env.listen(any).await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let mut peer = env.connect(addr).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let outbox = Rc::new(Outbox::new(Rc::new(Counts::default())));
        let reading = board.clone();
        env.spawn_local(async move {
            let (read, _write) = stream.into_split();
            let reply = ReplyPath::Connection(outbox);
            let _ = read_frames(&reading, NodeId::new(2), None, read, reply).await;
        });
        let sent = Rc::new(Cell::new(0usize));
        let sending = sent.clone();
        let head = FrameEncoder::default()
            .encode(&Message::Cast, PAYLOAD_BYTES)
            .expect("small");
        env.spawn_local(async move {
            let payload = vec![0; PAYLOAD_BYTES];
            while peer.write_all(&head).await.is_ok() && peer.write_all(&payload).await.is_ok() {
                sending.set(sending.get() + PAYLOAD_BYTES);
            }
        });
        sent
    }

    #[test]
    fn what_another_shard_has_not_done_yet_is_bounded_in_bytes() {
        run(async {
            let env = Env::real();
            let board = switchboard(&env);
            let shard = Rc::new(SlowShard {
                board: board.clone(),
                queue: RefCell::default(),
            });
            let requests: Weak<dyn Requests> = Rc::downgrade(&shard) as Weak<dyn Requests>;
            board.serve_by(requests);
            let sent = flood(&env, &board).await;
            let stuck = async || loop {
                let before = sent.get();
                env.sleep(std::time::Duration::from_millis(50)).await;
                let queued = shard.queued_bytes();
                if queued >= FORWARDED_BYTES_MAX && sent.get() == before {
                    return queued;
                }
                assert!(
                    queued <= 4 * FORWARDED_BYTES_MAX,
                    "everything is taken that is sent"
                );
            };
            let queued = stuck().await;
            assert!(queued < FORWARDED_BYTES_MAX + 2 * PAYLOAD_BYTES, "{queued}");
            // Two that are done let more in, and no more than fits.
            let done: Vec<_> = (0..2)
                .filter_map(|_| shard.queue.borrow_mut().pop_front())
                .collect();
            let left = shard.queued_bytes();
            assert!(left < queued);
            drop(done);
            while shard.queued_bytes() == left {
                env.sleep(std::time::Duration::from_millis(1)).await;
            }
            assert!(stuck().await < FORWARDED_BYTES_MAX + 2 * PAYLOAD_BYTES);
        });
    }

    #[test]
    fn unanswered_requests_are_bounded_in_bytes() {
        run(async {
            let env = Env::real();
            let board = switchboard(&env);
            let disk = Rc::new(SlowDisk {
                taken_bytes: Cell::new(0),
                answers: Rc::new(Semaphore::new(0)),
            });
            let requests: Weak<dyn Requests> = Rc::downgrade(&disk) as Weak<dyn Requests>;
            board.serve_by(requests);
            let sent = flood(&env, &board).await;
            let stuck = async || loop {
                let before = sent.get();
                env.sleep(std::time::Duration::from_millis(50)).await;
                if disk.taken_bytes.get() >= REQUESTS_BYTES_MAX && sent.get() == before {
                    return disk.taken_bytes.get();
                }
                assert!(
                    disk.taken_bytes.get() <= 4 * REQUESTS_BYTES_MAX,
                    "everything is taken that is sent"
                );
            };
            let taken = stuck().await;
            assert!(taken < REQUESTS_BYTES_MAX + PAYLOAD_BYTES, "{taken}");
            // Two answers let two more in, and no more.
            disk.answers.add_permits(2);
            while disk.taken_bytes.get() < taken + 2 * PAYLOAD_BYTES {
                env.sleep(std::time::Duration::from_millis(1)).await;
            }
            assert_eq!(stuck().await, taken + 2 * PAYLOAD_BYTES);
        });
    }
}
