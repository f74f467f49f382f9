//! Reads frames from segment files, window by window. Blocks: runs on the read pool.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use corduroy_record::{BATCH_HEADER_BYTES, BatchHeader, LogIndex};

use crate::disk::{Disk, DiskFile};
use crate::entry::{AppliedBody, AppliedEntry, Entry, EntryHead, EntryKind};
use crate::error::{IoContext, StorageError};
use crate::frame::{self, ENVELOPE_BYTES, Envelope};
use crate::index::IndexRow;
use crate::segment::SegmentFile;

/// Bytes read at once while frames are skipped or are small.
const WINDOW_BYTES: usize = 64 << 10;
/// Bytes read at once at most for a caller who wants many.
const WINDOW_BYTES_MAX: usize = 4 << 20;

/// A part of a segment, `from..end`, both at frame boundaries.
#[derive(Clone)]
pub(crate) struct Span {
    pub segment: Arc<SegmentFile>,
    pub from: u32,
    /// The entry at `from`.
    pub first: LogIndex,
    pub end: u32,
}

/// What to do with an entry, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Skip,
    Take,
    Stop,
}

/// A read met bytes that are not what was written.
#[derive(Debug)]
pub(crate) struct ScanError {
    pub error: StorageError,
    /// If the bytes are damaged: the first entry that cannot be read.
    pub damaged_from: Option<LogIndex>,
}

impl From<StorageError> for ScanError {
    fn from(error: StorageError) -> Self {
        ScanError {
            error,
            damaged_from: None,
        }
    }
}

struct Window<'a> {
    file: &'a Arc<dyn DiskFile>,
    segment: &'a SegmentFile,
    end: u32,
    bytes: Bytes,
    start: u32,
    ahead: usize,
}

impl Window<'_> {
    /// At least `need` bytes from `position` on (fewer only where the span ends).
    fn at(&mut self, position: u32, need: usize) -> Result<Bytes, StorageError> {
        let offset = position.wrapping_sub(self.start) as usize;
        if position >= self.start && offset + need <= self.bytes.len() {
            return Ok(self.bytes.slice(offset..));
        }
        let rest = (self.end - position) as usize;
        let mut buffer = vec![0; need.max(self.ahead).min(rest)];
        let got = self
            .file
            .read_at(u64::from(position), &mut buffer)
            .during("read", &self.segment.path)?;
        buffer.truncate(got);
        self.bytes = Bytes::from(buffer);
        self.start = position;
        Ok(self.bytes.clone())
    }
}

/// Walks the frames of a span. `visit` gets each frame's position, its checked envelope and
/// bytes that hold the envelope and the checked front of the payload, and says how to go on.
fn walk(
    disk: &dyn Disk,
    span: &Span,
    ahead: usize,
    mut visit: impl FnMut(&mut Frame<'_, '_>) -> Result<ControlFlow<()>, ScanError>,
) -> Result<ControlFlow<()>, ScanError> {
    let segment = &span.segment;
    let mut expected = span.first;
    let file = segment.open(disk).map_err(|error| match error {
        StorageError::Damaged { .. } => ScanError {
            error,
            damaged_from: Some(span.first),
        },
        error => error.into(),
    })?;
    let mut window = Window {
        file,
        segment,
        end: span.end,
        bytes: Bytes::new(),
        start: span.from,
        ahead: ahead.clamp(WINDOW_BYTES, WINDOW_BYTES_MAX),
    };
    let mut position = span.from;
    while position < span.end {
        let damage = |what: String, expected: LogIndex| ScanError {
            error: segment.damage(&format!("frame at {position}: {what}")),
            damaged_from: Some(expected),
        };
        let bytes = window.at(position, ENVELOPE_BYTES + BATCH_HEADER_BYTES)?;
        let envelope =
            frame::parse_envelope(&bytes).map_err(|error| damage(error.to_string(), expected))?;
        frame::check_head(&bytes, &envelope, segment.identity.salt)
            .map_err(|error| damage(error.to_string(), expected))?;
        let length = envelope.frame_bytes();
        if length > span.end - position {
            return Err(damage("it reaches beyond the end".to_owned(), expected));
        }
        if expected != envelope.head.index {
            return Err(damage(
                format!("it holds entry {}", envelope.head.index),
                expected,
            ));
        }
        let mut frame = Frame {
            position,
            envelope,
            front: bytes,
            window: &mut window,
        };
        if visit(&mut frame)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        expected = envelope.head.index.next();
        position += length;
    }
    Ok(ControlFlow::Continue(()))
}

struct Frame<'w, 'a> {
    position: u32,
    envelope: Envelope,
    front: Bytes,
    window: &'w mut Window<'a>,
}

