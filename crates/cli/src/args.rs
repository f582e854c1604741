//! What every verb accepts; the verbs themselves are in [`crate::commands`].

use crate::commands::Command;
use clap::{ArgAction, Args, Parser, ValueEnum, builder::FalseyValueParser};

/// Train, save, reshard and convert models
#[derive(Debug, Parser)]
#[command(name = "planaria", version, disable_help_subcommand = true, arg_required_else_help = true)]
#[command(after_help = "Data goes to standard output, everything else to standard error.\n\
    Exit codes: 0 done, 1 no (verify, diff) or failed, 2 wrong use or configuration, 3 damaged data,\n\
    4 a peer was lost, 5 a rank computes wrongly, 75 stopped on request after saving, 130 and 143 interrupted.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Print one JSON object (JSON lines where results come as a stream)
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing but results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say more; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// When to use colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: When,
    /// Show no progress
    #[arg(
        long,
        global = true,
        env = "PLANARIA_NO_PROGRESS",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub(crate) no_progress: bool,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_the_agreed_short_flags_exist() {
        let agreed = ['h', 'V', 'v', 'q', 'o', 'n', 'm'];
        let mut open = vec![Cli::command()];
        while let Some(command) = open.pop() {
            for short in command.get_arguments().filter_map(clap::Arg::get_short) {
                assert!(agreed.contains(&short), "{} -{short}", command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }
}
