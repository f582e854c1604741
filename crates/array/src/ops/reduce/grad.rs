//! Gradients of reductions. `dy` and `y` may come with the reduced dims as 1 or without them.

use super::grad_on_device::{Reduced, product_rows};
use super::norm::means;
use super::{Keep, Over, wide_values};
use crate::array::Array;
use crate::convert::Number;
use crate::cpu::real::{Float, Real, with_float};
use crate::cpu::reduce::along::{Along, scatter_add};
use crate::cpu::reduce::folds::{End, Extreme, Ordered, Sum, Ties};
use crate::cpu::reduce::grad::{Offset, PowerRatio, Ratio, Shares, Sign, Softmax, Tied, product_row};
use crate::cpu::reduce::reduce;
use crate::cpu::strided::BLOCK;
use crate::cuda;
use crate::device::Device;
use crate::dispatch::with_real;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::view::{inverse, resolve_dim};
use planaria_cpu::pool;
use planaria_layout::{DType, Dims, Shape};
use smallvec::SmallVec;

/// `dy` repeated along the dims that were reduced: a view of the input's shape.
pub fn expand_reduced(dy: &Array, shape: &[usize], dims: &[i64]) -> Result<Array> {
    let over = Over::new("expand_reduced", &Shape::new(shape)?, dims, Keep::No)?;
    over.restore(dy)?.broadcast_to(shape)
}

/// Gradient of `sum`: dx = dy, repeated. A view.
pub fn sum_grad(dy: &Array, shape: &[usize], dims: &[i64]) -> Result<Array> {
    expand_reduced(dy, shape, dims)
}

/// Gradient of `mean`: dx = dy / n, repeated. A view.
pub fn mean_grad(dy: &Array, shape: &[usize], dims: &[i64]) -> Result<Array> {
    let over = Over::new("mean_grad", &Shape::new(shape)?, dims, Keep::No)?;
    let dy = over.restore(dy)?;
    let n = over.count as f64;
    if let Device::Cuda(_) = dy.device() {
        let wide = crate::ops::fused::real_dtype("mean_grad", dy.dtype())?;
        let share = dy.cast(DType::F64)?.div(&Array::scalar(n, DType::F64)?)?;
        return share.cast(wide)?.cast(dy.dtype())?.broadcast_to(shape);
    }
    with_float!("mean_grad", dy.dtype(), T => zip::<T>("mean_grad", &dy, &dy, &|dy, _| dy / n))?
        .cast(dy.dtype())?
        .broadcast_to(shape)
}

/// Gradient of `amax`: dy shared evenly among the elements equal to the largest.
pub fn amax_grad(dy: &Array, x: &Array, y: &Array, dims: &[i64]) -> Result<Array> {
    tied("amax_grad", dy, x, &x.widened()?, y, dims, End::Largest)
}

/// Gradient of `amin`: dy shared evenly among the elements equal to the smallest.
pub fn amin_grad(dy: &Array, x: &Array, y: &Array, dims: &[i64]) -> Result<Array> {
    tied("amin_grad", dy, x, &x.widened()?, y, dims, End::Smallest)
}

/// Gradient of `max` along a dim: dy goes to the position in `indices`. `shape` is the input's.
pub fn max_grad(dy: &Array, indices: &Array, shape: &[usize], dim: i64) -> Result<Array> {
    position_grad("max_grad", dy, indices, shape, dim)
}

/// Gradient of `min` along a dim: dy goes to the position in `indices`. `shape` is the input's.
pub fn min_grad(dy: &Array, indices: &Array, shape: &[usize], dim: i64) -> Result<Array> {
    position_grad("min_grad", dy, indices, shape, dim)
}

/// Gradient of `logsumexp`: dx = dy e^(x - y).
pub fn logsumexp_grad(dy: &Array, x: &Array, y: &Array, dims: &[i64]) -> Result<Array> {
    let over = Over::new("logsumexp_grad", x.shape(), dims, Keep::Yes)?;
    let (dy, y) = (over.restore(dy)?, over.restore(y)?);
    if let Device::Cuda(_) = x.device() {
        return Reduced { op: "logsumexp_grad", x, dy, y }.logsumexp();
    }
    with_float!("logsumexp_grad", x.dtype(), T => shares::<T>("logsumexp_grad", x, &dy, &y, &Softmax))
}

