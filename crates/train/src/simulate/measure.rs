//! Costs measured on a small job with ranks as threads of this process: steps at two batch sizes and on two meshes, saves of every step,
//! links, and the places that checkpoints go to. Runs take turns, so that all of them see the same drift of the machine's speed. Nothing of
//! the run itself is touched.

use super::costs::{ANY, Costs, FOLDER, LinkCost, PlaceCost, Rates, RecoveryCost};
use super::step::Planned;
use crate::config::{Behind, CheckpointSection, Config, MeshSection, TierKind};
use crate::error::{Error, Result};
use crate::event::{Event, Observer};
use crate::plan::{Plan, PlanOptions, model_of};
use crate::trainer::{Trainer, state_bytes, tier_address};
use planaria_array::{Array, DType};
use planaria_comm::{AllReduce, CommExt, threads};
use planaria_layout::Reduce;
use planaria_nn::models::{Architecture, Models};
use planaria_store::{PutMode, Store, StoreExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Turns that each run gets.
const TURNS: u32 = 3;

/// Bytes of the file that tells how quick a place is.
const FILE: usize = 32 << 20;

/// Elements of the large message, and how often each is sent.
const LARGE: usize = 2 << 20;
const SMALL_TIMES: u32 = 200;
const LARGE_TIMES: u32 = 4;

/// The most FLOPs per second that a fit looks at.
const MOST_FLOPS: f64 = 1e18;
/// And the most bytes per second of a residual stream, and of what processors take care of.
const MOST_STREAM: f64 = 1e15;
const MOST_HANDLED: f64 = 1e13;

/// How to measure.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// Ranks, as threads; as many as the mesh asks for where it does not say.
    pub ranks: Option<usize>,
    /// Steps of a run in each of its turns; the first does not count.
    pub steps: u64,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions { ranks: None, steps: 6 }
    }
}

/// Measures what work of this configuration costs here; `scratch` is an empty folder for its runs.
pub fn measure(config: &Config, options: &MeasureOptions, scratch: &Path) -> Result<Costs> {
    let ranks = options.ranks.unwrap_or_else(|| config.mesh.ranks());
    let model = model_of(config, &Models::default())?;
    let steps = options.steps.max(3);
    let small = shortened(config, scratch, "small", steps);
    let mut large = shortened(config, scratch, "large", steps);
    large.train.global_batch *= 2;
    let mut saving = shortened(config, scratch, "saving", steps);
    saving.checkpoint.every = 1;
    saving.checkpoint.behind = Some(Behind::Wait);
    let mut other = shortened(config, scratch, "other", steps);
    other.mesh = other_mesh(&config.mesh, ranks);
    let mut stages = shortened(config, scratch, "stages", steps);
    stages.mesh = MeshSection { pp: ranks, ..ONE };
    let mut runs = vec![&small, &large, &saving];
    // Not every model can be shared out so, and one rank shares nothing.
    let possible =
        |run: &Config| ranks > 1 && Plan::new(run, &*model, ranks, &PlanOptions::default()).is_ok();
    runs.extend([&other].into_iter().filter(|run| possible(run)));
    // Only data ranks exchange what stages do not.
    runs.extend([&stages].into_iter().filter(|run| possible(run) && config.mesh.pp * config.mesh.tp == 1));
    let seen = in_turns(&runs, ranks)?;
    let mut costs = Costs::new(1.0);
    costs.about =
        format!("measured on {ranks} thread ranks, {} of the model", config.train.precision.dtype().name());
    if ranks > 1 {
        costs.links.insert(ANY.to_string(), link(ranks)?);
    }
    let mut fit = Fit::new(&*model, ranks);
    for (run, seen) in runs.iter().zip(&seen).filter(|(run, _)| run.checkpoint.every == 0) {
        let number = fit.push(run, seen.step())?;
        match run.name.as_str() {
            "other" => fit.other = Some(number),
            "stages" => fit.stages = Some(number),
            _ => {}
        }
    }
    fit.fit(&mut costs)?;
    costs.recovery = RecoveryCost { restart: median(&seen[0].ready), ..RecoveryCost::default() };
    places(&mut costs, config, state_bytes(config, &*model)? as f64, ranks, [&seen[0], &seen[2]], scratch)?;
    Ok(costs)
}

