//! Validation: everything there once, in an order that every rank can follow without waiting for ever.

use super::action::{Action, Step};
use super::error::{Error, Result};
use super::schedule::Schedule;
use super::stages::Stages;
use std::collections::{HashMap, HashSet};

/// Where each action stands in its rank's list.
type Positions = HashMap<Action, usize>;

pub(super) fn validate(schedule: &Schedule) -> Result<()> {
    let positions = positions(schedule)?;
    let backward = !schedule.is_forward_only();
    let stages = schedule.stages();
    for stage in 0..stages.len() {
        for micro in 0..schedule.micros() {
            let (rank, forward) =
                (stages.rank_of(stage).unwrap_or(0), Action::new(Step::Forward, stage, micro));
            Micro { stages, positions: &positions, rank, forward }.check(backward)?;
        }
    }
    for boundary in 1..stages.len() {
        check_channel(schedule, boundary, (Step::SendOutput, boundary - 1), (Step::ReceiveInput, boundary))?;
        check_channel(
            schedule,
            boundary,
            (Step::SendGradient, boundary),
            (Step::ReceiveGradient, boundary - 1),
        )?;
    }
    check_progress(schedule)
}

/// Finds each action; refuses those of others, of no micro-batch, and those that stand there twice.
fn positions(schedule: &Schedule) -> Result<Positions> {
    let stages = schedule.stages();
    let mut positions = Positions::new();
    for (rank, list) in schedule.lists().iter().enumerate() {
        for (position, &action) in list.iter().enumerate() {
            let refuse = |why: String| Err(Error::Misplaced { rank, position, action, why });
            match stages.rank_of(action.stage) {
                None => {
                    return refuse(format!("names a stage that is not there; there are {}", stages.len()));
                }
                Some(other) if other != rank => {
                    return refuse(format!("is of stage {}, which rank {other} holds", action.stage));
                }
                _ if action.micro >= schedule.micros() => {
                    return refuse(format!(
                        "names a micro-batch that is not there; there are {}",
                        schedule.micros()
                    ));
                }
                _ => {}
            }
            if let Some(alone) = needless(stages, action) {
                return refuse(alone);
            }
            if let Some(first) = positions.insert(action, position) {
                return refuse(format!("is there already, at position {first}"));
            }
        }
    }
    Ok(positions)
}

/// Why a message has nobody at its other end.
fn needless(stages: &Stages, action: Action) -> Option<String> {
    let (other, end) = match action.step {
        Step::ReceiveInput | Step::SendGradient => (stages.before(action.stage), action.stage.checked_sub(1)),
        Step::SendOutput | Step::ReceiveGradient => {
            (stages.after(action.stage), Some(action.stage + 1).filter(|&s| s < stages.len()))
        }
        _ => return None,
    };
    match (other, end) {
        (Some(_), _) => None,
        (None, Some(end)) => Some(format!("is a message to the rank itself, which also holds stage {end}")),
        (None, None) => Some("is a message past the end of the pipeline".into()),
    }
}

/// One stage and micro-batch: what belongs to it, and in which order.
struct Micro<'a> {
    stages: &'a Stages,
    positions: &'a Positions,
    rank: usize,
    forward: Action,
}

