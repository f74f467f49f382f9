//! Bytes that were fetched and not yet taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Shared by the fetcher, which takes, and whoever hands batches out, who frees.
#[derive(Clone)]
pub(crate) struct Budget {
    shared: Arc<BudgetShared>,
}

struct BudgetShared {
    used_bytes: AtomicUsize,
    limit_bytes: usize,
    freed: Notify,
}

impl Budget {
    pub(crate) fn new(limit_bytes: usize) -> Budget {
        let shared = BudgetShared {
            used_bytes: AtomicUsize::new(0),
            limit_bytes,
            freed: Notify::new(),
        };
        Budget {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn free(&self, bytes: usize) {
        let before = self.shared.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before >= self.shared.limit_bytes && before - bytes < self.shared.limit_bytes {
            self.shared.freed.notify_one();
        }
    }

    pub(super) fn take(&self, bytes: usize) {
        self.shared.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn has_room(&self) -> bool {
        let used = self.shared.used_bytes.load(Ordering::Acquire);
        used < self.shared.limit_bytes.max(1)
    }

    /// Sees the budget become usable again.
    pub(super) async fn freed(&self) {
        self.shared.freed.notified().await;
    }
}
