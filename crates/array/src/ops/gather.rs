//! Gather and scatter along a dim, one position per element.

use super::index::{bits, cells, dense};
use crate::array::Array;
use crate::cpu::gather::{self, Along};
use crate::cpu::gather_rule::{Arithmetic, Replace, Rule, Sum};
use crate::cpu::index::{Source, Steps};
use crate::cuda::{self, FoldOp};
use crate::device::Device;
use crate::dispatch::with_sum;
use crate::element::{Scalar, with_dtype, with_size};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::view::{real_dim, resolve_dim};
use bytemuck::Pod;
use planaria_cuda::LateNote;
use planaria_layout::{DType, Dims, Shape};

/// How [`Array::scatter_reduce`] combines the values that meet in one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean; integers round down.
    Mean,
    /// The largest; NaN wins.
    Max,
    /// The smallest; NaN wins.
    Min,
}

/// Whether the element's own value takes part in a reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnValue {
    /// It does.
    #[default]
    Include,
    /// Only the scattered values count; elements that receive none keep their own.
    Exclude,
}

/// Checked operands of one call: never 0-d, positions as i64.
struct Call {
    op: &'static str,
    /// The array as at least one dim.
    x: Array,
    dim: usize,
    index: Array,
}

impl Call {
    fn new(op: &'static str, x: &Array, dim: i64, index: &Array) -> Result<Call> {
        let d = resolve_dim(op, dim, x.ndim())?;
        if !matches!(index.dtype(), DType::I64 | DType::I32) {
            return Err(Error::DType { op, found: index.dtype(), expected: "i64 or i32 for an index" });
        }
        if index.numel() > 0 {
            if index.ndim().max(1) != x.ndim().max(1) {
                let reason = "the index needs as many dims as the array";
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: x.shape().clone(),
                    rhs: index.shape().clone(),
                    reason,
                });
            }
            check_extents(op, &lift(x)?, d, &lift(index)?)?;
        }
        Ok(Call { op, x: lift(x)?, dim: d, index: lift(&index.cast(DType::I64)?)? })
    }

    /// True when there is nothing to read or write.
    fn is_empty(&self) -> bool {
        self.index.numel() == 0
    }

    /// Runs `work` with the positions in row-major order.
    fn along<R>(&self, work: impl FnOnce(Along<'_>) -> R) -> Result<R> {
        let values = self.index.values::<i64>(self.op)?;
        Ok(work(Along { dim: self.dim, index: &values, extents: self.index.shape() }))
    }

    /// The error for the first position outside the dim.
    fn outside(&self) -> Error {
        let size = self.x.shape()[self.dim];
        let first = self.index.to(Device::Cpu).and_then(|index| index.values::<i64>(self.op)).map(|values| {
            values.iter().copied().find(|&i| usize::try_from(i).map_or(true, |i| i >= size)).unwrap_or(0)
        });
        match first {
            Ok(index) => Error::PositionOutOfRange { op: self.op, index, dim: self.dim, size },
            Err(error) => error,
        }
    }

    fn check_positions(&self) -> Result<()> {
        let size = self.x.shape()[self.dim];
        if self.along(|along| gather::within(along.index, size))? { Ok(()) } else { Err(self.outside()) }
    }

    /// The part of `src` that the index covers, in row-major order.
    fn source(&self, src: &Array) -> Result<Array> {
        src.check_dtype(self.op, self.x.dtype())?;
        let mut src = lift(src)?;
        let fits = src.ndim() == self.index.ndim()
            && src.shape().iter().zip(self.index.shape().iter()).all(|(s, i)| i <= s);
        if !fits {
            let reason = "the index must not be larger than the source in any dim";
            let (lhs, rhs) = (self.index.shape().clone(), src.shape().clone());
            return Err(Error::ShapeMismatch { op: self.op, lhs, rhs, reason });
        }
        for (d, &n) in self.index.shape().iter().enumerate() {
            src = src.sliced(d, 0, n, 1);
        }
        dense(&src, self.index.shape())
    }

    /// A fresh copy of the array with `source` scattered into it.
    fn scattered<T: Pod + Send + Sync, R: Rule<T>>(&self, source: Source<'_, T>) -> Result<Array> {
        if self.x.shape()[self.dim] == 0 {
            return Err(self.outside());
        }
        let x = self.x.contiguous()?;
        let host = x.host(self.op)?;
        let init = cells::<T>(&x, &host);
        let mut fits = Ok(true);
        let out = Array::build_bytes::<T>(x.shape().clone(), x.dtype(), |out| {
            fits = self.along(|along| gather::scatter::<T, R>(Some(init), out, x.shape(), along, source));
        })?;
        if fits? { Ok(out) } else { Err(self.outside()) }
    }

    /// Scatters into the array itself, which is contiguous.
    fn assign<T: Pod + Send + Sync, R: Rule<T>>(&self, source: Source<'_, T>) -> Result<()> {
        self.check_positions()?;
        let (start, len) = (self.x.offset(), self.x.numel());
        self.along(|along| {
            self.x.write::<T, _>(self.op, |data| {
                gather::scatter::<T, R>(None, &mut data[start..start + len], self.x.shape(), along, source);
            })
        })?
    }

    /// Scatters on a device, in place or into a copy.
    fn on_cuda(&self, src: &Array, rule: cuda::Rule, place: Place) -> Result<Array> {
        home(self.op, &[&self.x, &self.index, src])?;
        if self.x.shape()[self.dim] == 0 {
            return Err(self.outside());
        }
        let direct = matches!(place, Place::Here) && self.x.is_contiguous();
        let out = if direct { self.x.clone() } else { self.x.copy()? };
        let src = if src.shares_storage(&out) { src.copy()? } else { src.clone() };
        cuda::put_along(self.op, &out, self.dim, &self.index.contiguous()?, &src, rule)?;
        if let (Place::Here, false) = (place, direct) {
            self.x.copy_from(&out)?;
            return Ok(self.x.clone());
        }
        Ok(out)
    }

    /// Scatters `src`, in place or into a copy.
    fn run<T: Pod + Send + Sync, R: Rule<T>>(&self, src: &Array, place: Place) -> Result<Array> {
        let src = if src.shares_storage(&self.x) { src.copy()? } else { src.clone() };
        let host = src.host(self.op)?;
        let source = Source::Each(cells::<T>(&src, &host));
        self.place::<T, R>(source, place)
    }

    fn place<T: Pod + Send + Sync, R: Rule<T>>(&self, source: Source<'_, T>, place: Place) -> Result<Array> {
        match place {
            Place::Copy => self.scattered::<T, R>(source),
            Place::Here if self.x.is_contiguous() => self.assign::<T, R>(source).map(|()| self.x.clone()),
            Place::Here => {
                self.x.copy_from(&self.scattered::<T, R>(source)?)?;
                Ok(self.x.clone())
            }
        }
    }
}

