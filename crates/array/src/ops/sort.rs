//! Sorting, selection and search along a dim. All of it is stable, and NaN counts as the largest value.

use crate::array::Array;
use crate::cpu::reduce::along::gather;
pub use crate::cpu::sort::{Order, Side};
use crate::cpu::sort::{Wanted, groups, positions, prefer_nan, search};
use crate::cuda;
use crate::device::Device;
use crate::element::{with_dtype, with_size};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::ops::reduce::{Keep, Over, scatter_along};
use crate::view::{resolve_dim, shrunk};
use planaria_layout::{DType, Dims, Shape};

/// What [`Array::topk`] selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Which {
    /// The largest, NaN first.
    #[default]
    Largest,
    /// The smallest.
    Smallest,
}

/// The different values of an array, see [`Array::unique`].
#[derive(Clone, Debug)]
pub struct Unique {
    /// The values in ascending order. NaN differs from itself, so each one stands alone.
    pub values: Array,
    /// For each element of the input, in its shape, the position of its value.
    pub inverse: Array,
    /// How often each value occurs.
    pub counts: Array,
}

impl Array {
    /// Sorts along a dim; equal elements keep their order: (values, indices).
    pub fn sort(&self, dim: i64, order: Order) -> Result<(Array, Array)> {
        let n = self.lines("sort", dim)?.n;
        pick("sort", self, dim, order, Wanted::First(n))
    }

    /// The positions that sort along a dim.
    pub fn argsort(&self, dim: i64, order: Order) -> Result<Array> {
        let n = self.lines("argsort", dim)?.n;
        Ok(find("argsort", self, dim, order, Wanted::First(n))?.0)
    }

    /// The `k` largest or smallest elements along a dim, in order, the first among equals: (values, indices).
    pub fn topk(&self, k: usize, dim: i64, which: Which) -> Result<(Array, Array)> {
        let n = self.lines("topk", dim)?.n;
        // A single value has no dim that could shrink to nothing.
        let least = usize::from(self.ndim() == 0);
        if k > n || k < least {
            let what = format!("k = {k} is not in {least}..={n}, the elements of dim {dim}");
            return Err(Error::argument("topk", what));
        }
        let order = if which == Which::Largest { Order::Descending } else { Order::Ascending };
        pick("topk", self, dim, order, Wanted::First(k))
    }

    /// The k-th smallest element along a dim, counted from 1: (values, indices).
    pub fn kthvalue(&self, k: usize, dim: i64, keep: Keep) -> Result<(Array, Array)> {
        let over = Over::new("kthvalue", self.shape(), &[dim], keep)?;
        over.check_not_empty(self.shape())?;
        if k == 0 || k > over.count {
            let what = format!("k = {k} is not in 1..={}", over.count);
            return Err(Error::argument("kthvalue", what));
        }
        let (values, indices) = pick("kthvalue", self, dim, Order::Ascending, Wanted::Only(k - 1))?;
        Ok((values.reshape(&over.shape)?, indices.reshape(&over.shape)?))
    }

    /// The median along a dim, the lower of two, or NaN if there is one: (values, indices).
    pub fn median(&self, dim: i64, keep: Keep) -> Result<(Array, Array)> {
        let over = Over::new("median", self.shape(), &[dim], keep)?;
        over.check_not_empty(self.shape())?;
        let wanted = Wanted::Only((over.count - 1) / 2);
        let (indices, rows) = find("median", self, dim, Order::Ascending, wanted)?;
        if let Device::Cuda(_) = self.device() {
            return median_on_cuda(self, dim, &indices, &over.shape);
        }
        if !self.is_meta() {
            let n = over.count;
            let flat = indices.transpose(dim, -1)?.contiguous()?;
            with_dtype!(self.dtype(), T => {
                let rows = rows.values::<T>("median")?;
                flat.write::<i64, _>("median", |out| prefer_nan(&rows, n, out))?;
            });
            let indices = flat.transpose(dim, -1)?.reshape(&over.shape)?;
            return Ok((self.at_positions("median", dim, &indices)?, indices));
        }
        let meta = |dtype| Array::meta_of(over.shape.clone(), dtype);
        Ok((meta(self.dtype()), meta(DType::I64)))
    }

