use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

use super::*;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a current-thread runtime");
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// Connects, says "ping" in two pieces of one vectored write, and expects the echo.
async fn echo_roundtrip(env: Env) {
    let listener = env.listen(LOOPBACK).await.expect("listen");
    let addr = listener.local_addr().expect("local addr");
    let server = env.spawn_local(async move {
        let (stream, _peer) = listener.accept().await.expect("accept");
        let (mut read, mut write) = stream.into_split();
        let mut said = [0; 4];
        read.read_exact(&mut said).await.expect("read");
        write.write_all(&said).await.expect("write");
        write.shutdown().await.expect("shutdown");
    });
    let mut stream = env.connect(addr).await.expect("connect");
    assert_eq!(stream.peer_addr().expect("peer addr"), addr);
    let written = stream
        .write_vectored(&[IoSlice::new(b"pi"), IoSlice::new(b"ng")])
        .await
        .expect("write");
    assert_eq!(written, 4, "a vectored write takes both pieces at once");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.expect("read");
    assert_eq!(heard, b"ping");
    server.await.expect("server");
}

#[test]
fn tcp_carries_a_roundtrip() {
    block_on(echo_roundtrip(Env::real()));
}

#[test]
fn another_runtime_adopts_a_stream() {
    let env = Env::real();
    let (near, addr_tx) = std::sync::mpsc::channel();
    let (stream_tx, stream_rx) = std::sync::mpsc::channel();
    let acceptor = {
        let env = env.clone();
        env.clone()
            .spawn_thread("acceptor", move || {
                block_on(async move {
                    let listener = env.listen(LOOPBACK).await.expect("listen");
                    near.send(listener.local_addr().expect("addr"))
                        .expect("send addr");
                    let (stream, _) = listener.accept().await.expect("accept");
                    stream_tx
                        .send(stream.detach().expect("detach"))
                        .expect("send stream");
                });
            })
            .expect("thread")
    };
    let addr = addr_tx.recv().expect("addr");
    block_on(async move {
        let mut client = env.connect(addr).await.expect("connect");
        client.write_all(b"x").await.expect("write");
        let mut adopted = stream_rx.recv().expect("stream").attach().expect("attach");
        assert_eq!(adopted.read_u8().await.expect("read"), b'x');
    });
    acceptor.join().expect("acceptor");
}

#[test]
fn a_taken_port_is_an_error() {
    block_on(async {
        let env = Env::real();
        let first = env.listen(LOOPBACK).await.expect("listen");
        let second = env.listen(first.local_addr().expect("addr")).await;
        assert_eq!(
            second.err().map(|e| e.kind()),
            Some(io::ErrorKind::AddrInUse)
        );
    });
}

#[test]
fn random_numbers_stay_below_their_bound_and_reach_all_of_it() {
    let env = Env::real();
    assert_eq!(env.random_below(0), 0);
    assert_eq!(env.random_below(1), 0);
    let mut seen = [false; 7];
    for _ in 0..2_000 {
        seen[env.random_below(7) as usize] = true;
    }
    assert_eq!(seen, [true; 7]);
    assert_ne!(env.random_uuid(), env.random_uuid());
    assert_eq!(env.random_uuid().get_version_num(), 4);
}

#[test]
fn wall_clock_is_in_milliseconds_of_this_century() {
    let now = Env::real().unix_millis();
    assert!(
        (1_700_000_000_000..5_000_000_000_000).contains(&now),
        "{now}"
    );
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let draw = |seed| {
        let env = simulated(seed);
        (0..5).map(|_| env.random_u64()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn a_simulated_network_carries_the_same_roundtrip() {
    block_on(async { echo_roundtrip(simulated(1)).await });
}

#[test]
fn simulated_wall_clock_follows_the_runtime() {
    block_on(async {
        let env = simulated(1);
        assert!(env.is_simulated());
        let before = env.unix_millis();
        assert!((SIM_MILLIS..SIM_MILLIS + 60_000).contains(&before));
        env.sleep(Duration::from_millis(2)).await;
        assert!(env.unix_millis() > before);
        env.set_wall_offset_millis(-3_600_000);
        assert!(env.unix_millis() < before, "the wall clock may go back");
        assert!(env.spawn_thread("no", || ()).is_err());
    });
}

// A minimal in-memory network: proof that the seam is enough for a simulator.

const SIM_MILLIS: i64 = 1_000_000;

fn simulated(seed: u64) -> Env {
    Env::simulated(Simulation {
        seed,
        unix_millis: SIM_MILLIS,
        network: Box::new(MemoryNetwork::default()),
    })
}

type Accepted = (Stream, SocketAddr);

#[derive(Default)]
struct MemoryNetwork {
    listeners: Arc<Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<Accepted>>>>,
}

impl Network for MemoryNetwork {
    fn listen(&self, mut addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async move {
            let mut listeners = self.listeners.lock().expect("lock");
            if addr.port() == 0 {
                addr.set_port(1 + listeners.len() as u16);
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            listeners.insert(addr, sender);
            let receiver = tokio::sync::Mutex::new(receiver);
            Ok(Listener::simulated(Box::new(MemoryListener {
                addr,
                receiver,
            })))
        })
    }

    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        Box::pin(async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listeners = self.listeners.lock().expect("lock");
            let listener = listeners.get(&addr).ok_or_else(refused)?;
            let (near, far) = tokio::io::duplex(64);
            let here = SocketAddr::new(addr.ip(), 40_000);
            let theirs = MemoryStream {
                pipe: far,
                local: addr,
                peer: here,
            };
            listener
                .send((Stream::simulated(Box::new(theirs)), here))
                .map_err(|_closed| refused())?;
            let ours = MemoryStream {
                pipe: near,
                local: here,
                peer: addr,
            };
            Ok(Stream::simulated(Box::new(ours)))
        })
    }
}

struct MemoryListener {
    addr: SocketAddr,
    receiver: tokio::sync::Mutex<mpsc::UnboundedReceiver<Accepted>>,
}

impl SimulatedListener for MemoryListener {
    fn accept(&self) -> NetworkFuture<'_, Accepted> {
        Box::pin(async move {
            let next = self.receiver.lock().await.recv().await;
            next.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
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

impl SimulatedStream for MemoryStream {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
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
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}
