//! The client: one cluster, and the handles that are made from it.

use std::sync::Arc;
use std::time::Duration;

use corduroy_env::Env;
use tokio::time::{Instant, sleep_until};

use crate::admin::Admin;
use crate::config::{self, Settings, parse_properties};
use crate::error::{Error, ErrorKind, Outcome};
use crate::group::GroupBuilder;
use crate::metadata::{ClusterImage, Metadata};
use crate::net::Net;
use crate::net::api::Api;
use crate::net::connection::Connection;
use crate::net::pool::Peer;
use crate::producer::ProducerBuilder;
use crate::reader::ReaderBuilder;
use crate::task::Tasks;

/// Longest wait for one answer of a call that any broker can answer: another one is asked then.
const ANY_WAIT_MAX: Duration = Duration::from_secs(5);

/// What the client and all its handles share.
pub(crate) struct ClientShared {
    pub(crate) net: Arc<Net>,
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) settings: Settings,
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        self.metadata.close();
    }
}

/// A client of one cluster. Cheap to clone, `Send` and `Sync`; producers, readers and admin handles
/// made from it keep the cluster's metadata and background task alive.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

impl Client {
    /// Connects with the default settings to a `host:port` list of any of the cluster's brokers.
    ///
    /// # Errors
    /// Config; Disconnected, RequestTimeout or Unsupported where no broker answers as one.
    pub async fn connect(bootstrap_servers: &str) -> Result<Client, Error> {
        Client::builder()
            .bootstrap_servers(bootstrap_servers)
            .connect()
            .await
    }

    /// Connects with the settings of a standard Kafka client's `.properties` text.
    ///
    /// # Errors
    /// As [`Client::connect`]; unknown and unsupported settings are Config errors.
    pub async fn from_properties(text: &str) -> Result<Client, Error> {
        Client::builder().properties(text).connect().await
    }

    /// Sets up a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            settings: Settings::default(),
            env: None,
            error: None,
        }
    }

    /// Sets up a producer.
    pub fn producer(&self) -> ProducerBuilder {
        ProducerBuilder::new(self.shared.clone(), self.shared.settings.clone())
    }

    /// Sets up a reader of one topic, without a group.
    pub fn read(&self, topic: impl Into<String>) -> ReaderBuilder {
        ReaderBuilder::new(self.shared.clone(), topic.into())
    }

    /// Sets up a member of a group.
    pub fn group(&self, id: impl Into<String>) -> GroupBuilder {
        GroupBuilder::new(self.shared.clone(), id.into())
    }

    /// The cluster's topics, configurations, groups and offsets.
    pub fn admin(&self) -> Admin {
        Admin::new(self.shared.clone())
    }

    /// The cluster's id, as its brokers told it.
    pub fn cluster_id(&self) -> Option<String> {
        self.shared.metadata.image().cluster_id.clone()
    }

    /// The broker to which topic changes go, as a broker told last; `None` where it knew none, as
    /// without a majority.
    pub fn controller(&self) -> Option<i32> {
        self.shared.metadata.image().controller
    }
}

/// Sets up a [`Client`].
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    settings: Settings,
    env: Option<Env>,
    error: Option<Error>,
}