/// Where a scatter's result goes.
#[derive(Clone, Copy)]
enum Place {
    Copy,
    Here,
}

/// 0-d arrays act as one-dim ones.
fn lift(x: &Array) -> Result<Array> {
    if x.ndim() == 0 { x.unsqueeze(0) } else { Ok(x.clone()) }
}

fn check_extents(op: &'static str, x: &Array, dim: usize, index: &Array) -> Result<()> {
    let fits = (0..x.ndim()).all(|d| d == dim || index.shape()[d] <= x.shape()[d]);
    if fits {
        return Ok(());
    }
    let reason = "the index must not be larger than the array except along the dim";
    Err(Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: index.shape().clone(), reason })
}

fn scatter_with<R>(
    x: &Array,
    op: &'static str,
    dim: i64,
    index: &Array,
    place: Place,
    work: R,
) -> Result<Array>
where
    R: FnOnce(&Call) -> Result<Array>,
{
    let call = Call::new(op, x, dim, index)?;
    let out = if call.is_empty() || x.is_meta() {
        match place {
            Place::Copy => x.copy()?,
            Place::Here => x.clone(),
        }
    } else {
        work(&call)?
    };
    out.reshape(x.shape())
}

impl Array {
    /// `out[i][j] = x[i][index[i][j]]` for `dim` 1, and likewise for other dims: the result has the index's shape.
    /// Positions must lie in `0..size`.
    pub fn gather(&self, dim: i64, index: &Array) -> Result<Array> {
        let call = Call::new("gather", self, dim, index)?;
        if self.is_meta() || index.is_meta() {
            return Ok(Array::meta_of(index.shape().clone(), self.dtype()));
        }
        if call.is_empty() {
            return Array::zeros_on(index.shape(), self.dtype(), self.device());
        }
        if let Device::Cuda(_) = home("gather", &[self, index])? {
            return call.gathered()?.reshape(index.shape());
        }
        let (x, host) = (&call.x, call.x.host("gather")?);
        let mut fits = Ok(true);
        let out = with_size!(self.dtype(), T => Array::build_bytes::<T>(index.shape().clone(), self.dtype(), |out| {
            let view = (x.offset(), &x.shape()[..], x.strides());
            fits = call.along(|along| gather::gather(host.slice::<T>(), view, along, out));
        }))?;
        if fits? { Ok(out) } else { Err(call.outside()) }
    }

