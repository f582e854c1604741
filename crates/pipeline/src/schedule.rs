//! The schedule: one list of actions per rank.

use super::action::{Action, Step};
use super::error::Result;
use super::simulate::{Costs, Simulation, Span, simulate, times};
use super::stages::Stages;
use super::validate::validate;

/// What each rank of a pipeline does in one step, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    stages: Stages,
    micros: usize,
    lists: Vec<Vec<Action>>,
}

impl Schedule {
    /// A schedule as given. Nothing is checked; see [`Schedule::validate`].
    pub fn new(stages: Stages, micros: usize, mut lists: Vec<Vec<Action>>) -> Schedule {
        lists.resize(stages.ranks(), Vec::new());
        Schedule { stages, micros, lists }
    }

    /// A schedule from work alone: each receive is put right before the work that needs it, and each send right after
    /// the work that makes what is sent.
    pub fn from_work(stages: Stages, micros: usize, work: &[Vec<Action>]) -> Schedule {
        let around = |action: &Action| around(&stages, *action);
        let lists = work.iter().map(|list| list.iter().flat_map(around).collect()).collect();
        Schedule::new(stages, micros, lists)
    }

    /// Which rank holds which stage.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.stages.ranks()
    }

    /// Micro-batches of a step.
    pub fn micros(&self) -> usize {
        self.micros
    }

    /// What a rank does; nothing for ranks that are not there.
    pub fn list(&self, rank: usize) -> &[Action] {
        self.lists.get(rank).map_or(&[], Vec::as_slice)
    }

    /// All lists, by rank.
    pub fn lists(&self) -> &[Vec<Action>] {
        &self.lists
    }

    /// True when there is no backward: evaluation.
    pub fn is_forward_only(&self) -> bool {
        let backward = |action: &Action| action.step.makes_gradient() || action.step == Step::Weight;
        !self.lists.iter().flatten().any(backward)
    }

    /// True when every stage finishes the gradients of its parameters in the order of the micro-batches. Sums over
    /// micro-batches are then the same bits under every such schedule.
    pub fn keeps_order(&self) -> bool {
        let mut next = vec![0; self.stages.len()];
        let ends = |action: &&Action| matches!(action.step, Step::Backward | Step::Weight);
        self.lists.iter().flatten().filter(ends).all(|action| {
            let expected = next.get_mut(action.stage).map(|n| std::mem::replace(n, *n + 1));
            expected == Some(action.micro)
        })
    }

    /// Checks that the schedule can be carried out: nothing missing or twice, nothing before what it needs, messages
    /// in the same order at both ends, and no ranks that wait for each other.
    pub fn validate(&self) -> Result<()> {
        validate(self)
    }

    /// Time and memory under these costs. The schedule is validated first.
    pub fn simulate(&self, costs: &Costs) -> Result<Simulation> {
        validate(self)?;
        simulate(self, costs)
    }

    /// When each action begins and ends, by rank, if each takes its own time and messages arrive as they are sent. Given
    /// the measured times of a run this is the run without what the engine and the communicator added.
    pub fn replay(&self, time: impl Fn(Action) -> f64) -> Result<Vec<Vec<Span>>> {
        validate(self)?;
        Ok(times(self, 0.0, &time))
    }
}

/// Work with its messages.
fn around(stages: &Stages, action: Action) -> impl Iterator<Item = Action> {
    let Action { step, stage, .. } = action;
    let (before, after) = (stages.before(stage).is_some(), stages.after(stage).is_some());
    let (receive, send) = match step {
        Step::Forward => (before.then_some(Step::ReceiveInput), after.then_some(Step::SendOutput)),
        Step::Backward | Step::Input => {
            (after.then_some(Step::ReceiveGradient), before.then_some(Step::SendGradient))
        }
        _ => (None, None),
    };
    let message = move |step: Option<Step>| step.map(|step| action.with(step));
    message(receive).into_iter().chain([action]).chain(message(send))
}
