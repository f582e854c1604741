//! Index arrays combined: the shape of the result, and where in memory each of its rows lies.

use super::resolve::{Entry, Placed, Resolved};
use crate::array::{Array, Strides};
use crate::cpu::index::{Part, Plan, offsets};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::ops::kept_positions;
use crate::view::{broadcast_shapes, wrap_index};
use planaria_layout::{DType, Dims, Shape};
use smallvec::SmallVec;

/// One index array over the view.
struct Column {
    /// I64 values: positions along `dim`, or ready offsets where `dim` is none.
    values: Array,
    dim: Option<usize>,
    /// Dims of the view it covers.
    covered: std::ops::Range<usize>,
    source: usize,
    position: usize,
}

/// A view seen as outer dims, positions given by index arrays, and inner dims; in that order they make the
/// result.
pub(crate) struct Lookup {
    view: Array,
    columns: SmallVec<[Column; 4]>,
    /// Extents of the index arrays, broadcast together.
    picks: Shape,
    outer: SmallVec<[usize; 6]>,
    inner: SmallVec<[usize; 6]>,
    shape: Shape,
    /// False when a 0-d mask leaves nothing to write.
    any: bool,
    /// A mask that has elements keeps none.
    masked_out: bool,
}

impl Lookup {
    /// Checks that the index arrays go together. Positions are checked by [`Lookup::offsets`].
    pub(crate) fn new(resolved: &Resolved) -> Result<Lookup> {
        let Resolved { view, placed } = resolved;
        let mut picks = Shape::default();
        let (mut columns, mut any, mut masked_out) = (SmallVec::new(), true, false);
        for p in placed {
            let values = match &p.entry {
                Entry::Mask(mask) if mask.ndim() == 0 => {
                    any &= mask.item()?.as_bool();
                    continue;
                }
                Entry::Mask(mask) => {
                    let kept = positions_kept(view, mask, p.dim)?;
                    masked_out |= kept.numel() == 0 && mask.numel() > 0;
                    kept
                }
                Entry::Take(array) => taken(view, array)?,
                Entry::Flag(keep) => Array::zeros_on(&[usize::from(*keep)], DType::I64, view.device())?,
            };
            picks = broadcast_shapes("index", &picks, values.shape())
                .map_err(|_| Error::IndexBroadcast { lhs: picks.clone(), rhs: values.shape().clone() })?;
            let dim = matches!(p.entry, Entry::Take(_)).then_some(p.dim);
            let covered = p.dim..p.dim + p.entry.span();
            columns.push(Column { values, dim, covered, source: p.source, position: p.position });
        }
        let (outer, inner) = split_dims(view.ndim(), placed);
        let size = |&d: &usize| view.shape()[d];
        let dims: Dims =
            outer.iter().map(size).chain(picks.iter().copied()).chain(inner.iter().map(size)).collect();
        let shape = Shape::from_dims(dims)?;
        let lookup = Lookup { view: view.clone(), columns, picks, outer, inner, shape, any, masked_out };
        lookup.check_empty()?;
        lookup.check_masked_out()?;
        Ok(lookup)
    }