    /// A copy with `x[i][index[i][j]] = src[i][j]` for `dim` 1, and likewise for other dims. Of several writes to
    /// one element the last wins.
    pub fn scatter(&self, dim: i64, index: &Array, src: &Array) -> Result<Array> {
        self.scatter_replace(dim, index, src, Place::Copy)
    }

    /// [`Array::scatter`] in place.
    pub fn scatter_assign(&self, dim: i64, index: &Array, src: &Array) -> Result<()> {
        self.scatter_replace(dim, index, src, Place::Here).map(drop)
    }

    fn scatter_replace(&self, dim: i64, index: &Array, src: &Array, place: Place) -> Result<Array> {
        scatter_with(self, "scatter", dim, index, place, |call| {
            let src = call.source(src)?;
            if let Device::Cuda(_) = self.device() {
                return call.on_cuda(&src, cuda::Rule::Replace, place);
            }
            with_size!(self.dtype(), T => call.run::<T, Replace>(&src, place))
        })
    }

    /// [`Array::scatter`] of one number.
    pub fn scatter_scalar(&self, dim: i64, index: &Array, value: impl Into<Scalar>) -> Result<Array> {
        let value = value.into();
        scatter_with(self, "scatter", dim, index, Place::Copy, |call| {
            if let Device::Cuda(_) = self.device() {
                let one = Array::full_on(&[], value, self.dtype(), self.device())?;
                return call.on_cuda(&one, cuda::Rule::Replace, Place::Copy);
            }
            with_size!(self.dtype(), T => {
                call.place::<T, Replace>(Source::One(bits(value, self.dtype())), Place::Copy)
            })
        })
    }

    /// A copy with `src` added at the positions of [`Array::scatter`], in index order.
    pub fn scatter_add(&self, dim: i64, index: &Array, src: &Array) -> Result<Array> {
        self.scatter_sum(dim, index, src, Place::Copy)
    }

    /// [`Array::scatter_add`] in place.
    pub fn scatter_add_assign(&self, dim: i64, index: &Array, src: &Array) -> Result<()> {
        self.scatter_sum(dim, index, src, Place::Here).map(drop)
    }

