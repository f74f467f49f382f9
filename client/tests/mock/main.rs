//! The client against a scripted cluster over real sockets.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the mock cluster lives on the test's own runtime, shared between its tasks"
)]

mod admin;
mod broker;
mod group;
mod group_broker;
mod partition;
mod producer;
mod reader;

use std::time::Duration;

use broker::Cluster;
use corduroy_client::{Client, ClientBuilder};

/// Timeouts that let a test see their end.
fn quick(cluster: &Cluster) -> ClientBuilder {
    Client::builder()
        .bootstrap_servers(&cluster.bootstrap())
        .set("retry.backoff.ms", "10")
        .set("retry.backoff.max.ms", "50")
        .set("reconnect.backoff.ms", "10")
        .set("reconnect.backoff.max.ms", "50")
        .api_timeout(Duration::from_secs(10))
}

async fn connect(cluster: &Cluster) -> Client {
    quick(cluster).connect().await.expect("the mock answers")
}
