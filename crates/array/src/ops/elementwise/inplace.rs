//! Elementwise operations that overwrite their first operand.

use super::{Binary, Unary, check_divisor, has_binary, has_unary, undefined};
use crate::array::Array;
use crate::cpu::elementwise::lane::Lane;
use crate::cpu::map::{Bound, Kernel1, Kernel2, map2, update1, update2};
use crate::cpu::strided::OperandMut;
use crate::cuda;
use crate::device::Device;
use crate::element::{Element, with_dtype};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::view::broadcast_shapes;

impl Array {
    /// Applies `op` to every element of this view, in place.
    pub fn unary_in_place(&self, op: Unary) -> Result<()> {
        if let Device::Cuda(_) = self.device() {
            has_unary(op, self.dtype())?;
            return cuda::unary_in_place(op, self);
        }
        with_dtype!(self.dtype(), T => {
            T::unary(op, |kernel| update_one::<T>(self, kernel)).unwrap_or_else(|| Err(undefined(op, self.dtype())))
        })
    }

    /// Applies `op` with `y`, broadcast to this view's shape, and keeps the result here.
    pub fn binary_in_place(&self, op: Binary, y: &Array) -> Result<()> {
        check_divisor(op, y)?;
        if let Device::Cuda(_) = self.device() {
            has_binary(op, self.dtype())?;
            return cuda::binary_in_place(op, self, &addend("binary_in_place", self, y)?);
        }
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
    let home = home("binary_into", &[out, x, y])?;
    let alone = !out.shares_storage(x) && !out.shares_storage(y);
    if home == Device::Meta || !alone || !out.is_contiguous() {
        return out.copy_from(&super::binary(op, x, y)?);
    }
    check_divisor(op, y)?;
    y.check_dtype("binary_into", x.dtype())?;
    if let Device::Cuda(_) = home {
        has_binary(op, x.dtype())?;
        return cuda::binary_into(op, x, y, out);
    }
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
    let y = addend(op, x, y)?;
    if x.is_meta() {
        return Ok(());
    }
    let host = y.host(op)?;
    let written = x.write::<T, _>(op, |data| {
        let out = OperandMut::new(data, x.offset(), x.shape(), x.strides());
        out.map(|out| update2(&out, &y.operand::<T>(&host), kernel)).is_some()
    })?;
    x.check_written(op, written)
}

/// `y` broadcast to the shape of `x`, in a storage of its own.
fn addend(op: &'static str, x: &Array, y: &Array) -> Result<Array> {
    y.check_dtype(op, x.dtype())?;
    let refuse = |_| Error::Broadcast { op, from: y.shape().clone(), to: x.shape().clone() };
    let home = home(op, &[x, y])?;
    if home != x.device() {
        return Err(x.mixed_devices(op, y));
    }
    let y = y.broadcast_to(x.shape()).map_err(refuse)?;
    if home != Device::Meta && y.shares_storage(x) { y.copy() } else { Ok(y) }
}
