//! The engine: carries out one rank's list of a schedule on any communicator.
//!
//! **Early release.** After a stage's output is handed over, the engine keeps neither the output nor the input, only
//! their places in the gradient history: to start backward from, and to fetch the input's gradient at. What stays alive
//! is what the history saved, whoever else looked at those tensors: views, residuals, recomputed blocks and identity
//! stages are safe because nothing is freed by hand.
//!
//! **Shapes** are described once for each pair of neighbouring stages and checked from then on; see [`Shapes`].
//!
//! **Failures.** When the work of a stage fails, its rank tells all others, and every rank returns an error that names the
//! stage; nobody waits for ever.

mod link;
mod state;
mod wire;

use super::action::{Action, Step};
use super::error::{Error, Failure, Result};
use super::memory::Release;
use super::schedule::Schedule;
use super::simulate::Span;
use link::{Direction, Links};
use planaria_comm::{Comm, CommExt};
use planaria_layout::Mesh;
use planaria_tensor::{Device, GradOptions, History, Tensor, World, backward_from, backward_inputs, no_grad};
use state::{InFlight, Record};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which stage works on which micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The stage, counted along the model.
    pub stage: usize,
    /// The micro-batch.
    pub micro: usize,
}

/// What the stages of one rank do.
pub trait StageWork {
    /// Runs a stage. The first stage gets no inputs and takes its data from where it likes; others get the outputs of
    /// the stage before, which have history if those had it. Outputs without history get no gradient.
    ///
    /// Backward starts from the outputs of the last stage, see [`StageWork::seeds`].
    fn forward(&mut self, at: At, inputs: Vec<Tensor>) -> std::result::Result<Vec<Tensor>, Failure>;

    /// Backward of a stage is about to run; blocks that are computed again will ask for their parameters.
    fn begin_backward(&mut self, _at: At) {}

    /// The gradients of the last stage's outputs, of those that have history. Without one an output must be a single
    /// element, whose gradient is 1.
    fn seeds(&mut self, _at: At, outputs: &[History]) -> std::result::Result<Vec<Option<Tensor>>, Failure> {
        Ok(outputs.iter().map(|_| None).collect())
    }

    /// The gradients of the stage's parameters for this micro-batch are complete on their leaves. For each stage this
    /// comes in the order of the micro-batches if [`Schedule::keeps_order`].
    fn finish(&mut self, _at: At) -> std::result::Result<(), Failure> {
        Ok(())
    }
}

/// How often tensors between stages are described.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shapes {
    /// Once: every micro-batch must have the shapes of the first, and the first step those of all others.
    #[default]
    Once,
    /// With every message, for micro-batches of different sizes.
    Each,
}

/// The mesh of one stage, for tensors between stages that lie on it.
#[derive(Clone, Debug)]
pub struct Inner {
    /// The ranks of this stage, with the same axes on every stage.
    pub mesh: Mesh,
    /// The ranks it speaks of.
    pub world: World,
}

/// How the engine works.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How often tensors are described.
    pub shapes: Shapes,
    /// When inputs and outputs are let go.
    pub release: Release,
    /// Where tensors lie that are not whole on one rank; each rank sends its own pieces.
    pub inner: Option<Inner>,
    /// First tag of the messages; the engine uses two for each stage.
    pub tag: u32,
    /// Where tensors are received.
    pub device: Device,
}

/// What a run tells.
#[derive(Clone, Debug)]
pub struct Ran {
    /// When it began; ranks of one process have the same clock.
    pub begin: Instant,
    /// Every action of this rank with its time in seconds since then.
    pub spans: Vec<Span>,
}

impl Ran {
    fn sum(&self, which: impl Fn(Step) -> bool) -> Duration {
        let all = self.spans.iter().filter(|span| which(span.action.step));
        Duration::from_secs_f64(all.map(|span| span.end - span.start).sum::<f64>().max(0.0))
    }

    /// Time spent computing.
    pub fn busy(&self) -> Duration {
        self.sum(Step::is_work)
    }

    /// Time spent waiting for messages.
    pub fn waited(&self) -> Duration {
        self.sum(|step| matches!(step, Step::ReceiveInput | Step::ReceiveGradient))
    }
}

/// One rank of a pipeline. It is made once and runs many steps: what was agreed on about shapes stays.
#[derive(Debug)]
pub struct Engine {
    schedule: Arc<Schedule>,
    comm: Arc<dyn Comm>,
    options: Options,
    links: Links,
}