/// Gradient of `prod`: dx = dy times the product of all other elements, right also where elements are 0.
pub fn prod_grad(dy: &Array, x: &Array, dims: &[i64]) -> Result<Array> {
    let over = Over::new("prod_grad", x.shape(), dims, Keep::Yes)?;
    let dy = over.restore(dy)?;
    dy.check_dtype("prod_grad", x.dtype())?;
    if x.is_meta() || dy.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    // Reduced dims last, one row per result.
    let kept = (0..x.ndim()).filter(|&d| !over.reduced[d]);
    let order: SmallVec<[usize; 6]> = kept.chain((0..x.ndim()).filter(|&d| over.reduced[d])).collect();
    let forward: SmallVec<[i64; 6]> = order.iter().map(|&d| d as i64).collect();
    let rows = x.permute(&forward)?;
    if let Device::Cuda(_) = x.device() {
        let first = over.reduced.iter().filter(|reduced| !**reduced).count();
        let shape = rows.shape().clone();
        let lines = [shape[..first].iter().product(), over.count];
        if x.numel() == 0 {
            return Array::zeros_on(x.shape(), x.dtype(), x.device());
        }
        let dx = product_rows("prod_grad", &rows.reshape(&lines)?, &dy.reshape(&[lines[0], 1])?)?;
        return dx.reshape(&shape)?.permute(&inverse(&order))?.contiguous();
    }
    let dx = with_float!("prod_grad", x.dtype(), T => {
        let (rows, dy) = (rows.values::<T>("prod_grad")?, wide_values::<<T as Float>::Real>("prod_grad", &dy)?);
        let n = over.count.max(1);
        let shape = order.iter().map(|&d| x.shape()[d]).collect::<Dims>();
        Array::build(Shape::from_dims(shape)?, |out: &mut [T]| {
            pool::for_chunks_mut(out, n, 3 * size_of::<T>(), |at, piece| {
                let (mut wide, mut narrow) = (Vec::new(), Vec::new());
                for (i, row) in piece.chunks_mut(n).enumerate() {
                    let first = at + i * n;
                    let x = T::widen(&rows[first..first + n], &mut wide);
                    T::narrow(row, &mut narrow, |out| product_row(x, dy[first / n], out));
                }
            });
        })
    })?;
    dx.permute(&inverse(&order))?.contiguous()
}

/// Gradient of `norm`: dx = dy sign(x) (|x| / y)^(p-1); 0 where x or y is 0, and for p = 0. For p = ±inf dy is
/// shared evenly among the elements whose |x| is y.
pub fn norm_grad(dy: &Array, x: &Array, y: &Array, p: f64, dims: &[i64]) -> Result<Array> {
    const OP: &str = "norm_grad";
    let over = Over::new(OP, x.shape(), dims, Keep::Yes)?;
    let (a, b) = (over.restore(dy)?, over.restore(y)?);
    if p.is_infinite() {
        let end = if p > 0.0 { End::Largest } else { End::Smallest };
        let share = tied(OP, dy, x, &x.widened()?.abs()?, y, dims, end)?;
        return share.mul(&x.sign()?);
    }
    if let Device::Cuda(_) = x.device() {
        return Reduced { op: OP, x, dy: a, y: b }.norm(p);
    }
    with_float!(OP, x.dtype(), T => {
        if p == 0.0 {
            Array::zeros_of(x.shape().clone(), x.dtype())
        } else if p == 1.0 {
            shares::<T>(OP, x, &a, &b, &Sign)
        } else if p == 2.0 {
            shares::<T>(OP, x, &a, &b, &Ratio)
        } else {
            shares::<T>(OP, x, &a, &b, &PowerRatio(p))
        }
    })
}

/// Gradient of `var`: dx = dy · 2 (x - mean) / (n - correction).
pub fn var_grad(dy: &Array, x: &Array, dims: &[i64], correction: f64) -> Result<Array> {
    let over = Over::new("var_grad", x.shape(), dims, Keep::Yes)?;
    let dy = over.restore(dy)?;
    let scale = 2.0 / (over.count as f64 - correction).max(0.0);
    if let Device::Cuda(_) = x.device() {
        let of = Reduced { op: "var_grad", x, y: dy.clone(), dy };
        return of.deviation(&over, |dy, _| dy.mul(&Array::scalar(scale, DType::F64)?));
    }
    with_float!("var_grad", x.dtype(), T => {
        let a = zip::<T>("var_grad", &dy, &dy, &|dy, _| dy * scale)?;
        deviations::<T>("var_grad", x, &over, &a)
    })
}

