//! What of each owned partition was handed out, processed, and committed. Pure.

use std::collections::BTreeMap;

use crate::topic_partition::TopicPartition;

/// A position: reading goes on at `offset`; `leader_epoch` is that of the record before it, -1 =
/// unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) offset: i64,
    pub(super) leader_epoch: i32,
}

/// One ownership of one partition.
///
/// Law: `committed <= processed <= delivered`, as far as they are known; each only grows. So no
/// commit can go back behind an earlier one.
#[derive(Debug)]
struct Account {
    incarnation: u64,
    /// Where reading began, once something was handed out.
    began: Option<i64>,
    delivered: Option<Position>,
    processed: Option<Position>,
    committed: i64,
}

/// Why a commit can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The partition is still owned as it was when the batch was handed out.
    Current,
    /// It was given up since, and maybe taken again.
    Stale,
}

/// Offsets of one partition that a member was given and that are not known to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncommitted {
    /// The partition.
    pub at: TopicPartition,
    /// The first of them: where the group goes on if this member ends now.
    pub from: i64,
    /// Behind the last of them.
    pub to: i64,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: BTreeMap<TopicPartition, Account>,
    incarnations: u64,
}

impl Ledger {
    /// A new ownership. Returns its number, which no other one has.
    pub(super) fn open(&mut self, at: TopicPartition) -> u64 {
        self.incarnations += 1;
        let account = Account {
            incarnation: self.incarnations,
            began: None,
            delivered: None,
            processed: None,
            committed: -1,
        };
        self.accounts.insert(at, account);
        self.incarnations
    }

    pub(super) fn close(&mut self, at: &TopicPartition) {
        self.accounts.remove(at);
    }

    pub(super) fn standing(&self, at: &TopicPartition, incarnation: u64) -> Standing {
        match self.accounts.get(at) {
            Some(account) if account.incarnation == incarnation => Standing::Current,
            _ => Standing::Stale,
        }
    }

    pub(super) fn incarnation(&self, at: &TopicPartition) -> Option<u64> {
        self.accounts.get(at).map(|account| account.incarnation)
    }

    fn current(&mut self, at: &TopicPartition, incarnation: u64) -> Option<&mut Account> {
        self.accounts
            .get_mut(at)
            .filter(|account| account.incarnation == incarnation)
    }

    /// A batch that begins at `from` and ends at `position` was handed out.
    pub(super) fn delivered(
        &mut self,
        at: &TopicPartition,
        incarnation: u64,
        from: i64,
        position: Position,
    ) {
        if let Some(account) = self.current(at, incarnation) {
            account.began.get_or_insert(from);
            account.delivered = Some(position);
        }
    }

    /// What was handed out and is not known to be committed.
    pub(super) fn uncommitted(&self) -> Vec<Uncommitted> {
        let range = |(at, account): (&TopicPartition, &Account)| {
            let (from, to) = (account.began?, account.delivered?.offset);
            let from = from.max(account.committed);
            let at = at.clone();
            (from < to).then_some(Uncommitted { at, from, to })
        };
        self.accounts.iter().filter_map(range).collect()
    }

    /// All that was handed out has been processed: the user asks for more.
    pub(super) fn processed_all(&mut self) {
        for account in self.accounts.values_mut() {
            if account.delivered.is_some() {
                account.processed = account.delivered;
            }
        }
    }

    /// Everything of one partition up to `position` has been processed.
    pub(super) fn processed(&mut self, at: &TopicPartition, incarnation: u64, position: Position) {
        if let Some(account) = self.current(at, incarnation)
            && account
                .processed
                .is_none_or(|known| known.offset < position.offset)
        {
            account.processed = Some(position);
        }
    }

    /// What was processed and is not committed yet.
    pub(super) fn owed(&self) -> BTreeMap<TopicPartition, (u64, Position)> {
        self.accounts
            .iter()
            .filter_map(|(at, account)| {
                let processed = account.processed?;
                let is_owed = processed.offset > account.committed;
                is_owed.then(|| (at.clone(), (account.incarnation, processed)))
            })
            .collect()
    }

    /// Whether a commit of `offset` would say something new.
    pub(super) fn advances(&self, at: &TopicPartition, offset: i64) -> bool {
        self.accounts
            .get(at)
            .is_some_and(|account| account.committed < offset)
    }

    /// The coordinator has it.
    pub(super) fn committed(&mut self, at: &TopicPartition, incarnation: u64, offset: i64) {
        if let Some(account) = self.current(at, incarnation) {
            account.committed = account.committed.max(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: i64) -> Position {
        Position {
            offset,
            leader_epoch: 1,
        }
    }

    #[test]
    fn only_what_was_processed_is_owed_and_only_once() {
        let (mut ledger, t0) = (Ledger::default(), TopicPartition::new("t", 0));
        let first = ledger.open(t0.clone());
        assert!(ledger.owed().is_empty());
        ledger.delivered(&t0, first, 4, at(10));
        assert!(ledger.owed().is_empty(), "handed out is not processed");
        ledger.processed_all();
        assert_eq!(ledger.owed(), [(t0.clone(), (first, at(10)))].into());
        ledger.committed(&t0, first, 10);
        assert!(ledger.owed().is_empty());
        ledger.processed(&t0, first, at(5));
        ledger.committed(&t0, first, 5);
        assert!(ledger.owed().is_empty(), "nothing goes back");
        assert!(!ledger.advances(&t0, 10));
        assert!(ledger.advances(&t0, 11));
    }

    #[test]
    fn another_ownership_of_the_same_partition_is_another_account() {
        let (mut ledger, t0) = (Ledger::default(), TopicPartition::new("t", 0));
        let first = ledger.open(t0.clone());
        ledger.close(&t0);
        assert_eq!(ledger.standing(&t0, first), Standing::Stale);
        let second = ledger.open(t0.clone());
        assert_ne!(first, second);
        assert_eq!(ledger.standing(&t0, first), Standing::Stale);
        assert_eq!(ledger.standing(&t0, second), Standing::Current);
        ledger.delivered(&t0, first, 0, at(7));
        ledger.processed(&t0, first, at(7));
        ledger.processed_all();
        assert!(ledger.owed().is_empty(), "an old batch moves nothing");
        assert!(ledger.uncommitted().is_empty());
    }

    #[test]
    fn what_a_member_that_ends_now_has_read_again() {
        let (mut ledger, t0) = (Ledger::default(), TopicPartition::new("t", 0));
        let first = ledger.open(t0.clone());
        let range = |from, to| Uncommitted {
            at: t0.clone(),
            from,
            to,
        };
        assert!(ledger.uncommitted().is_empty(), "nothing was handed out");
        ledger.delivered(&t0, first, 4, at(10));
        assert_eq!(ledger.uncommitted(), [range(4, 10)]);
        ledger.delivered(&t0, first, 10, at(20));
        assert_eq!(ledger.uncommitted(), [range(4, 20)]);
        ledger.committed(&t0, first, 10);
        assert_eq!(ledger.uncommitted(), [range(10, 20)]);
        ledger.committed(&t0, first, 20);
        assert!(ledger.uncommitted().is_empty());
    }
}
