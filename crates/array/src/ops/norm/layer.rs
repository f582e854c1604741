//! Layer and rms normalisation over trailing dims.

use super::{Param, grad_dtype};
use crate::array::Array;
use crate::cpu::norm::rows::{self, Center};
use crate::cpu::real::{Float, Real, with_float};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::{self, Fresh, all_meta, check_eps, check_like, check_param, check_stat, real_dtype};
use planaria_layout::Shape;

/// What [`layer_norm`] returns; the statistics have the leading dims of `x`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// The normalised array.
    pub y: Array,
    /// Mean of each row.
    pub mean: Array,
    /// `1 / sqrt(variance + eps)` of each row.
    pub rstd: Array,
}

/// What [`rms_norm`] returns; `rstd` has the leading dims of `x`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// The normalised array.
    pub y: Array,
    /// `1 / sqrt(mean(x^2) + eps)` of each row.
    pub rstd: Array,
}

/// Gradients of a normalisation's input and parameters.
#[derive(Clone, Debug)]
pub struct NormGrad {
    /// Gradient of the input.
    pub x: Array,
    /// Gradient of the weight, also when none was given.
    pub weight: Array,
    /// Gradient of the bias, also when none was given.
    pub bias: Array,
}

/// Gradients of [`rms_norm`].
#[derive(Clone, Debug)]
pub struct RmsNormGrad {
    /// Gradient of the input.
    pub x: Array,
    /// Gradient of the weight, also when none was given.
    pub weight: Array,
}

/// The shapes of one call: rows of `normalized` elements, one per element of `leading`.
struct Rows {
    leading: Shape,
    normalized: Shape,
}

impl Rows {
    fn of(op: &'static str, x: &Array, normalized: &[usize]) -> Result<Rows> {
        real_dtype(op, x.dtype())?;
        let normalized = Shape::new(normalized)?;
        let fits =
            normalized.ndim() <= x.ndim() && x.shape()[x.ndim() - normalized.ndim()..] == normalized[..];
        if !fits || normalized.ndim() == 0 {
            let reason = "the normalised shape must be the trailing dims, at least one";
            return Err(Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: normalized, reason });
        }
        Ok(Rows { leading: fused::leading(x.shape(), normalized.ndim())?, normalized })
    }
}

/// `y = (x - mean) * rstd * weight + bias` over the trailing dims `normalized`, which weight and bias have as
/// their shape.
pub fn layer_norm(
    x: &Array,
    normalized: &[usize],
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
) -> Result<LayerNorm> {
    let op = "layer_norm";
    let rows = Rows::of(op, x, normalized)?;
    let (y, mean, rstd) = forward(op, x, &rows, weight, bias, eps, Center::Mean)?;
    Ok(LayerNorm { y, mean, rstd })
}

/// `y = x * rstd * weight` over the trailing dims `normalized`, with `rstd = 1 / sqrt(mean(x^2) + eps)`.
pub fn rms_norm(x: &Array, normalized: &[usize], weight: Option<&Array>, eps: f64) -> Result<RmsNorm> {
    let op = "rms_norm";
    let rows = Rows::of(op, x, normalized)?;
    let (y, _, rstd) = forward(op, x, &rows, weight, None, eps, Center::Zero)?;
    Ok(RmsNorm { y, rstd })
}

