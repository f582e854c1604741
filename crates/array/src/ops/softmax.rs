//! Softmax and log-softmax along any dim, and their gradients.

use super::fused::{all_meta, check_like, real_dtype};
use crate::array::Array;
use crate::cpu::real::with_float;
use crate::cpu::softmax::{self, SoftmaxKind, Split};
use crate::cuda;
use crate::device::Device;
use crate::error::Result;
use crate::view::resolve_dim;

impl Array {
    /// `exp(x) / sum(exp(x))` along `dim`. A row of only -inf gives NaN.
    pub fn softmax(&self, dim: i64) -> Result<Array> {
        forward("softmax", SoftmaxKind::Softmax, self, dim)
    }

    /// `x - log(sum(exp(x)))` along `dim`, without overflow.
    pub fn log_softmax(&self, dim: i64) -> Result<Array> {
        forward("log_softmax", SoftmaxKind::LogSoftmax, self, dim)
    }
}

/// Gradient of the input of [`Array::softmax`] from its output `y`: `dx = y * (dy - sum(dy * y))`.
pub fn softmax_grad(dy: &Array, y: &Array, dim: i64) -> Result<Array> {
    backward("softmax_grad", SoftmaxKind::Softmax, dy, y, dim)
}

/// Gradient of the input of [`Array::log_softmax`] from its output `y`: `dx = dy - exp(y) * sum(dy)`.
pub fn log_softmax_grad(dy: &Array, y: &Array, dim: i64) -> Result<Array> {
    backward("log_softmax_grad", SoftmaxKind::LogSoftmax, dy, y, dim)
}

/// The dim last, contiguous; done twice it is undone.
fn last(x: &Array, dim: i64) -> Result<Array> {
    if x.ndim() == 0 { Ok(x.clone()) } else { x.transpose(dim, -1)?.contiguous() }
}

fn forward(op: &'static str, kind: SoftmaxKind, x: &Array, dim: i64) -> Result<Array> {
    let split = Split::new(x.shape(), resolve_dim(op, dim, x.ndim())?);
    real_dtype(op, x.dtype())?;
    if x.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    if let Device::Cuda(_) = x.device() {
        let rows = last(x, dim)?;
        return last(&cuda::softmax(op, &rows, split.len, kind == SoftmaxKind::LogSoftmax)?, dim)?
            .contiguous();
    }
    with_float!(op, x.dtype(), T => {
        let values = x.values::<T>(op)?;
        Array::build(x.shape().clone(), |y: &mut [T]| softmax::forward(kind, &values, y, split))
    })
}

fn backward(op: &'static str, kind: SoftmaxKind, dy: &Array, y: &Array, dim: i64) -> Result<Array> {
    let split = Split::new(y.shape(), resolve_dim(op, dim, y.ndim())?);
    check_like(op, dy, y)?;
    real_dtype(op, y.dtype())?;
    if all_meta(op, dy, &[Some(y)])? {
        return Ok(Array::meta_of(y.shape().clone(), y.dtype()));
    }
    if let Device::Cuda(_) = y.device() {
        let (dy, y) = (last(dy, dim)?, last(y, dim)?);
        return last(&cuda::softmax_grad(op, &dy, &y, split.len, kind == SoftmaxKind::LogSoftmax)?, dim)?
            .contiguous();
    }
    with_float!(op, y.dtype(), T => {
        let (dy, y_values) = (dy.values::<T>(op)?, y.values::<T>(op)?);
        Array::build(y.shape().clone(), |dx: &mut [T]| softmax::backward(kind, &dy, &y_values, dx, split))
    })
}
