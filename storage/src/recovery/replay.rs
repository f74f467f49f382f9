//! One partition's part of the journals, applied to its state.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use corduroy_env::planted::{self, Bug};
use corduroy_record::{
    Batch, BatchBuilder, BatchHeader, BuilderOptions, GroupId, LeaderEpoch, LogIndex, Offset, Term,
    crc32c,
};

use crate::checksum::{self, Checksum};
use crate::disk::{Disk, OpenMode, create_dir_durably};
use crate::entry::{Entry, EntryHead, EntryKind, LogStart, Payload};
use crate::error::{IoContext, StorageError};
use crate::frame::{self, ENVELOPE_BYTES};
use crate::index::{self, IndexRow, SparseIndex};
use crate::journal::{EntryRef, Record, RecordBody};
use crate::paths;
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentFile};
use crate::state::{JournalPlace, SegmentImage, StateImage};

/// Distance of index rows that recovery adds, in bytes: Kafka's default `index.interval.bytes`.
const INDEX_INTERVAL_BYTES: u32 = 4096;
/// What a batch's own checksum covers begins here: at its attributes.
const BATCH_CRC_FROM: usize = 21;

/// A partition's state in the making.
pub(super) struct Replay {
    image: StateImage,
    root: PathBuf,
    dir: PathBuf,
    /// What was wrong with its files before, or with its records.
    damage: Option<String>,
    /// Its state file could not be read: only votes are taken from the journal.
    votes_only: bool,
    /// A record did not follow the one before it: nothing after it is taken.
    stopped: bool,
    entries: u64,
    files: BTreeMap<u32, Arc<SegmentFile>>,
    /// Index rows of segments that grew.
    indices: BTreeMap<u32, SparseIndex>,
    /// The turn of the last records, and the entries that it refers to.
    last_turn: u64,
    references: Vec<(u32, u32, EntryRef)>,
    torn: bool,
}

pub(super) struct Outcome {
    pub entries: u64,
    pub damage: Option<String>,
    pub torn: bool,
}

impl Replay {
    /// `Ok(None)`: the replica cannot be identified, or is not registered.
    pub(super) fn begin(
        disk: &dyn Disk,
        root: &Path,
        group: GroupId,
    ) -> Result<Option<Replay>, StorageError> {
        let Some((image, damage)) = super::load_for_replay(disk, root, group)? else {
            return Ok(None);
        };
        let votes_only = damage.is_some();
        Ok(Some(Replay {
            image,
            root: root.to_owned(),
            dir: paths::partition_dir(root, group),
            damage,
            votes_only,
            stopped: false,
            entries: 0,
            files: BTreeMap::new(),
            indices: BTreeMap::new(),
            last_turn: 0,
            references: Vec::new(),
            torn: false,
        }))
    }

    pub(super) fn group(&self) -> GroupId {
        self.image.group
    }

    pub(super) fn session(&self) -> u64 {
        self.image.place.session
    }

    /// Whether a record is this replica's and is not in its state file yet.
    pub(super) fn takes(&self, incarnation: u64, session: u64, turn: u64) -> bool {
        let place = self.image.place;
        incarnation == self.image.incarnation && !(place.session == session && turn <= place.turn)
    }

    pub(super) fn flag(&mut self, what: String) {
        self.image.no_vote = true;
        self.image.damaged = true;
        // A later vote may have been lost: whoever led in this term may be deposed by now.
        if let Some(vote) = &mut self.image.vote {
            vote.committed = false;
        }
        self.damage.get_or_insert(what);
    }

