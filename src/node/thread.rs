//! The threads of a node: one per shard, each with a runtime of its own.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use corduroy_env::Env;
use corduroy_storage::{RealDisk, Store};
use tokio::sync::mpsc::Receiver;
use tracing::{error, info};

use super::boot::{self, LocalShards};
use super::lock::DirectoryLock;
use super::{StartError, Started};
use crate::config::NodeConfig;
use crate::shard::{Shard, ShardMessage};

/// Runs a future on this thread with a runtime and a `LocalSet` of its own; everything that it
/// spawned ends with it.
pub fn run_local<F: Future>(future: F) -> Result<F::Output, std::io::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let output = local.block_on(&runtime, future);
    // Tasks first (they hold sockets and replicas), then the runtime, without waiting for reads
    // that still run on its blocking threads.
    drop(local);
    runtime.shutdown_background();
    Ok(output)
}

/// Shard 0: boots the node, then serves. Reports how the start went exactly once.
pub fn run_shard_zero(
    env: Env,
    config: Arc<NodeConfig>,
    lock: DirectoryLock,
    report: Sender<Result<Started, StartError>>,
) {
    let result = run_local(async move {
        match boot::boot(env, config, Arc::new(RealDisk), LocalShards::default()).await {
            Ok(booted) => {
                let boot::Booted { serving, started } = booted;
                if report.send(Ok(started)).is_err() {
                    return;
                }
                if let Err(error) = serving.await {
                    error!(%error, "shard 0 ended in a panic");
                }
            }
            Err(error) => {
                // Whoever started the node has the error; nobody else needs it.
                let _gone = report.send(Err(error));
            }
        }
    });
    if let Err(error) = result {
        error!(%error, "shard 0 has no runtime");
    }
    drop(lock);
}

/// Serves one shard until it is told to stop, then closes what it owns.
pub async fn serve_shard(shard: Rc<Shard>, store: Store, mailbox: Receiver<ShardMessage>) {
    let index = shard.index();
    let graceful = shard.clone().run(mailbox).await;
    if graceful {
        shard.close().await;
        match store.close().await {
            Ok(()) => info!(shard = index, "the shard's storage is closed cleanly"),
            Err(error) => {
                error!(shard = index, %error, "the shard's storage did not close cleanly")
            }
        }
    }
}
