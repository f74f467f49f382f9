//! One client connection: frames in, replies out in request order, several requests in flight.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use corduroy_env::{ReadHalf, Stream, WriteHalf};
use corduroy_protocol::{ApiKey, FRAME_BYTES_MAX};
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesOrdered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tracing::{debug, trace, warn};

use crate::shard::Shard;

use super::context::KafkaContext;
use super::dispatch;
use crate::shard::{AnswerPermit, Counters, FRAME_CREDIT_BYTES, MemoryPermit};
use crate::walk::WALK;

/// Requests of one connection that are being served; beyond it the socket is not read.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// Buffer that small requests share.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Bytes for which there is room as soon as the credit has arrived: most batches fit.
const FRAME_STEP_BYTES: usize = 2 * 1024 * 1024;

/// A frame that has begun must go on arriving: silence for this long ends the connection.
const FRAME_STALL_MAX: Duration = Duration::from_secs(30);

/// A client that takes no byte of its answers for this long ends its connection, as in Kafka
/// (`connections.max.idle.ms`): a paused consumer is patient, a dead one holds memory.
const WRITE_STALL_MAX: Duration = Duration::from_secs(600);

/// Slices handed to one vectored write (Linux takes up to 1024).
const WRITE_SLICES_MAX: usize = 64;

/// Replies that are ready together are written together up to this many bytes: more would not fit
/// into a socket's buffer at once.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

/// What a request comes to.
pub enum Reply {
    /// A frame, as pieces to write one after another.
    Frame(Vec<Bytes>),
    /// A frame with batches of the log, and the memory that they hold until it has been written.
    Fetched {
        /// The pieces, to write one after another.
        pieces: Vec<Bytes>,
        /// One per shard that took part.
        memory: Vec<AnswerPermit>,
    },
    /// Nothing: `acks=0`.
    Nothing,
    /// The connection cannot go on.
    Close(String),
}

/// A reply to come.
pub type ReplyFuture = LocalBoxFuture<'static, Reply>;

/// A request that is being served.
struct Slot {
    reply: ReplyFuture,
    memory: MemoryPermit,
    place: Place,
}

/// A request that has been served.
struct Served {
    reply: Reply,
    place: Place,
}

/// Where a request stands in its connection's order, until its reply is written.
struct Place {
    number: u64,
    api_key: i16,
    arrived: Instant,
    _in_flight: OwnedSemaphorePermit,
}

impl Slot {
    /// A fetch begins to read when its answer is the next to be written: what a client does not
    /// take holds the memory of one answer, however many it has asked for.
    async fn serve(self, turn: Rc<Turn>) -> Served {
        let Slot {
            reply,
            memory,
            place,
        } = self;
        if place.api_key == ApiKey::Fetch as i16 {
            turn.wait_for(place.number).await;
        }
        let reply = reply.await;
        // The reply's own memory is another matter: a client that reads no replies must not keep
        // the requests' from everybody else.
        drop(memory);
        Served { reply, place }
    }
}

/// Whose reply is the next to be written.
#[derive(Default)]
struct Turn {
    number: Cell<u64>,
    changed: Notify,
}

impl Turn {
    async fn wait_for(&self, number: u64) {
        while self.number.get() < number {
            // Nothing runs between the look and the registration: one thread.
            self.changed.notified().await;
        }
    }

    fn advance(&self) {
        self.number.set(self.number.get() + 1);
        self.changed.notify_waiters();
    }
}

/// Serves a client until either side closes.
pub async fn serve_connection(shard: Rc<Shard>, stream: Stream) {
    let context = KafkaContext::new(&shard, stream.local_addr().ok(), stream.peer_addr().ok());
    let counters = shard.counters().clone();
    Counters::add(&counters.connections, 1);
    let (read, write) = stream.into_split();
    // As many places as there are requests in flight: each holds a permit, so there is room.
    let (slots, queue) = mpsc::channel(REQUESTS_IN_FLIGHT_MAX);
    let (done, replies) = mpsc::channel(REQUESTS_IN_FLIGHT_MAX);
    let turn = Rc::<Turn>::default();
    let server = serve_in_order(queue, done, turn.clone());
    let writing = write_replies(write, replies, turn, counters.clone());
    let writer = async {
        tokio::pin!(writing);
        tokio::select! {
            () = server => writing.await,
            () = &mut writing => {}
        }
    };
    let reader = read_requests(read, &context, slots);
    // Whichever ends first ends the connection: a reader that meets the end of the stream still
    // lets the replies go out.
    tokio::pin!(writer);
    tokio::select! {
        result = reader => {
            if let Err(error) = result {
                let client = context.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
                if error.kind() == io::ErrorKind::InvalidData {
                    warn!(%client, %error, "closing a client's connection");
                } else {
                    debug!(%client, %error, "a client's connection broke");
                }
            } else {
                writer.await;
            }
        }
        () = &mut writer => {}
    }
    counters
        .connections
        .set(counters.connections.get().saturating_sub(1));
}

