//! Index expressions over tensors, resolved into a view and the index tensors that remain.

use crate::error::Result;
use crate::tensor::Tensor;
use planaria_array::{Array, DType, Error, Shape, slice_bounds};
use smallvec::SmallVec;

/// One entry of an index expression over tensors: the language of arrays, with tensors in place of index arrays. They
/// may be cut themselves.
pub type Index = planaria_array::Index<Tensor>;

/// Dims of the indexed tensor that the entry covers.
fn consumed(index: &Index) -> usize {
    match index {
        Index::Int(_) | Index::Slice { .. } | Index::Take(_) => 1,
        Index::Mask(mask) => mask.ndim(),
        Index::NewAxis | Index::Ellipsis | Index::Bool(_) => 0,
    }
}

impl From<Tensor> for Index {
    fn from(tensor: Tensor) -> Index {
        if tensor.dtype() == DType::Bool { Index::Mask(tensor) } else { Index::Take(tensor) }
    }
}
impl From<&Tensor> for Index {
    fn from(tensor: &Tensor) -> Index {
        tensor.clone().into()
    }
}
/// One step of basic indexing, made plain for a known shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// One position; the dim disappears.
    At(usize),
    /// Positions `start, start + step, ...` of a dim, all inside it; a negative step walks backwards.
    Range { start: usize, len: usize, step: isize },
    /// A new dim of one element.
    New,
}

impl Entry {
    /// The whole of a dim.
    pub(crate) fn whole(size: usize) -> Entry {
        Entry::Range { start: 0, len: size, step: 1 }
    }

    /// Part of a dim: `start..start + len`.
    pub(crate) fn part(start: usize, len: usize) -> Entry {
        Entry::Range { start, len, step: 1 }
    }

    /// True for the whole of a dim of this size.
    pub(crate) fn is_whole(&self, size: usize) -> bool {
        *self == Entry::whole(size)
    }
}

/// Basic indexing, one entry per dim of the source and per new dim.
pub(crate) type Entries = SmallVec<[Entry; 6]>;

/// An expression made plain: a view, and index tensors over its dims.
pub(crate) struct Resolved {
    pub(crate) entries: Entries,
    /// The first dim of the view that each index tensor covers.
    pub(crate) placed: Vec<(usize, Tensor)>,
}

impl Resolved {
    /// True when the view is the tensor itself.
    pub(crate) fn is_plain(&self, shape: &Shape) -> bool {
        let whole = |(entry, &size): (&Entry, &usize)| entry.is_whole(size);
        self.entries.len() == shape.ndim() && self.entries.iter().zip(shape.iter()).all(whole)
    }
}

/// Makes ints, slices, new axes and ellipses plain; places masks and index tensors. Index tensors without dims are
/// read, because which position they name decides the view. Collective for those.
pub(crate) fn resolve(x: &Tensor, expression: &[Index]) -> Result<Resolved> {
    let shape = x.shape();
    let used: usize = expression.iter().map(consumed).sum();
    let Some(spare) = shape.ndim().checked_sub(used) else {
        return Err(Error::TooManyIndices { given: used, shape: shape.clone() }.into());
    };
    let mut state = EntryWalk { x, shape, entries: Entries::new(), dim: 0, source: 0, placed: Vec::new() };
    // Several ellipses: the first takes what is left.
    let mut spare = Some(spare);
    for (position, index) in expression.iter().enumerate() {
        match index {
            Index::Int(at) => state.select(*at, position)?,
            Index::Slice { start, stop, step } => state.slice(*start, *stop, step.unwrap_or(1), position)?,
            Index::NewAxis => state.insert(),
            Index::Ellipsis => state.skip(spare.take().unwrap_or(0)),
            Index::Bool(keep) => state.flag(*keep)?,
            Index::Mask(mask) => state.mask(mask, position)?,
            Index::Take(tensor) => state.take(tensor, position)?,
        }
    }
    let rest = shape.ndim() - state.source;
    state.skip(rest);
    Ok(Resolved { entries: state.entries, placed: state.placed })
}

