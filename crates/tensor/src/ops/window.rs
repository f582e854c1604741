//! Positions along a dim that ranks share out as windows: which of them fall into this rank's.

use crate::error::Result;
use crate::op::Local;
use planaria_array::ops::{self, Binary, Compare, Keep};
use planaria_array::{Array, DType, Error, Scalar};
use planaria_layout::Reduce;

/// This rank's part of one dim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Size of the dim.
    pub(crate) size: usize,
    /// First position here.
    pub(crate) start: usize,
    /// Positions here.
    pub(crate) len: usize,
}

/// Positions as this rank sees them.
pub(crate) struct Located {
    /// Counted from the window's start; what lies outside is meaningless.
    pub(crate) here: Array,
    /// Which of them lie inside.
    pub(crate) inside: Array,
}

impl Window {
    /// Of a dim of an input.
    pub(crate) fn of(local: &Local<'_>, input: usize, array: &Array, dim: usize) -> Result<Window> {
        let len = array.shape()[dim];
        let size = local.input_shape(input, array)[dim];
        let start = if len == size { 0 } else { local.input_start(input, dim)? };
        Ok(Window { size, start, len })
    }

    /// True when other ranks have other positions.
    pub(crate) fn is_cut(&self) -> bool {
        self.len != self.size
    }

    /// Integer positions, negative ones counted from the end. Those outside the dim are an error on every rank that
    /// has them.
    pub(crate) fn locate(&self, index: &Array, outside: impl Fn(i64) -> Error) -> Result<Located> {
        let number = |n: usize| Array::scalar(Scalar::Int(n as i128), DType::I64);
        let index = index.cast(DType::I64)?;
        let from_end = ops::compare(Compare::Lt, &index, &number(0)?)?;
        let shifted = ops::binary(Binary::Add, &index, &number(self.size)?)?;
        let index = ops::where_(&from_end, &shifted, &index)?;
        self.check(&index, outside)?;
        let here = ops::binary(Binary::Sub, &index, &number(self.start)?)?;
        let after = ops::compare(Compare::Ge, &here, &number(0)?)?;
        let inside = after.logical_and(&ops::compare(Compare::Lt, &here, &number(self.len)?)?)?;
        Ok(Located { here, inside })
    }

    /// The same for positions that must not be negative.
    pub(crate) fn locate_plain(&self, index: &Array, outside: impl Fn(i64) -> Error) -> Result<Located> {
        self.check(&index.cast(DType::I64)?, &outside)?;
        self.locate(index, outside)
    }

    fn check(&self, index: &Array, outside: impl Fn(i64) -> Error) -> Result<()> {
        if index.numel() == 0 {
            return Ok(());
        }
        let extreme =
            |array: Array| Ok::<_, Error>(i64::try_from(array.item()?.as_int()).unwrap_or(i64::MAX));
        let (low, high) = (extreme(index.amin(&[], Keep::No)?)?, extreme(index.amax(&[], Keep::No)?)?);
        match (low < 0, u64::try_from(high).is_ok_and(|high| high >= self.size as u64)) {
            (true, _) => Err(outside(low).into()),
            (_, true) => Err(outside(high).into()),
            _ => Ok(()),
        }
    }

    /// Positions brought into the window, which has some.
    pub(crate) fn clamped(&self, here: &Array) -> Result<Array> {
        let last = Scalar::Int(self.len.max(1) as i128 - 1);
        Ok(ops::clip(here, Some(Scalar::Int(0)), Some(last))?)
    }
}

/// The reduction that joins one rank's value with nothing from the others.
pub(crate) fn joined(dtype: DType) -> Reduce {
    if dtype == DType::Bool { Reduce::Any } else { Reduce::Sum }
}

/// True where the mask is not.
pub(crate) fn outside_of(inside: &Array) -> Result<Array> {
    Ok(inside.logical_not()?)
}
