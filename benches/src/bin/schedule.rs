//! `schedule`: how long steps of a pipeline take on thread ranks, against the simulator's time for the same work.
//!
//! Two kinds of work. `wait`: stages that take time and no core, as kernels of an accelerator do, with a real tensor
//! handed on; what is lost then is lost by the engine and the communicator. `model`: blocks of a decoder, one thread
//! for each rank. The simulator gets the measured times of the actions, each its own and as means by stage and step.
//! Bar: 1.05 of the simulator's time, for both.

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_array::random::Key;
use planaria_array::{Array, DType, Threads};
use planaria_bench::machine::Machine;
use planaria_comm::{Comm, threads};
use planaria_nn::Init;
use planaria_nn::models::{Activations, Models, Network, Run, Stage};
use planaria_pipeline::engine::{At, Engine, Options, Ran, StageWork};
use planaria_pipeline::{Action, Costs, Failure, Schedule, ScheduleKind, Span, StageBytes, StageCost, Step};
use planaria_tensor::{Keep, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BAR: f64 = 1.05;

/// Sides of the tensor that waiting stages hand on: 256 KiB of f32.
const SIDE: usize = 256;

/// Blocks of the model, over all stages; the same work whatever the number of chunks.
const LAYERS: usize = 8;

/// Samples and tokens of a micro-batch of the model.
const BATCH: [usize; 2] = [4, 128];

#[derive(Parser)]
struct Args {
    /// Steps of one case; one more before them does not count
    #[arg(long, default_value_t = 7)]
    steps: usize,
    /// Milliseconds of a rank's forward on one micro-batch, where stages wait
    #[arg(long, default_value_t = 8.0)]
    ms: f64,
    /// Only this kind of work
    #[arg(long)]
    only: Option<Work>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    Wait,
    Model,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Wait => "wait",
            Work::Model => "model",
        }
    }

    /// Ranks and micro-batches.
    fn sizes(self) -> &'static [(usize, usize)] {
        match self {
            Work::Wait => &[(2, 2), (2, 8), (4, 8), (8, 16)],
            Work::Model => &[(2, 4), (2, 8)],
        }
    }
}

/// One schedule with one kind of work.
struct Case {
    work: Work,
    kind: ScheduleKind,
    chunks: usize,
    schedule: Arc<Schedule>,
    /// Time of a stage's forward, where stages wait.
    unit: Duration,
}

impl Case {
    fn all(args: &Args) -> Result<Vec<Case>> {
        let mut all = Vec::new();
        for work in [Work::Wait, Work::Model].into_iter().filter(|work| args.only.is_none_or(|w| w == *work))
        {
            for (kind, &(ranks, micros)) in
                work.sizes().iter().flat_map(|size| ScheduleKind::ALL.map(|kind| (kind, size)))
            {
                let chunks = if kind == ScheduleKind::Interleaved { 2 } else { kind.chunks().0 };
                let schedule = Arc::new(kind.build(ranks, micros, chunks)?);
                let unit = Duration::from_secs_f64(args.ms / 1e3 / chunks as f64);
                all.push(Case { work, kind, chunks, schedule, unit });
            }
        }
        Ok(all)
    }

    /// Runs the steps and gives those that count.
    fn run(&self, steps: usize) -> Result<Vec<Told>> {
        let ends = threads::run(self.schedule.ranks(), |comm| -> Result<Vec<Ran>> {
            Threads::new(1)?.run(|| self.rank(&comm, steps + 1).map_err(anyhow::Error::msg))
        });
        let ends: Vec<Vec<Ran>> = ends.into_iter().collect::<Result<_>>()?;
        Ok((1..=steps).map(|step| Told::new(ends.iter().map(|ran| &ran[step]))).collect())
    }

    fn rank(&self, comm: &Arc<dyn Comm>, steps: usize) -> Result<Vec<Ran>, String> {
        let own = self.schedule.stages().of(comm.rank());
        let mut work: Box<dyn StageWork> = match self.work {
            Work::Wait => Box::new(Waiting::new(self, own).map_err(|e| e.to_string())?),
            Work::Model => Box::new(Decoder::new(self, own).map_err(|e| e.to_string())?),
        };
        let mut engine = Engine::new(self.schedule.clone(), comm.clone(), Options::default())
            .map_err(|e| e.to_string())?;
        let step = |_| {
            comm.barrier().map_err(|e| e.to_string())?;
            engine.run(work.as_mut()).map_err(|e| e.to_string())
        };
        (0..steps).map(step).collect()
    }
}

/// One step of all ranks.
struct Told {
    makespan: f64,
    /// Time that ranks computed, all together.
    busy: f64,
    times: HashMap<Action, f64>,
}

