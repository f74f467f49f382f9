//! Ctrl-C and SIGTERM, for a command that has something to bring to an end before it goes.

use std::future::pending;
use std::io;
use std::time::Duration;

use corduroy_env::Env;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::error::EXIT_FAILED;

/// How long a command that was told to end may take over what is still on its way.
pub(crate) const LEAVE_WAIT_MAX: Duration = Duration::from_secs(5);

/// A signal so soon after the first one is the same one: many a tool signals the process and its
/// group. Shorter than a person's second Ctrl-C.
const SAME_SIGNAL_WITHIN: Duration = Duration::from_millis(250);

/// The first signal is for the command to obey; the second one ends the process.
///
/// A thread of its own listens: the command's thread may be stuck in a write to a terminal that
/// nobody reads.
pub(crate) struct Interrupt {
    env: Env,
    seen: watch::Receiver<Option<&'static str>>,
    /// When patience ends, once a signal has been looked at.
    until: Option<Instant>,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// The operating system's, if it has no thread or no handler to give.
    pub(crate) fn listen(env: &Env) -> io::Result<Interrupt> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let signals = {
            let _inside = runtime.enter();
            Signals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            }
        };
        let (told, seen) = watch::channel(None);
        let clock = env.clone();
        env.spawn_thread("signals", move || {
            runtime.block_on(attend(&clock, signals, &told));
        })?;
        Ok(Interrupt {
            env: env.clone(),
            seen,
            until: None,
        })
    }

    /// Waits for the first signal; returns its name, at once if it has come before. Cancel-safe.
    pub(crate) async fn first(&mut self) -> &'static str {
        let seen = self.seen.wait_for(Option::is_some).await;
        match seen.map(|name| *name) {
            Ok(Some(name)) => {
                self.until();
                name
            }
            _ => pending().await,
        }
    }

    /// The end of patience after the first signal, which has come.
    fn until(&mut self) -> Instant {
        let now = self.env.now();
        *self.until.get_or_insert(now + LEAVE_WAIT_MAX)
    }

    /// Waits for `work`, but no longer than [`LEAVE_WAIT_MAX`] after a signal, whatever else was
    /// waited for since. `None`: given up.
    pub(crate) async fn bound<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            _ = self.first() => {}
        }
        timeout_at(self.until(), work).await.ok()
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

async fn attend(env: &Env, mut signals: Signals, told: &watch::Sender<Option<&'static str>>) {
    let first = signals.next().await;
    let until = env.now() + SAME_SIGNAL_WITHIN;
    // A command that does not look any more is about to end.
    let _ = told.send(Some(first));
    loop {
        let name = signals.next().await;
        if env.now() >= until {
            eprintln!("ended at once by a second signal ({name}); what was on its way is unknown");
            std::process::exit(i32::from(EXIT_FAILED));
        }
    }
}
