//! Links between nodes that a test can cut: a small proxy for each ordered pair.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use corduroy_env::{Env, Listener, ReadHalf, Stream, WriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

struct Link {
    addr: SocketAddr,
    /// Bytes stop, connections stay: what a dead network looks like.
    cut: Cell<bool>,
    /// Bytes that still pass from the dialler on; `None`: any number.
    budget: Cell<Option<usize>>,
    /// Connections made before the last cut are dead once it heals.
    era: Cell<u64>,
    changed: Notify,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// All links of a cluster.
pub struct Links {
    env: Env,
    targets: RefCell<BTreeMap<i32, SocketAddr>>,
    links: RefCell<BTreeMap<(i32, i32), Rc<Link>>>,
}

impl Links {
    pub fn new(env: Env) -> Rc<Links> {
        Rc::new(Links {
            env,
            targets: RefCell::default(),
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
            () = pump(link, era, Way::There, near_read, far_write) => {}
            () = pump(link, era, Way::Back, far_read, near_write) => {}
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
            if let Some(link) = self.links.borrow().get(&pair)
                && link.cut.replace(cut) != cut
            {
                if !cut {
                    link.era.set(link.era.get() + 1);
                }
                link.changed.notify_waiters();
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

/// Moves bytes while the link is whole.
async fn pump(link: &Link, era: u64, way: Way, mut from: ReadHalf, mut to: WriteHalf) {
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
        // Bytes read just as the link was cut are lost with it.
        if link.cut.get() {
            continue;
        }
        if to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}
