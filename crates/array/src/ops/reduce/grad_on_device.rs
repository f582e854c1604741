//! Gradients of reductions on a device, from simpler operations in the computing type.

use super::{Keep, Over};
use crate::array::Array;
use crate::error::Result;
use crate::ops::fused::real_dtype;
use crate::ops::{concat, where_};
use planaria_layout::DType;

/// What belongs to one reduction: the gradient and the result with the reduced dims as 1.
pub(super) struct Reduced<'a> {
    pub(super) op: &'static str,
    pub(super) x: &'a Array,
    pub(super) dy: Array,
    pub(super) y: Array,
}

fn zero(dtype: DType) -> Result<Array> {
    Array::scalar(0.0, dtype)
}

/// 0 where the condition holds.
fn unless(condition: &Array, value: &Array) -> Result<Array> {
    where_(condition, &zero(value.dtype())?, value)
}

impl Reduced<'_> {
    fn real(&self) -> Result<DType> {
        real_dtype(self.op, self.x.dtype())
    }

    fn wide(&self) -> Result<Array> {
        self.x.cast(self.real()?)
    }

    fn narrow(&self, grad: Array) -> Result<Array> {
        grad.broadcast_to(self.x.shape())?.cast(self.x.dtype())?.contiguous()
    }

    /// dy e^(x - y)
    pub(super) fn logsumexp(&self) -> Result<Array> {
        let real = self.real()?;
        let share = self.wide()?.sub(&self.y.cast(real)?)?.exp()?;
        self.narrow(share.mul(&self.dy.cast(real)?)?)
    }

    /// dy sign(x) (|x| / y)^(p-1), for finite p; 0 where x or y is 0.
    pub(super) fn norm(&self, p: f64) -> Result<Array> {
        let real = self.real()?;
        let (x, y, dy) = (self.wide()?, self.y.cast(real)?, self.dy.cast(real)?);
        if p == 0.0 {
            return Array::zeros_on(self.x.shape(), self.x.dtype(), self.x.device());
        }
        if p == 1.0 {
            return self.narrow(dy.mul(&x.sign()?)?);
        }
        let nothing = y.eq(&zero(real)?)?;
        if p == 2.0 {
            return self.narrow(unless(&nothing, &dy.mul(&x.div(&y)?)?)?);
        }
        let ratio = x.abs()?.cast(DType::F64)?.div(&y.cast(DType::F64)?)?;
        let share = ratio.pow(&Array::scalar(p - 1.0, DType::F64)?)?.cast(real)?;
        let nothing = nothing.logical_or(&x.eq(&zero(real)?)?)?;
        self.narrow(unless(&nothing, &dy.mul(&x.sign()?)?.mul(&share)?)?)
    }

    /// a (x - mean), where `slope` makes a of dy and y in f64.
    pub(super) fn deviation(
        &self,
        over: &Over,
        slope: impl FnOnce(&Array, &Array) -> Result<Array>,
    ) -> Result<Array> {
        let real = self.real()?;
        let dims: Vec<i64> = (0..self.x.ndim()).filter(|&d| over.reduced[d]).map(|d| d as i64).collect();
        let mean = match dims.is_empty() {
            true => self.wide()?,
            false => self.x.cast(DType::F64)?.mean(&dims, Keep::Yes)?.cast(real)?,
        };
        let a = slope(&self.dy.cast(DType::F64)?, &self.y.cast(DType::F64)?)?.cast(real)?;
        self.narrow(self.wide()?.sub(&mean)?.mul(&a)?)
    }

    /// dy shared evenly among the elements of `wide`, a widened form of x, that are y.
    pub(super) fn tied(&self, wide: &Array, over: &Over) -> Result<Array> {
        let real = real_dtype(self.op, wide.dtype())?;
        let y = self.y.cast(wide.dtype())?;
        let mut hit = wide.eq(&y)?;
        if wide.dtype().is_float() {
            hit = hit.logical_or(&wide.is_nan()?.logical_and(&y.is_nan()?)?)?;
        }
        let dims: Vec<i64> = (0..wide.ndim()).filter(|&d| over.reduced[d]).map(|d| d as i64).collect();
        let count = match dims.is_empty() {
            true => hit.cast(DType::F64)?,
            false => hit.cast(DType::F64)?.sum(&dims, Keep::Yes)?,
        };
        let share = self.dy.cast(DType::F64)?.div(&count)?.cast(real)?;
        self.narrow(unless(&hit.logical_not()?, &share.broadcast_to(wide.shape())?)?)
    }
}

/// dy times the product of all other elements of a row, for rows in the last dim: what comes before, times what comes after.
pub(super) fn product_rows(op: &'static str, rows: &Array, dy: &Array) -> Result<Array> {
    let real = real_dtype(op, rows.dtype())?;
    let (wide, n) = (rows.cast(real)?, rows.shape()[rows.ndim() - 1]);
    let mut edge = rows.shape().to_vec();
    edge[rows.ndim() - 1] = 1;
    let ones = Array::full_on(&edge, 1.0, real, rows.device())?;
    // Products of everything before each element.
    let before = |x: &Array| concat(&[&ones, &x.cumprod(-1)?.narrow(-1, 0, n - 1)?], -1);
    let left = before(&wide)?;
    let right = before(&wide.flip(&[-1])?)?.flip(&[-1])?;
    dy.cast(real)?.mul(&left)?.mul(&right)?.cast(rows.dtype())
}
