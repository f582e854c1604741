//! `planaria measure`: what work costs on this machine, for `planaria simulate`.

use crate::exit::Exit;
use crate::job::Job;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::train::simulate::{MeasureOptions, measure};
use std::path::PathBuf;

/// Measure what steps, messages and saves of a small job cost, for `planaria simulate`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Runs a few steps of the configuration with ranks as threads, at its batch size and at twice that, and with a save after \
    every step, in a folder\nthat is removed again. A file of 32 MiB goes to every place of checkpoints and back. Measure on an idle machine, with a job \
    that is not\ntoo small: what a step costs beside its FLOPs is taken to grow with the parameters."
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// Steps of a run in each of its three turns; the first does not count
    #[arg(long, value_name = "NUMBER", default_value_t = 6, value_parser = clap::value_parser!(u64).range(3..=100_000))]
    steps: u64,
    /// Where the costs go; standard output if not given
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    yes: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let existing = Existing::from_yes(args.yes);
    if let Some(path) = &args.output {
        target::apart(path, [args.job.file()])?;
        target::check(path, existing)?;
    }
    let config = args.job.config()?;
    // On the disk that checkpoints of the run go to.
    let runs = &config.log.dir;
    let failed = || format!("cannot make a folder in '{}'", runs.display());
    std::fs::create_dir_all(runs).with_context(failed)?;
    let scratch = tempfile::Builder::new().prefix(".measure-").tempdir_in(runs).with_context(failed)?;
    let costs =
        measure(&config, &MeasureOptions { ranks: args.job.ranks, steps: args.steps }, scratch.path())?;
    match &args.output {
        Some(path) => {
            let text = serde_json::to_string_pretty(&costs)? + "\n";
            target::write(path, existing, text.as_bytes())?;
            terminal.line(path.display())?;
        }
        None if terminal.json => terminal.object("planaria/costs/1", &costs)?,
        None => terminal.line(serde_json::to_string_pretty(&costs)?)?,
    }
    Ok(Exit::Success)
}
