//! The place of the fault tests. What they will do stands in the README; until they exist, this
//! program says so and fails, so that nothing mistakes its silence for a verdict.

use std::process::ExitCode;

/// "The harness could not run", as the finished program will say it.
const EXIT_HARNESS: u8 = 3;

fn main() -> ExitCode {
    eprintln!(
        "corduroy-jepsen: the Jepsen-style fault tests are not written yet\n  \
         help    real kills, pauses and restarts under load: tests/clients/faults --help"
    );
    ExitCode::from(EXIT_HARNESS)
}
