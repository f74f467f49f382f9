//! Networks: the machine's TCP, or one that a simulator carries.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::stream::Stream;

/// Connections that wait to be accepted, as far as the system allows (`net.core.somaxconn`). A
/// thousand clients look for their new leader or coordinator at the same moment; whoever finds no
/// place tries again only a second later.
const BACKLOG_CONNECTIONS_MAX: u32 = 4096;

/// A future of a [`Network`] operation.
pub type NetworkFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Makes listeners and streams. Implemented here for TCP; a simulator brings its own.
pub trait Network: Send + Sync + 'static {
    /// Listens on `addr`.
    fn listen(&self, addr: SocketAddr) -> NetworkFuture<'_, Listener>;
    /// Connects to `addr`.
    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream>;
}

/// A simulator's listener; wrap it with [`Listener::simulated`].
pub trait SimulatedListener: Send + Sync + 'static {
    /// Waits for the next stream and its peer's address.
    fn accept(&self) -> NetworkFuture<'_, (Stream, SocketAddr)>;
    /// Where it listens.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Accepts streams.
pub struct Listener {
    inner: ListenerKind,
}

enum ListenerKind {
    Tcp(TcpListener),
    Simulated(Box<dyn SimulatedListener>),
}

impl Listener {
    /// Wraps a simulator's listener.
    pub fn simulated(listener: Box<dyn SimulatedListener>) -> Listener {
        Listener {
            inner: ListenerKind::Simulated(listener),
        }
    }

    /// Waits for the next stream. Cancel-safe. The stream has `TCP_NODELAY` set.
    ///
    /// # Errors
    /// The operating system's. Most concern one connection (reset before it was accepted) or pass
    /// (no file descriptors left): pause for some milliseconds and accept again.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match &self.inner {
            ListenerKind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::tcp(stream), peer))
            }
            ListenerKind::Simulated(listener) => listener.accept().await,
        }
    }

    /// Where it listens: with the real port if port 0 was asked for.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.inner {
            ListenerKind::Tcp(listener) => listener.local_addr(),
            ListenerKind::Simulated(listener) => listener.local_addr(),
        }
    }
}

/// The machine's TCP.
pub(crate) struct TcpNetwork;

impl Network for TcpNetwork {
    fn listen(&self, addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async move {
            let socket = match addr {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            // A restarted node takes its port back at once.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            Ok(Listener {
                inner: ListenerKind::Tcp(socket.listen(BACKLOG_CONNECTIONS_MAX)?),
            })
        })
    }

    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        Box::pin(async move {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            Ok(Stream::tcp(stream))
        })
    }
}
