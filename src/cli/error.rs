//! What a command answers when it can't do its job: one sentence, the facts, a way out.

use std::fmt;

use super::output::clean_lines;

/// The command did what it was asked to do.
pub const EXIT_OK: u8 = 0;
/// It did not: unknown topic, unreachable cluster, unhealthy cluster, failed verdict.
pub const EXIT_FAILED: u8 = 1;
/// The command line or a configuration file can't be understood.
pub const EXIT_USAGE: u8 = 2;

/// A failure for people: cause, what was found, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    exit: u8,
    cause: String,
    facts: Vec<(String, String)>,
    help: Option<String>,
}

impl CliError {
    /// The operation failed (exit code 1).
    pub fn failed(cause: impl Into<String>) -> CliError {
        CliError {
            exit: EXIT_FAILED,
            cause: cause.into(),
            facts: Vec::new(),
            help: None,
        }
    }

    /// The request itself is wrong (exit code 2).
    pub fn usage(cause: impl Into<String>) -> CliError {
        CliError {
            exit: EXIT_USAGE,
            cause: cause.into(),
            facts: Vec::new(),
            help: None,
        }
    }

    /// Adds one line of evidence: a label and what was found under it.
    #[must_use]
    pub fn fact(mut self, label: impl Into<String>, found: impl Into<String>) -> CliError {
        self.facts.push((label.into(), found.into()));
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> CliError {
        self.help = Some(help.into());
        self
    }

    /// The sentence alone.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The process's exit code.
    pub fn exit(&self) -> u8 {
        self.exit
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names and a broker's own words come from elsewhere.
        f.write_str(&clean_lines(&self.cause))?;
        let width = self
            .facts
            .iter()
            .map(|(label, _)| label.chars().count())
            .max()
            .unwrap_or(0);
        let width = if self.help.is_some() {
            width.max("help".len())
        } else {
            width
        };
        for (label, found) in &self.facts {
            write!(f, "\n  {label:width$}  {}", clean_lines(found))?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  {:width$}  {}", "help", clean_lines(help))?;
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}

/// Why a command ended early. A closed pipe is the reader's way to say "enough" and no failure.
#[derive(Debug)]
pub enum Stop {
    /// The reader of our standard output went away (`corduroy consume t | head`).
    PipeClosed,
    /// Anything that a person should read.
    Error(CliError),
    /// It failed, and why has been printed already.
    Told,
}

/// The failures of a command that does the same for several names: each is tried, whatever became
/// of the others, and each failure is told when it happens.
#[derive(Default)]
pub struct Failures {
    any: bool,
}

impl Failures {
    /// Takes the result of one of them.
    ///
    /// # Errors
    /// [`Stop::Told`], if nobody answers: the next one would wait as long for nothing.
    pub fn take(&mut self, result: Result<(), CliError>, is_silent: bool) -> CliResult {
        let Err(error) = result else { return Ok(()) };
        self.any = true;
        eprintln!("error: {error}");
        if is_silent { Err(Stop::Told) } else { Ok(()) }
    }

    /// The result of all.
    ///
    /// # Errors
    /// [`Stop::Told`], if any has failed.
    pub fn result(self) -> CliResult {
        if self.any { Err(Stop::Told) } else { Ok(()) }
    }
}

impl From<CliError> for Stop {
    fn from(error: CliError) -> Stop {
        Stop::Error(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Stop::PipeClosed
        } else {
            Stop::Error(CliError::failed(format!("input or output failed: {error}")))
        }
    }
}

/// What every command returns.
pub type CliResult<T = ()> = Result<T, Stop>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_help_line_up() {
        let error = CliError::failed("cannot start node 2: the data directory belongs to node 1")
            .fact("found", "node.id = 1")
            .fact("asked", "--node-id 2")
            .help("start with --node-id 1, or give this node its own --data-dir");
        assert_eq!(
            error.to_string(),
            "cannot start node 2: the data directory belongs to node 1\n  found  node.id = 1\n  asked  \
             --node-id 2\n  help   start with --node-id 1, or give this node its own --data-dir"
        );
    }
}
