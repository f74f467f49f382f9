//! The table as bytes, for snapshots: its live records in Kafka's own form, so that there is one
//! form of each value.
//!
//! Big-endian. i16 version (1); then for each live record i32 length and key, i32 length and value;
//! an empty key ends them (no key is empty); then i32 count, and for each group whose last
//! generation is above that of its value: i32 length, name, i32 generation.

use bytes::Bytes;

use super::{GroupKind, GroupState, GroupTable};
use crate::records::RecordError;
use crate::records::wire::{Layout, Reader, Writer};

const VERSION: i16 = 1;
const NAME: &str = "the table of groups";

impl GroupTable {
    /// The table as bytes; equal tables give equal bytes.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new(VERSION, Layout::Fixed);
        for record in self.live_records() {
            if let Some(value) = record.encode_value() {
                writer.bytes(&record.encode_key());
                writer.bytes(&value);
            }
        }
        writer.bytes(&[]);
        let generations: Vec<(&String, i32)> = self
            .groups
            .iter()
            .filter(|(_, state)| state.last_generation != implied_generation(state))
            .map(|(name, state)| (name, state.last_generation))
            .collect();
        writer.list(generations.iter(), |writer, (name, generation)| {
            writer.bytes(name.as_bytes());
            writer.i32(*generation);
        });
        writer.finish()
    }

    /// The table of bytes that [`GroupTable::encode`] made.
    ///
    /// # Errors
    ///
    /// [`RecordError`] for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<GroupTable, RecordError> {
        let mut reader = Reader::new(bytes, Layout::Fixed);
        let version = reader.i16(NAME)?;
        if version != VERSION {
            return Err(RecordError::Version {
                value: NAME,
                version,
            });
        }
        let mut table = GroupTable::new();
        loop {
            let key = reader.slice(NAME)?;
            if key.is_empty() {
                break;
            }
            let value = reader.slice(NAME)?;
            table.apply(key, Some(value))?;
        }
        let generations = reader.list(NAME, |reader| {
            let name = std::str::from_utf8(reader.slice(NAME)?)
                .map_err(|_not_text| RecordError::Text(NAME))?;
            Ok((name, reader.i32(NAME)?))
        })?;
        reader.end(NAME)?;
        for (name, generation) in generations {
            table.note_generation(name, generation);
        }
        Ok(table)
    }
}

/// The last generation that the live records alone tell.
fn implied_generation(state: &GroupState) -> i32 {
    match &state.kind {
        GroupKind::Classic(value) => value.generation.max(0),
        GroupKind::Simple | GroupKind::Consumer(_) => 0,
    }
}