async fn read_requests(
    mut read: ReadHalf,
    context: &KafkaContext,
    slots: mpsc::Sender<Slot>,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
    let in_flight = Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT_MAX));
    let mut number = 0;
    loop {
        // Before the frame takes memory: whoever holds memory waits for no client.
        let Ok(permit) = in_flight.clone().acquire_owned().await else {
            return Ok(());
        };
        let Some((frame, memory)) = read_frame(&mut read, &mut buffer, context).await? else {
            return Ok(());
        };
        let arrived = context.env.now();
        let (node, shard) = (context.node.get(), context.shard.index());
        trace!(target: WALK, room = 1, node, shard, bytes = frame.len(), "a frame is read");
        let (api_key, reply) = dispatch::start(context, frame).await?;
        let slot = Slot {
            reply,
            memory,
            place: Place {
                number,
                api_key,
                arrived,
                _in_flight: permit,
            },
        };
        number += 1;
        if slots.send(slot).await.is_err() {
            return Ok(());
        }
    }
}

/// The next frame, without its length; `None` at the end of the stream between frames.
async fn read_frame(
    read: &mut ReadHalf,
    buffer: &mut BytesMut,
    context: &KafkaContext,
) -> io::Result<Option<(Bytes, MemoryPermit)>> {
    while buffer.len() < 4 {
        buffer.reserve(READ_BUFFER_BYTES / 4);
        let begun = !buffer.is_empty();
        let arrived = if begun {
            within(FRAME_STALL_MAX, STOPPED_ARRIVING, read.read_buf(buffer)).await?
        } else {
            read.read_buf(buffer).await?
        };
        if arrived == 0 {
            return if begun {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(None)
            };
        }
    }
    let bytes_max = context.config.request_bytes_max.min(FRAME_BYTES_MAX);
    let length = claimed_length(buffer.get_i32(), bytes_max)?;
    let budget = context.shard.memory();
    let closing = || io::Error::new(io::ErrorKind::ConnectionAborted, "the shard is closing");
    let mut memory = budget.begin(length).await.ok_or_else(closing)?;
    while buffer.len() < length {
        if buffer.len() >= memory.paid_bytes() {
            budget
                .extend(&mut memory, length)
                .await
                .ok_or_else(closing)?;
            continue;
        }
        let room = memory.paid_bytes() - buffer.len();
        let wanted = capacity_for(length, buffer.len());
        if buffer.capacity() < wanted {
            buffer.reserve(wanted - buffer.len());
        }
        let mut limited = (&mut *buffer).limit(room);
        let more = read.read_buf(&mut limited);
        if within(FRAME_STALL_MAX, STOPPED_ARRIVING, more).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some((buffer.split_to(length).freeze(), memory)))
}

/// A frame's length, from the four bytes before it.
fn claimed_length(claimed: i32, bytes_max: usize) -> io::Result<usize> {
    usize::try_from(claimed)
        .ok()
        .filter(|length| (1..=bytes_max).contains(length))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "a request of {claimed} bytes; allowed are 1 to {bytes_max} \
                     (is this a Kafka client?)"
                ),
            )
        })
}

/// Room for a frame of which `arrived` bytes are here: in three steps, so that little is moved and
/// a claim alone holds little. (Reserved is not free: the first byte in fresh memory may cost a huge
/// page.)
fn capacity_for(length: usize, arrived: usize) -> usize {
    match arrived {
        FRAME_STEP_BYTES.. => length,
        FRAME_CREDIT_BYTES.. => length.min(FRAME_STEP_BYTES),
        _ => length.min(FRAME_CREDIT_BYTES),
    }
}

const STOPPED_ARRIVING: &str = "a request stopped arriving";
const NOT_TAKEN: &str = "the client takes no answer";

async fn within(
    limit: Duration,
    what: &str,
    io: impl Future<Output = io::Result<usize>>,
) -> io::Result<usize> {
    tokio::time::timeout(limit, io).await.unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{what} for {} s", limit.as_secs()),
        ))
    })
}

/// Serves what is read, all at the same time; what is done goes on in request order. Apart from
/// the writing, so that a client that reads no replies delays none of its requests.
async fn serve_in_order(
    mut queue: mpsc::Receiver<Slot>,
    done: mpsc::Sender<Served>,
    turn: Rc<Turn>,
) {
    let mut serving = FuturesOrdered::new();
    let mut open = true;
    loop {
        let served = tokio::select! {
            biased;
            Some(served) = serving.next(), if !serving.is_empty() => served,
            slot = queue.recv(), if open => {
                match slot {
                    Some(slot) => serving.push_back(slot.serve(turn.clone())),
                    None => open = false,
                }
                continue;
            }
            else => return,
        };
        if done.send(served).await.is_err() {
            return;
        }
    }
}

