//! A network in memory: hosts, listeners, connections, and the weather between them.
//!
//! A connection keeps the order of its bytes, as TCP does; different connections overtake each
//! other. A cut link loses nothing that was sent on it: the sender's kernel sends again until it
//! heals, or one of the ends gives up. A dead host answers nobody; a host that came back resets
//! connections of the time before.

mod stream;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::{Listener, Network, NetworkFuture, SimulatedListener, Stream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::random::Random;
use crate::shared::Shared;
use crate::trace::Trace;
use crate::workload::CLIENTS;

use stream::{End, SimStream};

/// A machine of the simulation.
pub type Host = u16;

/// Bytes that one direction of a connection holds between writer and reader.
const WINDOW_BYTES: usize = 128 << 10;
/// Shortest and longest pause before a lost segment is sent again, in microseconds.
const RESEND_MICROS: (u64, u64) = (100_000, 400_000);
/// Shortest and longest latency of a link in fair weather, in microseconds.
const FAIR_MICROS: (u64, u64) = (100, 900);

/// The address of a host.
pub fn address_of(host: Host, port: u16) -> SocketAddr {
    let [high, low] = host.to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), port)
}

/// Clients share the weather, on however many machines they are.
fn link(from: Host, to: Host) -> (Host, Host) {
    (from.min(CLIENTS), to.min(CLIENTS))
}

fn host_of(addr: &SocketAddr) -> Option<Host> {
    match addr.ip() {
        IpAddr::V4(ip) => {
            let [.., high, low] = ip.octets();
            Some(Host::from_be_bytes([high, low]))
        }
        IpAddr::V6(_) => None,
    }
}

/// The network. Clone = the same network.
#[derive(Clone)]
pub struct Fabric {
    state: Shared<State>,
    changed: Arc<Notify>,
}

struct State {
    random: Random,
    trace: Trace,
    events: BinaryHeap<Reverse<Event>>,
    next_event: u64,
    hosts: BTreeMap<Host, HostState>,
    weather: BTreeMap<(Host, Host), Weather>,
    pipes: BTreeMap<u64, Pipe>,
    dials: BTreeMap<u64, Dial>,
    next_connection: u64,
    next_listener: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Instant,
    number: u64,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A dial reaches its target.
    Syn(u64),
    /// The answer reaches who dialled.
    Answer(u64),
    /// Bytes of this pipe may have arrived.
    Deliver(u64),
    /// The reader of this pipe hears that the connection is no more.
    Reset(u64),
}

#[derive(Default)]
struct HostState {
    down: bool,
    incarnation: u64,
    listeners: BTreeMap<u16, ListenerState>,
}

struct ListenerState {
    number: u64,
    /// Connections that nobody has accepted yet.
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
struct Weather {
    cut: bool,
    micros: (u64, u64),
}

struct Dial {
    from: Place,
    port: u16,
    target: SocketAddr,
    answer: Option<Result<(), io::ErrorKind>>,
    waker: Option<Waker>,
}

/// A host in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    host: Host,
    incarnation: u64,
}

/// One direction of a connection. Of connection `c`, pipe `2c` leads from who dialled.
struct Pipe {
    from: Place,
    to: Place,
    flight: VecDeque<(Instant, Segment)>,
    ready: VecDeque<Bytes>,
    ready_end: bool,
    held_bytes: usize,
    last_at: Instant,
    resend_at: Option<Instant>,
    broken: bool,
    ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
    writer_gone: bool,
}

enum Segment {
    Bytes(Bytes),
    End,
}

impl Fabric {
    /// A network in fair weather.
    pub fn new(random: Random, trace: Trace) -> Fabric {
        let state = State {
            random,
            trace,
            events: BinaryHeap::new(),
            next_event: 0,
            hosts: BTreeMap::new(),
            weather: BTreeMap::new(),
            pipes: BTreeMap::new(),
            dials: BTreeMap::new(),
            next_connection: 0,
            next_listener: 0,
        };
        Fabric {
            state: Shared::new(state),
            changed: Arc::default(),
        }
    }

    /// The network as one host has it.
    pub fn of(&self, host: Host) -> HostNetwork {
        self.state.lock().hosts.entry(host).or_default();
        HostNetwork {
            fabric: self.clone(),
            host,
        }
    }

