//! `corduroy debug`: look inside a node's files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use corduroy_storage::{RealDisk, dump};

use rustix::fs::{FlockOperation, flock};

use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK, Stop};

/// A partition's directory lies this deep in its data directory, itself counted.
const DEPTH_MAX: usize = 4;

#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Print what is in a log: entries, indices, offsets, checksums
    #[command(after_help = "\
Examples:
  corduroy debug log-dump corduroy-data
      every log and journal of a node that does not run; of one that runs, what it has written
  corduroy debug log-dump corduroy-data --verify
      checks every byte of every entry; exits with 1 if anything is wrong
  corduroy debug log-dump corduroy-data/partitions/TOPIC-ID/3
      one partition")]
    LogDump(LogDumpArgs),
}

#[derive(Debug, Args)]
pub struct LogDumpArgs {
    /// A node's data directory, a partition's directory in it, or a shard's journal
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Check every byte, not only the heads of entries
    #[arg(long)]
    verify: bool,
}

pub(super) fn run(command: &DebugCommand) -> CliResult<ExitCode> {
    match command {
        DebugCommand::LogDump(args) => log_dump(args),
    }
}

fn log_dump(args: &LogDumpArgs) -> CliResult<ExitCode> {
    let runs = is_in_use(&args.dir);
    if runs {
        eprintln!(
            "warning: a node is running on {}: what it appended since its last checkpoint is in \
             the journal alone, and what it writes meanwhile may look damaged; stop it for a \
             whole and quiet picture",
            args.dir.display()
        );
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let report =
        dump(&RealDisk, &args.dir, args.verify, &mut out).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::PipeClosed,
            _ => CliError::failed(format!("cannot dump {}: {error}", args.dir.display()))
                .help("name a node's data directory (--data-dir of `corduroy start`)")
                .into(),
        })?;
    out.flush()?;
    if report.problems.is_empty() {
        return Ok(ExitCode::from(EXIT_OK));
    }
    let perhaps = if runs {
        ", or was being written just now"
    } else {
        ""
    };
    eprintln!(
        "error: {} of what is stored is not as it was written{perhaps}",
        report.problems.len()
    );
    Ok(ExitCode::from(EXIT_FAILED))
}

/// Whether a node runs on the data directory that `dir` is or lies in: it holds a lock there.
fn is_in_use(dir: &Path) -> bool {
    let dir = dir.canonicalize();
    let ancestors = dir.iter().flat_map(|dir| dir.ancestors().take(DEPTH_MAX));
    for root in ancestors {
        let Ok(lock) = File::open(root.join("lock")) else {
            continue;
        };
        // Shared: two people may look at the same time.
        return matches!(
            flock(&lock, FlockOperation::NonBlockingLockShared),
            Err(rustix::io::Errno::WOULDBLOCK)
        );
    }
    false
}