    pub(super) fn apply(
        &mut self,
        disk: &dyn Disk,
        turn: u64,
        record: Record,
    ) -> Result<(), StorageError> {
        if turn != self.last_turn {
            self.last_turn = turn;
            self.references.clear();
        }
        if let RecordBody::Vote(vote) = &record.body {
            self.image.vote = Some(*vote);
            return Ok(());
        }
        if self.votes_only || self.stopped {
            return Ok(());
        }
        let applied = match record.body {
            RecordBody::Vote(_) => Ok(true),
            RecordBody::Segment(identity) => Ok(self.add_segment(identity)),
            RecordBody::Inline {
                segment,
                position,
                frames,
            } => self.add_inline(disk, segment, position, &frames),
            RecordBody::Referenced {
                segment,
                position,
                entries,
            } => Ok(self.add_references(segment, position, entries)),
            RecordBody::Committed(committed) => {
                self.image.committed = Some(committed);
                Ok(true)
            }
            RecordBody::Truncate {
                last,
                next_offset,
                cut,
            } => Ok(self.truncate(last, next_offset, cut)),
            RecordBody::Start(start) => {
                self.move_start(start);
                Ok(true)
            }
            RecordBody::Reset(start) => {
                self.image.empty_at(start);
                self.references.clear();
                Ok(true)
            }
            RecordBody::Flags {
                no_vote,
                damaged,
                damaged_from,
            } => {
                self.image.no_vote = no_vote;
                self.image.damaged = damaged;
                self.image.damaged_from = damaged_from;
                Ok(true)
            }
        }?;
        if !applied {
            // Journal records of a partition follow from each other; a gap means that some are
            // gone. What was applied up to here is sound.
            self.stopped = true;
            self.flag(format!(
                "turn {turn} of the journal does not follow the log's end"
            ));
        }
        Ok(())
    }

    fn add_segment(&mut self, identity: crate::segment::SegmentIdentity) -> bool {
        let image = &mut self.image;
        let follows = image
            .segments
            .last()
            .is_none_or(|last| last.identity.id < identity.id)
            && identity.base_index == image.next_index()
            && identity.base_offset == image.next_offset;
        if !follows {
            return false;
        }
        if let Some(last) = image.segments.last_mut() {
            last.sealed = true;
        }
        image.next_segment = image.next_segment.max(identity.id + 1);
        image.segments.push(SegmentImage {
            identity,
            end: SEGMENT_HEADER_BYTES,
            max_timestamp: i64::MIN,
            index_rows: 0,
            index_last_position: None,
            sealed: false,
        });
        self.indices.insert(identity.id, SparseIndex::empty());
        true
    }

    fn is_open_at(&self, segment: u32, position: u32) -> bool {
        self.image
            .segments
            .last()
            .is_some_and(|last| last.identity.id == segment && last.end == position)
    }

    /// Adds one entry to the image; `false` if it does not follow.
    fn add_entry(&mut self, head: &EntryHead, frame_bytes: u32, max_timestamp: i64) -> bool {
        let image = &mut self.image;
        let follows = head.index == image.next_index()
            && head.base_offset == image.next_offset
            && image.last.is_none_or(|(term, _)| term <= head.term);
        let Some(segment) = image.segments.last_mut() else {
            return false;
        };
        if !follows {
            return false;
        }
        let index = self.indices.entry(segment.identity.id).or_insert_with(|| {
            SparseIndex::stored(segment.index_rows, segment.index_last_position)
        });
        let row = IndexRow {
            index: head.index,
            offset: head.base_offset,
            max_timestamp_before: segment.max_timestamp,
            position: segment.end,
        };
        index.note(row, INDEX_INTERVAL_BYTES);
        segment.end += frame_bytes;
        segment.max_timestamp = segment.max_timestamp.max(max_timestamp);
        image.epochs.note(head.term, head.index, head.base_offset);
        image.last = Some((head.term, head.index));
        image.next_offset = head.next_offset();
        self.entries += 1;
        true
    }

