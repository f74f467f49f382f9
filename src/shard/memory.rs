//! Memory for requests: taken before bytes are read, given back when the reply is written.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of requests that one shard holds at the same time.
pub const REQUEST_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The unit in which memory is counted.
const UNIT_BYTES: usize = 1024;

/// A shard's memory for requests.
#[derive(Clone)]
pub struct MemoryBudget(Arc<Semaphore>);

/// Memory that one request holds; given back on drop.
pub struct MemoryPermit(OwnedSemaphorePermit);

impl MemoryPermit {
    /// Several permits of one budget as one; `None` for none.
    pub fn merge(permits: Vec<MemoryPermit>) -> Option<MemoryPermit> {
        let mut permits = permits.into_iter();
        let mut whole = permits.next()?;
        for permit in permits {
            whole.0.merge(permit.0);
        }
        Some(whole)
    }
}

impl MemoryBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.div_ceil(UNIT_BYTES))))
    }

    /// Takes `bytes`, waiting until others give back. `None` only when the shard is closing.
    pub async fn take(&self, bytes: usize) -> Option<MemoryPermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        self.0
            .clone()
            .acquire_many_owned(units)
            .await
            .ok()
            .map(MemoryPermit)
    }
}
