//! A network within one process that knows simulated time: bytes arrive at once.

#![expect(
    clippy::disallowed_types,
    reason = "a network is shared by its nature: these locks stand for the kernel's"
)]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use corduroy_env::{Listener, Network, NetworkFuture, SimulatedListener, SimulatedStream, Stream};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Notify;

/// Bytes on their way in one direction of a connection.
const BUFFER_BYTES: usize = 256 << 10;
/// The first port that is given to whoever asks for any.
const FIRST_PORT: u16 = 40_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A failed assertion elsewhere does not make the maps wrong.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Port {
    waiting: Mutex<VecDeque<(Stream, SocketAddr)>>,
    arrived: Notify,
}

#[derive(Default)]
struct Ports {
    open: BTreeMap<SocketAddr, Weak<Port>>,
    given: u16,
}

impl Ports {
    fn any(&mut self) -> SocketAddr {
        self.given += 1;
        SocketAddr::from(([127, 0, 0, 1], FIRST_PORT + self.given))
    }
}

/// The network.
#[derive(Default)]
pub struct MemoryNetwork {
    ports: Mutex<Ports>,
}

impl Network for MemoryNetwork {
    fn listen(&self, addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async move {
            let mut ports = lock(&self.ports);
            let addr = if addr.port() == 0 { ports.any() } else { addr };
            if ports
                .open
                .get(&addr)
                .is_some_and(|port| port.strong_count() > 0)
            {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let port = Arc::new(Port::default());
            ports.open.insert(addr, Arc::downgrade(&port));
            Ok(Listener::simulated(Box::new(MemoryListener { addr, port })))
        })
    }

    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        Box::pin(async move {
            let mut ports = lock(&self.ports);
            let port = ports.open.get(&addr).and_then(Weak::upgrade);
            let port = port.ok_or(io::ErrorKind::ConnectionRefused)?;
            let near = ports.any();
            drop(ports);
            let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
            let wrap =
                |pipe, local, peer| Stream::simulated(Box::new(MemoryStream { pipe, local, peer }));
            lock(&port.waiting).push_back((wrap(theirs, addr, near), near));
            port.arrived.notify_one();
            Ok(wrap(ours, near, addr))
        })
    }
}

struct MemoryListener {
    addr: SocketAddr,
    port: Arc<Port>,
}

impl SimulatedListener for MemoryListener {
    fn accept(&self) -> NetworkFuture<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            loop {
                let arrived = self.port.arrived.notified();
                if let Some(next) = lock(&self.port.waiting).pop_front() {
                    return Ok(next);
                }
                arrived.await;
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

struct MemoryStream {
    pipe: DuplexStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, buf)
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl SimulatedStream for MemoryStream {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}
