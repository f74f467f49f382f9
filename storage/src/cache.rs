//! The recent entries of a log, in memory. Replication and tail reads never touch the disk.

use std::collections::VecDeque;

use corduroy_record::{LogIndex, Offset};

use crate::entry::Entry;

/// An entry and where its frame is.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub entry: Entry,
    pub segment: u32,
    pub position: u32,
}

/// What a cached entry costs beside its payload, roughly.
const OVERHEAD_BYTES: usize = 256;

impl Cached {
    pub(crate) fn cost_bytes(&self) -> usize {
        self.entry.payload.size_bytes() + OVERHEAD_BYTES
    }
}

/// Law: indices are consecutive, and the last one is the log's last entry (or it is empty).
#[derive(Default)]
pub(crate) struct EntryCache {
    entries: VecDeque<Cached>,
}

impl EntryCache {
    pub(crate) fn first_index(&self) -> Option<LogIndex> {
        self.entries.front().map(|cached| cached.entry.head.index)
    }

    pub(crate) fn push(&mut self, cached: Cached) {
        debug_assert!(
            self.entries
                .back()
                .is_none_or(|last| last.entry.head.index.next() == cached.entry.head.index)
        );
        self.entries.push_back(cached);
    }

    pub(crate) fn pop_front(&mut self) -> Option<Cached> {
        self.entries.pop_front()
    }

    /// Drops entries at and after `end`; returns what they cost.
    pub(crate) fn truncate(&mut self, end: LogIndex) -> usize {
        let mut freed = 0;
        while let Some(last) = self
            .entries
            .pop_back_if(|last| last.entry.head.index >= end)
        {
            freed += last.cost_bytes();
        }
        freed
    }

    /// Drops entries before `start`; returns what they cost.
    pub(crate) fn cut_before(&mut self, start: LogIndex) -> usize {
        let mut freed = 0;
        while let Some(first) = self
            .entries
            .pop_front_if(|first| first.entry.head.index < start)
        {
            freed += first.cost_bytes();
        }
        freed
    }

    pub(crate) fn get(&self, index: LogIndex) -> Option<&Cached> {
        let first = self.first_index()?;
        let at = index.get().checked_sub(first.get())?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Entries from `from` on; `None` if the cache begins later.
    pub(crate) fn starting_at(&self, from: LogIndex) -> Option<impl Iterator<Item = &Cached>> {
        let at = from.get().checked_sub(self.first_index()?.get())?;
        let at = usize::try_from(at).ok()?.min(self.entries.len());
        Some(self.entries.range(at..))
    }

    /// Entries from the one that holds `offset` on; `None` if the cache begins later.
    pub(crate) fn holding(&self, offset: Offset) -> Option<impl Iterator<Item = &Cached>> {
        if self.entries.front()?.entry.head.base_offset > offset {
            return None;
        }
        let at = self
            .entries
            .partition_point(|cached| cached.entry.head.next_offset() <= offset);
        Some(self.entries.range(at..))
    }
}
