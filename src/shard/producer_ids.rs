//! A shard's stock of producer ids, in blocks that the controller has made durable before any of
//! them is handed out (KIP-98).

use std::cell::RefCell;
use std::ops::Range;

use corduroy_protocol::ErrorCode;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::controller::ControllerHandle;

/// A shard's block of producer ids.
pub struct ProducerIds {
    block: RefCell<Range<i64>>,
    /// One permit: the right to fetch the next block.
    refill: Semaphore,
}

impl Default for ProducerIds {
    fn default() -> Self {
        Self {
            block: RefCell::new(0..0),
            refill: Semaphore::new(1),
        }
    }
}

impl ProducerIds {
    fn next(&self) -> Option<i64> {
        self.block.borrow_mut().next()
    }

    /// A producer id that nobody else has.
    ///
    /// # Errors
    /// The controller gives no further block now.
    pub async fn take(&self, controller: &ControllerHandle) -> Result<i64, ErrorCode> {
        if let Some(id) = self.next() {
            return Ok(id);
        }
        // One refill at a time; whoever waited finds the new block.
        let _one = self
            .refill
            .acquire()
            .await
            .map_err(|_| ErrorCode::CoordinatorNotAvailable)?;
        loop {
            if let Some(id) = self.next() {
                return Ok(id);
            }
            match controller.allocate_producer_ids().await {
                Ok(block) => *self.block.borrow_mut() = block,
                Err(error) => {
                    warn!(%error, "no block of producer ids could be had");
                    return Err(ErrorCode::CoordinatorNotAvailable);
                }
            }
        }
    }
}