impl ClientBuilder {
    /// Any property, by Kafka's name: of the client, and defaults for its producers and readers.
    /// A wrong one is told by [`connect`](ClientBuilder::connect).
    pub fn set(mut self, name: &str, value: &str) -> ClientBuilder {
        if let Err(error) = self.settings.apply(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// All properties of a `.properties` text.
    pub fn properties(mut self, text: &str) -> ClientBuilder {
        match parse_properties(text) {
            Ok(properties) => {
                for (name, value) in properties {
                    self = self.set(&name, &value);
                }
            }
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// `bootstrap.servers`: `host:port` list of brokers to ask first.
    pub fn bootstrap_servers(self, servers: &str) -> ClientBuilder {
        self.set("bootstrap.servers", servers)
    }

    /// `client.id`: name of this client in the brokers' logs.
    pub fn client_id(self, name: &str) -> ClientBuilder {
        self.set("client.id", name)
    }

    /// `request.timeout.ms`: longest wait for one answer.
    pub fn request_timeout(mut self, limit: Duration) -> ClientBuilder {
        self.settings.client.request_timeout = limit;
        self
    }

    /// `default.api.timeout.ms`: longest wait for an admin call with its retries.
    pub fn api_timeout(mut self, limit: Duration) -> ClientBuilder {
        self.settings.client.api_timeout = limit;
        self
    }

    /// The machine that the client runs on. Default: the real one.
    pub fn env(mut self, env: Env) -> ClientBuilder {
        self.env = Some(env);
        self
    }

    /// Connects: asks the bootstrap servers who the cluster's brokers are, and starts the task that
    /// keeps that up to date in the caller's runtime.
    ///
    /// Returns as soon as one broker has answered; tries for at most `default.api.timeout.ms`, and
    /// gives up earlier once every bootstrap server has refused.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(self) -> Result<Client, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.settings.client.bootstrap_servers.is_empty() {
            return Err(Error::config(
                "no bootstrap servers: set bootstrap.servers to a host:port list".to_owned(),
            ));
        }
        let net = Arc::new(Net {
            env: self.env.unwrap_or_else(Env::real),
            settings: self.settings.client.clone(),
            tasks: Tasks::current(),
        });
        let metadata = Metadata::new(net.clone());
        net.tasks.spawn(metadata.clone().run());
        let deadline = net.env.now() + net.settings.api_timeout;
        let shared = ClientShared {
            net,
            metadata,
            settings: self.settings,
        };
        shared.metadata.refresh(deadline).await?;
        Ok(Client {
            shared: Arc::new(shared),
        })
    }
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Any broker.
    Any,
    /// The controller, as the metadata names it.
    Controller,
    /// This broker.
    Node(i32),
}

impl ClientShared {
    /// `default.api.timeout.ms` from now.
    pub(crate) fn api_deadline(&self) -> Instant {
        self.net.env.now() + self.net.settings.api_timeout
    }

    /// Asks any broker, as [`ClientShared::ask`] does.
    pub(crate) async fn ask_any<A: Api>(
        &self,
        deadline: Instant,
        build: impl Fn(i16) -> A,
        check: impl Fn(&A::Response) -> Result<(), Error>,
    ) -> Result<A::Response, Error> {
        self.ask(Target::Any, deadline, build, check).await
    }

    /// Asks one broker after the other, each once, until one answers without an error that another
    /// one may not have. `check` finds the error in an answer.
    ///
    /// # Errors
    /// Kind NotServing if every broker that answered said so; else as [`ClientShared::ask_any`].
    pub(crate) async fn ask_each<A: Api>(
        &self,
        deadline: Instant,
        build: impl Fn(i16) -> A,
        check: impl Fn(&A::Response) -> Result<(), Error>,
    ) -> Result<A::Response, Error> {
        let mut refused = None;
        for peer in self.metadata.candidates() {
            let Ok(connection) = self.metadata.reach(&peer).await else {
                continue;
            };
            let left = deadline.saturating_duration_since(self.net.env.now());
            let limit = self.net.settings.request_timeout.min(ANY_WAIT_MAX);
            let Ok(response) = connection.call(limit.min(left), &build).await else {
                continue;
            };
            match check(&response) {
                Ok(()) => return Ok(response),
                Err(error) if error.kind() == ErrorKind::NotServing => {
                    refused = Some(error.with_api(A::NAME).with_broker(connection.label()));
                }
                Err(_) => {}
            }
        }
        match refused {
            Some(error) => Err(error),
            None => self.ask_any(deadline, build, check).await,
        }
    }

    /// Asks until somebody answers with something else than a retriable error. `check` finds the
    /// error in an answer; any other error, it returns as it is.
    ///
    /// # Errors
    /// The first error that is not retriable, or the last one before `deadline`. Its outcome is
    /// unknown if any try may have taken effect.
    pub(crate) async fn ask<A: Api>(
        &self,
        target: Target,
        deadline: Instant,
        build: impl Fn(i16) -> A,
        check: impl Fn(&A::Response) -> Result<(), Error>,
    ) -> Result<A::Response, Error> {
        let mut attempts = 0;
        let mut maybe_before = false;
        // A broker that answers and cannot help is not asked twice in a row where others are.
        let mut helpless = None;
        loop {
            attempts += 1;
            let asked = self
                .ask_once(target, helpless.as_ref(), deadline, &build)
                .await;
            let error = match asked {
                Ok((response, label, peer)) => match check(&response) {
                    Ok(()) => return Ok(response),
                    Err(error) => {
                        helpless = peer;
                        error.with_broker(&label)
                    }
                },
                Err(error) => error,
            };
            maybe_before |= error.outcome() == Outcome::Unknown;
            let wait = self.net.retry_backoff().wait(attempts, &self.net.env);
            let again = self.net.env.now() + wait;
            if !error.is_retriable() || again >= deadline {
                let outcome = if maybe_before {
                    Outcome::Unknown
                } else {
                    error.outcome()
                };
                let error = error.with_api(A::NAME).with_attempts(attempts);
                return Err(error.with_outcome(outcome));
            }
            tracing::debug!(api = A::NAME, attempts, %error, "trying again");
            sleep_until(again).await;
            // A new controller, new brokers: whatever it was, look again.
            let _ = self.metadata.refresh(deadline).await;
        }
    }

    async fn ask_once<A: Api>(
        &self,
        target: Target,
        helpless: Option<&Peer>,
        deadline: Instant,
        build: impl Fn(i16) -> A,
    ) -> Result<(A::Response, Arc<str>, Option<Peer>), Error> {
        let image = self.metadata.image();
        let (peer, connection) = match (target, image.controller) {
            (Target::Controller, Some(id)) | (Target::Node(id), _) => {
                (None, self.metadata.pool().node(&image, id).await?)
            }
            _ => {
                let (peer, connection) = self.any_connection(&image, helpless).await?;
                (Some(peer), connection)
            }
        };
        let left = deadline.saturating_duration_since(self.net.env.now());
        let limit = match target {
            Target::Any => self
                .net
                .settings
                .request_timeout
                .min(ANY_WAIT_MAX)
                .min(left),
            Target::Controller | Target::Node(_) => self.net.settings.request_timeout.min(left),
        };
        let response = connection.call(limit, build).await?;
        Ok((response, connection.label().clone(), peer))
    }

    async fn any_connection(
        &self,
        image: &ClusterImage,
        helpless: Option<&Peer>,
    ) -> Result<(Peer, Arc<Connection>), Error> {
        let mut last = Error::new(ErrorKind::Disconnected, "no broker is known");
        let mut peers = self.metadata.candidates();
        peers.sort_by_key(|peer| Some(peer) == helpless);
        for peer in peers {
            if matches!(peer, Peer::Node(id) if !image.brokers.contains_key(&id)) {
                continue;
            }
            match self.metadata.reach(&peer).await {
                Ok(connection) => return Ok((peer, connection)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Reads a bootstrap server list. For tools that check an argument before they connect.
///
/// # Errors
/// Config: what is wrong with it.
pub fn parse_bootstrap_servers(servers: &str) -> Result<Vec<String>, Error> {
    config::parse_servers(servers)
}
