//! What a run will need, before any device is asked for: memory per rank, bytes sent, time lost in the pipeline.
//!
//! Weights, gradients and optimizer state follow from the model's table and the ways they are divided, so they are exact. Activations
//! follow from what the layers keep for backward and how many micro-batches the schedule has under way; experts are taken to be used
//! evenly. What allocators and libraries keep for themselves is not counted.

mod activations;
mod backward;
mod choose;
mod links;
mod state;
#[cfg(test)]
mod tests;
mod traffic;

pub use choose::{Choice, choose};
pub use links::{Link, crossing, links};
pub use traffic::Traffic;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::geometry::{Batching, Geometry};
use crate::objective::{Held, Objective, Objectives};
use crate::pipeline::{Costs as StageCosts, Schedule, ScheduleKind, Simulation, StageCost};
use crate::{partition, pretrained, update};
use activations::Costs;
use planaria_layout::{DType, Mesh};
use planaria_nn::models::{Architecture, Models, Sizes, Stage, parameter_count};
use planaria_nn::optim::Rule;
use serde::Serialize;
use std::sync::Arc;

/// Bytes of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Memory {
    /// Weights in the dtype of the run.
    pub weights: u64,
    /// Sums of gradients, in f32.
    pub gradients: u64,
    /// f32 weights beside narrow ones.
    pub masters: u64,
    /// Moments or velocities.
    pub moments: u64,
    /// Running average of the weights.
    pub ema: u64,
    /// What forward keeps for backward, and what backward needs besides, at the worst moment.
    pub activations: u64,
    /// Gradients on their way to other ranks, at the worst moment; nothing where there is one data rank.
    pub exchange: u64,
    /// What an objective holds of a whole step, such as the vectors of all its texts, at the worst moment.
    pub held: u64,
    /// What the update needs besides, when no activations are there.
    pub update: u64,
    /// What the allocator adds to weights that are joined to be sent.
    pub rounding: u64,
    /// The largest sum at one time; not all of it is there at once.
    pub total: u64,
}

impl Memory {
    /// The largest sum, where so much is there at the worst moment of forward and backward, sums of gradients included, and so much at the
    /// start.
    fn summed(mut self, computing: u64, start: u64, held: Held) -> Memory {
        let kept = self.weights + self.masters + self.moments + self.ema + self.rounding;
        let updating = self.gradients + self.update;
        self.held = held.before.max(held.during);
        let before = held.before + if held.keeps { self.activations } else { 0 };
        let computing = (computing + self.exchange + held.during).max(before);
        self.total = (kept + computing.max(updating)).max(start);
        self
    }
}

/// The ranks of one pipeline stage: what the one that needs most needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RankPlan {
    /// Position along `pp`.
    pub stage: usize,
    /// Blocks it has.
    pub layers: usize,
    /// Elements of its pieces of the weights.
    pub parameters: u64,
    /// Most micro-batches under way at once, in parts of the model.
    pub in_flight: usize,
    /// Bytes.
    pub memory: Memory,
    /// Bytes this rank sends in one step, by what they are.
    pub traffic: Vec<Traffic>,
    /// Part of the step in which it waits for other stages.
    pub bubble: f64,
}

/// What a run will need.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Ranks.
    pub ranks: usize,
    /// The mesh, all axes.
    pub mesh: String,
    /// Elements of the whole model; tied ones once.
    pub parameters: u64,
    /// How many of them are trained.
    pub trained: u64,
    /// Dtype of the weights.
    pub dtype: String,
    /// Samples per step.
    pub global_batch: u64,
    /// Samples per forward pass.
    pub micro_batch: u64,
    /// Micro-batches per step and data rank.
    pub accumulation: u64,
    /// Tokens per step.
    pub tokens: u64,
    /// Floating-point operations per step of all ranks, recomputing included.
    pub operations: f64,
    /// The pipeline's schedule.
    pub schedule: String,
    /// Part of the step lost to the pipeline on the rank that loses most.
    pub bubble: f64,
    /// By pipeline stage.
    pub stages: Vec<RankPlan>,
}