    /// Moves what is on its way, for ever.
    pub async fn run(self) {
        loop {
            let next = self.state.lock().run_due();
            match next {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// The host's process is gone. If the machine lives, its kernel tells the peers.
    pub fn take_down(&self, host: Host, machine_lives: bool) {
        let mut state = self.state.lock();
        let entry = state.hosts.entry(host).or_default();
        entry.down = true;
        entry.incarnation += 1;
        entry.listeners.clear();
        state.dials.retain(|_, dial| dial.from.host != host);
        if machine_lives {
            let open: Vec<u64> = state
                .pipes
                .iter()
                .filter(|(_, pipe)| pipe.from.host == host && !pipe.broken)
                .map(|(number, _)| *number)
                .collect();
            for number in open {
                state.send(number, What::Reset(number));
            }
        }
        self.changed.notify_one();
    }

    /// The host takes dials again.
    pub fn bring_up(&self, host: Host) {
        self.state.lock().hosts.entry(host).or_default().down = false;
    }

    /// Cuts or heals one direction.
    pub fn cut(&self, from: Host, to: Host, cut: bool) {
        self.state.lock().weather_mut(from, to).cut = cut;
    }

    /// Sets the latency of one direction, in microseconds; `None` for fair weather.
    pub fn delay(&self, from: Host, to: Host, micros: Option<(u64, u64)>) {
        self.state.lock().weather_mut(from, to).micros = micros.unwrap_or(FAIR_MICROS);
    }
}

impl State {
    fn weather_of(&self, from: Host, to: Host) -> Weather {
        let fair = Weather {
            cut: false,
            micros: FAIR_MICROS,
        };
        self.weather.get(&link(from, to)).copied().unwrap_or(fair)
    }

    fn weather_mut(&mut self, from: Host, to: Host) -> &mut Weather {
        self.weather.entry(link(from, to)).or_insert(Weather {
            cut: false,
            micros: FAIR_MICROS,
        })
    }

    fn place(&self, host: Host) -> Place {
        let incarnation = self.hosts.get(&host).map_or(0, |host| host.incarnation);
        Place { host, incarnation }
    }

    fn lives(&self, place: Place) -> bool {
        let host = self.hosts.get(&place.host);
        host.is_some_and(|host| !host.down && host.incarnation == place.incarnation)
    }

    fn is_down(&self, host: Host) -> bool {
        self.hosts.get(&host).is_none_or(|host| host.down)
    }

    fn schedule(&mut self, at: Instant, what: What) {
        let number = self.next_event;
        self.next_event += 1;
        self.events.push(Reverse(Event { at, number, what }));
    }

    /// When something sent now from one host arrives at another.
    fn arrival(&mut self, from: Host, to: Host) -> Instant {
        let (low, high) = self.weather_of(from, to).micros;
        let micros = if from == to {
            self.random.between(10, 50)
        } else {
            self.random.between(low, high + 1)
        };
        Instant::now() + Duration::from_micros(micros)
    }

    fn resend(&mut self) -> Instant {
        let micros = self.random.between(RESEND_MICROS.0, RESEND_MICROS.1);
        Instant::now() + Duration::from_micros(micros)
    }

    /// Sends something behind what the pipe carries already.
    fn send(&mut self, number: u64, what: What) {
        let Some(pipe) = self.pipes.get(&number) else {
            return;
        };
        let (from, to, last) = (pipe.from.host, pipe.to.host, pipe.last_at);
        let at = self.arrival(from, to).max(last);
        if let Some(pipe) = self.pipes.get_mut(&number) {
            pipe.last_at = at;
        }
        self.schedule(at, what);
    }

    fn run_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let next = self.events.peek()?.0.at;
            if next > now {
                return Some(next);
            }
            let Reverse(event) = self.events.pop()?;
            match event.what {
                What::Syn(dial) => self.syn(dial),
                What::Answer(dial) => self.answer(dial),
                What::Deliver(pipe) => self.deliver(pipe, now),
                What::Reset(pipe) => self.reset(pipe),
            }
        }
    }

    fn syn(&mut self, number: u64) {
        let Some(dial) = self.dials.get(&number) else {
            return;
        };
        let (from, target) = (dial.from.host, dial.target);
        let to = host_of(&target);
        let reaches = to.is_some_and(|to| !self.weather_of(from, to).cut && !self.is_down(to));
        if !reaches {
            let at = self.resend();
            self.schedule(at, What::Syn(number));
            return;
        }
        let to = to.unwrap_or_default();
        let at = self.arrival(to, from);
        self.schedule(at, What::Answer(number));
    }

    fn answer(&mut self, number: u64) {
        let Some(dial) = self.dials.get(&number) else {
            return;
        };
        let (from, target, port) = (dial.from, dial.target, dial.port);
        let to = host_of(&target).unwrap_or_default();
        if self.weather_of(to, from.host).cut || self.is_down(to) {
            let at = self.resend();
            self.schedule(at, What::Syn(number));
            return;
        }
        let there = self.place(to);
        let listening = self
            .hosts
            .get(&to)
            .is_some_and(|host| host.listeners.contains_key(&target.port()));
        self.trace.note(
            if listening { "connected" } else { "refused" },
            &[u64::from(from.host), u64::from(to), u64::from(port)],
            &[],
        );
        if listening {
            self.pipes.insert(2 * number, Pipe::new(from, there));
            self.pipes.insert(2 * number + 1, Pipe::new(there, from));
            let host = self.hosts.get_mut(&to);
            if let Some(listener) = host.and_then(|host| host.listeners.get_mut(&target.port())) {
                listener.waiting.push_back(number);
                wake(&mut listener.waker);
            }
        }
        if let Some(dial) = self.dials.get_mut(&number) {
            let refused = Err(io::ErrorKind::ConnectionRefused);
            dial.answer = Some(if listening { Ok(()) } else { refused });
            wake(&mut dial.waker);
        }
    }

    fn deliver(&mut self, number: u64, now: Instant) {
        let Some(pipe) = self.pipes.get(&number) else {
            return;
        };
        let (from, to) = (pipe.from, pipe.to);
        if pipe.broken || pipe.flight.front().is_none_or(|(at, _)| *at > now) {
            return;
        }
        if self.weather_of(from.host, to.host).cut {
            if pipe.resend_at.is_none_or(|at| at <= now) {
                let at = self.resend();
                self.schedule(at, What::Deliver(number));
                if let Some(pipe) = self.pipes.get_mut(&number) {
                    pipe.resend_at = Some(at);
                }
            }
            return;
        }
        if self.is_down(to.host) {
            if let Some(pipe) = self.pipes.get_mut(&number) {
                pipe.drop_flight();
            }
            return;
        }
        let there = self.lives(to);
        let Some(pipe) = self.pipes.get_mut(&number) else {
            return;
        };
        if !there || pipe.reader_gone {
            // Bytes for nobody: the kernel there resets the connection.
            let had_bytes = pipe
                .flight
                .iter()
                .any(|(_, segment)| matches!(segment, Segment::Bytes(_)));
            pipe.drop_flight();
            wake(&mut pipe.writer);
            if had_bytes || !there {
                self.send(number ^ 1, What::Reset(number ^ 1));
            }
            return;
        }
        while let Some((at, _)) = pipe.flight.front()
            && *at <= now
        {
            match pipe.flight.pop_front() {
                Some((_, Segment::Bytes(bytes))) => {
                    let ends = [number, u64::from(from.host), u64::from(to.host)];
                    self.trace.note("bytes", &ends, &bytes);
                    pipe.ready.push_back(bytes);
                }
                Some((_, Segment::End)) => pipe.ready_end = true,
                None => {}
            }
        }
        wake(&mut pipe.reader);
    }

    fn reset(&mut self, number: u64) {
        let Some(pipe) = self.pipes.get(&number) else {
            return;
        };
        // A reset that the network loses is not sent again.
        if self.weather_of(pipe.from.host, pipe.to.host).cut {
            return;
        }
        let ends = [u64::from(pipe.from.host), u64::from(pipe.to.host)];
        self.trace.note("reset", &ends, &[]);
        for number in [number, number ^ 1] {
            if let Some(pipe) = self.pipes.get_mut(&number) {
                pipe.broken = true;
                pipe.drop_flight();
                wake(&mut pipe.reader);
                wake(&mut pipe.writer);
            }
        }
    }

    /// Forgets a connection that neither end holds.
    fn forget_unheld(&mut self, connection: u64) {
        let pipes = [2 * connection, 2 * connection + 1];
        let held = pipes.iter().any(|number| {
            let pipe = self.pipes.get(number);
            pipe.is_some_and(|pipe| {
                !(pipe.reader_gone && pipe.writer_gone && pipe.flight.is_empty())
            })
        });
        if !held {
            for number in pipes {
                self.pipes.remove(&number);
            }
        }
    }
}

impl Pipe {
    fn new(from: Place, to: Place) -> Pipe {
        Pipe {
            from,
            to,
            flight: VecDeque::new(),
            ready: VecDeque::new(),
            ready_end: false,
            held_bytes: 0,
            last_at: Instant::now(),
            resend_at: None,
            broken: false,
            ended: false,
            reader: None,
            writer: None,
            reader_gone: false,
            writer_gone: false,
        }
    }