    /// Entries whose frames are in the journal: written to their segment again.
    fn add_inline(
        &mut self,
        disk: &dyn Disk,
        segment: u32,
        position: u32,
        frames: &Bytes,
    ) -> Result<bool, StorageError> {
        if !self.is_open_at(segment, position) {
            return Ok(false);
        }
        let mut at = 0;
        while at < frames.len() {
            let Ok(envelope) = frame::parse_envelope(&frames[at..]) else {
                return Ok(false);
            };
            let bytes = envelope.frame_bytes();
            let payload = &frames[at + ENVELOPE_BYTES..];
            let max_timestamp = match envelope.head.kind {
                EntryKind::Batch => {
                    let Ok(header) = BatchHeader::parse(payload) else {
                        return Ok(false);
                    };
                    header.max_timestamp
                }
                _ => i64::MIN,
            };
            if !self.add_entry(&envelope.head, bytes, max_timestamp) {
                return Ok(false);
            }
            at += bytes as usize;
        }
        let file = self.segment_for_writing(disk, segment)?;
        file.open(disk)?
            .write_at(u64::from(position), &[IoSlice::new(frames)])
            .during("write", &file.path)?;
        Ok(true)
    }

    /// A segment's file; made again if the crash took it, because its creation is in the
    /// journal too.
    fn segment_for_writing(
        &mut self,
        disk: &dyn Disk,
        id: u32,
    ) -> Result<Arc<SegmentFile>, StorageError> {
        if let Some(file) = self.files.get(&id) {
            return Ok(file.clone());
        }
        let file = Arc::new(self.segment_file(id)?);
        match file.open(disk) {
            Ok(_) => {}
            Err(StorageError::Damaged { .. }) => {
                create_dir_durably(disk, &self.root, &self.dir).during("create", &self.dir)?;
                file.create(disk)?;
            }
            Err(error) => return Err(error),
        }
        self.files.insert(id, file.clone());
        Ok(file)
    }

    fn segment_file(&self, id: u32) -> Result<SegmentFile, StorageError> {
        let segment = self
            .image
            .segments
            .iter()
            .find(|segment| segment.identity.id == id);
        let group = self.image.group;
        match segment {
            Some(segment) => Ok(SegmentFile::new(group, &self.dir, segment.identity)),
            None => Err(StorageError::damaged(
                group,
                format!("segment {id} is not known"),
            )),
        }
    }

    fn add_references(&mut self, segment: u32, position: u32, entries: Vec<EntryRef>) -> bool {
        if !self.is_open_at(segment, position) {
            return false;
        }
        let mut at = position;
        for entry in entries {
            let bytes = entry.length + ENVELOPE_BYTES as u32;
            if !self.add_entry(&entry.head, bytes, entry.max_timestamp) {
                return false;
            }
            self.references.push((segment, at, entry));
            at += bytes;
        }
        true
    }

    fn truncate(
        &mut self,
        last: Option<(Term, LogIndex)>,
        next_offset: Offset,
        cut: Option<(u32, u32)>,
    ) -> bool {
        let image = &mut self.image;
        let end = last.map_or(image.start.index, |(_, index)| index.next());
        if end > image.next_index() {
            return false;
        }
        self.references
            .retain(|(_, _, entry)| entry.head.index < end);
        image
            .segments
            .retain(|segment| cut.is_some_and(|(id, _)| segment.identity.id <= id));
        if let (Some((id, cut_end)), Some(segment)) = (cut, image.segments.last_mut()) {
            if segment.identity.id != id || segment.end < cut_end {
                return false;
            }
            if segment.end > cut_end {
                segment.end = cut_end;
                segment.sealed = true;
                if let Some(index) = self.indices.get_mut(&id) {
                    index.truncate(cut_end);
                }
            }
        }
        image.epochs.truncate(end);
        image.last = last;
        image.next_offset = next_offset;
        image.committed = crate::log::clamp(image.committed, last);
        image.damaged_from = image.damaged_from.filter(|from| *from < end);
        true
    }

    fn move_start(&mut self, start: LogStart) {
        let image = &mut self.image;
        while image
            .segments
            .get(1)
            .is_some_and(|next| next.identity.base_index <= start.index)
        {
            image.segments.remove(0);
        }
        // What the dropped segments held is in the snapshot, whether or not it got there.
        let kept = |id: u32| {
            image
                .segments
                .iter()
                .any(|segment| segment.identity.id == id)
        };
        self.references.retain(|(segment, _, _)| kept(*segment));
        image.epochs.cut_before(&start);
        image.start = start;
        if image.last.is_none() {
            image.last = start.prev;
        }
    }

