//! Index expressions: what may stand between the brackets of `x[...]`.

mod lookup;
mod resolve;

pub(crate) use lookup::Lookup;
pub(crate) use resolve::{Entry, Placed, Resolved, place_optional, resolve};

use crate::array::Array;
use planaria_layout::DType;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};

/// One entry of an index expression. The language is that of NumPy and PyTorch; where the two differ, PyTorch's
/// rule holds: an integer selects first, so `x[0, :, rows]` keeps the sliced dim in front of the indexed one.
///
/// `A` is what masks and positions come in: arrays here, tensors where tensors are indexed.
///
/// ```
/// use planaria_array::{Array, Index};
/// let x = Array::from_slice(&[0i64, 1, 2, 3, 4, 5], &[2, 3])?;
/// let last = x.get(&[Index::Ellipsis, (-1).into()])?;
/// assert_eq!(last.to_vec::<i64>()?, [2, 5]);
/// let rows = Array::from_slice(&[1i64, 1], &[2])?;
/// assert_eq!(x.get(&[rows.into(), (1..).into()])?.to_vec::<i64>()?, [4, 5, 4, 5]);
/// # Ok::<(), planaria_array::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Index<A = Array> {
    /// One position; negative counts from the end. The dim disappears.
    Int(i64),
    /// `start:stop:step` with Python's clamping; a negative step walks backwards.
    Slice {
        /// First position; the dim's first when absent, its last under a negative step.
        start: Option<i64>,
        /// Position after the last; past the end of the walk when absent.
        stop: Option<i64>,
        /// Distance between positions, 1 when absent.
        step: Option<i64>,
    },
    /// A new dim of size 1.
    NewAxis,
    /// As many full slices as dims are left. Further ones stand for nothing.
    Ellipsis,
    /// A new dim of size 1 or 0, which takes part in broadcasting with the index arrays.
    Bool(bool),
    /// The positions at which a boolean array is true; it covers as many dims as it has.
    Mask(A),
    /// Positions along one dim, from an integer array of any shape.
    Take(A),
}

impl<A> Index<A> {
    /// `start:stop:step`.
    pub fn slice(start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> Index<A> {
        Index::Slice { start, stop, step }
    }

    /// The whole dim.
    pub fn all() -> Index<A> {
        Index::slice(None, None, None)
    }

    /// The same entry with its mask or positions in another form.
    pub fn map<B>(self, to: impl FnOnce(A) -> B) -> Index<B> {
        match self {
            Index::Int(at) => Index::Int(at),
            Index::Slice { start, stop, step } => Index::Slice { start, stop, step },
            Index::NewAxis => Index::NewAxis,
            Index::Ellipsis => Index::Ellipsis,
            Index::Bool(keep) => Index::Bool(keep),
            Index::Mask(mask) => Index::Mask(to(mask)),
            Index::Take(positions) => Index::Take(to(positions)),
        }
    }
}

impl<A> From<i64> for Index<A> {
    fn from(at: i64) -> Index<A> {
        Index::Int(at)
    }
}
impl<A> From<i32> for Index<A> {
    fn from(at: i32) -> Index<A> {
        Index::Int(at.into())
    }
}
impl<A> From<usize> for Index<A> {
    fn from(at: usize) -> Index<A> {
        Index::Int(i64::try_from(at).unwrap_or(i64::MAX))
    }
}
impl<A> From<bool> for Index<A> {
    fn from(keep: bool) -> Index<A> {
        Index::Bool(keep)
    }
}
impl<A> From<RangeFull> for Index<A> {
    fn from(_: RangeFull) -> Index<A> {
        Index::all()
    }
}
impl<A> From<Range<i64>> for Index<A> {
    fn from(range: Range<i64>) -> Index<A> {
        Index::slice(Some(range.start), Some(range.end), None)
    }
}
impl<A> From<RangeFrom<i64>> for Index<A> {
    fn from(range: RangeFrom<i64>) -> Index<A> {
        Index::slice(Some(range.start), None, None)
    }
}
impl<A> From<RangeTo<i64>> for Index<A> {
    fn from(range: RangeTo<i64>) -> Index<A> {
        Index::slice(None, Some(range.end), None)
    }
}
impl<A> From<RangeInclusive<i64>> for Index<A> {
    fn from(range: RangeInclusive<i64>) -> Index<A> {
        // `..=-1` ends with the last element, which only an absent stop can say.
        let stop = range.end().checked_add(1).filter(|&stop| stop != 0);
        Index::slice(Some(*range.start()), stop, None)
    }
}
impl From<Array> for Index {
    fn from(array: Array) -> Index {
        if array.dtype() == DType::Bool { Index::Mask(array) } else { Index::Take(array) }
    }
}
impl From<&Array> for Index {
    fn from(array: &Array) -> Index {
        array.clone().into()
    }
}
