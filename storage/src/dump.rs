//! Shows what is in a data directory, a partition's directory or a journal, for people.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use corduroy_record::{GroupId, LogIndex};

use crate::checksum::checksum;
use crate::disk::{Disk, OpenMode, read_file};
use crate::entry::{EntryKind, Payload};
use crate::journal::{RecordBody, read_shard};
use crate::paths;
use crate::registry::{registered, registered_journals};
use crate::scan::{self, Span};
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentFile, parse_header};
use crate::state::{JournalPlace, MAGIC, StateImage};
use crate::tables::{SavedTables, TABLES_BYTES_MAX};

const STATE_BYTES_MAX: u64 = 64 << 20;

/// What [`dump`] found to be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpReport {
    /// Entries shown.
    pub entries: u64,
    /// Entries that only a journal speaks of so far, as far as that can be told: what was appended
    /// after the last checkpoint of its partition. Those that were cut off again count too.
    pub entries_unsettled: u64,
    /// One line for each thing that is not as it was written.
    pub problems: Vec<String>,
}

/// Writes a readable account of `dir` to `out`: a data directory, a partition's directory or a
/// shard's journal. With `verify` every byte of every entry is checked, else heads alone.
/// Changes nothing on the disk.
///
/// # Errors
/// Writing to `out`, reading the disk, and (`InvalidInput`) a directory that is none of the three.
/// Damage is no error: it is shown, and in the report.
pub fn dump(
    disk: &dyn Disk,
    dir: &Path,
    verify: bool,
    out: &mut dyn io::Write,
) -> io::Result<DumpReport> {
    let mut dump = Dump {
        disk,
        verify,
        out,
        report: DumpReport::default(),
        settled: BTreeMap::new(),
    };
    match layout_of(disk, dir)? {
        Layout::DataDirectory => dump.data_directory(dir)?,
        Layout::Partition => dump.partition(dir)?,
        Layout::Journal => dump.journal(dir)?,
    }
    let problems = dump.report.problems.len();
    let checked = if verify {
        "every byte checked"
    } else {
        "heads checked"
    };
    writeln!(
        dump.out,
        "\n{} entries, {problems} problems, {checked}",
        dump.report.entries
    )?;
    if dump.report.entries_unsettled > 0 {
        writeln!(
            dump.out,
            "{} more in the journal: appended since the last checkpoint of their partition",
            dump.report.entries_unsettled
        )?;
    }
    Ok(dump.report)
}

/// What a directory is, by the names in it.
enum Layout {
    DataDirectory,
    Partition,
    Journal,
}

fn layout_of(disk: &dyn Disk, dir: &Path) -> io::Result<Layout> {
    let names = disk.list(dir)?;
    let has = |is_ours: &dyn Fn(&str) -> bool| names.iter().any(|name| is_ours(name));
    if disk.exists(&paths::registry_dir(dir))? || disk.exists(&paths::journals_dir(dir))? {
        return Ok(Layout::DataDirectory);
    }
    // Without a state file it may still be a partition's directory, a damaged one: then the names
    // of its segments tell.
    if has(&|name| paths::parse_segment(name).is_some()) || is_state(disk, &paths::state_file(dir))?
    {
        return Ok(Layout::Partition);
    }
    if has(&|name| paths::parse_journal(name).is_some()) {
        return Ok(Layout::Journal);
    }
    let found = match &names[..] {
        [] => "it is empty".to_owned(),
        [first, ..] => format!("it holds {} names, the first is {first}", names.len()),
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "this is neither a data directory (which holds registry/, partitions/ and journal/) \
             nor a partition's directory (partitions/TOPIC-ID/PARTITION, with `state` and \
             BASE-N.log files) nor a shard's journal (journal/SHARD, with NNNN.journal files): \
             {found}"
        ),
    ))
}

/// Whether a file begins as a state file does.
fn is_state(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let file = match disk.open(path, OpenMode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let mut front = [0; MAGIC.len()];
    let got = file.read_at(0, &mut front)?;
    Ok(got == front.len() && front == *MAGIC)
}

struct Dump<'a> {
    disk: &'a dyn Disk,
    verify: bool,
    out: &'a mut dyn io::Write,
    report: DumpReport,
    /// The incarnation of a partition, and the journal's place up to which its state file speaks.
    settled: BTreeMap<GroupId, (u64, JournalPlace)>,
}

