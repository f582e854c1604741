//! `planaria average`: an average of a run's weights as a model of its own.

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::train::average::{self, Existing, Output, Which};
use serde_json::json;
use std::path::PathBuf;

/// Write an average of a run's weights as a model
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Runs keep averages with `optim.ema` and `[[optim.averages]]`. With --sigma the average of a power function of any width is\n\
    made after training, from the checkpoints of a run that kept two of them: the more checkpoints stayed\n\
    (`checkpoint.keep_every`), the nearer it is. The result is an ordinary Hugging Face folder."
)]
pub(crate) struct Args {
    /// The run's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The folder to make
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The average of this number that the run kept, from 0: `optim.ema` first
    #[arg(long, value_name = "NUMBER", conflicts_with = "sigma")]
    number: Option<usize>,
    /// Width of the average to make, as part of the run so far
    #[arg(long, value_name = "SIGMA")]
    sigma: Option<f64>,
    /// The step whose average is meant; the newest if not given
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
    /// Replace the checkpoint at the target
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let which = args.sigma.map_or(Which::Kept(args.number.unwrap_or(0)), Which::Sigma);
    let existing = if args.yes { Existing::Replace } else { Existing::Refuse };
    let out = Output { folder: &args.out, existing };
    let made = average::write(&args.run, &out, which, args.step)?;
    if terminal.json {
        let from: Vec<_> = made
            .from
            .iter()
            .map(|(step, number, weight)| json!({ "step": step, "number": number, "weight": weight }))
            .collect();
        let told = json!({ "step": made.step, "out": args.out, "from": from, "error": made.error });
        terminal.object("planaria/average/1", &told)?;
    } else {
        if args.sigma.is_some() {
            let (parts, error) = (made.from.len(), made.error * 100.0);
            terminal.note(format!(
                "made of {parts} averages of the run; its profile is matched within {error:.2}%"
            ));
        }
        terminal.line(args.out.display())?;
    }
    Ok(Exit::Success)
}
