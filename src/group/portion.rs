//! How much a coordinator's own upkeep writes in one decision: what is more goes in several.

use corduroy_group::records::GroupRecord;

/// Records of one portion: commits wait while they are put together.
const RECORDS_MAX: usize = 4096;

/// Bytes of keys and values of one portion: about a batch.
const BYTES_MAX: usize = 512 * 1024;

/// Records of one decision. Law: the first one always finds room, so whoever goes on with what did
/// not gets to the end.
pub(super) struct Portion {
    records: Vec<GroupRecord>,
    bytes: usize,
    records_max: usize,
    bytes_max: usize,
}

impl Default for Portion {
    fn default() -> Portion {
        Portion {
            records: Vec::new(),
            bytes: 0,
            records_max: RECORDS_MAX,
            bytes_max: BYTES_MAX,
        }
    }
}

impl Portion {
    /// Room for one record.
    pub(super) fn of_one() -> Portion {
        Portion {
            records_max: 1,
            ..Portion::default()
        }
    }

    /// Room for `bytes_max` of keys and values, however many records these are.
    pub(super) fn of_bytes(bytes_max: usize) -> Portion {
        Portion {
            records_max: usize::MAX,
            bytes_max,
            ..Portion::default()
        }
    }

    /// Takes the record in, if there is room; says whether there was.
    pub(super) fn push(&mut self, record: GroupRecord) -> bool {
        let value_bytes = record.encode_value().map_or(0, |value| value.len());
        let bytes = self.bytes + record.encode_key().len() + value_bytes;
        let is_full = self.is_full() || bytes > self.bytes_max;
        if is_full && !self.records.is_empty() {
            return false;
        }
        self.bytes = bytes;
        self.records.push(record);
        true
    }

    /// Takes in what there is room for; says whether that was everything.
    pub(super) fn fill(&mut self, records: impl IntoIterator<Item = GroupRecord>) -> bool {
        records.into_iter().all(|record| self.push(record))
    }

    /// Whether it holds as many records as it may.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= self.records_max
    }

    /// How many records it holds.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The records, in the order in which they came.
    pub(super) fn into_records(self) -> Vec<GroupRecord> {
        self.records
    }
}
