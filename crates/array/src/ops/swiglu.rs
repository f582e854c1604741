//! Gated linear units: swiglu and its relatives, from two arrays or one packed array, with gradients.

use super::fused::{Fresh, all_meta, check_like, check_shape, real_dtype};
use crate::array::Array;
use crate::cpu::real::with_float;
use crate::cpu::swiglu as kernel;
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use planaria_layout::{Dims, Shape};

pub use crate::cpu::swiglu::Gate;

/// Gradients of [`glu`].
#[derive(Clone, Debug)]
pub struct GluGrad {
    /// Gradient of the gate.
    pub gate: Array,
    /// Gradient of the other factor.
    pub up: Array,
}

/// `silu(gate) * up`.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    glu(gate, up, Gate::Silu)
}

/// Gradients of [`swiglu`].
pub fn swiglu_grad(dy: &Array, gate: &Array, up: &Array) -> Result<GluGrad> {
    glu_grad(dy, gate, up, Gate::Silu)
}

/// `silu(x[.., ..n]) * x[.., n..]` with `n` half the last dim.
pub fn swiglu_packed(x: &Array) -> Result<Array> {
    glu_packed(x, Gate::Silu)
}

/// Gradient of [`swiglu_packed`].
pub fn swiglu_packed_grad(dy: &Array, x: &Array) -> Result<Array> {
    glu_packed_grad(dy, x, Gate::Silu)
}

/// `act(gate) * up` for arrays of one shape.
pub fn glu(gate: &Array, up: &Array, act: Gate) -> Result<Array> {
    let op = "glu";
    real_dtype(op, gate.dtype())?;
    check_like(op, up, gate)?;
    if all_meta(op, gate, &[Some(up)])? {
        return Ok(Array::meta_of(gate.shape().clone(), gate.dtype()));
    }
    if let Device::Cuda(_) = gate.device() {
        let (gate, up, cols) = (gate.contiguous()?, up.contiguous()?, last(gate));
        return cuda::gated(op, &gate, Some(&up), (cols, gate.shape()), act);
    }
    with_float!(op, gate.dtype(), T => {
        let (gate_values, up) = (gate.values::<T>(op)?, up.values::<T>(op)?);
        Array::build(gate.shape().clone(), |y: &mut [T]| kernel::forward(&gate_values, &up, y, act))
    })
}

/// Gradients of [`glu`]: `dgate = dy * up * act'(gate)`, `dup = dy * act(gate)`.
pub fn glu_grad(dy: &Array, gate: &Array, up: &Array, act: Gate) -> Result<GluGrad> {
    let op = "glu_grad";
    real_dtype(op, gate.dtype())?;
    check_like(op, up, gate)?;
    check_like(op, dy, gate)?;
    if all_meta(op, gate, &[Some(up), Some(dy)])? {
        let like = Array::meta_of(gate.shape().clone(), gate.dtype());
        return Ok(GluGrad { gate: like.clone(), up: like });
    }
    if let Device::Cuda(_) = gate.device() {
        let (dy, gate, up) = (dy.contiguous()?, gate.contiguous()?, up.contiguous()?);
        let (dgate, dup) = cuda::gated_grad(op, &dy, &gate, Some(&up), last(&gate), act)?;
        return Ok(GluGrad { up: dup.unwrap_or_else(|| dgate.clone()), gate: dgate });
    }
    with_float!(op, gate.dtype(), T => {
        let dy = dy.values::<T>(op)?;
        let (gate_values, up) = (gate.values::<T>(op)?, up.values::<T>(op)?);
        let (mut dgate, mut dup) = (Fresh::<T>::new(gate.shape())?, Fresh::<T>::new(gate.shape())?);
        kernel::backward(&dy, &gate_values, &up, (dgate.slice(), dup.slice()), act);
        Ok(GluGrad { gate: dgate.finish(), up: dup.finish() })
    })
}

/// [`glu`] of the two halves of the last dim, gate first.
pub fn glu_packed(x: &Array, act: Gate) -> Result<Array> {
    let op = "glu_packed";
    let (shape, half) = halved(op, x)?;
    if x.is_meta() {
        return Ok(Array::meta_of(shape, x.dtype()));
    }
    if let Device::Cuda(_) = x.device() {
        return cuda::gated(op, &x.contiguous()?, None, (half, &shape), act);
    }
    with_float!(op, x.dtype(), T => {
        let values = x.values::<T>(op)?;
        Array::build(shape, |y: &mut [T]| kernel::packed_forward(&values, y, half, act))
    })
}

/// Gradient of the input of [`glu_packed`].
pub fn glu_packed_grad(dy: &Array, x: &Array, act: Gate) -> Result<Array> {
    let op = "glu_packed_grad";
    let (shape, half) = halved(op, x)?;
    dy.check_dtype(op, x.dtype())?;
    check_shape(op, dy, &shape, "the gradient has half the last dim of the input")?;
    if all_meta(op, x, &[Some(dy)])? {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    if let Device::Cuda(_) = x.device() {
        return Ok(cuda::gated_grad(op, &dy.contiguous()?, &x.contiguous()?, None, half, act)?.0);
    }
    with_float!(op, x.dtype(), T => {
        let (dy, values) = (dy.values::<T>(op)?, x.values::<T>(op)?);
        Array::build(x.shape().clone(), |dx: &mut [T]| kernel::packed_backward(&dy, &values, dx, half, act))
    })
}

/// The length of a row.
fn last(x: &Array) -> usize {
    x.shape().last().copied().unwrap_or(1)
}

/// The shape with half the last dim, and that half.
fn halved(op: &'static str, x: &Array) -> Result<(Shape, usize)> {
    real_dtype(op, x.dtype())?;
    let mut dims = Dims::from_slice(x.shape());
    match dims.last_mut() {
        Some(last) if last.is_multiple_of(2) => {
            *last /= 2;
            let half = *last;
            Ok((Shape::from_dims(dims)?, half))
        }
        _ => Err(Error::argument(op, format!("the last dim must be even, got shape {}", x.shape()))),
    }
}
