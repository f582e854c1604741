//! Batch normalisation of `[batch, channels, ..]` arrays, in training and in evaluation.

use super::{NormGrad, Param, channels, grad_dtype, on_device};
use crate::array::Array;
use crate::cpu::norm::batch::{self, Channels};
use crate::cpu::real::{Float, Real, with_float};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::{Fresh, all_meta, check_eps, check_like, check_param, check_stat, real_dtype};
use planaria_layout::{DType, Shape};

/// Averages over past batches, one value per channel, in the dtype of `x` or f32.
#[derive(Clone, Copy, Debug)]
pub struct RunningStats<'a> {
    /// Running mean.
    pub mean: &'a Array,
    /// Running variance (divided by count - 1).
    pub var: &'a Array,
}

/// Where the statistics come from.
#[derive(Clone, Copy, Debug)]
pub enum BatchStats<'a> {
    /// Training: from the batch. Running averages, when given, become
    /// `(1 - momentum) * running + momentum * batch`.
    Batch {
        /// Averages to update in place.
        running: Option<RunningStats<'a>>,
        /// Weight of this batch.
        momentum: f64,
    },
    /// Evaluation: the running averages.
    Running(RunningStats<'a>),
}

/// What [`batch_norm`] returns.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The normalised array.
    pub y: Array,
    /// Mean of each channel, as used.
    pub mean: Array,
    /// `1 / sqrt(variance + eps)` of each channel, as used.
    pub rstd: Array,
}

/// `y = (x - mean) * rstd * weight + bias` per channel of `[batch, channels, ..]`.
pub fn batch_norm(
    x: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    stats: BatchStats<'_>,
    eps: f64,
) -> Result<BatchNorm> {
    let op = "batch_norm";
    real_dtype(op, x.dtype())?;
    let (batch, channels, inner) = channels(op, x.shape())?;
    let at = Channels { batch, channels, inner };
    let per_channel = Shape::new(&[channels])?;
    check_eps(op, eps)?;
    check_param(op, x, weight, &per_channel)?;
    check_param(op, x, bias, &per_channel)?;
    let running = check_stats(op, x, stats, at)?;
    let (mean, var) = (running.map(|r| r.mean), running.map(|r| r.var));
    if all_meta(op, x, &[weight, bias, mean, var])? {
        let stat = Array::meta_of(per_channel, real_dtype(op, x.dtype())?);
        let y = Array::meta_of(x.shape().clone(), x.dtype());
        return Ok(BatchNorm { y, mean: stat.clone(), rstd: stat });
    }
    if let Device::Cuda(_) = x.device() {
        return on_device::batch_norm(x, weight, bias, stats, eps);
    }
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let moments = match stats {
            BatchStats::Batch { running, momentum } => {
                let moments = batch::moments::<T>(&x.values::<T>(op)?, at);
                if let Some(running) = running {
                    update(running, &moments, at.count(), momentum)?;
                }
                moments
            }
            BatchStats::Running(running) => values(op, running)?,
        };
        let w = Param::<R>::weight(op, weight, channels)?;
        let b = Param::<R>::bias(op, bias, channels)?;
        normalize::<T>(x, &moments, &w, &b, at, eps)
    })
}

fn normalize<T: Float>(
    x: &Array,
    moments: &[(f64, f64)],
    w: &[T::Real],
    b: &[T::Real],
    at: Channels,
    eps: f64,
) -> Result<BatchNorm> {
    let mean: Vec<T::Real> = moments.iter().map(|m| T::Real::of(m.0)).collect();
    let rstd: Vec<T::Real> = moments.iter().map(|m| T::Real::of(1.0 / (m.1 + eps).sqrt())).collect();
    let scale: Vec<T::Real> = rstd.iter().zip(w).map(|(&s, &w)| s * w).collect();
    let values = x.values::<T>("batch_norm")?;
    let mut y = Fresh::<T>::new(x.shape())?;
    batch::affine(&values, [&mean, &scale, b], y.slice(), at);
    let stat = |v: &[T::Real]| Array::from_slice(v, &[at.channels]);
    Ok(BatchNorm { y: y.finish(), mean: stat(&mean)?, rstd: stat(&rstd)? })
}

/// Checks the running statistics, whichever way they are used.
fn check_stats<'a>(
    op: &'static str,
    x: &Array,
    stats: BatchStats<'a>,
    at: Channels,
) -> Result<Option<RunningStats<'a>>> {
    let running = match stats {
        BatchStats::Running(running) => Some(running),
        BatchStats::Batch { running, momentum } => {
            if at.count() == 1 {
                let what = format!("training needs more than 1 value per channel, got shape {}", x.shape());
                return Err(Error::argument(op, what));
            }
            if !momentum.is_finite() {
                return Err(Error::argument(op, format!("momentum must be finite, got {momentum}")));
            }
            running
        }
    };
    if let Some(RunningStats { mean, var }) = running {
        let per_channel = Shape::new(&[at.channels])?;
        check_param(op, x, Some(mean), &per_channel)?;
        check_param(op, x, Some(var), &per_channel)?;
    }
    Ok(running)
}

