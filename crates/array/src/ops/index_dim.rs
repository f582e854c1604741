//! Whole slices along one dim: index_select, index_add, index_copy, index_fill.

use super::index::{Put, Written, empty_dim, read, write};
use crate::array::Array;
use crate::cpu::gather::within;
use crate::cuda;
use crate::device::Device;
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::index::{Entry, Placed, Resolved};
use crate::view::resolve_dim;
use planaria_layout::{DType, Dims};

/// A dim and one-dim positions along it.
struct Slices {
    op: &'static str,
    /// The array, as at least one dim.
    x: Array,
    dim: usize,
    /// I64, one dim.
    index: Array,
}

impl Slices {
    fn new(op: &'static str, x: &Array, dim: i64, index: &Array) -> Result<Slices> {
        let dim = resolve_dim(op, dim, x.ndim())?;
        if !matches!(index.dtype(), DType::I64 | DType::I32) {
            return Err(Error::DType { op, found: index.dtype(), expected: "i64 or i32 for an index" });
        }
        if index.ndim() > 1 {
            let reason = "the index must have one dim";
            return Err(Error::ShapeMismatch {
                op,
                lhs: x.shape().clone(),
                rhs: index.shape().clone(),
                reason,
            });
        }
        let index = index.cast(DType::I64)?.reshape(&[index.numel()])?;
        let x = if x.ndim() == 0 { x.unsqueeze(0)? } else { x.clone() };
        Ok(Slices { op, x, dim, index })
    }

    fn size(&self) -> usize {
        self.x.shape()[self.dim]
    }

    /// The first position outside `0..size`, if there is one. On a device it is reported late, as the error that
    /// `error` makes.
    fn first_outside(&self, error: impl Fn(&Slices, i64) -> Error) -> Result<Option<i64>> {
        if self.index.is_meta() || self.index.numel() == 0 {
            return Ok(None);
        }
        if let Device::Cuda(_) = self.index.device() {
            if self.size() == 0 {
                return Ok(Some(self.index.narrow(0, 0, 1)?.item()?.as_int() as i64));
            }
            cuda::check_within(&self.index, None, cuda::late::note_of(&error(self, 0)))?;
            return Ok(None);
        }
        let values = self.index.values::<i64>(self.op)?;
        if within(&values, self.size()) {
            return Ok(None);
        }
        Ok(values.iter().copied().find(|&i| usize::try_from(i).map_or(true, |i| i >= self.size())))
    }

    fn index_error(&self, index: i64) -> Error {
        Error::IndexOutOfRange { index, position: 0, dim: self.dim, size: self.size() }
    }

    fn position_error(&self, index: i64) -> Error {
        Error::PositionOutOfRange { op: self.op, index, dim: self.dim, size: self.size() }
    }

    fn resolved(&self, x: &Array) -> Resolved {
        let entry = Entry::Take(self.index.clone());
        let placed = vec![Placed { entry, dim: self.dim, source: self.dim, position: 0 }];
        Resolved { view: x.clone(), placed }
    }

    /// What `index_add` adds: exactly the shape of the chosen slices.
    fn added(&self, x: &Array, src: &Array) -> Result<Array> {
        src.check_dtype(self.op, x.dtype())?;
        if src.ndim() == 0 && self.index.numel() != 1 {
            return Err(self.source_error(src, ONE_POSITION));
        }
        if src.ndim() != x.ndim() {
            return Err(self.shape_error(src)?);
        }
        self.of_slices(src)
    }

    /// What `index_copy` writes: the shape of the chosen slices, or one number for one position.
    fn copied(&self, x: &Array, src: &Array) -> Result<Array> {
        src.check_dtype(self.op, x.dtype())?;
        if src.ndim() == 0 && self.index.numel() != 1 {
            return Err(self.source_error(src, ONE_POSITION));
        }
        if src.ndim() > 0 && x.ndim() > 0 && src.ndim() != x.ndim() {
            return Err(self.source_error(src, "it must have as many dims as the array"));
        }
        let mut resized = Dims::from_slice(src.shape());
        if src.ndim() == self.x.ndim() && src.shape()[self.dim] != self.index.numel() {
            resized[self.dim] = self.index.numel();
            if resized == self.wanted() {
                return Err(self.source_error(src, "it must have one slice for each position"));
            }
        }
        self.of_slices(src)
    }

    /// The source seen with the dims of the array; its shape must be that of the chosen slices.
    fn of_slices(&self, src: &Array) -> Result<Array> {
        let seen = if src.ndim() == 0 { src.unsqueeze(0)? } else { src.clone() };
        if seen.shape()[..] == self.wanted()[..] { Ok(seen) } else { Err(self.shape_error(src)?) }
    }

    fn wanted(&self) -> Dims {
        let mut wanted = Dims::from_slice(self.x.shape());
        wanted[self.dim] = self.index.numel();
        wanted
    }