/// Carries out one step of a schedule; see [`Engine::run`].
pub fn run(
    schedule: &Schedule,
    comm: &Arc<dyn Comm>,
    options: &Options,
    work: &mut dyn StageWork,
) -> Result<Ran> {
    Engine::new(schedule.clone().into(), comm.clone(), options.clone())?.run(work)
}

impl Engine {
    /// A rank of the pipeline whose positions are those of `comm`. The schedule is validated.
    pub fn new(schedule: Arc<Schedule>, comm: Arc<dyn Comm>, options: Options) -> Result<Engine> {
        if comm.size() != schedule.ranks() {
            return Err(Error::Ranks { expected: schedule.ranks(), found: comm.size() });
        }
        let tags = 2 * schedule.stages().len() as u64 + u64::from(options.tag);
        if tags > u64::from(planaria_comm::MAX_TAG) {
            let expected = format!("few enough for tags from {} to {}", options.tag, planaria_comm::MAX_TAG);
            return Err(Error::Size { what: "stages", found: schedule.stages().len(), expected });
        }
        schedule.validate()?;
        let links = Links::new(comm.clone(), &options);
        Ok(Engine { schedule, comm, options, links })
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Carries out this rank's list once. When something fails, all ranks of the world are told.
    pub fn run(&mut self, work: &mut dyn StageWork) -> Result<Ran> {
        let end = self.follow(work);
        if let Err(error) = &end {
            self.comm.abort(&error.to_string());
        }
        end
    }

    fn follow(&mut self, work: &mut dyn StageWork) -> Result<Ran> {
        let (schedule, begin) = (self.schedule.clone(), Instant::now());
        let list = schedule.list(self.comm.rank());
        let (mut state, mut spans) = (InFlight::default(), Vec::with_capacity(list.len()));
        for &action in list {
            let start = begin.elapsed().as_secs_f64();
            self.act(action, &mut state, work)?;
            spans.push(Span { action, start, end: begin.elapsed().as_secs_f64() });
        }
        self.links.flush()?;
        Ok(Ran { begin, spans })
    }

    fn act(&mut self, action: Action, state: &mut InFlight, work: &mut dyn StageWork) -> Result<()> {
        let at = At { stage: action.stage, micro: action.micro };
        match action.step {
            Step::ReceiveInput => {
                let from = self.neighbour(Direction::Up, action)?;
                state.inputs.insert(at, self.links.receive(from, at)?);
                Ok(())
            }
            Step::Forward => self.forward(at, state, work),
            Step::SendOutput => {
                let outputs = left(state.outputs.remove(&at), action, "output")?;
                self.links.send(self.neighbour(Direction::Down, action)?, at, outputs)
            }
            Step::ReceiveGradient => {
                let from = self.neighbour(Direction::Down, action)?;
                let record = left(state.records.get(&at), action, "record of its forward")?;
                let grads = self.links.receive_grads(from, at, &record.outputs)?;
                state.output_grads.insert(at, grads);
                Ok(())
            }
            Step::Backward | Step::Input => self.backward(action, at, state, work),
            Step::Weight => {
                work.begin_backward(at);
                let later = left(state.deferred.remove(&at), action, "work left by `I`")?;
                later.run().map_err(failed(action))?;
                work.finish(at).map_err(failed(action))
            }
            Step::SendGradient => {
                let grads = left(state.input_grads.remove(&at), action, "gradient of its input")?;
                self.links.send_grads(self.neighbour(Direction::Up, action)?, at, grads)
            }
        }
    }

    /// The rank of the next stage in a direction.
    fn neighbour(&self, direction: Direction, action: Action) -> Result<usize> {
        let stage = match direction {
            Direction::Up => action.stage.checked_sub(1),
            Direction::Down => action.stage.checked_add(1),
        };
        left(stage.and_then(|stage| self.schedule.stages().rank_of(stage)), action, "neighbouring stage")
    }

    fn forward(&mut self, at: At, state: &mut InFlight, work: &mut dyn StageWork) -> Result<()> {
        let action = Action::new(Step::Forward, at.stage, at.micro);
        let stages = self.schedule.stages();
        let (is_last, evaluates) = (at.stage + 1 == stages.len(), self.schedule.is_forward_only());
        let inputs = match at.stage {
            0 => Vec::new(),
            _ => left(state.inputs.remove(&at), action, "input")?,
        };
        let mut record = Record::new(inputs.iter().map(Tensor::history).collect());
        let holds = self.options.release == Release::AfterBackward && !evaluates;
        if holds {
            record.held.clone_from(&inputs);
        }
        let outputs = match evaluates {
            true => no_grad(|| work.forward(at, inputs)),
            false => work.forward(at, inputs),
        };
        let outputs = outputs.map_err(failed(action))?;
        record.outputs = outputs.iter().map(gradient_place).collect();
        if holds && !is_last {
            record.held.extend(outputs.iter().cloned());
        }
        if !evaluates {
            state.records.insert(at, record);
        }
        if stages.after(at.stage).is_some() {
            state.outputs.insert(at, outputs);
        } else if !is_last {
            let next = At { stage: at.stage + 1, micro: at.micro };
            state.inputs.insert(next, outputs.into_iter().map(handed_over).collect());
        }
        Ok(())
    }

    fn backward(
        &mut self,
        action: Action,
        at: At,
        state: &mut InFlight,
        work: &mut dyn StageWork,
    ) -> Result<()> {
        work.begin_backward(at);
        let record = left(state.records.remove(&at), action, "record of its forward")?;
        let roots = self.roots(action, at, &record, state, work)?;
        let slots: Vec<History> = record.inputs.iter().flatten().cloned().collect();
        let found = match action.step {
            Step::Input => {
                let (found, later) = backward_inputs(&roots, &slots).map_err(failed(action))?;
                state.deferred.insert(at, later);
                found
            }
            _ => {
                backward_from(&roots, GradOptions::default()).map_err(failed(action))?;
                slots.iter().map(History::take_grad).collect()
            }
        };
        drop((roots, record.held));
        let mut found = found.into_iter();
        let grads: Vec<Option<Tensor>> =
            record.inputs.iter().map(|slot| slot.as_ref().and_then(|_| found.next().flatten())).collect();
        let grads = grads.into_iter().zip(record.inputs).collect();
        match at.stage.checked_sub(1) {
            None => {}
            Some(_) if self.schedule.stages().before(at.stage).is_some() => {
                state.input_grads.insert(at, grads);
            }
            Some(stage) => {
                let before = At { stage, micro: at.micro };
                state.output_grads.insert(before, grads.into_iter().map(|(grad, _)| grad).collect());
            }
        }
        match action.step {
            Step::Backward => work.finish(at).map_err(failed(action)),
            _ => Ok(()),
        }
    }

    /// Where backward of a stage starts.
    fn roots(
        &self,
        action: Action,
        at: At,
        record: &Record,
        state: &mut InFlight,
        work: &mut dyn StageWork,
    ) -> Result<Vec<(History, Option<Tensor>)>> {
        if at.stage + 1 == self.schedule.stages().len() {
            let places: Vec<History> = record.outputs.iter().flatten().cloned().collect();
            let seeds = work.seeds(at, &places).map_err(failed(action))?;
            let mut seeds = seeds.into_iter();
            return Ok(places.into_iter().map(|place| (place, seeds.next().flatten())).collect());
        }
        let grads = left(state.output_grads.remove(&at), action, "gradient of its output")?;
        let root = |(place, grad): (&Option<History>, Option<Tensor>)| Some((place.clone()?, Some(grad?)));
        Ok(record.outputs.iter().zip(grads).filter_map(root).collect())
    }
}

/// What the actions before have left.
fn left<T>(value: Option<T>, action: Action, what: &'static str) -> Result<T> {
    value.ok_or(Error::Unready { action, what })
}

/// The place of a tensor that a gradient can flow back from.
fn gradient_place(tensor: &Tensor) -> Option<History> {
    tensor.history().filter(|_| tensor.dtype().is_float())
}

/// The output of a stage as input of the next on the same rank: the same values, a new leaf.
fn handed_over(output: Tensor) -> Tensor {
    match gradient_place(&output) {
        Some(_) => output.detach().requires_grad(),
        None => output.detach(),
    }
}

fn failed<E: Into<Failure>>(action: Action) -> impl Fn(E) -> Error {
    let Action { step, stage, micro } = action;
    move |source| Error::Work { stage, micro, step, source: source.into() }
}
