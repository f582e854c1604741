//! The linear layer.

use super::Parts;
use crate::error::Result as BuildResult;
use crate::param::{Cut, Init, Module, Param};
use crate::table::Table;
use planaria_tensor::{Result, Tensor, ops};

/// `x · weightᵀ + bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Param,
    /// `[out]`.
    pub bias: Option<Param>,
}

impl Linear {
    /// A layer of its own, not part of a model's table, with values of deviation `1 / sqrt(inputs)` that follow from the
    /// seed and the name.
    pub fn new(name: &str, inputs: usize, outputs: usize, init: &Init) -> BuildResult<Linear> {
        let mut table = Table::new(1.0 / (inputs.max(1) as f64).sqrt());
        table.matrix(name, [outputs, inputs], Cut::Whole)?;
        Parts::new(table.into_specs(), init, None)?.linear(name)
    }

    /// The same with a bias of zeros.
    pub fn with_bias(name: &str, inputs: usize, outputs: usize, init: &Init) -> BuildResult<Linear> {
        let mut table = Table::new(1.0 / (inputs.max(1) as f64).sqrt());
        table.matrix(name, [outputs, inputs], Cut::Whole)?;
        table.bias(name, outputs, Cut::Whole)?;
        Parts::new(table.into_specs(), init, None)?.linear(name)
    }

    /// `[.., in]` to `[.., out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::value).transpose()?;
        ops::linear(x, &self.weight.value()?, bias.as_ref())
    }
}

impl Module for Linear {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
        self.bias.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
        self.bias.visit_mut(f);
    }
}
