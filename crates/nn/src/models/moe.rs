//! A mixture of experts: each token goes to the few its router likes best, and one expert serves all.

use super::config::Experts;
use crate::error::Result as BuildResult;
use crate::layers::{GatedMlp, Linear, Parts};
use crate::loss::wide;
use crate::parallel::Lanes;
use crate::param::{Module, Param};
use planaria_array::ops::{Gate, Keep, Which};
use planaria_tensor::ops::{self, moe_combine, moe_dispatch, moe_route};
use planaria_tensor::{Error, Result, Tensor};

/// Experts, their router, and the expert that all tokens share.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Linear,
    /// `[experts, inner, width]`, like the next two; `ep` cuts the experts.
    gate: Param,
    up: Param,
    /// `[experts, width, inner]`.
    down: Param,
    shared: GatedMlp,
    shared_gate: Linear,
    act: Gate,
    choices: usize,
    normalize: bool,
    lanes: Lanes,
}

impl Moe {
    /// `gate`, `experts`, `shared_expert` and `shared_expert_gate`.
    pub(super) fn new(parts: &Parts, experts: &Experts, act: Gate, lanes: Lanes) -> BuildResult<Moe> {
        let each = parts.at("experts.*");
        Ok(Moe {
            router: parts.linear("gate")?,
            gate: each.at("gate_proj").take("weight")?,
            up: each.at("up_proj").take("weight")?,
            down: each.at("down_proj").take("weight")?,
            shared: GatedMlp::new(&parts.at("shared_expert"), act)?,
            shared_gate: parts.linear("shared_expert_gate")?,
            act,
            choices: experts.choices,
            normalize: experts.normalize,
            lanes,
        })
    }

    /// Between the lanes, like a dense layer. Also gives `[2, experts]`: how many choices fell on each expert, and
    /// the sum of its probabilities, over all tokens.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let [batch, length, width] = x.shape()[..] else {
            let message = format!("expected [batch, sequence, width], got shape {}", x.shape());
            return Err(Error::Argument { op: "moe", message });
        };
        let tokens = x.reshape(&[batch * length, width])?;
        let scores = self.router.forward(&tokens)?;
        let probabilities = scores.cast(wide(scores.dtype()))?.softmax(-1)?;
        let (counts, most) = self.demand(&probabilities)?;

        let mut routing = moe_route(&probabilities, self.choices, most)?;
        if self.normalize {
            routing.weights = routing.weights.div(&routing.weights.sum(&[-1], Keep::Yes)?)?;
        }
        routing.weights = routing.weights.cast(x.dtype())?;
        let sent = self.lanes.to_experts(&moe_dispatch(&tokens, &routing)?)?;
        let into = |weight: &Param| sent.matmul(&weight.value()?.transpose(1, 2)?);
        let inner = ops::glu(&into(&self.gate)?, &into(&self.up)?, self.act)?;
        let done = inner.matmul(&self.down.value()?.transpose(1, 2)?)?;
        let routed = self.lanes.from_experts(&moe_combine(&done, &routing)?)?;
        let routed = routed.reshape(&[batch, length, width])?;

        let shared = self.shared.forward(x)?.mul(&self.shared_gate.forward(x)?.sigmoid()?)?;
        let stats = ops::stack(&[&counts, &probabilities.sum(&[0], Keep::No)?], 0)?.settled()?;
        Ok((routed.add(&shared)?, stats))
    }

    /// How many choices fall on each expert, and the most on any one: places enough for all, so that none is lost.
    fn demand(&self, probabilities: &Tensor) -> Result<(Tensor, usize)> {
        let [tokens, experts] = probabilities.shape()[..] else {
            return Err(Error::Bug("gates are a matrix"));
        };
        let (_, chosen) = probabilities.detach().topk(self.choices, 1, Which::Largest)?;
        let counts = chosen.one_hot(experts, probabilities.dtype())?.sum(&[0, 1], Keep::No)?;
        if counts.local().is_meta() {
            return Ok((counts, (tokens * self.choices).div_ceil(experts)));
        }
        let counts = counts.settled()?;
        let most = counts.whole()?.amax(&[], Keep::No)?.item()?.as_f64();
        Ok((counts, (most as usize).max(1)))
    }
}

impl Module for Moe {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.router.visit(f);
        [&self.gate, &self.up, &self.down].into_iter().for_each(&mut *f);
        self.shared.visit(f);
        self.shared_gate.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.router.visit_mut(f);
        [&mut self.gate, &mut self.up, &mut self.down].into_iter().for_each(&mut *f);
        self.shared.visit_mut(f);
        self.shared_gate.visit_mut(f);
    }
}
