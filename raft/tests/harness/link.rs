//! Links between nodes that a test can cut: a small proxy for each ordered pair.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use corduroy_env::{Env, Listener, ReadHalf, Stream, WriteHalf};
use corduroy_raft::Replica;
use corduroy_record::LogIndex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Until when a link carries what its dialler sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Whose log is looked at.
    pub node: i32,
    /// Nothing more passes once that log holds an entry at this index.
    pub index: LogIndex,
}

struct Link {
    addr: SocketAddr,
    /// Bytes stop, connections stay: what a dead network looks like.
    cut: Cell<bool>,
    /// Bytes that still pass from the dialler on; `None`: any number.
    budget: Cell<Option<usize>>,
    stop: Cell<Option<Stop>>,
    /// Connections made before the last cut are dead once it heals.
    era: Cell<u64>,
    changed: Notify,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// All links of a cluster.
pub struct Links {
    env: Env,
    targets: RefCell<BTreeMap<i32, SocketAddr>>,
    /// The replicas that run, by node.
    replicas: RefCell<BTreeMap<i32, Replica>>,
    links: RefCell<BTreeMap<(i32, i32), Rc<Link>>>,
}

impl Links {
    pub fn new(env: Env) -> Rc<Links> {
        Rc::new(Links {
            env,
            targets: RefCell::default(),
            replicas: RefCell::default(),
            links: RefCell::default(),
        })
    }

    /// The address at which `from` reaches `to`.
    pub async fn address(self: &Rc<Self>, from: i32, to: i32) -> SocketAddr {
        if let Some(link) = self.links.borrow().get(&(from, to)) {
            return link.addr;
        }
        let listener = self.listen().await;
        let link = Rc::new(Link {
            addr: listener.local_addr().expect("bound"),
            cut: Cell::new(false),
            budget: Cell::new(None),
            stop: Cell::new(None),
            era: Cell::new(0),
            changed: Notify::new(),
            task: RefCell::new(None),
        });
        self.serve(&link, listener, to);
        let addr = link.addr;
        self.links.borrow_mut().insert((from, to), link);
        addr
    }

    /// A port that stays ours while nobody listens on it: below those that the operating system
    /// gives to outgoing connections.
    async fn listen(&self) -> Listener {
        loop {
            let port = 10_000 + self.env.random_below(20_000);
            let addr = format!("127.0.0.1:{port}").parse().expect("an address");
            if let Ok(listener) = self.env.listen(addr).await {
                return listener;
            }
        }
    }

