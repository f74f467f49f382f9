//! Where the log goes: standard error, for people on a terminal, as JSON otherwise.

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use super::error::CliError;
use super::waiting::{self, RetryNotice};

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
/// else `default_filter`. With a notice, whoever waits is told why.
///
/// # Errors
/// A filter that can't be understood.
pub(super) fn start(
    args: &LogArgs,
    default_filter: &str,
    notice: Option<RetryNotice>,
) -> Result<(), CliError> {
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
    let wants_color = is_terminal && wants_color(|name| std::env::var(name).ok());
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(wants_color);
    let lines = if is_json {
        lines.json().with_current_span(true).boxed()
    } else {
        lines.with_target(false).boxed()
    };
    let notice = notice.map(|notice| notice.with_filter(waiting::filter()));
    // The only failure is a second call in one process, where the first logger serves as well.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(notice)
        .try_init();
    Ok(())
}

/// Whether somebody at a terminal sees colours, and not their codes (https://no-color.org).
pub(super) fn wants_color(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name| variable(name).filter(|text| !text.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|terminal| terminal != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out_where_nobody_wants_them() {
        let wants = |set: &[(&str, &str)]| {
            wants_color(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, text)| (*text).to_owned())
            })
        };
        assert!(wants(&[("TERM", "xterm-256color")]));
        assert!(wants(&[("NO_COLOR", "")]));
        assert!(!wants(&[("NO_COLOR", "1"), ("TERM", "xterm")]));
        assert!(!wants(&[("TERM", "dumb")]));
    }
}
