//! Threads for work that blocks, so that a shard never does.

#![expect(
    clippy::disallowed_types,
    reason = "a queue that a few threads take from is the message channel itself"
)]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use corduroy_env::Env;
use tokio::sync::oneshot;

use crate::config::IoMode;
use crate::error::StorageError;

type Job = Box<dyn FnOnce() + Send>;

/// Who hears that a job panicked, besides whoever awaits its result.
type OnPanic = Arc<dyn Fn() + Send + Sync>;

/// A few threads with one queue, or the caller itself. Clone = the same pool; the threads end
/// when the last clone is dropped.
#[derive(Clone)]
pub(crate) enum Pool {
    Threads(Sender<Job>),
    Inline,
    /// Jobs that the store's loop does between turns, one at a time: as background work goes,
    /// and the same on every run.
    Deferred(Arc<Mutex<VecDeque<Job>>>),
}

impl Pool {
    /// A pool for work whose outcome somebody awaits: a job that panics is one without a result,
    /// and costs no thread.
    pub(crate) fn new(
        env: &Env,
        mode: IoMode,
        name: &str,
        threads: usize,
    ) -> Result<Pool, StorageError> {
        match mode {
            IoMode::Inline => Ok(Pool::Inline),
            IoMode::Threads => Pool::threads(env, name, threads, Arc::new(|| {})),
        }
    }

    /// A pool for background work, for which nobody may wait: a panic is told to `on_panic`.
    pub(crate) fn background(
        env: &Env,
        mode: IoMode,
        name: &str,
        threads: usize,
        on_panic: impl Fn() + Send + Sync + 'static,
    ) -> Result<Pool, StorageError> {
        match mode {
            IoMode::Inline => Ok(Pool::Deferred(Arc::default())),
            IoMode::Threads => Pool::threads(env, name, threads, Arc::new(on_panic)),
        }
    }

    fn threads(
        env: &Env,
        name: &str,
        threads: usize,
        on_panic: OnPanic,
    ) -> Result<Pool, StorageError> {
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..threads {
            let (receiver, on_panic) = (receiver.clone(), on_panic.clone());
            spawn(env, &format!("{name}-{number}"), move || {
                serve(&receiver, &*on_panic);
            })?;
        }
        Ok(Pool::Threads(sender))
    }

    /// Does one deferred job, if there is any.
    pub(crate) fn step(&self) -> bool {
        let Pool::Deferred(jobs) = self else {
            return false;
        };
        let job = jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        let found = job.is_some();
        if let Some(job) = job {
            job();
        }
        found
    }

    /// Whether deferred jobs wait.
    pub(crate) fn has_jobs(&self) -> bool {
        match self {
            Pool::Deferred(jobs) => !jobs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty(),
            _ => false,
        }
    }

    /// Runs a job some time later, or now.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self {
            Pool::Inline => job(),
            Pool::Deferred(jobs) => {
                jobs.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_back(Box::new(job));
            }
            // The threads end only after every sender is gone.
            Pool::Threads(sender) => drop(sender.send(Box::new(job))),
        }
    }

    /// Runs a job and awaits what it returns.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StorageError> {
        match self {
            Pool::Inline => Ok(job()),
            Pool::Deferred(_) => {
                // In the order of submission, as one thread would.
                while self.step() {}
                Ok(job())
            }
            Pool::Threads(_) => {
                let (sender, receiver) = oneshot::channel();
                self.run(move || drop(sender.send(job())));
                receiver.await.map_err(|_| StorageError::Closed)
            }
        }
    }
}

fn serve(receiver: &Mutex<Receiver<Job>>, on_panic: &(dyn Fn() + Send + Sync)) {
    loop {
        // One thread waits in `recv` and the others for the lock: the same to them.
        let job = receiver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        match job {
            Ok(job) => {
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    on_panic();
                }
            }
            Err(_) => return,
        }
    }
}

/// Starts a thread of the store's own.
pub(crate) fn spawn(
    env: &Env,
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<(), StorageError> {
    match env.spawn_thread(name, body) {
        Ok(_detached) => Ok(()),
        Err(error) => Err(StorageError::Failed(
            format!("cannot start thread {name}: {error}").into(),
        )),
    }
}
