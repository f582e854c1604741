//! Index arrays combined: the shape of the result, and where in memory each of its rows lies.

use super::resolve::{Entry, Placed, Resolved};
use crate::array::{Array, Strides};
use crate::cpu::index::{Part, Plan, offsets};
use crate::error::{Error, Result};
use crate::ops::kept_positions;
use crate::view::{broadcast_shapes, wrap_index};
use planaria_layout::{DType, Dims, Shape};
use smallvec::SmallVec;

/// One index array over the view.
struct Column {
    /// I64 values: positions along `dim`, or ready offsets where `dim` is none.
    values: Array,
    dim: Option<usize>,
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
}

impl Lookup {
    /// Checks that the index arrays go together. Positions are checked by [`Lookup::offsets`].
    pub(crate) fn new(resolved: &Resolved) -> Result<Lookup> {
        let Resolved { view, placed } = resolved;
        let mut picks = Shape::default();
        let (mut columns, mut any) = (SmallVec::new(), true);
        for p in placed {
            let values = match &p.entry {
                Entry::Mask(mask) if mask.ndim() == 0 => {
                    any &= mask.item()?.as_bool();
                    continue;
                }
                Entry::Mask(mask) => kept_positions(mask, &view.strides()[p.dim..p.dim + mask.ndim()])?,
                Entry::Take(array) => array.cast(DType::I64)?,
                Entry::Flag(keep) => Array::zeros(&[usize::from(*keep)], DType::I64)?,
            };
            picks = broadcast_shapes("index", &picks, values.shape())
                .map_err(|_| Error::IndexBroadcast { lhs: picks.clone(), rhs: values.shape().clone() })?;
            let dim = matches!(p.entry, Entry::Take(_)).then_some(p.dim);
            columns.push(Column { values, dim, source: p.source, position: p.position });
        }
        let (outer, inner) = split_dims(view.ndim(), placed);
        let size = |&d: &usize| view.shape()[d];
        let dims: Dims =
            outer.iter().map(size).chain(picks.iter().copied()).chain(inner.iter().map(size)).collect();
        let shape = Shape::from_dims(dims)?;
        let lookup = Lookup { view: view.clone(), columns, picks, outer, inner, shape, any };
        lookup.check_empty()?;
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
        if fits { Ok(out) } else { Err(self.first_outside()?) }
    }

    /// The error for the first position outside its dim.
    fn first_outside(&self) -> Result<Error> {
        for column in &self.columns {
            let Some(dim) = column.dim else { continue };
            let size = self.view.shape()[dim];
            for &index in column.values.values::<i64>("index")?.iter() {
                if wrap_index(index, size).is_none() {
                    let (position, dim) = (column.position, column.source);
                    return Ok(Error::IndexOutOfRange { index, position, dim, size });
                }
            }
        }
        Ok(Error::argument("index", "positions changed while they were read"))
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

fn first_value(values: &Array) -> Result<i64> {
    Ok(values.values::<i64>("index")?.first().copied().unwrap_or(0))
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
