//! The one binary: node, command line, demo, benchmarks.

use std::process::ExitCode;

// A hostile array count makes a decoder reserve more than there is; this allocator reserves
// lazily, and keeps resident memory low under many short-lived buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    corduroy::cli::run()
}
