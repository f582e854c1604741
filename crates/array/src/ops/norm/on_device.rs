//! Batch and group normalisation on a device, from simpler operations: statistics in f64, the rest in the computing type.

use super::batch::{BatchMode, BatchNorm, BatchStats, RunningStats};
use super::{LayerNorm, NormGrad};
use crate::array::Array;
use crate::error::Result;
use crate::ops::Keep;
use crate::ops::fused::real_dtype;
use planaria_layout::DType;

/// One value per channel as `[1, channels, 1, ..]`.
fn per_channel(value: &Array, ndim: usize) -> Result<Array> {
    let mut shape = vec![1; ndim];
    shape[1] = value.numel();
    value.reshape(&shape)
}

/// All dims but that of the channels.
fn others(ndim: usize) -> Vec<i64> {
    (0..ndim as i64).filter(|&d| d != 1).collect()
}

fn number(value: f64) -> Result<Array> {
    Array::scalar(value, DType::F64)
}

/// Mean and variance in f64 over some dims, which stay as 1.
fn moments(x: &Array, dims: &[i64]) -> Result<(Array, Array)> {
    let x = x.cast(DType::F64)?;
    let mean = x.mean(dims, Keep::Yes)?;
    let var = x.sub(&mean)?.square()?.mean(dims, Keep::Yes)?;
    Ok((mean, var))
}

/// `value * weight + bias`, of what there is.
fn affine(value: Array, weight: Option<&Array>, bias: Option<&Array>, ndim: usize) -> Result<Array> {
    let param = |x: &Array| per_channel(&x.cast(value.dtype())?, ndim);
    let scaled = weight.map(|w| value.mul(&param(w)?)).transpose()?.unwrap_or_else(|| value.clone());
    bias.map(|b| scaled.add(&param(b)?)).transpose().map(|sum| sum.unwrap_or(scaled))
}

pub(super) fn batch_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    stats: BatchStats<'_>,
    eps: f64,
) -> Result<BatchNorm> {
    let (real, ndim, channels) = (real_dtype("batch_norm", x.dtype())?, x.ndim(), x.shape()[1]);
    let (mean, var) = match stats {
        BatchStats::Running(running) => {
            (running.mean.cast(DType::F64)?.contiguous()?, running.var.cast(DType::F64)?.contiguous()?)
        }
        BatchStats::Batch { running, momentum } => {
            let (mean, var) = moments(x, &others(ndim))?;
            let (mean, var) = (mean.reshape(&[channels])?, var.reshape(&[channels])?);
            if let Some(running) = running {
                update(running, &mean, &var, x.numel() / channels.max(1), momentum)?;
            }
            (mean, var)
        }
    };
    let rstd = var.add(&number(eps)?)?.sqrt()?;
    let rstd = number(1.0)?.div(&rstd)?.cast(real)?;
    let mean = mean.cast(real)?;
    let scale = weight.map_or_else(|| Ok(rstd.clone()), |w| rstd.mul(&w.cast(real)?))?;
    let centered = x.cast(real)?.sub(&per_channel(&mean, ndim)?)?;
    let y = affine(centered.mul(&per_channel(&scale, ndim)?)?, None, bias, ndim)?.cast(x.dtype())?;
    Ok(BatchNorm { y, mean, rstd })
}

fn update(running: RunningStats<'_>, mean: &Array, var: &Array, count: usize, momentum: f64) -> Result<()> {
    let unbiased = count as f64 / (count as f64 - 1.0);
    for (target, new, factor) in [(running.mean, mean, 1.0), (running.var, var, unbiased)] {
        let old = target.cast(DType::F64)?.mul(&number(1.0 - momentum)?)?;
        target.copy_from(&old.add(&new.mul(&number(momentum * factor)?)?)?.cast(target.dtype())?)?;
    }
    Ok(())
}

