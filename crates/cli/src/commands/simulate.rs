//! `planaria simulate`: what a run would do on a cluster that is not there.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::job::Job;
use crate::quantity::{self, Bytes, Seconds};
use crate::table::Table;
use crate::target::{self, Existing};
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::nn::models::Models;
use planaria::telemetry::count;
use planaria::train::Config;
use planaria::train::config::{TierKind, TierSection};
use planaria::train::plan::model_of;
use planaria::train::simulate::{
    ANY, Costs, FOLDER, Failures, LinkCost, PlaceTold, SimulateOptions, Simulated,
};
use std::path::PathBuf;
use std::str::FromStr;

/// Simulate a run on any number of ranks: step time, goodput, what saves and failures cost
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The step is that of the plan and its schedule, saves and restarts follow the trainer's own rules; what work costs is measured by \
    `planaria measure`\nor told in a TOML or JSON file. Failures come independently of each other. The same seed gives the same answer."
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// What work costs, as `planaria measure` writes it
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// FLOPs that a rank does in a second while it computes, such as 4e14, instead of those of the costs
    #[arg(long, value_name = "NUMBER")]
    flops: Option<f64>,
    /// Bytes that a rank sends in a second on every axis, such as 50GB, instead of those of the costs
    #[arg(long, value_name = "SIZE")]
    link: Option<Bytes>,
    /// Mean time between failures of the whole job, such as 4h; nothing fails if not given
    #[arg(long, value_name = "TIME")]
    mtbf: Option<Seconds>,
    /// Where checkpoints go and every how many steps, such as memory=1,folder=500, instead of what the configuration says
    #[arg(long, value_name = "PLACE=STEPS", value_delimiter = ',')]
    tiers: Vec<Tier>,
    /// Days to simulate
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    days: f64,
    /// Decides when failures come
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Draw the pipeline of a step and the course of the run
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "svg")]
    yes: bool,
}

