//! Connections to the brokers of a cluster, one to each, made when needed.
//!
//! Each producer, each reader and the rest of the client has a pool of its own: on one connection
//! a broker answers in order, so a long poll would hold up whatever stood behind it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::Net;
use super::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::metadata::{BrokerInfo, ClusterImage};
use crate::sync::{AsyncLock, Lock};

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A broker that the metadata names.
    Node(i32),
    /// A bootstrap server, by its place in the list.
    Seed(usize),
}

pub(crate) struct Pool {
    net: Arc<Net>,
    ends: Lock<HashMap<Peer, Arc<End>>>,
}

/// One peer of the pool.
struct End {
    current: Lock<Option<Arc<Connection>>>,
    /// Held by the one task that connects; the others wait for its result.
    gate: AsyncLock<Attempts>,
}

#[derive(Default)]
struct Attempts {
    failures: u32,
    not_before: Option<Instant>,
}

impl End {
    fn live(&self) -> Option<Arc<Connection>> {
        let mut current = self.current.lock();
        if current
            .as_ref()
            .is_some_and(|connection| !connection.is_open())
        {
            *current = None;
        }
        current.clone()
    }
}

impl Pool {
    pub(crate) fn new(net: Arc<Net>) -> Pool {
        Pool {
            net,
            ends: Lock::new(HashMap::new()),
        }
    }

    fn end(&self, peer: &Peer) -> Arc<End> {
        let mut ends = self.ends.lock();
        if let Some(end) = ends.get(peer) {
            return end.clone();
        }
        let end = Arc::new(End {
            current: Lock::new(None),
            gate: AsyncLock::new(Attempts::default()),
        });
        ends.insert(peer.clone(), end.clone());
        end
    }

    /// The connection to `peer`, if there is one.
    pub(crate) fn live(&self, peer: &Peer) -> Option<Arc<Connection>> {
        self.end(peer).live()
    }

    /// The connection to a broker of `image`; connects if there is none, after the backoff of
    /// earlier failures.
    ///
    /// Cancel-safe: dropped halfway, nothing is left behind.
    ///
    /// # Errors
    /// Kind Disconnected; Unsupported where the other side is no broker of ours.
    pub(crate) async fn node(
        &self,
        image: &ClusterImage,
        id: i32,
    ) -> Result<Arc<Connection>, Error> {
        let Some(broker) = image.brokers.get(&id) else {
            let message = format!("broker {id} is not in the metadata");
            return Err(Error::new(ErrorKind::Disconnected, message));
        };
        let BrokerInfo {
            host, port, label, ..
        } = &**broker;
        let stale = |connection: &Connection| connection.label() != label;
        let end = self.end(&Peer::Node(id));
        if let Some(connection) = end.live().filter(|connection| stale(connection)) {
            // The broker has moved to another address.
            connection.close(Error::new(ErrorKind::Disconnected, "the broker has moved"));
        }
        self.connected(&end, label, host, *port).await
    }

    /// The connection to the bootstrap server at `place`.
    ///
    /// # Errors
    /// As [`Pool::node`].
    pub(crate) async fn seed(&self, place: usize) -> Result<Arc<Connection>, Error> {
        let server = self.net.settings.bootstrap_servers.get(place);
        // `parse_servers` let only host:port pass.
        let parts = server.and_then(|server| server.rsplit_once(':'));
        let Some((host, port)) = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)))
        else {
            return Err(Error::config(format!(
                "no bootstrap server at place {place}"
            )));
        };
        let label: Arc<str> = format!("{host}:{port}").into();
        self.connected(&self.end(&Peer::Seed(place)), &label, host, port)
            .await
    }

    async fn connected(
        &self,
        end: &End,
        label: &Arc<str>,
        host: &str,
        port: u16,
    ) -> Result<Arc<Connection>, Error> {
        if let Some(connection) = end.live() {
            return Ok(connection);
        }
        let mut attempts = end.gate.lock().await;
        if let Some(connection) = end.live() {
            return Ok(connection);
        }
        if let Some(not_before) = attempts.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        match self.net.connect(label, host, port).await {
            Ok(connection) => {
                *attempts = Attempts::default();
                let connection = Arc::new(connection);
                *end.current.lock() = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                attempts.failures += 1;
                let wait = self
                    .net
                    .reconnect_backoff()
                    .wait(attempts.failures, &self.net.env);
                attempts.not_before = Some(self.net.env.now() + wait);
                Err(error)
            }
        }
    }

    /// Closes all connections; what is on its way fails.
    pub(crate) fn close(&self, why: &str) {
        for end in self.ends.lock().values() {
            if let Some(connection) = end.live() {
                connection.close(Error::new(ErrorKind::Closed, why));
            }
        }
    }
}
