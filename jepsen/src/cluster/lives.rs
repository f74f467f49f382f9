//! What processes of nodes have written about replicas that stopped. The log tells it also where
//! nobody could ask in time, and of processes that are long gone.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What a node says when a replica has stopped and nothing mends it in that process.
const WORDS: [&str; 2] = [
    "a replica has stopped",
    "the controller's replica stays closed until a restart",
];
/// Stops of one process that are spelled out: a disk that fails stops all replicas at once.
const SHOWN_MAX: usize = 3;

/// One process, as a stretch of its node's log: up to where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    log: PathBuf,
    from: u64,
    /// From here on its disk fails on purpose, and a replica may stop over that.
    excused_from: Option<u64>,
}

/// All processes that ran on one machine.
#[derive(Debug, Default)]
pub struct Lives(Vec<Life>);

impl Lives {
    /// A process is about to begin, and appends to this log.
    pub fn begin(&mut self, log: &Path) {
        self.0.push(Life {
            log: log.to_owned(),
            from: length(log),
            excused_from: None,
        });
    }

    /// From here on the last of them may stop replicas.
    pub fn excuse(&mut self) {
        if let Some(life) = self.0.last_mut() {
            let now = length(&life.log);
            life.excused_from.get_or_insert(now);
        }
    }

    /// From here on the last of them may not. What it did before stays excused.
    pub fn accuse(&mut self) {
        if let Some(life) = self.0.last_mut()
            && life.excused_from.is_some()
        {
            let log = life.log.clone();
            self.begin(&log);
        }
    }

    /// Replicas that stopped without an excuse, a sentence for each process.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn stops(&self) -> io::Result<Vec<String>> {
        let mut stops = Vec::new();
        for (place, life) in self.0.iter().enumerate() {
            let mut later = self.0.iter().skip(place + 1);
            let next = later.find(|other| other.log == life.log);
            let until = life.excused_from.or(next.map(|next| next.from));
            let found = read(&life.log, life.from, until)?;
            if found.is_empty() {
                continue;
            }
            let shown: Vec<&str> = found.iter().take(SHOWN_MAX).map(String::as_str).collect();
            let name = life.log.file_stem().unwrap_or_default().to_string_lossy();
            stops.push(format!(
                "{name}: {} stopped although its disk did not fail: {}",
                match found.len() {
                    1 => "a replica".to_owned(),
                    many => format!("{many} replicas"),
                },
                shown.join("; ")
            ));
        }
        Ok(stops)
    }
}

fn length(log: &Path) -> u64 {
    std::fs::metadata(log).map_or(0, |metadata| metadata.len())
}

/// The stops that this stretch of a log tells of.
fn read(log: &Path, from: u64, until: Option<u64>) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut file = match File::open(log) {
        Ok(file) => file,
        // No process came as far as to write.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(from))?;
    let mut reader = BufReader::new(file);
    let mut at = from;
    let mut line = Vec::new();
    while until.is_none_or(|until| at < until) {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)?;
        if count == 0 {
            break;
        }
        at += count as u64;
        found.extend(stop(&line));
    }
    Ok(found)
}

/// What a line tells of a replica that stopped.
fn stop(line: &[u8]) -> Option<String> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let fields = &line["fields"];
    let message = fields["message"].as_str()?;
    if line["level"] != "ERROR" || !WORDS.contains(&message) {
        return None;
    }
    let why = fields["reason"].as_str().or(fields["error"].as_str());
    let span = &line["span"];
    let whose = match (span["topic"].as_str(), span["partition"].as_i64()) {
        (Some(topic), Some(partition)) => format!("{topic}/{partition}: "),
        _ => fields["group"]
            .as_str()
            .map_or(String::new(), |group| format!("{group}: ")),
    };
    Some(format!("{whose}{}", why.unwrap_or(message)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const RUNS: &str =
        r#"{"level":"ERROR","fields":{"message":"a replica met damage in its log"}}"#;
    const STOPPED: &str = r#"{"level":"ERROR","fields":{"message":"a replica has stopped","group":"ab/3","reason":"its log differs"},"span":{"topic":"q","partition":3}}"#;
    const CLOSED: &str = r#"{"level":"ERROR","fields":{"message":"the controller's replica stays closed until a restart","error":"no room"}}"#;

    fn write(log: &Path, line: &str) {
        let file = File::options().append(true).create(true).open(log);
        writeln!(file.unwrap(), "{line}").unwrap();
    }

    #[test]
    fn a_stop_is_told_unless_the_disk_failed_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node-2.log");
        let mut lives = Lives::default();
        lives.begin(&log);
        assert!(lives.stops().unwrap().is_empty(), "no file yet");
        write(&log, RUNS);
        write(&log, "thread panicked at words that are no JSON");
        lives.excuse();
        write(&log, STOPPED);
        assert_eq!(lives.stops().unwrap(), Vec::<String>::new());

        // The next process has a disk that works; so has one whose disk failed after the stop.
        lives.begin(&log);
        write(&log, STOPPED);
        lives.begin(&log);
        write(&log, CLOSED);
        write(&log, STOPPED);
        lives.excuse();
        write(&log, STOPPED);
        assert_eq!(
            lives.stops().unwrap(),
            [
                "node-2: a replica stopped although its disk did not fail: q/3: its log differs",
                "node-2: 2 replicas stopped although its disk did not fail: no room; q/3: its log \
                 differs",
            ]
        );
    }

    #[test]
    fn an_excuse_ends_when_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node-1.log");
        let mut lives = Lives::default();
        lives.begin(&log);
        lives.accuse();
        write(&log, RUNS);
        lives.excuse();
        write(&log, STOPPED);
        lives.accuse();
        assert!(lives.stops().unwrap().is_empty());
        write(&log, CLOSED);
        let stops = lives.stops().unwrap();
        assert_eq!(stops.len(), 1, "{stops:?}");
        assert!(stops[0].ends_with("fail: no room"), "{stops:?}");
    }

    /// Another wording there would make this blind.
    #[test]
    fn the_words_are_the_nodes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let said = ["raft/src/supervisor.rs", "src/controller/start.rs"];
        for (words, place) in WORDS.into_iter().zip(said) {
            let text = std::fs::read_to_string(root.join(place)).unwrap();
            assert!(text.contains(words), "`{words}` is not said in {place}");
        }
    }
}
