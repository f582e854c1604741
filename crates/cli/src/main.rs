//! The planaria command: reads its arguments, runs one verb, and turns the outcome into an exit code.

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

fn main() -> ExitCode {
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
