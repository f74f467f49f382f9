//! The seam to the outside: everything a node takes from its machine but its disk.
//!
//! Time, randomness, threads and sockets come through [`Env`], so that a simulator can own them
//! and the same seed gives the same run. The workspace's clippy configuration bans the direct
//! ways everywhere else. The disk has a seam of its own, in the storage crate.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this crate is the seam: the direct ways are banned everywhere else"
)]

mod network;
pub mod planted;
mod randomness;
mod stream;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

pub use network::{Listener, Network, NetworkFuture, SimulatedListener};
pub use stream::{DetachedStream, ReadHalf, SimulatedStream, Stream, WriteHalf};

use network::TcpNetwork;
use randomness::Randomness;

/// Everything a node takes from outside: time, randomness, spawning, network.
///
/// Cheap to clone, `Send` and `Sync`: all shards of a node hold the same one.
#[derive(Clone)]
pub struct Env {
    shared: Arc<Shared>,
}

struct Shared {
    network: Box<dyn Network>,
    randomness: Randomness,
    wall: Wall,
}

/// Where [`Env::unix_millis`] comes from.
enum Wall {
    System,
    /// Derived from the monotonic clock, so that a paused runtime owns it too.
    Derived {
        origin: Instant,
        origin_millis: i64,
        /// How far the wall clock has been set off since.
        offset_millis: AtomicI64,
    },
}

/// What a simulator gives instead of the machine.
pub struct Simulation {
    /// Seed of every random number that the node draws.
    pub seed: u64,
    /// Unix time in milliseconds at the moment [`Env::simulated`] is called. From there it
    /// advances with tokio's clock.
    pub unix_millis: i64,
    /// Carries the node's streams.
    pub network: Box<dyn Network>,
}

impl Env {
    /// The machine itself.
    pub fn real() -> Env {
        Env {
            shared: Arc::new(Shared {
                network: Box::new(TcpNetwork),
                randomness: Randomness::system(),
                wall: Wall::System,
            }),
        }
    }

    /// A simulated machine: call it inside the runtime whose (paused) clock the node will see.
    pub fn simulated(simulation: Simulation) -> Env {
        Env {
            shared: Arc::new(Shared {
                network: simulation.network,
                randomness: Randomness::seeded(simulation.seed),
                wall: Wall::Derived {
                    origin: Instant::now(),
                    origin_millis: simulation.unix_millis,
                    offset_millis: AtomicI64::new(0),
                },
            }),
        }
    }

    /// The monotonic clock. It is tokio's, so that a paused runtime owns it; callable from any
    /// thread.
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The wall clock in milliseconds since the Unix epoch. It may jump in both directions: for
    /// record timestamps and for people, never for intervals.
    pub fn unix_millis(&self) -> i64 {
        match &self.shared.wall {
            Wall::System => match SystemTime::now().duration_since(UNIX_EPOCH) {
                Ok(since) => saturating_millis(since),
                Err(before) => -saturating_millis(before.duration()),
            },
            Wall::Derived {
                origin,
                origin_millis,
                offset_millis,
            } => origin_millis
                .saturating_add(saturating_millis(self.now().duration_since(*origin)))
                .saturating_add(offset_millis.load(Ordering::Relaxed)),
        }
    }

    /// A simulator sets the wall clock: to this many milliseconds from where it would be. The
    /// machine's own clock is not ours to set: there it does nothing.
    pub fn set_wall_offset_millis(&self, millis: i64) {
        if let Wall::Derived { offset_millis, .. } = &self.shared.wall {
            offset_millis.store(millis, Ordering::Relaxed);
        }
    }

    /// Waits on tokio's clock (resolution: one millisecond).
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// A uniformly random number.
    pub fn random_u64(&self) -> u64 {
        self.shared.randomness.next_u64()
    }

    /// A uniformly random number below `bound`; 0 for a `bound` of 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.shared.randomness.below(bound)
    }

    /// A random UUID, version 4.
    pub fn random_uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.random_u64().to_be_bytes());
        bytes[8..].copy_from_slice(&self.random_u64().to_be_bytes());
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Spawns onto the current `LocalSet`.
    ///
    /// # Panics
    /// Outside a `LocalSet`, as [`tokio::task::spawn_local`] does.
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + 'static,
    {
        tokio::task::spawn_local(future)
    }

    /// Starts an OS thread named `name` (at most 15 bytes of it show in `ps`). Its log lines carry
    /// the span in which it was started.
    ///
    /// # Errors
    /// The operating system's, and [`io::ErrorKind::Unsupported`] in a simulation, where all
    /// shards of a node share one thread and the disk works inline.
    pub fn spawn_thread<F>(&self, name: &str, body: F) -> io::Result<thread::JoinHandle<()>>
    where
        F: FnOnce() + Send + 'static,
    {
        if self.is_simulated() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a simulated node has no threads",
            ));
        }
        let span = tracing::Span::current();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || span.in_scope(body))
    }

    /// Whether a simulator owns this node's machine.
    pub fn is_simulated(&self) -> bool {
        matches!(self.shared.wall, Wall::Derived { .. })
    }

    /// Listens on `addr`; port 0 picks a free one.
    ///
    /// # Errors
    /// The operating system's: address in use, no such address, no permission.
    pub async fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        self.shared.network.listen(addr).await
    }

    /// Connects to `addr`, with `TCP_NODELAY` set. No deadline of its own: wrap it in
    /// [`tokio::time::timeout`].
    ///
    /// # Errors
    /// The operating system's: refused, unreachable, timed out.
    pub async fn connect(&self, addr: SocketAddr) -> io::Result<Stream> {
        self.shared.network.connect(addr).await
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_simulated() {
            "Env::simulated"
        } else {
            "Env::real"
        })
    }
}

fn saturating_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