    /// The different values of the flattened array in ascending order, with where each element went and how often
    /// each value occurs.
    pub fn unique(&self) -> Result<Unique> {
        const OP: &str = "unique";
        let flat = self.reshape(&[self.numel()])?.contiguous()?;
        if let Device::Cuda(_) = self.device() {
            return unique_on_cuda(&flat, self.shape());
        }
        let order = flat.argsort(0, Order::Ascending)?;
        let sorted = order.values::<i64>(OP)?;
        let starts = with_dtype!(self.dtype(), T => groups(&flat.values::<T>(OP)?, &sorted));
        let mut inverse = vec![0i64; sorted.len()];
        let mut counts = vec![0i64; starts.len()];
        for (g, &start) in starts.iter().enumerate() {
            let end = starts.get(g + 1).copied().unwrap_or(sorted.len());
            counts[g] = (end - start) as i64;
            sorted[start..end].iter().for_each(|&at| inverse[at as usize] = g as i64);
        }
        let first: Vec<i64> = starts.iter().map(|&s| sorted[s]).collect();
        let n = sorted.len();
        let host = flat.host(OP)?;
        let values = with_size!(self.dtype(), B => {
            Array::build_bytes::<B>(Shape::new(&[first.len()])?, self.dtype(), |out| {
                let from = host.slice::<B>().get(flat.offset()..).unwrap_or(&[]);
                gather(from, &first, n, first.len(), 1, out);
            })
        })?;
        let inverse = Array::from_slice(&inverse, self.shape())?;
        Ok(Unique { values, inverse, counts: Array::from_slice(&counts, &[starts.len()])? })
    }

    /// Where each of `values` belongs in this array, sorted along its last dim, to keep it sorted. This array has
    /// one dim, or the dims of `values` but for the last.
    pub fn searchsorted(&self, values: &Array, side: Side) -> Result<Array> {
        const OP: &str = "searchsorted";
        values.check_dtype(OP, self.dtype())?;
        let (rows, leading) = (self.shape(), self.ndim().saturating_sub(1));
        let fits = self.ndim() == 1
            || (self.ndim() == values.ndim()
                && self.ndim() > 0
                && rows[..leading] == values.shape()[..leading]);
        if !fits {
            let reason = "the sorted array has one dim, or all but the last dim in common with the values";
            let (lhs, rhs) = (rows.clone(), values.shape().clone());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, reason });
        }
        if self.is_meta() || values.is_meta() {
            return Ok(Array::meta_of(values.shape().clone(), DType::I64));
        }
        let (n, m) = (rows[leading], values.shape().last().copied().unwrap_or(1));
        if let Device::Cuda(_) = home(OP, &[self, values])? {
            let (sorted, wanted) = (self.contiguous()?, values.to(self.device())?.contiguous()?);
            return cuda::search(OP, &sorted, &wanted, (n, m), side == Side::Right);
        }
        with_dtype!(self.dtype(), T => {
            let (sorted, wanted) = (self.values::<T>(OP)?, values.values::<T>(OP)?);
            Array::build(values.shape().clone(), |out: &mut [i64]| search(&sorted, &wanted, n, m, side, out))
        })
    }
}

/// The bucket of each value between ascending one-dim `boundaries`, see [`Array::searchsorted`].
pub fn bucketize(values: &Array, boundaries: &Array, side: Side) -> Result<Array> {
    if boundaries.ndim() != 1 {
        let what = format!("boundaries must have one dim, got shape {}", boundaries.shape());
        return Err(Error::argument("bucketize", what));
    }
    boundaries.searchsorted(values, side)
}

/// Gradient of `sort`: dy goes back to the positions in `indices`.
pub fn sort_grad(dy: &Array, indices: &Array, dim: i64) -> Result<Array> {
    scatter_along("sort_grad", dy, indices, dy.shape(), dim)
}

/// Gradient of `topk`: dy goes back to the positions in `indices`; `shape` is the input's.
pub fn topk_grad(dy: &Array, indices: &Array, shape: &[usize], dim: i64) -> Result<Array> {
    scatter_along("topk_grad", dy, indices, shape, dim)
}