impl Dump<'_> {
    fn problem(&mut self, what: String) -> io::Result<()> {
        writeln!(self.out, "  PROBLEM  {what}")?;
        self.report.problems.push(what);
        Ok(())
    }

    fn data_directory(&mut self, root: &Path) -> io::Result<()> {
        for group in registered(self.disk, root)? {
            writeln!(self.out, "partition {group}")?;
            let dir = paths::partition_dir(root, group);
            if self.disk.exists(&dir)? {
                self.partition(&dir)?;
            } else {
                self.problem(format!("{group} is registered and its directory is gone"))?;
            }
        }
        for shard in registered_journals(self.disk, root)? {
            let dir = paths::journal_dir(root, shard);
            if !self.disk.exists(&dir)? {
                self.problem(format!("{}: the journal is gone", dir.display()))?;
            }
        }
        for name in self
            .disk
            .list(&paths::journals_dir(root))
            .unwrap_or_default()
        {
            writeln!(self.out, "journal of shard {name}")?;
            self.journal(&paths::journals_dir(root).join(name))?;
        }
        Ok(())
    }

    fn partition(&mut self, dir: &Path) -> io::Result<()> {
        let image = match read_file(self.disk, &paths::state_file(dir), STATE_BYTES_MAX) {
            Ok(bytes) => StateImage::decode(&bytes).ok().flatten(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match &image {
            Some(image) => {
                self.settled
                    .insert(image.group, (image.incarnation, image.place));
                self.state(image)?;
            }
            None => self.problem(format!(
                "{}: missing or damaged",
                dir.join("state").display()
            ))?,
        }
        for name in self.disk.list(dir)? {
            let is_snapshot = name == "snapshot";
            if is_snapshot || paths::parse_tables(&name).is_some() {
                self.tables(
                    &dir.join(&name),
                    &name,
                    image.as_ref().map(|image| image.group),
                )?;
            }
        }
        match image {
            Some(image) => {
                for segment in &image.segments {
                    let file = SegmentFile::new(image.group, dir, segment.identity);
                    self.segment(Arc::new(file), segment.end, image.start.index)?;
                }
            }
            None => {
                for name in self.disk.list(dir)? {
                    if name.ends_with(".log") {
                        self.segment_alone(dir, &name)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn state(&mut self, image: &StateImage) -> io::Result<()> {
        let StateImage {
            group,
            replica,
            incarnation,
            start,
            next_offset,
            ..
        } = image;
        writeln!(self.out, "  group        {group}")?;
        writeln!(
            self.out,
            "  replica      {replica} (incarnation {incarnation:016x})"
        )?;
        writeln!(
            self.out,
            "  log start    index {} offset {}",
            start.index, start.offset
        )?;
        match image.last {
            Some((term, index)) => writeln!(self.out, "  last         index {index} term {term}")?,
            None => writeln!(self.out, "  last         none")?,
        }
        writeln!(self.out, "  next offset  {next_offset}")?;
        if let Some((term, index)) = image.committed {
            writeln!(self.out, "  committed    index {index} term {term}")?;
        }
        if let Some(vote) = image.vote {
            let whom = vote
                .voted_for
                .map_or("nobody".to_owned(), |whom| whom.to_string());
            let won = if vote.committed { ", who won" } else { "" };
            writeln!(
                self.out,
                "  vote         term {} for {whom}{won}",
                vote.term
            )?;
        }
        let (session, turn) = (image.place.session, image.place.turn);
        writeln!(
            self.out,
            "  journal      session {session:016x} up to turn {turn}"
        )?;
        for row in image.epochs.starts() {
            let (term, index, offset) = (row.term, row.first_index, row.first_offset);
            writeln!(
                self.out,
                "  epoch {term}: from index {index} offset {offset}"
            )?;
        }
        if image.damaged || image.no_vote {
            let (damaged, no_vote) = (image.damaged, image.no_vote);
            self.problem(format!("{group}: damaged {damaged}, no vote {no_vote}"))?;
        }
        Ok(())
    }

    fn tables(&mut self, path: &Path, name: &str, group: Option<GroupId>) -> io::Result<()> {
        let Some(group) = group else { return Ok(()) };
        let bytes = read_file(self.disk, path, TABLES_BYTES_MAX + 4096)?;
        match SavedTables::decode(bytes, group) {
            Ok(Some(saved)) => {
                let ((term, index), offset, bytes) = (saved.at, saved.offset, saved.tables.len());
                writeln!(
                    self.out,
                    "  {name}: as of index {index} term {term}, next offset {offset}, {bytes} bytes"
                )
            }
            _ => self.problem(format!("{}: bad checksum", path.display())),
        }
    }

    /// A segment that no state file speaks of: as far as its frames hold.
    fn segment_alone(&mut self, dir: &Path, name: &str) -> io::Result<()> {
        let path = dir.join(name);
        let file = self.disk.open(&path, OpenMode::Existing)?;
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let got = file.read_at(0, &mut header)?;
        let end = u32::try_from(file.len()?).unwrap_or(u32::MAX);
        match parse_header(&header[..got]) {
            Ok(Some((group, identity))) => {
                let file = SegmentFile::new(group, dir, identity);
                self.segment(Arc::new(file), end, LogIndex::new(0))
            }
            _ => self.problem(format!("{}: bad header", path.display())),
        }
    }

    fn segment(&mut self, segment: Arc<SegmentFile>, end: u32, start: LogIndex) -> io::Result<()> {
        let name = segment
            .path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        writeln!(
            self.out,
            "  segment {}: {end} bytes",
            name.unwrap_or_default()
        )?;
        let first = segment.identity.base_index;
        let span = Span {
            segment,
            from: SEGMENT_HEADER_BYTES,
            first,
            end,
        };
        let (mut lines, mut count) = (String::new(), 0);
        let mut line = |position: u32,
                        head: &crate::entry::EntryHead,
                        payload: Option<&Payload>| {
            let kind = match head.kind {
                EntryKind::Batch => "batch",
                EntryKind::Internal => "internal",
                EntryKind::Blank => "blank",
                EntryKind::Membership => "membership",
            };
            let below = if head.index < start {
                "  (below the log's start)"
            } else {
                ""
            };
            // Of the payload alone, so that replicas can be compared: their segments differ in salt.
            let bytes = payload.map_or(String::new(), |payload| {
                let crc = match payload {
                    Payload::Batch(batch) => checksum(&batch.to_bytes()),
                    Payload::Internal(bytes) | Payload::Membership(bytes) => checksum(bytes),
                    Payload::Blank => 0,
                };
                format!("  {} bytes  crc {crc:08x}", payload.size_bytes())
            });
            lines.push_str(&format!(
                "    @{position:<10} index {:<8} term {:<4} offset {:<8} records {:<5} {kind}{bytes}{below}\n",
                head.index, head.term, head.base_offset, head.records
            ));
            count += 1;
        };
        let walked = if self.verify {
            scan::verify(self.disk, &span, |position, entry| {
                line(position, &entry.head, Some(&entry.payload));
            })
            .map(drop)
        } else {
            scan::visit_heads(self.disk, &span, |position, head, _| {
                line(position, head, None);
                std::ops::ControlFlow::Continue(())
            })
            .map(drop)
        };
        self.report.entries += count;
        self.out.write_all(lines.as_bytes())?;
        match walked {
            Ok(()) => Ok(()),
            Err(found) => self.problem(found.error.to_string()),
        }
    }

    fn journal(&mut self, dir: &Path) -> io::Result<()> {
        let mut journal = read_shard(self.disk, dir).map_err(io::Error::other)?;
        let mut lines = String::new();
        let mut unsettled = 0;
        let settled = &self.settled;
        let session = journal.session().unwrap_or(0);
        let replayed = journal.replay(self.disk, |turn, records| {
            lines.push_str(&format!("  turn {turn}\n"));
            for record in records {
                let (group, entries) = (record.header.group, record.header.entries);
                let incarnation = record.header.incarnation;
                // A journal alone has no state files beside it: then everything counts.
                let is_newer = settled.is_empty()
                    || settled.get(&group).is_some_and(|(current, place)| {
                        incarnation == *current && (session != place.session || turn > place.turn)
                    });
                if is_newer {
                    unsettled += u64::from(entries);
                }
                let what = match record.body {
                    RecordBody::Segment(identity) => format!("segment {} begins", identity.id),
                    RecordBody::Inline {
                        segment,
                        position,
                        frames,
                    } => format!(
                        "{entries} entries, {} bytes here, for segment {segment} at {position}",
                        frames.len()
                    ),
                    RecordBody::Referenced {
                        segment, position, ..
                    } => {
                        format!("{entries} entries in segment {segment} at {position}")
                    }
                    RecordBody::Vote(vote) => format!("vote in term {}", vote.term),
                    RecordBody::Committed((_, index)) => format!("committed index {index}"),
                    RecordBody::Truncate { last, .. } => match last {
                        Some((_, index)) => format!("truncated after index {index}"),
                        None => "truncated to nothing".to_owned(),
                    },
                    RecordBody::Start(start) => format!("log start at index {}", start.index),
                    RecordBody::Reset(start) => format!("empty at index {}", start.index),
                    RecordBody::Flags {
                        no_vote, damaged, ..
                    } => {
                        format!("no vote {no_vote}, damaged {damaged}")
                    }
                };
                lines.push_str(&format!("    {group}: {what}\n"));
            }
            Ok(())
        });
        let (end, damage, _) = replayed.map_err(io::Error::other)?;
        self.report.entries_unsettled += unsettled;
        self.out.write_all(lines.as_bytes())?;
        writeln!(self.out, "  ends {end:?}")?;
        for damage in damage {
            self.problem(damage.what)?;
        }
        Ok(())
    }
}