/// Gradient of `std`: dx = dy (x - mean) / (y (n - correction)), 0 where y is 0.
pub fn std_grad(dy: &Array, x: &Array, y: &Array, dims: &[i64], correction: f64) -> Result<Array> {
    let over = Over::new("std_grad", x.shape(), dims, Keep::Yes)?;
    let (dy, y) = (over.restore(dy)?, over.restore(y)?);
    let freedom = (over.count as f64 - correction).max(0.0);
    if let Device::Cuda(_) = x.device() {
        let zero = Array::scalar(0.0, DType::F64)?;
        return Reduced { op: "std_grad", x, dy, y }.deviation(&over, |dy, y| {
            let slope = dy.div(&y.mul(&Array::scalar(freedom, DType::F64)?)?)?;
            crate::ops::where_(&y.eq(&zero)?, &zero, &slope)
        });
    }
    with_float!("std_grad", x.dtype(), T => {
        let slope = |dy: f64, y: f64| if y == 0.0 { 0.0 } else { dy / (y * freedom) };
        let a = zip::<T>("std_grad", &dy, &y, &slope)?;
        deviations::<T>("std_grad", x, &over, &a)
    })
}

/// a (x - mean)
fn deviations<T: Float<Real: Number>>(op: &'static str, x: &Array, over: &Over, a: &Array) -> Result<Array> {
    let wide = x.widened()?;
    let mean = with_real!(op, wide.dtype(), W => over.run(&wide, f64::NAN, &mut |data: &[W], plan, out| {
        out.copy_from_slice(&means(data, plan, over.count, out.len()));
    }))?;
    shares::<T>(op, x, a, &mean, &Offset)
}

/// Shares `dy` evenly among the elements of `wide`, a widened form of `x`, that attain the extreme `y`.
fn tied(
    op: &'static str,
    dy: &Array,
    x: &Array,
    wide: &Array,
    y: &Array,
    dims: &[i64],
    end: End,
) -> Result<Array> {
    let over = Over::new(op, x.shape(), dims, Keep::Yes)?;
    over.check_not_empty(x.shape())?;
    let (dy, y) = (over.restore(dy)?, over.restore(y)?);
    if let Device::Cuda(_) = x.device() {
        return Reduced { op, x, dy, y }.tied(wide, &over);
    }
    let ties = with_real!(op, wide.dtype(), T => over.run(wide, T::ONE, &mut |data: &[T], plan, out| {
        let (fold, mut value) = (Extreme::new(end), vec![T::ZERO; out.len()]);
        reduce(&fold, data, plan, &[], &mut value);
        value.iter_mut().for_each(|x| *x = x.restore(fold.0));
        reduce(&Sum::<T, T, _>::of(Ties), data, plan, &value, out);
    }))?;
    with_float!(op, wide.dtype(), T => {
        let a = zip::<T>(op, &dy, &ties, &|dy, count| dy / count)?;
        shares::<T>(op, wide, &a, &y, &Tied)
    })?
    .cast(x.dtype())
}

/// A small array computed from two of the same shape, in the computing type of T.
fn zip<T: Float<Real: Number>>(
    op: &'static str,
    a: &Array,
    b: &Array,
    f: &dyn Fn(f64, f64) -> f64,
) -> Result<Array> {
    if a.is_meta() || b.is_meta() {
        return Ok(Array::meta_of(a.shape().clone(), T::Real::DTYPE));
    }
    let (left, right) = (wide_values::<T::Real>(op, a)?, wide_values::<T::Real>(op, b)?);
    Array::build(a.shape().clone(), |out: &mut [T::Real]| {
        for (o, (l, r)) in out.iter_mut().zip(left.iter().zip(&right)) {
            *o = T::Real::of(f(l.f64(), r.f64()));
        }
    })
}