    fn drop_flight(&mut self) {
        for (_, segment) in self.flight.drain(..) {
            if let Segment::Bytes(bytes) = segment {
                self.held_bytes = self.held_bytes.saturating_sub(bytes.len());
            }
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// The network as one host has it.
pub struct HostNetwork {
    fabric: Fabric,
    host: Host,
}

impl Network for HostNetwork {
    fn listen(&self, addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        Box::pin(async move {
            let mut state = self.fabric.state.lock();
            let number = state.next_listener;
            state.next_listener += 1;
            let place = state.place(self.host);
            let host = state.hosts.entry(self.host).or_default();
            if host.listeners.contains_key(&addr.port()) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let listener = ListenerState {
                number,
                waiting: VecDeque::new(),
                waker: None,
            };
            host.listeners.insert(addr.port(), listener);
            Ok(Listener::simulated(Box::new(SimListener {
                fabric: self.fabric.clone(),
                place,
                number,
                addr: address_of(self.host, addr.port()),
            })))
        })
    }

    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        let (fabric, host) = (self.fabric.clone(), self.host);
        Box::pin(async move {
            let (number, port) = {
                let mut state = fabric.state.lock();
                let number = state.next_connection;
                state.next_connection += 1;
                let from = state.place(host);
                let port = 32_768 + (number % 28_000) as u16;
                let dial = Dial {
                    from,
                    port,
                    target: addr,
                    answer: None,
                    waker: None,
                };
                state.dials.insert(number, dial);
                let to = host_of(&addr).ok_or(io::ErrorKind::AddrNotAvailable)?;
                let at = state.arrival(host, to);
                state.schedule(at, What::Syn(number));
                (number, port)
            };
            fabric.changed.notify_one();
            let mut pending = PendingDial {
                fabric: fabric.clone(),
                number,
                taken: false,
            };
            poll_fn(|cx| {
                let mut state = fabric.state.lock();
                let Some(dial) = state.dials.get_mut(&number) else {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionAborted)));
                };
                match dial.answer {
                    Some(answer) => Poll::Ready(answer.map_err(io::Error::from)),
                    None => {
                        dial.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await?;
            pending.taken = true;
            drop(pending);
            let local = address_of(host, port);
            Ok(SimStream::stream(fabric, number, End::Dialled, local, addr))
        })
    }
}

/// Forgets a dial that nobody waits for any more, with the connection that it may have become.
struct PendingDial {
    fabric: Fabric,
    number: u64,
    taken: bool,
}

impl Drop for PendingDial {
    fn drop(&mut self) {
        let mut state = self.fabric.state.lock();
        let dial = state.dials.remove(&self.number);
        if !self.taken && dial.is_some_and(|dial| dial.answer == Some(Ok(()))) {
            if let Some(pipe) = state.pipes.get_mut(&(2 * self.number)) {
                pipe.writer_gone = true;
            }
            if let Some(pipe) = state.pipes.get_mut(&(2 * self.number + 1)) {
                pipe.reader_gone = true;
            }
            state.send(2 * self.number, What::Reset(2 * self.number));
        }
    }
}

struct SimListener {
    fabric: Fabric,
    place: Place,
    number: u64,
    addr: SocketAddr,
}

impl SimulatedListener for SimListener {
    fn accept(&self) -> NetworkFuture<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (connection, peer) = poll_fn(|cx| {
                let mut state = self.fabric.state.lock();
                let host = state.hosts.entry(self.place.host).or_default();
                let listener = host.listeners.get_mut(&self.addr.port());
                // A dead process's listener hears nothing any more.
                let Some(listener) = listener.filter(|found| found.number == self.number) else {
                    return Poll::Pending;
                };
                let Some(connection) = listener.waiting.pop_front() else {
                    listener.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                };
                let dialler = state.pipes.get(&(2 * connection)).map(|pipe| pipe.from);
                let host = dialler.map_or(0, |place| place.host);
                let port = 32_768 + (connection % 28_000) as u16;
                Poll::Ready((connection, address_of(host, port)))
            })
            .await;
            let fabric = self.fabric.clone();
            let stream = SimStream::stream(fabric, connection, End::Accepted, self.addr, peer);
            Ok((stream, peer))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.fabric.state.lock();
        let Some(host) = state.hosts.get_mut(&self.place.host) else {
            return;
        };
        let ours = host
            .listeners
            .get(&self.addr.port())
            .is_some_and(|listener| listener.number == self.number);
        if ours {
            host.listeners.remove(&self.addr.port());
        }
    }
}
