//! How far a measurement is that takes long: a bar on a terminal, a line now and then elsewhere.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::Duration;

use corduroy_env::Env;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::cli::show_count;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shown from now on, and gone when it is dropped.
pub(super) struct Progress {
    env: Env,
    what: String,
    total: u64,
    bar: Option<ProgressBar>,
    line_at: Cell<Instant>,
}

impl Progress {
    /// `what` is done to `total` records: "filling bench-1f".
    pub(super) fn start(env: &Env, what: String, total: u64) -> Progress {
        let is_dumb = std::env::var("TERM").is_ok_and(|terminal| terminal == "dumb");
        let bar = (io::stderr().is_terminal() && !is_dumb).then(|| ProgressBar::new(total));
        let style = ProgressStyle::with_template(
            "{msg} {bar:30} {human_pos}/{human_len} records {per_sec} {eta} left",
        );
        match (&bar, style) {
            (Some(bar), Ok(style)) => {
                bar.set_style(style);
                bar.set_message(what.clone());
            }
            _ => eprintln!("{what}: {} records", show_count(total)),
        }
        Progress {
            env: env.clone(),
            what,
            total,
            bar,
            line_at: Cell::new(env.now() + LINE_EVERY),
        }
    }

    /// So many are done.
    pub(super) fn at(&self, records: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(records);
            return;
        }
        let now = self.env.now();
        if now >= self.line_at.get() {
            self.line_at.set(now + LINE_EVERY);
            let (what, done, total) = (&self.what, show_count(records), show_count(self.total));
            eprintln!("{what}: {done} of {total} records");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