async fn write_replies(
    mut write: WriteHalf,
    mut replies: mpsc::Receiver<Served>,
    turn: Rc<Turn>,
    counters: Rc<Counters>,
) {
    let mut ahead = None;
    loop {
        let first = match ahead.take() {
            Some(served) => served,
            None => match replies.recv().await {
                Some(served) => served,
                None => return,
            },
        };
        let written = match first.reply {
            // Answers of one turn of the disk come together: one write for all of them saves the
            // client as many wake-ups as it saves us calls.
            Reply::Frame(pieces) => {
                let mut gathered = Gathered::new(pieces, first.place, &counters);
                ahead = gathered.fill(&mut replies, &counters);
                let result = write_pieces(&mut write, gathered.pieces, &gathered.places).await;
                for _ in &gathered.places {
                    turn.advance();
                }
                result
            }
            reply => {
                let result = write_one(&mut write, reply, first.place, &counters).await;
                turn.advance();
                result
            }
        };
        if let Err(error) = written {
            debug!(%error, "a reply could not be written");
            return;
        }
    }
}

/// Replies that are ready together, in request order.
struct Gathered {
    pieces: Vec<Bytes>,
    bytes: usize,
    places: Vec<Place>,
}

impl Gathered {
    fn new(pieces: Vec<Bytes>, place: Place, counters: &Counters) -> Self {
        count_served(&place, counters);
        Self {
            bytes: pieces.iter().map(Bytes::len).sum(),
            pieces,
            places: vec![place],
        }
    }

    /// Takes what is ready and fits; returns the first that has to be written by itself.
    fn fill(
        &mut self,
        replies: &mut mpsc::Receiver<Served>,
        counters: &Counters,
    ) -> Option<Served> {
        while self.pieces.len() < WRITE_SLICES_MAX && self.bytes < GATHERED_BYTES_MAX {
            let served = replies.try_recv().ok()?;
            match served.reply {
                Reply::Frame(pieces) => {
                    count_served(&served.place, counters);
                    self.bytes += pieces.iter().map(Bytes::len).sum::<usize>();
                    self.pieces.extend(pieces);
                    self.places.push(served.place);
                }
                _ => return Some(served),
            }
        }
        None
    }
}

fn count_served(place: &Place, counters: &Counters) {
    let micros = u64::try_from(place.arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
    counters.served(place.api_key, micros);
}

async fn write_one(
    write: &mut WriteHalf,
    reply: Reply,
    place: Place,
    counters: &Counters,
) -> io::Result<()> {
    count_served(&place, counters);
    match reply {
        Reply::Frame(pieces) => write_pieces(write, pieces, &[place]).await,
        Reply::Fetched { pieces, memory } => {
            let result = write_pieces(write, pieces, &[place]).await;
            drop(memory);
            result
        }
        Reply::Nothing => Ok(()),
        Reply::Close(reason) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason)),
    }
}

