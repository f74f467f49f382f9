//! The router between namespaces: a thread that reads packets from one TUN device per host and
//! drops, delays, doubles or delivers them as the link table says.
//!
//! The kernel's own way (netem) is missing on many small machines; this one needs /dev/net/tun only
//! and draws its chances from the run's seed.

use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corduroy_env::Env;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;
use tokio::time::Instant;

use super::link::{Cut, Host, Link, Touch, Wiring};
use super::namespace::Namespaces;
use super::packet;
use crate::chance::Chance;

/// Larger than any packet that a device with our MTU can send.
const PACKET_BYTES_MAX: usize = 65_536;
/// Packets that wait for their time; more are dropped, as a router's queue does.
const WAITING_MAX: usize = 20_000;
/// Longest queue before a slow link, in time; more is dropped.
const QUEUE_MAX: Duration = Duration::from_millis(400);
/// How much later a reordered packet goes.
const OVERTAKEN_BY: Duration = Duration::from_millis(30);
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// A packet that waits.
struct Waiting {
    due: Instant,
    number: u64,
    target: Host,
    bytes: Vec<u8>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.number == other.number
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// The heap gives its greatest first: the one that is due first, in the order of arrival.
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

/// The router's thread; ends when this is dropped.
pub struct Router {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Router {
    /// Starts forwarding between these devices (non-blocking, one packet per read).
    ///
    /// # Errors
    /// The operating system's, for the thread.
    pub fn start(
        env: &Env,
        devices: BTreeMap<Host, File>,
        table: watch::Receiver<Arc<Wiring>>,
        chance: Chance,
    ) -> io::Result<Router> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut forwarding = Forwarding {
            env: env.clone(),
            chance,
            devices,
            table,
            waiting: BinaryHeap::new(),
            free_at: BTreeMap::new(),
            next_number: 0,
        };
        let stopped = stop.clone();
        let thread = env.spawn_thread("router", move || {
            while !stopped.load(Ordering::Relaxed) {
                forwarding.turn();
            }
        })?;
        Ok(Router {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It can only have panicked: nothing to save then.
            let _ = thread.join();
        }
    }
}

struct Forwarding {
    env: Env,
    chance: Chance,
    devices: BTreeMap<Host, File>,
    table: watch::Receiver<Arc<Wiring>>,
    waiting: BinaryHeap<Waiting>,
    /// When a slow direction has sent what it has.
    free_at: BTreeMap<(Host, Host), Instant>,
    next_number: u64,
}

impl Forwarding {
    /// Waits for packets or for a packet's time, then handles all that there are.
    fn turn(&mut self) {
        let now = self.env.now();
        let wait = self
            .waiting
            .peek()
            .map_or(LOOK, |first| first.due.saturating_duration_since(now))
            .min(LOOK);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let ready: Vec<Host> = {
            let hosts: Vec<Host> = self.devices.keys().copied().collect();
            let mut polled: Vec<PollFd<'_>> = self
                .devices
                .values()
                .map(|device| PollFd::new(device, PollFlags::IN))
                .collect();
            // Interrupted: the next turn looks again.
            let _ = poll(&mut polled, Some(&timeout));
            hosts
                .into_iter()
                .zip(polled)
                .filter(|(_, polled)| polled.revents().contains(PollFlags::IN))
                .map(|(host, _)| host)
                .collect()
        };
        for source in ready {
            self.drain(source);
        }
        let now = self.env.now();
        while self.waiting.peek().is_some_and(|first| first.due <= now) {
            if let Some(packet) = self.waiting.pop() {
                self.deliver(packet.target, &packet.bytes);
            }
        }
    }

    fn drain(&mut self, source: Host) {
        let mut buffer = [0; PACKET_BYTES_MAX];
        // A bounded number, so that one busy host does not starve the others.
        for _ in 0..64 {
            let Some(device) = self.devices.get_mut(&source) else {
                return;
            };
            match device.read(&mut buffer) {
                Ok(count) if count > 0 => {
                    // For each packet anew: what was sent after a cut does not pass it.
                    let table = self.table.borrow().clone();
                    self.forward(source, &buffer[..count], &table);
                }
                _ => return,
            }
        }
    }

    fn forward(&mut self, source: Host, bytes: &[u8], table: &Wiring) {
        let Some((_, address)) = packet::ends(bytes) else {
            return;
        };
        let Some(target) = Namespaces::host(address) else {
            return;
        };
        let way = (source, target);
        let link = table.link(source, target);
        match link.cut {
            Cut::Silent => {
                table.touch(way, Touch::Cut);
                return;
            }
            Cut::Reset => {
                table.touch(way, Touch::Cut);
                if let Some(reset) = packet::reset_for(bytes) {
                    self.deliver(source, &reset);
                }
                return;
            }
            Cut::Open => {}
        }
        if link == Link::default() {
            self.deliver(target, bytes);
            return;
        }
        if self.draw(link.loss_permille) {
            table.touch(way, Touch::Lost);
            return;
        }
        if link.bytes_per_second.is_some() {
            table.touch(way, Touch::Throttled);
        }
        if let Some(mut due) = self.due(way, link, bytes.len()) {
            table.touch(way, Touch::Late);
            if self.draw(link.reorder_permille) {
                table.touch(way, Touch::Overtaken);
                due += OVERTAKEN_BY;
            }
            self.wait(due, target, bytes);
            if self.draw(link.duplicate_permille) {
                table.touch(way, Touch::Doubled);
                self.wait(due, target, bytes);
            }
        }
    }

    fn draw(&mut self, permille: u16) -> bool {
        permille > 0 && self.chance.below(1000) < u64::from(permille)
    }

    /// When a packet arrives; `None` if the queue before a slow link is full.
    fn due(&mut self, way: (Host, Host), link: Link, bytes: usize) -> Option<Instant> {
        let now = self.env.now();
        let mut due = now;
        if let Some(rate) = link.bytes_per_second {
            let free_at = self.free_at.entry(way).or_insert(now);
            if free_at.saturating_duration_since(now) > QUEUE_MAX {
                return None;
            }
            let micros = bytes as u64 * 1_000_000 / rate.max(1);
            *free_at = (*free_at).max(now) + Duration::from_micros(micros);
            due = *free_at;
        }
        let jitter_micros = u64::try_from(link.jitter.as_micros()).unwrap_or(u64::MAX);
        if jitter_micros > 0 {
            due += Duration::from_micros(self.chance.below(jitter_micros));
        }
        Some(due + link.delay)
    }

    fn wait(&mut self, due: Instant, target: Host, bytes: &[u8]) {
        if self.waiting.len() >= WAITING_MAX {
            return;
        }
        self.next_number += 1;
        self.waiting.push(Waiting {
            due,
            number: self.next_number,
            target,
            bytes: bytes.to_vec(),
        });
    }

    fn deliver(&mut self, target: Host, bytes: &[u8]) {
        if let Some(device) = self.devices.get_mut(&target) {
            // A full device drops the packet, as any queue does; TCP sends it again.
            let _ = device.write(bytes);
        }
    }
}
