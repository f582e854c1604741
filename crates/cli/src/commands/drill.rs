//! `planaria drill`: a shortened copy of a run has faults done to it, heals, and is compared with one that nobody touched.

mod fault;
mod harm;
mod scratch;

use crate::commands::launch::Engine;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::table::Table;
use crate::terminal::Terminal;
use anyhow::Result;
use fault::{Dice, FaultKind, Planned};
use scratch::{Scratch, Told};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Inject faults into a shortened copy of a run and check that nothing is lost
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The copy runs in a scratch folder, which is removed. Each fault happens to a run of its own at a place that the seed\n\
    decides: as a rank comes to one of its calls to others, or to an operation on a place of checkpoints, or to the newest\n\
    checkpoint between two starts; with --every, at each place in turn. The run heals as\n\
    `planaria launch` heals it; its loss curve and the tensors of its last checkpoint must have the bits of an undisturbed\n\
    one. Exits 1 if anything was lost. The same seed does the same faults at the same places."
)]
pub(crate) struct Args {
    /// The run's configuration
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Change a value, as in `optim.lr=3e-4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Ranks; as many as the mesh asks for if not given
    #[arg(short = 'n', long, value_name = "NUMBER")]
    ranks: Option<usize>,
    /// Kinds of faults, separated by commas; all if not given
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    faults: Vec<FaultKind>,
    /// Faults in all; each kind once if neither this nor --minutes is given
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<usize>,
    /// Do each fault at every NUMBER-th place where it can happen, instead of where the seed says
    #[arg(long, value_name = "NUMBER", conflicts_with = "minutes", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// What a rank is
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "processes")]
    engine: Engine,
    /// Keep going for this long
    #[arg(long, value_name = "NUMBER")]
    minutes: Option<f64>,
    /// Decides where faults happen
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Steps of the shortened run
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u64).range(8..=10_000))]
    steps: u64,
    /// Seconds without progress after which ranks count as hung
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    patience: f64,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let kinds = if args.faults.is_empty() { FaultKind::ALL.to_vec() } else { args.faults.clone() };
    let scratch = Scratch::new(args, terminal)?;
    let limit = args.minutes.map(|minutes| Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0));
    let rounds = args.rounds.unwrap_or(if limit.is_some() { usize::MAX } else { kinds.len() });
    let (began, mut dice, mut told) = (Instant::now(), Dice::new(args.seed), Vec::new());
    let mut everywhere = args.every.map(|every| {
        let all = kinds.iter().flat_map(|kind| Planned::everywhere(*kind, &scratch.undisturbed));
        all.step_by(every as usize).collect::<VecDeque<_>>()
    });
    let rounds = everywhere.as_ref().map_or(rounds, |all| all.len().min(args.rounds.unwrap_or(usize::MAX)));
    while told.len() < rounds && limit.is_none_or(|limit| began.elapsed() < limit) {
        let planned = match everywhere.as_mut().map(VecDeque::pop_front) {
            Some(Some(next)) => next,
            Some(None) => break,
            None => Planned::new(kinds[told.len() % kinds.len()], &mut dice, &scratch.undisturbed),
        };
        let one = scratch.suffer(told.len(), &planned)?;
        let word = if one.is_whole() { "whole" } else { "LOST" };
        terminal.note(format!("{:>4}  {planned}: {word}, {}", told.len() + 1, one.words()));
        told.push(one);
    }
    if told.is_empty() {
        return Err(Failure::usage("no time for a single fault")
            .hint("give --rounds, or more --minutes")
            .into());
    }
    report(&told, args.seed, terminal)
}

/// The row of one kind of fault.
#[derive(Debug, Serialize)]
struct Row {
    fault: FaultKind,
    times: usize,
    recovered_from: String,
    seconds_lost: f64,
    steps_lost: u64,
    bits_equal: usize,
}

fn report(told: &[Told], seed: u64, terminal: &mut Terminal) -> Result<Exit> {
    let mut kinds: BTreeMap<FaultKind, Vec<&Told>> = BTreeMap::new();
    told.iter().for_each(|one| kinds.entry(one.kind).or_default().push(one));
    let row = |(fault, all): (&FaultKind, &Vec<&Told>)| {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        all.iter().flat_map(|one| &one.from).for_each(|place| *places.entry(place).or_default() += 1);
        let places: Vec<String> = places.iter().map(|(place, times)| format!("{place} {times}")).collect();
        Row {
            fault: *fault,
            times: all.len(),
            recovered_from: places.join(", "),
            seconds_lost: all.iter().map(|one| one.seconds).sum::<f64>() / all.len() as f64,
            steps_lost: all.iter().map(|one| one.steps).max().unwrap_or(0),
            bits_equal: all.iter().filter(|one| one.is_whole()).count(),
        }
    };
    let rows: Vec<Row> = kinds.iter().map(row).collect();
    let lost = told.iter().filter(|one| !one.is_whole()).count();
    if terminal.json {
        let told = serde_json::json!({ "seed": seed, "faults": told.len(), "lost": lost, "rows": rows });
        terminal.object("planaria/drill/1", &told)?;
    } else {
        let mut table = Table::new(&[1, 3, 4, 5]);
        table.row(
            ["fault", "times", "recovered from", "s lost", "steps lost", "bits equal"].map(String::from),
        );
        for row in &rows {
            let Row { fault, times, recovered_from, seconds_lost, steps_lost, bits_equal } = row;
            table.row([
                fault.to_string(),
                times.to_string(),
                recovered_from.clone(),
                format!("{seconds_lost:.1}"),
                steps_lost.to_string(),
                format!("{bits_equal} of {times}"),
            ]);
        }
        let lines: Vec<String> = table.lines().collect();
        lines.iter().try_for_each(|line| terminal.line(line))?;
        terminal.line(format!("{} with seed {seed}, {lost} lost", count(told.len(), "fault")))?;
    }
    Ok(if lost == 0 { Exit::Success } else { Exit::Negative })
}
