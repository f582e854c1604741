//! Sums and means over dims, and the sum that undoes broadcasting.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::{keep_shape, normal_dims};
use crate::ops::moments::constant;
use crate::ops::named::{Found, found, keep};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::Keep;
use planaria_array::{Array, Shape};
use planaria_layout::rule::{self, LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// The sum over dims, times a factor that makes a mean of it.
#[derive(Debug, Clone)]
pub(crate) struct Sum {
    dims: Dims,
    keep: Keep,
    /// Divide by the number of elements of the global value.
    is_mean: bool,
}

impl Op for Sum {
    fn name(&self) -> &'static str {
        if self.is_mean { "mean" } else { "sum" }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dims.as_slice()).with("keepdim", self.keep == Keep::Yes)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = rule::reduction(&inputs[0].shape, &self.dims, &outputs[0].shape, Reduce::Sum);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let dims: Vec<i64> = self.dims.iter().map(|&d| d as i64).collect();
        if !self.is_mean {
            return Ok(smallvec![inputs[0].sum(&dims, self.keep)?]);
        }
        let global = local.input_shape(0, inputs[0]);
        let count: usize = self.dims.iter().map(|&d| global[d]).product();
        let here: usize = self.dims.iter().map(|&d| inputs[0].shape()[d]).product();
        if here == count {
            return Ok(smallvec![inputs[0].mean(&dims, self.keep)?]);
        }
        // A contribution to the mean: the local sum over the global count.
        let sum = inputs[0].sum(&dims, self.keep)?;
        Ok(smallvec![sum.div(&constant(&sum, count as f64, sum.dtype())?)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        let kept = dy.reshape(&keep_shape(shape, &self.dims))?;
        let count: usize = self.dims.iter().map(|&d| shape[d]).product();
        let scaled = if self.is_mean { kept.mul_scalar(1.0 / count as f64)? } else { kept };
        Ok(smallvec![Some(scaled.broadcast_to(shape)?)])
    }
}

impl Tensor {
    /// The sum over dims; over all of them when none are given.
    pub fn sum(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        apply1(Sum { dims: normal_dims("sum", self.ndim(), dims)?, keep, is_mean: false }, &[self])
    }

    /// The mean over dims; over all of them when none are given.
    pub fn mean(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        apply1(Sum { dims: normal_dims("mean", self.ndim(), dims)?, keep, is_mean: true }, &[self])
    }

    /// Sums what broadcasting from `shape` has repeated.
    pub fn sum_to(&self, shape: &Shape) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let extra = self.ndim().saturating_sub(shape.ndim());
        let repeated = |&d: &usize| d < extra || (shape[d - extra] == 1 && self.shape()[d] != 1);
        let dims: Vec<i64> = (0..self.ndim()).filter(repeated).map(|d| d as i64).collect();
        let summed = if dims.is_empty() { self.clone() } else { self.sum(&dims, Keep::Yes)? };
        if summed.ndim() == shape.ndim() { Ok(summed) } else { summed.reshape(shape) }
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let is_mean = match name {
        "sum" => false,
        "mean" => true,
        _ => return None,
    };
    found(Sum { dims: at.sizes("axis")?, keep: keep(at)?, is_mean })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let mut dims: Dims = (0..shape.len()).filter(|_| draw.coin()).collect();
    if dims.is_empty() {
        dims = (0..shape.len()).collect();
    }
    let keep = if draw.coin() { Keep::Yes } else { Keep::No };
    Ok(Sample::new(Sum { dims, keep, is_mean: draw.coin() }, [draw.normal(&shape)?]))
}
