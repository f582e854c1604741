//! Running sums, products and extremes along a dim, and their gradients.

use crate::array::Array;
use crate::cpu::reduce::along::gather;
use crate::cpu::reduce::folds::End;
use crate::cpu::scan::{self, Direction, Lines, Running, scan};
use crate::cuda;
use crate::device::Device;
use crate::dispatch::{with_ordered, with_real, with_size};
use crate::error::{Error, Result};
use crate::ops::concat;
use crate::ops::fused::real_dtype;
use crate::ops::reduce::scatter_along;
use crate::view::resolve_dim;
use planaria_layout::DType;
use std::ops::{Add, Mul};

impl Array {
    /// Extents around a dim, checked.
    pub(crate) fn lines(&self, op: &'static str, dim: i64) -> Result<Lines> {
        let d = resolve_dim(op, dim, self.ndim())?;
        let n = self.shape().get(d).copied().unwrap_or(1);
        Ok(Lines { n, inner: self.shape().iter().skip(d + 1).product() })
    }

    /// Running sum along a dim. Integers and bools give i64, wrapping; floats are added in f64.
    pub fn cumsum(&self, dim: i64) -> Result<Array> {
        sums("cumsum", self, dim, Direction::Forward)
    }

    /// Running product along a dim. Integers and bools give i64, wrapping.
    pub fn cumprod(&self, dim: i64) -> Result<Array> {
        let lines = self.lines("cumprod", dim)?;
        if self.is_meta() {
            return Ok(Array::meta_of(self.shape().clone(), summed(self.dtype())));
        }
        if let Device::Cuda(_) = self.device() {
            return on_cuda("cumprod", self, dim, Direction::Forward, cuda::Scan::Product);
        }
        if !self.dtype().is_float() {
            return run(
                "cumprod",
                &self.cast(DType::I64)?,
                lines,
                Direction::Forward,
                Running::<i64, i64, _>::new(1, i64::wrapping_mul),
            );
        }
        let x = self.widened()?;
        with_real!("cumprod", x.dtype(), T => {
            run("cumprod", &x, lines, Direction::Forward, Running::<T, f64, _>::new(1.0, f64::mul))
        })?
        .cast(self.dtype())
    }

    /// Largest element so far along a dim and its position, the last one among equals: (values, indices).
    /// From the first NaN on everything is NaN.
    pub fn cummax(&self, dim: i64) -> Result<(Array, Array)> {
        extremes("cummax", self, End::Largest, dim)
    }

    /// Smallest element so far along a dim and its position, the last one among equals: (values, indices).
    /// From the first NaN on everything is NaN.
    pub fn cummin(&self, dim: i64) -> Result<(Array, Array)> {
        extremes("cummin", self, End::Smallest, dim)
    }

    /// Running ln Σ e^x of floats along a dim, without overflow.
    pub fn logcumsumexp(&self, dim: i64) -> Result<Array> {
        let (lines, x) = (self.lines("logcumsumexp", dim)?, self.widened()?);
        if let Device::Cuda(_) = self.device() {
            let wide = real_dtype("logcumsumexp", x.dtype())?;
            let x = x.cast(DType::F64)?.contiguous()?;
            let sums = cuda::running_logs("logcumsumexp", &x, (lines.n, lines.inner))?;
            return sums.cast(wide)?.cast(self.dtype());
        }
        with_real!("logcumsumexp", x.dtype(), T => match self.is_meta() {
            true => Ok(Array::meta_of(self.shape().clone(), self.dtype())),
            false => run("logcumsumexp", &x, lines, Direction::Forward, Running::<T, f64, _>::new(f64::NEG_INFINITY, scan::join_logs)),
        })?
        .cast(self.dtype())
    }
}

/// Gradient of `cumsum`: the running sum of dy from the end.
pub fn cumsum_grad(dy: &Array, dim: i64) -> Result<Array> {
    sums("cumsum_grad", dy, dim, Direction::Backward)
}