struct EntryWalk<'a> {
    x: &'a Tensor,
    shape: &'a Shape,
    entries: Entries,
    /// Next dim of the view.
    dim: usize,
    /// Next dim of the tensor.
    source: usize,
    placed: Vec<(usize, Tensor)>,
}

impl EntryWalk<'_> {
    fn skip(&mut self, dims: usize) {
        for _ in 0..dims {
            self.entries.push(Entry::whole(self.shape[self.source]));
            self.dim += 1;
            self.source += 1;
        }
    }

    fn select(&mut self, index: i64, position: usize) -> Result<()> {
        let (dim, size) = (self.source, self.shape[self.source]);
        let at = if index < 0 { index.checked_add_unsigned(size as u64) } else { Some(index) };
        match at.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < size) {
            None => Err(Error::IndexOutOfRange { index, position, dim, size }.into()),
            Some(at) => {
                self.entries.push(Entry::At(at));
                self.source += 1;
                Ok(())
            }
        }
    }

    fn slice(&mut self, start: Option<i64>, stop: Option<i64>, step: i64, position: usize) -> Result<()> {
        let entry = range(self.shape[self.source], start, stop, step).ok_or(Error::Step { position })?;
        self.entries.push(entry);
        self.dim += 1;
        self.source += 1;
        Ok(())
    }

    fn insert(&mut self) {
        self.entries.push(Entry::New);
        self.dim += 1;
    }

    /// A new dim whose only position is taken once or not at all.
    fn flag(&mut self, keep: bool) -> Result<()> {
        let none = self.x.near(&Array::zeros(&[usize::from(keep)], DType::I64)?)?;
        self.placed.push((self.dim, none));
        self.insert();
        Ok(())
    }

    fn mask(&mut self, mask: &Tensor, position: usize) -> Result<()> {
        check_mask(mask, position, self.shape, self.source)?;
        if mask.ndim() == 0 {
            return self.flag(mask.whole()?.item()?.as_bool());
        }
        self.placed.push((self.dim, mask.clone()));
        self.skip(mask.ndim());
        Ok(())
    }

    fn take(&mut self, tensor: &Tensor, position: usize) -> Result<()> {
        check_index_dtype(tensor, position)?;
        if tensor.ndim() > 0 {
            self.placed.push((self.dim, tensor.clone()));
            self.skip(1);
            return Ok(());
        }
        // Without bytes it does not matter which position it is.
        let at = if tensor.local().is_meta() { 0 } else { position_of(tensor)? };
        self.select(at, position)
    }
}

/// The position that an index tensor without dims names. Collective.
fn position_of(tensor: &Tensor) -> Result<i64> {
    Ok(i64::try_from(tensor.whole()?.item()?.as_int()).unwrap_or(i64::MAX))
}

/// What `start:stop:step` takes of a dim; `None` for a step of 0.
pub(crate) fn range(size: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<Entry> {
    let (start, len) = slice_bounds(size, start, stop, step)?;
    // One position has no direction.
    let step = if len > 1 { step as isize } else { 1 };
    Some(Entry::Range { start, len, step })
}

pub(crate) fn check_mask(mask: &Tensor, position: usize, shape: &Shape, dim: usize) -> Result<()> {
    if mask.dtype() != DType::Bool {
        return Err(Error::IndexDType { position, found: mask.dtype() }.into());
    }
    match shape.get(dim..dim + mask.ndim()) {
        Some(covered) if covered == &mask.shape()[..] => Ok(()),
        Some(_) => {
            Err(Error::MaskShape { mask: mask.shape().clone(), position, dim, shape: shape.clone() }.into())
        }
        None => Err(Error::TooManyIndices { given: dim + mask.ndim(), shape: shape.clone() }.into()),
    }
}

pub(crate) fn check_index_dtype(tensor: &Tensor, position: usize) -> Result<()> {
    if tensor.dtype().is_int() {
        Ok(())
    } else {
        Err(Error::IndexDType { position, found: tensor.dtype() }.into())
    }
}
