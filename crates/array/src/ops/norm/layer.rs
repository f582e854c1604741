//! Layer and rms normalisation over trailing dims.

use super::{Param, grad_dtype};
use crate::array::Array;
use crate::cpu::norm::rows::{self, Center};
use crate::cpu::real::{Float, Real, with_float};
use crate::cuda::{self, Normed};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::Binary;
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

/// What [`add_rms_norm`] returns.
#[derive(Clone, Debug)]
pub struct AddedRmsNorm {
    /// `x + more`.
    pub sum: Array,
    /// That, normalised.
    pub y: Array,
    /// `1 / sqrt(mean(sum^2) + eps)` of each row.
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
    let done = forward(op, (x, None), &rows, weight, bias, eps, Center::Mean)?;
    Ok(LayerNorm { y: done.y, mean: done.mean, rstd: done.rstd })
}

/// `y = x * rstd * weight` over the trailing dims `normalized`, with `rstd = 1 / sqrt(mean(x^2) + eps)`.
pub fn rms_norm(x: &Array, normalized: &[usize], weight: Option<&Array>, eps: f64) -> Result<RmsNorm> {
    let op = "rms_norm";
    let rows = Rows::of(op, x, normalized)?;
    let done = forward(op, (x, None), &rows, weight, None, eps, Center::Zero)?;
    Ok(RmsNorm { y: done.y, rstd: done.rstd })
}

/// `x + more` and its [`rms_norm`], with the bits of the two one after the other; on a GPU one launch. Both arrays have one
/// shape and dtype.
pub fn add_rms_norm(
    x: &Array,
    more: &Array,
    normalized: &[usize],
    weight: Option<&Array>,
    eps: f64,
) -> Result<AddedRmsNorm> {
    let op = "add_rms_norm";
    let rows = Rows::of(op, x, normalized)?;
    check_like(op, more, x)?;
    let done = forward(op, (x, Some(more)), &rows, weight, None, eps, Center::Zero)?;
    Ok(AddedRmsNorm { sum: done.sum, y: done.y, rstd: done.rstd })
}

/// Gradients of [`layer_norm`]. With `h = (x - mean) * rstd` and `g = dy * weight`, per row
/// `dx = rstd * (g - mean(g) - h * mean(g * h))`; over the rows `dweight = sum(dy * h)`, `dbias = sum(dy)`. A gradient of `x`
/// that came by another way, `carried`, is added to `dx`.
pub fn layer_norm_grad(
    dy: &Array,
    x: &Array,
    normalized: &[usize],
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
    carried: Option<&Array>,
) -> Result<NormGrad> {
    let op = "layer_norm_grad";
    let rows = Rows::of(op, x, normalized)?;
    check_stat(op, x, mean, &rows.leading)?;
    let (x, weight, bias) = backward(op, (dy, carried), x, &rows, (Some(mean), rstd), weight)?;
    Ok(NormGrad { x, weight, bias })
}

/// Gradients of [`rms_norm`]. With `h = x * rstd` and `g = dy * weight`, per row
/// `dx = rstd * (g - h * mean(g * h))`; over the rows `dweight = sum(dy * h)`. A gradient of `x` that came by another way,
/// `carried`, is added to `dx`.
pub fn rms_norm_grad(
    dy: &Array,
    x: &Array,
    normalized: &[usize],
    rstd: &Array,
    weight: Option<&Array>,
    carried: Option<&Array>,
) -> Result<RmsNormGrad> {
    let op = "rms_norm_grad";
    let rows = Rows::of(op, x, normalized)?;
    let (x, weight, _) = backward(op, (dy, carried), x, &rows, (None, rstd), weight)?;
    Ok(RmsNormGrad { x, weight })
}

/// `x`, or `x + more`, normalised.
fn forward(
    op: &'static str,
    (x, more): (&Array, Option<&Array>),
    rows: &Rows,
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
    center: Center,
) -> Result<Normed> {
    check_eps(op, eps)?;
    check_param(op, x, weight, &rows.normalized)?;
    check_param(op, x, bias, &rows.normalized)?;
    if all_meta(op, x, &[more, weight, bias])? {
        let like_x = || Array::meta_of(x.shape().clone(), x.dtype());
        let stat =
            || -> Result<Array> { Ok(Array::meta_of(rows.leading.clone(), real_dtype(op, x.dtype())?)) };
        return Ok(Normed { sum: like_x(), y: like_x(), mean: stat()?, rstd: stat()? });
    }
    if let Device::Cuda(_) = x.device() {
        let span = (&rows.leading, rows.normalized.numel());
        return cuda::norm(op, (x, more), span, (weight, bias), eps, matches!(center, Center::Mean));
    }
    let x = more.map_or_else(|| Ok(x.clone()), |more| x.add(more))?;
    with_float!(op, x.dtype(), T => {
        type R = <T as Float>::Real;
        let cols = rows.normalized.numel();
        let values = x.values::<T>(op)?;
        let (w, b) = (Param::<R>::weight(op, weight, cols)?, Param::<R>::bias(op, bias, cols)?);
        let mut y = Fresh::<T>::new(x.shape())?;
        let (mut mean, mut rstd) = (Fresh::<R>::new(&rows.leading)?, Fresh::<R>::new(&rows.leading)?);
        rows::forward(&values, (&w, &b), y.slice(), mean.slice(), rstd.slice(), center, R::of(eps));
        drop(values);
        Ok(Normed { sum: x, y: y.finish(), mean: mean.finish(), rstd: rstd.finish() })
    })
}

fn backward(
    op: &'static str,
    (dy, carried): (&Array, Option<&Array>),
    x: &Array,
    rows: &Rows,
    (mean, rstd): (Option<&Array>, &Array),
    weight: Option<&Array>,
) -> Result<(Array, Array, Array)> {
    check_like(op, dy, x)?;
    carried.map_or(Ok(()), |carried| check_like(op, carried, x))?;
    check_stat(op, x, rstd, &rows.leading)?;
    check_param(op, x, weight, &rows.normalized)?;
    let dtype = grad_dtype(x, weight);
    if all_meta(op, x, &[Some(dy), carried, mean, Some(rstd), weight])? {
        let param = || Array::meta_of(rows.normalized.clone(), dtype);
        return Ok((Array::meta_of(x.shape().clone(), x.dtype()), param(), param()));
    }
    if let Device::Cuda(_) = x.device() {
        let (cols, shape) = (rows.normalized.numel(), &rows.normalized);
        let (dx, dw, db) = cuda::norm_grad(op, (dy, x, carried), cols, (mean, rstd), weight, shape)?;
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
        let dx = dx.finish();
        if let Some(carried) = carried {
            dx.binary_in_place(Binary::Add, carried)?;
        }
        Ok((dx, dw.finish().cast(dtype)?, db.finish().cast(dtype)?))
    })
}
