//! Norms over the last dim.

use super::Parts;
use crate::error::Result as BuildResult;
use crate::param::{Cut, Init, Module, Param};
use crate::table::Table;
use planaria_tensor::{Result, Tensor, ops};

/// `x / sqrt(mean(x²) + eps) * weight`, or `* (1 + weight)`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[width]`.
    pub weight: Param,
    /// Added under the root.
    pub eps: f64,
    /// Whether the weight counts from 1: one that is 0 changes nothing.
    pub from_one: bool,
}

impl RmsNorm {
    /// A norm of its own, not part of a model's table: weights of 1, and 1e-6 under the root.
    pub fn new(name: &str, width: usize, init: &Init) -> BuildResult<RmsNorm> {
        let mut table = Table::new(0.0);
        table.norm(name, width)?;
        Parts::new(table.into_specs(), init, None)?.rms_norm(name, 1e-6)
    }

    /// The same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = self.factor()?;
        ops::rms_norm(x, weight.shape(), Some(&weight), self.eps)
    }

    /// `x + more`, and that normed.
    pub fn forward_sum(&self, x: &Tensor, more: &Tensor) -> Result<(Tensor, Tensor)> {
        let weight = self.factor()?;
        ops::add_rms_norm(x, more, weight.shape(), Some(&weight), self.eps)
    }

    /// What rows are multiplied with.
    fn factor(&self) -> Result<Tensor> {
        let weight = self.weight.value()?;
        if self.from_one { weight.add_scalar(1.0) } else { Ok(weight) }
    }
}

impl Module for RmsNorm {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[width]`.
    pub weight: Param,
    /// `[width]`.
    pub bias: Option<Param>,
    /// Added under the root.
    pub eps: f64,
}

impl LayerNorm {
    /// A norm of its own, not part of a model's table: weights of 1, a bias of 0, and 1e-5 under the root.
    pub fn new(name: &str, width: usize, init: &Init) -> BuildResult<LayerNorm> {
        let mut table = Table::new(0.0);
        table.norm(name, width)?;
        table.bias(name, width, Cut::Whole)?;
        Parts::new(table.into_specs(), init, None)?.layer_norm(name, 1e-5)
    }

    /// The same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = self.weight.value()?;
        let bias = self.bias.as_ref().map(Param::value).transpose()?;
        ops::layer_norm(x, weight.shape(), Some(&weight), bias.as_ref(), self.eps)
    }
}

impl Module for LayerNorm {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(&self.weight);
        self.bias.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
        self.bias.visit_mut(f);
    }
}