/// Changes to what the configuration says, and what a program has besides.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Dtype of weights and activations, also one that training cannot use yet.
    pub dtype: Option<DType>,
    /// What runs learn, by name.
    pub objectives: Objectives,
}

/// The model that a configuration asks for, of those that are known, for an objective that comes with this crate.
pub fn model_of(config: &Config, models: &Models) -> Result<Arc<dyn Architecture>> {
    model_for(config, models, &Objectives::default())
}

/// The same, for one of these objectives.
pub fn model_for(config: &Config, models: &Models, objectives: &Objectives) -> Result<Arc<dyn Architecture>> {
    let objective = objective_of(config, objectives)?;
    let tokenizer = objective.tokenizer(pretrained::open_tokenizer(config)?)?;
    crate::trainer::model(config, &*objective, tokenizer.vocab_size(), models)
}

/// What the run learns.
pub(crate) fn objective_of(config: &Config, known: &Objectives) -> Result<Arc<dyn Objective>> {
    let objective = known.find(&config.train.objective)?;
    Ok(objective.configured(config)?.unwrap_or(objective))
}

/// The kind of a run's pipeline, and the parts of the model that a stage has.
pub(crate) fn kind_of(config: &Config) -> Result<(ScheduleKind, usize)> {
    let kind: ScheduleKind = config.train.schedule.parse().map_err(pipeline_error)?;
    Ok((kind, config.train.chunks.max(kind.chunks().0)))
}

/// The schedule of a pipeline of so many stages, its kind, and the parts of the model that a stage has.
pub(crate) fn schedule_of(
    config: &Config,
    stages: usize,
    rounds: u64,
) -> Result<(Schedule, ScheduleKind, usize)> {
    if stages == 1 {
        let kind = ScheduleKind::OneForwardOneBackward;
        return Ok((kind.build(1, rounds as usize, 1).map_err(pipeline_error)?, kind, 1));
    }
    let (kind, chunks) = kind_of(config)?;
    Ok((kind.build(stages, rounds as usize, chunks).map_err(pipeline_error)?, kind, chunks))
}

/// What the parts of a plan are computed from.
struct Setting<'a> {
    config: &'a Config,
    model: &'a dyn Architecture,
    dtype: DType,
    /// Axes `ep` and `tp`.
    inner: Mesh,
    data_ranks: usize,
    geometry: Geometry,
    rule: Rule,
    sizes: Sizes,
    costs: Costs,
    frozen: Frozen,
    /// What the objective holds where the model ends.
    held: Held,
    /// Where the objective has the whole model make texts, how many at once, and the tokens of each.
    generates: Option<[u64; 2]>,
    /// Some of its parameters have the values of others.
    is_tied: bool,
    /// The model's parts in order, and the pipeline rank of each.
    parts: Vec<(Stage, usize)>,
}

impl Plan {
    /// The plan of a run on so many ranks.
    pub fn new(
        config: &Config,
        model: &dyn Architecture,
        ranks: usize,
        options: &PlanOptions,
    ) -> Result<Plan> {
        Ok(Plan::with_work(config, model, ranks, options)?.0)
    }