impl Micro<'_> {
    fn at(&self, action: Action) -> Option<usize> {
        self.positions.get(&action).copied()
    }

    fn own(&self, step: Step) -> Action {
        self.forward.with(step)
    }

    fn in_order(&self, late: Action, early: Action) -> Result<()> {
        let require = |action| self.at(action).ok_or(Error::Missing { rank: self.rank, action });
        match require(late)? < require(early)? {
            true => Ok(()),
            false => Err(Error::Order { rank: self.rank, early, late }),
        }
    }

    fn check(&self, backward: bool) -> Result<()> {
        let Action { stage, micro, .. } = self.forward;
        if self.at(self.forward).is_none() {
            return Err(Error::Missing { rank: self.rank, action: self.forward });
        }
        match self.stages.before(stage) {
            Some(_) => self.in_order(self.own(Step::ReceiveInput), self.forward)?,
            None if stage > 0 => self.in_order(Action::new(Step::Forward, stage - 1, micro), self.forward)?,
            None => {}
        }
        if self.stages.after(stage).is_some() {
            self.in_order(self.forward, self.own(Step::SendOutput))?;
        }
        if backward { self.check_backward() } else { Ok(()) }
    }

    fn check_backward(&self) -> Result<()> {
        let Action { stage, micro, .. } = self.forward;
        let gradient = self.gradient()?;
        self.in_order(self.forward, gradient)?;
        if gradient.step == Step::Input {
            self.in_order(gradient, self.own(Step::Weight))?;
        }
        if self.stages.after(stage).is_some() {
            self.in_order(self.own(Step::ReceiveGradient), gradient)?;
        } else if stage + 1 < self.stages.len() {
            let made = [Step::Backward, Step::Input].map(|step| Action::new(step, stage + 1, micro));
            self.in_order(if self.at(made[0]).is_some() { made[0] } else { made[1] }, gradient)?;
        }
        match self.stages.before(stage) {
            Some(_) => self.in_order(gradient, self.own(Step::SendGradient)),
            None => Ok(()),
        }
    }

    /// The action that makes the gradient of the input: a full backward, or its first part.
    fn gradient(&self) -> Result<Action> {
        let [full, input, weight] = [Step::Backward, Step::Input, Step::Weight].map(|step| self.own(step));
        let missing = |action| Err(Error::Missing { rank: self.rank, action });
        match [full, input, weight].map(|action| self.at(action).is_some()) {
            [true, false, false] => Ok(full),
            [false, true, true] => Ok(input),
            [false, false, false] => missing(full),
            [false, true, false] => missing(weight),
            [false, false, true] => missing(input),
            [true, both, _] => {
                let action = if both { input } else { weight };
                let why = format!("is done by `{full}` as well");
                Err(Error::Misplaced { rank: self.rank, position: self.at(action).unwrap_or(0), action, why })
            }
        }
    }
}

/// Messages from one stage to its neighbour come in the order they are awaited.
fn check_channel(schedule: &Schedule, boundary: usize, from: (Step, usize), to: (Step, usize)) -> Result<()> {
    let stages = schedule.stages();
    if stages.before(boundary).is_none() {
        return Ok(());
    }
    let rank = |stage: usize| stages.rank_of(stage).unwrap_or(0);
    let (sender, receiver) = (rank(from.1), rank(to.1));
    let pick = |rank: usize, (step, stage): (Step, usize)| {
        schedule.list(rank).iter().copied().filter(move |a| a.step == step && a.stage == stage)
    };
    let mut pairs = pick(sender, from).zip(pick(receiver, to)).enumerate();
    match pairs.find(|(_, (sent, awaited))| sent.micro != awaited.micro) {
        None => Ok(()),
        Some((number, (sent, awaited))) => {
            Err(Error::Crossed { number, from: from.1, to: to.1, sender, sent, receiver, awaited })
        }
    }
}

/// Follows all lists as far as they go; sends do not wait.
fn check_progress(schedule: &Schedule) -> Result<()> {
    let stages = schedule.stages();
    let mut at = vec![0usize; schedule.ranks()];
    let mut sent: HashSet<Action> = HashSet::new();
    loop {
        let mut moved = false;
        for (rank, list) in schedule.lists().iter().enumerate() {
            while let Some(&action) = list.get(at[rank]) {
                if source(action).is_some_and(|source| !sent.contains(&source)) {
                    break;
                }
                if matches!(action.step, Step::SendOutput | Step::SendGradient) {
                    sent.insert(action);
                }
                at[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = |rank: usize| schedule.list(rank).get(at[rank]).copied();
    match (0..schedule.ranks()).find(|&rank| stuck(rank).is_some()) {
        None => Ok(()),
        Some(first) => Err(Error::Deadlock(cycle(first, |rank| {
            let action = stuck(rank)?;
            Some((action, stages.rank_of(source(action)?.stage)?))
        }))),
    }
}

/// The send that a receive waits for.
pub(super) fn source(action: Action) -> Option<Action> {
    match action.step {
        Step::ReceiveInput => Some(Action::new(Step::SendOutput, action.stage.checked_sub(1)?, action.micro)),
        Step::ReceiveGradient => Some(Action::new(Step::SendGradient, action.stage + 1, action.micro)),
        _ => None,
    }
}

/// The ranks that wait for each other, found by following one that waits.
fn cycle(first: usize, waits: impl Fn(usize) -> Option<(Action, usize)>) -> Vec<(usize, Action, usize)> {
    let mut path: Vec<(usize, Action, usize)> = Vec::new();
    let mut rank = first;
    while let Some((action, on)) = waits(rank) {
        if let Some(start) = path.iter().position(|(seen, ..)| *seen == rank) {
            return path.split_off(start);
        }
        path.push((rank, action, on));
        rank = on;
    }
    path
}