/// Positions of the wanted elements along a dim, and the input with that dim last.
fn find(op: &'static str, x: &Array, dim: i64, order: Order, wanted: Wanted) -> Result<(Array, Array)> {
    let d = resolve_dim(op, dim, x.ndim())?;
    let mut dims = Dims::from_slice(x.shape());
    if let Some(n) = dims.get_mut(d) {
        *n = wanted.per_row();
    }
    if x.is_meta() {
        return Ok((Array::meta_of(shrunk(dims), DType::I64), x.clone()));
    }
    let rows = x.transpose(dim, -1)?.contiguous()?;
    if x.ndim() > 0 {
        let last = x.ndim() - 1;
        dims.swap(d, last);
    }
    let n = rows.shape().last().copied().unwrap_or(1);
    if let Device::Cuda(_) = x.device() {
        return Ok((sorted_on_cuda(op, &rows, n, order, wanted)?.transpose(dim, -1)?.contiguous()?, rows));
    }
    let indices = with_dtype!(x.dtype(), T => {
        let values = rows.values::<T>(op)?;
        Array::build(shrunk(dims), |out: &mut [i64]| positions(&values, n, order, wanted, out))
    })?;
    Ok((indices.transpose(dim, -1)?.contiguous()?, rows))
}

fn sorted_on_cuda(op: &'static str, rows: &Array, n: usize, order: Order, wanted: Wanted) -> Result<Array> {
    let kept = match wanted {
        Wanted::First(k) => k,
        Wanted::Only(k) => k + 1,
    };
    let mut dims = Dims::from_slice(rows.shape());
    if let Some(last) = dims.last_mut() {
        *last = kept;
    }
    let sorted = cuda::sort_rows(op, rows, n.max(1), kept, order == Order::Descending, &shrunk(dims))?;
    match wanted {
        Wanted::First(_) => Ok(sorted),
        Wanted::Only(k) if rows.ndim() > 0 => sorted.narrow(-1, k, 1),
        Wanted::Only(_) => Ok(sorted),
    }
}

/// [`Array::unique`] of a flat device's array: runs of equal values in order.
/// The median at the positions found, or the first NaN of a row where there is one.
fn median_on_cuda(x: &Array, dim: i64, found: &Array, shape: &Shape) -> Result<(Array, Array)> {
    let mut indices = found.reshape(shape)?;
    if x.dtype().is_float() && x.ndim() > 0 {
        let nan = x.is_nan()?;
        let first = nan.cast(DType::I32)?.argmax(Some(dim), Keep::Yes)?.reshape(shape)?;
        let any = nan.any(&[dim], Keep::Yes)?.reshape(shape)?;
        indices = crate::ops::where_(&any, &first, &indices)?;
    }
    Ok((x.at_positions("median", dim, &indices)?, indices))
}

fn unique_on_cuda(flat: &Array, shape: &Shape) -> Result<Unique> {
    let n = flat.numel();
    let order = flat.argsort(0, Order::Ascending)?;
    let sorted = flat.gather(0, &order)?;
    let heads = Array::full_on(&[n], true, DType::Bool, flat.device())?;
    if n > 1 {
        let differs = sorted.narrow(0, 1, n - 1)?.ne(&sorted.narrow(0, 0, n - 1)?)?;
        heads.narrow(0, 1, n - 1)?.copy_from(&differs)?;
    }
    let starts = cuda::Kept::count("unique", &heads)?.positions()?;
    let groups = starts.numel();
    let ends = Array::full_on(&[groups], n as i64, DType::I64, flat.device())?;
    if groups > 1 {
        ends.narrow(0, 0, groups - 1)?.copy_from(&starts.narrow(0, 1, groups - 1)?)?;
    }
    let number = heads.cumsum(0)?.sub(&Array::scalar(1, DType::I64)?)?;
    let inverse = Array::zeros_on(&[n], DType::I64, flat.device())?.scatter(0, &order, &number)?;
    Ok(Unique {
        values: sorted.gather(0, &starts)?,
        inverse: inverse.reshape(shape)?,
        counts: ends.sub(&starts)?,
    })
}

/// The wanted elements along a dim and their positions.
fn pick(op: &'static str, x: &Array, dim: i64, order: Order, wanted: Wanted) -> Result<(Array, Array)> {
    let (indices, _) = find(op, x, dim, order, wanted)?;
    if x.is_meta() {
        return Ok((Array::meta_of(indices.shape().clone(), x.dtype()), indices));
    }
    if let Device::Cuda(_) = x.device() {
        return Ok((x.gather(dim, &indices)?, indices));
    }
    let (flat, lines, m) = (x.contiguous()?, x.lines(op, dim)?, wanted.per_row());
    let (host, at) = (flat.host(op)?, indices.values::<i64>(op)?);
    let values = with_size!(x.dtype(), B => {
        Array::build_bytes::<B>(indices.shape().clone(), x.dtype(), |out| {
            let from = host.slice::<B>().get(flat.offset()..).unwrap_or(&[]);
            gather(from, &at, lines.n, m, lines.inner, out);
        })
    })?;
    Ok((values, indices))
}