fn values(op: &'static str, running: RunningStats<'_>) -> Result<Vec<(f64, f64)>> {
    let read = |x: &Array| x.cast(DType::F64)?.values::<f64>(op);
    let (mean, var) = (read(running.mean)?, read(running.var)?);
    Ok(mean.iter().copied().zip(var.iter().copied()).collect())
}

fn update(running: RunningStats<'_>, moments: &[(f64, f64)], count: usize, momentum: f64) -> Result<()> {
    let unbiased = count as f64 / (count as f64 - 1.0);
    let (mut mean, mut var) = (Vec::new(), Vec::new());
    for (&(m, v), (old_m, old_v)) in moments.iter().zip(values("batch_norm", running)?) {
        mean.push((1.0 - momentum) * old_m + momentum * m);
        var.push((1.0 - momentum) * old_v + momentum * v * unbiased);
    }
    for (target, new) in [(running.mean, mean), (running.var, var)] {
        target.copy_from(&Array::from_slice(&new, target.shape())?.cast(target.dtype())?)?;
    }
    Ok(())
}

/// Which statistics the forward pass used, for [`batch_norm_grad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchMode {
    /// The batch's own, through which gradients flow.
    Training,
    /// Fixed ones.
    Evaluation,
}

/// Gradients of [`batch_norm`] from the `mean` and `rstd` it returned. With `h = (x - mean) * rstd`, per channel
/// `dweight = sum(dy * h)` and `dbias = sum(dy)`; `dx = weight * rstd * (dy - mean(dy) - h * mean(dy * h))` in
/// training, `dx = weight * rstd * dy` in evaluation.
pub fn batch_norm_grad(
    dy: &Array,
    x: &Array,
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
    mode: BatchMode,
) -> Result<NormGrad> {
    let op = "batch_norm_grad";
    real_dtype(op, x.dtype())?;
    check_like(op, dy, x)?;
    let (batch, channels, inner) = channels(op, x.shape())?;
    let per_channel = Shape::new(&[channels])?;
    check_param(op, x, weight, &per_channel)?;
    check_stat(op, x, mean, &per_channel)?;
    check_stat(op, x, rstd, &per_channel)?;
    let dtype = grad_dtype(x, weight);
    if all_meta(op, x, &[Some(dy), Some(mean), Some(rstd), weight])? {
        let param = Array::meta_of(per_channel, dtype);
        let x = Array::meta_of(x.shape().clone(), x.dtype());
        return Ok(NormGrad { x, weight: param.clone(), bias: param });
    }
    if let Device::Cuda(_) = x.device() {
        return on_device::batch_norm_grad(dy, x, (mean, rstd), weight, mode, dtype);
    }
    let at = Channels { batch, channels, inner };
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let (mean, rstd) = (mean.values::<R>(op)?, rstd.values::<R>(op)?);
        let w = Param::<R>::weight(op, weight, channels)?;
        let (x, dw, db) = gradients::<T>(dy, x, &mean, &rstd, &w, at, mode)?;
        Ok(NormGrad { x, weight: dw.cast(dtype)?, bias: db.cast(dtype)? })
    })
}

fn gradients<T: Float>(
    dy: &Array,
    x: &Array,
    mean: &[T::Real],
    rstd: &[T::Real],
    w: &[T::Real],
    at: Channels,
    mode: BatchMode,
) -> Result<(Array, Array, Array)> {
    let op = "batch_norm_grad";
    let (dy, values) = (dy.values::<T>(op)?, x.values::<T>(op)?);
    let sums = batch::grad_sums::<T>(&dy, &values, mean, at);
    let share = match mode {
        BatchMode::Training => 1.0 / at.count() as f64,
        BatchMode::Evaluation => 0.0,
    };
    let scale: Vec<T::Real> = rstd.iter().zip(w).map(|(&s, &w)| s * w).collect();
    let offset: Vec<T::Real> = sums.iter().map(|s| T::Real::of(s.0 * share)).collect();
    let slope: Vec<T::Real> =
        sums.iter().zip(rstd).map(|(s, r)| T::Real::of(s.1 * r.f64() * r.f64() * share)).collect();
    let mut dx = Fresh::<T>::new(x.shape())?;
    batch::input_grad((&dy, &values), [mean, &scale, &offset, &slope], dx.slice(), at);
    let dw: Vec<T::Real> = sums.iter().zip(rstd).map(|(s, r)| T::Real::of(s.1 * r.f64())).collect();
    let db: Vec<T::Real> = sums.iter().map(|s| T::Real::of(s.0)).collect();
    let param = |v: &[T::Real]| Array::from_slice(v, &[at.channels]);
    Ok((dx.finish(), param(&dw)?, param(&db)?))
}
