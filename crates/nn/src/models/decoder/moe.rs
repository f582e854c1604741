//! A mixture of experts: each token goes to the few its router likes best; in some families one expert serves all.

use super::config::Experts;
use crate::error::Result as BuildResult;
use crate::layers::{ExpertLinear, GatedMlp, Linear, Parts};
use crate::parallel::Lanes;
use crate::param::{Adaptable, Module, Param};
use planaria_array::ops::{Gate, Keep, Which};
use planaria_tensor::{Error, Result, Tensor, ops, steps};

/// Experts, their router, and in some families an expert that all tokens share.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Linear,
    /// `[experts, inner, width]`, like the next; `ep` cuts the experts, `tp` the inner dim.
    gate: ExpertLinear,
    up: ExpertLinear,
    /// `[experts, width, inner]`.
    down: ExpertLinear,
    /// The expert that all tokens share, and its gate.
    shared: Option<(GatedMlp, Linear)>,
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
            gate: ExpertLinear::new(each.at("gate_proj").take("weight")?),
            up: ExpertLinear::new(each.at("up_proj").take("weight")?),
            down: ExpertLinear::new(each.at("down_proj").take("weight")?),
            shared: match experts.shared_intermediate_size {
                0 => None,
                _ => Some((
                    GatedMlp::new(&parts.at("shared_expert"), act)?,
                    parts.linear("shared_expert_gate")?,
                )),
            },
            act,
            choices: experts.choices,
            normalize: experts.normalize,
            lanes,
        })
    }

    /// Between the lanes, like a dense layer. Also gives `[2, experts]`: how many choices fell on each expert, and
    /// the sum of its probabilities, over all tokens.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let scores = self.router.forward(x)?;
        let probabilities = scores.cast(ops::wide(scores.dtype()))?.softmax(-1)?;
        let (mut weights, chosen) = probabilities.topk(self.choices, -1, Which::Largest)?;
        if self.normalize {
            weights = weights.div(&weights.sum(&[-1], Keep::Yes)?)?;
        }
        let routed = self.experts(x, &weights.cast(x.dtype())?, &chosen)?;
        let result = match &self.shared {
            Some((shared, gate)) => routed.add(&shared.forward(x)?.mul(&gate.forward(x)?.sigmoid()?)?)?,
            None => routed,
        };

        let experts = self.gate.weight.spec().shape[0];
        let counts = chosen.one_hot(experts, probabilities.dtype())?.sum(&[0, 1, 2], Keep::No)?;
        let stats = ops::stack(&[&counts, &probabilities.sum(&[0, 1], Keep::No)?], 0)?;
        Ok((result, stats.settled()?))
    }

    /// The chosen experts' results, added up with their weights. Tokens travel to the ranks of their experts and
    /// back; nothing is padded and none is left behind.
    fn experts(&self, x: &Tensor, weights: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let (tokens, weights) = (self.lanes.apart(x)?, self.lanes.apart(weights)?);
        let [batch, length, width] = tokens.shape()[..] else {
            let message = format!("expected [batch, sequence, width], got shape {}", x.shape());
            return Err(Error::Argument { op: "moe", message });
        };
        let flat = |x: &Tensor, width: usize| x.reshape(&[batch * length, width]);
        if steps::is_listing() && x.layout().is_none() {
            return self.by_everyone(&tokens, &weights, chosen);
        }
        let chosen = flat(&Tensor::new(chosen.local().clone()), self.choices)?;
        let groups = ops::moe_group(&chosen, self.gate.weight.leaf())?;

        let done = self.compute(&groups.dispatch(&flat(&tokens, width)?)?, groups.loads())?;
        let sums = groups.combine(&done, &flat(&weights, self.choices)?)?;
        self.lanes.together(&sums.reshape(&[batch, length, width])?, x)
    }

    /// The same for programs: every expert computes every token, so that no value decides what is computed, and the chosen
    /// ones are picked. The bits are those of [`Moe::compute`], and no size but those of the input appears.
    fn by_everyone(&self, x: &Tensor, weights: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let own = |layer: &ExpertLinear| layer.own(&self.lanes);
        let (gate, up, down) = (own(&self.gate)?, own(&self.up)?, own(&self.down)?);
        let mut done = Vec::new();
        for expert in 0..self.gate.weight.spec().shape[0] {
            let inner = ops::glu(&gate.forward(expert, x)?, &up.forward(expert, x)?, self.act)?;
            done.push(down.forward(expert, &inner)?);
        }
        let by_token = ops::stack(&done.iter().collect::<Vec<_>>(), 2)?;
        let [batch, length, width] = x.shape()[..] else { return Err(Error::Bug("tokens have three dims")) };
        let index = chosen.unsqueeze(-1)?.broadcast_to(&[batch, length, self.choices, width])?;
        by_token.gather(2, &index)?.mul(&weights.unsqueeze(-1)?)?.sum(&[2], Keep::No)
    }

    /// Every expert of this rank on its rows, which stand one expert after the other.
    fn compute(&self, rows: &Tensor, loads: &[usize]) -> Result<Tensor> {
        // A rank without experts computes no row with the sum of none of them: all ranks record the same.
        let loads = if loads.is_empty() { &[0] } else { loads };
        let own = |layer: &ExpertLinear| layer.own(&self.lanes);
        let (gate, up, down) = (own(&self.gate)?, own(&self.up)?, own(&self.down)?);
        let mut done = Vec::with_capacity(loads.len());
        for (expert, x) in rows.split_sizes(loads, 0)?.iter().enumerate() {
            let inner = ops::glu(&gate.forward(expert, x)?, &up.forward(expert, x)?, self.act)?;
            done.push(down.forward(expert, &inner)?);
        }
        ops::concat(&done.iter().collect::<Vec<_>>(), 0)
    }
}

impl Module for Moe {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.router.visit(f);
        [&self.gate, &self.up, &self.down].into_iter().for_each(|layer| layer.visit(f));
        if let Some((shared, gate)) = &self.shared {
            shared.visit(f);
            gate.visit(f);
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.router.visit_mut(f);
        [&mut self.gate, &mut self.up, &mut self.down].into_iter().for_each(|layer| layer.visit_mut(f));
        if let Some((shared, gate)) = &mut self.shared {
            shared.visit_mut(f);
            gate.visit_mut(f);
        }
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.router.visit_layers(f);
        [&mut self.gate, &mut self.up, &mut self.down].into_iter().for_each(|layer| layer.visit_layers(f));
        if let Some((shared, gate)) = &mut self.shared {
            shared.visit_layers(f);
            gate.visit_layers(f);
        }
    }
}
