//! `planaria explain`: what every op of a model does on a mesh, and why.

use crate::exit::Exit;
use crate::job::Job;
use crate::quantity::{Bytes, count};
use crate::table::Table;
use crate::terminal::{Style, Terminal};
use anyhow::Result;
use planaria::nn::models::Models;
use planaria::train::explain::{Explanation, OpLine, StageExplained};
use planaria::train::objective::Objectives;
use planaria::train::plan::model_of;

/// Show what every op of a model does on a mesh: layouts, what moves, and why
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is started and no data is read: one micro-batch runs forward and backward without data. What data ranks\n\
    and pipeline stages send each other is shown by `planaria plan`."
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// Also ops that send nothing
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let config = args.job.config()?;
    let model = model_of(&config, &Models::default())?;
    let ranks = args.job.ranks_of(&config);
    let told = Explanation::new(&config, &*model, ranks, &Objectives::default())?;
    if terminal.json {
        terminal.object("planaria/explain/1", &told)?;
        return Ok(Exit::Success);
    }
    let Explanation { mesh, dtype, accumulation, .. } = &told;
    terminal.line(format!("{mesh}, {dtype}, {} a step", count(*accumulation as usize, "micro-batch")))?;
    for stage in &told.stages {
        print(terminal, stage, args.all)?;
    }
    Ok(Exit::Success)
}

fn print(terminal: &mut Terminal, stage: &StageExplained, all: bool) -> Result<()> {
    let StageExplained { stage: place, layers, ops, bytes_per_step, .. } = stage;
    let sent = Bytes(*bytes_per_step);
    let head =
        format!("\nstage {place}: {}, each rank sends {sent} a step for its ops", count(*layers, "block"));
    let head = terminal.paint(Style::Name, &head);
    terminal.line(head)?;
    if ops.is_empty() {
        return terminal.line("one rank has all of it: nothing is decided");
    }
    let shown: Vec<&OpLine> = ops.iter().filter(|line| all || line.sent() > 0).collect();
    let mut table = Table::new(&[2, 3]);
    table.row(["phase", "op", "times", "sent", "why"].map(String::from));
    for line in &shown {
        let sent = Bytes(line.sent()).to_string();
        table.row([line.phase.into(), line.op.clone(), line.times.to_string(), sent, line.why.clone()]);
        for (given, taken) in line.given.iter().zip(&line.taken) {
            let text = if given == taken { given.clone() } else { format!("{given} taken as {taken}") };
            table.row([String::new(), format!("  {text}")]);
        }
        table.row([String::new(), format!("  gives {}", line.outputs.join(", "))]);
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))?;
    let quiet: usize = ops.iter().filter(|line| line.sent() == 0).map(|line| line.times).sum();
    if !all && quiet > 0 {
        terminal.line(format!("{quiet} more ops send nothing; --all shows them"))?;
    }
    Ok(())
}