/// Gradient of `cumprod`: dx_k = Σ_{i≥k} dy_i Π_{j≤i, j≠k} x_j, without dividing by x.
pub fn cumprod_grad(dy: &Array, x: &Array, dim: i64) -> Result<Array> {
    const OP: &str = "cumprod_grad";
    same_shapes(OP, dy, x)?;
    let lines = x.lines(OP, dim)?;
    if x.is_meta() || dy.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    let (wide, dy) = (x.widened()?, dy.widened()?);
    if let Device::Cuda(_) = x.device() {
        real_dtype(OP, wide.dtype())?;
        return cumprod_grad_on_device(&dy, &wide, dim)?.cast(x.dtype());
    }
    with_real!(OP, wide.dtype(), T => {
        let (x, dy) = (wide.values::<T>(OP)?, dy.values::<T>(OP)?);
        Array::build(wide.shape().clone(), |out: &mut [T]| scan::product_grad(&dy, &x, lines, out))
    })?
    .cast(x.dtype())
}

/// The same from other operations: dx_k is the product of all before k times s_k = dy_k + x_{k+1} s_{k+1}, whose steps are put
/// together by twos, by fours and so on.
fn cumprod_grad_on_device(dy: &Array, x: &Array, dim: i64) -> Result<Array> {
    let n = x.lines("cumprod_grad", dim)?.n;
    if x.ndim() == 0 || n < 2 || x.numel() == 0 {
        return dy.copy();
    }
    let part = |x: &Array, from: usize, len: usize| x.narrow(dim, from, len);
    let one = Array::full_on(part(x, 0, 1)?.shape(), 1.0, x.dtype(), x.device())?;
    let before = concat(&[&one, &part(x, 0, n - 1)?], dim)?.cumprod(dim)?;
    let mut factors = concat(&[&part(x, 1, n - 1)?, &one], dim)?;
    let mut sums = dy.copy()?;
    let mut step = 1;
    while step < n {
        let (near, rest) = (part(&factors, 0, n - step)?, part(&sums, step, n - step)?);
        let added = part(&sums, 0, n - step)?.add(&near.mul(&rest)?)?;
        let wider = near.mul(&part(&factors, step, n - step)?)?;
        sums = concat(&[&added, &part(&sums, n - step, step)?], dim)?;
        factors = concat(&[&wider, &part(&factors, n - step, step)?], dim)?;
        step *= 2;
    }
    before.mul(&sums)
}

/// Gradient of `logcumsumexp`: dx_k = Σ_{i≥k} dy_i e^(x_k - y_i).
pub fn logcumsumexp_grad(dy: &Array, x: &Array, y: &Array, dim: i64) -> Result<Array> {
    const OP: &str = "logcumsumexp_grad";
    same_shapes(OP, dy, x)?;
    same_shapes(OP, y, x)?;
    let lines = x.lines(OP, dim)?;
    if x.is_meta() || dy.is_meta() || y.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    let (wide, dy, y) = (x.widened()?, dy.widened()?, y.widened()?);
    if let Device::Cuda(_) = x.device() {
        return logcumsumexp_grad_on_device(&dy, &wide, &y, dim)?.cast(x.dtype());
    }
    with_real!(OP, wide.dtype(), T => {
        let (x, dy, y) = (wide.values::<T>(OP)?, dy.values::<T>(OP)?, y.values::<T>(OP)?);
        Array::build(wide.shape().clone(), |out: &mut [T]| scan::logsumexp_grad(&dy, &x, &y, lines, out))
    })?
    .cast(x.dtype())
}

/// The same from other operations: gradients above and below 0 are summed apart, as logarithms, from the last on.
fn logcumsumexp_grad_on_device(dy: &Array, x: &Array, y: &Array, dim: i64) -> Result<Array> {
    let part = |dy: Array| -> Result<Array> {
        // A gradient of 0 or below has a logarithm of -inf or none.
        let log = dy.maximum(&Array::scalar(0.0, dy.dtype())?)?.ln()?;
        let later = log.sub(y)?.flip(&[dim])?.logcumsumexp(dim)?.flip(&[dim])?;
        later.add(x)?.exp()
    };
    part(dy.clone())?.sub(&part(dy.neg()?)?)
}

/// Gradient of `cummax` and `cummin`: dy is added at the positions in `indices`.
pub fn cummax_grad(dy: &Array, indices: &Array, dim: i64) -> Result<Array> {
    scatter_along("cummax_grad", dy, indices, dy.shape(), dim)
}

