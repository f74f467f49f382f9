//! The last door to chance: the system call from which the standard library seeds its hash maps,
//! and tokio and openraft, through them, the order in which `select!` looks at its branches.
//!
//! A symbol of the program comes before the C library's. With it, a process's run is a function of
//! the seed, whatever hash map or `select!` is on its way, in our crates or in others.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// From here on, what asks the system for chance gets a function of `seed`.
pub fn seed(seed: u64) {
    STATE.store(seed, Ordering::Relaxed);
}

fn next() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut word = STATE.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// `getrandom(2)`.
///
/// # Safety
/// `buffer` is valid for writes of `length` bytes, as for the C library's.
#[expect(
    unsafe_code,
    reason = "a symbol that takes the place of the C library's"
)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller's promise, which is that of `getrandom(2)`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
