//! State behind the seams' `Send + Sync`: everything runs on one thread, nobody ever waits here.

#![expect(
    clippy::disallowed_types,
    reason = "the seams ask for Send and Sync; there is one thread"
)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value that the simulator's parts share. Clone = the same value.
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    /// Shares a value.
    pub fn new(value: T) -> Shared<T> {
        Shared(Arc::new(Mutex::new(value)))
    }

    /// The value. Never held across an await.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // A panic elsewhere ends the run anyway; its report needs what is in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}
