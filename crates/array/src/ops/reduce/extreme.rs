//! Largest and smallest elements, and where they are.

use super::{Keep, Over};
use crate::array::Array;
use crate::cpu::reduce::along::pick;
use crate::cpu::reduce::arg::arg;
use crate::cpu::reduce::folds::{End, Extreme, Ordered};
use crate::cpu::reduce::{Plan, reduce};
use crate::cuda::Fold;
use crate::device::Device;
use crate::dispatch::{with_ordered, with_size};
use crate::error::{Error, Result};
use crate::view::resolve_dim;
use planaria_layout::{DType, Shape};

impl Array {
    /// Largest element over any dims; NaN if there is one.
    pub fn amax(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        extreme("amax", self, End::Largest, dims, keep)
    }

    /// Smallest element over any dims; NaN if there is one.
    pub fn amin(&self, dims: &[i64], keep: Keep) -> Result<Array> {
        extreme("amin", self, End::Smallest, dims, keep)
    }

    /// Position of the largest element along a dim, or in the flattened array: the first one among equals, the
    /// first NaN if there is any.
    pub fn argmax(&self, dim: Option<i64>, keep: Keep) -> Result<Array> {
        position("argmax", self, End::Largest, dim, keep)
    }

    /// Position of the smallest element along a dim, or in the flattened array: the first one among equals, the
    /// first NaN if there is any.
    pub fn argmin(&self, dim: Option<i64>, keep: Keep) -> Result<Array> {
        position("argmin", self, End::Smallest, dim, keep)
    }

    /// Largest element along a dim and its position: (values, indices).
    pub fn max(&self, dim: i64, keep: Keep) -> Result<(Array, Array)> {
        let indices = position("max", self, End::Largest, Some(dim), keep)?;
        Ok((self.at_positions("max", dim, &indices)?, indices))
    }

    /// Smallest element along a dim and its position: (values, indices).
    pub fn min(&self, dim: i64, keep: Keep) -> Result<(Array, Array)> {
        let indices = position("min", self, End::Smallest, Some(dim), keep)?;
        Ok((self.at_positions("min", dim, &indices)?, indices))
    }

    /// The element at one known position along a dim for each place of the others.
    pub(crate) fn at_positions(&self, op: &'static str, dim: i64, indices: &Array) -> Result<Array> {
        let shape: Shape = indices.shape().clone();
        if self.is_meta() {
            return Ok(Array::meta_of(shape, self.dtype()));
        }
        if let Device::Cuda(_) = self.device() {
            let there = if indices.ndim() < self.ndim() { indices.unsqueeze(dim)? } else { indices.clone() };
            return self.gather(dim, &there)?.reshape(&shape);
        }
        let (dim, host) = (resolve_dim(op, dim, self.ndim())?, self.host(op)?);
        let positions = indices.values::<i64>(op)?;
        with_size!(self.dtype(), B => Array::build_bytes::<B>(shape, self.dtype(), |out| {
            pick(host.slice(), self.geometry(), dim, &positions, out);
        }))
    }
}

fn extreme(op: &'static str, x: &Array, end: End, dims: &[i64], keep: Keep) -> Result<Array> {
    let over = Over::new(op, x.shape(), dims, keep)?;
    over.check_not_empty(x.shape())?;
    if let Device::Cuda(_) = x.device() {
        if matches!(x.dtype(), DType::F8E4M3 | DType::F8E5M2) {
            return Err(Error::DType { op, found: x.dtype(), expected: "any but 8-bit floats" });
        }
        let fold = if matches!(end, End::Largest) { Fold::Largest } else { Fold::Smallest };
        return over.on_cuda(x, fold, 0)?.cast(x.dtype());
    }
    let wide = x.widened()?;
    let out = with_ordered!(op, wide.dtype(), T => over.run(&wide, T::LOWEST, &mut |data: &[T], plan, out| {
        let fold = Extreme::new(end);
        reduce(&fold, data, plan, &[], out);
        out.iter_mut().for_each(|x| *x = x.restore(fold.0));
    }))?;
    out.cast(x.dtype())
}

fn position(op: &'static str, x: &Array, end: End, dim: Option<i64>, keep: Keep) -> Result<Array> {
    let one = dim.map(|d| [d]);
    let over = Over::new(op, x.shape(), one.as_ref().map_or(&[][..], |d| &d[..]), keep)?;
    over.check_not_empty(x.shape())?;
    if let Device::Cuda(_) = x.device() {
        return over.position_on_cuda(x, end);
    }
    let wide = x.widened()?;
    // A position in the flattened array counts in row-major order, which memory order need not be.
    let in_order = |plan: &Plan| dim.is_some() || (wide.is_contiguous() && plan.is_one_run());
    with_ordered!(op, wide.dtype(), T => over.run_if(&wide, 0i64, &in_order, &mut |data: &[T], plan, out| {
        arg(end, data, plan, out);
    }))
}