pub(super) fn batch_norm_grad(
    dy: &Array,
    x: &Array,
    (mean, rstd): (&Array, &Array),
    weight: Option<&Array>,
    mode: BatchMode,
    dtype: DType,
) -> Result<NormGrad> {
    let (real, ndim, channels) = (real_dtype("batch_norm_grad", x.dtype())?, x.ndim(), x.shape()[1]);
    let dims = others(ndim);
    let centered = x.cast(real)?.sub(&per_channel(mean, ndim)?)?;
    let of_dy = dy.cast(DType::F64)?.sum(&dims, Keep::No)?.reshape(&[channels])?;
    let of_both = dy.cast(DType::F64)?.mul(&centered.cast(DType::F64)?)?;
    let of_both = of_both.sum(&dims, Keep::No)?.reshape(&[channels])?;
    let wide = rstd.cast(DType::F64)?;
    let mut inner = dy.cast(real)?;
    if mode == BatchMode::Training {
        let share = number(1.0 / (x.numel() / channels.max(1)).max(1) as f64)?;
        let offset = of_dy.mul(&share)?.cast(real)?;
        let slope = of_both.mul(&wide)?.mul(&wide)?.mul(&share)?.cast(real)?;
        inner = inner.sub(&per_channel(&offset, ndim)?)?;
        inner = inner.sub(&centered.mul(&per_channel(&slope, ndim)?)?)?;
    }
    let scale = weight.map_or_else(|| Ok(rstd.clone()), |w| rstd.mul(&w.cast(real)?))?;
    let dx = inner.mul(&per_channel(&scale, ndim)?)?.cast(x.dtype())?;
    let param = |sum: Array| sum.cast(real)?.cast(dtype);
    Ok(NormGrad { x: dx, weight: param(of_both.mul(&wide)?)?, bias: param(of_dy)? })
}

/// `[batch, groups, elements of one]`.
fn grouped(x: &Array, groups: usize) -> Result<Array> {
    let each = x.numel() / (x.shape()[0] * groups).max(1);
    x.reshape(&[x.shape()[0], groups, each])
}

pub(super) fn group_norm(
    op: &'static str,
    x: &Array,
    groups: usize,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
) -> Result<LayerNorm> {
    let (real, batch) = (real_dtype(op, x.dtype())?, x.shape()[0]);
    let rows = grouped(x, groups)?;
    let (mean, var) = moments(&rows, &[2])?;
    let rstd = number(1.0)?.div(&var.add(&number(eps)?)?.sqrt()?)?.cast(real)?;
    let mean = mean.cast(real)?;
    let normed = rows.cast(real)?.sub(&mean)?.mul(&rstd)?.reshape(x.shape())?;
    let y = affine(normed, weight, bias, x.ndim())?.cast(x.dtype())?;
    let stat = |value: Array| value.reshape(&[batch, groups]);
    Ok(LayerNorm { y, mean: stat(mean)?, rstd: stat(rstd)? })
}

pub(super) fn group_norm_grad(
    op: &'static str,
    (dy, x): (&Array, &Array),
    groups: usize,
    (mean, rstd): (&Array, &Array),
    weight: Option<&Array>,
    dtype: DType,
) -> Result<NormGrad> {
    let (real, ndim) = (real_dtype(op, x.dtype())?, x.ndim());
    let stat = |value: &Array| value.unsqueeze(-1);
    let normed = grouped(x, groups)?.cast(real)?.sub(&stat(mean)?)?.mul(&stat(rstd)?)?;
    let slope = grouped(&affine(dy.cast(real)?, weight, None, ndim)?, groups)?;
    let mean_of = |x: &Array| x.cast(DType::F64)?.mean(&[2], Keep::Yes)?.cast(real);
    let along = normed.mul(&mean_of(&slope.mul(&normed)?)?)?;
    let dx = slope.sub(&mean_of(&slope)?)?.sub(&along)?.mul(&stat(rstd)?)?;
    let dims = others(ndim);
    let param = |sum: Array| sum.sum(&dims, Keep::No)?.reshape(&[x.shape()[1]])?.cast(real)?.cast(dtype);
    let both = dy.cast(DType::F64)?.mul(&normed.reshape(x.shape())?.cast(DType::F64)?)?;
    Ok(NormGrad {
        x: dx.reshape(x.shape())?.cast(x.dtype())?,
        weight: param(both)?,
        bias: param(dy.cast(DType::F64)?)?,
    })
}