    fn scatter_sum(&self, dim: i64, index: &Array, src: &Array, place: Place) -> Result<Array> {
        scatter_with(self, "scatter_add", dim, index, place, |call| {
            let src = call.source(src)?;
            if let Device::Cuda(_) = self.device() {
                return call.on_cuda(&src, cuda::Rule::ADD, place);
            }
            with_sum!(self.dtype(), T => call.run::<T, Sum>(&src, place))
        })
    }

    /// A copy in which the values of `src` that meet in one element are reduced, with or without its own value.
    pub fn scatter_reduce(
        &self,
        dim: i64,
        index: &Array,
        src: &Array,
        reduction: ScatterReduce,
        own: OwnValue,
    ) -> Result<Array> {
        scatter_with(self, "scatter_reduce", dim, index, Place::Copy, |call| {
            let src = call.source(src)?;
            if let Device::Cuda(_) = self.device() {
                // A mean of bools is whether any is true, as on the host.
                let mean = reduction == ScatterReduce::Mean && self.dtype() != DType::Bool;
                let include = own == OwnValue::Include;
                let rule = cuda::Rule::Fold { op: reduction.fold(), include, mean };
                return call.on_cuda(&src, rule, Place::Copy);
            }
            with_dtype!(self.dtype(), T => reduce::<T>(call, &src, reduction, own))
        })
    }

    /// Elements of a dim chosen by an index with as many dims, both broadcast except along `dim`; positions may
    /// count from the end.
    pub fn take_along_dim(&self, index: &Array, dim: i64) -> Result<Array> {
        let (x, index, d) = aligned("take_along_dim", self, index, dim)?;
        x.gather(d as i64, &index)
    }

    /// Writes `value`, broadcast to the index's shape, at positions along `dim` chosen by an index with as many
    /// dims, which is broadcast except along `dim`; positions may count from the end.
    pub fn put_along_dim(&self, index: &Array, value: &Array, dim: i64) -> Result<()> {
        let (_, index, d) = aligned("put_along_dim", self, index, dim)?;
        let value = value.broadcast_to(index.shape())?;
        self.scatter_assign(d as i64, &index, &value)
    }
}

fn reduce<T: Arithmetic>(call: &Call, src: &Array, reduction: ScatterReduce, own: OwnValue) -> Result<Array> {
    call.check_positions()?;
    let (start, combine): (T, fn(T, T) -> T) = match reduction {
        ScatterReduce::Sum | ScatterReduce::Mean => (T::default(), T::add),
        ScatterReduce::Prod => (T::one(), T::mul),
        ScatterReduce::Max => (T::lowest(), T::larger),
        ScatterReduce::Min => (T::highest(), T::smaller),
    };
    let x = call.x.values::<T>(call.op)?;
    let (src, cells) = (src.values::<T>(call.op)?, call.cells()?);
    let counts = (reduction == ScatterReduce::Mean).then(|| call.counts(&cells, own));
    Array::build(call.x.shape().clone(), |out: &mut [T]| {
        planaria_cpu::pool::copy_slice(out, &x);
        if own == OwnValue::Exclude {
            cells.iter().for_each(|&at| out[at] = start);
        }
        for (&at, &value) in cells.iter().zip(src.iter()) {
            out[at] = combine(out[at], value);
        }
        for (o, &n) in out.iter_mut().zip(counts.iter().flatten()) {
            *o = o.shared(n.max(1));
        }
    })
}

impl ScatterReduce {
    fn fold(self) -> FoldOp {
        match self {
            ScatterReduce::Sum | ScatterReduce::Mean => FoldOp::Sum,
            ScatterReduce::Prod => FoldOp::Product,
            ScatterReduce::Max => FoldOp::Largest,
            ScatterReduce::Min => FoldOp::Smallest,
        }
    }
}

