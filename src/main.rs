//! The one binary: node, command line, demo, benchmarks.

use std::process::ExitCode;

// A hostile array count makes a decoder reserve more than there is; this allocator reserves
// lazily, and keeps resident memory low under many short-lived buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `mi_option_purge_delay`, in milliseconds; the bindings do not name it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Freed pages go back at once: after a burst nothing else would make an idle thread return them.
fn return_freed_memory() {
    #[expect(unsafe_code, reason = "the allocator has no other way to be told")]
    // SAFETY: sets one number of a table of the allocator's; no other thread runs yet.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
    }
}

fn main() -> ExitCode {
    return_freed_memory();
    // The allocator asks for huge pages: each thread's first kilobytes would cost 2 MiB, and a
    // node has many threads. Where the kernel does not know the call, memory is all it costs.
    let _unknown = rustix::thread::disable_transparent_huge_pages(true);
    corduroy::cli::run()
}
