//! The same product of every expert, as one parameter.

use crate::lora::{Adapter, ExpertFactors, split_experts};
use crate::parallel::Lanes;
use crate::param::{Adaptable, Module, Param};
use planaria_tensor::{Result, Tensor, ops};

/// `x · weight[expert]ᵀ`, with the adapters of each expert.
#[derive(Clone, Debug)]
pub struct ExpertLinear {
    /// `[experts, out, in]`.
    pub weight: Param,
    /// What is added to the product; factors have the expert as dim 0.
    pub adapters: Vec<Adapter>,
}

impl ExpertLinear {
    /// Without adapters.
    pub fn new(weight: Param) -> ExpertLinear {
        ExpertLinear { weight, adapters: Vec::new() }
    }

    /// This rank's experts, one by one.
    pub(crate) fn own(&self, lanes: &Lanes) -> Result<OwnExperts> {
        let weights = split_experts(&lanes.own(&self.weight.value()?)?)?;
        let on = self.adapters.iter().filter(|adapter| adapter.switch.is_on());
        let factors = on.map(|adapter| adapter.of_experts(lanes)).collect::<Result<_>>()?;
        Ok(OwnExperts { weights, factors })
    }
}

/// The products of a rank's experts.
#[derive(Debug)]
pub(crate) struct OwnExperts {
    weights: Vec<Tensor>,
    factors: Vec<ExpertFactors>,
}

impl OwnExperts {
    /// Rows `[rows, in]` of one expert.
    pub(crate) fn forward(&self, expert: usize, x: &Tensor) -> Result<Tensor> {
        let weight = &self.weights[expert];
        let y = ops::linear(x, weight, None)?;
        let mut sum = y.clone();
        for factors in &self.factors {
            let added = factors.added(expert, x, &y, weight)?;
            sum = sum.cast(added.dtype())?.add(&added)?;
        }
        sum.cast(y.dtype())
    }
}

impl Module for ExpertLinear {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
        self.adapters.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
        self.adapters.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        f(Adaptable::Experts(self));
    }
}
