//! Index rows that reads of cold segments have loaded: kept for the next read, within a budget of
//! the whole shard, and given up oldest first.

use std::collections::VecDeque;
use std::rc::Weak;

use crate::index::IndexRow;
use crate::log::LogShared;

const ROW_BYTES: usize = size_of::<IndexRow>();

/// What is loaded, oldest first.
#[derive(Default)]
pub(crate) struct LoadedIndices {
    used_bytes: usize,
    order: VecDeque<LoadedIndex>,
}

struct LoadedIndex {
    log: Weak<LogShared>,
    segment: u32,
    bytes: usize,
}

impl LoadedIndices {
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Rows of a segment were loaded; others have to make room. No log's core may be borrowed.
    pub(crate) fn note(&mut self, log: &LogShared, segment: u32, rows: usize, budget_bytes: usize) {
        let bytes = rows * ROW_BYTES;
        self.used_bytes += bytes;
        self.order.push_back(LoadedIndex {
            log: log.this.clone(),
            segment,
            bytes,
        });
        // The newest is what its reader is about to use.
        while self.used_bytes > budget_bytes && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            self.used_bytes -= oldest.bytes;
            let Some(log) = oldest.log.upgrade() else {
                continue;
            };
            let mut core = log.core.borrow_mut();
            let found = (core.segments.iter_mut()).find(|segment| segment.id() == oldest.segment);
            if let Some(segment) = found {
                segment.index.unload();
            }
        }
    }
}
