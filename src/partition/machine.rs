//! What a partition derives from its log: the high watermark, the producers, the log's start.
//! The same on every replica, because it comes from applied entries alone.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use corduroy_group::table::GroupTable;
use corduroy_raft::{ReplicaEvent, StateMachine, partition_span};
use corduroy_record::{Batch, LeaderEpoch, LogIndex, Offset, TopicPartition};
use corduroy_storage::{AppliedBody, AppliedEntry};
use tokio::sync::Notify;
use tracing::{Span, error, warn};

use super::producers::ProducerTable;

/// A decision of the leader that every replica follows, in the log as an internal entry.
#[derive(Clone, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
pub enum PartitionCommand {
    /// Records below `offset` are gone; entries below `index` may be purged (retention).
    LogStart {
        /// First log index that is kept.
        index: u64,
        /// First offset that can be read.
        offset: i64,
    },
    /// Producers without a record since `horizon_ms` are forgotten (`producer.id.expiration.ms`).
    ExpireProducers {
        /// Record time in milliseconds.
        horizon_ms: i64,
    },
}

impl PartitionCommand {
    /// The bytes of the internal entry.
    pub fn encode(&self) -> Result<Bytes, rkyv::rancor::Error> {
        rkyv::to_bytes::<rkyv::rancor::Error>(self).map(|b| Bytes::from(b.into_vec()))
    }

    /// Reads an internal entry; checked, because the bytes come from a disk.
    pub fn decode(bytes: &[u8]) -> Result<PartitionCommand, rkyv::rancor::Error> {
        let mut aligned = rkyv::util::AlignedVec::<16>::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        rkyv::from_bytes::<PartitionCommand, rkyv::rancor::Error>(&aligned)
    }
}

/// The tables that travel in checkpoints and snapshots.
#[derive(Clone, Debug, Default, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Tables {
    producers: ProducerTable,
    log_start: i64,
    high_watermark: i64,
    /// [`GroupTable::encode`], of a partition of `__consumer_offsets`; else empty.
    groups: Vec<u8>,
}

/// Uncompressed bytes of one batch of group records; the coordinator's own are far smaller.
const GROUP_RECORDS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Wakes whoever waits for a partition to change: parked fetches, the partition's own task.
#[derive(Clone, Default)]
pub struct Changes {
    waiters: Rc<RefCell<Vec<Rc<Notify>>>>,
}

impl Changes {
    /// Registers `waiter` for the next change only.
    pub fn register(&self, waiter: &Rc<Notify>) {
        let mut waiters = self.waiters.borrow_mut();
        if !waiters.iter().any(|w| Rc::ptr_eq(w, waiter)) {
            waiters.push(waiter.clone());
        }
    }

    /// Takes `waiter` off the list again.
    pub fn forget(&self, waiter: &Rc<Notify>) {
        self.waiters.borrow_mut().retain(|w| !Rc::ptr_eq(w, waiter));
    }

    /// Wakes all that registered.
    pub fn wake(&self) {
        if self.waiters.borrow().is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        for waiter in waiters {
            waiter.notify_one();
        }
    }
}

/// What lines about the machine carry.
struct Scene {
    name: TopicPartition,
    /// Of the last applied entry.
    epoch: LeaderEpoch,
}

impl Scene {
    fn span(&self) -> Span {
        let TopicPartition { topic, partition } = &self.name;
        partition_span(&Span::current(), topic, *partition, self.epoch)
    }
}

/// The applied state of one partition on this replica.
///
/// Law: `log_start <= applied_end <= high_watermark`, and the high watermark only grows while the
/// process lives. The others fall when the replica's instance is rebuilt in this process: it
/// applies again what lies behind its checkpoint.
pub struct PartitionMachine {
    scene: Scene,
    producers: ProducerTable,
    applied: LogIndex,
    /// End of what this instance has applied; the tables are as of it.
    applied_end: Offset,
    high_watermark: Offset,
    log_start: Offset,
    purge_target: Option<LogIndex>,
    changes: Changes,
    role_changed: Rc<Notify>,
    stopped: Option<String>,
    groups: Option<GroupTable>,
}

impl PartitionMachine {
    /// An empty machine of the partition `name`. `role_changed` is notified on every event of the replica. One that
    /// `holds_groups` reads its records as those of `__consumer_offsets`.
    pub fn new(
        name: TopicPartition,
        changes: Changes,
        role_changed: Rc<Notify>,
        holds_groups: bool,
    ) -> Self {
        Self {
            scene: Scene {
                name,
                epoch: LeaderEpoch::NONE,
            },
            groups: holds_groups.then(GroupTable::new),
            producers: ProducerTable::default(),
            applied: LogIndex::new(0),
            applied_end: Offset::ZERO,
            high_watermark: Offset::ZERO,
            log_start: Offset::ZERO,
            purge_target: None,
            changes,
            role_changed,
            stopped: None,
        }
    }

    /// The producers as of the last applied entry.
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// The consumer groups as of the last applied entry; none in a topic of users.
    pub fn groups(&self) -> Option<&GroupTable> {
        self.groups.as_ref()
    }

