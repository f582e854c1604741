//! Elementwise operations that overwrite their first operand.

use super::{Binary, Unary, check_divisor, undefined};
use crate::array::Array;
use crate::cpu::elementwise::lane::Lane;
use crate::cpu::map::{Bound, Kernel1, Kernel2, map2, update1, update2};
use crate::cpu::strided::OperandMut;
use crate::element::{Element, with_dtype};
use crate::error::{Error, Result};
use crate::view::broadcast_shapes;

impl Array {
    /// Applies `op` to every element of this view, in place.
    pub fn unary_in_place(&self, op: Unary) -> Result<()> {
        with_dtype!(self.dtype(), T => {
            T::unary(op, |kernel| update_one::<T>(self, kernel)).unwrap_or_else(|| Err(undefined(op, self.dtype())))
        })
    }

    /// Applies `op` with `y`, broadcast to this view's shape, and keeps the result here.
    pub fn binary_in_place(&self, op: Binary, y: &Array) -> Result<()> {
        check_divisor(op, y)?;
        with_dtype!(self.dtype(), T => {
            T::binary(op, |kernel| update_two::<T>(self, y, kernel)).unwrap_or_else(|| Err(undefined(op, self.dtype())))
        })
    }
}

/// Writes `op(x, y)` over the elements of `out`, whose shape the two broadcast to.
pub fn binary_into(op: Binary, x: &Array, y: &Array, out: &Array) -> Result<()> {
    let shape = broadcast_shapes("binary_into", x.shape(), y.shape())?;
    if &shape != out.shape() {
        let reason = "the output must have the shape of the result";
        return Err(Error::ShapeMismatch { op: "binary_into", lhs: shape, rhs: out.shape().clone(), reason });
    }
    out.check_dtype("binary_into", x.dtype())?;
    let alone = !out.shares_storage(x) && !out.shares_storage(y) && x.device() == y.device();
    if out.is_meta() || !alone || !out.is_contiguous() {
        return out.copy_from(&super::binary(op, x, y)?);
    }
    check_divisor(op, y)?;
    y.check_dtype("binary_into", x.dtype())?;
    with_dtype!(x.dtype(), T => T::binary(op, |kernel| {
        let (x, y) = (x.broadcast_to(&shape)?, y.broadcast_to(&shape)?);
        let (hx, hy) = (x.host("binary_into")?, y.host("binary_into")?);
        out.write::<T, _>("binary_into", |data| {
            let data = &mut data[out.offset()..out.offset() + out.numel()];
            map2(Bound::Memory, &x.operand::<T>(&hx), &y.operand::<T>(&hy), data, kernel);
        })
    }).unwrap_or_else(|| Err(undefined(op, x.dtype()))))
}

fn update_one<T: Element>(x: &Array, kernel: Kernel1<'_, T, T>) -> Result<()> {
    if x.is_meta() {
        return Ok(());
    }
    let written = x.write::<T, _>("unary_in_place", |data| {
        OperandMut::new(data, x.offset(), x.shape(), x.strides()).map(|out| update1(&out, kernel)).is_some()
    })?;
    x.check_written("unary_in_place", written)
}

fn update_two<T: Element>(x: &Array, y: &Array, kernel: Kernel2<'_, T, T, T>) -> Result<()> {
    let op = "binary_in_place";
    y.check_dtype(op, x.dtype())?;
    let refuse = |_| Error::Broadcast { op, from: y.shape().clone(), to: x.shape().clone() };
    let mut y = y.broadcast_to(x.shape()).map_err(refuse)?;
    if x.device() != y.device() {
        return Err(x.mixed_devices(op));
    }
    if x.is_meta() {
        return Ok(());
    }
    if y.shares_storage(x) {
        y = y.copy()?;
    }
    let host = y.host(op)?;
    let written = x.write::<T, _>(op, |data| {
        let out = OperandMut::new(data, x.offset(), x.shape(), x.strides());
        out.map(|out| update2(&out, &y.operand::<T>(&host), kernel)).is_some()
    })?;
    x.check_written(op, written)
}
