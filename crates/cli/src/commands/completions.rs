//! `planaria completions SHELL`: what the shell needs to complete our words.

use crate::args::Cli;
use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// Print the completion script of a shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: planaria completions bash > ~/.local/share/bash-completion/completions/planaria"
)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "planaria", &mut script);
    let text = String::from_utf8_lossy(&script);
    terminal.line(text.trim_end())?;
    Ok(Exit::Success)
}