    /// The same, and the work that its pipeline was simulated with.
    pub(crate) fn with_work(
        config: &Config,
        model: &dyn Architecture,
        ranks: usize,
        options: &PlanOptions,
    ) -> Result<(Plan, Work)> {
        let mesh = crate::fit::check(config, model).and_then(|()| config.mesh.on(ranks))?;
        let [stages, data_ranks, ep, tp] = [0, 1, 2, 3].map(|axis| mesh.axis_size(axis));
        let objective = objective_of(config, &options.objectives)?;
        let geometry = batch(config, &*objective, (data_ranks, ep))?;
        let (schedule, kind, chunks) = schedule_of(config, stages, geometry.accumulation)?;
        let order = schedule.stages();
        let dtype = options.dtype.unwrap_or(config.train.precision.dtype());
        let sizes = partition::sizes(config, (ep, tp), geometry.micro_batch, computed_size(dtype));
        let parts = partition::stages(model, config, &sizes, order.len())?.into_iter();
        let setting = Setting {
            sizes,
            costs: Costs::new(model, &sizes)?,
            frozen: Frozen::new(&config.train.freeze, model)?,
            held: objective.held(model, &geometry)?,
            generates: objective.generates().then(|| objective.under_way(&geometry, stages)),
            is_tied: !planaria_nn::models::ties(model)?.is_empty(),
            parts: parts.enumerate().map(|(i, part)| (part, order.rank_of(i).unwrap_or(0))).collect(),
            config,
            model,
            dtype,
            inner: Mesh::new(&[("ep", ep), ("tp", tp)])?,
            data_ranks,
            geometry,
            rule: update::rule(&config.optim),
        };
        let work = Work { costs: setting.part_costs()?, streams: setting.streams()?, schedule };
        let (told, plans) = setting.ranks(&work, stages)?;
        let tokens = geometry.global_batch * config.data.sequence as u64;
        let plan = Plan {
            ranks,
            mesh: mesh.to_string(),
            parameters: parameter_count(model)?,
            trained: setting.frozen.trained(model)?,
            dtype: dtype.name().to_string(),
            global_batch: geometry.global_batch,
            micro_batch: geometry.micro_batch,
            accumulation: geometry.accumulation,
            tokens,
            operations: setting.operations() * tokens as f64,
            schedule: schedule_name(kind, chunks, stages),
            bubble: told.worst_bubble(),
            stages: plans,
        };
        Ok((plan, work))
    }

    /// The rank that needs most.
    pub fn largest(&self) -> Option<&RankPlan> {
        self.stages.iter().max_by_key(|stage| stage.memory.total)
    }
}

/// What a pipeline does in a step, and what each part of the model costs a rank for one micro-batch: operations, and bytes.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) schedule: Schedule,
    pub(crate) costs: Vec<StageCost>,
    /// Bytes of the residual stream that go through the blocks of each part, for one micro-batch.
    pub(crate) streams: Vec<f64>,
}

impl Work {
    /// The step where parts cost this, and a message so much time.
    pub(crate) fn simulated(&self, stages: Vec<StageCost>, transfer: f64) -> Result<Simulation> {
        let costs = StageCosts { stages, transfer, ..StageCosts::unit() };
        self.schedule.simulate(&costs).map_err(pipeline_error)
    }
}

/// How the batch of a run is divided over so many data and expert ranks.
pub(crate) fn batch(
    config: &Config,
    objective: &dyn Objective,
    (data, ep): (usize, usize),
) -> Result<Geometry> {
    Ok(Geometry::derive(&Batching {
        global_batch: Some(config.train.global_batch as u64),
        micro_batch: Some(config.train.micro_batch as u64),
        data_ranks: Some(data as u64),
        micro_split: Some(ep as u64),
        uneven: objective.uneven(),
        ..Batching::default()
    })?)
}

/// Bytes of an element that is computed with, for weights of this dtype.
fn computed_size(weights: DType) -> u64 {
    weights.size().max(2) as u64
}

fn schedule_name(kind: ScheduleKind, chunks: usize, stages: usize) -> String {
    match (stages, chunks) {
        (1, _) => "none".to_string(),
        (_, 1) => kind.to_string(),
        _ => format!("{kind} x{chunks}"),
    }
}

fn pipeline_error(error: crate::pipeline::Error) -> Error {
    Error::Value {
        key: "train.schedule".into(),
        found: error.to_string(),
        expected: "a schedule that fits".into(),
    }
}