    /// The shape of what is read or written.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn view(&self) -> &Array {
        &self.view
    }

    /// True when there is nothing to read or write.
    pub(crate) fn is_empty(&self) -> bool {
        self.shape.numel() == 0 || !self.any
    }

    /// A dim without positions cannot be indexed, even where another empty dim would leave nothing to read.
    fn check_empty(&self) -> Result<()> {
        for column in &self.columns {
            let Some(dim) = column.dim else { continue };
            if self.view.shape()[dim] == 0 && self.picks.numel() > 0 && !self.view.is_meta() {
                let index = first_value(&column.values)?;
                return Err(Error::IndexOutOfRange {
                    index,
                    position: column.position,
                    dim: column.source,
                    size: 0,
                });
            }
        }
        Ok(())
    }

    /// Whether positions exist must not depend on what a mask happens to hold: they are checked also where it leaves nothing.
    fn check_masked_out(&self) -> Result<()> {
        let unseen = self.masked_out || !self.any;
        match if unseen && !self.view.is_meta() { self.first_outside()? } else { None } {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Distance from the view's first element to each picked row, every position checked.
    pub(crate) fn offsets(&self, op: &'static str) -> Result<Array> {
        let mut broadcast: SmallVec<[Array; 4]> = SmallVec::new();
        for column in &self.columns {
            broadcast.push(column.values.broadcast_to(&self.picks)?);
        }
        let hosts = broadcast.iter().map(|a| a.host(op)).collect::<Result<SmallVec<[_; 4]>>>()?;
        let parts: SmallVec<[Part<'_>; 4]> = self
            .columns
            .iter()
            .zip(broadcast.iter().zip(&hosts))
            .map(|(column, (array, host))| {
                let (size, stride) =
                    column.dim.map_or((0, None), |d| (self.view.shape()[d], Some(self.view.strides()[d])));
                Part { values: array.operand::<i64>(host), size, stride }
            })
            .collect();
        let mut fits = true;
        let out = Array::build(self.picks.clone(), |out: &mut [i64]| fits = offsets(&parts, out))?;
        let changed = || Error::argument("index", "positions changed while they were read");
        if fits { Ok(out) } else { Err(self.first_outside()?.unwrap_or_else(changed)) }
    }

    /// For devices: the view with its indexed dims in front.
    pub(crate) fn front(&self) -> Result<Array> {
        let indexed = (0..self.view.ndim()).filter(|d| !self.outer.contains(d) && !self.inner.contains(d));
        let order: Vec<i64> =
            indexed.chain(self.outer.iter().chain(&self.inner).copied()).map(|d| d as i64).collect();
        self.view.permute(&order)
    }

    /// For devices: the index arrays over rows of [`Lookup::front`], how many entries they have, and how many elements a
    /// row has.
    pub(crate) fn columns(&self) -> Result<(Vec<cuda::Column>, usize, usize)> {
        let mut columns = Vec::new();
        let mut stride = 1;
        for column in self.columns.iter().rev() {
            let extent = self.view.shape()[column.covered.clone()].iter().product();
            let values = column.values.broadcast_to(&self.picks)?.contiguous()?;
            let (entry, dim) = (column.position, column.source);
            columns.push(cuda::Column { values, extent, stride, entry, dim });
            stride *= extent;
        }
        columns.reverse();
        let rest = self.outer.iter().chain(&self.inner).map(|&d| self.view.shape()[d]).product();
        Ok((columns, self.picks.numel(), rest))
    }

    /// For devices: the shape of what is read with the index arrays' dims in front.
    pub(crate) fn front_shape(&self) -> Result<Shape> {
        let rest = self.outer.iter().chain(&self.inner).map(|&d| self.view.shape()[d]);
        Ok(Shape::from_dims(self.picks.iter().copied().chain(rest).collect())?)
    }

    /// For devices: what has the shape of the result, seen with the index arrays' dims in front.
    pub(crate) fn to_front(&self, value: &Array) -> Result<Array> {
        let (outer, picks) = (self.outer.len() as i64, self.picks.ndim() as i64);
        let order = (outer..outer + picks).chain(0..outer).chain(outer + picks..value.ndim() as i64);
        value.permute(&order.collect::<Vec<_>>())
    }

    /// For devices: undoes [`Lookup::to_front`].
    pub(crate) fn undo_front(&self, value: &Array) -> Result<Array> {
        let (outer, picks) = (self.outer.len() as i64, self.picks.ndim() as i64);
        let order = (picks..picks + outer).chain(0..picks).chain(outer + picks..value.ndim() as i64);
        value.permute(&order.collect::<Vec<_>>())?.contiguous()
    }

    /// For devices: one index array of positions, with its strides over the result, and the view's.
    pub(crate) fn alone(&self) -> Result<Option<LoneColumn>> {
        let [column] = &self.columns[..] else { return Ok(None) };
        let Some(dim) = column.dim else { return Ok(None) };
        let zeros = |n: usize| std::iter::repeat_n(0, n);
        let step = |&d: &usize| self.view.strides()[d];
        let (outer, inner, picks) = (self.outer.len(), self.inner.len(), self.picks.ndim());
        let values = column.values.broadcast_to(&self.picks)?;
        let index_strides =
            zeros(outer).chain(values.strides().iter().copied()).chain(zeros(inner)).collect();
        let strides =
            self.outer.iter().map(step).chain(zeros(picks)).chain(self.inner.iter().map(step)).collect();
        let (extent, step) = (self.view.shape()[dim], self.view.strides()[dim]);
        let (entry, dim) = (column.position, column.source);
        Ok(Some(LoneColumn { values, index_strides, strides, extent, step, entry, dim }))
    }

    /// The error for the first position outside its dim.
    fn first_outside(&self) -> Result<Option<Error>> {
        for column in &self.columns {
            let Some(dim) = column.dim else { continue };
            let size = self.view.shape()[dim];
            for &index in column.values.to(Device::Cpu)?.values::<i64>("index")?.iter() {
                if wrap_index(index, size).is_none() {
                    let (position, dim) = (column.position, column.source);
                    return Ok(Some(Error::IndexOutOfRange { index, position, dim, size }));
                }
            }
        }
        Ok(None)
    }

    /// What kernels need; `offsets` are those of [`Lookup::offsets`].
    pub(crate) fn plan<'a>(&self, offsets: &'a [i64]) -> Plan<'a> {
        let part = |dims: &[usize]| -> (Dims, Strides) {
            let shape = dims.iter().map(|&d| self.view.shape()[d]).collect();
            (shape, dims.iter().map(|&d| self.view.strides()[d]).collect())
        };
        let ((outer, outer_strides), (inner, inner_strides)) = (part(&self.outer), part(&self.inner));
        Plan::new(self.view.offset(), (&outer, &outer_strides), offsets, (&inner, &inner_strides))
    }
}

