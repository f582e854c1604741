//! Simulation: when each action begins and ends, and how much each rank keeps.

use super::action::{Action, Step};
use super::error::{Error, Result};
use super::memory::{self, Release, StageBytes};
use super::schedule::Schedule;
use super::validate::source;
use std::collections::HashMap;

/// What the work of one stage on one micro-batch costs, in any unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCost {
    /// Forward.
    pub forward: f64,
    /// The gradient of the input.
    pub input: f64,
    /// The gradients of the parameters.
    pub weight: f64,
    /// Memory.
    pub bytes: StageBytes,
}

impl StageCost {
    /// One unit each, and no bytes.
    pub const UNIT: StageCost = StageCost { forward: 1.0, input: 1.0, weight: 1.0, bytes: StageBytes::NONE };

    /// Time of one action; messages take none of the rank's time.
    pub fn time(&self, step: Step) -> f64 {
        match step {
            Step::Forward => self.forward,
            Step::Backward => self.input + self.weight,
            Step::Input => self.input,
            Step::Weight => self.weight,
            _ => 0.0,
        }
    }
}

/// What everything costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// By stage; a single entry is for all stages.
    pub stages: Vec<StageCost>,
    /// Time from a send to its arrival.
    pub transfer: f64,
    /// When inputs and outputs of stages are let go.
    pub release: Release,
}

impl Costs {
    /// Every stage costs the same.
    pub fn same(stage: StageCost) -> Costs {
        Costs { stages: vec![stage], transfer: 0.0, release: Release::Early }
    }

    /// Forward and both parts of backward take one unit each, messages none: what published figures assume.
    pub fn unit() -> Costs {
        Costs::same(StageCost::UNIT)
    }

    /// The costs of a stage.
    pub fn of(&self, stage: usize) -> &StageCost {
        self.stages.get(stage).or(self.stages.last()).unwrap_or(&StageCost::UNIT)
    }
}

/// An action and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// When it begins.
    pub start: f64,
    /// When it is over.
    pub end: f64,
}

/// What a simulation tells. All lists are by rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Time from the first action to the end of the last.
    pub makespan: f64,
    /// Time each rank computes.
    pub busy: Vec<f64>,
    /// Part of the makespan in which each rank does not compute.
    pub bubble: Vec<f64>,
    /// Most activations alive at once: begun by a forward, ended by a backward or by the gradients of parameters.
    pub live: Vec<usize>,
    /// Most bytes alive at once, of what [`StageBytes`] counts.
    pub bytes: Vec<u64>,
    /// Every action with its time.
    pub spans: Vec<Vec<Span>>,
}

impl Simulation {
    /// The largest bubble.
    pub fn worst_bubble(&self) -> f64 {
        self.bubble.iter().copied().fold(0.0, f64::max)
    }
}

/// Simulates a valid schedule.
pub(super) fn simulate(schedule: &Schedule, costs: &Costs) -> Result<Simulation> {
    let (found, expected) = (costs.stages.len(), schedule.stages().len());
    if found != 1 && found != expected {
        return Err(Error::Costs { found, expected });
    }
    let spans = times(schedule, costs.transfer, &|action| costs.of(action.stage).time(action.step));
    let makespan = spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
    let time = |list: &Vec<Span>| list.iter().map(|s| costs.of(s.action.stage).time(s.action.step)).sum();
    let busy: Vec<f64> = spans.iter().map(time).collect();
    let idle = |busy: &f64| if makespan > 0.0 { 1.0 - busy / makespan } else { 0.0 };
    let lists = || schedule.lists().iter();
    Ok(Simulation {
        makespan,
        bubble: busy.iter().map(idle).collect(),
        busy,
        live: lists().map(|list| memory::live(list)).collect(),
        bytes: lists().map(|list| memory::bytes(schedule.stages(), list, costs)).collect(),
        spans,
    })
}

/// When every action of a valid schedule begins and ends.
pub(super) fn times(schedule: &Schedule, transfer: f64, time: &dyn Fn(Action) -> f64) -> Vec<Vec<Span>> {
    let mut spans: Vec<Vec<Span>> =
        schedule.lists().iter().map(|list| Vec::with_capacity(list.len())).collect();
    let mut arrives: HashMap<Action, f64> = HashMap::new();
    let mut moved = true;
    while std::mem::take(&mut moved) {
        for (rank, list) in schedule.lists().iter().enumerate() {
            while let Some(&action) = list.get(spans[rank].len()) {
                let start = spans[rank].last().map_or(0.0, |span| span.end);
                let come = match source(action) {
                    Some(source) => arrives.get(&source).copied(),
                    None => Some(start),
                };
                let Some(come) = come else { break };
                let end = start.max(come) + time(action);
                if matches!(action.step, Step::SendOutput | Step::SendGradient) {
                    arrives.insert(action, end + transfer);
                }
                spans[rank].push(Span { action, start, end });
                moved = true;
            }
        }
    }
    spans
}
