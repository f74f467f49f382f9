//! What a request handler may use.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use corduroy_env::Env;
use corduroy_record::NodeId;
use tokio::time::Instant;

use crate::config::NodeConfig;
use crate::controller::ControllerHandle;
use crate::metadata::MetadataView;
use crate::shard::Shard;

/// A connection's surroundings. Clone = another handle.
#[derive(Clone)]
pub struct KafkaContext {
    /// Time, randomness.
    pub env: Env,
    /// This node.
    pub node: NodeId,
    /// The shard's view of the cluster.
    pub metadata: MetadataView,
    /// The way to the controller.
    pub controller: ControllerHandle,
    /// The node's settings.
    pub config: Arc<NodeConfig>,
    /// The shard that serves the connection.
    pub shard: Rc<Shard>,
    /// The address that the client itself used to reach this node.
    pub reached_at: Option<SocketAddr>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
}

impl KafkaContext {
    /// The surroundings of a connection that `shard` serves.
    pub fn new(
        shard: &Rc<Shard>,
        reached_at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    ) -> KafkaContext {
        KafkaContext {
            env: shard.env().clone(),
            node: shard.node(),
            metadata: shard.metadata().clone(),
            controller: shard.controller().clone(),
            config: shard.config().clone(),
            shard: shard.clone(),
            reached_at,
            peer,
        }
    }

    /// Waits until this node's metadata fulfils a condition; false if it does not by `deadline`.
    pub async fn wait_until(&self, deadline: Instant, condition: impl Fn() -> bool) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.metadata.changed());
            // Registers the wait before the look, so that a change in between is not missed.
            futures::future::poll_immediate(&mut changed).await;
            if condition() {
                return true;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return condition();
            }
        }
    }
}