/// A copy of a run of a few steps that saves nothing, in a folder of its own.
fn shortened(config: &Config, scratch: &Path, name: &str, steps: u64) -> Config {
    let mut copy = config.clone();
    copy.name = name.to_string();
    copy.log.dir = scratch.to_path_buf();
    copy.log.tensorboard = false;
    copy.optim.horizon = Some(config.optim.horizon.unwrap_or(config.train.steps).max(steps));
    copy.train.steps = steps;
    copy.train.eval_every = 0;
    copy.checkpoint = CheckpointSection { final_save: false, resume: false, ..CheckpointSection::default() };
    copy
}

/// What was seen of a run in all its turns.
#[derive(Debug, Default)]
struct Seen {
    /// Seconds until its ranks were ready.
    ready: Vec<f64>,
    /// Of each step but a turn's first.
    steps: Vec<f64>,
    saves: Vec<f64>,
    failed: Option<String>,
}

impl Seen {
    /// Seconds of a step: the median, because a fit makes much of what disturbed a few of them.
    fn step(&self) -> f64 {
        median(&self.steps)
    }
}

#[derive(Debug)]
struct Watch {
    began: Instant,
    seen: Mutex<Seen>,
}

impl Observer for Watch {
    fn event(&self, event: &Event) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Started { .. } => seen.ready.push(self.began.elapsed().as_secs_f64()),
            Event::Step(report) => seen.steps.push(report.seconds),
            Event::Saved { took, .. } => seen.saves.push(took.as_secs_f64()),
            Event::SaveFailed { error, .. } => seen.failed = Some(error.clone()),
            _ => {}
        }
    }
}

/// What is seen of each run, which all run once in each turn.
fn in_turns(runs: &[&Config], ranks: usize) -> Result<Vec<Seen>> {
    let mut all: Vec<Seen> = runs.iter().map(|_| Seen::default()).collect();
    for turn in 0..TURNS {
        for (run, seen) in runs.iter().zip(&mut all) {
            let name = format!("{}-{turn}", run.name);
            let new = watch(Config { name, ..(*run).clone() }, ranks)?;
            seen.ready.extend(new.ready);
            seen.steps.extend(new.steps.iter().skip(1));
            seen.saves.extend(new.saves);
        }
    }
    Ok(all)
}

fn watch(config: Config, ranks: usize) -> Result<Seen> {
    let watch = Arc::new(Watch { began: Instant::now(), seen: Mutex::default() });
    Trainer::new(config).observer(watch.clone()).run(Some(ranks))?;
    let seen = std::mem::take(&mut *watch.seen.lock().unwrap_or_else(PoisonError::into_inner));
    match &seen.failed {
        Some(error) => Err(Error::Run { what: format!("a save of the measured run failed: {error}") }),
        None => Ok(seen),
    }
}

/// A mesh of one rank.
const ONE: MeshSection = MeshSection { dp: Some(1), pp: 1, ep: 1, tp: 1 };

/// A mesh that shares blocks out over all ranks, or not at all where the first one does.
fn other_mesh(mesh: &MeshSection, ranks: usize) -> MeshSection {
    match mesh.tp {
        1 => MeshSection { tp: ranks, ..ONE },
        _ => MeshSection { dp: Some(ranks), ..ONE },
    }
}

/// Runs that were seen: the small one, the one with the larger batch, and those on other meshes where there are such.
pub(super) struct Fit<'a> {
    model: &'a dyn Architecture,
    ranks: usize,
    pub(super) seen: Vec<(Planned<'a>, f64)>,
    /// The run whose blocks are shared out where those of the first are not, or the other way round.
    pub(super) other: Option<usize>,
    /// The run whose ranks are stages.
    pub(super) stages: Option<usize>,
}

