//! The linear layer.

use crate::param::{Module, Param};
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
