//! The epoch table: where each leader's entries begin.

use corduroy_record::{LogIndex, Offset, Term};

use crate::entry::LogStart;

/// The first entry of one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The term.
    pub term: Term,
    /// Index of its first entry in this log.
    pub first_index: LogIndex,
    /// Offset at that entry.
    pub first_offset: Offset,
}

/// Law: terms and indices strictly ascend, offsets do not descend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable {
    starts: Vec<EpochStart>,
}

impl EpochTable {
    /// The rows, ascending.
    pub fn starts(&self) -> &[EpochStart] {
        &self.starts
    }

    /// The last row.
    pub fn last(&self) -> Option<EpochStart> {
        self.starts.last().copied()
    }

    /// Kafka's answer to OffsetForLeaderEpoch (KIP-101, KIP-320; `LeaderEpochFileCache`'s
    /// rules): the epoch that is answered for, and the offset where it ended. `(-1, -1)` means
    /// unknown. `log_end` is what the leader gives as the end of its own, latest epoch.
    pub fn end_offset_for(&self, requested: i32, log_end: Offset) -> (i32, i64) {
        const UNKNOWN: (i32, i64) = (-1, -1);
        let Ok(requested_term) = u64::try_from(requested) else {
            return UNKNOWN;
        };
        let Some(latest) = self.last() else {
            return UNKNOWN;
        };
        let epoch_of = |term: Term| i32::try_from(term.get()).unwrap_or(-1);
        if requested_term == latest.term.get() {
            return (requested, log_end.get());
        }
        if requested_term > latest.term.get() {
            return UNKNOWN;
        }
        // Law: the latest term is above the requested one, so a higher row exists.
        let higher = self
            .starts
            .partition_point(|start| start.term.get() <= requested_term);
        let end = self.starts[higher].first_offset.get();
        match higher.checked_sub(1) {
            Some(floor) => (epoch_of(self.starts[floor].term), end),
            None => (requested, end),
        }
    }

    /// The term of the entry at `index`, if `index` is not below the first row.
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        let after = self
            .starts
            .partition_point(|start| start.first_index <= index);
        Some(self.starts[after.checked_sub(1)?].term)
    }

    /// Notes an appended entry.
    pub(crate) fn note(&mut self, term: Term, index: LogIndex, offset: Offset) {
        if self.last().is_none_or(|last| last.term < term) {
            // A row that the log's start was moved to, whose entries are all gone.
            self.truncate(index);
            self.starts.push(EpochStart {
                term,
                first_index: index,
                first_offset: offset,
            });
        }
    }

    /// Forgets rows that begin at or after `end`.
    pub(crate) fn truncate(&mut self, end: LogIndex) {
        self.starts.retain(|start| start.first_index < end);
    }

    /// Forgets what lies before `start`: the row that covers it begins there.
    pub(crate) fn cut_before(&mut self, start: &LogStart) {
        let after = self
            .starts
            .partition_point(|row| row.first_index <= start.index);
        if let Some(covering) = after.checked_sub(1) {
            self.starts.drain(..covering);
            let first = &mut self.starts[0];
            first.first_index = start.index;
            first.first_offset = first.first_offset.max(start.offset);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.starts.clear();
    }

    /// Rebuilds a table from stored rows; `None` if they break the law.
    pub(crate) fn from_rows(starts: Vec<EpochStart>) -> Option<EpochTable> {
        let lawful = starts.windows(2).all(|pair| {
            pair[0].term < pair[1].term
                && pair[0].first_index < pair[1].first_index
                && pair[0].first_offset <= pair[1].first_offset
        });
        lawful.then_some(EpochTable { starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(u64, u64, i64)]) -> EpochTable {
        let rows = rows.iter().map(|&(term, index, offset)| EpochStart {
            term: Term::new(term),
            first_index: LogIndex::new(index),
            first_offset: Offset::new(offset),
        });
        EpochTable::from_rows(rows.collect()).unwrap()
    }

    #[test]
    fn answers_as_kafka_does() {
        let epochs = table(&[(2, 0, 10), (4, 5, 20), (7, 9, 35)]);
        let end = Offset::new(50);
        for (requested, answer) in [
            (-1, (-1, -1)),
            (7, (7, 50)),
            (8, (-1, -1)),
            (1, (1, 10)),
            (2, (2, 20)),
            (3, (2, 20)),
            (4, (4, 35)),
            (6, (4, 35)),
        ] {
            assert_eq!(
                epochs.end_offset_for(requested, end),
                answer,
                "epoch {requested}"
            );
        }
        assert_eq!(EpochTable::default().end_offset_for(0, end), (-1, -1));
    }

    #[test]
    fn cutting_before_keeps_the_covering_row() {
        let mut epochs = table(&[(2, 0, 10), (4, 5, 20), (7, 9, 35)]);
        epochs.cut_before(&LogStart {
            index: LogIndex::new(6),
            offset: Offset::new(24),
            prev: Some((Term::new(4), LogIndex::new(5))),
        });
        assert_eq!(epochs, table(&[(4, 6, 24), (7, 9, 35)]));
        epochs.truncate(LogIndex::new(9));
        assert_eq!(epochs, table(&[(4, 6, 24)]));
        assert_eq!(epochs.term_of(LogIndex::new(100)), Some(Term::new(4)));
        assert_eq!(epochs.term_of(LogIndex::new(5)), None);
    }
}
