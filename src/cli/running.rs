//! A node in this process that may be dropped anywhere.

use std::net::SocketAddr;

use corduroy_env::Env;
use corduroy_record::NodeId;
use tokio::sync::oneshot;

use crate::config::NodeConfig;
use crate::node::{self, NodeHandle, StartError};

/// A started node. To end one blocks, which a thread that drives async tasks must not do; so if it
/// is dropped there, by an error or a signal, a thread of its own ends it.
pub(crate) struct Running {
    env: Env,
    /// Gone once it has been told to end.
    handle: Option<NodeHandle>,
    node: NodeId,
    kafka: SocketAddr,
    rpc: SocketAddr,
    admin: Option<SocketAddr>,
    parted: Option<oneshot::Receiver<String>>,
}

impl Running {
    /// Starts a node; blocks until it serves.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn start(env: &Env, config: NodeConfig) -> Result<Running, StartError> {
        let mut handle = node::start_with(env, config)?;
        Ok(Running {
            env: env.clone(),
            node: handle.node_id(),
            kafka: handle.kafka_addr(),
            rpc: handle.rpc_addr(),
            admin: handle.admin_addr(),
            parted: handle.take_parted(),
            handle: Some(handle),
        })
    }

    pub(crate) fn node_id(&self) -> NodeId {
        self.node
    }

    pub(crate) fn kafka_addr(&self) -> SocketAddr {
        self.kafka
    }

    pub(crate) fn rpc_addr(&self) -> SocketAddr {
        self.rpc
    }

    pub(crate) fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Waits until the node has to end by itself; returns its last words. For ever if it never has.
    pub(crate) async fn parted(&mut self) -> String {
        let Some(parted) = self.parted.as_mut() else {
            return std::future::pending().await;
        };
        match parted.await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends it as SIGTERM does. Blocks: call it on a thread of its own.
    pub(crate) fn stop(mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop();
        }
    }

    /// Ends it as a crash does. Blocks: call it on a thread of its own.
    pub(crate) fn kill(mut self) {
        if let Some(handle) = self.handle.take() {
            handle.kill();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        if let Ok(thread) = self.env.spawn_thread("end", move || handle.kill()) {
            // A panic there has been printed by its thread; there is nothing to add.
            let _ = thread.join();
        }
    }
}
