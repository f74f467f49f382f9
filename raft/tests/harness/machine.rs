//! A state machine whose tables tell everything that was applied.

use bytes::Bytes;
use corduroy_raft::{ReplicaEvent, StateMachine};
use corduroy_record::LogIndex;
use corduroy_storage::{AppliedBody, AppliedEntry};

/// Hears of an event of the replica.
pub type OnEvent = Box<dyn Fn(&ReplicaEvent)>;

/// Counts and hashes what is applied.
#[derive(Default)]
pub struct TestMachine {
    pub applied: Option<LogIndex>,
    pub records: u64,
    pub internal: u64,
    pub hash: u64,
    pub events: Vec<ReplicaEvent>,
    /// Hears of each event as it happens.
    pub on_event: Option<OnEvent>,
    /// Panics when it applies this internal entry.
    pub poison: Option<&'static [u8]>,
    pub restores: u64,
    /// `tables()` is padded to this size, for snapshots that take several frames.
    pub padding_bytes: usize,
}

impl TestMachine {
    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x100_0000_01b3);
    }

    /// Why the replica stopped, once it has.
    pub fn stopped(&self) -> Option<String> {
        self.events.iter().find_map(|event| match event {
            ReplicaEvent::Stopped { reason } => Some(reason.clone()),
            _ => None,
        })
    }

    pub fn fingerprint(&self) -> (u64, u64, u64) {
        (self.records, self.internal, self.hash)
    }
}

impl StateMachine for TestMachine {
    fn apply(&mut self, entries: &[AppliedEntry]) {
        for entry in entries {
            if let Some(applied) = self.applied {
                assert_eq!(
                    entry.head.index,
                    applied.next(),
                    "entries come in log order"
                );
            }
            self.applied = Some(entry.head.index);
            match &entry.body {
                AppliedBody::Batch(header) => {
                    assert_eq!(header.base_offset, entry.head.base_offset);
                    self.records += u64::from(entry.head.records);
                    self.mix(u64::from(header.crc) ^ entry.head.base_offset.get() as u64);
                }
                AppliedBody::Internal(bytes) => {
                    assert!(!bytes.is_empty(), "a void is not shown");
                    if self.poison == Some(&bytes[..]) {
                        self.poison = None;
                        panic!("the machine was poisoned by the test");
                    }
                    self.internal += 1;
                    self.mix(bytes.len() as u64);
                }
                AppliedBody::Records(_) => unreachable!("this machine reads headers"),
                AppliedBody::Blank | AppliedBody::Membership(_) => {}
            }
        }
    }

    fn tables(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(40 + self.padding_bytes);
        let applied = self.applied.map_or(u64::MAX, LogIndex::get);
        for number in [applied, self.records, self.internal, self.hash] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.resize(bytes.len() + self.padding_bytes, 7);
        bytes.into()
    }

    fn restore(&mut self, tables: Option<Bytes>) -> Result<(), String> {
        self.restores += 1;
        let mut numbers = [u64::MAX, 0, 0, 0];
        if let Some(bytes) = tables {
            if bytes.len() < 32 {
                return Err("too short".to_owned());
            }
            for (slot, chunk) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
                *slot = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            }
        }
        self.applied = (numbers[0] != u64::MAX).then(|| LogIndex::new(numbers[0]));
        [_, self.records, self.internal, self.hash] = numbers;
        Ok(())
    }

    fn event(&mut self, event: &ReplicaEvent) {
        if let Some(hear) = &self.on_event {
            hear(event);
        }
        self.events.push(event.clone());
    }
}
