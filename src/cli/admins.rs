//! Where the nodes' admin ports are.
//!
//! Kafka's protocol has no word for them, but a node names its own among its settings
//! (`admin.listen`), and one admin port knows all others.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};

use corduroy_client::{BrokerDescription, Client, ConfigResource};
use corduroy_env::Env;
use serde::Deserialize;

use super::error::{CliError, CliResult};
use super::http;

/// How often each node is asked for its settings: a node tells only its own, and the client asks
/// whichever it is connected to.
const ROUNDS_MAX: usize = 3;

/// The admin ports that we know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admins {
    first: SocketAddr,
    by_node: BTreeMap<i32, SocketAddr>,
    members: Vec<Member>,
}

/// A member of the cluster, running or not, as an admin port shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Member {
    pub node: i32,
    /// Where clients reach it.
    pub kafka: String,
    pub rack: Option<String>,
    admin: Option<String>,
    /// For how long it has not answered the node that was asked.
    pub down_seconds: Option<u64>,
}

impl Admins {
    /// One that the user named.
    pub fn given(addr: SocketAddr) -> Admins {
        Admins {
            first: addr,
            by_node: BTreeMap::new(),
            members: Vec::new(),
        }
    }

    /// All members of the cluster, those that do not run too; none where nobody was asked.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Any of them.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// That of a node.
    pub fn of(&self, node: i32) -> Option<SocketAddr> {
        self.by_node.get(&node).copied()
    }
}

/// The part of an admin port's `/v1/status` that we need.
#[derive(Deserialize)]
struct StatusBody {
    nodes: Vec<Member>,
}

/// Finds the admin ports of the cluster.
///
/// # Errors
/// None answers; the message says how to name one.
pub async fn find_admins(env: &Env, client: &Client) -> CliResult<Admins> {
    let brokers = describe_brokers(client).await?;
    for _ in 0..ROUNDS_MAX {
        for broker in &brokers {
            let Some(addr) = admin_of(client, broker).await else {
                continue;
            };
            if let Some(members) = ask_for_all(env, addr).await {
                let known = members.iter();
                let by_node = known
                    .filter_map(|member| Some((member.node, member.admin.as_ref()?.parse().ok()?)));
                return Ok(Admins {
                    first: addr,
                    by_node: by_node.collect(),
                    members,
                });
            }
        }
    }
    Err(CliError::failed("no node tells where its admin port is")
        .help("name one with --admin HOST:PORT; a node prints its own when it starts")
        .into())
}

async fn describe_brokers(client: &Client) -> CliResult<Vec<BrokerDescription>> {
    let cluster = client
        .admin()
        .describe_cluster()
        .await
        .map_err(|error| super::client_error(&error, "cannot describe the cluster"))?;
    Ok(cluster.brokers)
}

/// What a broker says about itself; `None` if somebody else was asked, or it has no admin port.
async fn admin_of(client: &Client, broker: &BrokerDescription) -> Option<SocketAddr> {
    let configs = client
        .admin()
        .describe_configs(&ConfigResource::Broker(broker.id))
        .await
        .ok()?;
    let listen = configs
        .into_iter()
        .find(|config| config.name == "admin.listen")?
        .value?;
    reachable(listen.parse().ok()?, &broker.host)
}

/// An address to connect to: a node that listens everywhere is reached by the host that its
/// clients use. A free port that was asked for (0) is not known.
fn reachable(listen: SocketAddr, host: &str) -> Option<SocketAddr> {
    if listen.port() == 0 {
        return None;
    }
    if !listen.ip().is_unspecified() {
        return Some(listen);
    }
    (host, listen.port()).to_socket_addrs().ok()?.next()
}

async fn ask_for_all(env: &Env, addr: SocketAddr) -> Option<Vec<Member>> {
    let answer = http::ask(env, addr, "GET", "/v1/status").await.ok()?;
    let status: StatusBody = serde_json::from_str(&answer.body).ok()?;
    Some(status.nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_connect_to() {
        let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let local = parse("127.0.0.1:9644");
        assert_eq!(reachable(local, "ignored"), Some(local));
        assert_eq!(reachable(parse("0.0.0.0:9644"), "127.0.0.1"), Some(local));
        assert_eq!(reachable(parse("127.0.0.1:0"), "127.0.0.1"), None);
    }
}
