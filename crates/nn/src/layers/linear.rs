//! The linear layer.

use super::Parts;
use crate::error::Result as BuildResult;
use crate::param::{Cut, Init, Module, Param};
use crate::table::Table;
use planaria_array::ops::Layer;
use planaria_array::{Array, Device};
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

    /// The results of several layers on one input, side by side in the last dim, from one product: a device does a wide one faster
    /// than several narrow ones. Nothing where that is not so: on the host, and on a mesh, which cuts each by itself.
    pub fn joined(layers: &[&Linear], x: &Tensor) -> Result<Option<Tensor>> {
        let biases = layers.iter().filter(|layer| layer.bias.is_some()).count();
        let alike = biases == 0 || biases == layers.len();
        if x.layout().is_some() || !alike || !matches!(x.local().device(), Device::Cuda(_)) {
            return Ok(None);
        }
        let join = |parts: Vec<Tensor>| ops::concat(&parts.iter().collect::<Vec<_>>(), 0);
        let weights = layers.iter().map(|layer| layer.weight.value()).collect::<Result<Vec<_>>>()?;
        let biases = layers.iter().filter_map(|layer| layer.bias.as_ref()).map(Param::value);
        let biases = biases.collect::<Result<Vec<_>>>()?;
        let bias = if biases.is_empty() { None } else { Some(join(biases)?) };
        ops::linear(x, &join(weights)?, bias.as_ref()).map(Some)
    }

    /// `[.., in]` to `[.., out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::value).transpose()?;
        ops::linear(x, &self.weight.value()?, bias.as_ref())
    }
}

/// What a linear layer computes with.
pub(crate) struct Weights {
    weight: Array,
    bias: Option<Array>,
}

impl Weights {
    pub(crate) fn layer(&self) -> Layer<'_> {
        Layer { weight: &self.weight, bias: self.bias.as_ref() }
    }
}

impl Linear {
    /// The arrays of a layer that is whole on this rank.
    pub(crate) fn weights(&self) -> Result<Weights> {
        let bias = self.bias.as_ref().map(Param::value).transpose()?;
        let weight = self.weight.value()?.local().clone();
        Ok(Weights { weight, bias: bias.map(|bias| bias.local().clone()) })
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
