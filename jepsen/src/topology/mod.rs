//! Where nodes live and how their bytes travel: on loopback behind proxies, or each in a network
//! namespace of its own behind a router that this program is.

mod diag;
pub mod link;
pub mod namespace;
pub mod packet;
pub mod proxy;
pub mod router;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use corduroy_env::Env;

use crate::chance::Chance;
use crate::clean::RunFile;
use link::{Host, Links};
use namespace::Namespaces;
use proxy::Proxies;

/// The ports of a node in its own namespace: nobody else is there.
const KAFKA_PORT: u16 = 9092;
const RPC_PORT: u16 = 33145;
const ADMIN_PORT: u16 = 9644;

/// Which kind of network to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyKind {
    /// 127.0.0.0/8 and TCP proxies; needs no rights.
    Loopback,
    /// Network namespaces and a packet router; needs root.
    Namespaces,
}

impl TopologyKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TopologyKind::Loopback => "loopback",
            TopologyKind::Namespaces => "namespaces",
        }
    }
}

/// The addresses of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who lives there.
    pub host: Host,
    /// Where it listens for clients.
    pub kafka_listen: SocketAddr,
    /// What clients are told.
    pub kafka: SocketAddr,
    /// Where it listens for nodes.
    pub rpc_listen: SocketAddr,
    /// What nodes are told.
    pub rpc: SocketAddr,
    /// Metrics and health; the harness alone goes there.
    pub admin: SocketAddr,
}

/// The network of a run.
pub struct Topology {
    /// What happens to bytes, by direction.
    pub links: Links,
    /// The nodes' addresses, by id from 1.
    pub places: Vec<Place>,
    kind: Built,
}

enum Built {
    Loopback(Proxies),
    Namespaces(Namespaces),
}

impl Topology {
    /// Builds the network for `nodes` nodes. What it makes on the machine is noted in `run_file`
    /// first.
    ///
    /// # Errors
    /// What the operating system refused.
    pub async fn build(
        env: &Env,
        kind: TopologyKind,
        nodes: u8,
        seed: u64,
        run_file: &mut RunFile,
    ) -> anyhow::Result<Topology> {
        let links = Links::default();
        match kind {
            TopologyKind::Loopback => {
                let proxies = Proxies::new(env, links.watch());
                let mut places = Vec::new();
                for id in 1..=nodes {
                    places.push(loopback_place(env, &proxies, id).await?);
                }
                Ok(Topology {
                    links,
                    places,
                    kind: Built::Loopback(proxies),
                })
            }
            TopologyKind::Namespaces => {
                let namespaces =
                    Namespaces::build(env, nodes, links.watch(), Chance::fork(seed, 3), run_file)?;
                let places = (1..=nodes)
                    .map(|id| {
                        let ip = Namespaces::address(Host::node(id));
                        let at = |port| SocketAddr::from((ip, port));
                        Place {
                            host: Host::node(id),
                            kafka_listen: at(KAFKA_PORT),
                            kafka: at(KAFKA_PORT),
                            rpc_listen: at(RPC_PORT),
                            rpc: at(RPC_PORT),
                            admin: at(ADMIN_PORT),
                        }
                    })
                    .collect();
                Ok(Topology {
                    links,
                    places,
                    kind: Built::Namespaces(namespaces),
                })
            }
        }
    }

    /// Runs `start` where a process of this host belongs: what it spawns is born there.
    ///
    /// # Errors
    /// What entering the namespace, or `start`, says.
    pub fn within<T>(
        &self,
        host: Host,
        start: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        match &self.kind {
            Built::Loopback(_) => start(),
            Built::Namespaces(namespaces) => namespaces.within(host, start),
        }
    }

    /// Says which process a node is; `None` when it has ended.
    pub fn set_pid(&self, host: Host, pid: Option<u32>) {
        if let Built::Loopback(proxies) = &self.kind {
            let mut pids = proxies.pids().borrow_mut();
            match pid {
                Some(pid) => pids.insert(host, pid),
                None => pids.remove(&host),
            };
        }
    }
}

async fn loopback_place(env: &Env, proxies: &Proxies, id: u8) -> anyhow::Result<Place> {
    let host = Host::node(id);
    let local = Ipv4Addr::LOCALHOST;
    let mut free = Vec::new();
    for _ in 0..3 {
        let held = env.listen(SocketAddr::from((local, 0))).await?;
        free.push((held.local_addr()?, held));
    }
    let [kafka_listen, rpc_listen, admin] = [free[0].0, free[1].0, free[2].0];
    let open = async |target| {
        proxies
            .open(local, host, target)
            .await
            .with_context(|| format!("cannot open a proxy before {host}"))
    };
    Ok(Place {
        host,
        kafka_listen,
        kafka: open(kafka_listen).await?,
        rpc_listen,
        rpc: open(rpc_listen).await?,
        admin,
    })
}
