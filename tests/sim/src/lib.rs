//! Whole clusters under one seed: three production nodes, the production client, a simulated
//! network, simulated disks and one simulated clock, all on one thread.
//!
//! The same seed gives the same run in a fresh process; `docs/simulator.md` tells how, what is
//! checked and what to do with a seed that fails.
//!
//! | module | what |
//! |---|---|
//! | `random`, `trace`, `shared` | chance, the hash of everything that happens |
//! | `network`, `disk` | what the nodes take for their machine |
//! | `machine`, `machines`, `world` | nodes that start and die, time in steps |
//! | `workload`, `fleeting`, `fencing`, `latest`, `ledger` | clients, and what they were told |
//! | `members`, `raw`, `group_ledger`, `group_log` | consumer groups, what their members were told, and what the log says |
//! | `faults`, `membership`, `options` | what strikes, who comes and goes, and what may |
//! | `observe`, `history`, `checker`, `invariants` | what must hold at every step |
//! | `copies` | every replica's bytes, in the end |
//! | `sometimes` | what a batch of seeds has to reach |
//! | `scenario` | the phases of a run |

mod checker;
mod copies;
mod disk;
mod faults;
mod fencing;
mod fleeting;
mod group_ledger;
mod group_log;
mod history;
mod invariants;
mod latest;
mod ledger;
mod machine;
mod machines;
mod members;
mod membership;
mod network;
mod observe;
mod options;
mod random;
mod raw;
mod scenario;
mod shared;
mod sometimes;
mod trace;
mod twins;
mod workload;
mod world;

use std::fs::File;

pub use checker::Violation;
pub use options::{FaultClass, RunOptions};
pub use sometimes::{POINTS, Sometimes};
pub use world::note_panic;

use trace::Trace;
use workload::CLIENTS;
use world::World;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The first law that was broken.
    pub violation: Option<Violation>,
    /// The hash of everything that happened.
    pub trace: u64,
    /// How many events went into it.
    pub events: u64,
    /// Simulated milliseconds.
    pub millis: u64,
    /// Records acknowledged, refused, of unknown fate, read.
    pub records: [u64; 4],
    /// The points that were reached.
    pub sometimes: Sometimes,
}

/// Runs one seed on this thread, which must be new: the first of this process that makes hash
/// maps or runtimes. Otherwise the run is as good, and another one.
///
/// # Errors
/// No runtime could be made.
pub fn run_seed(options: &RunOptions, trace_file: Option<File>) -> std::io::Result<RunReport> {
    // No I/O driver: nothing here waits for a descriptor.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let report = runtime.block_on(async {
        let trace = Trace::new(trace_file);
        let mut world = World::new(options, trace.clone());
        let network = world.fabric.clone().run();
        world.running.start(CLIENTS, network);
        let machines = world.running.clone();
        let outcome = machines.run(scenario::run(&mut world, options)).await;
        trace.flush();
        RunReport {
            violation: outcome.err(),
            trace: trace.hash(),
            events: trace.events(),
            millis: trace.millis(),
            records: world.ledger.counts(),
            sometimes: world.checker.sometimes().clone(),
        }
    });
    // Tasks of nodes that are still there would outlive the clock.
    runtime.shutdown_background();
    Ok(report)
}
