//! Group and instance normalisation of `[batch, channels, ..]` arrays.

use super::{LayerNorm, NormGrad, Param, channels, grad_dtype, on_device};
use crate::array::Array;
use crate::cpu::norm::group::{self, Groups};
use crate::cpu::real::{Float, Real, with_float};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::{Fresh, all_meta, check_eps, check_like, check_param, check_stat, real_dtype};
use planaria_layout::Shape;

/// Normalises each of `groups` groups of channels of each sample; weight and bias have one value per channel.
/// The statistics have shape `[batch, groups]`.
pub fn group_norm(
    x: &Array,
    groups: usize,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
) -> Result<LayerNorm> {
    forward("group_norm", x, groups, weight, bias, eps)
}

/// Gradients of [`group_norm`], with the formula of [`super::layer_norm_grad`] over each group.
pub fn group_norm_grad(
    dy: &Array,
    x: &Array,
    groups: usize,
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<NormGrad> {
    backward("group_norm_grad", dy, x, groups, mean, rstd, weight)
}

/// Normalises each channel of each sample over its positions; the statistics have shape `[batch, channels]`.
pub fn instance_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f64) -> Result<LayerNorm> {
    let groups = x.shape().get(1).copied().unwrap_or(0);
    forward("instance_norm", x, groups, weight, bias, eps)
}

/// Gradients of [`instance_norm`].
pub fn instance_norm_grad(
    dy: &Array,
    x: &Array,
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<NormGrad> {
    let groups = x.shape().get(1).copied().unwrap_or(0);
    backward("instance_norm_grad", dy, x, groups, mean, rstd, weight)
}

fn split(op: &'static str, x: &Array, groups: usize) -> Result<Groups> {
    real_dtype(op, x.dtype())?;
    let (batch, channels, inner) = channels(op, x.shape())?;
    if groups == 0 && channels == 0 {
        return Ok(Groups { batch, groups, channels: 0, inner });
    }
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(Error::argument(op, format!("{channels} channels do not divide into {groups} groups")));
    }
    Ok(Groups { batch, groups, channels: channels / groups, inner })
}

fn forward(
    op: &'static str,
    x: &Array,
    groups: usize,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
) -> Result<LayerNorm> {
    let at = split(op, x, groups)?;
    check_eps(op, eps)?;
    let (param, stat) = (Shape::new(&[at.groups * at.channels])?, Shape::new(&[at.batch, at.groups])?);
    check_param(op, x, weight, &param)?;
    check_param(op, x, bias, &param)?;
    if all_meta(op, x, &[weight, bias])? {
        let stat = Array::meta_of(stat, real_dtype(op, x.dtype())?);
        let y = Array::meta_of(x.shape().clone(), x.dtype());
        return Ok(LayerNorm { y, mean: stat.clone(), rstd: stat });
    }
    if let Device::Cuda(_) = x.device() {
        return on_device::group_norm(op, x, at.groups, weight, bias, eps);
    }
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let values = x.values::<T>(op)?;
        let w = Param::<R>::weight(op, weight, param.numel())?;
        let b = Param::<R>::bias(op, bias, param.numel())?;
        let mut y = Fresh::<T>::new(x.shape())?;
        let (mut mean, mut rstd) = (Fresh::<R>::new(&stat)?, Fresh::<R>::new(&stat)?);
        group::forward(&values, (&w, &b), y.slice(), mean.slice(), rstd.slice(), at, R::of(eps));
        Ok(LayerNorm { y: y.finish(), mean: mean.finish(), rstd: rstd.finish() })
    })
}

fn backward(
    op: &'static str,
    dy: &Array,
    x: &Array,
    groups: usize,
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<NormGrad> {
    let at = split(op, x, groups)?;
    check_like(op, dy, x)?;
    let (param, stat) = (Shape::new(&[at.groups * at.channels])?, Shape::new(&[at.batch, at.groups])?);
    check_param(op, x, weight, &param)?;
    check_stat(op, x, mean, &stat)?;
    check_stat(op, x, rstd, &stat)?;
    let dtype = grad_dtype(x, weight);
    if all_meta(op, x, &[Some(dy), Some(mean), Some(rstd), weight])? {
        let param = Array::meta_of(param, dtype);
        let x = Array::meta_of(x.shape().clone(), x.dtype());
        return Ok(NormGrad { x, weight: param.clone(), bias: param });
    }
    if let Device::Cuda(_) = x.device() {
        return on_device::group_norm_grad(op, (dy, x), at.groups, (mean, rstd), weight, dtype);
    }
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let (dy, values) = (dy.values::<T>(op)?, x.values::<T>(op)?);
        let (mean, rstd) = (mean.values::<R>(op)?, rstd.values::<R>(op)?);
        let w = Param::<R>::weight(op, weight, param.numel())?;
        let mut dx = Fresh::<T>::new(x.shape())?;
        let (mut dw, mut db) = (Fresh::<R>::new(&param)?, Fresh::<R>::new(&param)?);
        group::backward((&dy, &values), &w, (&mean, &rstd), dx.slice(), dw.slice(), db.slice(), at);
        let (weight, bias) = (dw.finish().cast(dtype)?, db.finish().cast(dtype)?);
        Ok(NormGrad { x: dx.finish(), weight, bias })
    })
}
