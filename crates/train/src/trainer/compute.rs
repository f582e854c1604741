//! One step's forward and backward of everything this rank has a part in.

use super::Job;
use super::figures::Losses;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::gather::Pass;
use crate::objective::{AtEnd, Input, Objective, View};
use crate::replica::{Part, Replica};
use planaria_array::random::Key;
use planaria_array::{Array, Device};
use planaria_nn::layers::Positions;
use planaria_nn::models::{Activations, Loss, Network, Recompute, Run, Shown};
use planaria_tensor::{Tensor, no_grad};
use std::sync::Arc;

/// Keeps the draws of dropout apart from those of weights and data.
const DROPOUT: u64 = 0x6472_6f70;

/// How this rank computes.
#[derive(Clone, Debug)]
pub(super) struct Compute {
    recompute: Recompute,
    seed: u64,
    device: Device,
    objective: Arc<dyn Objective>,
}

impl Compute {
    pub(super) fn new(job: &Job) -> Compute {
        let (train, objective) = (&job.config.train, job.objective.clone());
        Compute { recompute: train.recomputed(), seed: train.seed, device: job.device, objective }
    }

    /// How one micro-batch of training runs. Random numbers follow from its number, not from who computes it.
    pub(super) fn run(&self, at: Micro, run: Run<'static>) -> Run<'static> {
        let key = Key::new(self.seed, DROPOUT).fold(at.step).fold(at.number as u64);
        Run { recompute: self.recompute.clone(), train: Some(key), ..run }
    }

    /// What of a micro-batch goes into the model: its tokens, and what they see. A stage that reads none has documents that see each
    /// other.
    pub(super) fn input(&self, batch: Option<&Batch>) -> Result<(Option<Tensor>, Run<'static>)> {
        let Some(batch) = batch else { return Ok((None, Run::default())) };
        let Input { tokens, documents } = self.objective.input(batch)?;
        let run = Run { documents, ..Run::default() };
        let Some(View { axes, shown }) = self.objective.view(batch)? else { return Ok((Some(tokens), run)) };
        let shown = Shown { patches: shown.patches.to(self.device)?, ..shown };
        Ok((Some(tokens), Run { positions: Positions::Axes(axes), shown: Some(shown), ..run }))
    }

    /// The same where the model begins here.
    fn first_input(&self, batch: &Batch) -> Result<(Tensor, Run<'static>)> {
        let (tokens, run) = self.input(Some(batch))?;
        Ok((tokens.ok_or_else(|| Error::Bug { what: "a micro-batch without tokens".into() })?, run))
    }

    /// The loss at the end of the model.
    pub(super) fn loss(&self, model: &dyn Network, end: &Activations, batch: &Batch) -> Result<Loss> {
        self.objective.loss(model, end, batch)
    }

    /// Forward of one micro-batch through a model that is all here.
    fn forward(&self, replica: &Replica, batch: &Batch, at: Micro) -> Result<Activations> {
        replica.enter(at.round, Pass::Forward);
        let (tokens, run) = self.first_input(batch)?;
        Ok(only(replica)?.model.forward(tokens.into(), &self.run(at, run))?)
    }

    /// Forward and backward of one micro-batch through a model that is all here; backward alone where forward was kept.
    pub(super) fn train(
        &self,
        replica: &Replica,
        batch: &Batch,
        at: Micro,
        kept: Option<Activations>,
        losses: &mut Losses,
    ) -> Result<()> {
        let part = only(replica)?;
        let model = &*part.model;
        let end = kept.map_or_else(|| self.forward(replica, batch, at), Ok)?;
        let loss = self.loss(model, &end, batch)?;
        drop(end);
        replica.enter(at.round, Pass::Backward);
        at.start(&loss)?.backward()?;
        part.reducer.finish_round(at.round)?;
        losses.set(at.number, value(&loss)?, loss.count);
        losses.set_figures(at.number, figures(&loss)?);
        Ok(())
    }

    /// How one micro-batch runs without history.
    pub(super) fn run_ahead(&self, at: Option<Micro>, run: Run<'static>) -> Run<'static> {
        match at {
            Some(at) => Run { recompute: Recompute::None, ..self.run(at, run) },
            None => run,
        }
    }

    /// Forward alone of the micro-batches from `first` on through a model that is all here; `micro` says what is drawn.
    pub(super) fn ahead(
        &self,
        replica: &Replica,
        (batches, first): (&[Batch], usize),
        micro: &dyn Fn(usize) -> Option<Micro>,
        at_end: AtEnd<'_>,
    ) -> Result<()> {
        let model = &*only(replica)?.model;
        for (round, batch) in batches.iter().enumerate().skip(first) {
            replica.enter(round, Pass::Forward);
            no_grad(|| {
                let (tokens, run) = self.first_input(batch)?;
                let end = model.forward(tokens.into(), &self.run_ahead(micro(round), run))?;
                at_end(round, model, &end, batch)
            })?;
        }
        Ok(())
    }

    /// Forward of one micro-batch before its turn, with its history, which [`Compute::train`] goes on from.
    pub(super) fn kept(
        &self,
        replica: &Replica,
        batch: &Batch,
        at: Micro,
        at_end: AtEnd<'_>,
    ) -> Result<Activations> {
        let end = self.forward(replica, batch, at)?;
        no_grad(|| at_end(at.round, &*only(replica)?.model, &end, batch))?;
        Ok(end)
    }
}

/// Which micro-batch it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Micro {
    pub(super) step: u64,
    /// Its number in the step, over all replicas.
    pub(super) number: usize,
    /// How many this replica had before it in the step.
    pub(super) round: usize,
    /// Factor on the loss.
    pub(super) scale: f64,
}

impl Micro {
    /// What backward starts from.
    pub(super) fn start(&self, loss: &Loss) -> Result<Tensor> {
        let total = loss.total()?;
        Ok(if self.scale == 1.0 { total } else { total.mul_scalar(self.scale)? })
    }
}

/// The sum of losses, whole on every rank of the inner mesh.
pub(super) fn value(loss: &Loss) -> Result<Array> {
    Ok(loss.shown.as_ref().unwrap_or(&loss.sum).whole()?)
}

/// What else is told of a loss.
pub(super) fn figures(loss: &Loss) -> Result<Vec<Array>> {
    loss.figures.iter().map(|figure| Ok(figure.whole()?)).collect()
}

fn only(replica: &Replica) -> Result<&Part> {
    match &replica.parts[..] {
        [part] => Ok(part),
        parts => Err(Error::Bug { what: format!("one model part was expected, there are {}", parts.len()) }),
    }
}
