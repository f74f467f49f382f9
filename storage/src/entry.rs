//! What a log holds: entries, the vote and the log's start.

use bytes::Bytes;
use corduroy_record::{Batch, BatchHeader, LogIndex, Offset, ReplicaId, Term};

/// The largest payload of an entry, in bytes.
pub const ENTRY_BYTES_MAX: usize = 256 << 20;

/// What an entry is. The numbers are those of the entry frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// One record batch; the only kind that takes offsets.
    Batch = 1,
    /// An entry of the state machine's own; its bytes mean nothing to storage.
    Internal = 2,
    /// A leader's first entry of its term.
    Blank = 3,
    /// A change of the group's members.
    Membership = 4,
}

impl EntryKind {
    /// Reads the number of an entry frame.
    pub(crate) fn from_number(number: u8) -> Option<EntryKind> {
        match number {
            1 => Some(EntryKind::Batch),
            2 => Some(EntryKind::Internal),
            3 => Some(EntryKind::Blank),
            4 => Some(EntryKind::Membership),
            _ => None,
        }
    }
}

/// The bytes of an entry. Clone shares them.
#[derive(Clone, Debug)]
pub enum Payload {
    /// One record batch.
    Batch(Batch),
    /// The state machine's own.
    Internal(Bytes),
    /// Nothing.
    Blank,
    /// The group's members, in the Raft crate's encoding.
    Membership(Bytes),
}

impl Payload {
    /// Which kind of entry holds this.
    pub fn kind(&self) -> EntryKind {
        match self {
            Payload::Batch(_) => EntryKind::Batch,
            Payload::Internal(_) => EntryKind::Internal,
            Payload::Blank => EntryKind::Blank,
            Payload::Membership(_) => EntryKind::Membership,
        }
    }

    /// Length in bytes, as stored.
    pub fn size_bytes(&self) -> usize {
        match self {
            Payload::Batch(batch) => batch.size_bytes(),
            Payload::Internal(bytes) | Payload::Membership(bytes) => bytes.len(),
            Payload::Blank => 0,
        }
    }

    /// Offsets that the entry takes: last offset delta plus one for a batch, else none.
    pub fn records(&self) -> u32 {
        match self {
            Payload::Batch(batch) => records_of(batch.header()),
            _ => 0,
        }
    }

    /// The batch's largest record timestamp; `i64::MIN` for all else.
    pub(crate) fn max_timestamp(&self) -> i64 {
        match self {
            Payload::Batch(batch) => batch.header().max_timestamp,
            _ => i64::MIN,
        }
    }
}

/// Offsets that a batch spans. A compacted batch spans more than it holds.
pub(crate) fn records_of(header: &BatchHeader) -> u32 {
    u32::try_from(i64::from(header.last_offset_delta) + 1).unwrap_or(0)
}

/// What the log knows of an entry without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead {
    /// The term of the leader that appended it.
    pub term: Term,
    /// Its place in the log.
    pub index: LogIndex,
    /// A batch's first offset; for all other kinds the next offset at their place.
    pub base_offset: Offset,
    /// Offsets that it takes.
    pub records: u32,
    /// What it is.
    pub kind: EntryKind,
}

impl EntryHead {
    /// The offset after this entry.
    pub fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.records)
    }
}

/// One entry of a log. Clone is cheap: it shares the payload's bytes.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is and what it is.
    pub head: EntryHead,
    /// Its bytes.
    pub payload: Payload,
}

/// What [`crate::Log::append`] takes.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The term of its leader.
    pub term: Term,
    /// Must be the log's next index.
    pub index: LogIndex,
    /// `None`: this replica leads, and the log stamps the offset. `Some`: a follower verifies
    /// that its log gives the same.
    pub base_offset: Option<Offset>,
    /// Its bytes.
    pub payload: Payload,
}

/// An entry as the state machine applies it: of a batch the header alone, unless the machine reads
/// records.
#[derive(Clone, Debug)]
pub struct AppliedEntry {
    /// Where it is and what it is.
    pub head: EntryHead,
    /// What there is to apply.
    pub body: AppliedBody,
}

/// See [`AppliedEntry`].
#[derive(Clone, Debug)]
pub enum AppliedBody {
    /// A batch's header.
    Batch(BatchHeader),
    /// A whole batch, for a machine that reads records.
    Records(Batch),
    /// The state machine's own.
    Internal(Bytes),
    /// Nothing.
    Blank,
    /// The group's members.
    Membership(Bytes),
}

impl AppliedBody {
    /// The header, if this is a batch.
    pub fn batch_header(&self) -> Option<&BatchHeader> {
        match self {
            AppliedBody::Batch(header) => Some(header),
            AppliedBody::Records(batch) => Some(batch.header()),
            AppliedBody::Internal(_) | AppliedBody::Blank | AppliedBody::Membership(_) => None,
        }
    }
}

impl AppliedEntry {
    pub(crate) fn of(entry: &Entry) -> AppliedEntry {
        let body = match &entry.payload {
            Payload::Batch(batch) => AppliedBody::Batch(*batch.header()),
            Payload::Internal(bytes) => AppliedBody::Internal(bytes.clone()),
            Payload::Blank => AppliedBody::Blank,
            Payload::Membership(bytes) => AppliedBody::Membership(bytes.clone()),
        };
        AppliedEntry {
            head: entry.head,
            body,
        }
    }
}

/// A replica's vote: durable before it is answered (Raft paper, figure 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The latest term this replica has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub voted_for: Option<ReplicaId>,
    /// Whether that replica is known to have won.
    pub committed: bool,
}

/// Where a log begins. Everything before it is in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStart {
    /// The first index that the log keeps or will hold.
    pub index: LogIndex,
    /// The offset at that index.
    pub offset: Offset,
    /// The entry before it, if there ever was one.
    pub prev: Option<(Term, LogIndex)>,
}

impl LogStart {
    /// The start of a log that was never cut.
    pub const ZERO: LogStart = LogStart {
        index: LogIndex::new(0),
        offset: Offset::ZERO,
        prev: None,
    };
}

/// A log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    /// Where it begins.
    pub log_start: LogStart,
    /// Its last entry; of an empty log the entry before its start.
    pub last: Option<(Term, LogIndex)>,
    /// The offset that the next batch takes.
    pub next_offset: Offset,
    /// The last entry that is durable here (or the entry before the start).
    pub durable_last: Option<LogIndex>,
    /// The vote, as last saved.
    pub vote: Option<Vote>,
    /// The committed entry, as last saved; never beyond the end of the log (law 6).
    pub committed: Option<(Term, LogIndex)>,
    /// Damage was found below the end. It has to be fetched again from the leader.
    pub damaged: bool,
    /// This replica must neither vote nor lead (law 8).
    pub no_vote: bool,
    /// Bytes in its segments.
    pub size_bytes: u64,
}
