//! `planaria quickstart`: the product in two minutes. A small model learns this repository's own text on one mesh and
//! resumes on another.

use super::train::{Show, report};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::telemetry::{Canvas, Chart, ChartOptions, History};
use planaria::train::config::Sources;
use planaria::train::{Generator, Outcome, Requests, Sampling, Trainer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration that `planaria train` can run as well.
const FILE: &str = "examples/quickstart.toml";

/// The step at which the run changes its mesh.
const HALF: u64 = 120;

/// Train a small model on this repository's text, then resume it on another mesh
#[derive(Debug, clap::Args)]
#[command(after_help = "Takes about two minutes on two processors. Run it in the repository.")]
pub(crate) struct Args {
    /// Change a value, as in `train.steps=40`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    if !Path::new(FILE).exists() {
        let message = format!("there is no {FILE} here");
        return Err(Failure::usage(message).hint("run it in the folder of the repository").into());
    }
    let requests = Requests::listen()?;
    let first = config(args, "dp=2 tp=2")?;
    let run = first.run_dir();
    let words = Show::new(terminal, &first);
    requests.announce(move || words.stopping())?;
    if run.exists() && History::read(&run).is_ok_and(|h| h.last_step() >= Some(first.train.steps)) {
        let message = format!("{} is trained to its last step already", run.display());
        return Err(Failure::usage(message).hint(format!("remove {} to see it again", run.display())).into());
    }
    terminal.note("1. two data replicas of two tensor ranks each: dp=2 tp=2");
    let half = HALF.min(first.train.steps / 2);
    let outcome = train(&first, Some(half), &requests, terminal)?;
    if outcome.stopped && outcome.step < half {
        return report(&first, &outcome, terminal);
    }
    terminal.note("\n2. the same run on another mesh, without a conversion: pp=2 dp=2");
    let second = config(args, "pp=2 dp=2")?;
    let outcome = train(&second, None, &requests, terminal)?;
    show(&run, terminal)?;
    if !outcome.stopped && !terminal.json {
        sample(&run, terminal)?;
    }
    report(&second, &outcome, terminal)
}

fn config(args: &Args, mesh: &str) -> Result<planaria::train::Config> {
    let set = args.set.iter().cloned().chain([format!("mesh={mesh}")]);
    Ok(Sources::file(PathBuf::from(FILE)).variables(std::env::vars()).set(set).resolve()?.config)
}

fn train(
    config: &planaria::train::Config,
    until: Option<u64>,
    requests: &Requests,
    terminal: &Terminal,
) -> Result<Outcome> {
    let show = Arc::new(Show::new(terminal, config));
    let trainer = Trainer::new(config.clone()).observer(show.clone()).requests(requests.clone());
    let trainer = until.map_or(trainer.clone(), |step| trainer.until(step));
    let outcome = trainer.run(None)?;
    show.finish();
    Ok(outcome)
}

/// The curve of both parts.
fn show(run: &Path, terminal: &mut Terminal) -> Result<()> {
    if terminal.json {
        return Ok(());
    }
    let chart = Chart::new(&[History::read(run)?], "loss", &ChartOptions::default())?;
    let canvas = Canvas { width: 100, height: 20, colour: terminal.colours() };
    terminal.drawing(&format!("\n{}", chart.to_text(&canvas)))
}

/// What it has learned.
fn sample(run: &Path, terminal: &mut Terminal) -> Result<()> {
    let sampling = Sampling { tokens: 160, temperature: 0.5, ..Sampling::default() };
    let prompt = "/// The ";
    let text = Generator::open(run)?.generate(prompt, &sampling, 1, &|_| ())?;
    terminal.line(format!("it continues `{prompt}` with:\n\n{prompt}{text}\n"))
}