impl Frame<'_, '_> {
    /// Reads and checks the whole frame.
    fn entry(&mut self) -> Result<Entry, ScanError> {
        let length = self.envelope.frame_bytes() as usize;
        let bytes = self.window.at(self.position, length)?;
        let segment = self.window.segment;
        frame::decode(&bytes, segment.identity.salt).map_err(|error| ScanError {
            error: segment.damage(&format!("frame at {}: {error}", self.position)),
            damaged_from: Some(self.envelope.head.index),
        })
    }

    fn batch_header(&self) -> Result<BatchHeader, ScanError> {
        let end = ENVELOPE_BYTES + self.envelope.head_payload_bytes();
        let bytes = &self.front[ENVELOPE_BYTES..end.min(self.front.len())];
        BatchHeader::parse(bytes).map_err(|error| ScanError {
            error: self
                .window
                .segment
                .damage(&format!("batch header at {}: {error}", self.position)),
            damaged_from: Some(self.envelope.head.index),
        })
    }
}

/// Reads whole entries until their payloads reach `bytes_max` (the first one is always read).
pub(crate) fn read_entries(
    disk: &dyn Disk,
    spans: &[Span],
    bytes_max: usize,
    want: impl Fn(&EntryHead) -> Want,
) -> Result<Vec<Entry>, ScanError> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    for span in spans {
        let walked = walk(disk, span, bytes_max, |frame| {
            match want(&frame.envelope.head) {
                Want::Stop => return Ok(ControlFlow::Break(())),
                Want::Skip => return Ok(ControlFlow::Continue(())),
                Want::Take => {}
            }
            let length = frame.envelope.length as usize;
            if !entries.is_empty() && bytes + length > bytes_max {
                return Ok(ControlFlow::Break(()));
            }
            bytes += length;
            entries.push(frame.entry()?);
            Ok(ControlFlow::Continue(()))
        });
        match walked {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            // What was read before the damage is good; the next read meets it first.
            Err(_) if !entries.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(entries)
}

/// Reads what apply needs of entries, at most `count_max` of them.
pub(crate) fn read_applied(
    disk: &dyn Disk,
    spans: &[Span],
    count_max: usize,
    want: impl Fn(&EntryHead) -> Want,
) -> Result<Vec<AppliedEntry>, ScanError> {
    let mut entries = Vec::new();
    for span in spans {
        let walked = walk(disk, span, WINDOW_BYTES, |frame| {
            match want(&frame.envelope.head) {
                Want::Stop => return Ok(ControlFlow::Break(())),
                Want::Skip => return Ok(ControlFlow::Continue(())),
                Want::Take if entries.len() >= count_max => return Ok(ControlFlow::Break(())),
                Want::Take => {}
            }
            entries.push(if frame.envelope.head.kind == EntryKind::Batch {
                let body = AppliedBody::Batch(frame.batch_header()?);
                AppliedEntry {
                    head: frame.envelope.head,
                    body,
                }
            } else {
                AppliedEntry::of(&frame.entry()?)
            });
            Ok(ControlFlow::Continue(()))
        })?;
        if walked.is_break() {
            break;
        }
    }
    Ok(entries)
}

/// Visits heads with position and largest timestamp until told to stop.
pub(crate) fn visit_heads(
    disk: &dyn Disk,
    span: &Span,
    mut visit: impl FnMut(u32, &EntryHead, i64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, ScanError> {
    walk(disk, span, WINDOW_BYTES, |frame| {
        let max_timestamp = if frame.envelope.head.kind == EntryKind::Batch {
            frame.batch_header()?.max_timestamp
        } else {
            i64::MIN
        };
        Ok(visit(frame.position, &frame.envelope.head, max_timestamp))
    })
}

/// Checks every frame of a span in full; returns how many entries it holds.
pub(crate) fn verify(
    disk: &dyn Disk,
    span: &Span,
    mut visit: impl FnMut(u32, &Entry),
) -> Result<u64, ScanError> {
    let mut count = 0;
    let _end = walk(disk, span, WINDOW_BYTES_MAX, |frame| {
        let entry = frame.entry()?;
        visit(frame.position, &entry);
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Rebuilds the index rows of a span from its frames.
pub(crate) fn rebuild_index(
    disk: &dyn Disk,
    span: &Span,
    interval: u32,
    rows_max: usize,
) -> Result<Vec<IndexRow>, ScanError> {
    let mut rows: Vec<IndexRow> = Vec::new();
    let mut max_timestamp_before = i64::MIN;
    let _end = visit_heads(disk, span, |position, head, max_timestamp| {
        let due = rows
            .last()
            .is_none_or(|last| position >= last.position.saturating_add(interval));
        if due {
            let (index, offset) = (head.index, head.base_offset);
            rows.push(IndexRow {
                index,
                offset,
                max_timestamp_before,
                position,
            });
        }
        max_timestamp_before = max_timestamp_before.max(max_timestamp);
        if rows.len() < rows_max {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    Ok(rows)
}
