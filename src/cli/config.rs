//! `corduroy config`: what can be set, and what it does.

use clap::Subcommand;

use super::error::CliResult;
use super::output::print;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the reference of all settings as markdown
    #[command(after_help = "\
Examples:
  corduroy config docs > config.md
  corduroy config docs | grep retention")]
    Docs,
}

pub(super) fn run(command: &ConfigCommand) -> CliResult {
    match command {
        ConfigCommand::Docs => Ok(print(&crate::config::docs::render())?),
    }
}
