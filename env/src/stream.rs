//! A byte stream between two addresses: TCP, or a simulator's.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A simulator's stream; wrap it with [`Stream::simulated`].
pub trait SimulatedStream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Our end.
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The other end.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

/// A connected byte stream. Vectored writes reach the socket as one `writev`.
pub struct Stream {
    inner: StreamKind,
}

enum StreamKind {
    Tcp(TcpStream),
    Simulated(Box<dyn SimulatedStream>),
}

impl Stream {
    pub(crate) fn tcp(stream: TcpStream) -> Stream {
        Stream {
            inner: StreamKind::Tcp(stream),
        }
    }

    /// Wraps a simulator's stream.
    pub fn simulated(stream: Box<dyn SimulatedStream>) -> Stream {
        Stream {
            inner: StreamKind::Simulated(stream),
        }
    }

    /// Our end.
    ///
    /// # Errors
    /// The operating system's, after the connection broke.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            StreamKind::Tcp(stream) => stream.local_addr(),
            StreamKind::Simulated(stream) => stream.local_addr(),
        }
    }

    /// The other end.
    ///
    /// # Errors
    /// The operating system's, after the connection broke.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            StreamKind::Tcp(stream) => stream.peer_addr(),
            StreamKind::Simulated(stream) => stream.peer_addr(),
        }
    }

    /// Leaves this thread's runtime, so that another shard's can [attach](DetachedStream::attach)
    /// it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn detach(self) -> io::Result<DetachedStream> {
        let inner = match self.inner {
            StreamKind::Tcp(stream) => DetachedKind::Tcp(stream.into_std()?),
            StreamKind::Simulated(stream) => DetachedKind::Simulated(stream),
        };
        Ok(DetachedStream { inner })
    }

    /// Splits into halves that two tasks can own. Dropping the write half shuts it down.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self.inner {
            StreamKind::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (
                    ReadHalf {
                        inner: ReadKind::Tcp(read),
                    },
                    WriteHalf {
                        inner: WriteKind::Tcp(write),
                    },
                )
            }
            StreamKind::Simulated(stream) => {
                let (read, write) = tokio::io::split(stream);
                (
                    ReadHalf {
                        inner: ReadKind::Simulated(read),
                    },
                    WriteHalf {
                        inner: WriteKind::Simulated(write),
                    },
                )
            }
        }
    }
}

/// A connection between two runtimes: it left one and has not arrived in the next.
pub struct DetachedStream {
    inner: DetachedKind,
}

enum DetachedKind {
    Tcp(StdTcpStream),
    Simulated(Box<dyn SimulatedStream>),
}

impl DetachedStream {
    /// Arrives in the caller's runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn attach(self) -> io::Result<Stream> {
        match self.inner {
            DetachedKind::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Stream::tcp(TcpStream::from_std(stream)?))
            }
            DetachedKind::Simulated(stream) => Ok(Stream::simulated(stream)),
        }
    }
}

/// The reading half of a [`Stream`].
pub struct ReadHalf {
    inner: ReadKind,
}

enum ReadKind {
    Tcp(OwnedReadHalf),
    Simulated(tokio::io::ReadHalf<Box<dyn SimulatedStream>>),
}

/// The writing half of a [`Stream`].
pub struct WriteHalf {
    inner: WriteKind,
}

enum WriteKind {
    Tcp(OwnedWriteHalf),
    Simulated(tokio::io::WriteHalf<Box<dyn SimulatedStream>>),
}

macro_rules! impl_read {
    ($outer:ident, $kind:ident) => {
        impl AsyncRead for $outer {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match &mut self.get_mut().inner {
                    $kind::Tcp(inner) => Pin::new(inner).poll_read(cx, buf),
                    $kind::Simulated(inner) => Pin::new(inner).poll_read(cx, buf),
                }
            }
        }
    };
}

macro_rules! impl_write {
    ($outer:ident, $kind:ident) => {
        impl AsyncWrite for $outer {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                match &mut self.get_mut().inner {
                    $kind::Tcp(inner) => Pin::new(inner).poll_write(cx, buf),
                    $kind::Simulated(inner) => Pin::new(inner).poll_write(cx, buf),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match &mut self.get_mut().inner {
                    $kind::Tcp(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
                    $kind::Simulated(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match &self.inner {
                    $kind::Tcp(inner) => inner.is_write_vectored(),
                    $kind::Simulated(inner) => inner.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut self.get_mut().inner {
                    $kind::Tcp(inner) => Pin::new(inner).poll_flush(cx),
                    $kind::Simulated(inner) => Pin::new(inner).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut self.get_mut().inner {
                    $kind::Tcp(inner) => Pin::new(inner).poll_shutdown(cx),
                    $kind::Simulated(inner) => Pin::new(inner).poll_shutdown(cx),
                }
            }
        }
    };
}

impl_read!(Stream, StreamKind);
impl_write!(Stream, StreamKind);
impl_read!(ReadHalf, ReadKind);
impl_write!(WriteHalf, WriteKind);
