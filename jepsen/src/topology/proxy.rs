//! The loopback network: a TCP proxy before each port of each node, which does to a stream what
//! the link table says of its direction.
//!
//! Everything on loopback comes from the same address, so a proxy learns who connects from the
//! kernel's tables: the connection's inode, and the node process that holds it. Whoever is no node
//! is a client.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::diag;
use super::link::{Cut, Host, Link, Touch, Wiring};

/// Bytes taken from a stream at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks on their way in one direction of one stream, before its sender has to wait.
const CHUNKS_MAX: usize = 64;
/// How long a proxy waits after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Process ids of the nodes that run, by host: how a proxy knows who connects.
pub type Pids = Rc<RefCell<BTreeMap<Host, u32>>>;

/// What all proxies of a network share.
#[derive(Clone)]
pub struct Proxies {
    env: Env,
    table: watch::Receiver<Arc<Wiring>>,
    pids: Pids,
}

impl Proxies {
    /// Proxies that obey a link table.
    pub fn new(env: &Env, table: watch::Receiver<Arc<Wiring>>) -> Proxies {
        Proxies {
            env: env.clone(),
            table,
            pids: Pids::default(),
        }
    }

    /// Where to say which node runs as which process.
    pub fn pids(&self) -> &Pids {
        &self.pids
    }

    /// Opens a proxy before a port of `host`; it runs as long as the `LocalSet`. Returns where it
    /// listens.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn open(
        &self,
        address: Ipv4Addr,
        host: Host,
        target: SocketAddr,
    ) -> io::Result<SocketAddr> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the proxy is the network: it needs resets and halves"
        )]
        let listener = TcpListener::bind((address, 0)).await?;
        let listens = listener.local_addr()?;
        let proxies = self.clone();
        self.env.spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let source = proxies.source(peer, listens);
                        let carried = proxies.clone().carry(stream, source, host, target);
                        proxies.env.spawn_local(carried);
                    }
                    Err(_) => proxies.env.sleep(ACCEPT_PAUSE).await,
                }
            }
        });
        Ok(listens)
    }

    /// Whose end of a connection `peer` is.
    fn source(&self, peer: SocketAddr, listens: SocketAddr) -> Host {
        let Some(inode) = connection_inode(peer, listens) else {
            return Host::CLIENTS;
        };
        let wanted = format!("socket:[{inode}]");
        let holds = |pid: u32| {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                return false;
            };
            descriptors
                .flatten()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .any(|link| link.as_os_str() == wanted.as_str())
        };
        let pids = self.pids.borrow();
        pids.iter()
            .find(|(_, pid)| holds(**pid))
            .map_or(Host::CLIENTS, |(host, _)| *host)
    }

    /// Carries one connection until an end closes it or a cut resets it.
    async fn carry(self, stream: TcpStream, source: Host, target: Host, address: SocketAddr) {
        let mut table = self.table.clone();
        // A connection needs both directions to come about.
        loop {
            let (there, back) = {
                let now = table.borrow_and_update();
                now.touch((source, target), Touch::Cut);
                now.touch((target, source), Touch::Cut);
                (now.link(source, target).cut, now.link(target, source).cut)
            };
            if there == Cut::Reset || back == Cut::Reset {
                let _ = stream.set_zero_linger();
                return;
            }
            if there == Cut::Open && back == Cut::Open {
                break;
            }
            if table.changed().await.is_err() {
                return;
            }
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the proxy is the network: it needs resets and halves"
        )]
        let Ok(behind) = TcpStream::connect(address).await else {
            let _ = stream.set_zero_linger();
            return;
        };
        let _ = (stream.set_nodelay(true), behind.set_nodelay(true));
        let (front_read, front_write) = stream.into_split();
        let (behind_read, behind_write) = behind.into_split();
        let there = self.direction(front_read, behind_write, (source, target));
        let back = self.direction(behind_read, front_write, (target, source));
        let reset = self.reset(source, target);
        // A reset drops both halves with unsent data: the kernel then answers with RST.
        tokio::select! {
            _ = futures::future::join(there, back) => {}
            () = reset => {}
        }
    }

    /// Ends when a direction of this pair is to be reset.
    async fn reset(&self, source: Host, target: Host) {
        let mut table = self.table.clone();
        let is_reset = |table: &Arc<Wiring>| {
            table.link(source, target).cut == Cut::Reset
                || table.link(target, source).cut == Cut::Reset
        };
        match table.wait_for(is_reset).await {
            Ok(now) => {
                now.touch((source, target), Touch::Cut);
                now.touch((target, source), Touch::Cut);
                return;
            }
            Err(_closed) => {}
        }
        std::future::pending::<()>().await;
    }

    /// Carries one direction: a reader that stamps each chunk with its due time, and a writer that
    /// holds it until then and until the way is open.
    async fn direction(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        (source, target): (Host, Host),
    ) {
        let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
        let table = self.table.clone();
        let reading = async move {
            let mut free_at = self.env.now();
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let count = from.read(&mut buffer).await.unwrap_or(0);
                let link = {
                    let now = table.borrow();
                    if count > 0 {
                        now.touch((source, target), Touch::Late);
                        now.touch((source, target), Touch::Throttled);
                    }
                    now.link(source, target)
                };
                let due = self.due(link, count, &mut free_at);
                // An empty chunk is the stream's end: it takes the same way.
                let sent = queue.send((due, buffer[..count].to_vec())).await;
                if count == 0 || sent.is_err() {
                    return;
                }
            }
        };
        let mut table = self.table.clone();
        let writing = async move {
            while let Some((due, chunk)) = queued.recv().await {
                tokio::time::sleep_until(due).await;
                if !chunk.is_empty() {
                    table.borrow().touch((source, target), Touch::Cut);
                }
                let open = |table: &Arc<Wiring>| table.link(source, target).cut == Cut::Open;
                if table.wait_for(open).await.is_err() {
                    return;
                }
                if chunk.is_empty() || to.write_all(&chunk).await.is_err() {
                    let _ = to.shutdown().await;
                    return;
                }
            }
        };
        futures::future::join(reading, writing).await;
    }

    /// When a chunk that was sent now arrives. Order is kept: it is a stream.
    fn due(&self, link: Link, bytes: usize, free_at: &mut Instant) -> Instant {
        let now = self.env.now();
        let jitter_micros = u64::try_from(link.jitter.as_micros()).unwrap_or(u64::MAX);
        let jitter = Duration::from_micros(self.env.random_below(jitter_micros.saturating_add(1)));
        if let Some(rate) = link.bytes_per_second {
            let micros = bytes as u64 * 1_000_000 / rate.max(1);
            *free_at = (*free_at).max(now) + Duration::from_micros(micros);
        }
        (*free_at).max(now) + link.delay + jitter
    }
}

