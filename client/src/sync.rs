//! The crate's lock.
//!
//! A client lives in its user's runtime, on whichever threads that has, and its handles are
//! shared between tasks. It is no shard: here a short critical section is cheaper than a mailbox
//! per record. Nothing awaits, does I/O or compresses while it is held.

#![expect(
    clippy::disallowed_types,
    reason = "client handles are shared across the user's threads; no shard state lives here"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mutual exclusion for a few instructions at a time.
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    /// Enters. A panic of another holder does not poison: every critical section of this crate
    /// leaves its state valid at each step.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that may be held across an await: one task connects, the others wait for its result.
pub(crate) type AsyncLock<T> = tokio::sync::Mutex<T>;
