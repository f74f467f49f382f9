//! `corduroy debug`: look inside a node's files.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use corduroy_storage::{RealDisk, dump};

use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK, Stop};

#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Print what is in a log: entries, indices, offsets, checksums
    #[command(after_help = "\
Examples:
  corduroy debug log-dump corduroy-data
      every log and journal of a node; it need not be running
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
    eprintln!(
        "error: {} of what is stored is not as it was written",
        report.problems.len()
    );
    Ok(ExitCode::from(EXIT_FAILED))
}
