//! Frames that arrive: read, started in order, answered on the connection that brought them.

use std::rc::Rc;

use corduroy_env::{ReadHalf, Stream};
use corduroy_record::NodeId;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;

use super::outbox::{Outbox, Packed};
use super::switchboard::Switchboard;
use crate::wire::{FrameReader, Hello, HelloError, Message, Purpose, WireError, answer_hello};

/// Requests of one connection that may be unanswered; beyond it the socket is not read.
const REQUESTS_MAX: usize = 4096;

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
/// answer's way to the writer take no further task.
pub(super) async fn read_frames(
    board: &Rc<Switchboard>,
    from: NodeId,
    stream: ReadHalf,
    reply: ReplyPath,
) -> Result<(), WireError> {
    let mut reader = FrameReader::new(stream);
    let mut work: FuturesUnordered<LocalBoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        while let Some(frame) = reader.buffered()? {
            if let Some(request) = board.receive(from, frame, reply.clone())? {
                work.push(request);
            }
        }
        if work.len() >= REQUESTS_MAX {
            work.next().await;
            continue;
        }
        tokio::select! {
            biased;
            Some(()) = work.next(), if !work.is_empty() => {}
            filled = reader.fill() => filled?,
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
    let ours = Hello {
        purpose: theirs.purpose,
        cluster: board.identity.cluster.get(),
        node: board.identity.node,
        target_node: theirs.node,
        incarnation: board.identity.incarnation,
        target_shard: board.identity.shard,
    };
    answer_hello(&mut stream, &ours, theirs).await?;
    let (read, mut write) = stream.into_split();
    let outbox = Rc::new(Outbox::new(board.counts.clone()));
    if theirs.purpose == Purpose::Detector {
        let pings = answer_pings(read, &outbox);
        tokio::select! {
            read = pings => read?,
            written = outbox.write_to(&mut write) => written.map_err(WireError::from)?,
        }
        return Ok(());
    }
    let reply = ReplyPath::Connection(outbox.clone());
    // Reading first: what it answers is then written in the same turn.
    tokio::select! {
        biased;
        read = read_frames(board, theirs.node, read, reply) => read?,
        written = outbox.write_to(&mut write) => written.map_err(WireError::from)?,
    }
    Ok(())
}

async fn answer_pings(stream: ReadHalf, outbox: &Outbox) -> Result<(), WireError> {
    let mut reader = FrameReader::new(stream);
    loop {
        if let Message::Ping { count } = reader.next().await?.message()? {
            outbox.push(&Message::Pong { count }, Vec::new());
        }
    }
}
