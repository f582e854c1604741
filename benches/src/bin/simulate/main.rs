//! `simulate`: real jobs against the simulator, at costs that `measure` takes from a smaller job first: on thread ranks, and with `--planaria`
//! as processes of two hosts whose link is shaped. Jobs differ from the measured one in depth, batch, mesh, saves, and one failure with healing. Costs are measured between jobs, and a job is
//! compared with what costs before and after it give, because a machine's speed drifts.
//! Bar: the median over rounds is within 10 % of the simulator's time.
//!
//! Run it alone on a machine: `cargo run --release -p planaria-bench --bin simulate`. It prints a table and the record's JSON, and ends with 1
//! where the bar is not held.

mod hosts;

use anyhow::{Result, bail};
use clap::Parser;
use hosts::{Failed, Hosts};
use planaria_bench::machine::Machine;
use planaria_bench::stats::{median, spread};
use planaria_nn::models::Models;
use planaria_train::config::{Config, Sources};
use planaria_train::drill::{At, Fault, What};
use planaria_train::event::{Event, Observer};
use planaria_train::plan::model_of;
use planaria_train::simulate::{
    ANY, Costs, Failure, Failures, MeasureOptions, SimulateOptions, Simulated, measure,
};
use planaria_train::{Healing, Trainer};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const BAR: f64 = 0.10;

#[derive(Parser)]
struct Args {
    /// Steps of a job
    #[arg(long, default_value_t = 40)]
    steps: u64,
    /// Steps of the runs that are measured, in each of their turns
    #[arg(long, default_value_t = 6)]
    measured: u64,
    /// Rounds over everything
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Folder for runs; a temporary one if not given
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// The program that runs jobs over two hosts, which need root and iproute2; without it there are none
    #[arg(long)]
    planaria: Option<PathBuf>,
    /// Millions of bits that the link between the hosts lets through in a second, in each direction
    #[arg(long, default_value_t = 1000)]
    mbit: u64,
    /// Only jobs whose names have this in them
    #[arg(long, default_value = "")]
    only: String,
}

/// A job: what it changes, and the step in which a rank fails.
struct Case {
    name: &'static str,
    set: &'static [&'static str],
    fails: Option<u64>,
}

/// Jobs as processes of two hosts, one rank on each.
const OVER_HOSTS: [Case; 5] = [
    Case { name: "two hosts", set: &[], fails: None },
    Case { name: "two hosts, deep", set: &["model.num_hidden_layers=8"], fails: None },
    Case { name: "two hosts, pipeline", set: &["mesh=pp=2", "train.global_batch=16"], fails: None },
    Case { name: "two hosts, saves", set: &["checkpoint.every=4"], fails: None },
    Case { name: "two hosts, a failure and healing", set: &["checkpoint.every=5"], fails: Some(18) },
];

const CASES: [Case; 8] = [
    Case { name: "as measured", set: &[], fails: None },
    Case { name: "twice as deep", set: &["model.num_hidden_layers=8"], fails: None },
    Case { name: "four times the batch", set: &["train.global_batch=32"], fails: None },
    Case { name: "tensor parallel", set: &["mesh=tp=2"], fails: None },
    Case { name: "tensor parallel, deep", set: &["mesh=tp=2", "model.num_hidden_layers=7"], fails: None },
    Case { name: "pipeline", set: &["mesh=pp=2", "train.global_batch=16"], fails: None },
    Case { name: "saves", set: &["checkpoint.every=2"], fails: None },
    Case { name: "a failure and healing", set: &["checkpoint.every=5"], fails: Some(8) },
];

fn config(folder: &Path, args: &Args, set: &[&str]) -> Result<Config> {
    let text = folder.join("text.txt");
    std::fs::write(&text, "all work and no play makes a dull run ".repeat(4000))?;
    let base = format!(
        "name = \"job\"\nmesh = \"dp=2\"\n[model]\nhidden_size = 256\nintermediate_size = 704\nnum_hidden_layers = 4\n\
         num_attention_heads = 4\n[data]\nsequence = 128\n[[data.source]]\npath = {text:?}\n[train]\nsteps = {}\nglobal_batch = 8\n\
         micro_batch = 2\nthreads = 1\n[checkpoint]\nfinal_save = false\n[heal]\nodd_loss = true\n[log]\ndir = {:?}\ntensorboard = false\n",
        args.steps,
        folder.join("runs"),
    );
    Ok(Sources::text("config", &base).set(set.iter().map(ToString::to_string)).resolve()?.config)
}

/// Hears when the first step can begin, for the first time.
#[derive(Debug, Default)]
struct Ready(Mutex<Option<Instant>>);

impl Observer for Ready {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Started { .. }) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        }
    }
}

/// Seconds of the real job, from its first step.
fn real(config: &Config, fails: Option<u64>) -> Result<f64> {
    let ready = Arc::new(Ready::default());
    let trainer = Trainer::new(config.clone()).observer(ready.clone());
    if let Some(step) = fails {
        // A weight that is no number is found in the step after, which stops the job.
        let faults = vec![Fault { what: What::Nan, rank: 1, at: At::Step(step - 1) }];
        if trainer.clone().healing(Healing { faults, ..Healing::default() }).run(None).is_ok() {
            bail!("the job did not fail");
        }
    }
    trainer.run(None)?;
    let began = *ready.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(began.map_or(0.0, |began| began.elapsed().as_secs_f64()))
}