/// Writes shared pieces with vectored writes: no copy of a batch.
async fn write_pieces(
    write: &mut WriteHalf,
    pieces: Vec<Bytes>,
    places: &[Place],
) -> io::Result<()> {
    let count = pieces.len();
    let mut writes = 0u32;
    let mut rest = PieceQueue { pieces, first: 0 };
    while rest.has_remaining() {
        writes += 1;
        if within(WRITE_STALL_MAX, NOT_TAKEN, write.write_buf(&mut rest)).await? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    for Place { api_key, .. } in places {
        trace!(target: WALK, room = "reply", api_key, pieces = count, writes, "a reply is written");
    }
    Ok(())
}

/// Pieces as one buffer, for vectored writes.
struct PieceQueue {
    pieces: Vec<Bytes>,
    first: usize,
}

impl Buf for PieceQueue {
    fn remaining(&self) -> usize {
        self.pieces.iter().skip(self.first).map(Bytes::len).sum()
    }

    fn has_remaining(&self) -> bool {
        self.pieces.iter().skip(self.first).any(|p| !p.is_empty())
    }

    fn chunk(&self) -> &[u8] {
        self.pieces
            .iter()
            .skip(self.first)
            .find(|p| !p.is_empty())
            .map_or(&[], |piece| piece.as_ref())
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [io::IoSlice<'a>]) -> usize {
        let room = slices.len().min(WRITE_SLICES_MAX);
        let mut used = 0;
        for piece in self
            .pieces
            .iter()
            .skip(self.first)
            .filter(|p| !p.is_empty())
        {
            if used == room {
                break;
            }
            if let Some(slice) = slices.get_mut(used) {
                *slice = io::IoSlice::new(piece);
                used += 1;
            }
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(piece) = self.pieces.get_mut(self.first) else {
                return;
            };
            let step = count.min(piece.len());
            piece.advance(step);
            count -= step;
            if piece.is_empty() {
                self.first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corduroy_env::Env;

    use super::*;

    fn served(number: u64, reply: Reply) -> Served {
        let in_flight = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let place = Place {
            number,
            api_key: 0,
            arrived: Instant::now(),
            _in_flight: in_flight,
        };
        Served { reply, place }
    }

    fn frame(number: u64, bytes: usize) -> Served {
        let byte = u8::try_from(number).unwrap();
        served(number, Reply::Frame(vec![Bytes::from(vec![byte; bytes])]))
    }

    /// What one write takes of these replies, and whether the next has to wait for its own.
    async fn gather(replies: Vec<Served>) -> (Vec<u64>, Vec<u8>, Option<u64>) {
        let (done, mut rest) = mpsc::channel(replies.len());
        for reply in replies {
            done.send(reply).await.unwrap();
        }
        let counters = Counters::default();
        let first = rest.recv().await.unwrap();
        let Reply::Frame(pieces) = first.reply else {
            panic!("the first is a frame");
        };
        let mut gathered = Gathered::new(pieces, first.place, &counters);
        let ahead = gathered.fill(&mut rest, &counters);
        (
            gathered.places.iter().map(|place| place.number).collect(),
            gathered.pieces.iter().map(|piece| piece[0]).collect(),
            ahead.map(|served| served.place.number),
        )
    }

    #[tokio::test]
    async fn replies_that_are_ready_together_go_out_together_and_in_order() {
        let (numbers, bytes, ahead) = gather(vec![frame(1, 10), frame(2, 10), frame(3, 10)]).await;
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(bytes, [1, 2, 3]);
        assert_eq!(ahead, None);
    }

    #[tokio::test]
    async fn what_is_not_a_plain_frame_ends_a_gathering_and_comes_next() {
        let silent = served(2, Reply::Nothing);
        let (numbers, _, ahead) = gather(vec![frame(1, 10), silent, frame(3, 10)]).await;
        assert_eq!(numbers, [1]);
        assert_eq!(ahead, Some(2));
    }

    #[tokio::test]
    async fn a_gathering_ends_once_a_socket_is_full_of_it() {
        let (numbers, _, ahead) = gather(vec![
            frame(1, 10),
            frame(2, GATHERED_BYTES_MAX),
            frame(3, 10),
        ])
        .await;
        assert_eq!(numbers, [1, 2]);
        assert_eq!(ahead, None, "the third is still in the queue");
    }

    /// What a client reads when these replies are written, and whose turn it is afterwards.
    async fn written(replies: Vec<Served>) -> (Vec<u8>, u64) {
        let env = Env::real();
        let listener = env.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (client, server) = tokio::join!(env.connect(addr), listener.accept());
        let (_, write) = server.unwrap().0.into_split();
        let (done, queue) = mpsc::channel(replies.len());
        for reply in replies {
            done.send(reply).await.unwrap();
        }
        drop(done);
        let turn = Rc::<Turn>::default();
        let writing = write_replies(write, queue, turn.clone(), Rc::default());
        let mut read = Vec::new();
        let mut client = client.unwrap();
        let (result, ()) = tokio::join!(client.read_to_end(&mut read), writing);
        result.unwrap();
        (read, turn.number.get())
    }

    #[tokio::test]
    async fn a_fetch_behind_two_frames_keeps_order_and_bytes() {
        // More than a socket takes at once, in more pieces than one write takes.
        let pieces: Vec<Bytes> = (0..200u8)
            .map(|n| Bytes::from(vec![n; 40_000 + usize::from(n)]))
            .collect();
        let fetched = Reply::Fetched {
            pieces: pieces.clone(),
            memory: Vec::new(),
        };
        let (read, turn) = written(vec![
            frame(1, 10),
            frame(2, 20),
            served(3, fetched),
            frame(4, 30),
            served(5, Reply::Nothing),
            frame(6, 40),
        ])
        .await;
        let mut wanted = [vec![1; 10], vec![2; 20]].concat();
        wanted.extend(pieces.into_iter().flatten());
        wanted.extend([vec![4; 30], vec![6; 40]].concat());
        assert_eq!(read.len(), wanted.len());
        assert!(read == wanted, "the bytes differ");
        assert_eq!(turn, 6, "each has had its turn");
    }

    #[tokio::test]
    async fn what_closes_a_connection_lets_those_before_it_go_out() {
        let close = Reply::Close("enough".to_owned());
        let (read, _) = written(vec![frame(1, 10), served(2, close), frame(3, 10)]).await;
        assert_eq!(read, [1; 10]);
    }
}
