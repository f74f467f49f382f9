//! Background tasks: the one place that spawns.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Spawns onto the runtime in which the client was made, so that handles may be built and dropped
/// anywhere. Works on a current-thread runtime as well: tasks are `Send` but need no threads.
#[derive(Clone)]
pub(crate) struct Tasks {
    runtime: Handle,
}

impl Tasks {
    /// The runtime of the caller.
    ///
    /// # Panics
    /// Outside a tokio runtime; every public way here is an `async fn`, which runs inside one.
    pub(crate) fn current() -> Tasks {
        Tasks {
            runtime: Handle::current(),
        }
    }

    // Not through `Env`, whose tasks are `!Send` shard tasks: a client belongs to its user's
    // runtime. A simulation runs each node, and each client, in a runtime that it owns.
    pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.spawn(future)
    }
}
