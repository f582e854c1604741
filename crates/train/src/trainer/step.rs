//! One step of a rank: every micro-batch forward and backward, the norm, the update, the figures.

use super::compute::Micro;
use super::figures::Losses;
use super::rank::RankRun;
use super::setup::Position;
use super::stages::Running;
use super::whole::Whole;
use crate::config::OptimSection;
use crate::data::{Batch, Loader};
use crate::error::{Error, Result};
use crate::event::{Event, StepReport};
use crate::objective::{AtEnd, Before, Draws, Figures, Passes, Purpose};
use crate::update::{self, Rate, Rates};
use planaria_array::{Array, Device, MemoryStats};
use planaria_comm::{AllReduce, CommExt};
use planaria_layout::Reduce;
use planaria_nn::models::{Activations, Network};
use planaria_nn::optim::ExactNorm;
use planaria_telemetry::RankNow;
use std::time::Instant;

/// What was asked of any rank while the step ran. All ranks know the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) save: bool,
    pub(super) stop: bool,
}

/// The outcome of the update.
struct Moved {
    loss: f64,
    grad_norm: f64,
    lr: f64,
    skipped: bool,
    /// The norm of a second model's gradient.
    second: Option<f64>,
}

/// What an objective made of a step before anything of it is learned.
pub(super) struct Made {
    pub(super) batches: Vec<Batch>,
    /// Figures by name.
    told: Vec<(String, f64)>,
    /// What came out of the model for the first micro-batch, with its history.
    kept: Option<Activations>,
}

