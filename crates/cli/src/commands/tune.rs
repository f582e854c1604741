//! `planaria tune`: finds faster algorithms for the matrix products of a run on a GPU, with the same bits.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::array::{Device, Tuned, tune};
use planaria::train::config::{CheckpointSection, Compute, Sources};
use planaria::train::{Config, Trainer};
use std::path::PathBuf;

/// Find faster algorithms for the matrix products of a run on a GPU
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Trains two steps in a scratch folder, then times what cublasLt offers for each product asked of it. Only algorithms\n\
    with the bits of the library's first choice are taken, so results do not change. Runs use FILE when PLANARIA_CUDA_PRODUCTS names it."
)]
pub(crate) struct Args {
    /// The run's configuration
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Change a value of the configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The GPU, instead of what the configuration says
    #[arg(long, value_name = "DEVICE")]
    device: Option<Compute>,
    /// The table to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    yes: bool,
}

/// Steps after which every product has been asked for.
const STEPS: u64 = 2;

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let existing = Existing::from_yes(args.yes);
    target::check(&args.output, existing)?;
    let scratch = tempfile::tempdir().context("cannot make a scratch folder")?;
    let sources = Sources::file(&args.config).variables(std::env::vars()).set(args.set.clone());
    let mut config = sources.resolve()?.config;
    config.device = args.device.unwrap_or(config.device);
    let device = config.device.device();
    if !matches!(device, Device::Cuda(_)) {
        let message = format!("there is nothing to choose on {device}; name a GPU, as in --device cuda:0");
        return Err(Failure::usage(message).into());
    }
    shorten(&mut config, scratch.path().into());
    let ranks = config.mesh.ranks();
    Trainer::new(config).until(STEPS).run(Some(ranks))?;
    let (mut lines, mut failed, mut seen) = (Vec::new(), None, 0);
    tune(device, &mut |found: &Tuned| {
        seen += 1;
        lines.extend(found.line.clone());
        let told = terminal.line(text(found));
        failed = failed.take().or(told.err());
    })?;
    failed.map_or(Ok(()), Err)?;
    let table: String = lines.iter().map(|line| format!("{line}\n")).collect();
    target::write(&args.output, existing, table.as_bytes())?;
    let (all, better) = (count(seen, "product"), lines.len());
    terminal.line(format!("{all}, {better} with a faster algorithm: {}", args.output.display()))?;
    Ok(Exit::Success)
}

/// The same steps with nothing written that is kept.
fn shorten(config: &mut Config, folder: PathBuf) {
    config.log.dir = folder;
    config.checkpoint = CheckpointSection { final_save: false, ..CheckpointSection::default() };
    config.train.eval_every = 0;
}

fn text(found: &Tuned) -> String {
    let Tuned { product, tried, first, best, others, line } = found;
    let gain = if line.is_some() { format!(", now {best:.4}") } else { String::new() };
    let other = if *others > 0 { format!(" ({others} faster with other bits)") } else { String::new() };
    format!("{product}: {first:.4} ms{gain}; {tried} tried{other}")
}
