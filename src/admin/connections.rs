//! The admin port's connections: how many there are, and how long one may waste their place.
//!
//! Whoever reaches the port may open connections: one that sends no request, sends it a byte at a
//! time or takes no answer must not keep others from asking how the node is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use corduroy_env::{Listener, Stream};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Connections at once; one more is closed as soon as it is there.
pub const CONNECTIONS_MAX: usize = 256;
/// A request's line and headers must be there in this time, from the first byte or from the answer
/// before: also an idle connection is closed after it.
pub const HEADER_WAIT_MAX: Duration = Duration::from_secs(5);
/// A client that takes no byte of an answer for this long is gone.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(10);
/// A request's line and headers together; none of ours needs a tenth of it.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Between two tries to accept after the system refused one (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The limits above, or shorter ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections_max: usize,
    pub(super) header_wait_max: Duration,
    pub(super) write_stall_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: CONNECTIONS_MAX,
            header_wait_max: HEADER_WAIT_MAX,
            write_stall_max: WRITE_STALL_MAX,
        }
    }
}

/// Serves for ever. Dropped, it closes every connection: a scraper that hangs holds nothing up.
pub(super) async fn serve(mut listener: Listener, router: Router, limits: Limits) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            stream = accept(&mut listener) => {
                if connections.len() < limits.connections_max {
                    connections.push(serve_one(stream, router.clone(), limits));
                } else {
                    tracing::debug!("the admin port has no room for one more connection");
                }
            }
            Some(()) = connections.next() => {}
        }
    }
}

async fn accept(listener: &mut Listener) -> Stream {
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return stream,
            Err(error) => {
                tracing::debug!(%error, "the admin port could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: Stream, router: Router, limits: Limits) {
    let io = TokioIo::new(Impatient {
        stream,
        stall_max: limits.write_stall_max,
        stalled: None,
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_wait_max)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(io, TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the admin port ended");
    }
}

/// A stream whose writes fail when none of them has gone on for a while.
struct Impatient {
    stream: Stream,
    stall_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stall_max = self.stall_max;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.judge(written, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.judge(flushed, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use corduroy_env::Env;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Serves with these limits while `visit` runs; it is given the way to a new connection.
    fn with_port<F: Future<Output = ()>>(
        limits: Limits,
        visit: impl FnOnce(Env, std::net::SocketAddr) -> F,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let env = Env::real();
            let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = env.listen(any).await.expect("a free port");
            let addr = listener.local_addr().expect("an address");
            let large = "x".repeat(64 << 20);
            let router = Router::new()
                .route("/", get(|| async { "here" }))
                .route("/large", get(move || async move { large }));
            tokio::select! {
                () = serve(listener, router, limits) => {}
                () = visit(env, addr) => {}
            }
        });
    }

    const HURRIED: Limits = Limits {
        connections_max: 3,
        header_wait_max: Duration::from_millis(200),
        write_stall_max: Duration::from_millis(200),
    };

    async fn answer(stream: &mut Stream) -> String {
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    #[test]
    fn who_sends_no_request_is_closed() {
        with_port(HURRIED, |env, addr| async move {
            for said in [
                &b""[..],
                b"\x16\x03\x01\x02",
                b"GET / HTTP/1.1\r\nhost: x\r\n",
            ] {
                let mut stream = env.connect(addr).await.expect("connects");
                stream.write_all(said).await.expect("sent");
                let mut rest = Vec::new();
                let end = stream.read_to_end(&mut rest).await;
                assert!(end.is_ok(), "{said:?}: {end:?}");
            }
        });
    }

    #[test]
    fn one_connection_too_many_is_closed_and_the_others_are_served() {
        let patient = Limits {
            connections_max: 3,
            ..Limits::default()
        };
        with_port(patient, |env, addr| async move {
            let mut streams = Vec::new();
            for _ in 0..3 {
                streams.push(env.connect(addr).await.expect("connects"));
            }
            let mut fourth = env.connect(addr).await.expect("connects");
            let mut rest = Vec::new();
            let closed = fourth.read_to_end(&mut rest).await;
            assert_eq!(closed.unwrap_or_default(), 0);
            for stream in &mut streams {
                assert!(answer(stream).await.ends_with("here"));
            }
            let mut next = env.connect(addr).await.expect("connects");
            assert!(answer(&mut next).await.ends_with("here"));
        });
    }

    #[test]
    fn who_takes_no_answer_gives_its_place_up() {
        let one = Limits {
            connections_max: 1,
            ..HURRIED
        };
        with_port(one, |env, addr| async move {
            let mut deaf = env.connect(addr).await.expect("connects");
            let request = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n";
            deaf.write_all(request).await.expect("sent");
            // Its place is free once its writes have been given up.
            loop {
                let mut next = env.connect(addr).await.expect("connects");
                let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                let mut answer = Vec::new();
                if next.write_all(request).await.is_ok()
                    && next.read_to_end(&mut answer).await.is_ok()
                    && answer.ends_with(b"here")
                {
                    break;
                }
            }
            drop(deaf);
        });
    }
}
