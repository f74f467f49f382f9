//! The one binary: node, command line, demo, benchmarks.

use std::process::ExitCode;

// A hostile array count makes a decoder reserve more than there is; this allocator reserves
// lazily, and keeps resident memory low under many short-lived buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages: each thread's first kilobytes would cost 2 MiB, and a
    // node has many threads. Where the kernel does not know the call, memory is all it costs.
    let _unknown = rustix::thread::disable_transparent_huge_pages(true);
    corduroy::cli::run()
}
