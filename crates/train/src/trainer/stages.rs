//! Training through a pipeline: which stages this rank has, and what they do when the schedule says so.

use super::Job;
use super::compute::{Compute, Micro, figures, value};
use super::evaluate::Evaluation;
use super::figures::Losses;
use super::setup::Position;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::gather::Pass;
use crate::geometry::Geometry;
use crate::objective::{AtEnd, Purpose};
use crate::partition;
use crate::pipeline::engine::{At, Engine, Inner, Options, Ran, Shapes, StageWork};
use crate::pipeline::{Failure, Schedule, Stages};
use crate::plan;
use crate::replica::{Neighbours, Part, Replica};
use planaria_array::Device;
use planaria_comm::Comm;
use planaria_nn::models::{Activations, Stage};
use planaria_tensor::{Tensor, no_grad};
use std::sync::Arc;

/// First tag of messages between stages; tied sums have a tag of their own.
const TAG: u32 = 1 << 16;

/// The pipeline of a run as planned.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// Absent for a model that is all on one stage.
    schedule: Option<Schedules>,
    stages: Stages,
    /// The model's parts in order.
    parts: Vec<Stage>,
    device: Device,
    shapes: Shapes,
}

#[derive(Debug)]
struct Schedules {
    train: Schedule,
    /// Forward alone of a step's micro-batches.
    ahead: Schedule,
    eval: Schedule,
}

impl Pipeline {
    /// The schedule that the configuration names, checked before anything is built.
    pub(super) fn new(job: &Job, place: &Position, geometry: &Geometry) -> Result<Pipeline> {
        let train = &job.config.train;
        let (kind, chunks) = plan::kind_of(&job.config)?;
        let inner = (place.mesh.axis_size(2), place.mesh.axis_size(3));
        let size = train.precision.dtype().size() as u64;
        let sizes = partition::sizes(&job.config, inner, geometry.micro_batch, size);
        let shapes = if job.objective.trims() { Shapes::Each } else { Shapes::Once };
        let parts = |count| partition::stages(&*job.model, &job.config, &sizes, count);
        if place.stages == 1 {
            let (stages, parts) = (Stages::round_robin(1, 1)?, parts(1)?);
            return Ok(Pipeline { schedule: None, stages, parts, device: job.device, shapes });
        }
        let rounds = geometry.accumulation as usize;
        let (schedule, ..) = plan::schedule_of(&job.config, place.stages, geometry.accumulation)?;
        let eval_rounds = Evaluation::of(job, geometry).map_or(1, |eval| eval.rounds);
        let eval = kind.build_forward(place.stages, eval_rounds, chunks)?;
        let ahead = kind.build_forward(place.stages, rounds, chunks)?;
        schedule.validate()?;
        let stages = schedule.stages().clone();
        let parts = parts(stages.len())?;
        let schedule = Some(Schedules { train: schedule, ahead, eval });
        Ok(Pipeline { schedule, stages, parts, device: job.device, shapes })
    }

    /// The model's parts in order, each with its position in the pipeline.
    pub(super) fn parts(&self) -> Vec<(Stage, usize)> {
        let position = |stage| self.stages.rank_of(stage).unwrap_or(0);
        self.parts.iter().enumerate().map(|(i, part)| (part.clone(), position(i))).collect()
    }

    /// The model parts of one position.
    pub(super) fn own(&self, position: usize) -> Vec<Stage> {
        self.stages.of(position).map(|stage| self.parts[stage].clone()).collect()
    }

    /// This rank's place in it.
    pub(super) fn start(
        self,
        world: &Arc<dyn Comm>,
        place: &Position,
        near: &Neighbours,
    ) -> Result<Option<Running>> {
        let Some(Schedules { train, ahead, eval }) = self.schedule else { return Ok(None) };
        let comm = world.group(&place.pipeline)?;
        let inner = near.parallel.as_ref().map(|p| Inner { mesh: p.mesh.clone(), world: p.world.clone() });
        let options =
            Options { shapes: self.shapes, inner, tag: TAG, device: self.device, ..Options::default() };
        let tagged =
            |place: u32| Options { tag: TAG + 2 * place * self.stages.len() as u32, ..options.clone() };
        Ok(Some(Running {
            own: self.stages.of(place.stage).collect(),
            last: self.stages.len() - 1,
            train: Engine::new(Arc::new(train), comm.clone(), tagged(0))?,
            eval: Engine::new(Arc::new(eval), comm.clone(), tagged(1))?,
            ahead: Engine::new(Arc::new(ahead), comm, tagged(2))?,
            ran: None,
        }))
    }
}

/// One rank of a pipeline at work.
#[derive(Debug)]
pub(super) struct Running {
    own: Vec<usize>,
    last: usize,
    train: Engine,
    eval: Engine,
    ahead: Engine,
    /// What the last step took.
    ran: Option<Ran>,
}