/// Seconds that the simulator tells for a job; it fails after so many steps, of which the last may be one in part.
fn simulated(config: &Config, costs: &Costs, fails: Option<f64>) -> Result<f64> {
    let model = model_of(config, &Models::default())?;
    let mut options = SimulateOptions { ranks: config.mesh.ranks(), ..SimulateOptions::default() };
    if let Some(steps) = fails {
        let each = Simulated::new(config, &*model, costs, &options)?.step.seconds;
        options.failures = Failures::At(vec![Failure { time: steps * each, machine: false }]);
    }
    Ok(Simulated::new(config, &*model, costs, &options)?.seconds)
}

/// Real and simulated seconds of every job; the simulated ones are the middle of two, by costs from before the job and from after it.
fn round(scratch: &Path, args: &Args, hosts: Option<&Hosts>) -> Result<Vec<[f64; 2]>> {
    let measured = || -> Result<Costs> {
        let options = MeasureOptions { ranks: None, steps: args.measured };
        let mut costs = measure(&config(scratch, args, &[])?, &options, scratch)?;
        // A thread that failed is noticed at once.
        costs.recovery.detect = 0.0;
        // The next job finds nothing of this one.
        std::fs::remove_dir_all(scratch)?;
        std::fs::create_dir_all(scratch)?;
        Ok(costs)
    };
    let mut before = measured()?;
    let mut compared = |name: &str, real: f64, told: &dyn Fn(&Costs) -> Result<f64>| -> Result<[f64; 2]> {
        let after = measured()?;
        let told = (told(&before)? + told(&after)?) / 2.0;
        before = after;
        // Whoever ends it early has what was seen so far.
        eprintln!("{name}: {real:.3} s, {told:.3} s simulated, {:.3}", real / told);
        Ok([real, told])
    };
    let mut pairs = Vec::new();
    for Case { name, set, fails } in wanted(&CASES, args) {
        let config = config(scratch, args, set)?;
        // The step that fails is done but for its update.
        let failed = fails.map(|step| step as f64 - 0.05);
        pairs.push(compared(name, real(&config, *fails)?, &|costs| simulated(&config, costs, failed))?);
    }
    let Some(hosts) = hosts else { return Ok(pairs) };
    // What it takes to have ranks on both is found out by a job that does nothing else.
    let restart = hosts.run(&config(scratch, args, &["train.steps=1"])?, None)?.ready;
    for Case { name, set, fails } in wanted(&OVER_HOSTS, args) {
        let config = config(scratch, args, set)?;
        let run = hosts.run(&config, *fails)?;
        let failed = run.failed.map(|Failed { steps }| steps);
        let told = |costs: &Costs| {
            let mut costs = costs.clone();
            costs.links.insert(ANY.to_string(), hosts.link());
            costs.recovery.restart = restart;
            simulated(&config, &costs, failed)
        };
        pairs.push(compared(name, run.seconds, &told)?);
    }
    Ok(pairs)
}

/// The jobs of a list that were asked for.
fn wanted<'a>(cases: &'a [Case], args: &'a Args) -> impl Iterator<Item = &'a Case> {
    cases.iter().filter(|case| case.name.contains(&args.only))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let scratch = args
        .scratch
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("planaria-simulate-{}", std::process::id())));
    std::fs::create_dir_all(&scratch)?;
    let hosts = args.planaria.as_ref().map(|planaria| Hosts::make(planaria, args.mbit)).transpose()?;
    let mut rounds = Vec::new();
    for number in 0..args.rounds.max(1) {
        rounds.push(round(&scratch, &args, hosts.as_ref())?);
        eprintln!("round {} of {} done", number + 1, args.rounds);
    }
    println!("| job | real s | simulated s | ratio | least..most |\n|---|---|---|---|---|");
    let (mut rows, mut held) = (Vec::new(), true);
    let over_hosts = wanted(&OVER_HOSTS, &args).filter(|_| hosts.is_some());
    for (at, Case { name, .. }) in wanted(&CASES, &args).chain(over_hosts).enumerate() {
        let of = |pick: fn([f64; 2]) -> f64| rounds.iter().map(move |round: &Vec<[f64; 2]>| pick(round[at]));
        let middle = |pick| median(of(pick)).unwrap_or(f64::NAN);
        let (real, told) = (middle(|[real, _]| real), middle(|[_, told]| told));
        let ratio = middle(|[real, told]| real / told);
        let (least, most) = spread(of(|[real, told]| real / told)).unwrap_or_default();
        held &= (ratio - 1.0).abs() <= BAR;
        println!("| {name} | {real:.3} | {told:.3} | {ratio:.3} | {least:.3}..{most:.3} |");
        rows.push(json!({ "job": name, "real": real, "simulated": told, "ratio": ratio }));
    }
    let record = json!({ "machine": Machine::here(None), "rounds": args.rounds, "rows": rows, "bar": BAR, "held": held });
    println!("\n{}", serde_json::to_string_pretty(&record)?);
    std::fs::remove_dir_all(&scratch)?;
    if !held {
        bail!("a job took more than {:.0} % longer or shorter than simulated", BAR * 100.0);
    }
    Ok(())
}
