//! Normalisations: over trailing dims, over groups of channels, and over the batch.

pub(super) mod batch;
pub(super) mod group;
pub(super) mod layer;

pub use batch::{BatchNorm, RunningStats, batch_norm, sync_batch_norm};
pub use group::{group_norm, instance_norm};
pub use layer::{add_rms_norm, layer_norm, rms_norm};

use crate::attributes::Attributes;
use crate::error::Result;
use crate::ops::sample::Draw;
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_layout::rule::FactorId;

/// Which parameters a call has; they follow the other inputs in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) weight: bool,
    pub(super) bias: bool,
}

impl Params {
    pub(super) fn of(weight: Option<&Tensor>, bias: Option<&Tensor>) -> Params {
        Params { weight: weight.is_some(), bias: bias.is_some() }
    }

    pub(super) fn read(at: &Attributes) -> Option<Params> {
        Some(Params { weight: at.truth("weight")?, bias: at.truth("bias")? })
    }

    /// Weight and bias among inputs that start with `before` others.
    pub(super) fn pick<T>(self, inputs: &[T], before: usize) -> (Option<&T>, Option<&T>) {
        let weight = if self.weight { inputs.get(before) } else { None };
        let bias = if self.bias { inputs.get(before + usize::from(self.weight)) } else { None };
        (weight, bias)
    }

    pub(super) fn count(self) -> usize {
        usize::from(self.weight) + usize::from(self.bias)
    }
}

/// `h * weight + bias`, both broadcast from this shape.
pub(super) fn affine(
    h: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    shape: &[usize],
) -> Result<Tensor> {
    let fit = |p: &Tensor| p.cast(h.dtype())?.reshape(shape);
    let scaled = weight.map_or_else(|| Ok(h.clone()), |w| h.mul(&fit(w)?))?;
    bias.map_or_else(|| Ok(scaled.clone()), |b| scaled.add(&fit(b)?))
}

/// As [`affine`], on arrays.
pub(super) fn affine_arrays(
    h: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    shape: &[usize],
) -> Result<Array> {
    let fit = |p: &Array| p.cast(h.dtype())?.reshape(shape);
    let scaled = weight.map_or_else(|| Ok(h.clone()), |w| h.mul(&fit(w)?))?;
    Ok(bias.map_or_else(|| Ok(scaled.clone()), |b| scaled.add(&fit(b)?))?)
}

/// One value per channel, seen as `[1, channels, 1, ..]`.
pub(super) fn channel_shape(ndim: usize, channels: usize) -> Vec<usize> {
    let mut shape = vec![1; ndim];
    shape[1] = channels;
    shape
}

/// The inputs that are there, in order.
pub(super) fn given<'a>(first: &[&'a Tensor], others: &[Option<&'a Tensor>]) -> Vec<&'a Tensor> {
    first.iter().copied().chain(others.iter().filter_map(|t| *t)).collect()
}

/// Factors as dims.
pub(super) fn some(factors: &[FactorId]) -> Vec<Option<FactorId>> {
    factors.iter().map(|&f| Some(f)).collect()
}

/// Parameters for a random call.
fn draw_params(draw: &mut Draw, shape: &[usize]) -> Result<(Params, Vec<Array>)> {
    let params = Params { weight: draw.below(3) > 0, bias: draw.coin() };
    let arrays = (0..params.count()).map(|_| draw.normal(shape)).collect::<Result<_>>()?;
    Ok((params, arrays))
}