impl RankRun<'_> {
    /// One step. Collective.
    pub(super) fn step(&mut self, loader: Option<&mut Loader>) -> Result<Wishes> {
        let began = Instant::now();
        let (rounds, replicas) = (self.geometry.accumulation as usize, self.place.replicas);
        let step = self.progress.step + 1;
        let figures = self.job.objective.figures();
        let mut losses = Losses::new(rounds * replicas).with_figures(&figures);
        let reads = self.job.objective.reads(step);
        let mut source = Reading { loader, rounds, steps: 0 };
        let read = source.take(reads)?;
        let scale = self.scale();
        let Made { batches, told, kept } =
            self.generate((step, Purpose::Training), read, scale, &mut source)?;
        self.set_told(&mut losses, &figures, &told);
        self.compute(step, &batches, kept, &mut losses)?;
        let mut sums = self.replica.finish_step(rounds)?;
        losses.share(&self.world)?;
        self.refuse_odd_loss(&losses, step)?;
        update::join_tied(&self.replica, &self.world, &mut sums)?;
        let (moved, wishes) = self.update(&sums, &losses)?;
        self.progress.step = step;
        self.progress.samples += self.geometry.global_batch * source.steps;
        self.progress.tokens += self.tokens();
        self.losses.push(moved.loss);
        self.skipped = if moved.skipped { self.skipped + 1 } else { 0 };
        let saving = self.saves.progress();
        if let Some(progress) = &saving {
            self.tell(&Event::SaveProgress(progress.clone()));
        }
        self.report(&moved, began, saving.map(|progress| progress.share()));
        self.report_figures(&figures, &losses, &moved);
        self.tell_now(began);
        Ok(wishes)
    }

    /// What the objective makes of the micro-batches that were read, and what it told meanwhile. Collective.
    pub(super) fn generate(
        &mut self,
        (step, purpose): (u64, Purpose),
        read: Vec<Batch>,
        scale: f64,
        source: &mut Reading<'_>,
    ) -> Result<Made> {
        let Position { replicas, replica, stage, stages, .. } = self.place;
        let micro = move |round: usize| Micro { step, number: round * replicas + replica, round, scale };
        // The pipeline changes while it runs, the rest does not.
        let mut pipeline = self.pipeline.take();
        let run = &*self;
        let parts = run.replica.parts.iter().map(|part| &*part.model).collect();
        let mut kept = None;
        let mut passes =
            Ahead { purpose, run, pipeline: pipeline.as_mut(), micro: &micro, source, kept: &mut kept };
        let before = Before::new((step, purpose), parts, &run.near, (stage, stages), &mut passes);
        let wanted = match purpose {
            Purpose::Training if self.place.reads(self.job) => self.geometry.accumulation as usize,
            Purpose::Training => 0,
            Purpose::Evaluation => read.len(),
        };
        let made = self.job.objective.generate(&before, read);
        let (told, notes) = (before.told(), before.notes());
        self.pipeline = pipeline;
        notes.iter().for_each(|event| self.tell(event));
        let batches = made?;
        if batches.len() != wanted {
            let (name, found) = (self.job.objective.name(), batches.len());
            return Err(Error::Run { what: format!("{name} made {found} micro-batches of {wanted}") });
        }
        Ok(Made { batches, told, kept })
    }

    /// The one rank of the first replica that has the model's end speaks for all.
    fn set_told(&self, losses: &mut Losses, figures: &Figures, told: &[(String, f64)]) {
        let has_end = self.replica.parts.iter().any(|part| part.model.stage().head);
        if self.place.replica == 0 && self.place.speaks && has_end {
            for (name, value) in told {
                if let Some(place) = figures.told.iter().position(|known| known == name) {
                    losses.told[place] = *value;
                }
            }
        }
    }

    fn report_figures(&self, figures: &Figures, losses: &Losses, moved: &Moved) {
        let mean = |total: &f64| total / losses.count().max(1.0);
        let told = figures.told.iter().zip(losses.told.iter().copied());
        let counted = figures.counted.iter().zip(losses.totals.iter().map(mean));
        let second = moved.second.map(|norm| ("critic_grad_norm".to_string(), norm));
        let named = told.chain(counted).map(|(name, value)| (name.clone(), value));
        let values: Vec<(String, f64)> = named.chain(second).collect();
        if !values.is_empty() {
            self.tell(&Event::Figures { step: self.progress.step, values });
        }
    }

    /// Forward and backward of this replica's micro-batches.
    fn compute(
        &mut self,
        step: u64,
        batches: &[Batch],
        mut kept: Option<Activations>,
        losses: &mut Losses,
    ) -> Result<()> {
        let scale = self.scale();
        let (replicas, replica) = (self.place.replicas, self.place.replica);
        let micro = |round: usize| Micro { step, number: round * replicas + replica, round, scale };
        let mut own = losses.clone();
        match &mut self.pipeline {
            Some(pipeline) => pipeline.train(&self.compute, &self.replica, batches, &micro, &mut own)?,
            None => {
                for (round, batch) in batches.iter().enumerate() {
                    self.compute.train(&self.replica, batch, micro(round), kept.take(), &mut own)?;
                }
            }
        }
        if self.place.speaks {
            *losses = own;
        }
        Ok(())
    }

    /// The optimizer's part of a step, skipped where the gradient is not finite. A second model has a norm and a rate of its own.
    fn update(&mut self, sums: &[Array], losses: &Losses) -> Result<(Moved, Wishes)> {
        let mut norms = vec![ExactNorm::new(); 1 + usize::from(self.second.is_some())];
        for (place, norm) in norms.iter_mut().enumerate() {
            let of = |lane: &usize| {
                self.second.is_none()
                    || self.replica.weights[self.replica.lanes[*lane]].is_second() == (place == 1)
            };
            let counted: Vec<Array> =
                update::counted(&self.replica).filter(of).map(|lane| sums[lane].clone()).collect();
            norm.add_all(&counted)?;
        }
        let (norms, wishes) = self.agree_on(norms)?;
        let over = losses.count() * self.scale();
        // As in transformers, schedules count updates: a skipped step does not move them.
        let updates = self.progress.updates;
        let norms: Vec<f64> = norms.into_iter().map(|norm| norm / over).collect();
        let (grad_norm, lr) = (norms[0], self.schedule.rate(updates));
        let skipped = !norms.iter().all(|norm| norm.is_finite());
        if !skipped {
            let optim = &self.job.config.optim;
            let beside = self.job.objective.second().map_or(optim, |second| &second.optim);
            let clip = |most: f64, norm: f64| if most > 0.0 { (most / (norm + 1e-6)).min(1.0) } else { 1.0 };
            let rate = |of: &OptimSection, lr: f64, norm: f64| Rate { lr, scale: clip(of.clip, norm) / over };
            let second = self.second.as_ref().zip(norms.get(1));
            let second = second.map(|(schedule, &norm)| rate(beside, schedule.rate(updates), norm));
            let rates = Rates { number: updates + 1, first: rate(optim, lr, grad_norm), second };
            update::apply(&self.replica, &self.near.data, sums, [optim, beside], rates)?;
            self.progress.updates += 1;
            self.averager.start(&self.replica, self.progress.updates)?;
        }
        if let Some(scale) = &mut self.progress.scale {
            scale.update(!skipped);
        }
        let second = norms.get(1).copied();
        Ok((Moved { loss: losses.mean(), grad_norm, lr, skipped, second }, wishes))
    }

    /// The norms over all ranks, and what any of them was asked for, in one message. Collective.
    fn agree_on(&self, norms: Vec<ExactNorm>) -> Result<(Vec<f64>, Wishes)> {
        let requests = &self.job.requests;
        let mut row = Vec::new();
        for norm in &norms {
            row.extend(norm.to_array()?.to_vec::<i64>()?);
        }
        row.extend([i64::from(requests.take_save()), i64::from(requests.is_stop())]);
        let array = Array::from_slice(&row, &[row.len()])?;
        self.world.all_reduce(AllReduce { send: array.clone(), recv: array.clone(), op: Reduce::Sum })?;
        let row = array.to_vec::<i64>()?;
        let (limbs, wishes) = row.split_at(row.len() - 2);
        let each = limbs.len() / norms.len().max(1);
        let norm =
            |limbs: &[i64]| Ok(ExactNorm::from_array(&Array::from_slice(limbs, &[limbs.len()])?)?.norm());
        let norms = limbs.chunks(each.max(1)).map(norm).collect::<Result<Vec<f64>>>()?;
        Ok((norms, Wishes { save: wishes[0] > 0, stop: wishes[1] > 0 }))
    }

    fn report(&self, moved: &Moved, began: Instant, saving: Option<f64>) {
        let seconds = began.elapsed().as_secs_f64();
        let peak = self.job.config.log.peak_flops.map(|peak| peak * self.world.size() as f64);
        let report = StepReport {
            step: self.progress.step,
            loss: moved.loss,
            grad_norm: moved.grad_norm,
            lr: moved.lr,
            tokens: self.tokens(),
            samples: self.progress.samples,
            consumed_tokens: self.progress.tokens,
            epoch: self.progress.position() as f64 / self.job.data.train.len().max(1) as f64,
            seconds,
            flops: self.flops,
            mfu: self.flops.zip(peak).map(|(flops, peak)| flops / seconds.max(1e-9) / peak),
            saving,
            loss_scale: self.progress.scale.map_or(1.0, |scale| scale.factor),
            skipped: moved.skipped,
            peak_bytes: self.peak(),
        };
        self.tell(&Event::Step(report));
    }

    /// Tells whoever looks at the run's folder how this rank is, every few steps and at the end.
    fn tell_now(&mut self, began: Instant) {
        let (config, step) = (&self.job.config, self.progress.step);
        if !step.is_multiple_of(config.log.every) && step != config.train.steps {
            return;
        }
        let MemoryStats { live, peak, .. } = self.memory();
        let (rank, seconds) = (self.world.world_rank(), began.elapsed().as_secs_f64());
        let (bytes, peak_bytes) = (live as u64, peak as u64);
        let told = RankNow { rank, step, seconds, bytes, peak_bytes, ..RankNow::default() };
        if let Some(now) = &mut self.now {
            now.tell(&self.place.mesh, told);
            if let Some(ran) = self.pipeline.as_ref().and_then(Running::ran) {
                now.tell_step(step, ran);
            }
        }
    }

    /// The most that arrays have taken.
    pub(super) fn peak(&self) -> u64 {
        self.memory().peak as u64
    }

    /// What arrays take: those of this rank on the host, those of all ranks that share a device.
    fn memory(&self) -> MemoryStats {
        let here = planaria_array::thread_memory_stats;
        match self.job.device {
            Device::Cpu => here(),
            device => planaria_array::device_memory_stats(device).unwrap_or_else(|_| here()),
        }
    }

    /// Tokens of a step.
    fn tokens(&self) -> u64 {
        self.geometry.global_batch * self.job.config.data.sequence as u64
    }

    /// The factor on a micro-batch's summed loss. A loss scale is meant for the mean over a step, so it is divided by the least
    /// power of two that covers the step's tokens: exact, and the same for every way to divide a step.
    fn scale(&self) -> f64 {
        let tokens = self.tokens().checked_next_power_of_two().unwrap_or(1 << 63);
        self.progress.scale.map_or(1.0, |scale| scale.factor / tokens as f64)
    }
}