/// Each element's share, with `a` and `b` broadcast to the shape of `x`.
fn shares<T: Float<Real: Number>>(
    op: &'static str,
    x: &Array,
    a: &Array,
    b: &Array,
    share: &dyn Shares<T::Real>,
) -> Result<Array> {
    let spread = |p: &Array| p.cast(T::Real::DTYPE)?.broadcast_to(x.shape());
    let (a, b) = (spread(a)?, spread(b)?);
    if x.is_meta() || a.is_meta() || b.is_meta() {
        return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
    }
    let (host, host_a, host_b) = (x.host(op)?, a.host(op)?, b.host(op)?);
    let (x_in, a, b) = (x.operand::<T>(&host), a.operand::<T::Real>(&host_a), b.operand::<T::Real>(&host_b));
    Array::build(x.shape().clone(), |out: &mut [T]| {
        pool::for_chunks_mut(out, BLOCK, 4 * size_of::<T>(), |at, piece| {
            let zeros = || vec![T::Real::ZERO; BLOCK];
            let (mut xs, mut a_s, mut b_s) = (vec![T::default(); BLOCK], zeros(), zeros());
            let (mut wide, mut narrow) = (Vec::new(), Vec::new());
            for (i, block) in piece.chunks_mut(BLOCK).enumerate() {
                let first = at + i * BLOCK;
                let range = first..first + block.len();
                let x = T::widen(x_in.block(range.clone(), &mut xs), &mut wide);
                let (a, b) = (a.block(range.clone(), &mut a_s), b.block(range, &mut b_s));
                T::narrow(block, &mut narrow, |out| share.apply(x, a, b, out));
            }
        });
    })
}

fn scatter_on_cuda(op: &'static str, dy: &Array, indices: &Array, shape: &Shape, d: usize) -> Result<Array> {
    indices.check_dtype(op, DType::I64)?;
    crate::ops::fused::real_dtype(op, dy.dtype())?;
    let out = Array::zeros_on(shape, dy.dtype(), dy.device())?;
    let size = shape.get(d).copied().unwrap_or(1);
    let error = Error::IndexOutOfRange { index: 0, position: 0, dim: d, size };
    cuda::check_within(indices, None, cuda::late::note_of(&error))?;
    out.scatter_add_assign(d as i64, indices, dy)?;
    Ok(out)
}

/// Sends each element of `dy` to its position along a dim of an array of zeros with the given shape.
fn position_grad(op: &'static str, dy: &Array, indices: &Array, shape: &[usize], dim: i64) -> Result<Array> {
    let over = Over::new(op, &Shape::new(shape)?, &[dim], Keep::Yes)?;
    scatter_along(op, &over.restore(dy)?, &over.restore(indices)?, shape, dim)
}

/// dx with `dx[.., indices[.., k, ..], ..] += dy[.., k, ..]` along one dim; zeros elsewhere.
pub(crate) fn scatter_along(
    op: &'static str,
    dy: &Array,
    indices: &Array,
    shape: &[usize],
    dim: i64,
) -> Result<Array> {
    let shape = Shape::new(shape)?;
    let d = resolve_dim(op, dim, shape.ndim())?;
    let agree = |s: &Shape| s.ndim() == shape.ndim() && (0..s.ndim()).all(|i| i == d || s[i] == shape[i]);
    if dy.shape() != indices.shape() || !agree(dy.shape()) {
        let reason = "dy and indices have the input's shape except along the dim";
        return Err(Error::ShapeMismatch {
            op,
            lhs: dy.shape().clone(),
            rhs: indices.shape().clone(),
            reason,
        });
    }
    if dy.is_meta() || indices.is_meta() {
        return Ok(Array::meta_of(shape, dy.dtype()));
    }
    let along = match shape.ndim() {
        0 => Along { from: 1, to: 1, inner: 1 },
        _ => Along { from: dy.shape()[d], to: shape[d], inner: shape[d + 1..].iter().product() },
    };
    if let Device::Cuda(_) = dy.device() {
        return scatter_on_cuda(op, dy, indices, &shape, d);
    }
    let index = indices.values::<i64>(op)?;
    if let Some(&index) = index.iter().find(|&&i| i < 0 || i >= along.to as i64) {
        return Err(Error::IndexOutOfRange { index, position: 0, dim: d, size: along.to });
    }
    with_float!(op, dy.dtype(), T => {
        let dy = dy.values::<T>(op)?;
        Array::build(shape.clone(), |out: &mut [T]| scatter_add(&dy, &index, along, out))
    })
}