/// One index array over a view of any strides.
pub(crate) struct LoneColumn {
    pub(crate) values: Array,
    pub(crate) index_strides: Strides,
    pub(crate) strides: Strides,
    pub(crate) extent: usize,
    pub(crate) step: isize,
    pub(crate) entry: usize,
    pub(crate) dim: usize,
}

fn first_value(values: &Array) -> Result<i64> {
    Ok(values.to(Device::Cpu)?.values::<i64>("index")?.first().copied().unwrap_or(0))
}

/// Positions along a dim, where the view lives.
fn taken(view: &Array, array: &Array) -> Result<Array> {
    if view.is_meta() || array.is_meta() {
        return array.cast(DType::I64);
    }
    home("index", &[view, array])?;
    array.to(view.device())?.cast(DType::I64)
}

/// What a mask keeps: offsets in the view on the host, positions among the dims it covers on a device.
fn positions_kept(view: &Array, mask: &Array, dim: usize) -> Result<Array> {
    if let (Device::Cuda(_), false) = (view.device(), mask.is_meta()) {
        home("index", &[view, mask])?;
        return cuda::Kept::count("index", mask)?.positions();
    }
    kept_positions(mask, &view.strides()[dim..dim + mask.ndim()])
}

/// Dims before and after the place where the index arrays' dims go: where the first array stands if they stand
/// next to each other, else in front.
fn split_dims(ndim: usize, placed: &[Placed]) -> (SmallVec<[usize; 6]>, SmallVec<[usize; 6]>) {
    let mut covered: SmallVec<[bool; 6]> = SmallVec::from_elem(false, ndim);
    let mut adjacent = true;
    let mut next = None;
    for p in placed.iter().filter(|p| p.entry.span() > 0) {
        adjacent &= next.is_none_or(|n| n == p.dim);
        covered[p.dim..p.dim + p.entry.span()].fill(true);
        next = Some(p.dim + p.entry.span());
    }
    let first = if adjacent { covered.iter().position(|&c| c).unwrap_or(0) } else { 0 };
    let free = |range: std::ops::Range<usize>| range.filter(|&d| !covered[d]).collect();
    (free(0..first), free(first..ndim))
}