/// What is done for an objective that asks for it.
struct Ahead<'a, 'r, 's> {
    purpose: Purpose,
    run: &'a RankRun<'r>,
    pipeline: Option<&'a mut Running>,
    micro: &'a dyn Fn(usize) -> Micro,
    source: &'a mut Reading<'s>,
    /// What came out of the model for the first micro-batch, with its history.
    kept: &'a mut Option<Activations>,
}

impl Passes for Ahead<'_, '_, '_> {
    fn forward(&mut self, batches: &[Batch], draws: Draws, at_end: AtEnd<'_>) -> Result<()> {
        let micro = |round: usize| (draws == Draws::AsInTraining).then(|| (self.micro)(round));
        let RankRun { compute, replica, .. } = self.run;
        match &mut self.pipeline {
            Some(pipeline) => pipeline.ahead(self.purpose, (compute, replica), batches, &micro, at_end),
            None => {
                // What the step will do again is kept as far as it needs no more memory: one micro-batch, done last here and first there.
                let same = draws == Draws::AsInTraining && self.purpose == Purpose::Training;
                let first = batches.first().filter(|_| same);
                compute.ahead(replica, (batches, usize::from(first.is_some())), &micro, at_end)?;
                *self.kept =
                    first.map(|batch| compute.kept(replica, batch, (self.micro)(0), at_end)).transpose()?;
                Ok(())
            }
        }
    }

    fn whole(&mut self) -> Result<Option<Box<dyn Network>>> {
        Whole::of(self.run).map(|whole| whole.build()).transpose()
    }

    fn read(&mut self) -> Result<Vec<Batch>> {
        self.source.take(1)
    }
}

/// The micro-batches that this replica reads in a step; none on stages that need none.
#[derive(Default)]
pub(super) struct Reading<'a> {
    loader: Option<&'a mut Loader>,
    /// Micro-batches of `train.global_batch` samples.
    rounds: usize,
    /// How often so many samples were read.
    steps: u64,
}

impl Reading<'_> {
    fn take(&mut self, steps: u64) -> Result<Vec<Batch>> {
        self.steps += steps;
        let Some(loader) = &mut self.loader else { return Ok(Vec::new()) };
        let rounds = self.rounds * steps as usize;
        let batches = loader.take(rounds).collect::<crate::data::Result<Vec<_>>>()?;
        match batches.len() == rounds {
            true => Ok(batches),
            false => {
                let found = batches.len();
                Err(Error::Bug { what: format!("the loader gave {found} of {rounds} micro-batches") })
            }
        }
    }
}
