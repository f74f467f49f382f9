//! Brokers as this client reaches them: typed calls over pipelined connections.

pub(crate) mod api;
pub(crate) mod connection;
mod frame;
pub(crate) mod pool;

use std::net::SocketAddr;
use std::sync::Arc;

use corduroy_env::{Env, Stream};
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::config::ClientSettings;
use crate::error::{Error, ErrorKind};
use crate::task::Tasks;
use connection::Connection;

/// What every connection of a client shares.
pub(crate) struct Net {
    pub(crate) env: Env,
    pub(crate) settings: ClientSettings,
    pub(crate) tasks: Tasks,
}

impl Net {
    /// How long to wait between tries of a call.
    pub(crate) fn retry_backoff(&self) -> Backoff {
        Backoff {
            first: self.settings.retry_backoff,
            max: self.settings.retry_backoff_max,
        }
    }

    fn reconnect_backoff(&self) -> Backoff {
        Backoff {
            first: self.settings.reconnect_backoff,
            max: self.settings.reconnect_backoff_max,
        }
    }

    /// Connects to `host:port` and agrees on versions, within the setup timeout.
    ///
    /// Cancel-safe: dropped halfway, the connection is closed.
    async fn connect(&self, label: &Arc<str>, host: &str, port: u16) -> Result<Connection, Error> {
        let limit = self.settings.connection_setup_timeout;
        let connected = timeout(limit, async {
            let stream = self.open(host, port).await?;
            Connection::establish(self, stream, label.clone()).await
        });
        match connected.await {
            Ok(connected) => connected.map_err(|error| error.with_broker(label)),
            Err(_elapsed) => {
                let message =
                    format!("no connection within {limit:?} (socket.connection.setup.timeout.ms)");
                Err(Error::new(ErrorKind::Disconnected, message).with_broker(label))
            }
        }
    }

    /// Tries all addresses of the name in turn.
    async fn open(&self, host: &str, port: u16) -> Result<Stream, Error> {
        let mut last = None;
        for address in resolve(host, port).await? {
            match self.env.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(match last {
            Some(error) => Error::new(ErrorKind::Disconnected, format!("cannot connect: {error}"))
                .with_source(error),
            None => Error::new(ErrorKind::Disconnected, format!("{host} has no address")),
        })
    }
}

/// The addresses of a host, IPv4 first: brokers on a developer's machine often listen there only.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = bare.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // Names exist outside of simulations only: those use addresses.
    let found = tokio::net::lookup_host((bare, port))
        .await
        .map_err(|error| {
            Error::new(
                ErrorKind::Disconnected,
                format!("cannot resolve {host}: {error}"),
            )
            .with_source(error)
        })?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    Ok(addresses)
}
