//! One client connection: frames in, replies out in request order, several requests in flight.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use corduroy_env::{ReadHalf, Stream, WriteHalf};
use corduroy_protocol::FRAME_BYTES_MAX;
use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesOrdered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, trace, warn};

use crate::shard::Shard;

use super::context::KafkaContext;
use super::dispatch;
use crate::shard::Counters;
use crate::shard::MemoryPermit;
use crate::walk::WALK;

/// Requests of one connection that are being served; beyond it the socket is not read.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// Buffer that small requests share.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Bytes of a frame that are paid for before any of them has arrived; what comes after is paid
/// for as much as has arrived, so that a claimed length alone holds no memory.
const FRAME_CREDIT_BYTES: usize = 64 * 1024;

/// Bytes for which there is room as soon as the credit has arrived: most batches fit.
const FRAME_STEP_BYTES: usize = 2 * 1024 * 1024;

/// A frame that has begun must go on arriving: silence for this long ends the connection.
const FRAME_STALL_MAX: Duration = Duration::from_secs(30);

/// Slices handed to one vectored write (Linux takes up to 1024).
const WRITE_SLICES_MAX: usize = 64;

/// What a request comes to.
pub enum Reply {
    /// A frame, as pieces to write one after another.
    Frame(Vec<Bytes>),
    /// Nothing: `acks=0`.
    Nothing,
    /// The connection cannot go on.
    Close(String),
}

/// A reply to come.
pub type ReplyFuture = LocalBoxFuture<'static, Reply>;

struct Slot {
    reply: ReplyFuture,
    memory: Option<MemoryPermit>,
    api_key: i16,
    arrived: Instant,
}

struct Served {
    reply: Reply,
    memory: Option<MemoryPermit>,
    api_key: i16,
    arrived: Instant,
}

impl Slot {
    async fn serve(self) -> Served {
        let Slot {
            reply,
            memory,
            api_key,
            arrived,
        } = self;
        Served {
            reply: reply.await,
            memory,
            api_key,
            arrived,
        }
    }
}

/// Serves a client until either side closes.
pub async fn serve_connection(shard: Rc<Shard>, stream: Stream) {
    let context = KafkaContext::new(&shard, stream.local_addr().ok(), stream.peer_addr().ok());
    let counters = shard.counters().clone();
    Counters::add(&counters.connections, 1);
    let (read, write) = stream.into_split();
    let (slots, queue) = mpsc::channel(REQUESTS_IN_FLIGHT_MAX);
    let writer = write_replies(write, queue, counters.clone());
    let reader = read_requests(read, &context, slots);
    // Whichever ends first ends the connection: a reader that meets the end of the stream still
    // lets the replies go out.
    tokio::pin!(writer);
    tokio::select! {
        result = reader => {
            if let Err(error) = result {
                if error.kind() == io::ErrorKind::InvalidData {
                    warn!(client = ?context.peer, %error, "closing a client's connection");
                } else {
                    debug!(client = ?context.peer, %error, "a client's connection broke");
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
    while let Some((frame, memory)) = read_frame(&mut read, &mut buffer, context).await? {
        let arrived = context.env.now();
        let (node, shard) = (context.node.get(), context.shard.index());
        trace!(target: WALK, room = 1, node, shard, bytes = frame.len(), "a frame is read");
        let Ok(permit) = slots.reserve().await else {
            return Ok(());
        };
        let (api_key, reply) = dispatch::start(context, frame).await?;
        permit.send(Slot {
            reply,
            memory: Some(memory),
            api_key,
            arrived,
        });
    }
    Ok(())
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
            within_stall(read.read_buf(buffer)).await?
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
    let claimed = buffer.get_i32();
    let length = usize::try_from(claimed)
        .ok()
        .filter(|length| (1..=FRAME_BYTES_MAX).contains(length))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "a request of {claimed} bytes; allowed are 1 to {FRAME_BYTES_MAX} \
                     (is this a Kafka client?)"
                ),
            )
        })?;
    let budget = context.shard.memory();
    let closing = || io::Error::new(io::ErrorKind::ConnectionAborted, "the shard is closing");
    let mut paid = length.min(FRAME_CREDIT_BYTES.max(buffer.len()));
    let mut memory = vec![budget.take(paid).await.ok_or_else(closing)?];
    while buffer.len() < length {
        if buffer.len() == paid {
            let more = (length - paid).min(paid);
            memory.push(budget.take(more).await.ok_or_else(closing)?);
            paid += more;
        }
        let room = paid - buffer.len();
        let wanted = capacity_for(length, buffer.len());
        if buffer.capacity() < wanted {
            buffer.reserve(wanted - buffer.len());
        }
        let arrived = within_stall(read.read_buf(&mut buffer.limit(room))).await?;
        if arrived == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let frame = buffer.split_to(length).freeze();
    Ok(Some((
        frame,
        MemoryPermit::merge(memory).ok_or_else(closing)?,
    )))
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

async fn within_stall(read: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
    tokio::time::timeout(FRAME_STALL_MAX, read)
        .await
        .unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "a request stopped arriving for {} s",
                    FRAME_STALL_MAX.as_secs()
                ),
            ))
        })
}

async fn write_replies(
    mut write: WriteHalf,
    mut queue: mpsc::Receiver<Slot>,
    counters: Rc<Counters>,
) {
    let mut serving = FuturesOrdered::new();
    let mut open = true;
    loop {
        let served = tokio::select! {
            biased;
            Some(served) = serving.next(), if !serving.is_empty() => served,
            slot = queue.recv(), if open && serving.len() < REQUESTS_IN_FLIGHT_MAX => {
                match slot {
                    Some(slot) => serving.push_back(slot.serve()),
                    None => open = false,
                }
                continue;
            }
            else => return,
        };
        if let Err(error) = write_one(&mut write, served, &counters).await {
            debug!(%error, "a reply could not be written");
            return;
        }
    }
}

async fn write_one(write: &mut WriteHalf, served: Served, counters: &Counters) -> io::Result<()> {
    let Served {
        reply,
        memory,
        api_key,
        arrived,
    } = served;
    let micros = u64::try_from(arrived.elapsed().as_micros()).unwrap_or(u64::MAX);
    counters.served(api_key, micros);
    let result = match reply {
        Reply::Frame(pieces) => write_pieces(write, pieces, api_key).await,
        Reply::Nothing => Ok(()),
        Reply::Close(reason) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason)),
    };
    drop(memory);
    result
}

/// Writes shared pieces with vectored writes: no copy of a batch.
async fn write_pieces(write: &mut WriteHalf, pieces: Vec<Bytes>, api_key: i16) -> io::Result<()> {
    let count = pieces.len();
    let mut writes = 1u32;
    if let [piece] = pieces.as_slice() {
        write.write_all(piece).await?;
    } else {
        writes = 0;
        let mut rest = PieceQueue { pieces, first: 0 };
        while rest.has_remaining() {
            writes += 1;
            if write.write_buf(&mut rest).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }
    trace!(target: WALK, room = "reply", api_key, pieces = count, writes, "a reply is written");
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
