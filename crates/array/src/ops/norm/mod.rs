//! Normalisation over trailing dims, groups of channels and the batch, with gradients.
//!
//! Statistics are kept in f32 (f64 for f64 arrays). Parameters have the dtype of `x` or f32; their gradients
//! come back in the parameter's dtype.

mod batch;
mod group;
mod layer;
mod on_device;

pub use batch::{BatchMode, BatchNorm, BatchStats, RunningStats, batch_norm, batch_norm_grad};
pub use group::{group_norm, group_norm_grad, instance_norm, instance_norm_grad};
pub use layer::{AddedRmsNorm, LayerNorm, NormGrad, RmsNorm, RmsNormGrad};
pub use layer::{add_rms_norm, layer_norm, layer_norm_grad, rms_norm, rms_norm_grad};

use super::fused::param;
use crate::array::{Array, Values};
use crate::cpu::real::Real;
use crate::error::{Error, Result};
use planaria_layout::{DType, Shape};
use std::ops::Deref;

/// A parameter in the computing type, or the constant that stands for its absence.
enum Param<R> {
    Given(Values<R>),
    Constant(Vec<R>),
}

impl<R: Real> Param<R> {
    fn weight(op: &'static str, weight: Option<&Array>, len: usize) -> Result<Param<R>> {
        Ok(param(op, weight)?.map_or_else(|| Param::Constant(vec![R::ONE; len]), Param::Given))
    }

    fn bias(op: &'static str, bias: Option<&Array>, len: usize) -> Result<Param<R>> {
        // Adding -0 changes no value, not even -0.
        Ok(param(op, bias)?.map_or_else(|| Param::Constant(vec![-R::ZERO; len]), Param::Given))
    }
}

impl<R: Real> Deref for Param<R> {
    type Target = [R];
    fn deref(&self) -> &[R] {
        match self {
            Param::Given(values) => values,
            Param::Constant(values) => values,
        }
    }
}

/// The dtype of a parameter's gradient.
fn grad_dtype(x: &Array, weight: Option<&Array>) -> DType {
    weight.map_or(x.dtype(), Array::dtype)
}

/// Batch, channels and elements per channel of `[batch, channels, ..]`.
fn channels(op: &'static str, shape: &Shape) -> Result<(usize, usize, usize)> {
    if shape.ndim() < 2 {
        let what = format!("x must be [batch, channels, ..], got shape {shape}");
        return Err(Error::argument(op, what));
    }
    Ok((shape[0], shape[1], shape[2..].iter().product()))
}
