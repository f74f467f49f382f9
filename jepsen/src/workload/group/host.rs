//! Members live in runtimes of their own, which can be ended or stopped as processes can.

use std::io;
use std::sync::mpsc;

use tokio::runtime::{Builder, Runtime};

/// Where one member's tasks run. When it is dropped they end where they are: connections close, and
/// nobody says goodbye.
pub struct Host {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// A host that stands still until this is dropped: no heartbeat, no answer, while its connections
/// stay open.
pub struct Frozen {
    _thaw: mpsc::Sender<()>,
}

impl Host {
    /// A host with one thread.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn new() -> io::Result<Host> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        Ok(Host {
            runtime: Some(runtime),
        })
    }

    /// Runs something on it; `None` if the host ends first. What was dropped halfway goes on.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.as_ref()?.spawn(work).await.ok()
    }

    /// Stops its only thread.
    pub fn freeze(&self) -> Frozen {
        let (thaw, until) = mpsc::channel::<()>();
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                // On purpose: this is how a process looks that gets no processor.
                let _ = until.recv();
            });
        }
        Frozen { _thaw: thaw }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting is not allowed where hosts are dropped.
            runtime.shutdown_background();
        }
    }
}
