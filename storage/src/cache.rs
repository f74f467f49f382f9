//! The recent entries of a log, in memory. Replication and tail reads never touch the disk.
//!
//! A body that comes from a socket is a slice of a read buffer, and keeps all of it alive. What is
//! small is therefore copied when it is appended, so that the cache holds what its budget says:
//! one copy of up to [`COPY_BYTES_MAX`] (a few microseconds at most, next to two checksums over the
//! same bytes). What is larger is shared and fills at least half of the 64 KiB buffers that
//! connections read into; of a larger frame, the neighbours are usually cached as well.

use std::collections::VecDeque;

use bytes::Bytes;
use corduroy_record::{Batch, LogIndex, Offset};

use crate::entry::{Entry, Payload};

/// A body shorter than this is copied out of the buffer that it is a slice of.
pub(crate) const COPY_BYTES_MAX: usize = 32 << 10;

/// The payload without the rest of the buffer that it may be a slice of. (`Bytes` does not tell how
/// much it keeps alive, so that small ones are copied in any case.)
pub(crate) fn detach(payload: Payload) -> Payload {
    let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    match payload {
        Payload::Batch(batch) if batch.body().len() < COPY_BYTES_MAX => {
            // The same bytes are the same batch.
            match Batch::from_parts(batch.head(), copy(batch.body())) {
                Ok(detached) => Payload::Batch(detached),
                Err(_) => Payload::Batch(batch),
            }
        }
        Payload::Internal(bytes) if bytes.len() < COPY_BYTES_MAX => Payload::Internal(copy(&bytes)),
        Payload::Membership(bytes) if bytes.len() < COPY_BYTES_MAX => {
            Payload::Membership(copy(&bytes))
        }
        payload => payload,
    }
}

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