impl Call {
    /// The elements at the positions, from a device's array.
    fn gathered(&self) -> Result<Array> {
        let (op, dim) = (self.op, self.dim);
        let (extent, step) = (self.x.shape()[dim], self.x.strides()[dim]);
        if extent == 0 {
            return Err(self.outside());
        }
        let mut strides = crate::array::Strides::from_slice(self.x.strides());
        strides[dim] = 0;
        let note = LateNote { op, kind: cuda::late::POSITION, size: extent, dim, entry: 0 };
        let (index, index_strides) = (&self.index, self.index.strides());
        let along = cuda::Along { op, extent, step, index, index_strides, note, wrap: false };
        cuda::take_along(&self.x, &strides, self.index.shape(), &along)
    }

    /// Where each value lands in the row-major array; positions are checked.
    fn cells(&self) -> Result<Vec<usize>> {
        let strides = crate::array::contiguous_strides(self.x.shape());
        let step = strides[self.dim];
        self.along(|along| {
            let mut fixed = strides;
            fixed[self.dim] = 0;
            let mut cells = vec![0; along.index.len()];
            Steps::new(along.extents, &fixed).fill(0, &mut cells);
            cells.iter().zip(along.index).map(|(&at, &i)| at as usize + i as usize * step as usize).collect()
        })
    }

    /// How many values meet in each element.
    fn counts(&self, cells: &[usize], own: OwnValue) -> Vec<u32> {
        let mut counts = vec![u32::from(own == OwnValue::Include); self.x.numel()];
        cells.iter().for_each(|&at| counts[at] += 1);
        counts
    }
}

/// Where each value of a scatter lands in the row-major array; all operands checked.
pub(crate) fn landing_cells(
    op: &'static str,
    x: &Array,
    dim: i64,
    index: &Array,
    src: &Array,
) -> Result<Vec<usize>> {
    let call = Call::new(op, x, dim, index)?;
    if call.is_empty() {
        return Ok(Vec::new());
    }
    call.source(src)?;
    call.check_positions()?;
    call.cells()
}

/// An array and an index broadcast to each other except along `dim`, negative positions resolved.
pub(crate) fn aligned(op: &'static str, x: &Array, index: &Array, dim: i64) -> Result<(Array, Array, usize)> {
    let d = real_dim(op, dim, x.ndim())?;
    let mismatch =
        |reason| Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: index.shape().clone(), reason };
    if !matches!(index.dtype(), DType::I64 | DType::I32) {
        return Err(Error::DType { op, found: index.dtype(), expected: "i64 or i32 for an index" });
    }
    if x.ndim() != index.ndim() {
        return Err(mismatch("the index needs as many dims as the array"));
    }
    let mut common = Dims::new();
    for (&a, &b) in x.shape().iter().zip(index.shape().iter()) {
        common.push(if a == 1 { b } else { a });
    }
    let with = |size: usize| -> Result<Shape> {
        let mut dims = common.clone();
        dims[d] = size;
        Ok(Shape::from_dims(dims)?)
    };
    let (x_shape, index_shape) = (with(x.shape()[d])?, with(index.shape()[d])?);
    let reason = "dims other than the chosen one must be equal or 1";
    let wide = x.broadcast_to(&x_shape).map_err(|_| mismatch(reason))?;
    let index = index.broadcast_to(&index_shape).map_err(|_| mismatch(reason))?;
    if index.is_meta() {
        return Ok((wide, index, d));
    }
    let size = x.shape()[d] as i64;
    let values = index.cast(DType::I64)?;
    if let Device::Cuda(_) = values.device() {
        let zero = Array::scalar(0, DType::I64)?;
        let negative = values.lt(&zero)?;
        let wrapped = values.add(&Array::scalar(size, DType::I64)?)?;
        return Ok((wide, crate::ops::where_(&negative, &wrapped, &values)?, d));
    }
    let values = values.values::<i64>(op)?;
    let index = Array::build(index.shape().clone(), |out: &mut [i64]| {
        for (o, &i) in out.iter_mut().zip(values.iter()) {
            *o = if i < 0 { i.saturating_add(size) } else { i };
        }
    })?;
    Ok((wide, index, d))
}
