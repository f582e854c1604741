//! `planaria export`: the metrics of a run for other programs.

use crate::exit::Exit;
use crate::quantity::count;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::telemetry::{History, METRICS};
use std::fmt::Write;
use std::path::PathBuf;

/// Write the metrics of a run as the history of Weights & Biases
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every step is one JSON object with `_step`, `_timestamp` and `_runtime` beside its metrics; steps that a resumed run\n\
    repeated are there once. Without `-o` the lines go to standard output. The guide to training shows how to load them."
)]
pub(crate) struct Args {
    /// The folder of a run, or a metrics file
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE.jsonl")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    yes: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    if let Some(path) = &args.output {
        target::apart(path, [args.run.as_path(), &args.run.join(METRICS)])?;
    }
    let history = History::read(&args.run)?;
    if history.damaged > 0 {
        let lines = count(usize::try_from(history.damaged).unwrap_or(usize::MAX), "line");
        terminal.warn(format!("left out {lines} that could not be read"));
    }
    let mut text = String::new();
    for row in history.wandb_rows() {
        writeln!(text, "{row}")?;
    }
    let Some(path) = &args.output else {
        terminal.line(text.trim_end())?;
        return Ok(Exit::Success);
    };
    target::write(path, Existing::from_yes(args.yes), text.as_bytes())?;
    terminal.line(path.display())?;
    Ok(Exit::Success)
}