impl Setting<'_> {
    /// Stages of the pipeline.
    fn stages(&self) -> usize {
        self.parts.iter().map(|(_, rank)| rank + 1).max().unwrap_or(1)
    }

    /// Bytes of an element of activations and gradients: weights of one byte are computed with in two.
    fn computed(&self) -> u64 {
        computed_size(self.dtype)
    }

    /// Time in operations, and bytes, of one part for one micro-batch.
    fn cost(&self, part: &Stage) -> Result<StageCost> {
        let (work, again) = (self.work(part), self.work_again(part));
        Ok(StageCost { forward: work, input: work + again, weight: work, bytes: self.bytes(part)? })
    }

    /// Operations per token of forward, backward and recomputing.
    fn operations(&self) -> f64 {
        let whole = Stage::whole(self.model);
        let all = 3.0 * self.work(&whole) + self.work_again(&whole);
        all * self.sizes.tp as f64 / self.sizes.tokens as f64
    }

    /// What every part of the model costs.
    fn part_costs(&self) -> Result<Vec<StageCost>> {
        self.parts.iter().map(|(part, _)| self.cost(part)).collect()
    }

    /// Bytes of the residual stream that go through each part; tensor ranks share it out only along the sequence.
    fn streams(&self) -> Result<Vec<f64>> {
        let each = (self.sizes.between * self.model.width()? as u64 * self.computed()) as f64;
        Ok(self.parts.iter().map(|(part, _)| part.layers.len() as f64 * each).collect())
    }

    /// Bytes of texts under way: keys and values, of one prompt more that may come again, and the scores of their next tokens in f32.
    fn cache(&self, [texts, tokens]: [u64; 2]) -> u64 {
        let texts = texts.div_ceil(self.inner.axis_size(0) as u64);
        let each = self.costs.blocks.iter().map(|cost| cost.cached).sum::<u64>();
        (texts + 1) * tokens * each + texts * self.model.vocab_size() as u64 * 4
    }

    /// What the schedule makes of the costs, and the ranks of every stage.
    fn ranks(&self, work: &Work, stages: usize) -> Result<(Simulation, Vec<RankPlan>)> {
        let simulated = |stages: Vec<StageCost>| work.simulated(stages, 0.0);
        let costs = &work.costs;
        let bare = costs.iter().map(|cost| StageCost { bytes: cost.bytes.without_sums(), ..*cost }).collect();
        let (told, bare) = (simulated(costs.clone())?, simulated(bare)?);
        let mut plans = Vec::with_capacity(stages);
        for stage in 0..stages {
            let rank = self.rank(stage, (told.bytes[stage], bare.bytes[stage]))?;
            plans.push(RankPlan { in_flight: told.live[stage], bubble: told.bubble[stage], ..rank });
        }
        Ok((told, plans))
    }

    /// The ranks of one pipeline stage, where so much is there while they compute, with sums of gradients and without.
    fn rank(&self, stage: usize, (computing, activations): (u64, u64)) -> Result<RankPlan> {
        let parts: Vec<&Stage> =
            self.parts.iter().filter(|(_, rank)| *rank == stage).map(|(part, _)| part).collect();
        let pieces = state::largest_pieces(self, &parts)?;
        let mut memory = state::memory(self, &pieces)?;
        let shared = parts.iter().map(|part| self.shared(part)).max().unwrap_or(0);
        memory.activations = activations + shared;
        for part in &parts {
            memory.exchange += backward::Gradients::of(self, part)?.spare;
        }
        let ends = parts.iter().any(|part| part.head);
        let mut held = if ends { self.held } else { Held::default() };
        held.keeps &= self.parts.len() == 1;
        if let Some(texts) = self.generates {
            held.before += state::whole_copy(self)? + self.cache(texts);
        }
        // All weights are made before they are shared out.
        let start = self.dtype.size() as u64
            * pieces.iter().filter(|p| !p.shared).map(|p| p.numel as u64).sum::<u64>();
        Ok(RankPlan {
            stage,
            layers: parts.iter().map(|part| part.layers.len()).sum(),
            parameters: pieces.iter().filter(|piece| !piece.shared).map(|piece| piece.numel as u64).sum(),
            in_flight: 0,
            memory: memory.summed(computing + shared, start, held),
            traffic: traffic::of_rank(self, stage, &parts, &pieces),
            bubble: 0.0,
        })
    }
}