/// The dtype of sums of a dtype.
fn summed(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

fn same_shapes(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    a.check_dtype(op, b.dtype())?;
    if a.shape() == b.shape() {
        return Ok(());
    }
    let reason = "a gradient has the shape of its input";
    Err(Error::ShapeMismatch { op, lhs: a.shape().clone(), rhs: b.shape().clone(), reason })
}

fn sums(op: &'static str, x: &Array, dim: i64, direction: Direction) -> Result<Array> {
    let lines = x.lines(op, dim)?;
    if x.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), summed(x.dtype())));
    }
    if let Device::Cuda(_) = x.device() {
        return on_cuda(op, x, dim, direction, cuda::Scan::Sum);
    }
    if !x.dtype().is_float() {
        return run(
            op,
            &x.cast(DType::I64)?,
            lines,
            direction,
            Running::<i64, i64, _>::new(0, i64::wrapping_add),
        );
    }
    let wide = x.widened()?;
    with_real!(op, wide.dtype(), T => run(op, &wide, lines, direction, Running::<T, f64, _>::new(0.0, f64::add)))?
        .cast(x.dtype())
}

/// Running sums and products of a device's array: its dim last, from the end by turning it round.
fn on_cuda(op: &'static str, x: &Array, dim: i64, direction: Direction, scan: cuda::Scan) -> Result<Array> {
    if x.dtype().is_float() {
        real_dtype(op, x.dtype())?;
    }
    let wide = if x.dtype().is_float() { x.widened()? } else { x.cast(DType::I64)? };
    let wide = if x.ndim() == 0 { wide.reshape(&[1])? } else { wide };
    let turned =
        |x: &Array| if matches!(direction, Direction::Backward) { x.flip(&[-1]) } else { Ok(x.clone()) };
    let rows = turned(&wide.transpose(if x.ndim() == 0 { 0 } else { dim }, -1)?)?.contiguous()?;
    let run = turned(&cuda::scan(op, &rows, scan)?)?;
    run.transpose(if x.ndim() == 0 { 0 } else { dim }, -1)?
        .contiguous()?
        .reshape(x.shape())?
        .cast(summed(x.dtype()))
}

fn run<S>(op: &'static str, x: &Array, lines: Lines, direction: Direction, s: S) -> Result<Array>
where
    S: scan::Scan<In: crate::Element, Out: crate::Element>,
{
    let values = x.values::<S::In>(op)?;
    Array::build(x.shape().clone(), |out: &mut [S::Out]| scan(s, &values, lines, direction, out))
}

fn extremes(op: &'static str, x: &Array, end: End, dim: i64) -> Result<(Array, Array)> {
    let lines = x.lines(op, dim)?;
    if x.is_meta() {
        let meta = |dtype| Array::meta_of(x.shape().clone(), dtype);
        return Ok((meta(x.dtype()), meta(DType::I64)));
    }
    let flat = x.contiguous()?;
    if let Device::Cuda(_) = x.device() {
        if matches!(x.dtype(), DType::F8E4M3 | DType::F8E5M2) {
            return Err(Error::DType { op, found: x.dtype(), expected: "any but 8-bit floats" });
        }
        let at = cuda::running_extreme(op, &flat, (lines.n, lines.inner), matches!(end, End::Largest))?;
        return Ok((x.gather(dim, &at)?, at));
    }
    // Bools have the bytes of u8 but not its dtype.
    let wide = if x.dtype() == DType::Bool { flat.cast(DType::U8)? } else { flat.widened()? };
    let indices = with_ordered!(op, wide.dtype(), T => {
        run(op, &wide, lines, Direction::Forward, scan::Extreme::<T>::new(end))
    })?;
    let (host, at) = (flat.host(op)?, indices.values::<i64>(op)?);
    let values = with_size!(x.dtype(), B => Array::build_bytes::<B>(x.shape().clone(), x.dtype(), |out| {
        let from = host.slice::<B>().get(flat.offset()..).unwrap_or(&[]);
        gather(from, &at, lines.n, lines.n, lines.inner, out);
    }))?;
    Ok((values, indices))
}
