//! Norms over the last dim.

use crate::param::{Module, Param};
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
    /// The same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut weight = self.weight.value()?;
        if self.from_one {
            weight = weight.add_scalar(1.0)?;
        }
        ops::rms_norm(x, weight.shape(), Some(&weight), self.eps)
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
