//! `corduroy debug`: look inside a node's files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::error::CliResult;

#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Print the entries of a log: indices, offsets, records, checksums
    #[command(after_help = "\
Examples:
  corduroy debug log-dump corduroy-data
      every log below a node's data directory; the node must not be running
  corduroy debug log-dump corduroy-data --verify
      checks every checksum; exits with 1 if one is wrong")]
    LogDump(LogDumpArgs),
}

#[derive(Debug, Args)]
pub struct LogDumpArgs {
    /// A node's data directory, or one partition's directory in it
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Check every checksum, print only what is wrong, exit with 1 if anything is
    #[arg(long)]
    verify: bool,
}
