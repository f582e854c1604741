//! The planaria command: reads its arguments, runs one verb, and turns the outcome into an exit code.
//!
//! A library beside a small program, so that what it reads can be attacked without being run.

mod args;
mod checkpoint;
mod commands;
mod exit;
mod failure;
mod filter;
mod job;
mod mapping;
mod printable;
mod progress;
mod quantity;
#[cfg(test)]
mod reference;
mod signals;
mod table;
mod target;
mod terminal;

use clap::Parser;
use std::process::ExitCode;

/// Runs the command with the arguments of the process.
pub fn run() -> ExitCode {
    let args::Cli { global, command } = args::Cli::parse();
    let mut terminal = terminal::Terminal::new(&global);
    let outcome = command.run(&mut terminal).and_then(|exit| {
        terminal.flush()?;
        Ok(exit)
    });
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => failure::report(&terminal, &error).into(),
    }
}

/// Reads arguments, the first of them the name of the program, and does nothing.
///
/// # Errors
/// What is wrong with them, or the help that they ask for.
pub fn check_arguments(words: &[String]) -> Result<(), String> {
    args::Cli::try_parse_from(words).map(drop).map_err(|error| error.to_string())
}

/// Reads a mapping, statements or JSON, and does nothing.
///
/// # Errors
/// What is wrong with it.
pub fn check_mapping(text: &str) -> Result<(), String> {
    mapping::parse(text, "mapping", None).map(drop).map_err(|error| format!("{error:#}"))
}
