//! Where a run stands before a step, and what an objective may do there: run its micro-batches through the model.

use crate::data::Batch;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::replica::Neighbours;
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
    /// As the step itself will draw it, the same bits: its micro-batches are those that go through the model now, and what comes out of
    /// one of them may be kept for it.
    AsInTraining,
    /// Not at all.
    Off,
}

/// Is given what comes out of the model: the number of the micro-batch on this rank, the last part of the model, the hidden
/// states, and the micro-batch.
pub type AtEnd<'f> = &'f mut dyn FnMut(usize, &dyn Network, &Activations, &Batch) -> Result<()>;

/// What the trainer does for an objective before a step: it runs micro-batches through a model that may be on several ranks, brings
/// the whole model to each, and reads on.
pub(crate) trait Passes {
    fn forward(&mut self, batches: &[Batch], draws: Draws, at_end: AtEnd<'_>) -> Result<()>;
    /// Nothing where the one part of this rank is the whole model already.
    fn whole(&mut self) -> Result<Option<Box<dyn Network>>>;
    fn read(&mut self) -> Result<Vec<Batch>>;
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
    /// The ranks that share this stage: all of them have the same samples.
    pub inner: &'a Arc<dyn Comm>,
    /// Those of `data` and the stages of each: all that may share out the work of generating.
    pub peers: &'a Arc<dyn Comm>,
    /// This rank's position among the stages, and their number.
    pub stage: (usize, usize),
    passes: RefCell<&'a mut dyn Passes>,
    told: RefCell<Vec<(String, f64)>>,
    notes: RefCell<Vec<Event>>,
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
        near: &'a Neighbours,
        stage: (usize, usize),
        passes: &'a mut dyn Passes,
    ) -> Before<'a> {
        let Neighbours { data, inner, peers, .. } = near;
        let (passes, told, notes) = (RefCell::new(passes), RefCell::default(), RefCell::default());
        Before { step, purpose, parts, data, inner, peers, stage, passes, told, notes }
    }

    /// Gives the whole model, on the inner mesh of this rank, to something that generates: the part of this rank, or a copy that
    /// lives as long as that. Collective over all ranks.
    pub fn with_whole<T>(&self, work: impl FnOnce(&dyn Network) -> Result<T>) -> Result<T> {
        let whole = self.passes.borrow_mut().whole()?;
        match (&whole, &self.parts[..]) {
            (Some(whole), _) => work(&**whole),
            (None, [part]) => work(*part),
            (None, parts) => Err(Error::Bug { what: format!("{} parts of a whole model", parts.len()) }),
        }
    }

    /// Reads the next micro-batches, as many of this rank as a step has: for objectives that
    /// [read on](super::Objective::reads_on). All ranks call it as often.
    pub fn read(&self) -> Result<Vec<Batch>> {
        self.passes.borrow_mut().read()
    }

    /// Runs all micro-batches of the step through the model, without history. `at_end` is called on ranks that have the
    /// model's end, once for each micro-batch. Collective: every rank calls it as often as the others.
    pub fn forward(&self, batches: &[Batch], draws: Draws, at_end: AtEnd<'_>) -> Result<()> {
        self.passes.borrow_mut().forward(batches, draws, at_end)
    }

    /// Tells a figure of [`Figures::told`](super::Figures). All ranks that have the model's end tell the same.
    pub fn tell(&self, name: &str, value: f64) {
        self.told.borrow_mut().push((name.to_string(), value));
    }

    /// Reports something that happened. What rank 0 notes is heard by those who listen to the run.
    pub fn note(&self, event: Event) {
        self.notes.borrow_mut().push(event);
    }

    /// What was noted.
    pub(crate) fn notes(&self) -> Vec<Event> {
        self.notes.take()
    }

    /// What was told.
    pub(crate) fn told(&self) -> Vec<(String, f64)> {
        self.told.borrow().clone()
    }
}
