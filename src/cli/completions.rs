//! `corduroy completions`: what a shell needs to complete our commands.

use clap::Args;
use clap_complete::{Shell, generate};

use super::error::CliResult;
use super::output::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  corduroy completions bash > /etc/bash_completion.d/corduroy
  corduroy completions zsh > ~/.zfunc/_corduroy
  corduroy completions fish > ~/.config/fish/completions/corduroy.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: clap::Command) -> CliResult {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    Ok(print(&String::from_utf8_lossy(&script))?)
}
