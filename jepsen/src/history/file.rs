//! Histories on disk: JSON lines, appended as things happen, so that a crash of the harness costs
//! at most the line it was writing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{Completion, Event, FORMAT, Header, History, Invocation, Operation, Outcome};

/// A line longer than this is not one of ours. One read of a million values takes some 30 MB.
const LINE_BYTES_MAX: u64 = 256 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// The error name of a call whose end is not in the history.
const NO_COMPLETION: &str = "NO_COMPLETION";

/// Why a history could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("cannot {verb} the history {}: {source}", path.display())]
    File {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        path: PathBuf,
        line: u64,
        reason: String,
    },
    #[error(
        "{} is empty: a history begins with a line {{\"header\": ...}}", path.display()
    )]
    Empty { path: PathBuf },
}

/// Appends events to a history file.
///
/// Lines are buffered: call [`HistoryWriter::flush`] now and then (once a second is enough), so
/// that little is missing after a crash of the harness.
pub struct HistoryWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl HistoryWriter {
    /// A new history. Refuses a file that exists: two runs in one file are no history.
    pub fn create(path: &Path, header: &Header) -> Result<HistoryWriter, HistoryError> {
        let file = File::create_new(path).map_err(|source| HistoryError::File {
            verb: "create",
            path: path.to_owned(),
            source,
        })?;
        let mut writer = HistoryWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
        };
        writer.append(&Event::Header(header.clone()))?;
        writer.flush()?;
        Ok(writer)
    }

    /// One event, after all those appended before.
    pub fn append(&mut self, event: &Event) -> Result<(), HistoryError> {
        serde_json::to_writer(&mut self.file, event)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(|source| self.failed(source))
    }

    /// Hands everything appended so far to the operating system.
    pub fn flush(&mut self) -> Result<(), HistoryError> {
        self.file.flush().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> HistoryError {
        HistoryError::File {
            verb: "write",
            path: self.path.clone(),
            source,
        }
    }
}

impl History {
    /// Reads a history file, one line at a time.
    ///
    /// A last line that is cut off is accepted and noted in [`History::torn`]; anything else that
    /// does not parse is an error that names the line.
    pub fn read(path: &Path) -> Result<History, HistoryError> {
        let failed = |source| HistoryError::File {
            verb: "read",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut joined: Option<Joined> = None;
        let mut text = Vec::new();
        let mut torn = false;
        let mut number = 0;
        loop {
            text.clear();
            let bytes = io::Read::take(&mut reader, LINE_BYTES_MAX)
                .read_until(b'\n', &mut text)
                .map_err(failed)?;
            if bytes == 0 {
                break;
            }
            number += 1;
            let at_line = |reason: String| HistoryError::Line {
                path: path.to_owned(),
                line: number,
                reason,
            };
            let whole = text.last() == Some(&b'\n');
            if !whole && bytes as u64 == LINE_BYTES_MAX {
                return Err(at_line(format!("longer than {LINE_BYTES_MAX} bytes")));
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let event = match serde_json::from_slice(&text) {
                Ok(event) => event,
                // The harness died while it wrote this line: nothing follows it.
                Err(_) if !whole && joined.is_some() => {
                    torn = true;
                    break;
                }
                Err(error) => return Err(at_line(format!("not an event: {error}"))),
            };
            match joined.as_mut() {
                None => joined = Some(Joined::begin(event).map_err(at_line)?),
                Some(joined) => joined.take(event).map_err(at_line)?,
            }
        }
        let Some(joined) = joined else {
            return Err(HistoryError::Empty {
                path: path.to_owned(),
            });
        };
        let mut history = joined.history;
        history.torn = torn;
        Ok(history)
    }

    /// What a file of it holds behind the header, in an order in which it can be read.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for op in &self.operations {
            events.push(Event::Invoke(Invocation {
                id: op.id,
                worker: op.worker,
                process: op.process,
                at: op.invoked,
                call: op.call.clone(),
            }));
            if let Some(at) = op.completed {
                events.push(Event::Complete(Completion {
                    id: op.id,
                    at,
                    outcome: op.outcome.clone(),
                }));
            }
        }
        events.extend(self.faults.iter().cloned().map(Event::Fault));
        events.extend(self.marks.iter().cloned().map(Event::Mark));
        events
    }

    /// The same from events in memory. Errors name the event's position, from 1.
    pub fn from_events(events: impl IntoIterator<Item = Event>) -> Result<History, String> {
        let mut events = events.into_iter();
        let first = events.next().ok_or("a history begins with a header")?;
        let mut joined = Joined::begin(first)?;
        for (position, event) in events.enumerate() {
            joined
                .take(event)
                .map_err(|reason| format!("event {}: {reason}", position + 2))?;
        }
        Ok(joined.history)
    }
}

/// A history that grows by events.
struct Joined {
    history: History,
    /// Calls without an end: id to position in `history.operations`.
    open: HashMap<u64, usize>,
    last_id: Option<u64>,
}

impl Joined {
    fn begin(first: Event) -> Result<Joined, String> {
        let Event::Header(header) = first else {
            return Err("the first line has to be the header".to_owned());
        };
        if header.format != FORMAT {
            return Err(format!(
                "format {} where this program reads {FORMAT}",
                header.format
            ));
        }
        Ok(Joined {
            history: History {
                header,
                operations: Vec::new(),
                faults: Vec::new(),
                marks: Vec::new(),
                torn: false,
            },
            open: HashMap::new(),
            last_id: None,
        })
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Header(_) => return Err("a second header".to_owned()),
            Event::Invoke(invocation) => self.invoke(invocation)?,
            Event::Complete(completion) => self.complete(completion)?,
            Event::Fault(fault) => self.history.faults.push(fault),
            Event::Mark(mark) => self.history.marks.push(mark),
        }
        Ok(())
    }

    fn invoke(&mut self, invocation: Invocation) -> Result<(), String> {
        let Invocation {
            id,
            worker,
            process,
            at,
            call,
        } = invocation;
        if self.last_id.is_some_and(|last| id <= last) {
            return Err(format!("call {id} after a call with a higher id"));
        }
        self.last_id = Some(id);
        self.open.insert(id, self.history.operations.len());
        self.history.operations.push(Operation {
            id,
            worker,
            process,
            invoked: at,
            completed: None,
            call,
            outcome: Outcome::Unknown {
                error: NO_COMPLETION.to_owned(),
            },
        });
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Result<(), String> {
        let Completion { id, at, outcome } = completion;
        let Some(position) = self.open.remove(&id) else {
            return Err(format!("an end of call {id}, which is not open"));
        };
        let operation = &mut self.history.operations[position];
        if at < operation.invoked {
            return Err(format!("call {id} ends before it begins"));
        }
        operation.completed = Some(at);
        operation.outcome = outcome;
        Ok(())
    }
}
