//! What one shard has handed to the node's other shards and is not done there yet, in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes of frames that one shard has forwarded and that are not done yet; beyond it the shard reads
/// from no peer. The last one may exceed it by its own size.
pub(crate) const FORWARDED_BYTES_MAX: usize = 32 << 20;

/// What a frame counts at least: its place in a queue, its task.
const FRAME_BYTES_MIN: usize = 512;

#[derive(Debug)]
struct Shared {
    bytes: AtomicUsize,
    bytes_max: usize,
    /// It was full and is not any more.
    room: Notify,
}

/// The frames that a shard has forwarded. Clone = another handle. `Send`: they end elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding(Arc<Shared>);

impl Default for Forwarding {
    fn default() -> Self {
        Forwarding::with_bytes_max(FORWARDED_BYTES_MAX)
    }
}

impl Forwarding {
    pub(crate) fn with_bytes_max(bytes_max: usize) -> Forwarding {
        Forwarding(Arc::new(Shared {
            bytes: AtomicUsize::new(0),
            bytes_max,
            room: Notify::new(),
        }))
    }

    /// Counts a frame until what it returns is dropped.
    pub(crate) fn count(&self, frame_bytes: usize) -> Forwarded {
        let bytes = frame_bytes.max(FRAME_BYTES_MIN);
        self.0.bytes.fetch_add(bytes, Ordering::AcqRel);
        Forwarded(Arc::new(Held {
            shared: self.0.clone(),
            bytes,
        }))
    }

    /// Whether nothing more should be read that may have to be forwarded.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.0.bytes_max
    }

    /// Bytes that are not done.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Acquire)
    }

    /// Waits until there is room.
    pub(crate) async fn until_room(&self) {
        loop {
            let mut room = std::pin::pin!(self.0.room.notified());
            // Registered before the look, so that nothing is missed in between.
            room.as_mut().enable();
            if !self.is_full() {
                return;
            }
            room.await;
        }
    }
}

#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let before = self.shared.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        let (max, after) = (self.shared.bytes_max, before - self.bytes);
        if before >= max && after < max {
            self.shared.room.notify_waiters();
        }
    }
}

/// A frame that counts as forwarded until the last clone of this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded(#[expect(dead_code, reason = "held for its drop")] Arc<Held>);