impl Told {
    fn new<'a>(ranks: impl Iterator<Item = &'a Ran> + Clone) -> Told {
        let work = |span: &&Span| span.action.step.is_work();
        let times: HashMap<Action, f64> = ranks
            .clone()
            .flat_map(|ran| ran.spans.iter().filter(work).map(|span| (span.action, span.end - span.start)))
            .collect();
        let at = |ran: &Ran, seconds: f64| ran.begin + Duration::from_secs_f64(seconds);
        let ends = ranks.clone().filter_map(|ran| Some(at(ran, ran.spans.last()?.end))).max();
        let begins = ranks.filter_map(|ran| Some(at(ran, ran.spans.first()?.start))).min();
        let makespan = ends.zip(begins).map_or(0.0, |(end, begin)| (end - begin).as_secs_f64());
        Told { makespan, busy: times.values().sum(), times }
    }

    /// The simulator's time with each action's own.
    fn replayed(&self, schedule: &Schedule) -> Result<f64> {
        let spans = schedule.replay(|action| self.times.get(&action).copied().unwrap_or(0.0))?;
        Ok(spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max))
    }

    /// The simulator's time with means: one time for each part of a stage's work, as a plan has them.
    fn simulated(&self, schedule: &Schedule) -> Result<f64> {
        let stage = |stage: usize| {
            let of = |step: Step| {
                let both = |(a, _): &(&Action, &f64)| a.stage == stage && a.step == step;
                mean(self.times.iter().filter(both).map(|(_, time)| *time))
            };
            // Backward is whole or in two parts, never both.
            let input = of(Step::Backward).or(of(Step::Input)).unwrap_or(0.0);
            let (forward, weight) = (of(Step::Forward).unwrap_or(0.0), of(Step::Weight).unwrap_or(0.0));
            StageCost { forward, input, weight, bytes: StageBytes::NONE }
        };
        let stages = (0..schedule.stages().len()).map(stage).collect();
        Ok(schedule.simulate(&Costs { stages, ..Costs::unit() })?.makespan)
    }
}

/// What a case came to: medians over its steps. Times in seconds, ratios of the same step.
struct Row {
    measured: f64,
    exact: [f64; 2],
    means: [f64; 2],
    bubbles: [f64; 2],
}

impl Row {
    fn of(case: &Case, steps: &[Told]) -> Result<Row> {
        let ranks = case.schedule.ranks() as f64;
        let times =
            |time: &dyn Fn(&Told) -> Result<f64>| steps.iter().map(time).collect::<Result<Vec<f64>>>();
        let exact = times(&|told| told.replayed(&case.schedule))?;
        let means = times(&|told| told.simulated(&case.schedule))?;
        let middle = |values: &mut dyn Iterator<Item = f64>| median(values).context("no steps");
        let both = |times: &[f64]| -> Result<[f64; 2]> {
            let ratios = &mut steps.iter().zip(times).map(|(told, time)| told.makespan / time);
            Ok([middle(&mut times.iter().copied())?, middle(ratios)?])
        };
        let bubble = |(told, makespan): (&Told, f64)| 1.0 - told.busy / ranks / makespan;
        Ok(Row {
            measured: middle(&mut steps.iter().map(|told| told.makespan))?,
            exact: both(&exact)?,
            means: both(&means)?,
            bubbles: [
                middle(&mut steps.iter().zip(exact.iter().copied()).map(bubble))?,
                middle(&mut steps.iter().map(|told| bubble((told, told.makespan))))?,
            ],
        })
    }

    fn print(&self, case: &Case) {
        let (ranks, micros) = (case.schedule.ranks(), case.schedule.micros());
        println!(
            "| {} | {} | {ranks} | {micros} | {} | {:.1} | {:.1} | {:.3} | {:.1} | {:.3} | {:.1} % | {:.1} % |",
            case.work.name(),
            case.kind,
            case.chunks,
            1e3 * self.measured,
            1e3 * self.exact[0],
            self.exact[1],
            1e3 * self.means[0],
            self.means[1],
            1e2 * self.bubbles[0],
            1e2 * self.bubbles[1],
        );
    }

