//! From an index expression to a view and the index arrays that remain.

use super::Index;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::view::{slice_bounds, wrap_index};
use planaria_layout::DType;

/// What is left of an entry once basic indexing is done.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Positions along one dim of the view.
    Take(Array),
    /// A mask over one or more dims.
    Mask(Array),
    /// A dim of size 1 that is kept or dropped.
    Flag(bool),
}

impl Entry {
    /// Dims of the view the entry covers.
    pub(crate) fn span(&self) -> usize {
        match self {
            Entry::Mask(mask) => mask.ndim(),
            _ => 1,
        }
    }
}

/// An index array and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) entry: Entry,
    /// First dim of the view it applies to.
    pub(crate) dim: usize,
    /// First dim of the array as the caller sees it.
    pub(crate) source: usize,
    /// Its place in the expression, for messages.
    pub(crate) position: usize,
}

/// A view with the basic entries applied, and the advanced ones in order of dims.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) view: Array,
    pub(crate) placed: Vec<Placed>,
}

/// Applies ints, slices, new axes and ellipses; places masks and index arrays. No element is touched.
pub(crate) fn resolve(x: &Array, expression: &[Index]) -> Result<Resolved> {
    let used: usize = expression.iter().map(consumed).sum();
    let spare = x
        .ndim()
        .checked_sub(used)
        .ok_or_else(|| Error::TooManyIndices { given: used, shape: x.shape().clone() })?;
    let mut state = ViewWalk { view: x.clone(), dim: 0, source: 0, placed: Vec::new() };
    // Several ellipses: the first takes what is left.
    let mut spare = Some(spare);
    for (position, index) in expression.iter().enumerate() {
        match index {
            Index::Int(at) => state.select(*at, position)?,
            Index::Slice { start, stop, step } => state.slice(*start, *stop, step.unwrap_or(1), position)?,
            Index::NewAxis => state.insert()?,
            Index::Ellipsis => {
                let skip = spare.take().unwrap_or(0);
                state.dim += skip;
                state.source += skip;
            }
            Index::Bool(keep) => state.flag(*keep, position)?,
            Index::Mask(mask) => state.mask(mask, position)?,
            Index::Take(array) => state.take(array, position)?,
        }
    }
    Ok(Resolved { view: state.view, placed: state.placed })
}

fn consumed(index: &Index) -> usize {
    match index {
        Index::Int(_) | Index::Slice { .. } | Index::Take(_) => 1,
        Index::Mask(mask) => mask.ndim(),
        Index::NewAxis | Index::Ellipsis | Index::Bool(_) => 0,
    }
}

struct ViewWalk {
    view: Array,
    /// Next dim of the view.
    dim: usize,
    /// Next dim of the array as the caller sees it.
    source: usize,
    placed: Vec<Placed>,
}

impl ViewWalk {
    fn select(&mut self, index: i64, position: usize) -> Result<()> {
        let size = self.view.shape()[self.dim];
        let at = wrap_index(index, size).ok_or(Error::IndexOutOfRange {
            index,
            position,
            dim: self.source,
            size,
        })?;
        self.view = self.view.selected(self.dim, at);
        self.source += 1;
        Ok(())
    }

    fn slice(&mut self, start: Option<i64>, stop: Option<i64>, step: i64, position: usize) -> Result<()> {
        let size = self.view.shape()[self.dim];
        let (start, len) = slice_bounds(size, start, stop, step).ok_or(Error::Step { position })?;
        self.view = self.view.sliced(self.dim, start, len, step as isize);
        self.dim += 1;
        self.source += 1;
        Ok(())
    }

    fn insert(&mut self) -> Result<()> {
        self.view = self.view.unsqueeze(self.dim as i64)?;
        self.dim += 1;
        Ok(())
    }

    fn place(&mut self, entry: Entry, position: usize) {
        let (dim, source) = (self.dim, self.source);
        self.dim += entry.span();
        self.placed.push(Placed { entry, dim, source, position });
    }

    fn flag(&mut self, keep: bool, position: usize) -> Result<()> {
        self.view = self.view.unsqueeze(self.dim as i64)?;
        self.place(Entry::Flag(keep), position);
        Ok(())
    }

    fn mask(&mut self, mask: &Array, position: usize) -> Result<()> {
        check_mask(mask, position, &self.view, self.dim)?;
        if mask.ndim() == 0 {
            let keep = mask.item()?.as_bool();
            return self.flag(keep, position);
        }
        self.place(Entry::Mask(mask.clone()), position);
        self.source += mask.ndim();
        Ok(())
    }

    fn take(&mut self, array: &Array, position: usize) -> Result<()> {
        check_index_dtype(array, position)?;
        if array.ndim() > 0 {
            self.place(Entry::Take(array.clone()), position);
            self.source += 1;
            return Ok(());
        }
        if array.is_meta() && self.view.is_meta() {
            // Which position it is does not change the shape.
            self.view = self.view.selected(self.dim, 0);
            self.source += 1;
            return Ok(());
        }
        let at = i64::try_from(array.item()?.as_int()).unwrap_or(i64::MAX);
        self.select(at, position)
    }
}

/// The entries of `index_put`: an array or a full slice per dim.
pub(crate) fn place_optional(x: &Array, indices: &[Option<Array>]) -> Result<Resolved> {
    let mut state = ViewWalk { view: x.clone(), dim: 0, source: 0, placed: Vec::new() };
    for (position, index) in indices.iter().enumerate() {
        match index {
            None => {
                state.dim += 1;
                state.source += 1;
            }
            Some(mask) if mask.dtype() == DType::Bool => {
                check_mask(mask, position, &state.view, state.dim)?;
                state.place(Entry::Mask(mask.clone()), position);
                state.source += mask.ndim();
            }
            Some(array) => {
                check_index_dtype(array, position)?;
                state.place(Entry::Take(array.clone()), position);
                state.source += 1;
            }
        }
    }
    if state.dim > x.ndim() {
        return Err(Error::TooManyIndices { given: state.dim, shape: x.shape().clone() });
    }
    Ok(Resolved { view: state.view, placed: state.placed })
}

fn check_mask(mask: &Array, position: usize, view: &Array, dim: usize) -> Result<()> {
    if mask.dtype() != DType::Bool {
        return Err(Error::IndexDType { position, found: mask.dtype() });
    }
    let covered = view.shape().get(dim..dim + mask.ndim());
    if covered.is_some_and(|dims| dims == &mask.shape()[..]) {
        return Ok(());
    }
    if covered.is_none() {
        return Err(Error::TooManyIndices { given: dim + mask.ndim(), shape: view.shape().clone() });
    }
    Err(Error::MaskShape { mask: mask.shape().clone(), position, dim, shape: view.shape().clone() })
}

fn check_index_dtype(array: &Array, position: usize) -> Result<()> {
    if array.dtype().is_int() { Ok(()) } else { Err(Error::IndexDType { position, found: array.dtype() }) }
}
