//! Where a run stands before a step, and what an objective may do there: run its micro-batches through the model.

use crate::data::Batch;
use crate::error::Result;
use planaria_comm::Comm;
use planaria_nn::models::{Activations, Network};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To learn.
    Training,
    /// To measure.
    Evaluation,
}

/// Whether dropout is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// As the step itself will draw it, the same bits.
    AsInTraining,
    /// Not at all.
    Off,
}

/// Is given what comes out of the model: the number of the micro-batch on this rank, the last part of the model, the hidden
/// states, and the micro-batch.
pub type AtEnd<'f> = &'f mut dyn FnMut(usize, &dyn Network, &Activations, &Batch) -> Result<()>;

/// Runs micro-batches through a model that may be on several ranks.
pub(crate) trait Passes {
    fn forward(&mut self, batches: &[Batch], draws: Draws, at_end: AtEnd<'_>) -> Result<()>;
}

/// Where a run stands before a step.
pub struct Before<'a> {
    /// The step, from 1; in an evaluation the last that was done.
    pub step: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// The parts of the model that this rank has.
    pub parts: Vec<&'a dyn Network>,
    /// The ranks that have the same parts and other samples. Micro-batch `k` of its rank `r` is number `k * ranks + r` of the
    /// step.
    pub data: &'a Arc<dyn Comm>,
    passes: RefCell<&'a mut dyn Passes>,
    told: RefCell<Vec<(&'static str, f64)>>,
}

impl fmt::Debug for Before<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Before({:?} of step {})", self.purpose, self.step)
    }
}

impl<'a> Before<'a> {
    pub(crate) fn new(
        (step, purpose): (u64, Purpose),
        parts: Vec<&'a dyn Network>,
        data: &'a Arc<dyn Comm>,
        passes: &'a mut dyn Passes,
    ) -> Before<'a> {
        Before { step, purpose, parts, data, passes: RefCell::new(passes), told: RefCell::default() }
    }

    /// Runs all micro-batches of the step through the model, without history. `at_end` is called on ranks that have the
    /// model's end, for each micro-batch in order. Collective: every rank calls it as often as the others.
    pub fn forward(&self, batches: &[Batch], draws: Draws, at_end: AtEnd<'_>) -> Result<()> {
        self.passes.borrow_mut().forward(batches, draws, at_end)
    }

    /// Tells a figure of [`Figures::told`](super::Figures). All ranks that have the model's end tell the same.
    pub fn tell(&self, name: &'static str, value: f64) {
        self.told.borrow_mut().push((name, value));
    }

    /// What was told.
    pub(crate) fn told(&self) -> Vec<(&'static str, f64)> {
        self.told.borrow().clone()
    }
}
