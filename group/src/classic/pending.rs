//! Members that were given an id and have not joined with it yet (KIP-394).

use std::collections::BTreeMap;

/// Names a pending member to the timers; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PendingNumber(u64);

/// The pending members, by id and by number.
#[derive(Debug, Default)]
pub(super) struct Pending {
    by_id: BTreeMap<String, PendingNumber>,
    by_number: BTreeMap<PendingNumber, String>,
    next: u64,
}

impl Pending {
    /// Adds an id that is not there yet.
    pub(super) fn add(&mut self, member_id: &str) -> PendingNumber {
        let number = PendingNumber(self.next);
        self.next += 1;
        let before = self.by_id.insert(member_id.to_owned(), number);
        assert!(before.is_none(), "a pending member id was given twice");
        self.by_number.insert(number, member_id.to_owned());
        number
    }

    /// Removes an id; its number, if it was there.
    pub(super) fn remove(&mut self, member_id: &str) -> Option<PendingNumber> {
        let number = self.by_id.remove(member_id)?;
        self.by_number.remove(&number);
        Some(number)
    }

    /// Removes by number; its id, if it was there.
    pub(super) fn remove_number(&mut self, number: PendingNumber) -> Option<String> {
        let id = self.by_number.remove(&number)?;
        self.by_id.remove(&id);
        Some(id)
    }

    pub(super) fn contains(&self, member_id: &str) -> bool {
        self.by_id.contains_key(member_id)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_number.clear();
    }

    /// Every number, for the walk that checks the laws.
    pub(super) fn numbers(&self) -> impl Iterator<Item = PendingNumber> + '_ {
        self.by_number.keys().copied()
    }
}
