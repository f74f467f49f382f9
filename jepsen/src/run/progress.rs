//! The progress line, and the watch over the harness itself: where it did not get the processor,
//! nothing is said about availability.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::time::Duration;

use corduroy_env::Env;

use super::RunPlan;
use crate::history::Mark;
use crate::workload::recorder::Recorder;

/// On a terminal one line, anew each second; elsewhere a line now and then.
const EVERY: Duration = Duration::from_secs(1);
const LINES_EVERY: u64 = 10;
/// A pause of the harness that is noted.
const STARVED: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(100);

/// Shows progress until it is dropped.
pub struct Progress {
    phase: Rc<RefCell<String>>,
    over: Rc<Cell<bool>>,
    is_terminal: bool,
    is_shown: bool,
}

impl Progress {
    /// Starts showing.
    pub fn start(
        env: &Env,
        run: &RunPlan,
        recorder: &Recorder,
        faults: Rc<RefCell<Vec<&'static str>>>,
    ) -> Progress {
        let progress = Progress {
            phase: Rc::default(),
            over: Rc::default(),
            is_terminal: std::io::stderr().is_terminal(),
            is_shown: run.is_shown,
        };
        let (phase, over) = (progress.phase.clone(), progress.over.clone());
        let (is_terminal, is_shown) = (progress.is_terminal, run.is_shown);
        let (env, recorder) = (env.clone(), recorder.clone());
        let watched = (env.clone(), recorder.clone(), over.clone());
        env.clone().spawn_local(async move {
            let mut last = recorder.counts();
            let mut second = 0;
            while !over.get() {
                env.sleep(EVERY).await;
                second += 1;
                // A full disk is told at the end, by the last flush.
                let _ = recorder.flush();
                let counts = recorder.counts();
                let text = format!(
                    "{:>4.0} s  {} acked (+{}), {} read, {} failed, {} unknown, {} faults; now: {}{}",
                    recorder.now().seconds(),
                    counts.sent,
                    counts.sent - last.sent,
                    counts.read,
                    counts.failed,
                    counts.unknown,
                    counts.faults,
                    phase.borrow(),
                    faults.borrow().join(" ")
                );
                last = counts;
                if over.get() || !is_shown {
                    continue;
                }
                if is_terminal {
                    eprint!("\r\x1b[K{text}");
                    let _ = std::io::stderr().flush();
                } else if second % LINES_EVERY == 0 {
                    eprintln!("{text}");
                }
            }
        });
        let (env, recorder, over) = watched;
        env.clone().spawn_local(async move {
            while !over.get() {
                let (before, from) = (env.now(), recorder.now());
                env.sleep(LOOK).await;
                if env.now() - before > LOOK + STARVED {
                    let until = recorder.now();
                    recorder.mark(Mark::Starved { from, until });
                }
            }
        });
        progress
    }

    /// What the run does now.
    pub fn say(&self, phase: &str) {
        *self.phase.borrow_mut() = format!("{phase} ");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.over.set(true);
        if self.is_terminal && self.is_shown {
            eprintln!();
        }
    }
}
