//! One end of a simulated connection.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use corduroy_env::{SimulatedStream, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Fabric, Segment, State, WINDOW_BYTES, What, wake};

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Dialled,
    Accepted,
}

pub(super) struct SimStream {
    fabric: Fabric,
    connection: u64,
    end: End,
    local: SocketAddr,
    peer: SocketAddr,
}

impl SimStream {
    pub(super) fn stream(
        fabric: Fabric,
        connection: u64,
        end: End,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Stream {
        Stream::simulated(Box::new(SimStream {
            fabric,
            connection,
            end,
            local,
            peer,
        }))
    }

    /// The pipe that this end reads.
    fn inbound(&self) -> u64 {
        2 * self.connection + u64::from(self.end == End::Dialled)
    }

    /// The pipe that this end writes.
    fn outbound(&self) -> u64 {
        2 * self.connection + u64::from(self.end == End::Accepted)
    }

    fn write(&self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = self.fabric.state.lock();
        let number = self.outbound();
        let Some(pipe) = state.pipes.get(&number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if pipe.broken || pipe.ended || !state.lives(pipe.from) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = WINDOW_BYTES.saturating_sub(pipe.held_bytes);
        let asked: usize = pieces.iter().map(|piece| piece.len()).sum();
        if asked == 0 {
            return Poll::Ready(Ok(0));
        }
        if room == 0 {
            if let Some(pipe) = state.pipes.get_mut(&number) {
                pipe.writer = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let taken = asked.min(room);
        let mut bytes = BytesMut::with_capacity(taken);
        for piece in pieces {
            let left = taken - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(left)]);
        }
        push(&mut state, number, Segment::Bytes(bytes.freeze()));
        drop(state);
        self.fabric.changed.notify_one();
        Poll::Ready(Ok(taken))
    }
}

fn push(state: &mut State, number: u64, segment: Segment) {
    state.send(number, What::Deliver(number));
    if let Some(pipe) = state.pipes.get_mut(&number) {
        if let Segment::Bytes(bytes) = &segment {
            pipe.held_bytes += bytes.len();
        }
        pipe.flight.push_back((pipe.last_at, segment));
    }
}

impl SimulatedStream for SimStream {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.fabric.state.lock();
        let Some(pipe) = state.pipes.get_mut(&self.inbound()) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if pipe.broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut read = 0;
        while buf.remaining() > 0
            && let Some(front) = pipe.ready.front_mut()
        {
            let count = front.len().min(buf.remaining());
            buf.put_slice(&front[..count]);
            front.advance(count);
            read += count;
            if front.is_empty() {
                pipe.ready.pop_front();
            }
        }
        if read > 0 {
            pipe.held_bytes = pipe.held_bytes.saturating_sub(read);
            wake(&mut pipe.writer);
            return Poll::Ready(Ok(()));
        }
        if pipe.ready_end || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        pipe.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.fabric.state.lock();
        end_writing(&mut state, self.outbound());
        drop(state);
        self.fabric.changed.notify_one();
        Poll::Ready(Ok(()))
    }
}

fn end_writing(state: &mut State, number: u64) {
    let Some(pipe) = state.pipes.get_mut(&number) else {
        return;
    };
    let from = pipe.from;
    if std::mem::replace(&mut pipe.ended, true) || pipe.broken || !state.lives(from) {
        return;
    }
    push(state, number, Segment::End);
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let (inbound, outbound) = (self.inbound(), self.outbound());
        let mut state = self.fabric.state.lock();
        end_writing(&mut state, outbound);
        if let Some(pipe) = state.pipes.get_mut(&outbound) {
            pipe.writer_gone = true;
        }
        if let Some(pipe) = state.pipes.get_mut(&inbound) {
            pipe.reader_gone = true;
            let unread: Vec<Bytes> = pipe.ready.drain(..).collect();
            pipe.held_bytes = pipe
                .held_bytes
                .saturating_sub(unread.iter().map(Bytes::len).sum());
            wake(&mut pipe.writer);
        }
        state.forget_unheld(self.connection);
        drop(state);
        self.fabric.changed.notify_one();
    }
}