/// Gradients of [`layer_norm`]. With `h = (x - mean) * rstd` and `g = dy * weight`, per row
/// `dx = rstd * (g - mean(g) - h * mean(g * h))`; over the rows `dweight = sum(dy * h)`, `dbias = sum(dy)`.
pub fn layer_norm_grad(
    dy: &Array,
    x: &Array,
    normalized: &[usize],
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<NormGrad> {
    let op = "layer_norm_grad";
    let rows = Rows::of(op, x, normalized)?;
    check_stat(op, x, mean, &rows.leading)?;
    let (x, weight, bias) = backward(op, dy, x, &rows, Some(mean), rstd, weight)?;
    Ok(NormGrad { x, weight, bias })
}

/// Gradients of [`rms_norm`]. With `h = x * rstd` and `g = dy * weight`, per row
/// `dx = rstd * (g - h * mean(g * h))`; over the rows `dweight = sum(dy * h)`.
pub fn rms_norm_grad(
    dy: &Array,
    x: &Array,
    normalized: &[usize],
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<RmsNormGrad> {
    let op = "rms_norm_grad";
    let rows = Rows::of(op, x, normalized)?;
    let (x, weight, _) = backward(op, dy, x, &rows, None, rstd, weight)?;
    Ok(RmsNormGrad { x, weight })
}

fn forward(
    op: &'static str,
    x: &Array,
    rows: &Rows,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
    center: Center,
) -> Result<(Array, Array, Array)> {
    check_eps(op, eps)?;
    check_param(op, x, weight, &rows.normalized)?;
    check_param(op, x, bias, &rows.normalized)?;
    if all_meta(op, x, &[weight, bias])? {
        let stat =
            || -> Result<Array> { Ok(Array::meta_of(rows.leading.clone(), real_dtype(op, x.dtype())?)) };
        return Ok((Array::meta_of(x.shape().clone(), x.dtype()), stat()?, stat()?));
    }
    if let Device::Cuda(_) = x.device() {
        let span = (&rows.leading, rows.normalized.numel());
        let normed = cuda::norm(op, x, span, (weight, bias), eps, matches!(center, Center::Mean))?;
        return Ok((normed.y, normed.mean, normed.rstd));
    }
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let cols = rows.normalized.numel();
        let values = x.values::<T>(op)?;
        let (w, b) = (Param::<R>::weight(op, weight, cols)?, Param::<R>::bias(op, bias, cols)?);
        let mut y = Fresh::<T>::new(x.shape())?;
        let (mut mean, mut rstd) = (Fresh::<R>::new(&rows.leading)?, Fresh::<R>::new(&rows.leading)?);
        rows::forward(&values, (&w, &b), y.slice(), mean.slice(), rstd.slice(), center, R::of(eps));
        Ok((y.finish(), mean.finish(), rstd.finish()))
    })
}

fn backward(
    op: &'static str,
    dy: &Array,
    x: &Array,
    rows: &Rows,
    mean: Option<&Array>,
    rstd: &Array,
    weight: Option<&Array>,
) -> Result<(Array, Array, Array)> {
    check_like(op, dy, x)?;
    check_stat(op, x, rstd, &rows.leading)?;
    check_param(op, x, weight, &rows.normalized)?;
    let dtype = grad_dtype(x, weight);
    if all_meta(op, x, &[Some(dy), mean, Some(rstd), weight])? {
        let param = || Array::meta_of(rows.normalized.clone(), dtype);
        return Ok((Array::meta_of(x.shape().clone(), x.dtype()), param(), param()));
    }
    if let Device::Cuda(_) = x.device() {
        let (cols, shape) = (rows.normalized.numel(), &rows.normalized);
        let (dx, dw, db) = cuda::norm_grad(op, (dy, x), cols, (mean, rstd), weight, shape)?;
        let db = db.map_or_else(|| Ok(dw.clone()), |db| db.cast(dtype))?;
        return Ok((dx, dw.cast(dtype)?, db));
    }
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let (dy, values) = (dy.values::<T>(op)?, x.values::<T>(op)?);
        let w = Param::<R>::weight(op, weight, rows.normalized.numel())?;
        let rstd = rstd.values::<R>(op)?;
        let (mean, center) = match mean {
            Some(mean) => (Param::Given(mean.values::<R>(op)?), Center::Mean),
            None => (Param::Constant(vec![R::ZERO; rstd.len()]), Center::Zero),
        };
        let mut dx = Fresh::<T>::new(x.shape())?;
        let (mut dw, mut db) = (Fresh::<R>::new(&rows.normalized)?, Fresh::<R>::new(&rows.normalized)?);
        rows::backward((&dy, &values), &w, (&mean, &rstd), dx.slice(), dw.slice(), db.slice(), center);
        Ok((dx.finish(), dw.finish().cast(dtype)?, db.finish().cast(dtype)?))
    })
}