    fn missed(&self) -> bool {
        self.exact[1] > BAR || self.means[1] > BAR
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    print_head(&args);
    let mut missed = Vec::new();
    for case in Case::all(&args)? {
        let row = Row::of(&case, &case.run(args.steps)?)?;
        row.print(&case);
        if row.missed() {
            let (ranks, micros) = (case.schedule.ranks(), case.schedule.micros());
            missed.push(format!("{} {} p={ranks} m={micros}", case.work.name(), case.kind));
        }
    }
    match missed.is_empty() {
        true => println!("\nEvery case is within {BAR} of both."),
        false => bail!("over {BAR}: {}", missed.join(", ")),
    }
    Ok(())
}

fn print_head(args: &Args) {
    let machine = Machine::here(None);
    println!("# Pipeline steps against the simulator, {}\n", machine.date);
    println!("| | |\n|---|---|");
    println!(
        "| command | `cargo run --release -p planaria-bench --bin schedule -- --steps {} --ms {}` |",
        args.steps, args.ms
    );
    println!("| CPU | {}, {} logical |", machine.cpu, machine.cores);
    println!(
        "| memory | {} GiB |\n| kernel | {} |\n| compiler | {} |",
        machine.memory_gib, machine.kernel, machine.rustc
    );
    println!(
        "\nThread ranks; medians of {} steps after one that does not count. `wait`: stages that take time and no core, {} ms\n\
         for a rank's forward on a micro-batch and twice that for its backward, and hand on a tensor of {} KiB. `model`:\n\
         {LAYERS} blocks of a decoder on micro-batches of {}x{} tokens, one thread for each rank. The simulator is given the\n\
         measured times of the actions: each its own (exact), or the mean of its stage and step (means). Bubble: part\n\
         of the step in which ranks do not compute, their mean, simulated with exact times and measured. Bar: {BAR}.\n",
        args.steps,
        args.ms,
        SIDE * SIDE * 4 / 1024,
        BATCH[0],
        BATCH[1],
    );
    println!(
        "| work | schedule | p | m | v | step, ms | exact, ms | ratio | means, ms | ratio | bubble, simulated | measured |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    );
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Stages that take time and no core.
struct Waiting {
    weights: BTreeMap<usize, Tensor>,
    last: usize,
    forward: Duration,
    /// Time of one call of backward: both parts, or one of them.
    backward: Duration,
}

impl Waiting {
    fn new(case: &Case, own: impl Iterator<Item = usize>) -> Result<Waiting> {
        let weight = |stage| Ok((stage, Tensor::ones(&[SIDE], DType::F32)?.requires_grad()));
        let split = case.schedule.lists().iter().flatten().any(|action| action.step == Step::Weight);
        Ok(Waiting {
            weights: own.map(weight).collect::<Result<_>>()?,
            last: case.schedule.stages().len() - 1,
            forward: case.unit,
            backward: if split { case.unit } else { 2 * case.unit },
        })
    }
}

/// Sleeps till the time is over; the system may wake a thread early.
fn rest(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}

impl StageWork for Waiting {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        rest(self.forward);
        let x = match inputs.into_iter().next() {
            Some(x) => x,
            None => Tensor::ones(&[SIDE, SIDE], DType::F32)?,
        };
        let y = x.mul(&self.weights[&at.stage])?;
        Ok(vec![if at.stage == self.last { y.sum(&[], Keep::No)? } else { y }])
    }

    fn begin_backward(&mut self, _: At) {
        rest(self.backward);
    }

    fn finish(&mut self, at: At) -> Result<(), Failure> {
        drop(self.weights[&at.stage].take_grad());
        Ok(())
    }
}

/// Stages of a decoder.
struct Decoder {
    stages: BTreeMap<usize, Box<dyn Network>>,
    last: usize,
    tokens: Tensor,
}

impl Decoder {
    fn new(case: &Case, own: impl Iterator<Item = usize>) -> Result<Decoder> {
        let count = case.schedule.stages().len();
        let each = LAYERS / count;
        let config = Models::default().open_json(&format!(
            r#"{{ "model_type": "qwen2", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": {LAYERS},
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256 }}"#
        ))?;
        let init = Init { seed: 1, ..Init::default() };
        let part = |stage: usize| {
            let layers = stage * each..(stage + 1) * each;
            let part = Stage { layers, embed: stage == 0, head: stage + 1 == count };
            Ok((stage, config.build(&part, None, &init)?))
        };
        let ids: Vec<i64> = (0..BATCH[0] * BATCH[1]).map(|i| (i * 37 % 251) as i64).collect();
        let tokens = Tensor::new(Array::from_slice(&ids, &BATCH)?);
        Ok(Decoder { stages: own.map(part).collect::<Result<_>>()?, last: count - 1, tokens })
    }
}

impl StageWork for Decoder {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
        let model = &self.stages[&at.stage];
        let input = if at.stage == 0 { (&self.tokens).into() } else { Activations::from_list(inputs)? };
        let run = Run { train: Some(Key::new(1, at.micro as u64)), ..Run::default() };
        let end = model.forward(input, &run)?;
        match at.stage == self.last {
            true => Ok(vec![model.loss(&end, &self.tokens)?.total()?]),
            false => Ok(end.into_list()),
        }
    }

    fn finish(&mut self, at: At) -> Result<(), Failure> {
        self.stages[&at.stage].visit(&mut |param| drop(param.leaf().take_grad()));
        Ok(())
    }
}
