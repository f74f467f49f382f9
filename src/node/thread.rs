//! The threads of a node: one per shard, each with a runtime of its own.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use corduroy_env::Env;
use corduroy_record::NodeId;
use corduroy_storage::{RealDisk, Store};
use tokio::sync::mpsc::Receiver;
use tracing::field::Empty;
use tracing::{Span, error, info};

use super::boot::{self, LocalShards};
use super::lock::DirectoryLock;
use super::{StartError, Started};
use crate::config::NodeConfig;
use crate::shard::{Shard, ShardMessage};

/// What every log line of a shard's thread carries. Entered once, by the thread: its tasks need no
/// span of their own for this, and a request pays nothing.
pub fn shard_span(node: Option<NodeId>, shard: u16) -> Span {
    // At error level, so that a filter that drops lines takes nothing from those that are left.
    let span = tracing::error_span!(parent: None, "shard", node = Empty, shard);
    if let Some(node) = node {
        span.record("node", node.get());
    }
    span
}

/// Runs a future on this thread, in `span`, with a runtime and a `LocalSet` of its own; everything
/// that it spawned ends with it.
pub fn run_local<F: Future>(span: &Span, future: F) -> Result<F::Output, std::io::Error> {
    let _entered = span.enter();
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
    // Which node this is, it finds out on the way.
    let span = shard_span(None, 0);
    let result = run_local(&span, async move {
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
    let graceful = shard.clone().run(mailbox).await;
    if graceful {
        shard.close().await;
        match store.close().await {
            Ok(()) => info!("the shard's storage is closed cleanly"),
            Err(error) => {
                error!(%error, "the shard's storage did not close cleanly")
            }
        }
    }
}