    /// All turns of its journal have been read. What the very last one refers to may never have
    /// reached the disk: then it is a torn tail (law 4).
    pub(super) fn end_of_journal(
        &mut self,
        disk: &dyn Disk,
        session: u64,
        last_turn: u64,
    ) -> Result<(), StorageError> {
        let references = std::mem::take(&mut self.references);
        if self.last_turn == last_turn {
            for (number, (segment, position, entry)) in references.iter().enumerate() {
                if !self.holds(disk, *segment, *position, entry)? {
                    self.cut_torn(*segment, *position, &entry.head);
                    if planted::is(Bug::ZeroTailIsBatch) {
                        self.keep_empty(disk, *segment, &references[number..])?;
                    }
                    break;
                }
            }
        }
        self.image.place = JournalPlace {
            session,
            turn: last_turn,
        };
        Ok(())
    }

    /// Whether a segment holds exactly the frame that was referred to.
    fn holds(
        &self,
        disk: &dyn Disk,
        segment: u32,
        position: u32,
        entry: &EntryRef,
    ) -> Result<bool, StorageError> {
        let file = self.segment_file(segment)?;
        let open = match file.open(disk) {
            Ok(open) => open,
            Err(StorageError::Damaged { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; entry.length as usize + ENVELOPE_BYTES];
        let got = open
            .read_at(u64::from(position), &mut bytes)
            .during("read", &file.path)?;
        let mut crc = Checksum::salted(file.identity.salt);
        crc.update(&bytes[4..]);
        let stored = bytes.first_chunk::<4>().map(|crc| u32::from_le_bytes(*crc));
        let matches = |found| checksum::holds(found, entry.crc);
        Ok(got == bytes.len() && matches(crc.finish()) && stored.is_some_and(matches))
    }

    fn cut_torn(&mut self, segment: u32, position: u32, first: &EntryHead) {
        self.torn = true;
        let end = first.index;
        if end <= self.image.start.index {
            // The same turn moved the log's start beyond: the snapshot holds what is gone.
            let start = self.image.start;
            self.image.empty_at(start);
            return;
        }
        let index = LogIndex::new(end.get() - 1);
        let last = self.image.epochs.term_of(index).map(|term| (term, index));
        self.truncate(last, first.base_offset, Some((segment, position)));
        // The bytes behind were never durable: they may be written over.
        if let Some(segment) = self.image.segments.last_mut() {
            segment.sealed = false;
        }
    }

    /// The planted bug: what was torn off is put back with its ids, its offsets, and no records.
    fn keep_empty(
        &mut self,
        disk: &dyn Disk,
        segment: u32,
        torn: &[(u32, u32, EntryRef)],
    ) -> Result<(), StorageError> {
        let file = self.segment_for_writing(disk, segment)?;
        for (_, _, entry) in torn {
            let Some(payload) = emptied(&entry.head) else {
                break;
            };
            let head = entry.head;
            let Some(position) = self.image.segments.last().map(|last| last.end) else {
                break;
            };
            let bytes = frame::frame_bytes(&payload) as u32;
            let body = frame::body(&payload).cloned().unwrap_or_default();
            let mut stamp = Vec::new();
            frame::encode(&Entry { head, payload }, file.identity.salt, &mut stamp);
            if !self.add_entry(&head, bytes, i64::MIN) {
                break;
            }
            file.open(disk)?
                .write_at(
                    u64::from(position),
                    &[IoSlice::new(&stamp), IoSlice::new(&body)],
                )
                .during("write", &file.path)?;
        }
        Ok(())
    }

    /// Makes everything accepted durable: segments, index rows, the state file. Removes files
    /// that the state does not name.
    pub(super) fn finish(mut self, disk: &dyn Disk, root: &Path) -> Result<Outcome, StorageError> {
        if !disk.exists(&self.dir).during("look for", &self.dir)? {
            create_dir_durably(disk, root, &self.dir).during("create", &self.dir)?;
        }
        self.image.committed = crate::log::clamp(self.image.committed, self.image.last);
        self.flush_segments(disk)?;
        self.store_index_rows(disk)?;
        self.image.save(disk, &self.dir)?;
        self.remove_orphans(disk);
        Ok(Outcome {
            entries: self.entries,
            damage: self.damage,
            torn: self.torn,
        })
    }

    /// Every segment that records of the journals touched: after a kill of the process the page
    /// cache may hold what the disk does not (law 3).
    fn flush_segments(&mut self, disk: &dyn Disk) -> Result<(), StorageError> {
        let grown: Vec<u32> = self.indices.keys().copied().collect();
        for id in grown {
            let known = self
                .image
                .segments
                .iter()
                .any(|segment| segment.identity.id == id);
            if !known {
                continue;
            }
            let file = match self.files.get(&id) {
                Some(file) => file.clone(),
                None => Arc::new(self.segment_file(id)?),
            };
            match file.open(disk) {
                Ok(open) => open.flush().during("flush", &file.path)?,
                Err(StorageError::Damaged { what, .. }) => {
                    let segment = self
                        .image
                        .segments
                        .iter()
                        .find(|segment| segment.identity.id == id);
                    if segment.is_some_and(|segment| segment.end == SEGMENT_HEADER_BYTES) {
                        // Created in the last turn, without entries: made again.
                        file.create(disk)?.flush().during("flush", &file.path)?;
                    } else {
                        let base = file.identity.base_index;
                        self.image.damaged_from =
                            Some(self.image.damaged_from.map_or(base, |from| from.min(base)));
                        self.flag(what.to_string());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn store_index_rows(&mut self, disk: &dyn Disk) -> Result<(), StorageError> {
        for segment in &mut self.image.segments {
            let Some(index) = self.indices.get_mut(&segment.identity.id) else {
                continue;
            };
            let rows = index.unstored(segment.end);
            if rows.is_empty() {
                continue;
            }
            let identity = segment.identity;
            let path = paths::index_file(&self.dir, identity.base_offset.get(), identity.id);
            index::store_rows(disk, &path, identity.salt, segment.index_rows, &rows)?;
            let file = disk.open(&path, OpenMode::Existing).during("open", &path)?;
            file.flush().during("flush", &path)?;
            segment.index_rows += rows.len() as u32;
            segment.index_last_position = rows.last().map(|row| row.position);
        }
        Ok(())
    }

    fn remove_orphans(&self, disk: &dyn Disk) {
        // Of a damaged state nothing is known, so nothing is removed.
        if self.votes_only {
            return;
        }
        for name in disk.list(&self.dir).unwrap_or_default() {
            let Some(id) = paths::parse_segment(&name) else {
                continue;
            };
            let known = self
                .image
                .segments
                .iter()
                .any(|segment| segment.identity.id == id);
            if !known {
                disk.remove_file(&self.dir.join(name)).ok();
            }
        }
    }
}

/// An entry's payload without what it said; `None` where nothing else can be said.
fn emptied(head: &EntryHead) -> Option<Payload> {
    match head.kind {
        EntryKind::Blank => Some(Payload::Blank),
        EntryKind::Internal => Some(Payload::Internal(Bytes::new())),
        EntryKind::Membership => None,
        EntryKind::Batch => {
            // As compaction would leave it: the offsets stay, the records are gone.
            let mut header = *BatchBuilder::new(BuilderOptions::default())
                .finish()
                .header();
            header.base_offset = head.base_offset;
            header.leader_epoch = LeaderEpoch::from_term(head.term);
            header.last_offset_delta = i32::try_from(head.records).ok()? - 1;
            header.crc = crc32c(&header.to_bytes()[BATCH_CRC_FROM..]);
            let bytes = Bytes::copy_from_slice(&header.to_bytes());
            Batch::parse(bytes).ok().map(Payload::Batch)
        }
    }
}