    fn serve(self: &Rc<Self>, link: &Rc<Link>, listener: Listener, to: i32) {
        let (links, serving) = (self.clone(), link.clone());
        let task = self.env.spawn_local(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let (links, link) = (links.clone(), serving.clone());
                let env = links.env.clone();
                env.spawn_local(async move { links.carry(&link, stream, to).await });
            }
        });
        *link.task.borrow_mut() = Some(task);
    }

    async fn carry(&self, link: &Rc<Link>, near: Stream, to: i32) {
        let era = link.era.get();
        let Some(target) = self.targets.borrow().get(&to).copied() else {
            return;
        };
        while link.cut.get() {
            link.changed.notified().await;
            if link.era.get() != era {
                return;
            }
        }
        let Ok(far) = self.env.connect(target).await else {
            return;
        };
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::select! {
            () = self.pump(link, era, Way::There, near_read, far_write) => {}
            () = self.pump(link, era, Way::Back, far_read, near_write) => {}
        }
    }

    /// Where a node listens now; `None`: nowhere, dials are refused.
    pub async fn set_target(self: &Rc<Self>, node: i32, target: Option<SocketAddr>) {
        match target {
            Some(target) => {
                self.targets.borrow_mut().insert(node, target);
            }
            None => {
                self.targets.borrow_mut().remove(&node);
            }
        }
        let links: Vec<Rc<Link>> = self
            .links
            .borrow()
            .iter()
            .filter(|((_, to), _)| *to == node)
            .map(|(_, link)| link.clone())
            .collect();
        for link in links {
            let task = link.task.borrow_mut().take();
            if let Some(task) = task {
                task.abort();
                // The port is free once the task has let go of its listener.
                let _ = task.await;
            }
            if target.is_some() {
                let listener = self.env.listen(link.addr).await.expect("the port is ours");
                self.serve(&link, listener, node);
            }
        }
    }

    /// The replica that a node runs now; `None`: it does not run.
    pub fn set_replica(&self, node: i32, replica: Option<Replica>) {
        let mut replicas = self.replicas.borrow_mut();
        match replica {
            Some(replica) => replicas.insert(node, replica),
            None => replicas.remove(&node),
        };
    }

    /// One way: what `from` sends on its connections to `to` passes until a log has come so far.
    /// Answers of `to` on the same connections pass. What is held up passes once the stop moves on.
    pub fn stop(&self, from: i32, to: i32, stop: Stop) {
        if let Some(link) = self.links.borrow().get(&(from, to)) {
            link.stop.set(Some(stop));
            link.changed.notify_waiters();
        }
    }

    fn has_stopped(&self, link: &Link) -> bool {
        link.stop.get().is_some_and(|stop| {
            let replicas = self.replicas.borrow();
            let replica = replicas.get(&stop.node);
            let last = replica.and_then(|replica| replica.log().state().last);
            last.is_some_and(|(_, index)| index >= stop.index)
        })
    }

    /// Cuts both directions between two nodes.
    pub fn cut(&self, a: i32, b: i32) {
        self.set(a, b, true);
    }

    /// After about `bytes` more, nothing that `from` sends on its connections to `to` is read.
    pub fn stall_after(&self, from: i32, to: i32, bytes: usize) {
        if let Some(link) = self.links.borrow().get(&(from, to)) {
            link.budget.set(Some(bytes));
        }
    }

    /// Whether that point has been reached.
    pub fn is_stalled(&self, from: i32, to: i32) -> bool {
        let links = self.links.borrow();
        links
            .get(&(from, to))
            .is_some_and(|link| link.budget.get() == Some(0))
    }

    /// Everything passes again, on new connections.
    pub fn unstall(&self, from: i32, to: i32) {
        if let Some(link) = self.links.borrow().get(&(from, to)) {
            link.budget.set(None);
            link.era.set(link.era.get() + 1);
            link.changed.notify_waiters();
        }
    }

    /// Heals both directions; connections of the time before are gone.
    pub fn heal(&self, a: i32, b: i32) {
        self.set(a, b, false);
    }

    pub fn heal_all(&self) {
        let pairs: Vec<(i32, i32)> = self.links.borrow().keys().copied().collect();
        for (a, b) in pairs {
            self.heal(a, b);
        }
    }

    fn set(&self, a: i32, b: i32, cut: bool) {
        for pair in [(a, b), (b, a)] {
            if let Some(link) = self.links.borrow().get(&pair) {
                let had_stopped = !cut && link.stop.take().is_some();
                if link.cut.replace(cut) == cut && !had_stopped {
                    continue;
                }
                if !cut {
                    link.era.set(link.era.get() + 1);
                }
                link.changed.notify_waiters();
            }
        }
    }

    /// Moves bytes while the link is whole.
    async fn pump(&self, link: &Link, era: u64, way: Way, mut from: ReadHalf, mut to: WriteHalf) {
        let mut buffer = vec![0; 64 << 10];
        let spent = || way == Way::There && link.budget.get() == Some(0);
        loop {
            while (link.cut.get() || spent()) && link.era.get() == era {
                link.changed.notified().await;
            }
            if link.era.get() != era {
                return;
            }
            let read = tokio::select! {
                read = from.read(&mut buffer) => read,
                () = link.changed.notified() => continue,
            };
            let Ok(bytes @ 1..) = read else { return };
            if way == Way::There
                && let Some(left) = link.budget.get()
            {
                link.budget.set(Some(left.saturating_sub(bytes)));
            }
            while way == Way::There && self.has_stopped(link) {
                link.changed.notified().await;
                if link.era.get() != era {
                    return;
                }
            }
            // Bytes read just as the link was cut are lost with it.
            if link.cut.get() {
                continue;
            }
            if to.write_all(&buffer[..bytes]).await.is_err() {
                return;
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}