/// The inode of the socket at `peer` that is connected to `listens`.
fn connection_inode(peer: SocketAddr, listens: SocketAddr) -> Option<u64> {
    if let (SocketAddr::V4(peer), SocketAddr::V4(listens)) = (peer, listens)
        && let Ok(found) = diag::inode(peer, listens)
    {
        return found;
    }
    // Where such questions are forbidden: all sockets as text, which takes long where there are many.
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let (local, remote) = (kernel_form(peer)?, kernel_form(listens)?);
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (found_local, found_remote) = (fields.nth(1)?, fields.next()?);
        if found_local != local || found_remote != remote {
            return None;
        }
        fields.nth(6)?.parse().ok().filter(|&inode| inode != 0)
    })
}

/// An address as /proc/net/tcp prints it: the IPv4 address as a number in the machine's byte order,
/// in hexadecimal, and the port.
fn kernel_form(address: SocketAddr) -> Option<String> {
    match address {
        SocketAddr::V4(v4) => {
            let number = u32::from_ne_bytes(v4.ip().octets());
            Some(format!("{number:08X}:{:04X}", v4.port()))
        }
        SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::link::{LinkTable, Links};
    use super::*;

    #[test]
    fn a_cut_holds_one_direction_until_the_heal_and_a_reset_ends_the_stream() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let env = Env::real();
            let node = Host::node(1);
            let mut links = Links::default();
            let proxies = Proxies::new(&env, links.watch());
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let server = env.listen(any).await.expect("a free port");
            let behind = server.local_addr().expect("bound");
            let front = proxies
                .open(Ipv4Addr::LOCALHOST, node, behind)
                .await
                .expect("a proxy");
            let mut client = env.connect(front).await.expect("connected");
            let (mut served, _) = server.accept().await.expect("accepted");
            let cut = |cut| {
                let mut table = LinkTable::default();
                let link = Link {
                    cut,
                    ..Link::default()
                };
                table.add(Host::CLIENTS, node, link);
                table
            };
            let mut bytes = [0; 4];

            let layer = links.put(cut(Cut::Silent));
            client.write_all(b"ask!").await.expect("taken");
            served.write_all(b"told").await.expect("taken");
            client
                .read_exact(&mut bytes)
                .await
                .expect("the other way is open");
            assert_eq!(&bytes, b"told");
            let held = served.read_exact(&mut bytes).now_or_never();
            assert!(held.is_none(), "nothing passes a cut");
            links.take(layer);
            served.read_exact(&mut bytes).await.expect("healed");
            assert_eq!(&bytes, b"ask!");

            links.put(cut(Cut::Reset));
            let ended = client.read(&mut bytes).await;
            assert!(matches!(ended, Err(_) | Ok(0)), "{ended:?}");
        });
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9092));
        let expected = if cfg!(target_endian = "little") {
            "0100007F:2384"
        } else {
            "7F000001:2384"
        };
        assert_eq!(kernel_form(address).as_deref(), Some(expected));
    }
}
