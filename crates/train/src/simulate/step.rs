//! The time of one step: the plan's schedule with its work and messages in seconds, then what no work hides.

use super::costs::Costs;
use crate::config::{Config, Reduction};
use crate::error::Result;
use crate::pipeline::{Simulation, StageCost};
use crate::plan::{Plan, RankPlan, Work};
use crate::weights::Zero;
use planaria_layout::Mesh;

/// One step.
pub(super) struct Step {
    /// What the stages do when.
    pub(super) pipeline: Simulation,
    /// Seconds of gradients and weights on their way that nothing is computed beside, and of processors that take care of them.
    pub(super) exchange: f64,
    /// Seconds of the update.
    pub(super) update: f64,
}

impl Step {
    /// Seconds from the first action to the updated weights.
    pub(super) fn seconds(&self) -> f64 {
        self.pipeline.makespan + self.exchange + self.update
    }
}

/// Bytes that a rank sends to other data ranks in a step.
pub(super) fn exchanged(rank: &RankPlan) -> f64 {
    let sent = rank.traffic.iter().filter(|t| t.axis == "dp" && matches!(t.what, "gradients" | "weights"));
    sent.map(|traffic| traffic.bytes as f64).sum()
}

/// A plan and what it is planned for.
pub(super) struct Planned<'a> {
    pub(super) config: &'a Config,
    pub(super) mesh: Mesh,
    pub(super) plan: Plan,
    pub(super) work: Work,
}

impl Planned<'_> {
    /// The step at these costs.
    pub(super) fn step(&self, costs: &Costs) -> Result<Step> {
        let pipeline = self.work.simulated(self.parts(costs)?, self.transfer(costs)?)?;
        let (mut exchange, mut update) = (0.0f64, 0.0f64);
        for (stage, rank) in self.plan.stages.iter().enumerate() {
            let handled = costs.handling.map_or(0.0, |rate| exchanged(rank) / rate);
            exchange = exchange.max(self.exchange(costs, rank, self.computing(costs, stage))? + handled);
            let memory = rank.memory;
            let bytes = (memory.gradients + memory.masters + memory.moments) as f64;
            update = update.max(costs.update.map_or(0.0, |rate| bytes / rate));
        }
        Ok(Step { pipeline, exchange, update })
    }

    fn ranks_along(&self, axis: &str) -> usize {
        self.mesh.axis(axis).map_or(1, |axis| self.mesh.axis_size(axis))
    }

    /// Seconds that one rank of a stage sends on an axis in a step, of what is chosen.
    fn sending(
        &self,
        costs: &Costs,
        rank: &RankPlan,
        axis: &str,
        what: &dyn Fn(&str) -> bool,
    ) -> Result<f64> {
        let mut seconds = 0.0;
        for traffic in rank.traffic.iter().filter(|t| t.axis == axis && what(t.what)) {
            let ranks = if traffic.call == "send" { 2 } else { self.ranks_along(axis) };
            seconds += costs.link(axis)?.seconds(traffic.times, traffic.bytes, ranks);
        }
        Ok(seconds)
    }

    /// What parts of the model cost in seconds: their operations, and what their ranks exchange inside them, which is waited for.
    fn parts(&self, costs: &Costs) -> Result<Vec<StageCost>> {
        let order = self.work.schedule.stages();
        let micros = self.plan.accumulation as f64;
        let mut parts = self.work.costs.clone();
        for (stage, rank) in self.plan.stages.iter().enumerate() {
            let summed = |what: &str| what == "gradients";
            let across = self.sending(costs, rank, "tp", &|_| true)?
                + self.sending(costs, rank, "ep", &|what| !summed(what))?;
            let backward = self.sending(costs, rank, "ep", &summed)?;
            let all: f64 = order.of(stage).map(|part| parts[part].forward).sum();
            for part in order.of(stage) {
                let cost = &mut parts[part];
                let share = if all > 0.0 { cost.forward / all } else { 1.0 / order.of(stage).count() as f64 };
                let (across, backward) = (across * share / micros, backward * share / micros);
                let stream = self.streaming(costs, part);
                cost.forward = cost.forward / costs.flops + across / 2.0 + stream / 3.0;
                cost.input = cost.input / costs.flops + across / 2.0 + backward + stream * 2.0 / 3.0;
                cost.weight /= costs.flops;
            }
        }
        Ok(parts)
    }

    /// Seconds that the residual stream of one micro-batch takes through a part, forward and backward.
    fn streaming(&self, costs: &Costs, part: usize) -> f64 {
        costs.stream.map_or(0.0, |rate| self.work.streams[part] / rate)
    }

    /// Seconds of one message between stages.
    fn transfer(&self, costs: &Costs) -> Result<f64> {
        let all = self.plan.stages.iter().flat_map(|rank| &rank.traffic);
        let edges = all.filter(|t| t.axis == "pp" && t.what != "tied sums" && t.times > 0);
        match edges.map(|t| t.bytes / t.times).max() {
            Some(bytes) => Ok(costs.link("pp")?.seconds(1, bytes, 2)),
            None => Ok(0.0),
        }
    }

    /// Seconds that a stage computes in a step: forward, and backward.
    fn computing(&self, costs: &Costs, stage: usize) -> (f64, f64) {
        let (mut forward, mut backward) = (0.0, 0.0);
        for part in self.work.schedule.stages().of(stage) {
            let (cost, stream) = (&self.work.costs[part], self.streaming(costs, part));
            forward += cost.forward / costs.flops + stream / 3.0;
            backward += (cost.input + cost.weight) / costs.flops + stream * 2.0 / 3.0;
        }
        let micros = self.plan.accumulation as f64;
        (forward * micros, backward * micros)
    }

    /// Seconds of data ranks' exchange that are not hidden: gradients go while backward makes more of them, weights of ZeRO 3 while
    /// other blocks compute, other weights after the update.
    fn exchange(&self, costs: &Costs, rank: &RankPlan, (forward, backward): (f64, f64)) -> Result<f64> {
        let train = &self.config.train;
        let zero = Zero::from(train.zero);
        let weights = self.sending(costs, rank, "dp", &|what| what == "weights")?;
        let gradients = self.sending(costs, rank, "dp", &|what| what == "gradients")?;
        let tied = self.sending(costs, rank, "pp", &|what| what == "tied sums")?;
        let last = train.reduce == Reduction::Step && zero < Zero::Gradients;
        // Sums that go once can hide behind the last micro-batch alone.
        let beside = if last { backward / self.plan.accumulation as f64 } else { backward };
        let after = (gradients - beside).max(0.0);
        Ok(tied
            + match zero {
                Zero::Weights => (weights - forward - (backward - gradients).max(0.0)).max(0.0) + after,
                _ => weights + after,
            })
    }
}