    fn shape_error(&self, src: &Array) -> Result<Error> {
        let (lhs, rhs) = (planaria_layout::Shape::from_dims(self.wanted())?, src.shape().clone());
        let reason = "the source must have the shape of the chosen slices";
        Ok(Error::ShapeMismatch { op: self.op, lhs, rhs, reason })
    }

    fn source_error(&self, src: &Array, reason: &'static str) -> Error {
        Error::IndexSource { op: self.op, found: src.shape().clone(), reason }
    }
}

const ONE_POSITION: &str = "a single number goes to one position";

impl Array {
    /// The slices at the given positions of a dim, in their order. Positions must lie in `0..size`.
    pub fn index_select(&self, dim: i64, index: &Array) -> Result<Array> {
        let slices = Slices::new("index_select", self, dim, index)?;
        if self.ndim() == 0 && index.numel() != 1 {
            let reason = "a 0-d array has one element to select";
            let (lhs, rhs) = (self.shape().clone(), index.shape().clone());
            return Err(Error::ShapeMismatch { op: "index_select", lhs, rhs, reason });
        }
        // Families of errors as PyTorch users know them.
        let error = |slices: &Slices, bad: i64| match self.ndim() {
            2.. if slices.size() == 0 => {
                Error::EmptyDim { op: "index_select", dim: slices.dim, shape: self.shape().clone() }
            }
            2.. if slices.dim == 1 || self.numel() == 0 => slices.position_error(bad),
            _ => slices.index_error(bad),
        };
        if let Some(bad) = slices.first_outside(error)? {
            return Err(error(&slices, bad));
        }
        let out = read(&slices.resolved(&slices.x))?;
        if self.ndim() == 0 { out.reshape(&[]) } else { Ok(out) }
    }

    /// A copy with the slices of `src` added to the slices at the given positions of a dim, in index order.
    pub fn index_add(&self, dim: i64, index: &Array, src: &Array) -> Result<Array> {
        let out = self.copy()?;
        out.index_add_assign(dim, index, src)?;
        Ok(out)
    }

    /// [`Array::index_add`] in place.
    pub fn index_add_assign(&self, dim: i64, index: &Array, src: &Array) -> Result<()> {
        let slices = Slices::new("index_add", self, dim, index)?;
        let src = slices.added(self, src)?;
        if self.ndim() > 1 && self.numel() == 0 {
            return if src.numel() == 0 { Ok(()) } else { empty_dim("index_add", &slices.x, slices.dim) };
        }
        // The kind of error that torch gives: it scatters where it can.
        let at_end = slices.dim == 0 || slices.dim + 1 == self.ndim();
        let scattered = self.ndim() > 1 && at_end && index.dtype() == DType::I64;
        let error = if scattered { Slices::position_error } else { Slices::index_error };
        match slices.first_outside(error)? {
            Some(bad) => Err(error(&slices, bad)),
            None => write(&slices.resolved(&slices.x), Written::Array(&src), Put::Accumulate),
        }
    }

    /// A copy with the slices at the given positions of a dim replaced by those of `src`.
    pub fn index_copy(&self, dim: i64, index: &Array, src: &Array) -> Result<Array> {
        let out = self.copy()?;
        out.index_copy_assign(dim, index, src)?;
        Ok(out)
    }

    /// [`Array::index_copy`] in place.
    pub fn index_copy_assign(&self, dim: i64, index: &Array, src: &Array) -> Result<()> {
        let slices = Slices::new("index_copy", self, dim, index)?;
        let src = slices.copied(self, src)?;
        if slices.size() == 0 && slices.index.numel() > 0 {
            return empty_dim("index_copy", &slices.x, slices.dim);
        }
        match slices.first_outside(Slices::index_error)? {
            Some(bad) if self.numel() > 0 => Err(slices.index_error(bad)),
            _ => write(&slices.resolved(&slices.x), Written::Array(&src), Put::Replace),
        }
    }

    /// A copy with the slices at the given positions of a dim filled with one number; positions may count from
    /// the end.
    pub fn index_fill(&self, dim: i64, index: &Array, value: impl Into<Scalar>) -> Result<Array> {
        let out = self.copy()?;
        out.index_fill_assign(dim, index, value)?;
        Ok(out)
    }

    /// [`Array::index_fill`] in place.
    pub fn index_fill_assign(&self, dim: i64, index: &Array, value: impl Into<Scalar>) -> Result<()> {
        let slices = Slices::new("index_fill", self, dim, index)?;
        if slices.size() == 0 && slices.index.numel() > 0 {
            return empty_dim("index_fill", &slices.x, slices.dim);
        }
        write(&slices.resolved(&slices.x), Written::Scalar(value.into()), Put::Replace)
    }
}