    /// Who waits for this partition to change.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// First offset that can be read.
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// End of what is committed and applied.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// The index up to which entries may be purged, once per decision.
    pub fn take_purge_target(&mut self) -> Option<LogIndex> {
        self.purge_target.take()
    }

    /// Why the replica stopped, if it did.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// What cannot be read is passed over, on every replica alike: users cannot write to this topic,
    /// so it is another program's record or a fault, and stopping the replicas would help nobody.
    fn apply_group_records(&mut self, batch: &Batch) {
        let Some(groups) = &mut self.groups else {
            return;
        };
        let scene = &self.scene;
        let records = match batch.records(GROUP_RECORDS_BYTES_MAX) {
            Ok(records) => records,
            Err(error) => {
                warn!(parent: &scene.span(), %error, "a batch of group records cannot be read; passed over");
                return;
            }
        };
        for record in records {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    warn!(parent: &scene.span(), %error, "a batch of group records ends in garbage; passed over");
                    return;
                }
            };
            let Some(key) = &record.key else { continue };
            if let Err(error) = groups.apply(key, record.value.as_deref()) {
                let offset = record.offset;
                warn!(parent: &scene.span(), %offset, %error, "a group record cannot be read; passed over");
            }
        }
    }

    fn apply_command(&mut self, bytes: &[u8]) {
        match PartitionCommand::decode(bytes) {
            Ok(PartitionCommand::LogStart { index, offset }) => {
                let offset = Offset::new(offset);
                if offset > self.log_start && offset <= self.applied_end {
                    self.log_start = offset;
                    self.purge_target = Some(LogIndex::new(index));
                    self.role_changed.notify_one();
                }
            }
            Ok(PartitionCommand::ExpireProducers { horizon_ms }) => {
                self.producers.expire(horizon_ms);
            }
            Err(error) => error!(
                parent: &self.scene.span(), %error,
                "an internal entry of the log cannot be read; skipped"
            ),
        }
    }
}

impl StateMachine for PartitionMachine {
    fn reads_records(&self) -> bool {
        self.groups.is_some()
    }

    fn topic(&self) -> Option<String> {
        Some(self.scene.name.topic.clone())
    }

    fn apply(&mut self, entries: &[AppliedEntry]) {
        for entry in entries {
            let head = &entry.head;
            self.scene.epoch = LeaderEpoch::from_term(head.term);
            match &entry.body {
                AppliedBody::Batch(header) => {
                    assert!(
                        self.groups.is_none(),
                        "law: a machine that reads records is given them"
                    );
                    self.producers.apply(head.index, head.base_offset, header);
                }
                AppliedBody::Records(batch) => {
                    let header = batch.header();
                    self.producers.apply(head.index, head.base_offset, header);
                    self.apply_group_records(batch);
                }
                AppliedBody::Internal(bytes) => self.apply_command(bytes),
                AppliedBody::Blank | AppliedBody::Membership(_) => {}
            }
            self.applied = head.index;
            let end = head.base_offset.advance(head.records);
            assert!(
                end >= self.applied_end,
                "law: what is applied grows ({end} < {})",
                self.applied_end
            );
            self.applied_end = end;
            self.high_watermark = self.high_watermark.max(end);
        }
        self.changes.wake();
    }

    fn tables(&self) -> Bytes {
        let tables = Tables {
            producers: self.producers.clone(),
            log_start: self.log_start.get(),
            high_watermark: self.applied_end.get(),
            groups: self
                .groups
                .as_ref()
                .map(|groups| groups.encode().to_vec())
                .unwrap_or_default(),
        };
        match rkyv::to_bytes::<rkyv::rancor::Error>(&tables) {
            Ok(bytes) => Bytes::from(bytes.into_vec()),
            Err(error) => {
                // Serialising plain maps of numbers into memory has no failing path of its own.
                error!(parent: &self.scene.span(), %error, "the partition's tables cannot be encoded");
                Bytes::new()
            }
        }
    }

    fn restore(&mut self, tables: Option<Bytes>) -> Result<(), String> {
        let tables = match tables {
            None => Tables::default(),
            Some(bytes) => {
                let mut aligned = rkyv::util::AlignedVec::<16>::with_capacity(bytes.len());
                aligned.extend_from_slice(&bytes);
                rkyv::from_bytes::<Tables, rkyv::rancor::Error>(&aligned)
                    .map_err(|e| format!("the partition's saved tables cannot be read: {e}"))?
            }
        };
        if self.groups.is_some() {
            let groups = match tables.groups.as_slice() {
                [] => GroupTable::new(),
                bytes => GroupTable::decode(bytes)
                    .map_err(|e| format!("the saved consumer groups cannot be read: {e}"))?,
            };
            self.groups = Some(groups);
        }
        self.producers = tables.producers;
        self.log_start = Offset::new(tables.log_start);
        self.applied_end = Offset::new(tables.high_watermark);
        self.high_watermark = self.high_watermark.max(self.applied_end);
        self.changes.wake();
        Ok(())
    }

    fn event(&mut self, event: &ReplicaEvent) {
        if let ReplicaEvent::Stopped { reason } = event {
            self.stopped = Some(reason.to_string());
        }
        self.role_changed.notify_one();
        self.changes.wake();
    }
}
