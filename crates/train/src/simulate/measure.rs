//! Costs measured on a small job with ranks as threads of this process: steps at two batch sizes, saves of every step, links, and the places
//! that checkpoints go to. Nothing of the run itself is touched.

use super::costs::{ANY, Costs, FOLDER, LinkCost, PlaceCost, Rates, RecoveryCost};
use super::step::Planned;
use crate::config::{CheckpointSection, Config, TierKind};
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

/// Bytes of the file that tells how quick a place is.
const FILE: usize = 32 << 20;

/// Elements of the large message, and how often each is sent.
const LARGE: usize = 2 << 20;
const SMALL_TIMES: u32 = 200;
const LARGE_TIMES: u32 = 4;

/// The most FLOPs per second that a fit looks at.
const MOST_FLOPS: f64 = 1e18;

/// How to measure.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// Ranks, as threads; as many as the mesh asks for where it does not say.
    pub ranks: Option<usize>,
    /// Steps of each run; the first does not count.
    pub steps: u64,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions { ranks: None, steps: 8 }
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
    let (first, second) = (watch(&small, ranks)?, watch(&large, ranks)?);
    let mut costs = Costs::new(1.0);
    costs.about =
        format!("measured on {ranks} thread ranks, {} of the model", config.train.precision.dtype().name());
    if ranks > 1 {
        costs.links.insert(ANY.to_string(), link(ranks)?);
    }
    fit(&mut costs, &*model, ranks, [(&small, first.step()), (&large, second.step())])?;
    costs.recovery = RecoveryCost { restart: first.ready, ..RecoveryCost::default() };
    places(&mut costs, config, (&*model, ranks, steps), (&first, scratch))?;
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

/// What was seen of a run.
#[derive(Debug, Default)]
struct Seen {
    /// Seconds until its ranks were ready.
    ready: f64,
    steps: Vec<f64>,
    saves: Vec<f64>,
    failed: Option<String>,
}

impl Seen {
    /// Seconds of a step: the mean of all but the first, because long jobs take the sum of theirs.
    fn step(&self) -> f64 {
        let counted = self.steps.get(1..).unwrap_or(&[]);
        counted.iter().sum::<f64>() / counted.len().max(1) as f64
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
            Event::Started { .. } => seen.ready = self.began.elapsed().as_secs_f64(),
            Event::Step(report) => seen.steps.push(report.seconds),
            Event::Saved { took, .. } => seen.saves.push(took.as_secs_f64()),
            Event::SaveFailed { error, .. } => seen.failed = Some(error.clone()),
            _ => {}
        }
    }
}

fn watch(config: &Config, ranks: usize) -> Result<Seen> {
    let watch = Arc::new(Watch { began: Instant::now(), seen: Mutex::default() });
    Trainer::new(config.clone()).observer(watch.clone()).run(Some(ranks))?;
    let seen = std::mem::take(&mut *watch.seen.lock().unwrap_or_else(PoisonError::into_inner));
    match &seen.failed {
        Some(error) => Err(Error::Run { what: format!("a save of the measured run failed: {error}") }),
        None => Ok(seen),
    }
}

/// FLOPs and update with which the simulated steps take what the real ones took. What the larger batch adds is work; what is left is the
/// update's.
fn fit(costs: &mut Costs, model: &dyn Architecture, ranks: usize, seen: [(&Config, f64); 2]) -> Result<()> {
    let mut planned = Vec::new();
    for (config, _) in seen {
        let (plan, work) = Plan::with_work(config, model, ranks, &PlanOptions::default())?;
        planned.push(Planned { config, mesh: config.mesh.on(ranks)?, plan, work });
    }
    let simulated = |costs: &Costs| -> Result<[f64; 2]> {
        Ok([planned[0].step(costs)?.seconds(), planned[1].step(costs)?.seconds()])
    };
    let [first, second] = seen.map(|(_, seconds)| seconds);
    // Where noise hides the difference, all of a step counts as work.
    let more = if second > first { second - first } else { first };
    let (mut low, mut high) = (1.0, MOST_FLOPS);
    for _ in 0..200 {
        let middle = f64::sqrt(low * high);
        let [small, large] = simulated(&Costs { flops: middle, ..costs.clone() })?;
        if large - small > more { low = middle } else { high = middle }
    }
    // Messages alone take longer than the larger batch adds: they are hidden better than is known, and all of it counts as work.
    if low >= MOST_FLOPS * 0.99 {
        let operations = |planned: &Planned<'_>| planned.plan.operations / ranks as f64;
        low = (operations(&planned[1]) - operations(&planned[0])) / more.max(1e-9);
    }
    costs.flops = low;
    let left = first - simulated(costs)?[0];
    let memory = planned[0].plan.largest().map(|rank| rank.memory).unwrap_or_default();
    let bytes = (memory.gradients + memory.masters + memory.moments) as f64;
    costs.update = (left > 0.0 && bytes > 0.0).then(|| bytes / left);
    Ok(())
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

/// What each place of the configuration costs: how quick a file goes there and back, and what saves of every step did to a run.
fn places(
    costs: &mut Costs,
    config: &Config,
    (model, ranks, steps): (&dyn Architecture, usize, u64),
    (plain, scratch): (&Seen, &Path),
) -> Result<()> {
    let mut saving = shortened(config, scratch, "saving", steps);
    saving.checkpoint.every = 1;
    saving.checkpoint.behind = Some(crate::config::Behind::Wait);
    let seen = watch(&saving, ranks)?;
    let took = median(&seen.saves);
    let drag = ((seen.step() - plain.step()) / took.min(seen.step()).max(1e-9)).clamp(0.0, 10.0);
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
    let written = state_bytes(config, model)? as f64;
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
