//! The linear layer.

use super::Parts;
use crate::error::Result as BuildResult;
use crate::lora::{Adapter, TokenRows, oriented};
use crate::param::{Adaptable, Cut, Init, Module, Param};
use crate::table::Table;
use planaria_array::ops::Layer;
use planaria_array::{Array, DType, Device};
use planaria_tensor::{Result, Tensor, ops};

/// `x · weightᵀ + bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` where it is turned.
    pub weight: Param,
    /// `[out]`.
    pub bias: Option<Param>,
    /// The weight lies `[in, out]`.
    pub turned: bool,
    /// What is added to the product.
    pub adapters: Vec<Adapter>,
    /// New rows of the weight for some tokens, of a head that shares the table of token vectors.
    pub tokens: Option<TokenRows>,
}

impl Linear {
    /// A layer of these parameters, without adapters.
    pub fn of(weight: Param, bias: Option<Param>) -> Linear {
        Linear { weight, bias, turned: false, adapters: Vec::new(), tokens: None }
    }

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
        let alike = alike && layers.iter().all(|layer| layer.adapters.is_empty() && !layer.turned);
        if x.layout().is_some() || !alike || !matches!(x.local().device(), Device::Cuda(_)) {
            return Ok(None);
        }
        let join = |parts: Vec<Tensor>| ops::beside(&parts.iter().collect::<Vec<_>>());
        let weights = layers.iter().map(|layer| layer.weight.value()).collect::<Result<Vec<_>>>()?;
        let biases = layers.iter().filter_map(|layer| layer.bias.as_ref()).map(Param::value);
        let biases = biases.collect::<Result<Vec<_>>>()?;
        let bias = if biases.is_empty() { None } else { Some(join(biases)?) };
        ops::linear(x, &join(weights)?, bias.as_ref()).map(Some)
    }

    /// `[.., in]` to `[.., out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::value).transpose()?;
        let weight = self.rows()?;
        let on = || self.adapters.iter().filter(|adapter| adapter.switch.is_on());
        if on().next().is_none() {
            return ops::linear(x, &weight, bias.as_ref());
        }
        // Lengths of rows are of the weight alone, so what they multiply has no bias yet.
        let apart = on().any(|adapter| adapter.magnitude.is_some());
        let y = ops::linear(x, &weight, bias.as_ref().filter(|_| !apart))?;
        let mut sum = y.clone();
        for adapter in on() {
            let added = adapter.added(x, &y, &self.weight)?;
            sum = sum.cast(added.dtype())?.add(&added)?;
        }
        if let Some(bias) = bias.filter(|_| apart) {
            sum = sum.add(&bias.cast(sum.dtype())?)?;
        }
        sum.cast(y.dtype())
    }

    /// The weight, with the new rows of tokens that have them.
    fn rows(&self) -> Result<Tensor> {
        let weight = oriented(&self.weight, self.turned)?;
        let Some(tokens) = self.tokens.as_ref().filter(|tokens| tokens.switch.is_on()) else {
            return Ok(weight);
        };
        let ids: Vec<i64> = tokens.ids.iter().map(|&id| id as i64).collect();
        let ids = Array::from_slice(&ids, &[ids.len()])?.cast(DType::I64)?.to(weight.local().device())?;
        weight.index_copy(0, &Tensor::new(ids), &tokens.rows.value()?.cast(weight.dtype())?)
    }

    /// Input and weight of a product that gives what this layer gives, where it has no bias: with factors both are wider, so
    /// that what takes an input and a weight takes adapted ones too.
    pub fn widened(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut pair = (x.clone(), self.rows()?);
        for adapter in self.adapters.iter().filter(|adapter| adapter.switch.is_on()) {
            pair = adapter.widened(pair, x, &self.weight)?;
        }
        Ok(pair)
    }
}

impl Linear {
    /// Puts what its one adapter does into a weight of its own, and the adapter away.
    pub(crate) fn merge(&mut self) -> BuildResult<()> {
        let [adapter] = &self.adapters[..] else { return Ok(()) };
        let Some(merged) = adapter.merged(&self.weight)? else { return Ok(()) };
        self.weight.set_array(merged.local().contiguous()?)?;
        self.adapters.clear();
        Ok(())
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
        self.adapters.visit(f);
        self.tokens.visit(f);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.weight);
        self.bias.visit_mut(f);
        self.adapters.visit_mut(f);
        self.tokens.visit_mut(f);
    }

    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        f(Adaptable::Linear(self));
    }
}
