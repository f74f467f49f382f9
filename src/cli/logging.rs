//! Where the log goes: standard error, for people on a terminal, as JSON otherwise.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use super::error::CliError;

/// How log lines look: `auto` is `human` (a readable line per event) on a terminal and `json` (an
/// object per line) otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Auto,
    Human,
    Json,
}

/// `--log` and `--log-format` of every command.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogArgs {
    /// What to log, as in RUST_LOG: `debug`, or `info,corduroy_raft=debug`
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Logging")]
    pub log: Option<String>,

    /// How log lines look; auto is human on a terminal, json otherwise
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Logging"
    )]
    pub log_format: LogFormat,
}

/// Starts logging to standard error. The filter is `--log`, else `CORDUROY_LOG`, else `RUST_LOG`,
/// else `default_filter`.
///
/// # Errors
/// A filter that can't be understood.
pub fn start(args: &LogArgs, default_filter: &str) -> Result<(), CliError> {
    let from_environment = || {
        ["CORDUROY_LOG", "RUST_LOG"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
    };
    let filter = args.log.clone().or_else(from_environment);
    let filter = filter.as_deref().unwrap_or(default_filter);
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        CliError::usage(format!("`{filter}` is no log filter: {error}"))
            .help("write a level (`debug`), or targets with levels (`info,corduroy_raft=debug`)")
    })?;
    let is_terminal = io::stderr().is_terminal();
    let is_json = match args.log_format {
        LogFormat::Auto => !is_terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(is_terminal);
    // The only failure is a second call in one process, where the first logger serves as well.
    let _ = if is_json {
        builder.json().with_current_span(true).try_init()
    } else {
        builder.with_target(false).try_init()
    };
    Ok(())
}