/// A place and its interval; none for the run's folder.
#[derive(Clone, Debug)]
struct Tier {
    kind: Option<TierKind>,
    every: u64,
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Tier, String> {
        let expected = "expected such as memory=1, of folder, memory, peer, local and remote";
        let (name, every) = text.split_once('=').ok_or(expected)?;
        let kinds = [TierKind::Memory, TierKind::Peer, TierKind::Local, TierKind::Remote];
        let kind = match name.trim() {
            FOLDER => None,
            name => Some(kinds.into_iter().find(|kind| kind.to_string() == name).ok_or(expected)?),
        };
        let every = every.trim().parse().ok().filter(|every| *every > 0);
        Ok(Tier { kind, every: every.ok_or("expected a number of steps, at least 1")? })
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let existing = Existing::from_yes(args.yes);
    if let Some(path) = &args.svg {
        target::apart(path, args.costs.as_deref().into_iter().chain([args.job.file()]))?;
        target::check(path, existing)?;
    }
    let mut config = args.job.config()?;
    place(&mut config, &args.tiers);
    let costs = costs(args)?;
    let model = model_of(&config, &Models::default())?;
    let machines = costs.recovery.machines;
    let options = SimulateOptions {
        ranks: args.job.ranks_of(&config),
        seconds: Some(args.days * 86400.0),
        failures: args.mtbf.map_or(Failures::Never, |mtbf| Failures::Random { mtbf: mtbf.0, machines }),
        seed: args.seed,
    };
    let told = Simulated::new(&config, &*model, &costs, &options)?;
    if let Some(path) = &args.svg {
        target::write(path, existing, told.to_svg()?.as_bytes())?;
    }
    match terminal.json {
        true => terminal.object("planaria/simulate/1", &told)?,
        false => print(terminal, &told)?,
    }
    Ok(Exit::Success)
}

/// Exactly these places, where any are given.
fn place(config: &mut Config, tiers: &[Tier]) {
    if tiers.is_empty() {
        return;
    }
    let section = &mut config.checkpoint;
    section.every = tiers.iter().rev().find(|tier| tier.kind.is_none()).map_or(0, |tier| tier.every);
    let further = tiers.iter().filter_map(|tier| Some((tier.kind?, tier.every)));
    section.tiers =
        further.map(|(kind, every)| TierSection { kind, every, ..TierSection::default() }).collect();
}

fn costs(args: &Args) -> Result<Costs> {
    let mut costs = match (&args.costs, args.flops) {
        (Some(path), _) => Costs::read(path)?,
        (None, Some(flops)) => Costs::new(flops),
        (None, None) => {
            let hint = "give --costs FILE that `planaria measure CONFIG -o FILE` wrote; --flops and --link change what it says";
            return Err(Failure::usage("nothing says what work costs").hint(hint).into());
        }
    };
    costs.flops = args.flops.unwrap_or(costs.flops);
    if let Some(Bytes(bandwidth)) = args.link {
        let latency = costs.links.get(ANY).map_or(0.0, |link| link.latency);
        costs.links = [(ANY.to_string(), LinkCost { bandwidth: bandwidth as f64, latency })].into();
    }
    costs.check()?;
    Ok(costs)
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn print(terminal: &mut Terminal, told: &Simulated) -> Result<()> {
    let Simulated { step, lost, seconds, .. } = told;
    let (ranks, size) = (quantity::count(told.ranks, "rank"), quantity::parameters(told.parameters));
    terminal.line(format!("{ranks} as {}, {size}", told.mesh))?;
    terminal.line(format!(
        "a step: {}, of it {} in the pipeline ({}, {} idle), {} of exchange, {} of update",
        Seconds(step.seconds),
        Seconds(step.pipeline),
        told.schedule,
        percent(step.bubble),
        Seconds(step.exchange),
        Seconds(step.update)
    ))?;
    let rate = count(step.tokens_per_second);
    terminal.line(format!("{rate} tokens/s, {} of the FLOPs", percent(step.utilization)))?;
    let most = |value: &dyn Fn(usize) -> u64| Bytes((0..told.stages.len()).map(value).max().unwrap_or(0));
    terminal.line(format!(
        "a rank: {} of memory and {} sent in a step at most; a checkpoint: {}\n",
        most(&|stage| told.stages[stage].memory),
        most(&|stage| told.stages[stage].sent),
        Bytes(told.state_bytes)
    ))?;
    let failures = quantity::count(told.failures as usize, "failure");
    terminal.line(format!(
        "{}: {} steps, goodput {}, {failures}, {} of them with a machine",
        Seconds(*seconds),
        told.steps,
        percent(told.goodput),
        told.machines
    ))?;
    terminal.line(format!(
        "lost: {} to saves, {} to steps done again ({}), {} to recovery\n",
        percent(lost.saves / seconds),
        percent(lost.again / seconds),
        told.executed - told.steps,
        percent(lost.recovery / seconds)
    ))?;
    print_places(terminal, &told.places)
}

fn print_places(terminal: &mut Terminal, places: &[PlaceTold]) -> Result<()> {
    let used: Vec<&PlaceTold> = places.iter().filter(|place| place.every > 0).collect();
    let mut table = Table::new(&[1, 2, 3, 4, 5, 6, 7]);
    let names = ["place", "every", "a save", "a load", "saves", "best every", "goodput there", "Young/Daly"];
    table.row(names.map(String::from));
    for place in used.iter() {
        let steps = |every: Option<u64>| every.map_or("-".to_string(), |every| every.to_string());
        table.row([
            place.name.clone(),
            place.every.to_string(),
            Seconds(place.save_seconds).to_string(),
            Seconds(place.load_seconds).to_string(),
            place.saves.to_string(),
            steps(place.best_every),
            place.best_goodput.map_or("-".to_string(), percent),
            steps(place.daly_every),
        ]);
    }
    if used.is_empty() {
        return terminal.line("nothing is saved: a failure loses everything");
    }
    let lines: Vec<String> = table.lines().collect();
    lines.iter().try_for_each(|line| terminal.line(line))
}