impl Running {
    /// Forward and backward of all micro-batches of a step. Collective over the pipeline.
    pub(super) fn train(
        &mut self,
        compute: &Compute,
        replica: &Replica,
        batches: &[Batch],
        micro: &dyn Fn(usize) -> Micro,
        losses: &mut Losses,
    ) -> Result<()> {
        let mut work = Training { own: &self.own, last: self.last, compute, replica, batches, micro, losses };
        self.ran = Some(self.train.run(&mut work)?);
        Ok(())
    }

    /// When every action of the last step of training began and ended.
    pub(super) fn ran(&self) -> Option<&Ran> {
        self.ran.as_ref()
    }

    /// Forward alone of all micro-batches of a step, or of an evaluation; `at_end` is given what comes out on the stage that has
    /// the head. A stage that needs no data is given none. Collective over the pipeline.
    pub(super) fn ahead(
        &mut self,
        of: Purpose,
        (compute, replica): (&Compute, &Replica),
        batches: &[Batch],
        micro: &dyn Fn(usize) -> Option<Micro>,
        at_end: AtEnd<'_>,
    ) -> Result<()> {
        let (own, last) = (&self.own, self.last);
        let mut work = Ahead { own, last, compute, replica, batches, micro, at_end };
        match of {
            Purpose::Training => self.ahead.run(&mut work)?,
            Purpose::Evaluation => self.eval.run(&mut work)?,
        };
        Ok(())
    }
}

/// The part of this rank that is a stage of the model.
fn part<'a>(replica: &'a Replica, own: &[usize], at: At) -> Result<&'a Part> {
    let place = own.iter().position(|&stage| stage == at.stage);
    let part = place.and_then(|place| replica.parts.get(place));
    part.ok_or_else(|| Error::Bug { what: format!("stage {} is not on this rank", at.stage) })
}

/// What goes into a stage: tokens into the first, what came from the stage before into the others.
fn input(tokens: Option<Tensor>, at: At, inputs: Vec<Tensor>) -> Result<Activations> {
    match (at.stage, tokens) {
        (0, Some(tokens)) => Ok(tokens.into()),
        (0, None) => Err(not_read(at)),
        _ => Ok(Activations::from_list(inputs)?),
    }
}

fn not_read(at: At) -> Error {
    Error::Bug { what: format!("micro-batch {} was not read", at.micro) }
}

fn batch(batches: &[Batch], at: At) -> Result<&Batch> {
    batches.get(at.micro).ok_or_else(|| not_read(at))
}

/// A step of training.
struct Training<'a> {
    own: &'a [usize],
    last: usize,
    compute: &'a Compute,
    replica: &'a Replica,
    batches: &'a [Batch],
    micro: &'a dyn Fn(usize) -> Micro,
    losses: &'a mut Losses,
}

impl Training<'_> {
    fn run(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let micro = (self.micro)(at.micro);
        self.replica.enter(at.micro, Pass::Forward);
        let model = &*part(self.replica, self.own, at)?.model;
        let (tokens, run) = self.compute.input(self.batches.get(at.micro))?;
        let end = model.forward(input(tokens, at, inputs)?, &self.compute.run(micro, run))?;
        if at.stage != self.last {
            return Ok(end.into_list());
        }
        let loss = self.compute.loss(model, &end, batch(self.batches, at)?)?;
        self.losses.set(micro.number, value(&loss)?, loss.count);
        self.losses.set_figures(micro.number, figures(&loss)?);
        Ok(vec![micro.start(&loss)?])
    }
}

impl StageWork for Training<'_> {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> std::result::Result<Vec<Tensor>, Failure> {
        Ok(self.run(at, inputs)?)
    }

    fn begin_backward(&mut self, at: At) {
        self.replica.enter(at.micro, Pass::Backward);
    }

    fn finish(&mut self, at: At) -> std::result::Result<(), Failure> {
        Ok(part(self.replica, self.own, at)?.reducer.finish_round(at.micro)?)
    }
}

/// Forward alone.
struct Ahead<'a, 'f> {
    own: &'a [usize],
    last: usize,
    compute: &'a Compute,
    replica: &'a Replica,
    batches: &'a [Batch],
    micro: &'a dyn Fn(usize) -> Option<Micro>,
    at_end: AtEnd<'f>,
}

impl Ahead<'_, '_> {
    fn run(&mut self, at: At, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.replica.enter(at.micro, Pass::Forward);
        let model = &*part(self.replica, self.own, at)?.model;
        let (tokens, run) = self.compute.input(self.batches.get(at.micro))?;
        let run = self.compute.run_ahead((self.micro)(at.micro), run);
        let given = input(tokens, at, inputs)?;
        let end = no_grad(|| model.forward(given, &run))?;
        if at.stage != self.last {
            return Ok(end.into_list());
        }
        no_grad(|| (self.at_end)(at.micro, model, &end, batch(self.batches, at)?))?;
        Ok(Vec::new())
    }
}

impl StageWork for Ahead<'_, '_> {
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> std::result::Result<Vec<Tensor>, Failure> {
        Ok(self.run(at, inputs)?)
    }
}
