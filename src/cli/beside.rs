//! Work beside an async command, and a promise of its result: blocking work on a thread of its own,
//! other work as a task of this thread.

use std::io;

use corduroy_env::Env;
use tokio::sync::oneshot;

/// Runs `work` on a thread named `name`. The receiver ends without a value if the work panics.
///
/// # Errors
/// The operating system's, if it has no thread to give.
pub fn beside<T: Send + 'static>(
    env: &Env,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (done_tx, done_rx) = oneshot::channel();
    env.spawn_thread(name, move || {
        // Nobody waits any more where a signal came first: the process is about to end.
        let _ = done_tx.send(work());
    })?;
    Ok(done_rx)
}

/// Runs `work` as a task. The receiver ends without a value if the work panics.
pub fn meanwhile<T: 'static>(
    env: &Env,
    work: impl Future<Output = T> + 'static,
) -> oneshot::Receiver<T> {
    let (done_tx, done_rx) = oneshot::channel();
    env.spawn_local(async move {
        // Whoever dropped the receiver has lost interest.
        let _ = done_tx.send(work.await);
    });
    done_rx
}