impl<'a> Fit<'a> {
    pub(super) fn new(model: &'a dyn Architecture, ranks: usize) -> Fit<'a> {
        Fit { model, ranks, seen: Vec::new(), other: None, stages: None }
    }

    /// Adds a run whose steps took so long; its number.
    pub(super) fn push(&mut self, config: &'a Config, seconds: f64) -> Result<usize> {
        let (plan, work) = Plan::with_work(config, self.model, self.ranks, &PlanOptions::default())?;
        self.seen.push((Planned { config, mesh: config.mesh.on(self.ranks)?, plan, work }, seconds));
        Ok(self.seen.len() - 1)
    }

    pub(super) fn simulated(&self, run: usize, costs: &Costs) -> Result<f64> {
        Ok(self.seen[run].0.step(costs)?.seconds())
    }

    /// Costs with which the simulated steps take what the real ones took: what processors do for messages of data ranks so that stages,
    /// which have none, take what they took, and the rest for that.
    pub(super) fn fit(&self, costs: &mut Costs) -> Result<()> {
        self.fit_stream(costs)?;
        let Some(run) = self.stages else { return Ok(()) };
        // The more of a step is messages, the less is work.
        let found = bisected(MOST_HANDLED, |handling| {
            let mut tried = Costs { handling: Some(handling), stream: None, ..costs.clone() };
            let possible = self.fit_stream(&mut tried)?;
            Ok(!possible || self.simulated(run, &tried)? < self.seen[run].1)
        })?;
        if let Some(handling) = found {
            (costs.handling, costs.stream) = (Some(handling), None);
            self.fit_stream(costs)?;
        }
        Ok(())
    }

    /// All but the stream's costs for a given stream, and the stream so that the other mesh takes what it took. Whether there are such costs.
    fn fit_stream(&self, costs: &mut Costs) -> Result<bool> {
        let possible = self.fit_rest(costs)?;
        let Some(run) = self.other else { return Ok(possible) };
        let (other, seconds) = &self.seen[run];
        let shares = other.config.mesh.tp > 1;
        let found = bisected(MOST_STREAM, |stream| {
            let mut tried = Costs { stream: Some(stream), ..costs.clone() };
            let possible = self.fit_rest(&mut tried)?;
            let found = self.simulated(run, &tried)?;
            // The slower the stream, the less of a block is shared out.
            Ok(!possible || if shares { found > *seconds } else { found < *seconds })
        })?;
        if found.is_some() {
            costs.stream = found;
            return self.fit_rest(costs);
        }
        Ok(possible)
    }

    /// What the larger batch adds is work; what is left is the update's. Whether there are such costs.
    fn fit_rest(&self, costs: &mut Costs) -> Result<bool> {
        let (first, second) = (self.seen[0].1, self.seen[1].1);
        // Where noise hides the difference, all of a step counts as work.
        let more = if second > first { second - first } else { first };
        let (mut low, mut high) = (1.0, MOST_FLOPS);
        for _ in 0..60 {
            let middle = f64::sqrt(low * high);
            let tried = Costs { flops: middle, update: None, ..costs.clone() };
            if self.simulated(1, &tried)? - self.simulated(0, &tried)? > more {
                low = middle
            } else {
                high = middle
            }
        }
        // Messages alone take longer than the larger batch adds: they are hidden better than is known, and all of it counts as work.
        let possible = low < MOST_FLOPS * 0.99;
        if !possible {
            let operations = |run: usize| self.seen[run].0.plan.operations / self.ranks as f64;
            low = (operations(1) - operations(0)) / more.max(1e-9);
        }
        (costs.flops, costs.update) = (low, None);
        let left = first - self.simulated(0, costs)?;
        let memory = self.seen[0].0.plan.largest().map(|rank| rank.memory).unwrap_or_default();
        let bytes = (memory.gradients + memory.masters + memory.moments) as f64;
        costs.update = (left > 0.0 && bytes > 0.0).then(|| bytes / left);
        Ok(possible)
    }
}

/// The rate from which on one is not too slow; none where none up to `most` is.
fn bisected(most: f64, is_too_slow: impl Fn(f64) -> Result<bool>) -> Result<Option<f64>> {
    let (mut low, mut high) = (1.0, most);
    for _ in 0..45 {
        let middle = f64::sqrt(low * high);
        if is_too_slow(middle)? { low = middle } else { high = middle }
    }
    Ok((low < most * 0.99).then_some(low))
}

/// A small and a large all-reduce between thread ranks.
fn link(ranks: usize) -> Result<LinkCost> {
    let timed = |elements: usize, times: u32| -> Result<f64> {
        let all = threads::run(ranks, |comm| -> Result<f64> {
            let array = Array::full(&[elements], 1, DType::F32)?;
            let reduce =
                || comm.all_reduce(AllReduce { send: array.clone(), recv: array.clone(), op: Reduce::Max });
            reduce()?;
            comm.barrier()?;
            let began = Instant::now();
            (0..times).try_for_each(|_| reduce())?;
            Ok(began.elapsed().as_secs_f64() / f64::from(times))
        });
        all.into_iter().try_fold(0.0, |most: f64, one| Ok(most.max(one?)))
    };
    let hops = f64::from(ranks.next_power_of_two().ilog2());
    let (small, large) = (timed(2, SMALL_TIMES)?, timed(LARGE, LARGE_TIMES)?);
    let sent = (2 * LARGE * DType::F32.size() * (ranks - 1) / ranks) as f64;
    Ok(LinkCost { bandwidth: sent / (large - small).max(large / 10.0).max(1e-9), latency: small / hops })
}

/// What each place of the configuration costs: how quick a file goes there and back, and what saves of every step, each of so many bytes, did
/// to a run.
fn places(
    costs: &mut Costs,
    config: &Config,
    written: f64,
    ranks: usize,
    [plain, saving]: [&Seen; 2],
    scratch: &Path,
) -> Result<()> {
    let took = median(&saving.saves);
    let drag = ((saving.step() - plain.step()) / took.min(saving.step()).max(1e-9)).clamp(0.0, 10.0);
    let folder = planaria_store::open(&scratch.display().to_string())?;
    let mut put = |name: String, store: &dyn Store, rates: Rates| -> Result<()> {
        let (save, load) = rates_of(store)?;
        costs.places.insert(name, PlaceCost { save, load, rates, commit: 0.0, drag });
        Ok(())
    };
    put(FOLDER.to_string(), &*folder, Rates::Together)?;
    for tier in &config.checkpoint.tiers {
        let rates = match tier.kind {
            TierKind::Memory | TierKind::Local => Rates::Each,
            TierKind::Peer | TierKind::Remote => Rates::Together,
        };
        put(tier.kind.to_string(), &*planaria_store::open(&tier_address(config, tier)?)?, rates)?;
    }
    for place in costs.places.values_mut() {
        place.commit = (took - written / place.save).max(0.0);
        // One machine was measured, and its ranks share it.
        if place.rates == Rates::Each {
            (place.save, place.load) = (place.save / ranks as f64, place.load / ranks as f64);
        }
    }
    Ok(())
}

/// Bytes per second of writing and reading a file at a place, which is removed again.
fn rates_of(store: &dyn Store) -> Result<(f64, f64)> {
    let name = format!("planaria-measure-{}", std::process::id());
    let bytes: Vec<u8> = (0..FILE).map(|i| (i ^ (i >> 8)) as u8).collect();
    let timed = |work: &dyn Fn() -> Result<()>| {
        let began = Instant::now();
        work().map(|()| FILE as f64 / began.elapsed().as_secs_f64().max(1e-9))
    };
    let saved = timed(&|| Ok(store.put(&name, &bytes, PutMode::Create)?));
    let loaded = saved.and_then(|saved| {
        let read = &|| Ok(store.read(&name, FILE as u64).map(drop)?);
        Ok((saved, timed(read)?))
    });
    // What could not be written need not be there.
    let removed = store.delete(&name);
    let rates = loaded?;
    removed?;
    Ok(rates)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
