//! A node: its shards' threads, put together and taken apart. No globals: several nodes can run
//! in one process.
//!
//! `boot` runs on shard 0 and does things in the order that the laws ask for; `acceptor` hands
//! connections to shards; `status` gathers what the admin port shows.

mod acceptor;
mod boot;
mod error;
mod leaders;
mod local;
mod lock;
pub mod room;
mod status;
mod thread;
mod twin;
mod waiting;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::NodeId;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::admin::AdminServer;
use crate::config::NodeConfig;
use crate::shard::{ShardHandle, ShardMessage};

pub use error::StartError;
pub use local::{LocalNode, LocalServing};

/// First byte of application calls and casts between nodes: the controller's.
pub const SERVICE_CONTROLLER: u8 = 1;
/// First byte of application calls and casts between nodes: leadership news.
pub const SERVICE_NODE: u8 = 2;
/// First byte of application calls between nodes: high watermarks of partitions.
pub const SERVICE_MARKS: u8 = 3;
/// A node that has heard of no majority for this long stops naming itself in Metadata.
pub const ISOLATED_AFTER: Duration = Duration::from_millis(2500);
/// How long moving leaderships away may hold up a stop.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// What a started node is, seen from outside its threads.
struct Started {
    node: NodeId,
    kafka: SocketAddr,
    rpc: SocketAddr,
    admin: Option<AdminServer>,
    handles: Vec<ShardHandle>,
    threads: Vec<JoinHandle<()>>,
    stop_controller: oneshot::Sender<oneshot::Sender<()>>,
    parted: oneshot::Receiver<String>,
}

/// A running node. Dropping it stops it as [`NodeHandle::kill`] does.
pub struct NodeHandle {
    started: Option<Started>,
    boot_thread: Option<JoinHandle<()>>,
    node: NodeId,
    kafka: SocketAddr,
    rpc: SocketAddr,
    admin: Option<SocketAddr>,
    data_dir: PathBuf,
    env: Env,
    parted: Option<oneshot::Receiver<String>>,
}

/// Starts a node and returns when it serves. Blocks; the node's threads live on.
///
/// # Errors
/// Whatever keeps it from serving, in words that a person can act on.
pub fn start(config: NodeConfig) -> Result<NodeHandle, StartError> {
    start_with(&Env::real(), config)
}

/// [`start`] with a given seam.
///
/// # Errors
/// As [`start`].
pub fn start_with(env: &Env, config: NodeConfig) -> Result<NodeHandle, StartError> {
    let config = Arc::new(config);
    let data_dir = config.data_dir.clone();
    let lock = lock::DirectoryLock::take(&data_dir)?;
    let (report, started) = std::sync::mpsc::channel();
    let boot_env = env.clone();
    let boot_config = config.clone();
    let boot_thread = env
        .spawn_thread("shard-0", move || {
            thread::run_shard_zero(boot_env, boot_config, lock, report);
        })
        .map_err(StartError::Thread)?;
    match started.recv() {
        Ok(Ok(mut started)) => {
            let (_, none) = oneshot::channel();
            Ok(NodeHandle {
                node: started.node,
                kafka: started.kafka,
                rpc: started.rpc,
                admin: started.admin.as_ref().map(AdminServer::addr),
                parted: Some(std::mem::replace(&mut started.parted, none)),
                started: Some(started),
                boot_thread: Some(boot_thread),
                data_dir,
                env: env.clone(),
            })
        }
        Ok(Err(error)) => {
            join(boot_thread);
            Err(error)
        }
        Err(_) => {
            join(boot_thread);
            Err(StartError::Ended)
        }
    }
}

impl NodeHandle {
    /// The node's id.
    pub fn node_id(&self) -> NodeId {
        self.node
    }

    /// Where it listens for Kafka clients.
    pub fn kafka_addr(&self) -> SocketAddr {
        self.kafka
    }

    /// Where it listens for other nodes.
    pub fn rpc_addr(&self) -> SocketAddr {
        self.rpc
    }

    /// Where it serves metrics and health.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Where it stores everything.
    pub fn data_dir(&self) -> &PathBuf {
        &self.data_dir
    }

    /// Resolves with the node's last words when the cluster has parted with it, or another process
    /// has its place: it serves nothing any more and is to be stopped. To be had once.
    pub fn take_parted(&mut self) -> Option<oneshot::Receiver<String>> {
        self.parted.take()
    }

    /// Stops as on SIGTERM: leaderships move away, everything is flushed, clean marks are set.
    /// Blocks until it is done.
    pub fn stop(mut self) {
        self.end(true);
    }

    /// Stops at once: nothing is handed over, nothing flushed, sockets close. Blocks until the
    /// threads have ended.
    pub fn kill(mut self) {
        self.end(false);
    }

    fn end(&mut self, graceful: bool) {
        let Some(started) = self.started.take() else {
            return;
        };
        let boot_thread = self.boot_thread.take();
        // On a thread of its own: the caller may be a task of some runtime, which must not block
        // on a mailbox.
        let ending = self
            .env
            .spawn_thread("stop", move || end_node(started, boot_thread, graceful));
        match ending {
            Ok(thread) => join(thread),
            Err(error) => warn!(%error, "no thread to stop the node with; it goes on"),
        }
    }
}

fn end_node(started: Started, boot_thread: Option<JoinHandle<()>>, graceful: bool) {
    let Started {
        handles,
        threads,
        admin,
        stop_controller,
        node,
        ..
    } = started;
    if graceful {
        drain(&handles, stop_controller);
    }
    for handle in &handles {
        if handle
            .blocking_send(ShardMessage::Stop { graceful })
            .is_err()
        {
            warn!(%node, "a shard has ended before it was told to");
        }
    }
    for thread in threads.into_iter().chain(boot_thread) {
        join(thread);
    }
    drop(admin);
    info!(%node, graceful, "the node has stopped");
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Leaderships first, the controller's last: it has to see the others move.
fn drain(handles: &[ShardHandle], stop_controller: oneshot::Sender<oneshot::Sender<()>>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    else {
        return;
    };
    runtime.block_on(move_away(handles, stop_controller));
}

async fn move_away(handles: &[ShardHandle], stop_controller: oneshot::Sender<oneshot::Sender<()>>) {
    let moves = async {
        let mut answers = Vec::new();
        for handle in handles {
            let (reply, answer) = oneshot::channel();
            if handle.send(ShardMessage::Drain(reply)).await.is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A shard that ended early has nothing left to move.
            let _ended = answer.await;
        }
        let (reply, answer) = oneshot::channel();
        if stop_controller.send(reply).is_ok() {
            let _ended = answer.await;
        }
    };
    if tokio::time::timeout(DRAIN_MAX, moves).await.is_err() {
        warn!(
            "not every leadership moved away in {} s; stopping all the same",
            DRAIN_MAX.as_secs()
        );
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        warn!("a thread of the node ended in a panic");
    }
}
